//! linkerd2-proxy as two sidecars. It reads no file, but asks a control plane of Linkerd's kind (`voile bench linkerd-control`).
//! The lab makes and starts that control plane, with a trust anchor of the run's own. The proxy reads the original destination
//! from the kernel, so it runs in network namespaces only. It does not mark its packets, so only calls to virtual addresses of
//! services are redirected to it.

mod mesh;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use voile_host::child::{SupervisedChild, stop_all};
use voile_host::netns::rules::{PortScope, Range};
use voile_host::ports::free_port;
use voile_host::ready::{Probe, http_get};

use self::mesh::{CLIENT_NAME, CONTROL_NAME, LinkerdFiles, SERVER_NAME};
use super::voile::counted;
use crate::contestants::captured::{Calls, CapturedPods, Redirection};
use crate::contestants::certificates::Leaf;
use crate::contestants::contestant::{
    CellRoute, Contestant, Counts, ExpectedOutput, IdentityProbe, RecordedOutput, TUNNEL_OPENING,
    peers_folder,
};
use crate::find;
use crate::machine::instance::{CLIENT, CONTROL, Instance, SERVER};
use crate::network::{GATEWAY, HTTP_PORT, INBOUND, OUTBOUND, TCP_PORT};
use crate::plan::RequestPath;
use crate::shared_processes::{Lab, STOP_GRACE};

/// Its name in definitions and records.
pub(crate) const NAME: &str = "linkerd2-proxy";
/// Name of the control plane's process.
const CONTROL_PROCESS: &str = "linkerd2-proxy-control";
/// Virtual addresses of the services, and their range.
const SERVER_VIRTUAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 211, 0, 1));
const DIRECT_VIRTUAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 211, 0, 2));
const STAGE_VIRTUAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 211, 0, 3));
const VIRTUAL: Range = Range {
    address: IpAddr::V4(Ipv4Addr::new(10, 211, 0, 0)),
    prefix: 16,
};
/// Ports of the server that only the client may call, over mutual TLS. Its other ports are open to all callers.
const SEALED_HTTP_PORT: u16 = HTTP_PORT + 1;
const SEALED_TCP_PORT: u16 = TCP_PORT + 1;
/// Ports of the stage. Each trial uses another port, because a proxy that met an impostor at a port waits before it retries
/// there.
const STAGES: std::ops::Range<u16> = 8200..8232;
/// Its readiness and metrics; the redirection leaves it alone.
const ADMIN: u16 = 15090;
/// Counters of its metrics: answers, and connections.
const RESPONSES: &str = "response_total";
const OPENED: &str = "tcp_open_total";

/// linkerd2-proxy as it was found.
pub(crate) struct Linkerd {
    found: find::PeerProgram,
    running: Option<RunningLinkerd>,
}

struct RunningLinkerd {
    pods: CapturedPods,
    control: SupervisedChild,
    /// Address of the control plane.
    asked: SocketAddr,
    /// Address of the lab's own servers for the impostor's trial, and the certificates of both.
    stage: (SocketAddr, Leaf, Leaf),
    /// Number of trials so far.
    tried: Cell<u16>,
    sidecars: Vec<LinkerdSidecar>,
}

struct LinkerdSidecar {
    process: SupervisedChild,
    role: &'static str,
    /// Its name in certificates.
    identity: &'static str,
    admin: SocketAddr,
}

impl LinkerdSidecar {
    fn is_on(&self, way: &RequestPath) -> bool {
        match way.mode.as_str() {
            "clientonly" => self.role == CLIENT,
            "serveronly" => self.role == SERVER,
            _ => true,
        }
    }

    /// A sum over its metrics' lines that have all of these labels.
    fn sum(&self, protocol: &str, labels: &[String]) -> Result<u64, String> {
        let name = self.process.name();
        let (status, body) =
            http_get(self.admin, "/metrics").map_err(|e| format!("{name}'s metrics: {e}"))?;
        if status != 200 {
            return Err(format!("{name}'s metrics answer {status}"));
        }
        Ok(carried(
            &String::from_utf8_lossy(&body),
            self.role,
            protocol,
            labels,
        ))
    }
}

/// Good answers or connections that the sidecar has carried by its metrics. Answers of its admin page do not count.
fn carried(exposition: &str, role: &str, protocol: &str, labels: &[String]) -> u64 {
    let direction = if role == CLIENT {
        "direction=\"outbound\""
    } else {
        "direction=\"inbound\""
    };
    let (counter, which) = match protocol {
        "tcp" => (OPENED, "peer=\"src\""),
        _ => (RESPONSES, "classification=\"success\""),
    };
    let admin = format!(":{ADMIN}\"");
    let ours = |line: &&str| {
        let has = |label: &str| line.contains(label);
        has(direction) && has(which) && !has(&admin) && labels.iter().all(|label| has(label))
    };
    let lines: Vec<&str> = exposition.lines().filter(ours).collect();
    counted(&lines.join("\n"), counter, "")
}

