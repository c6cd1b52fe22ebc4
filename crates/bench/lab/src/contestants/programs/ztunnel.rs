//! ztunnel as two sidecars, one process a pod in its dedicated mode. Its workloads come from a file made from the experiment. Its
//! certificate comes from a live `voile control`, by the same Istio call and token as Voile's own. Its ports are fixed and it
//! reads the original destination from the kernel, so it runs in network namespaces only.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use voile_host::child::{SupervisedChild, stop_all};
use voile_host::netns::rules::{MARK_INWARD, MARK_OUTWARD};
use voile_host::ready::{Probe, http_get};

use super::voile::{CONNECTIONS, Ports, Voile, counted};
use crate::contestants::captured::{Calls, CapturedPods, Redirection};
use crate::contestants::contestant::{CellRoute, Contestant, Counts, IdentityProbe, peers_folder};
use crate::contestants::listeners::fill;
use crate::definition::Variant;
use crate::find;
use crate::machine::instance::{CLIENT, CONTROL, HBONE, Instance, SERVER};
use crate::network::{GATEWAY, HTTP_PORT, INBOUND, OUTBOUND, TCP_PORT};
use crate::plan::RequestPath;
use crate::shared_processes::{Lab, STOP_GRACE};

const WORKLOADS: &str = include_str!("../../../../../../benchmarks/peers/ztunnel/workloads.yaml");
const MESH: &str = include_str!("../../../../../../benchmarks/peers/ztunnel/mesh.yaml");
const NAME: &str = "ztunnel";
/// Virtual addresses of the services.
const SERVER_VIRTUAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 211, 0, 1));
const DIRECT_VIRTUAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 211, 0, 2));
const STAGE_VIRTUAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 211, 0, 3));
const METRICS: u16 = 15020;
const READINESS: u16 = 15021;

/// ztunnel as it was found.
pub(crate) struct Ztunnel {
    found: find::PeerProgram,
    /// Control plane that certifies ztunnel.
    mesh: Voile,
    running: Option<RunningZtunnel>,
}

struct RunningZtunnel {
    pods: CapturedPods,
    control: SupervisedChild,
    /// The client's and the server's.
    sidecars: Vec<(SupervisedChild, &'static str, IpAddr)>,
}

impl Ztunnel {
    pub(crate) fn new(found: find::PeerProgram) -> Self {
        Self {
            found,
            mesh: Voile::variant(Variant::plain(NAME)),
            running: None,
        }
    }

    /// Workloads and services of the mesh, as both ztunnels know them.
    fn workloads(lab: &Lab<'_>, pods: &CapturedPods) -> Result<String, String> {
        let values = [
            ("CLIENT_ADDRESS", pods.client().to_string()),
            ("SERVER_ADDRESS", pods.server().to_string()),
            ("DIRECT_ADDRESS", lab.echo.http.ip().to_string()),
            ("DIRECT_HTTP_PORT", lab.echo.http.port().to_string()),
            ("DIRECT_TCP_PORT", lab.echo.tcp.port().to_string()),
            ("HTTP_PORT", HTTP_PORT.to_string()),
            ("TCP_PORT", TCP_PORT.to_string()),
            ("SERVER_VIRTUAL", SERVER_VIRTUAL.to_string()),
            ("DIRECT_VIRTUAL", DIRECT_VIRTUAL.to_string()),
            ("STAGE_ADDRESS", GATEWAY.to_string()),
            ("STAGE_VIRTUAL", STAGE_VIRTUAL.to_string()),
        ];
        fill(
            WORKLOADS,
            &values.map(|(name, value)| (name.to_owned(), value)),
        )
    }

