//! Voile's gateway: a Gateway's servers and a VirtualService lead calls from outside to a server without a sidecar. A peer's
//! gateway is the process that leads straight to the server (see `pair`), called the same way.

mod changes;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use voile_host::child::{SupervisedChild, stop_all};
use voile_host::ports::free_port;
use voile_host::ready::Probe;

use self::changes::IngressChanges;
use super::voile::{Ports, SidecarSettings, Voile, metric, second, tell};
use crate::contestants::contestant::{CellRoute, Contestant, Counts, changed, peers_folder};
use crate::contestants::effect_evidence::{EffectEvidence, READY_PATH};
use crate::contestants::listeners::fill;
use crate::definition::{EventAction, Variant};
use crate::machine::instance::{CONTROL, Hop, INGRESS, Instance};
use crate::network::Echo;
use crate::plan::RequestPath;
use crate::shared_processes::{Lab, STOP_GRACE};

const MESH: &str = include_str!("../../../../../../benchmarks/voile/mesh-gateway.yaml");
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 10, 0, 3));
const HTTP: &str = "http1";
/// Host name that clients request.
const HOST: &str = "server.lab.example";
/// Ports by their names in the mesh's template, and their protocols.
const PORTS: [(&str, &str); 3] = [
    ("HTTP_PORT", HTTP),
    ("GRPC_PORT", "grpc"),
    ("TCP_PORT", "tcp"),
];

/// See the module.
pub(crate) struct Ingress {
    variant: Variant,
    /// Control plane of the gateway.
    mesh: Voile,
    running: Option<RunningIngress>,
}

struct RunningIngress {
    control: SupervisedChild,
    /// Ports of the control plane.
    told_by: Ports,
    gateway: SupervisedChild,
    /// By what they carry.
    ports: BTreeMap<&'static str, u16>,
    admin: SocketAddr,
    metrics: SocketAddr,
    readiness: SocketAddr,
    folder: PathBuf,
    changes: IngressChanges,
}

impl RunningIngress {
    /// Sets the gateway's addresses for administration, metrics and readiness.
    fn tells_at(&mut self, [admin, metrics, readiness]: [SocketAddr; 3]) {
        (self.admin, self.metrics, self.readiness) = (admin, metrics, readiness);
    }
}

fn free(on: IpAddr) -> Result<SocketAddr, String> {
    free_port(on).map_err(|e| format!("cannot get a port for a gateway: {e}"))
}

impl Ingress {
    pub(crate) fn new(variant: Variant) -> Self {
        let mesh = Voile::variant(Variant {
            program: variant.program.clone(),
            ..Variant::plain(&format!("{}-gateway", variant.name))
        });
        Self {
            variant,
            mesh,
            running: None,
        }
    }

    fn running(&self) -> Result<&RunningIngress, String> {
        let running = self.running.as_ref();
        running.ok_or_else(|| format!("{}'s gateway does not run", self.variant.name))
    }

    fn resources(echo: &Echo, ports: &BTreeMap<&str, u16>) -> Result<String, String> {
        let mut values = vec![
            ("GATEWAY_ADDRESS", ADDRESS.to_string()),
            ("ECHO_ADDRESS", echo.http.ip().to_string()),
            ("ECHO_PORT", echo.http.port().to_string()),
            ("TCP_ECHO_PORT", echo.tcp.port().to_string()),
        ];
        for (name, carries) in PORTS {
            values.push((name, ports.get(carries).copied().unwrap_or(0).to_string()));
        }
        let values: Vec<_> = values
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        fill(MESH, &values)
    }

    /// Starts a gateway, and returns the addresses of its pages.
    fn start_gateway(
        &self,
        lab: &Lab<'_>,
        folder: &Path,
        control: SocketAddr,
    ) -> Result<(SupervisedChild, [SocketAddr; 3]), String> {
        let (account, state) = ("lab/gateway", folder.join("state"));
        let token = self.mesh.token(lab, &state, account, "gateway")?;
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let pages = [free(local)?, free(local)?, free(local)?];
        let told = SidecarSettings {
            account,
            control,
            root: &state.join("root-cert.pem"),
            token: &token,
            pages,
            workers: lab.workers,
        };
        let program = self.variant.program.as_deref().unwrap_or(&lab.voile);
        let name = format!("{}-gateway", self.variant.name);
        let spec = tell(lab.process(INGRESS, &name, program)?, &told);
        let spec = spec.args(["--role", "gateway"]);
        let spec = match lab.upgradable {
            true => spec.arg("--handover").arg(folder.join("gateway.handover")),
            false => spec,
        };
        Ok((spec.start().map_err(|e| e.to_string())?, pages))
    }
}

