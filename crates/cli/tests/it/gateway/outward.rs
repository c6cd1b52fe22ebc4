//! TLS origination by a sidecar, from its application's plaintext to openssl's servers outside: the trusted authorities, the
//! expected name, and the sidecar's certificate. The sidecar does not call a server that it cannot verify.

use super::origination::{EARLIER, LATER, page, rule};
use super::streams::{entry, tls_server};
use super::tls::path;
use super::{NETWORKING, body, say};
use crate::mesh::certificates::Keys;
use crate::mesh::{Answer, Mesh, Process, TCP_PORT, exchange, wait_until};

/// A server outside, its TLS settings, and the expected result.
struct Case {
    name: &'static str,
    /// Host name in the server's certificate.
    host: &'static str,
    authority: &'static str,
    end: &'static str,
    /// If true, the server demands a certificate of the authority.
    demands: bool,
    tls: String,
    /// Reason in the answer if the sidecar does not call the server; None if it does.
    why: Option<&'static str>,
}

/// By their own certificates and names all would be called.
fn case(name: &'static str, host: &'static str, tls: String, why: Option<&'static str>) -> Case {
    Case {
        name,
        host,
        authority: "authority",
        end: LATER,
        demands: false,
        tls,
        why,
    }
}

const EXPIRED: &str = "its certificate has expired";
const MISNAMED: &str = "its certificate is for another name";
const UNKNOWN: &str = "its certificate is from an unknown authority";
const UNMADE: &str = "the TLS settings of the DestinationRule are invalid";
/// Answer to a client that the server refuses.
const REFUSED: &str = "";

#[expect(clippy::too_many_lines, reason = "a table")]
fn cases(keys: &Keys) -> Vec<Case> {
    let at = |name: &str| keys.path(name).display().to_string();
    let simple = |more: &str| {
        format!(
            "mode: SIMPLE, caCertificates: {}{more}",
            at("authority.crt")
        )
    };
    let mutual = |who: &str| {
        let [certificate, key] = ["crt", "key"].map(|kind| at(&format!("{who}.{kind}")));
        format!(
            "mode: MUTUAL, clientCertificate: {certificate}, privateKey: {key}, caCertificates: {}",
            at("authority.crt")
        )
    };
    let demanding = |name, host, tls, why| Case {
        demands: true,
        ..case(name, host, tls, why)
    };
    vec![
        case("good", "good.test", simple(""), None),
        Case {
            end: EARLIER,
            ..case("expired", "expired.test", simple(""), Some(EXPIRED))
        },
        case("misnamed", "elsewhere.test", simple(""), Some(MISNAMED)),
        Case {
            authority: "others",
            ..case("foreign", "foreign.test", simple(""), Some(UNKNOWN))
        },
        case(
            "alternative",
            "elsewhere.test",
            simple(", subjectAltNames: [elsewhere.test]"),
            None,
        ),
        case(
            "asked",
            "elsewhere.test",
            simple(", sni: elsewhere.test"),
            None,
        ),
        case(
            "misasked",
            "misasked.test",
            simple(", sni: elsewhere.test"),
            Some(MISNAMED),
        ),
        Case {
            end: EARLIER,
            ..case(
                "careless",
                "elsewhere.test",
                "mode: SIMPLE, insecureSkipVerify: true".to_owned(),
                None,
            )
        },
        // The system's authorities are others.
        case(
            "system",
            "system.test",
            "mode: SIMPLE".to_owned(),
            Some(UNKNOWN),
        ),
        // Only gateways get Secrets.
        case(
            "secret",
            "secret.test",
            "mode: SIMPLE, credentialName: authority".to_owned(),
            Some(UNMADE),
        ),
        demanding("proven", "proven.test", mutual("client"), None),
        demanding("unproven", "unproven.test", simple(""), Some(REFUSED)),
        demanding(
            "stranger",
            "stranger.test",
            mutual("foreigner"),
            Some(REFUSED),
        ),
        demanding(
            "misproven",
            "elsewhere.test",
            mutual("client"),
            Some(MISNAMED),
        ),
    ]
}

/// The authority, another one, a client of each, and a certificate for each server.
fn keys() -> (Keys, Vec<Case>) {
    let keys = Keys::new();
    keys.own("authority", "authority");
    keys.own("others", "others");
    keys.client("client", "authority");
    keys.client("foreigner", "others");
    let cases = cases(&keys);
    for one in &cases {
        keys.server(one.name, one.host, one.authority, one.end);
    }
    (keys, cases)
}

