//! The suite's cases of BackendTLSPolicy, replayed against one server of openssl's, which has two names and a URI: BackendTLSPolicy,
//! BackendTLSPolicyConflictResolution, BackendTLSPolicyInvalidCACertificateRef, BackendTLSPolicyInvalidKind,
//! BackendTLSPolicySANValidation.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use crate::gateway::streams::tls_server;
use crate::mesh::certificates::Keys;
use crate::mesh::{Answer, exchange, own_net, wait_until};
use crate::up::Up;

/// End of validity, after all tests.
const LATER: &str = "20400101000000Z";
const URI: &str = "spiffe://abc.example.com/test-identity";
const CONFIG_MAP: &str = r#"{group: "", kind: ConfigMap, name: authority}"#;

/// Services by their policies, and whether they answer through them.
fn policies() -> Vec<(&'static str, String, bool)> {
    let by = |name: &str, rest: &str| {
        let held = CONFIG_MAP.replace("authority", name);
        format!("{{caCertificateRefs: [{held}], hostname: abc.example.com{rest}}}")
    };
    let names = |list: &str| by("authority", &format!(", subjectAltNames: [{list}]"));
    let host = |name: &str| format!("{{type: Hostname, hostname: {name}}}");
    let uri = |uri: &str| format!("{{type: URI, uri: \"{uri}\"}}");
    let other = "spiffe://def.example.com/test-identity";
    vec![
        ("normative", by("authority", ""), true),
        (
            "host-mismatch",
            by("authority", "").replace("abc.example.com", "mismatch.example.com"),
            false,
        ),
        ("cert-mismatch", by("others", ""), false),
        ("nonexistent", by("absent", ""), false),
        ("malformed", by("malformed", ""), false),
        (
            "invalid-kind",
            by("authority", "").replace("ConfigMap", "Surprise"),
            false,
        ),
        ("san-dns", names(&host("abc.example.com")), true),
        ("san-dns-mismatch", names(&host("dce.example.com")), false),
        ("san-uri", names(&uri(URI)), true),
        ("san-uri-mismatch", names(&uri(other)), false),
        (
            "multiple-sans",
            names(&format!("{}, {}", uri(other), host("abc.example.com"))),
            true,
        ),
        (
            "multiple-mismatch-sans",
            names(&format!("{}, {}", uri(other), host("def.example.com"))),
            false,
        ),
        // A policy that cannot be read does not make the gateway call in plaintext.
        ("unreadable", by("authority", ", surprise: true"), false),
        (
            "nobody-known",
            "{wellKnownCACertificates: example.com/mine, hostname: abc.example.com}".to_owned(),
            false,
        ),
    ]
}

fn policy(name: &str, service: &str, validation: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {{name: {name}, namespace: infra}}\n\
         spec: {{targetRefs: [{{group: \"\", kind: Service, name: {service}}}], validation: {validation}}}\n---\n"
    )
}

/// A Service of the one server, and a rule that leads to its first port.
fn service(name: &str, target: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: infra}}\n\
         spec: {{selector: {{app: secure}}, ports: [{{name: btls, port: 443, targetPort: {target}}}, {{name: https-2, appProtocol: HTTPS, port: 8443, targetPort: {target}}}]}}\n---\n"
    )
}

fn route(name: &str, path: &str, port: u16) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {}, namespace: infra}}\n\
         spec: {{parentRefs: [{{name: edge, sectionName: http}}], rules: [{{matches: [{{path: {{value: {path}}}}}], backendRefs: [{{name: {name}, port: {port}}}]}}]}}\n---\n",
        path.trim_start_matches('/')
    )
}