impl Contestant for Ingress {
    fn name(&self) -> &str {
        &self.variant.name
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        if lab.far.is_some() {
            return Err("a gateway is measured on one machine only".to_owned());
        }
        let folder = peers_folder(lab, &format!("{}-gateway", self.variant.name))?;
        let (config, state) = (folder.join("config"), folder.join("state"));
        std::fs::create_dir_all(&config).map_err(|e| format!("{}: {e}", config.display()))?;
        let mut own = BTreeMap::new();
        for (_, carries) in PORTS {
            own.insert(carries, free(ADDRESS)?.port());
        }
        let mesh = Self::resources(&lab.echo, &own)?;
        crate::record_folder::write(&config.join("mesh.yaml"), &mesh)?;
        let second = lab.moves.then(|| second(lab, &folder)).transpose()?;
        let ports = Ports::choose()?;
        let mut control = self
            .mesh
            .start_control(lab, &config, &state, &ports, None)?;
        let ready = Probe::Http(ports.monitoring(), "/ready".to_owned());
        lab.wait_ready(&mut control, &ready)?;
        let (gateway, [admin, metrics, readiness]) =
            self.start_gateway(lab, &folder, ports.control())?;
        self.running = Some(RunningIngress {
            control,
            told_by: ports,
            gateway,
            ports: own,
            admin,
            metrics,
            readiness,
            folder,
            changes: IngressChanges::none(second),
        });
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let running = self.running.as_mut().ok_or("it was not started")?;
        let ready = Probe::Http(running.readiness, READY_PATH.to_owned());
        lab.wait_ready(&mut running.gateway, &ready)
    }

    fn route(&self, lab: &Lab<'_>, way: &RequestPath) -> Option<CellRoute> {
        let running = self.running.as_ref().filter(|_| !way.tls)?;
        let port = *running.ports.get(way.ports())?;
        let gateway = Hop {
            to: INGRESS,
            address: SocketAddr::new(ADDRESS, port),
            tls: false,
            spot: None,
        };
        let mut route = CellRoute::through(vec![gateway, lab.server_hop(&way.protocol)]);
        route.host = Some(HOST.to_owned());
        Some(route)
    }

    fn instances(&self, _way: &RequestPath) -> Vec<Instance> {
        let one = |child: &SupervisedChild, role| {
            Instance::here(child.name().to_owned(), role, child.group_pids())
        };
        let running = self.running.iter();
        let both = |running: &RunningIngress| {
            [
                one(&running.gateway, INGRESS),
                one(&running.control, CONTROL),
            ]
        };
        running.flat_map(both).collect()
    }

    fn counts(&self, way: &RequestPath) -> Counts {
        let running = self.running()?;
        let count = metric(running.gateway.name(), running.metrics, &way.protocol, None)?;
        Ok(Some(BTreeMap::from([(INGRESS, count)])))
    }

    fn act(
        &mut self,
        lab: &Lab<'_>,
        action: &EventAction,
        way: &RequestPath,
    ) -> Result<EffectEvidence, String> {
        changed(
            self,
            |one| &mut one.running,
            |one, running| one.change(running, lab, action, way),
        )
    }

    fn settle(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        changed(
            self,
            |one| &mut one.running,
            |one, running| one.make_good(running, lab),
        )
    }

    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let running = self.running.as_mut().ok_or("it does not run")?;
        for child in [&mut running.gateway, &mut running.control] {
            if let Some(exit) = child.try_exit() {
                let name = child.name();
                return Err(format!("{name} {exit}{}", lab.log_end(name)));
            }
        }
        Ok(())
    }

    fn version(&self) -> String {
        self.mesh.version()
    }

    fn commands(&self) -> Vec<String> {
        let running = self.running.iter();
        let all = running.flat_map(|running| [&running.gateway, &running.control]);
        all.map(|child| child.command_line().to_owned()).collect()
    }

    fn terms(&self) -> Vec<String> {
        vec![
            "a gateway with its defaults: a host to match, routes, Istio's metrics, configured and certified by a live voile control"
                .to_owned(),
        ]
    }

    fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            stop_all([&mut running.gateway, &mut running.control], STOP_GRACE);
            running.changes.stop();
        }
    }
}
