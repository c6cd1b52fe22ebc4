//! The suite's cases of HTTPS listeners: HTTPRouteHTTPSListener, HTTPRouteHTTPSListenerDetectMisdirectedRequests, and the TLS
//! part of HTTPRouteRedirectPortAndScheme. A client may reach one listener by its SNI and ask for another listener's host. It
//! gets 421 and asks again on a connection of its own.

use std::fmt::Write as _;

use super::{Heard, backends};
use crate::gateway::http3::quic::{self, dial};
use crate::gateway::http3::{client, get_at};
use crate::gateway::tls::curl_at;
use crate::mesh::certificates::Keys;
use crate::mesh::wait_until;
use crate::up::Up;

/// Listeners of one port, by their hosts, each with a route of its own.
const LISTENERS: [(&str, &str, &str); 4] = [
    ("any", "", "v1"),
    ("second", "second.example", "v2"),
    ("wild", "*.wild.example", "v3"),
    ("fourth", "fourth.wild.example", "v1"),
];

/// The name in TLS, the host that is asked for, and who answers, or the status.
const ASKED: [(&str, &str, &str); 15] = [
    ("first.example", "first.example", "v1"),
    ("first.example", "second.example", "421"),
    ("first.example", "unknown.example", "404"),
    ("second.example", "second.example", "v2"),
    ("second.example", "first.example", "421"),
    ("second.example", "unknown.example", "421"),
    ("third.wild.example", "third.wild.example", "v3"),
    ("third.wild.example", "fifth.wild.example", "v3"),
    ("third.wild.example", "fourth.wild.example", "421"),
    ("third.wild.example", "second.example", "421"),
    ("third.wild.example", "unknown.example", "421"),
    ("fourth.wild.example", "fourth.wild.example", "v1"),
    ("fourth.wild.example", "fifth.wild.example", "421"),
    ("unknown.example", "first.example", "v1"),
    ("unknown.example", "unknown.example", "404"),
];

/// Locations of redirects for requests to `second.example`, by the fields of the redirect; the
/// listener's port is 8443.
const REDIRECTS: [(&str, &str, &str); 8] = [
    ("/nothing", "", "https://example.org:8443/nothing"),
    ("/port-443", ", port: 443", "https://example.org/port-443"),
    ("/port-80", ", port: 80", "https://example.org:80/port-80"),
    (
        "/port-8080",
        ", port: 8080",
        "https://example.org:8080/port-8080",
    ),
    ("/http", ", scheme: http", "http://example.org/http"),
    (
        "/http-80",
        ", scheme: http, port: 80",
        "http://example.org/http-80",
    ),
    (
        "/http-443",
        ", scheme: http, port: 443",
        "http://example.org:443/http-443",
    ),
    ("/https", ", scheme: https", "https://example.org/https"),
];

/// A Service of the gateway's pods that asks for HTTP/3.
const ASKS_FOR_HTTP3: &str = "---\napiVersion: v1\nkind: Service\nmetadata: {name: quic, namespace: infra}\nspec:\n  type: LoadBalancer\n  \
    selector: {gateway.networking.k8s.io/gateway-name: edge}\n  ports: [{name: https, port: 8443}, {name: http3, port: 8443, protocol: UDP}]\n";

/// A route of these.
fn redirects() -> String {
    let mut yaml = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: redirects, namespace: infra}\n\
                    spec:\n  parentRefs: [{name: edge, sectionName: second}]\n  rules:\n"
        .to_owned();
    for (path, fields, _) in REDIRECTS {
        writeln!(
            yaml,
            "  - {{matches: [{{path: {{type: Exact, value: {path}}}}}], filters: [{{type: RequestRedirect, requestRedirect: {{hostname: example.org{fields}}}}}]}}"
        )
        .expect("written");
    }
    yaml
}