/// The Gateway, and a way by TLS that ends here and is made anew.
const DOORS: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: infra}
spec:
  gatewayClassName: voile
  listeners:
  - {name: http, port: 8080, protocol: HTTP}
  - {name: tls, port: 8443, protocol: TLS, hostname: tls.example.com, tls: {mode: Terminate, certificateRefs: [{name: edge}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: anew, namespace: infra}
spec: {parentRefs: [{name: edge}], hostnames: [tls.example.com], rules: [{backendRefs: [{name: normative, port: 443}]}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: malformed, namespace: infra}
data: {}
---
";

/// Page that openssl's client gets over TLS.
fn page(at: SocketAddr, name: &str) -> String {
    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-connect", &at.to_string()])
        .args(["-servername", name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl");
    let mut asking = client.stdin.take().expect("piped");
    // A client whose connection was reset sends nothing.
    let _ = asking.write_all(b"GET / HTTP/1.0\r\n\r\n");
    let ran = client.wait_with_output().expect("openssl");
    drop(asking);
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

fn ask(at: SocketAddr, path: &str) -> Answer {
    let text = format!("GET {path} HTTP/1.1\r\nHost: abc.example.com\r\nConnection: close\r\n\r\n");
    exchange(at, text.as_bytes()).expect("an answer")
}

/// Resources at the start: the server, the Gateway and the authorities. `believed` is the authority that the server
/// needs.
fn first(keys: &Keys, server: SocketAddr, believed: &str) -> String {
    let edge = [("tls.crt", "edge.crt"), ("tls.key", "edge.key")];
    keys.secret("infra", "edge", &edge)
        + &keys.authority("infra", "authority", believed)
        + &keys.authority("infra", "others", "others.crt")
        + &format!(
            "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: secure, namespace: infra}}\n\
             spec: {{address: {}, labels: {{app: secure}}}}\n---\n",
            server.ip()
        )
        + DOORS
        + &service("normative", server.port())
}

/// Policies, each with a Service of its own and routes to both of its ports.
fn rest(target: u16) -> String {
    let mut rest = service("plain", target) + &route("plain", "/plain", 443);
    for (name, validation, _) in policies() {
        if name != "normative" {
            rest += &service(name, target);
        }
        rest += &route(name, &format!("/{name}"), 443);
        rest += &route(name, &format!("/second-{name}"), 8443);
        rest += &policy(name, name, &validation);
    }
    // Of two for one target the first by name; of a port its own.
    let by = |host: &str| format!("{{caCertificateRefs: [{CONFIG_MAP}], hostname: {host}}}");
    rest += &service("contested", target);
    rest += &route("contested", "/contested", 443);
    rest += &route("contested", "/contested-second", 8443);
    rest += &policy("contested-1", "contested", &by("other.example.com"));
    rest += &policy("contested-2", "contested", &by("mismatch.example.com"));
    let of_port = policy("contested-3", "contested", &by("mismatch.example.com"));
    rest + &of_port.replace("name: contested}", "name: contested, sectionName: https-2}")
}

#[test]
fn what_the_conformance_suite_asks_of_tls_to_backends_is_answered_as_it_wants() {
    let keys = Keys::new();
    for name in ["authority", "others", "edge"] {
        keys.own(name, "tls.example.com");
    }
    let names = format!("abc.example.com,DNS:other.example.com,URI:{URI}");
    keys.server("secure", &names, "authority", LATER);
    let [a, b, c] = own_net();
    let server = SocketAddr::from(([a, b, c, 30], 14_443));
    let _server = tls_server(&keys, "secure", server, &[]);
    let state = tempfile::tempdir().expect("a folder");
    let state_argument = state.path().join("state").to_string_lossy().into_owned();
    let fill = |folder: &std::path::Path| {
        // `voile up` starts with the valid resources; the rest comes while it runs.
        let first = first(&keys, server, "authority.crt");
        std::fs::write(folder.join("all.yaml"), first).expect("written");
    };
    let mut up = Up::start(fill, &["--quiet", "--state", &state_argument]);
    let published = up.ready();
    let at = published["infra/edge-voile:8080"];
    let write = |name: &str, text: &str| {
        std::fs::write(up.file("new"), text).expect("written");
        std::fs::rename(up.file("new"), up.file(name)).expect("renamed");
    };
    write("rest.yaml", &rest(server.port()));
    wait_until("the first policy", || ask(at, "/normative").status == 200);
    for (name, _, answers) in policies() {
        for path in [format!("/{name}"), format!("/second-{name}")] {
            let answer = ask(at, &path);
            let mut parts = answer.body.windows(7);
            let right = match answers {
                true => answer.status == 200 && parts.any(|part| part == b"TLSv1.3"),
                false => (500..600).contains(&answer.status),
            };
            assert!(right, "{path}: {}", answer.status);
        }
    }
    assert_eq!(ask(at, "/contested").status, 200);
    assert!(ask(at, "/contested-second").status >= 500);
    // Without a policy the gateway speaks no TLS to the server.
    assert!(ask(at, "/plain").status >= 500);
    // TLS that ends at the gateway is made anew.
    let again = page(published["infra/edge-voile:8443"], "tls.example.com");
    assert!(again.contains("TLSv1.3"), "{again}");
    said(&state.path().join("state"));
    // Authorities that are written anew hold at once.
    write("all.yaml", &first(&keys, server, "others.crt"));
    wait_until("other authorities", || ask(at, "/normative").status >= 500);
}

/// The conditions that the suite wants.
fn said(state: &std::path::Path) {
    let text =
        || std::fs::read_to_string(state.join("gateway-api-status.yaml")).unwrap_or_default();
    let of = |name: &str| -> String {
        let text = text();
        let kind = "\"kind\":\"BackendTLSPolicy\"";
        let wanted = format!("\"name\":\"{name}\",\"namespace\":\"infra\"}}");
        let mut lines = text.lines();
        let found = lines.find(|line| line.contains(kind) && line.contains(&wanted));
        found.unwrap_or_default().to_owned()
    };
    let condition = |kind: &str, reason: &str| {
        let status = if kind == reason { "True" } else { "False" };
        format!("\"reason\":\"{reason}\",\"status\":\"{status}\",\"type\":\"{kind}\"")
    };
    for (name, accepted, resolved) in [
        ("normative", "Accepted", "ResolvedRefs"),
        ("host-mismatch", "Accepted", "ResolvedRefs"),
        (
            "nonexistent",
            "NoValidCACertificate",
            "InvalidCACertificateRef",
        ),
        (
            "malformed",
            "NoValidCACertificate",
            "InvalidCACertificateRef",
        ),
        ("invalid-kind", "NoValidCACertificate", "InvalidKind"),
        ("nobody-known", "Invalid", "ResolvedRefs"),
        ("contested-1", "Accepted", "ResolvedRefs"),
        ("contested-2", "Conflicted", "ResolvedRefs"),
        ("contested-3", "Accepted", "ResolvedRefs"),
    ] {
        wait_until(name, || {
            let line = of(name);
            line.contains(
                "\"ancestorRef\":{\"group\":\"gateway.networking.k8s.io\",\"kind\":\"Gateway\"",
            ) && line.contains(&condition("Accepted", accepted))
                && line.contains(&condition("ResolvedRefs", resolved))
        });
    }
}
