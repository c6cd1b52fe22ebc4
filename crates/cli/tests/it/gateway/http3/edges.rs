//! HTTP/3 at its edges: what the gateway answers itself, what comes before and behind a body, who may come at all, and a port that is taken.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};

use voile_http2::Fields;
use voile_http3::{data_head, encode, head_frame};

use super::quic::{self, dial, head, read};
use crate::gateway::http3::{
    ASKED, as_anybody, asking, client, get_at, is_free, offered, service, start, start_as, unasked,
};
use crate::gateway::tls::{PORT, curl, https};
use crate::gateway::{Edge, TO_SERVER, body, http_server, pod, routes, say, servers};
use crate::mesh::certificates::Keys;
use crate::mesh::{Client, application, get, wait_until};

/// The `alt-svc` header that clients over TCP get.
const OFFER: &str = "alt-svc: h3=\":443\"; ma=86400";

/// Routes whose answers are the gateway's own, and one that is not.
const OWN: &str = "\
    {match: [{uri: {exact: /there}}], route: [{destination: {host: server, port: {number: 8080}}}]}, \
    {match: [{uri: {exact: /moved}}], redirect: {uri: /there}}, \
    {match: [{uri: {exact: /said}}], directResponse: {status: 207, body: {string: said}}}, \
    {match: [{uri: {exact: /aborted}}], fault: {abort: {httpStatus: 418, percentage: {value: 100}}}, route: [{destination: {host: server, port: {number: 8080}}}]}, \
    {match: [{uri: {exact: /slow}}], timeout: 0.2s, route: [{destination: {host: server, port: {number: 8080}}}]}, \
    {match: [{uri: {exact: /late}}], timeout: 0.2s, route: [{destination: {host: server, port: {number: 7070}}}]}, \
    {match: [{uri: {exact: /denied}}], route: [{destination: {host: server, port: {number: 8080}}}]}, \
    {match: [{uri: {exact: /nobody}}], route: [{destination: {host: nobody}}]}";

#[test]
fn answers_of_the_gateways_own_tell_of_http3_as_others_do() {
    let keys = Keys::new();
    keys.own("server", "a.example");
    let list = [
        https("a.example", "mode: SIMPLE, credentialName: server"),
        http_server("a.example"),
    ];
    let edge = start(&keys, &list.join(", "), "a.example", OWN);
    let policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: denied, namespace: shop}\nspec:\n  selector: {matchLabels: {istio: ingress}}\n  action: DENY\n  rules: [{to: [{operation: {paths: [/denied]}}]}]\n";
    say(&edge.mesh, "denied.yaml", policy);
    // It takes calls and never answers.
    let _silent = TcpListener::bind(edge.mesh.grpc_app()).expect("an address");
    application::serve(edge.mesh.http_app(), |stream| {
        let mut reader = std::io::BufReader::new(stream);
        while let Some((head, _)) = application::read_request(&mut reader) {
            if head.starts_with("GET /slow ") {
                // Until it is given up.
                let _ = reader.read_to_end(&mut Vec::new());
                return;
            }
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            let _ = reader.get_mut().write_all(answer);
        }
    });
    let over_tcp = |version: &str, path: &str| {
        let arguments = ["-k", "-i", version, "--request-target", path];
        curl(&edge, "a.example", &arguments).expect("an answer")
    };
    wait_until("routes and policies", || {
        over_tcp("--http2", "/there").0 == "200 2" && over_tcp("--http2", "/denied").0 == "403 2"
    });
    let all = [
        ("/there", 200),
        ("/moved", 301),
        ("/said", 207),
        ("/aborted", 418),
        ("/slow", 504),
        ("/late", 504),
        ("/denied", 403),
        ("/nobody", 503),
        ("/unknown", 404),
    ];
    for (path, status) in all {
        for (version, name) in [("--http1.1", "1.1"), ("--http2", "2")] {
            let (said, text) = over_tcp(version, path);
            assert_eq!(said, format!("{status} {name}"), "{path}");
            let offers = text.lines().filter(|line| line.trim_end() == OFFER);
            assert_eq!(offers.count(), 1, "{path} by {version}: {text}");
        }
        let plain = edge.ask("GET", "a.example", path, "");
        assert_eq!(plain.status, status, "{path}");
        assert!(!plain.head.contains("alt-svc"), "{}", plain.head);
    }
    // A caller of gRPC reads it in the head of a status.
    for version in ["--http1.1", "--http2"] {
        let call = ["-H", "content-type: application/grpc", "-d", ""];
        let arguments = [&["-k", "-i", version][..], &call].concat();
        let (_, text) = curl(&edge, "a.example", &arguments).expect("an answer");
        assert!(text.contains("grpc-status: 12"), "{text}");
        assert!(text.contains(OFFER), "{version}: {text}");
    }
    quic::run(async {
        let to = as_anybody(&edge, "a.example").await.expect("a connection");
        for (path, status) in all {
            let answer = get_at(&to, "a.example", path).await.expect("an answer");
            assert_eq!(answer.status, status, "{path}");
            assert_eq!(answer.field("alt-svc"), None, "{path}");
        }
    });
}

