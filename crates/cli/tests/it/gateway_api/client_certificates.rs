//! The suite's cases of `tls` of whole Gateways, replayed with curl and with servers of openssl's:
//! GatewayFrontendClientCertificateValidation, GatewayFrontendClientCertificateValidationInsecureFallback,
//! GatewayFrontendInvalidDefaultClientCertificateValidation, GatewayTLSBackendClientCertificate.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::{Heard, backends};
use crate::gateway::streams::tls_server;
use crate::gateway::tls::{curl_at, path};
use crate::mesh::certificates::Keys;
use crate::mesh::{exchange, own_net, wait_until};
use crate::up::Up;

/// End of validity, after all tests.
const LATER: &str = "20400101000000Z";

/// `validation` by authorities of a ConfigMap.
fn by(name: &str, mode: &str) -> String {
    format!(
        "{{validation: {{caCertificateRefs: [{{group: \"\", kind: ConfigMap, name: {name}}}]{mode}}}}}"
    )
}

/// A Gateway of one plaintext listener and two of HTTPS, with a route.
fn gateway(name: &str, first: u16, tls: &str) -> String {
    let (second, third) = (first + 1, first + 2);
    let https = "protocol: HTTPS, tls: {certificateRefs: [{name: edge}]}";
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: {name}, namespace: infra}}\n\
         spec:\n  gatewayClassName: voile\n  tls: {tls}\n  listeners:\n  - {{name: http, port: {first}, protocol: HTTP}}\n  \
         - {{name: default, port: {second}, {https}}}\n  - {{name: port, port: {third}, {https}}}\n---\n\
         apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}, namespace: infra}}\n\
         spec: {{parentRefs: [{{name: {name}}}], rules: [{{backendRefs: [{{name: v1, port: 8080}}]}}]}}\n---\n"
    )
}

/// Servers are told of clients' certificates.
const TELLS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    \
    defaultConfig: {gatewayTopology: {forwardClientCertDetails: SANITIZE_SET}}\n---\n";

/// The frontend's authorities: of all ports, and of one.
fn frontend(default: &str, port: u16, own: &str) -> String {
    format!("{{frontend: {{default: {default}, perPort: [{{port: {port}, tls: {own}}}]}}}}")
}

/// A Gateway that demands certificates, and one that does without.
fn strict_and_open(keys: &Keys) -> String {
    let fallback = ", mode: AllowInsecureFallback";
    keys.secret(
        "infra",
        "edge",
        &[("tls.crt", "edge.crt"), ("tls.key", "edge.key")],
    ) + &gateway(
        "strict",
        8080,
        &frontend(&by("clients", ""), 8082, &by("others", "")),
    ) + &gateway(
        "open",
        8180,
        &frontend(&by("clients", fallback), 8182, &by("others", fallback)),
    )
}

#[test]
fn clients_show_certificates_by_the_authorities_of_the_gateway_and_of_the_port() {
    let keys = Keys::new();
    for name in ["edge", "clients", "others"] {
        keys.own(name, "first.example");
    }
    keys.client("known", "clients");
    keys.client("other", "others");
    let maps = keys.authority("infra", "clients", "clients.crt")
        + &keys.authority("infra", "others", "others.crt");
    let heard = Heard::default();
    let all = backends(&heard) + TELLS + &strict_and_open(&keys);
    let write = |folder: &std::path::Path| {
        std::fs::write(folder.join("all.yaml"), &all).expect("written");
        std::fs::write(folder.join("maps.yaml"), &maps).expect("written");
    };
    let mut up = Up::start(write, &["--quiet"]);
    let published = up.ready();
    let answer = |gateway: &str, port: u16, client: &str| {
        let files = ["crt", "key"].map(|kind| keys.path(&format!("{client}.{kind}")));
        let [crt, key] = files.each_ref().map(|file| path(file));
        let arguments = match client {
            "" => vec!["-k"],
            _ => vec!["-k", "--cert", crt, "--key", key],
        };
        let at = published[&format!("infra/{gateway}-voile:{port}")];
        curl_at(at, "first.example", &arguments)
    };
    let ask = |gateway: &str, port: u16, client: &str| {
        answer(gateway, port, client).is_ok_and(|(status, _)| status == "200 2")
    };
    wait_until("the strict gateway", || ask("strict", 8081, "known"));
    wait_until("the open gateway", || ask("open", 8181, "known"));
    let mut wrong = String::new();
    for (gateway, port, client, welcome) in [
        ("strict", 8081, "known", true),
        ("strict", 8081, "other", false),
        ("strict", 8081, "", false),
        ("strict", 8082, "other", true),
        ("strict", 8082, "known", false),
        ("strict", 8082, "", false),
        ("open", 8181, "other", true),
        ("open", 8181, "", true),
        ("open", 8182, "known", true),
        ("open", 8182, "", true),
    ] {
        if ask(gateway, port, client) != welcome {
            writeln!(wrong, "{gateway}:{port} {client:?}, not {welcome}").expect("written");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    // The server is never told of a certificate that need not be valid.
    let told = |gateway: &str, port: u16| {
        let (_, body) = answer(gateway, port, "known").expect("an answer");
        body.to_lowercase()
            .contains("x-forwarded-client-cert: hash=")
    };
    assert!(told("strict", 8081));
    assert!(!told("open", 8181));
    // Without authorities an HTTPS listener serves nobody, and the plaintext listener goes on.
    std::fs::remove_file(up.file("maps.yaml")).expect("removed");
    wait_until("no client to be served", || !ask("strict", 8081, "known"));
    assert!(!ask("strict", 8082, "other") && !ask("strict", 8081, ""));
    let plain = published["infra/strict-voile:8080"];
    let asked = b"GET / HTTP/1.1\r\nHost: first.example\r\nConnection: close\r\n\r\n";
    assert_eq!(exchange(plain, asked).expect("an answer").status, 200);
}

/// A Gateway that shows a certificate to backends, and a route to one that demands it.
fn towards(name: &str, port: u16, tls: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: {name}, namespace: infra}}\n\
         spec: {{gatewayClassName: voile, {tls}listeners: [{{name: http, port: {port}, protocol: HTTP}}]}}\n---\n\
         apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}, namespace: infra}}\n\
         spec: {{parentRefs: [{{name: {name}}}], rules: [{{backendRefs: [{{name: secure, port: 443}}]}}]}}\n---\n"
    )
}

