//! HTTP/3 at a gateway: on where the Service asks for it, and then the same in everything as what comes over TCP.

mod edges;
pub(crate) mod example;
mod exchanges;
mod handover;
mod memory;
pub(crate) mod quic;
mod streams;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use voile_http3::Code;
use voile_load::UnverifiedServer;

use super::tls::{PORT, curl, https};
use super::{Edge, TO_SERVER, routes, say, servers};
use crate::gateway::http3::quic::{Answer, Dialed, dial, head};
use crate::mesh::certificates::Keys;
use crate::mesh::{Client, application, wait_until};

/// The Service in front of the gateway, with this port beside that of TCP.
pub(super) fn service(more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: gateway, namespace: shop}}\nspec:\n  selector: {{istio: ingress}}\n  ports: [{{name: https, port: 443, targetPort: {PORT}}}{more}]\n---\n"
    )
}

pub(super) const ASKED: &str = ", {name: http3, port: 443, targetPort: 8443, protocol: UDP}";

/// A client that speaks this, and shows this certificate.
pub(crate) fn client(alpn: &[u8], shows: Option<(&Keys, &str)>) -> Arc<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(UnverifiedServer::by(provider));
    let mut config = match shows {
        None => config.with_no_client_auth(),
        Some((keys, name)) => {
            let [crt, key] = ["crt", "key"].map(|kind| keys.path(&format!("{name}.{kind}")));
            let crt = CertificateDer::from_pem_file(crt).expect("a certificate");
            let key = PrivateKeyDer::from_pem_file(key).expect("a key");
            config
                .with_client_auth_cert(vec![crt], key)
                .expect("a pair")
        }
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

pub(super) async fn as_anybody(edge: &Edge, name: &str) -> Result<Dialed, String> {
    dial(edge.at(PORT), name, &client(b"h3", None)).await
}

/// Returns true if the UDP port is free; closes the socket again.
pub(super) fn is_free(address: SocketAddr) -> bool {
    UdpSocket::bind(address).is_ok()
}

/// The `alt-svc` header that a client over TCP gets.
pub(super) fn offered(edge: &Edge, host: &str) -> Option<String> {
    let (_, text) = curl(edge, host, &["-k", "-i"]).ok()?;
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("alt-svc: "))?;
    Some(line.trim().to_owned())
}

/// Resources of a gateway with HTTP/3 enabled.
pub(super) fn asking(keys: &Keys, list: &str, hosts: &str, http: &str) -> String {
    keys.pair("server") + &servers(list) + &routes(hosts, http) + &service(ASKED)
}

/// A gateway that is asked for HTTP/3.
pub(super) fn start(keys: &Keys, list: &str, hosts: &str, http: &str) -> Edge {
    start_as(Client::default(), &asking(keys, list, hosts, http))
}

/// The same, started so.
pub(super) fn start_as(how: Client, resources: &str) -> Edge {
    let edge = Edge::start_as(how, "", resources);
    wait_until("HTTP/3", || !is_free(edge.at(PORT)));
    edge
}

/// A gateway for a.example, which reflects.
pub(super) fn simple() -> Edge {
    simple_as(Client::default()).0
}

/// The same, started with these options, and its resources.
pub(super) fn simple_as(how: Client) -> (Edge, String) {
    let keys = Keys::new();
    keys.own("server", "a.example");
    let server = https("a.example", "mode: SIMPLE, credentialName: server");
    let resources = asking(&keys, &server, "a.example", TO_SERVER);
    let edge = start_as(how, &resources);
    application::reflect(edge.mesh.http_app());
    wait_until("a route", || {
        curl(&edge, "a.example", &["-k"]).is_ok_and(|(status, _)| status == "200 2")
    });
    (edge, resources)
}

pub(crate) async fn get_at(to: &Dialed, host: &str, path: &str) -> Result<Answer, String> {
    to.ask(&head("GET", host, path, &[]), None).await
}

/// A gateway for a.example without HTTP/3 in its Service, and its resources without the Service.
pub(super) fn unasked() -> (Edge, String) {
    let keys = Keys::new();
    keys.own("server", "a.example");
    let server = https("a.example", "mode: SIMPLE, credentialName: server");
    let all = keys.pair("server") + &servers(&server) + &routes("a.example", TO_SERVER);
    let edge = Edge::start("", &(all.clone() + &service("")));
    application::reflect(edge.mesh.http_app());
    wait_until("a route", || {
        curl(&edge, "a.example", &["-k"]).is_ok_and(|(status, _)| status == "200 2")
    });
    (edge, all)
}

