//! The questions of a certified proxy, and the client that asks them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::uri::PathAndQuery;
use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, KeyUsagePurpose};
use tonic::client::Grpc;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;
use voile_linkerd::messages::identity::{CertifyRequest, CertifyResponse};
use voile_linkerd::messages::inbound::{InboundServer, Permit, PortSpec};
use voile_linkerd::messages::{destination, outbound};
use voile_linkerd::{LinkerdService, LinkerdWorkload, Mesh, ServingState};

pub(crate) const CERTIFY: &str = "/io.linkerd.proxy.identity.Identity/Certify";
const WATCH_PORT: &str = "/io.linkerd.proxy.inbound.InboundServerPolicies/WatchPort";
const WATCH: &str = "/io.linkerd.proxy.outbound.OutboundPolicies/Watch";
const GET: &str = "/io.linkerd.proxy.destination.Destination/Get";
const GET_PROFILE: &str = "/io.linkerd.proxy.destination.Destination/GetProfile";

pub(crate) const CLIENT: &str = "client.mesh";
pub(crate) const SERVER: &str = "server.mesh";
const CONTROL: &str = "control.mesh";

/// A request for a certificate of that name, and its key.
pub(crate) fn request(name: &str) -> (Vec<u8>, KeyPair) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    let csr = params.serialize_request(&key).expect("a request");
    (csr.der().to_vec(), key)
}

/// A running control plane.
pub(crate) struct Control {
    address: SocketAddr,
    root: String,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Control {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let root = params.self_signed(&key).expect("an anchor").pem();
        let (anchor, anchor_key) = (
            folder.path().join("root.pem"),
            folder.path().join("key.pem"),
        );
        std::fs::write(&anchor, &root).expect("written");
        std::fs::write(&anchor_key, key.serialize_pem()).expect("written");
        let workload = |name: &str, pod: &str| LinkerdWorkload {
            identity: name.to_owned(),
            token: format!("{pod}-token"),
            workload: format!("lab/{pod}"),
            sealed_ports: vec![8081],
            clients: vec![CLIENT.to_owned()],
            opaque_ports: Vec::new(),
        };
        let mesh = Mesh {
            listen: "127.0.0.1:0".parse().expect("an address"),
            name: CONTROL.to_owned(),
            root: anchor,
            root_key: anchor_key,
            workloads: vec![workload(CLIENT, "client"), workload(SERVER, "server")],
            services: vec![LinkerdService {
                name: "server".to_owned(),
                address: "10.211.0.1:8081".parse().expect("an address"),
                endpoints: vec![voile_linkerd::LinkerdEndpoint {
                    address: "10.210.2.3:8081".parse().expect("an address"),
                    identity: Some(SERVER.to_owned()),
                }],
                opaque: None,
            }],
        };
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let tell = move |line: &str| sink.lock().expect("not poisoned").push(line.to_owned());
        let serving = ServingState::bind(mesh, tell).await.expect("bound");
        let address = serving.address().expect("an address");
        tokio::spawn(serving.serve());
        Self {
            address,
            root,
            lines,
        }
    }

    /// Log lines of the control plane.
    pub(crate) fn said(&self) -> String {
        self.lines.lock().expect("not poisoned").join("\n")
    }

    /// A connection, with a client certificate or without.
    pub(crate) async fn connect(&self, own: Option<Identity>) -> Result<Proxy, String> {
        let mut tls = ClientTlsConfig::new()
            .domain_name(CONTROL)
            .ca_certificate(Certificate::from_pem(&self.root));
        if let Some(own) = own {
            tls = tls.identity(own);
        }
        let endpoint = Endpoint::from_shared(format!("https://{}", self.address));
        let endpoint = endpoint.and_then(|endpoint| endpoint.tls_config(tls));
        let endpoint = endpoint.map_err(|e| e.to_string())?;
        let channel = endpoint.connect().await.map_err(|e| format!("{e:?}"))?;
        Ok(Proxy(channel))
    }

    /// The same, and one question, since over TLS 1.3 a client learns of a refusal only then.
    pub(crate) async fn tried(&self, own: Option<Identity>) -> Result<(), String> {
        let proxy = self.connect(own).await?;
        let asked = PortSpec {
            workload: "lab/server".to_owned(),
            port: 8081,
        };
        let answer = proxy.watch::<_, InboundServer>(WATCH_PORT, asked).await;
        answer.map(drop).map_err(|status| status.to_string())
    }

    /// A certificate of that name, got as a proxy gets it.
    pub(crate) async fn certified(&self, name: &str) -> Identity {
        let (csr, key) = request(name);
        let proxy = self.connect(None).await.expect("TLS without certificate");
        let token = format!("{}-token", name.split('.').next().unwrap_or_default());
        let asked = CertifyRequest {
            identity: name.to_owned(),
            token: token.into_bytes(),
            certificate_signing_request: csr,
        };
        let made: CertifyResponse = proxy.once(CERTIFY, asked).await.expect("certified");
        Identity::from_pem(pem(&made.leaf_certificate), key.serialize_pem())
    }
}