/// The server that demands certificates, and its policy.
fn secure(at: SocketAddr) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: secure, namespace: infra}}\n\
         spec: {{address: {}, labels: {{app: secure}}}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: secure, namespace: infra}}\n\
         spec: {{selector: {{app: secure}}, ports: [{{name: https, port: 443, targetPort: {}}}]}}\n---\n\
         apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {{name: secure, namespace: infra}}\n\
         spec: {{targetRefs: [{{group: \"\", kind: Service, name: secure}}], validation: {{hostname: abc.example.com, \
         caCertificateRefs: [{{group: \"\", kind: ConfigMap, name: authority}}]}}}}\n---\n\
         apiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {{name: edge, namespace: certs}}\n\
         spec: {{from: [{{group: gateway.networking.k8s.io, kind: Gateway, namespace: infra}}], to: [{{group: \"\", kind: Secret, name: granted}}]}}\n---\n",
        at.ip(),
        at.port()
    )
}

#[test]
fn a_gateway_shows_its_certificate_to_backends() {
    let keys = Keys::new();
    keys.own("authority", "authority");
    keys.own("others", "others");
    keys.client("known", "authority");
    keys.client("other", "others");
    keys.server("secure", "abc.example.com", "authority", LATER);
    let [a, b, c] = own_net();
    let at = SocketAddr::from(([a, b, c, 30], 14_443));
    let authority = keys.path("authority.crt");
    let demands = [
        "-Verify",
        "1",
        "-verify_return_error",
        "-CAfile",
        path(&authority),
    ];
    let _server = tls_server(&keys, "secure", at, &demands);
    let pair = |namespace: &str, name: &str, files: &str| {
        let [crt, key] = ["crt", "key"].map(|kind| format!("{files}.{kind}"));
        keys.secret(namespace, name, &[("tls.crt", &crt), ("tls.key", &key)])
    };
    let shows = |to: &str| format!("tls: {{backend: {{clientCertificateRef: {to}}}}}, ");
    let all = keys.authority("infra", "authority", "authority.crt")
        + &pair("infra", "other", "other")
        + &pair("certs", "granted", "known")
        + &pair("certs", "kept", "known")
        + &secure(at)
        + &towards("good", 8080, &shows("{name: known}"))
        + &towards("granted", 8081, &shows("{name: granted, namespace: certs}"))
        + &towards("kept", 8082, &shows("{name: kept, namespace: certs}"))
        + &towards("other", 8083, &shows("{name: other}"))
        + &towards("bare", 8084, "");
    let write = |folder: &std::path::Path| {
        std::fs::write(folder.join("all.yaml"), &all).expect("written");
        let secret = pair("infra", "known", "known");
        std::fs::write(folder.join("secret.yaml"), secret).expect("written");
    };
    let mut up = Up::start(write, &["--quiet"]);
    let published = up.ready();
    let ask = |name: &str| {
        let at = published[&format!("infra/{name}-voile")];
        let asked = b"GET / HTTP/1.1\r\nHost: abc.example.com\r\nConnection: close\r\n\r\n";
        exchange(at, asked).map_or(0, |answer| answer.status)
    };
    for name in ["good", "granted"] {
        wait_until(name, || ask(name) == 200);
    }
    for name in ["kept", "other", "bare"] {
        wait_until(name, || (500..600).contains(&ask(name)));
    }
    // Without its certificate the gateway does not call the backend at all.
    std::fs::remove_file(up.file("secret.yaml")).expect("removed");
    wait_until("no certificate", || (500..600).contains(&ask("good")));
    assert_eq!(ask("granted"), 200);
}