impl Linkerd {
    pub(crate) fn new(found: find::PeerProgram) -> Self {
        Self {
            found,
            running: None,
        }
    }

    fn running(&self) -> Result<&RunningLinkerd, String> {
        let running = self.running.as_ref();
        running.ok_or_else(|| format!("{NAME} does not run"))
    }

    /// Starts a sidecar. Its environment names only its ports, its control plane and its identity.
    fn start_sidecar(
        &self,
        lab: &Lab<'_>,
        files: &LinkerdFiles,
        control: SocketAddr,
        (pod, role, identity): (&str, &'static str, &'static str),
    ) -> Result<SupervisedChild, String> {
        let own = files.of(pod);
        let at = control.to_string();
        let mut spec = lab
            .process(role, &format!("{NAME}-{pod}"), &self.found.path)?
            .env("LINKERD2_PROXY_LOG", "warn,linkerd=info")
            .env("LINKERD2_PROXY_CORES", lab.workers.to_string());
        for service in ["DESTINATION", "POLICY", "IDENTITY"] {
            spec = spec
                .env(format!("LINKERD2_PROXY_{service}_SVC_ADDR"), &at)
                .env(format!("LINKERD2_PROXY_{service}_SVC_NAME"), CONTROL_NAME);
        }
        let anywhere = |port: u16| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).to_string();
        let outbound = SocketAddr::from((Ipv4Addr::LOCALHOST, OUTBOUND)).to_string();
        let token = own.join("token").display().to_string();
        let anchors = files.anchors()?;
        let ports = PORTS.map(|port| port.to_string()).join(",");
        for (name, value) in [
            ("OUTBOUND_LISTEN_ADDRS", outbound),
            ("INBOUND_LISTEN_ADDR", anywhere(INBOUND)),
            ("ADMIN_LISTEN_ADDR", anywhere(ADMIN)),
            ("INBOUND_PORTS", ports),
            ("INBOUND_DEFAULT_POLICY", "deny".to_owned()),
            ("POLICY_WORKLOAD", mesh::workload(pod)),
            ("DESTINATION_PROFILE_NETWORKS", "10.0.0.0/8".to_owned()),
            ("IDENTITY_DIR", own.display().to_string()),
            ("IDENTITY_TOKEN_FILE", token),
            ("IDENTITY_TRUST_ANCHORS", anchors),
            ("IDENTITY_LOCAL_NAME", identity.to_owned()),
            // The lab has no open connections when it ends a sidecar, so a short grace period is enough.
            ("SHUTDOWN_GRACE_PERIOD", "1s".to_owned()),
        ] {
            spec = spec.env(format!("LINKERD2_PROXY_{name}"), value);
        }
        spec.start().map_err(|e| e.to_string())
    }
}

/// Ports of the server. Its sidecar asks the control plane about them before it is called.
const PORTS: [u16; 4] = [HTTP_PORT, SEALED_HTTP_PORT, TCP_PORT, SEALED_TCP_PORT];