    fn start_sidecar(
        &self,
        lab: &Lab<'_>,
        ports: &Ports,
        pod: &str,
        role: &'static str,
    ) -> Result<SupervisedChild, String> {
        let folder = peers_folder(lab, NAME)?;
        let state = folder.join("state");
        let token = self.mesh.token(lab, &state, &format!("lab/{pod}"), pod)?;
        // The mark keeps a proxy's own packets from redirection. The server's proxy has a mark for packets to its own pod.
        let mark = if role == CLIENT {
            MARK_OUTWARD
        } else {
            MARK_INWARD
        };
        let spec = lab
            .process(role, &format!("{NAME}-{pod}"), &self.found.path)?
            .arg("proxy")
            .env("PROXY_MODE", "dedicated")
            .env("PROXY_WORKLOAD_INFO", format!("lab/{pod}/{pod}"))
            .env("NODE_NAME", "lab")
            .env("LOCAL_XDS_PATH", folder.join("workloads.yaml"))
            .env("XDS_ADDRESS", "")
            .env("CA_ADDRESS", format!("https://{}", ports.control()))
            .env("CA_ROOT_CA", state.join("root-cert.pem"))
            .env("AUTH_TOKEN", token)
            .env("PACKET_MARK", mark.to_string())
            .env("ENABLE_ORIG_SRC", "false")
            .env("ISTIO_META_DNS_CAPTURE", "false")
            .env("ZTUNNEL_WORKER_THREADS", lab.workers.to_string())
            .env("RUST_LOG", "warn");
        spec.start().map_err(|e| e.to_string())
    }
}

impl Contestant for Ztunnel {
    fn name(&self) -> &str {
        NAME
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let Some(network) = lab.network else {
            return Err("ztunnel's ports are fixed and the kernel must redirect to them: it is measured in isolation \
                        \"netns\" only"
                .to_owned());
        };
        let folder = peers_folder(lab, NAME)?;
        let (config, state) = (folder.join("config"), folder.join("state"));
        std::fs::create_dir_all(&config).map_err(|e| format!("{}: {e}", config.display()))?;
        crate::record_folder::write(&config.join("mesh.yaml"), MESH)?;
        let ports = Ports::captured()?;
        let redirection = Redirection::original(Some(ports.control()), vec![HTTP_PORT, TCP_PORT]);
        let echo = (&[HTTP_PORT][..], &[TCP_PORT][..]);
        let pods = CapturedPods::prepare(lab, network, NAME, redirection, echo)?;
        crate::record_folder::write(
            &folder.join("workloads.yaml"),
            &Self::workloads(lab, &pods)?,
        )?;
        let inside = pods.lab(lab);
        let control = self
            .mesh
            .start_control(&inside, &config, &state, &ports, None)?;
        // `running` owns the processes from here on, so they end with it even if a later step fails.
        let mut running = RunningZtunnel {
            pods,
            control,
            sidecars: Vec::new(),
        };
        let ready = Probe::Http(ports.monitoring(), "/ready".to_owned());
        lab.wait_ready(&mut running.control, &ready)?;
        for (pod, role) in [("client", CLIENT), ("server", SERVER)] {
            let address = match role {
                CLIENT => running.pods.client(),
                _ => running.pods.server(),
            };
            let process = self.start_sidecar(&inside, &ports, pod, role)?;
            running.sidecars.push((process, role, address));
        }
        self.running = Some(running);
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let running = self.running.as_mut().ok_or("ztunnel was not started")?;
        for (process, _, address) in &mut running.sidecars {
            let ready = SocketAddr::new(*address, READINESS);
            lab.wait_ready(process, &Probe::Http(ready, "/healthz/ready".to_owned()))?;
        }
        Ok(())
    }

    fn captures(&self) -> bool {
        true
    }

    fn route(&self, lab: &Lab<'_>, way: &RequestPath) -> Option<CellRoute> {
        let running = self.running.as_ref()?;
        // Two of them always speak mutual TLS to each other.
        if way.mode == "both" && !way.tls {
            return None;
        }
        let port = if way.protocol == "tcp" {
            TCP_PORT
        } else {
            HTTP_PORT
        };
        let (pod_port, server_listener) = if way.tls {
            (HBONE, HBONE)
        } else {
            (port, INBOUND)
        };
        let calls = Calls {
            service: (SERVER_VIRTUAL, port).into(),
            direct: (DIRECT_VIRTUAL, port).into(),
            pod_port,
            echo_port: port,
            direct_port: lab.server_hop(&way.protocol).address.port(),
            client_listener: OUTBOUND,
            server_listener,
        };
        running.pods.route(way, &calls)
    }