fn pem(der: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let encoded = base64(der);
    for line in encoded.as_bytes().chunks(64) {
        let _ = writeln!(text, "{}", String::from_utf8_lossy(line));
    }
    text + "-----END CERTIFICATE-----\n"
}

fn base64(bytes: &[u8]) -> String {
    use ::base64::Engine;
    ::base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Who asks.
pub(crate) struct Proxy(Channel);

impl Proxy {
    /// A call with one answer.
    pub(crate) async fn once<M, R>(&self, method: &'static str, asked: M) -> Result<R, Status>
    where
        M: Message + Default + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready()
            .await
            .map_err(|e| Status::unknown(e.to_string()))?;
        let path = PathAndQuery::from_static(method);
        let answer = grpc
            .unary(Request::new(asked), path, ProstCodec::default())
            .await?;
        Ok(answer.into_inner())
    }

    /// A watch: its first message, and the stream, which stays open.
    pub(crate) async fn watch<M, R>(
        &self,
        method: &'static str,
        asked: M,
    ) -> Result<(R, Streaming<R>), Status>
    where
        M: Message + Default + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready()
            .await
            .map_err(|e| Status::unknown(e.to_string()))?;
        let path = PathAndQuery::from_static(method);
        let opened = grpc.server_streaming(Request::new(asked), path, ProstCodec::default());
        let mut stream = opened.await?.into_inner();
        let first = stream.message().await?;
        Ok((
            first.ok_or_else(|| Status::unknown("the stream ended"))?,
            stream,
        ))
    }
}

fn port(port: u32) -> PortSpec {
    PortSpec {
        workload: "lab/server".to_owned(),
        port,
    }
}

fn target(text: &str) -> outbound::TrafficSpec {
    let address: SocketAddr = text.parse().expect("an address");
    outbound::TrafficSpec {
        source_workload: "lab/client".to_owned(),
        target: Some(outbound::OutboundTarget::Addr(address.into())),
    }
}

#[tokio::test]
async fn what_nobody_has_is_not_found_and_other_methods_are_not_there() {
    let control = Control::start().await;
    let own = control.certified(CLIENT).await;
    let proxy = control.connect(Some(own)).await.expect("mutual TLS");
    for (what, refused) in [
        ("an address of nobody's", {
            let asked = proxy.watch::<_, outbound::OutboundPolicy>(WATCH, target("10.211.0.9:80"));
            asked.await.expect_err("no service").code()
        }),
        ("a port beyond", {
            let asked = proxy.watch::<_, InboundServer>(WATCH_PORT, port(65_536 + 8081));
            asked.await.expect_err("no port").code()
        }),
        ("nobody's pod", {
            let asked = PortSpec {
                workload: "lab/nobody".to_owned(),
                port: 1,
            };
            let asked = proxy.watch::<_, InboundServer>(WATCH_PORT, asked);
            asked.await.expect_err("no pod").code()
        }),
    ] {
        assert_eq!(refused, Code::NotFound, "{what}");
    }
    let other: Result<InboundServer, Status> = proxy
        .once("/io.linkerd.proxy.tap.Tap/Observe", port(1))
        .await;
    assert_eq!(other.expect_err("not here").code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_certified_proxy_is_told_of_its_ports_and_of_who_answers_and_streams_stay_open() {
    let control = Control::start().await;
    let own = control.certified(SERVER).await;
    let proxy = control.connect(Some(own)).await.expect("mutual TLS");
    let (server, mut stream) = proxy
        .watch::<_, InboundServer>(WATCH_PORT, port(8081))
        .await
        .expect("known");
    let permit = server.authorizations[0]
        .authentication
        .clone()
        .and_then(|a| a.permit);
    assert!(matches!(permit, Some(Permit::MeshTls(_))), "{permit:?}");
    let (policy, _) = proxy
        .watch::<_, outbound::OutboundPolicy>(WATCH, target("10.211.0.1:8081"))
        .await
        .expect("a service");
    assert!(format!("{policy:?}").contains("server.lab.svc.cluster.local:8081"));
    let about = |path: &str| destination::GetDestination {
        path: path.to_owned(),
        ..Default::default()
    };
    let (update, _) = proxy
        .watch::<_, destination::Update>(GET, about("server.lab.svc.cluster.local:8081"))
        .await
        .expect("answered");
    let Some(destination::Change::Add(set)) = update.update else {
        panic!("somebody answers: {update:?}");
    };
    let at = set.addrs[0].addr.and_then(|address| address.socket());
    assert_eq!(at, "10.210.2.3:8081".parse().ok());
    let (profile, _) = proxy
        .watch::<_, destination::DestinationProfile>(GET_PROFILE, about("10.211.0.1:8081"))
        .await
        .expect("answered");
    assert_eq!(profile.fully_qualified_name, "server.lab.svc.cluster.local");
    // The first stream is still there, after all that was asked beside it.
    let more = futures_util::poll!(std::pin::pin!(stream.message()));
    assert!(more.is_pending(), "it ended: {more:?}");
    assert!(control.said().contains("answered WatchPort of port 8081"));
}