impl Contestant for Linkerd {
    fn name(&self) -> &str {
        NAME
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let Some(network) = lab.network else {
            return Err(format!(
                "{NAME} reads the original destination from the kernel, on both sides: it is measured in isolation \"netns\" only"
            ));
        };
        let folder = peers_folder(lab, NAME)?;
        let redirection = Redirection::Original {
            control: None,
            inbound: PORTS.to_vec(),
            outbound: PortScope::Only(vec![VIRTUAL]),
        };
        let echo = (
            &[HTTP_PORT, SEALED_HTTP_PORT][..],
            &[TCP_PORT, SEALED_TCP_PORT][..],
        );
        let pods = CapturedPods::prepare(lab, network, NAME, redirection, echo)?;
        let chosen = |what: &str| {
            free_port(GATEWAY.into())
                .map_err(|e| format!("cannot get a port for {NAME}'s {what}: {e}"))
        };
        let (asked, stage) = (chosen("control plane")?, chosen("impostor")?);
        let (files, right, wrong) = LinkerdFiles::write(&folder)?;
        let file = files.write_mesh(&mesh::LinkerdAddresses {
            control: asked,
            server: pods.server(),
            direct: lab.echo,
            stage,
        })?;
        let inside = pods.lab(lab);
        let spec = inside
            .process(CONTROL, CONTROL_PROCESS, &lab.voile)?
            .args(["bench", "linkerd-control"])
            .arg(file);
        let control = spec.start().map_err(|e| e.to_string())?;
        // `running` owns the processes now, so they end with it even if a later step fails.
        let running = self.running.insert(RunningLinkerd {
            pods,
            control,
            asked,
            stage: (stage, right, wrong),
            tried: Cell::new(0),
            sidecars: Vec::new(),
        });
        lab.wait_ready(&mut running.control, &Probe::Tcp(asked))?;
        let addresses = [running.pods.client(), running.pods.server()];
        let sides = [
            ("client", CLIENT, CLIENT_NAME),
            ("server", SERVER, SERVER_NAME),
        ];
        for (side, address) in sides.into_iter().zip(addresses) {
            let process = self.start_sidecar(&inside, &files, asked, side)?;
            let (_, role, identity) = side;
            let sidecar = LinkerdSidecar {
                process,
                role,
                identity,
                admin: SocketAddr::new(address, ADMIN),
            };
            self.running
                .as_mut()
                .ok_or("it was started")?
                .sidecars
                .push(sidecar);
        }
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let running = self.running.as_mut().ok_or("it was not started")?;
        for sidecar in &mut running.sidecars {
            let probe = Probe::Http(sidecar.admin, "/ready".to_owned());
            if let Err(why) = lab.wait_ready(&mut sidecar.process, &probe) {
                if let Some(exit) = running.control.try_exit() {
                    let log = lab.log_end(CONTROL_PROCESS);
                    return Err(format!("the control plane that {NAME} asks {exit}{log}"));
                }
                let log = lab.log(CONTROL_PROCESS);
                let asked = mesh::asked(&log, sidecar.identity, running.asked);
                return Err(format!("{why}\n  {asked}"));
            }
        }
        Ok(())
    }

    fn captures(&self) -> bool {
        true
    }

    fn route(&self, lab: &Lab<'_>, way: &RequestPath) -> Option<CellRoute> {
        let running = self.running.as_ref()?;
        let (plain, sealed) = match way.protocol.as_str() {
            "tcp" => (TCP_PORT, SEALED_TCP_PORT),
            _ => (HTTP_PORT, SEALED_HTTP_PORT),
        };
        let port = if way.tls { sealed } else { plain };
        let calls = Calls {
            service: (SERVER_VIRTUAL, port).into(),
            direct: (DIRECT_VIRTUAL, plain).into(),
            // Over mutual TLS bytes are taken at the proxy's own port, with a header that says for which.
            pod_port: if way.tls && way.protocol == "tcp" {
                INBOUND
            } else {
                port
            },
            echo_port: port,
            direct_port: lab.server_hop(&way.protocol).address.port(),
            client_listener: OUTBOUND,
            server_listener: INBOUND,
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
        let instance = |child: &SupervisedChild, role| {
            Instance::here(child.name().to_owned(), role, child.group_pids())
        };
        let sidecars = running.sidecars.iter().filter(|sidecar| sidecar.is_on(way));
        let sidecars = sidecars.map(|sidecar| instance(&sidecar.process, sidecar.role));
        sidecars
            .chain([instance(&running.control, CONTROL)])
            .collect()
    }

    fn shares_connections(&self) -> bool {
        true
    }

    fn counts(&self, way: &RequestPath) -> Counts {
        let mut counts = BTreeMap::new();
        for sidecar in &self.running()?.sidecars {
            counts.insert(sidecar.role, sidecar.sum(&way.protocol, &[])?);
        }
        Ok(Some(counts))
    }

    /// Over mutual TLS each sidecar records its peer: the client's the server, the server's the client.
    fn recorded(&self, _lab: &Lab<'_>, way: &RequestPath) -> Result<Vec<RecordedOutput>, String> {
        if !way.tls {
            return Ok(Vec::new());
        }
        // Connections from the application to the client's sidecar are none of the mesh's.
        let sidecars = self.running()?.sidecars.iter();
        let told = sidecars.filter(|sidecar| way.protocol != "tcp" || sidecar.role == SERVER);
        let one = |sidecar: &LinkerdSidecar| {
            let other = if sidecar.role == CLIENT {
                format!("server_id=\"{SERVER_NAME}\"")
            } else {
                format!("client_id=\"{CLIENT_NAME}\"")
            };
            let labels = ["tls=\"true\"".to_owned(), other];
            Ok(RecordedOutput {
                count: sidecar.sum(&way.protocol, &labels)?,
                what: format!("of the {}'s, {}", sidecar.role, labels.join(", ")),
                expected: ExpectedOutput::Labelled,
            })
        };
        told.map(one).collect()
    }

    /// The lab's server stands beside the lab, at the address of a declared meshed endpoint. It gets the first bytes of HTTP/2.
    fn stage(&self, _lab: &Lab<'_>, _way: &RequestPath) -> Result<Option<IdentityProbe>, String> {
        let running = self.running()?;
        let (client, _) = running.pods.networks();
        let (server, right, wrong) = running.stage.clone();
        let tried = running.tried.get();
        running.tried.set(tried.wrapping_add(1));
        let port = STAGES.start + tried % (STAGES.end - STAGES.start);
        Ok(Some(IdentityProbe {
            entry: (STAGE_VIRTUAL, port).into(),
            host: None,
            server,
            right,
            wrong,
            networks: Some((client, None)),
            speaks: "h2",
            opening: Some(TUNNEL_OPENING),
        }))
    }

    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let running = self.running.as_mut().ok_or("it does not run")?;
        running.pods.alive(lab)?;
        let sidecars = running.sidecars.iter_mut();
        let sidecars = sidecars.map(|sidecar| &mut sidecar.process);
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
        let running = self.running.iter();
        running
            .flat_map(|running| {
                let sidecars = running.sidecars.iter().map(|sidecar| &sidecar.process);
                sidecars.chain([&running.control])
            })
            .map(|child| child.command_line().to_owned())
            .collect()
    }