    fn server(&self, way: &RequestPath) -> Option<Instance> {
        self.running.as_ref()?.pods.instance(way)
    }

    fn instances(&self, way: &RequestPath) -> Vec<Instance> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        let on_path = |role: &str| match way.mode.as_str() {
            "clientonly" => role == CLIENT,
            "serveronly" => role == SERVER,
            _ => true,
        };
        let instance = |child: &SupervisedChild, role| {
            Instance::here(child.name().to_owned(), role, child.group_pids())
        };
        let sidecars = running.sidecars.iter().filter(|(_, role, _)| on_path(role));
        let sidecars = sidecars.map(|(process, role, _)| instance(process, role));
        let control = instance(&running.control, CONTROL);
        sidecars.chain([control]).collect()
    }

    fn counts_requests(&self, _way: &RequestPath) -> bool {
        false
    }

    fn counts(&self, _way: &RequestPath) -> Counts {
        let running = self.running.as_ref().ok_or("ztunnel does not run")?;
        let mut counts = BTreeMap::new();
        for (process, role, address) in &running.sidecars {
            let name = process.name();
            let (status, body) = http_get(SocketAddr::new(*address, METRICS), "/metrics")
                .map_err(|e| format!("{name}'s metrics: {e}"))?;
            if status != 200 {
                return Err(format!("{name}'s metrics answer {status}"));
            }
            let exposition = String::from_utf8_lossy(&body);
            counts.insert(*role, counted(&exposition, CONNECTIONS, ""));
        }
        Ok(Some(counts))
    }

    /// The lab's server stands at the address of a declared third pod.
    fn stage(&self, lab: &Lab<'_>, _way: &RequestPath) -> Result<Option<IdentityProbe>, String> {
        let running = self.running.as_ref().ok_or("ztunnel does not run")?;
        let (client, _) = running.pods.networks();
        let entry = (STAGE_VIRTUAL, HTTP_PORT).into();
        IdentityProbe::of_tunnel(&lab.folder.join(NAME), entry, client)
    }

    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let running = self.running.as_mut().ok_or("ztunnel does not run")?;
        running.pods.alive(lab)?;
        let sidecars = running.sidecars.iter_mut().map(|(process, ..)| process);
        for child in sidecars.chain([&mut running.control]) {
            if let Some(exit) = child.try_exit() {
                let name = child.name();
                return Err(format!("{name} {exit}{}", lab.log_end(name)));
            }
        }
        Ok(())
    }

    fn version(&self) -> String {
        self.found.version.clone()
    }

    fn commands(&self) -> Vec<String> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        let sidecars = running.sidecars.iter().map(|(process, ..)| process);
        sidecars
            .chain([&running.control])
            .map(|child| child.command_line().to_owned())
            .collect()
    }

    fn terms(&self) -> Vec<String> {
        vec![
            "does less: moves bytes and reads no HTTP, so it counts connections, not requests; no policy by path or header"
                .to_owned(),
            "one process per pod (its dedicated mode); on a node one process serves all pods".to_owned(),
            "workloads from a file, certificates from a live voile control; access log off, callers' addresses not kept"
                .to_owned(),
            "its tunnel is HTTP/2 over mutual TLS (HBONE): many connections share one, and the suite is its own choice"
                .to_owned(),
        ]
    }

    fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let sidecars = running.sidecars.iter_mut().map(|(process, ..)| process);
            stop_all(sidecars.chain([&mut running.control]), STOP_GRACE);
            running.pods.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_of_the_workloads_is_one_that_the_lab_fills() {
        let names = [
            "CLIENT_ADDRESS",
            "SERVER_ADDRESS",
            "DIRECT_ADDRESS",
            "DIRECT_HTTP_PORT",
            "DIRECT_TCP_PORT",
            "HTTP_PORT",
            "TCP_PORT",
            "SERVER_VIRTUAL",
            "DIRECT_VIRTUAL",
            "STAGE_ADDRESS",
            "STAGE_VIRTUAL",
        ];
        let values = names.map(|name| (name.to_owned(), "1".to_owned()));
        let text = fill(WORKLOADS, &values).expect("filled");
        assert_eq!(text.matches("protocol: HBONE").count(), 3);
    }
}