#[test]
fn what_comes_before_an_answer_and_behind_a_body_passes() {
    let keys = Keys::new();
    keys.own("server", "a.example");
    let server = https("a.example", "mode: SIMPLE, credentialName: server");
    let edge = start(&keys, &server, "a.example", TO_SERVER);
    application::serve(edge.mesh.http_app(), |mut stream| {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 1024]);
        let is_whole = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.ends_with("\r\n\r\n") && (text.starts_with("GET ") || text.contains("\r\n0\r\n"))
        };
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..count]);
            if is_whole(&bytes) {
                let early = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n";
                let answer = format!(
                    "{early}HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
                    bytes.len()
                );
                bytes.splice(..0, answer.into_bytes());
                if stream.write_all(&std::mem::take(&mut bytes)).is_err() {
                    return;
                }
            }
        }
    });
    wait_until("a route", || {
        curl(&edge, "a.example", &["-k"]).is_ok_and(|(status, _)| status == "200 2")
    });
    quic::run(async {
        let to = as_anybody(&edge, "a.example").await.expect("a connection");
        let answer = get_at(&to, "a.example", "/").await.expect("an answer");
        assert_eq!((answer.early, answer.status), (vec![103], 200));
        // A body of unknown length, and fields behind it.
        let (mut send, mut recv) = to.connection.open_bi().await.expect("a stream");
        let mut trailers = Fields::new();
        trailers.push("x-sum", b"7");
        let mut said = head("POST", "a.example", "/", &[("te", "trailers")]);
        said.extend_from_slice(&data_head(5));
        said.extend_from_slice(b"hello");
        said.extend_from_slice(&head_frame(&encode(&trailers)));
        send.write_all(&said).await.expect("sent");
        send.finish().expect("finished");
        let answer = read(&mut recv).await.expect("an answer");
        let seen = answer.text();
        assert!(seen.contains("5\r\nhello\r\n0\r\nx-sum: 7\r\n"), "{seen}");
    });
}

#[test]
fn who_may_show_a_certificate_is_welcome_without_and_not_with_a_wrong_one() {
    let keys = Keys::new();
    for (name, host) in [("server", "a.example"), ("clients", "c"), ("others", "o")] {
        keys.own(name, host);
    }
    keys.client("known", "clients");
    keys.client("unknown", "others");
    let clients = keys.secret("shop", "server-cacert", &[("ca.crt", "clients.crt")]);
    let server = https("a.example", "mode: OPTIONAL_MUTUAL, credentialName: server");
    let told = asking(&keys, &server, "a.example", TO_SERVER) + &clients;
    let edge = start_as(Client::default(), &told);
    // Sidecars are to pass on what the gateway tells of its clients.
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    defaultConfig: {proxyHeaders: {forwardedClientCert: APPEND_FORWARD}}\n";
    say(&edge.mesh, "istio.yaml", config);
    application::reflect(edge.mesh.http_app());
    wait_until("the field", || {
        curl(&edge, "a.example", &["-k"]).is_ok_and(|(_, seen)| {
            seen.to_ascii_lowercase()
                .contains("x-forwarded-client-cert")
        })
    });
    let to = edge.at(PORT);
    let asked = async |shows: Option<&str>| {
        let tls = client(b"h3", shows.map(|name| (&keys, name)));
        let to = dial(to, "a.example", &tls).await?;
        get_at(&to, "a.example", "/").await
    };
    quic::run(async {
        for (shows, is_told) in [(None, false), (Some("known"), true)] {
            let answer = asked(shows).await.expect("an answer");
            assert_eq!(answer.status, 200, "{shows:?}");
            assert_eq!(answer.text().contains("CN=known"), is_told, "{shows:?}");
        }
        assert!(asked(Some("unknown")).await.is_err());
    });
}

#[test]
fn there_is_no_http3_where_balancers_say_for_whom_they_call() {
    let keys = Keys::new();
    keys.own("server", "a.example");
    let server = https("a.example", "mode: SIMPLE, credentialName: server");
    let resources =
        keys.pair("server") + &servers(&server) + &routes("a.example", TO_SERVER) + &service(ASKED);
    let expecting = ", proxy.istio.io/config: \"gatewayTopology: {proxyProtocol: {}}\"";
    let edge = Edge::start(expecting, &resources);
    application::reflect(edge.mesh.http_app());
    wait_until("a route", || {
        curl(&edge, "a.example", &["-k", "--haproxy-protocol"])
            .is_ok_and(|(status, _)| status == "200 2")
    });
    let (_, text) = curl(&edge, "a.example", &["-k", "-i", "--haproxy-protocol"]).expect("one");
    assert!(!text.contains("alt-svc"), "{text}");
    assert!(is_free(edge.at(PORT)));
    // Nothing else stood in its way.
    say(&edge.mesh, "gateway.yaml", &pod(&edge.mesh, ""));
    wait_until("HTTP/3", || !is_free(edge.at(PORT)));
    wait_until("the offer", || offered(&edge, "a.example").is_some());
}

#[test]
fn a_port_of_udp_that_is_taken_is_a_finding_until_it_is_free() {
    let (edge, all) = unasked();
    let taken = UdpSocket::bind(edge.at(PORT)).expect("a free port");
    say(&edge.mesh, "edge.yaml", &(all + &service(ASKED)));
    let trouble = format!("cannot listen on {} over UDP", edge.at(PORT));
    wait_until("the gateway to say so", || {
        edge.ready().is_err_and(|why| why.contains(&trouble))
    });
    wait_until("the control plane to know", || {
        let status = get(edge.mesh.monitoring(), "/debug/status").expect("an answer");
        body(&status).contains(&trouble)
    });
    // Clients come over TCP.
    wait_until("a route", || {
        curl(&edge, "a.example", &["-k"]).is_ok_and(|(status, _)| status == "200 2")
    });
    drop(taken);
    wait_until("the gateway to be ready", || edge.ready().is_ok());
    quic::run(async {
        let to = as_anybody(&edge, "a.example").await.expect("a connection");
        let answer = get_at(&to, "a.example", "/").await.expect("an answer");
        assert_eq!(answer.status, 200);
    });
}