    fn terms(&self) -> Vec<String> {
        vec![
            "the lab serves its control plane: the answers of Linkerd's for a service without routes and for meshed endpoints, sent once; certificates valid for a day"
                .to_owned(),
            "between two of them all HTTP is HTTP/2 over mutual TLS, as in Linkerd: many clients share a connection"
                .to_owned(),
            "detects protocols on HTTP ports (TCP ports are opaque: otherwise it waits ten seconds if the bytes look like the start of a request), keeps metrics, balances over a service's one endpoint; access log off"
                .to_owned(),
        ]
    }

    fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let sidecars = running.sidecars.iter_mut();
            let sidecars = sidecars.map(|sidecar| &mut sidecar.process);
            stop_all(sidecars.chain([&mut running.control]), STOP_GRACE);
            running.pods.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPOSITION: &str = r#"# HELP response_total Total count of HTTP responses.
# TYPE response_total counter
response_total{direction="outbound",target_addr="10.210.4.2:8081",tls="true",server_id="server.lab.serviceaccount.identity.linkerd.cluster.local",status_code="200",classification="success",grpc_status="",error=""} 300
response_total{direction="outbound",target_addr="10.210.4.2:8080",tls="no_identity",no_tls_reason="not_provided_by_service_discovery",status_code="200",classification="success",grpc_status="",error=""} 7
response_total{direction="outbound",target_addr="10.210.4.2:8080",tls="no_identity",no_tls_reason="not_provided_by_service_discovery",status_code="500",classification="failure",grpc_status="",error=""} 5
response_total{direction="inbound",target_addr="0.0.0.0:15090",tls="no_identity",no_tls_reason="no_tls_from_remote",status_code="200",classification="success",grpc_status="",error=""} 99
control_response_total{direction="outbound",addr="10.210.0.1:4",tls="true",classification="success"} 44
tcp_open_total{direction="outbound",peer="src",target_addr="10.211.0.1:9081",tls="no_identity",no_tls_reason="loopback"} 16
tcp_open_total{direction="outbound",peer="dst",target_addr="10.210.4.2:9081",tls="true",server_id="server.lab.serviceaccount.identity.linkerd.cluster.local"} 16
"#;

    #[test]
    fn good_answers_count_once_and_its_own_page_and_its_questions_do_not() {
        let sealed = ["tls=\"true\"".to_owned()];
        for (role, protocol, labels, count) in [
            (CLIENT, "http1", &[][..], 307),
            (CLIENT, "grpc", &sealed[..], 300),
            (CLIENT, "tcp", &[][..], 16),
            (SERVER, "http1", &[][..], 0),
            (SERVER, "tcp", &sealed[..], 0),
        ] {
            let seen = carried(EXPOSITION, role, protocol, labels);
            assert_eq!(seen, count, "{role} {protocol} {labels:?}");
        }
    }

    #[test]
    fn without_networks_of_its_own_it_is_left_out_by_name() {
        let mut linkerd = Linkerd::new(find::PeerProgram {
            path: "/none".into(),
            version: "1".to_owned(),
        });
        let lab = Lab::on_loopback(
            std::path::Path::new("/none"),
            std::path::Path::new("/none"),
            crate::network::Echo::NOWHERE,
            &|| false,
        );
        let why = linkerd.start(&lab).expect_err("it cannot");
        assert!(why.contains("isolation \"netns\" only"), "{why}");
    }
}
