//! Voile's gateway: what comes from outside, led by a Gateway's servers and a VirtualService to a server without a sidecar. A
//! peer's gateway is the process that leads straight to the server (see `pair`), called the same way.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use voile_host::child::{Supervised, stop_all};
use voile_host::ports::free_port;
use voile_host::ready::Probe;

use super::listeners::fill;
use super::voile::{Ports, Told, Voile, metric, tell};
use super::{CONTROL, Contestant, Counts, Hop, INGRESS, Instance, Route, peers_folder};
use crate::definition::Variant;
use crate::plan::Way;
use crate::target::{Lab, STOP_GRACE};

const MESH: &str = include_str!("../../../../benchmarks/voile/mesh-gateway.yaml");
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 10, 0, 3));
/// Whom clients ask for.
const HOST: &str = "server.lab.example";
/// Its ports by their names in the mesh's template, and what they carry.
const PORTS: [(&str, &str); 3] = [
    ("HTTP_PORT", "http1"),
    ("GRPC_PORT", "grpc"),
    ("TCP_PORT", "tcp"),
];

/// See the module.
pub(super) struct Ingress {
    variant: Variant,
    /// Who tells and certifies it.
    mesh: Voile,
    running: Option<Running>,
}

struct Running {
    control: Supervised,
    gateway: Supervised,
    /// By what they carry.
    ports: BTreeMap<&'static str, u16>,
    metrics: SocketAddr,
    readiness: SocketAddr,
}

impl Ingress {
    pub(super) fn new(variant: Variant) -> Self {
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

    fn running(&self) -> Result<&Running, String> {
        let running = self.running.as_ref();
        running.ok_or_else(|| format!("{}'s gateway does not run", self.variant.name))
    }

    fn resources(lab: &Lab<'_>, ports: &BTreeMap<&str, u16>) -> Result<String, String> {
        let mut values = vec![
            ("GATEWAY_ADDRESS", ADDRESS.to_string()),
            ("ECHO_ADDRESS", lab.echo.http.ip().to_string()),
            ("ECHO_PORT", lab.echo.http.port().to_string()),
            ("TCP_ECHO_PORT", lab.echo.tcp.port().to_string()),
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
        let free = |on| free_port(on).map_err(|e| format!("a port for a gateway: {e}"));
        let mut own = BTreeMap::new();
        for (_, carries) in PORTS {
            own.insert(carries, free(ADDRESS)?.port());
        }
        crate::folder::write(&config.join("mesh.yaml"), &Self::resources(lab, &own)?)?;
        let ports = Ports::choose()?;
        let mut control = self
            .mesh
            .start_control(lab, &config, &state, &ports, None)?;
        let ready = Probe::Http(ports.monitoring(), "/ready".to_owned());
        lab.wait_ready(&mut control, &ready)?;
        let account = "lab/gateway";
        let token = self.mesh.token(lab, &state, account, "gateway")?;
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let pages = [free(local)?, free(local)?, free(local)?];
        let told = Told {
            account,
            control: ports.control(),
            root: &state.join("root-cert.pem"),
            token: &token,
            pages,
            workers: lab.workers,
        };
        let program = self.variant.program.as_deref().unwrap_or(&lab.voile);
        let name = format!("{}-gateway", self.variant.name);
        let spec = tell(lab.process(INGRESS, &name, program)?, &told);
        let gateway = spec.args(["--role", "gateway"]).start();
        let [_, metrics, readiness] = pages;
        self.running = Some(Running {
            control,
            gateway: gateway.map_err(|e| e.to_string())?,
            ports: own,
            metrics,
            readiness,
        });
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let running = self.running.as_mut().ok_or("it was not started")?;
        let ready = Probe::Http(running.readiness, "/healthz/ready".to_owned());
        lab.wait_ready(&mut running.gateway, &ready)
    }

    fn route(&self, lab: &Lab<'_>, way: &Way) -> Option<Route> {
        let running = self.running.as_ref().filter(|_| !way.tls)?;
        let port = *running.ports.get(way.ports())?;
        let gateway = Hop {
            to: INGRESS,
            address: SocketAddr::new(ADDRESS, port),
            tls: false,
            spot: None,
        };
        let mut route = Route::through(vec![gateway, lab.server_hop(&way.protocol)]);
        route.host = Some(HOST.to_owned());
        Some(route)
    }

    fn instances(&self, _way: &Way) -> Vec<Instance> {
        let one = |child: &Supervised, role| {
            Instance::here(child.name().to_owned(), role, child.group_pids())
        };
        let running = self.running.iter();
        let both = |running: &Running| {
            [
                one(&running.gateway, INGRESS),
                one(&running.control, CONTROL),
            ]
        };
        running.flat_map(both).collect()
    }

    fn counts(&self, way: &Way) -> Counts {
        let running = self.running()?;
        let count = metric(running.gateway.name(), running.metrics, &way.protocol, None)?;
        Ok(Some(BTreeMap::from([(INGRESS, count)])))
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
            "a gateway with its defaults: a host to agree on, routes, Istio's metrics, told and certified by a live voile control"
                .to_owned(),
        ]
    }

    fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            stop_all([&mut running.gateway, &mut running.control], STOP_GRACE);
        }
    }
}