#[test]
fn http3_is_there_where_the_service_asks_for_it_and_clients_over_tcp_are_told() {
    let (edge, all) = unasked();
    assert_eq!(offered(&edge, "a.example"), None);
    assert!(is_free(edge.at(PORT)));
    // A port that leads elsewhere asks for nothing.
    let elsewhere = ASKED.replace("8443", "8444");
    say(
        &edge.mesh,
        "edge.yaml",
        &(all.clone() + &service(&elsewhere)),
    );
    say(&edge.mesh, "edge.yaml", &(all.clone() + &service(ASKED)));
    let told = Some(r#"h3=":443"; ma=86400"#.to_owned());
    wait_until("the offer", || offered(&edge, "a.example") == told);
    wait_until("HTTP/3", || !is_free(edge.at(PORT)));
    quic::run(async {
        let to = as_anybody(&edge, "a.example").await.expect("a connection");
        let answer = get_at(&to, "a.example", "/x?y=z").await.expect("an answer");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.field("alt-svc"), None);
        let seen = answer.text().to_ascii_lowercase();
        for line in [
            "get /x?y=z http/1.1\r\n",
            "host: a.example\r\n",
            "x-forwarded-proto: https\r\n",
            "x-forwarded-for: 127.0.0.1\r\n",
        ] {
            assert!(seen.contains(line), "{line:?} of\n{seen}");
        }
        // The connection outlasts the setting, and does not prevent a new one.
        for round in 0..2 {
            say(&edge.mesh, "edge.yaml", &(all.clone() + &service("")));
            wait_until("the offer to end", || offered(&edge, "a.example").is_none());
            let answer = get_at(&to, "a.example", "/").await.expect("an answer");
            assert_eq!(answer.status, 200);
            if round == 0 {
                say(&edge.mesh, "edge.yaml", &(all.clone() + &service(ASKED)));
                wait_until("the offer", || offered(&edge, "a.example") == told);
                let other = as_anybody(&edge, "a.example").await.expect("a connection");
                let answer = get_at(&other, "a.example", "/").await.expect("an answer");
                assert_eq!((answer.status, edge.ready()), (200, Ok(())));
                other.leave().await;
            }
        }
        to.leave().await;
    });
    wait_until("the socket to close", || is_free(edge.at(PORT)));
}

/// A connection on which this host is served; its certificate may be on its way.
async fn answered(to: SocketAddr, host: &str, tls: &Arc<ClientConfig>) -> Dialed {
    loop {
        if let Ok(dialed) = dial(to, host, tls).await
            && get_at(&dialed, host, "/").await.is_ok()
        {
            return dialed;
        }
    }
}

#[test]
fn each_name_has_its_own_certificate_terms_and_hosts_over_quic_too() {
    let keys = Keys::new();
    for (name, host) in [
        ("server", "a.example"),
        ("second", "*.b.example"),
        ("clients", "c"),
    ] {
        keys.own(name, host);
    }
    keys.client("known", "clients");
    let list = [
        https("a.example", "mode: SIMPLE, credentialName: server"),
        https("\"*.b.example\"", "mode: MUTUAL, credentialName: second"),
        https(
            "old.example",
            "mode: SIMPLE, credentialName: server, maxProtocolVersion: TLSV1_2",
        ),
    ]
    .join(", ");
    let edge = start(&keys, &list, "\"*\"", TO_SERVER);
    let clients = keys.secret("shop", "second-cacert", &[("ca.crt", "clients.crt")]);
    say(&edge.mesh, "secret.yaml", &(keys.pair("second") + &clients));
    application::reflect(edge.mesh.http_app());
    wait_until("a route", || {
        curl(&edge, "a.example", &["-k"]).is_ok_and(|(status, _)| status == "200 2")
    });
    let to = edge.at(PORT);
    let shown = |name: &str| CertificateDer::from_pem_file(keys.path(name)).expect("a certificate");
    quic::run(async {
        let known = client(b"h3", Some((&keys, "known")));
        let mutual = answered(to, "x.b.example", &known).await;
        assert_eq!(mutual.shown(), shown("second.crt"));
        let answer = get_at(&mutual, "x.b.example", "/")
            .await
            .expect("an answer");
        assert_eq!(answer.status, 200);
        let anybody = client(b"h3", None);
        let simple = dial(to, "a.example", &anybody).await.expect("a connection");
        let answer = get_at(&simple, "a.example", "/").await.expect("an answer");
        assert_eq!(answer.status, 200);
        assert_eq!(simple.shown(), shown("server.crt"));
        // A connection by one certificate does not reach the hosts of another.
        let answer = get_at(&simple, "x.b.example", "/")
            .await
            .expect("an answer");
        assert_eq!(answer.status, 421);
        for (name, tls) in [
            ("b.example", &known),
            ("nobody.example", &known),
            ("old.example", &anybody),
            ("a.example", &client(b"h2", None)),
        ] {
            assert!(dial(to, name, tls).await.is_err(), "{name}");
        }
        // A client that must show a certificate and has none gets no answer, at whatever moment it learns
        // of the refusal.
        let answered = match dial(to, "x.b.example", &anybody).await {
            Ok(dialed) => get_at(&dialed, "x.b.example", "/").await.is_ok(),
            Err(_) => false,
        };
        assert!(!answered);
    });
}