/// The application's calls to the mesh's server lead outside, by this layer's routes.
fn ways(layer: &str, routes: &str) -> String {
    format!(
        "{NETWORKING}VirtualService\nmetadata: {{name: ways, namespace: shop}}\nspec:\n  hosts: [server]\n  {layer}:\n{routes}---\n"
    )
}

/// Requests go by the beginning of their path.
fn by_path(cases: &[Case]) -> String {
    let one = |case: &Case| {
        let name = case.name;
        format!(
            "  - {{match: [{{uri: {{prefix: /{name}/}}}}], route: [{{destination: {{host: {name}.test, port: {{number: 443}}}}}}]}}\n"
        )
    };
    ways("http", &cases.iter().map(one).collect::<String>())
}

/// Bytes go there.
fn bytes_to(name: &str) -> String {
    let to = format!("{{host: {name}.test, port: {{number: 443}}}}");
    let all = format!("  - {{match: [{{port: {TCP_PORT}}}], route: [{{destination: {to}}}]}}\n");
    ways("tcp", &all)
}

fn ask(mesh: &Mesh, name: &str) -> Answer {
    let host = "server.shop.svc.cluster.local";
    let request = format!("GET /{name}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    exchange(mesh.http(), request.as_bytes()).expect("an answer")
}

/// Starts the servers; returns their resources.
fn outside(mesh: &Mesh, keys: &Keys, cases: &[Case], protocol: &str) -> (Vec<Process>, String) {
    let authority = keys.path("authority.crt");
    let demands = [
        "-Verify",
        "1",
        "-verify_return_error",
        "-CAfile",
        path(&authority),
    ];
    let mut processes = Vec::new();
    let mut words = keys.secret("shop", "authority", &[("ca.crt", "authority.crt")]);
    for (last, one) in (20..).zip(cases) {
        let at = mesh.address(last, 14_443);
        words += &entry(one.name, at, protocol);
        words += &rule(one.name, &one.tls);
        let more: &[&str] = if one.demands { &demands } else { &[] };
        processes.push(tls_server(keys, one.name, at, more));
    }
    (processes, words)
}

#[test]
fn a_sidecar_makes_tls_of_requests_to_who_has_the_right_certificate_and_to_nobody_else() {
    let (keys, cases) = keys();
    let mesh = Mesh::start("STRICT");
    let (_servers, words) = outside(&mesh, &keys, &cases, "HTTP");
    say(&mesh, "outside.yaml", &(words + &by_path(&cases)));
    wait_until("a good server", || ask(&mesh, "good").status == 200);
    for one in &cases {
        let name = one.name;
        let expected = |answer: &Answer| match one.why {
            None => answer.status == 200,
            Some(REFUSED) => answer.status >= 500,
            Some(why) => answer.status == 503 && body(answer).contains(why),
        };
        wait_until(name, || expected(&ask(&mesh, name)));
        let answer = ask(&mesh, name);
        let told = body(&answer);
        assert!(expected(&answer), "{name}: {} {told}", answer.status);
        // The server's page tells of the session, and of the certificate that it was shown.
        assert_eq!(
            told.contains("TLSv1.3"),
            one.why.is_none(),
            "{name}: {told}"
        );
        let shown = told.contains("CN = client") || told.contains("CN=client");
        assert_eq!(shown, name == "proven", "{name}: {told}");
    }
}

#[test]
fn a_sidecar_makes_tls_of_bytes_to_who_has_the_right_certificate_and_resets_the_others() {
    let (keys, cases) = keys();
    let mesh = Mesh::start("STRICT");
    let (_servers, words) = outside(&mesh, &keys, &cases, "TCP");
    let reached = || page(mesh.tcp()).contains("TLSv1.3");
    let lead = |name: &str, to_be: bool| {
        say(&mesh, "outside.yaml", &(words.clone() + &bytes_to(name)));
        wait_until(name, || reached() == to_be);
    };
    for one in &cases {
        let called = one.why.is_none();
        // First the other way round, so that it is seen that the route is another.
        lead(if called { "secret" } else { "good" }, !called);
        lead(one.name, called);
        let told = page(mesh.tcp());
        assert!(called || told.is_empty(), "{}: {told}", one.name);
    }
}