fn resources(keys: &Keys) -> String {
    keys.own("edge", "first.example");
    let edge = [("tls.crt", "edge.crt"), ("tls.key", "edge.key")];
    let mut yaml = keys.secret("infra", "edge", &edge)
        + "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: infra}\n\
           spec:\n  gatewayClassName: voile\n  listeners:\n";
    for (name, host, _) in LISTENERS {
        let host = match host {
            "" => String::new(),
            host => format!(", hostname: \"{host}\""),
        };
        let listener = format!(
            "  - {{name: {name}, port: 8443, protocol: HTTPS{host}, tls: {{certificateRefs: [{{name: edge}}]}}}}\n"
        );
        yaml += &listener;
    }
    for (name, _, backend) in LISTENERS {
        let hosts = match name {
            "any" => "hostnames: [first.example], ",
            _ => "",
        };
        write!(
            yaml,
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}, namespace: infra}}\n\
             spec: {{parentRefs: [{{name: edge, sectionName: {name}}}], {hosts}rules: [{{backendRefs: [{{name: {backend}, port: 8080}}]}}]}}\n"
        )
        .expect("written");
    }
    yaml + &redirects()
}

#[test]
fn requests_that_came_to_another_hosts_listener_are_sent_away() {
    let keys = Keys::new();
    let heard = Heard::default();
    let all = backends(&heard) + &resources(&keys);
    let write = |folder: &std::path::Path| {
        std::fs::write(folder.join("all.yaml"), &all).expect("written");
    };
    let mut up = Up::start(write, &["--quiet"]);
    let at = up.ready()["infra/edge-voile"];
    let ask = |name: &str, host: &str, version: &str| {
        let host = format!("Host: {host}");
        let asked = curl_at(at, name, &["-k", version, "-H", &host]);
        let (status, body) = asked.unwrap_or_else(|error| (error, String::new()));
        match status.split_once(' ') {
            Some(("200", _)) => body.lines().next().unwrap_or_default().to_owned(),
            Some((status, _)) => status.to_owned(),
            None => status,
        }
    };
    wait_until("the first route", || {
        ask("first.example", "first.example", "--http2") == "v1"
    });
    for version in ["--http2", "--http1.1"] {
        let mut wrong = String::new();
        for (name, host, wanted) in ASKED {
            let found = ask(name, host, version);
            if found != wanted {
                writeln!(wrong, "{name}, asked for {host}: {found}, not {wanted}")
                    .expect("written");
            }
        }
        assert!(wrong.is_empty(), "{version}:\n{wrong}");
    }
    for (path, _, wanted) in REDIRECTS {
        let target = ["-k", "-D", "-", "--request-target", path];
        let (status, told) = curl_at(at, "second.example", &target).expect("an answer");
        assert_eq!(status, "302 2", "{path}");
        let mut lines = told.lines().map(str::trim_end);
        let to = lines.find_map(|line| line.strip_prefix("location: "));
        assert_eq!(to, Some(wanted), "{path}");
    }
}

#[test]
fn listeners_are_called_by_http3_where_a_service_of_the_gateways_pods_asks_for_it() {
    let keys = Keys::new();
    let heard = Heard::default();
    let all = backends(&heard) + &resources(&keys) + ASKS_FOR_HTTP3;
    let write = |folder: &std::path::Path| {
        std::fs::write(folder.join("all.yaml"), &all).expect("written");
    };
    let mut up = Up::start(write, &["--quiet"]);
    let published = up.ready();
    let (tcp, udp) = (
        published["infra/edge-voile"],
        published["infra/quic:8443/udp"],
    );
    wait_until("clients over TCP are told", || {
        let answer = curl_at(tcp, "second.example", &["-k", "-i"]);
        answer.is_ok_and(|(_, text)| text.contains("alt-svc: h3="))
    });
    let ask = async |name: &str, host: &str| {
        let to = dial(udp, name, &client(b"h3", None)).await?;
        let answer = get_at(&to, host, "/x").await?;
        let body = answer.text();
        let who = body.lines().next().unwrap_or_default().to_owned();
        Ok::<_, String>((answer.status, who))
    };
    quic::run(async {
        let answered = ask("second.example", "second.example").await;
        assert_eq!(answered, Ok((200, "v2".to_owned())));
        // A request for another listener's host is refused with 421, as over TCP.
        let (status, _) = ask("second.example", "first.example")
            .await
            .expect("an answer");
        assert_eq!(status, 421);
    });
}