#[test]
fn requests_of_all_sizes_are_answered_and_those_that_are_none_are_refused() {
    let edge = simple();
    quic::run(async {
        let to = as_anybody(&edge, "a.example").await.expect("a connection");
        let body = "0123456789".repeat(100_000);
        let length = body.len().to_string();
        let more = [("content-length", &*length), ("cookie", "a=b")];
        let post = head("POST", "a.example", "/up", &more);
        let answer = to
            .ask(&post, Some(body.as_bytes()))
            .await
            .expect("an answer");
        assert_eq!(answer.status, 200);
        assert!(answer.text().ends_with(&body), "{}", answer.body.len());
        let value = "v".repeat(59 * 1024);
        for (more, status) in [(&value[..], 200), (&"v".repeat(61 * 1024), 431)] {
            let get = head("GET", "a.example", "/", &[("x-large", more)]);
            let answer = to.ask(&get, None).await.expect("an answer");
            assert_eq!(answer.status, status, "{}", more.len());
        }
        let get = head(
            "GET",
            "a.example",
            "/",
            &[("x-large", &"v".repeat(300_000))],
        );
        assert_eq!(to.ask(&get, None).await.expect("an answer").status, 431);
        let tunnel = head("CONNECT", "a.example:443", "", &[]);
        assert_eq!(to.ask(&tunnel, None).await.expect("an answer").status, 501);
        // A malformed request ends its stream, and nothing more.
        for (more, why) in [
            (("Upper", "x"), "upper case"),
            (("connection", "close"), "of a connection"),
            (("transfer-encoding", "chunked"), "framed twice"),
            (("x-line", "a\r\nb"), "two lines"),
            (("content-length", "5"), "a body that is not there"),
        ] {
            let answer = to.ask(&head("GET", "a.example", "/", &[more]), None).await;
            let malformed = format!("error {}", Code::MESSAGE_ERROR.0);
            assert!(
                answer
                    .as_ref()
                    .is_err_and(|error| error.ends_with(&malformed))
                    || answer.as_ref().is_ok_and(|answer| answer.status == 400),
                "{why}: {answer:?}"
            );
        }
        let answer = to.ask(&head("GET", "a.example", "/", &[]), None).await;
        assert_eq!(answer.expect("an answer").status, 200);
    });
}

#[test]
fn logs_and_metrics_tell_of_http3() {
    let edge = simple();
    let log = edge.mesh.config().with_file_name("access.log");
    let config = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: istio\n  namespace: istio-system\ndata:\n  mesh: |\n    accessLogFile: {}\n",
        log.display()
    );
    say(&edge.mesh, "istio.yaml", &config);
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until("a line of HTTP/2", || {
        let _ = curl(&edge, "a.example", &["-k"]);
        lines().contains("\"GET /a HTTP/2\" 200")
    });
    quic::run(async {
        let to = as_anybody(&edge, "a.example").await.expect("a connection");
        assert_eq!(
            get_at(&to, "a.example", "/three")
                .await
                .expect("one")
                .status,
            200
        );
        assert_eq!(
            get_at(&to, "b.example", "/none").await.expect("one").status,
            404
        );
    });
    wait_until("lines of HTTP/3", || {
        let lines = lines();
        let said = |part| lines.lines().any(|line| line.contains(part));
        said("\"GET /three HTTP/3\" 200 - via_upstream") && said("\"GET /none HTTP/3\" 404 NR")
    });
    let metrics = edge.metrics();
    let labels = [
        "reporter=\"source\"",
        "response_code=\"200\"",
        "request_protocol=\"http\"",
    ];
    let found = crate::mesh::series(&metrics, "istio_requests_total", &labels);
    assert!(found.is_some(), "{metrics}");
}
