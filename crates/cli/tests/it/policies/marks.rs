//! Policies that decide nothing (AUDIT, dry run), as access logs report them: for allowed requests, denied requests,
//! requests that an external service decides, and opaque connections.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

use crate::mesh::{HTTP_PORT, Mesh, TCP_PORT, application, exchange, wait_until};
use crate::policies::authorization::{echo_application, in_force};
use crate::policies::custom::authorizer::Authorizer;
use crate::policies::custom::{free, provider};

const DRY: &str = "envoy.filters.http.rbac:istio_dry_run_deny_shadow";

fn policy(name: &str, dry_run: bool, spec: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: shop, \
         annotations: {{istio.io/dry-run: \"{dry_run}\"}}}}\nspec: {{selector: {{matchLabels: {{app: server}}}}, {spec}}}\n"
    )
}

/// Policies that mark all of a port, and the log that tells of it.
fn resources(log: &str, provider: &str) -> String {
    let of = |what: &str| {
        let rule = |port: u16| format!("{{to: [{{operation: {{ports: [\"{port}\"]}}}}]}}");
        format!("{what}rules: [{}, {}]", rule(HTTP_PORT), rule(TCP_PORT))
    };
    let on_paths = |path: &str| {
        format!("rules: [{{to: [{{operation: {{paths: [{path}], ports: [\"{HTTP_PORT}\"]}}}}]}}]")
    };
    let format = format!(
        "    accessLogFile: {log}\n    accessLogEncoding: JSON\n    accessLogFormat: |\n      \
         {{\"path\": \"%REQ(:PATH)%\", \"code\": \"%RESPONSE_CODE%\", \"cluster\": \"%UPSTREAM_CLUSTER%\", \"flags\": \"%RESPONSE_FLAGS%\", \
         \"audit\": \"%DYNAMIC_METADATA(envoy.common:access_log_hint)%\", \
         \"dry\": \"%DYNAMIC_METADATA({DRY}_engine_result)%\", \"rule\": \"%DYNAMIC_METADATA({DRY}_effective_policy_id)%\"}}\n"
    );
    provider.replace("  mesh: |\n", &format!("  mesh: |\n{format}"))
        + &policy("audit", false, &of("action: AUDIT, "))
        + &policy("would-deny", true, &of("action: DENY, "))
        + &policy(
            "deny",
            false,
            &format!("action: DENY, {}", on_paths("/denied")),
        )
        + &policy(
            "ask",
            false,
            &format!(
                "action: CUSTOM, provider: {{name: ext}}, {}",
                on_paths("/asked/*")
            ),
        )
}

/// The server's line of a request or connection that fits.
fn line(mesh: &Mesh, fits: impl Fn(&Value) -> bool) -> Value {
    let file = mesh.config().with_file_name("access.log");
    let mut found = None;
    wait_until("the line is written", || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        found = lines
            .filter(|line| {
                line["cluster"]
                    .as_str()
                    .is_some_and(|name| name.starts_with("inbound|"))
            })
            .find(|line| fits(line));
        found.is_some()
    });
    found.expect("a line")
}

fn assert_marked(line: &Value) {
    assert_eq!(line["audit"], "true", "{line}");
    assert_eq!(line["dry"], "denied", "{line}");
    assert_eq!(
        line["rule"]
            .as_str()
            .map(|rule| rule.contains("policy[would-deny]")),
        Some(true),
        "{line}"
    );
}

#[test]
fn whatever_becomes_of_it_the_log_tells_what_marked_it() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    echo_application(&mesh);
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let _authorizer = Authorizer::start(listener);
    let log = mesh.config().with_file_name("access.log");
    let resources = resources(
        &log.display().to_string(),
        &provider("envoyExtAuthzGrpc", at, ""),
    );
    std::fs::write(mesh.config().join("marks.yaml"), resources).expect("resources");
    let ask = |path: &str, wish: &str| {
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: server\r\nConnection: close\r\nx-ask: {wish}\r\n\r\n"
        );
        exchange(mesh.http(), head.as_bytes()).map_or(0, |answer| answer.status)
    };
    in_force("the policies are in force", || {
        ask("/denied", "") == 403 && ask("/asked/first", "deny") == 403
    });
    for (path, wish, status) in [
        ("/passes", "", 200),
        ("/denied?once", "", 403),
        ("/asked/yes", "allow", 200),
        ("/asked/no", "deny", 403),
        ("/asked/page", "page", 302),
        ("/asked/failed", "fail", 403),
    ] {
        assert_eq!(ask(path, wish), status, "{path}");
        let line = line(&mesh, |line| line["path"] == path);
        assert_eq!(
            line["code"].to_string().trim_matches('"'),
            status.to_string(),
            "{line}"
        );
        assert_marked(&line);
    }
    // A connection that passes, and one that is refused.
    let talk = || {
        let mut stream = TcpStream::connect(mesh.tcp()).expect("a connection");
        let mut word = [0; 2];
        stream.write_all(b"hi").is_ok() && stream.read_exact(&mut word).is_ok()
    };
    assert!(talk());
    let of_tcp = |refused: bool| {
        move |line: &Value| {
            let path = line["path"].as_str().unwrap_or_default();
            !path.starts_with('/') && (line["flags"] == "UAEX") == refused
        }
    };
    assert_marked(&line(&mesh, of_tcp(false)));
    let deny = policy(
        "deny-tcp",
        false,
        &format!("action: DENY, rules: [{{to: [{{operation: {{ports: [\"{TCP_PORT}\"]}}}}]}}]"),
    );
    std::fs::write(mesh.config().join("deny.yaml"), deny).expect("a policy");
    wait_until("connections are refused", || !talk());
    assert_marked(&line(&mesh, of_tcp(true)));
}
