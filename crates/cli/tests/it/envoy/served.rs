//! An Envoy that gets everything from our control plane, in delta and in state-of-the-world: traffic both ways, an edit that
//! reaches it, an endpoint that goes, and resources that it refuses.

use std::path::PathBuf;

use serde_json::Value;

use super::stage::{AUTO, HTTP, OURS, Stage, THEIRS};
use crate::mesh::{Process, application, get, wait_until};
use crate::policies::authorization::in_force;

/// Forbids requests to either pod for `/secret`.
const NO_SECRETS: &str = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: no-secrets, namespace: shop}\n\
     spec: {action: DENY, rules: [{to: [{operation: {paths: [\"/secret\"]}}]}]}\n";

/// The bootstrap by which the pod's Envoy asks our control plane.
pub(super) fn bootstrap(stage: &Stage, more: &[&str]) -> PathBuf {
    let output = Process::output(|voile| {
        voile.args([
            "export",
            "envoy-bootstrap",
            "--workload",
            "shop/theirs",
            "--capture",
            "none",
        ]);
        voile.args(["--address", &stage.inbound(THEIRS, 0).ip().to_string()]);
        voile.args([
            "--control",
            &stage.control_url(),
            "--admin",
            &stage.admin.to_string(),
        ]);
        voile
            .arg("--certificates")
            .arg(stage.certificates())
            .args(more);
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let file = stage.folder.path().join("bootstrap.json");
    std::fs::write(&file, output.stdout).expect("written");
    file
}

pub(super) fn status(stage: &Stage) -> Value {
    let page = get(stage.monitoring(), "/debug/status").expect("the page");
    serde_json::from_slice(&page.body).expect("JSON")
}

fn version(stage: &Stage) -> String {
    status(stage)["version"].to_string()
}

/// Status of the types that Envoy subscribes to: pushes, refusals.
fn of_envoy(stage: &Stage) -> Value {
    let page = status(stage);
    let proxies = page["proxies"].as_array().cloned().unwrap_or_default();
    let node = |proxy: &&Value| {
        proxy["node"]
            .as_str()
            .is_some_and(|node| node.starts_with("sidecar~"))
    };
    let named = |proxy: &&Value| proxy["types"].to_string().contains("envoy.config.cluster");
    proxies
        .iter()
        .filter(node)
        .find(named)
        .cloned()
        .unwrap_or_default()
}

pub(super) fn serve(stage: &Stage) {
    for pod in [OURS, THEIRS] {
        for port in [HTTP, AUTO] {
            application::reflect(stage.application(pod, port));
        }
    }
}

pub(super) fn both_ways(stage: &Stage) {
    for pod in [OURS, THEIRS] {
        for port in [HTTP, AUTO] {
            wait_until("a request gets through", || {
                stage.status(pod, port, "GET /a") == 200
            });
        }
    }
}

fn lives(more: &[&str]) {
    let Some(program) = super::found() else {
        return;
    };
    let stage = Stage::new("STRICT");
    serve(&stage);
    let envoy = stage.envoy(&program, &bootstrap(&stage, more));
    both_ways(&stage);
    assert!(
        get(stage.inbound(THEIRS, HTTP), "/a").is_err(),
        "plaintext under STRICT"
    );

    // A policy comes and goes, for connections that are there as well.
    stage.set("rules.yaml", NO_SECRETS);
    for pod in [OURS, THEIRS] {
        in_force("the policy is in force", || {
            stage.status(pod, HTTP, "GET /secret") == 403
        });
        assert_eq!(stage.status(pod, HTTP, "GET /a"), 200);
    }
    let read = version(&stage);
    stage.remove("rules.yaml");
    wait_until("its end is read", || version(&stage) != read);
    for pod in [OURS, THEIRS] {
        in_force("it is gone", || {
            stage.status(pod, HTTP, "GET /secret") == 200
        });
    }

    // An endpoint goes, and comes back: nothing but endpoints is sent.
    let sent = |kind: &str| {
        let types = of_envoy(&stage)["types"].clone();
        let of = types
            .as_object()
            .and_then(|types| types.iter().find(|(name, _)| name.ends_with(kind)));
        of.and_then(|(_, one)| one["resources_sent"].as_u64())
            .unwrap_or(0)
    };
    let before = [sent("v3.Listener"), sent("v3.RouteConfiguration")];
    stage.set("mesh.yaml", &stage.resources_without_ours());
    wait_until("nobody is there", || {
        stage.status(THEIRS, HTTP, "GET /a") == 503
    });
    stage.set("mesh.yaml", &stage.resources());
    wait_until("somebody is again", || {
        stage.status(THEIRS, HTTP, "GET /a") == 200
    });
    assert_eq!(
        before,
        [sent("v3.Listener"), sent("v3.RouteConfiguration")],
        "{:?}",
        of_envoy(&stage)
    );
    let refused = envoy.counted("update_rejected");
    assert_eq!(refused, 0, "{}", envoy.said());
}

#[test]
fn envoy_lives_by_our_delta_ads() {
    lives(&[]);
}

#[test]
fn envoy_lives_by_our_state_of_the_world_ads() {
    lives(&["--state-of-the-world"]);
}

/// DestinationRule settings of both services.
const TREATED: &str = "{loadBalancer: {consistentHash: {httpHeaderName: x, ringHash: {minimumRingSize: 64}}}, \
     outlierDetection: {consecutive5xxErrors: 50, interval: 5s, baseEjectionTime: 1s, maxEjectionPercent: 50}, \
     connectionPool: {tcp: {maxConnections: 90, connectTimeout: 5s, maxConnectionDuration: 1h, tcpKeepalive: {time: 60s}}, http: {http2MaxRequests: 90, maxConcurrentStreams: 30, maxRequestsPerConnection: 20, idleTimeout: 60s}}, \
     retryBudget: {percent: 50, minRetryConcurrency: 5}}";

/// Routes of both services, the same for both.
fn routes() -> String {
    let of = |pod: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {pod}, namespace: shop}}\n\
             spec: {{host: {pod}, trafficPolicy: {TREATED}, subsets: [{{name: all, labels: {{app: {pod}}}}}, {{name: none, labels: {{app: nobody}}}}]}}\n\
             ---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {pod}, namespace: shop}}\n\
             spec:\n  hosts: [{pod}]\n  http:\n\
             \x20 - {{match: [{{uri: {{prefix: /tea}}}}], directResponse: {{status: 418, body: {{string: tea}}}}}}\n\
             \x20 - {{match: [{{uri: {{prefix: /moved}}}}], redirect: {{uri: /all, redirectCode: 308}}}}\n\
             \x20 - {{match: [{{uri: {{prefix: /broken}}}}], fault: {{abort: {{httpStatus: 511, percentage: {{value: 100}}}}}}, route: [{{destination: {{host: {pod}}}}}]}}\n\
             \x20 - {{match: [{{uri: {{prefix: /copied}}}}], rewrite: {{uri: /b}}, headers: {{request: {{set: {{x: why}}}}}}, corsPolicy: {{allowOrigins: [{{exact: \"https://a\"}}]}}, \
             mirrors: [{{destination: {{host: {pod}, subset: none}}}}], route: [{{destination: {{host: {pod}}}}}]}}\n\
             \x20 - {{match: [{{uri: {{prefix: /all}}, method: {{exact: GET}}, queryParams: {{q: {{exact: \"1\"}}}}}}], route: [{{destination: {{host: {pod}, subset: all}}}}]}}\n\
             \x20 - {{match: [{{uri: {{exact: /none}}}}], route: [{{destination: {{host: {pod}, subset: none}}}}]}}\n\
             \x20 - {{match: [{{uri: {{exact: /missing}}}}], route: [{{destination: {{host: {pod}, subset: missing}}}}]}}\n\
             \x20 - {{match: [{{uri: {{prefix: /}}, headers: {{host: {{prefix: nobody}}}}}}], route: [{{destination: {{host: {pod}, subset: none}}}}]}}\n\
             \x20 - {{match: [{{uri: {{prefix: /WHOLE}}, ignoreUriCase: true}}], route: [{{destination: {{host: {pod}}}}}]}}\n"
        )
    };
    of("ours") + &of("theirs")
}

#[test]
fn requests_take_the_same_routes_at_envoy_as_at_our_sidecar() {
    let Some(program) = super::found() else {
        return;
    };
    let stage = Stage::new("STRICT");
    serve(&stage);
    let envoy = stage.envoy(&program, &bootstrap(&stage, &[]));
    both_ways(&stage);
    stage.set("routes.yaml", &routes());
    for pod in [OURS, THEIRS] {
        in_force("the routes are in force", || {
            stage.status(pod, HTTP, "GET /other") == 404
        });
        for port in [HTTP, AUTO] {
            wait_until("on this port, too", || {
                stage.status(pod, port, "GET /other") == 404
            });
            for (line, wanted) in [
                ("GET /all?q=1", 200),
                ("GET /all?q=2", 404),
                ("POST /all?q=1", 404),
                ("GET /none", 503),
                ("GET /missing", 503),
                ("GET /whole/of/it", 200),
                ("GET /tea", 418),
                ("GET /moved", 308),
                ("GET /broken", 511),
                ("GET /copied", 200),
            ] {
                wait_until(&format!("{line} from pod {pod} by {port}"), || {
                    stage.status(pod, port, line) == wanted
                });
            }
        }
    }
    stage.remove("routes.yaml");
    for pod in [OURS, THEIRS] {
        in_force("they are gone", || {
            stage.status(pod, HTTP, "GET /other") == 200
        });
    }
    let refused = envoy.counted("update_rejected");
    assert_eq!(refused, 0, "{}", envoy.said());
    let limits = status(&stage)["translation_limits"].to_string();
    assert!(!limits.contains("shop/theirs"), "{limits}");
}

#[test]
fn what_a_live_envoy_was_told_is_what_is_exported() {
    let Some(program) = super::found() else {
        return;
    };
    let stage = Stage::new("PERMISSIVE");
    stage.set("rules.yaml", NO_SECRETS);
    serve(&stage);
    let envoy = stage.envoy(&program, &bootstrap(&stage, &[]));
    both_ways(&stage);
    let told: Value = serde_json::from_str(&envoy.page("/config_dump?include_eds")).expect("JSON");
    let (_, exported, _) = stage.export(&["--capture", "none"]);
    let exported: Value = serde_json::from_str(&exported).expect("JSON");
    let mut listeners = 0;
    for wanted in exported["static_resources"]["listeners"]
        .as_array()
        .expect("listeners")
    {
        let name = wanted["name"].as_str().expect("a name");
        let found = told_listener(&told, name).unwrap_or_else(|| panic!("{name} was not told"));
        // Routes by name here and inline there, secrets by stream here and from files there; all else is the same.
        assert_eq!(bare(found), bare(wanted.clone()), "{name}");
        listeners += 1;
    }
    assert_eq!(listeners, 8);
}

fn told_listener(told: &Value, name: &str) -> Option<Value> {
    let mut configs = told["configs"].as_array()?.iter();
    let dump = configs.find(|one| {
        one["@type"]
            .as_str()
            .is_some_and(|kind| kind.ends_with("ListenersConfigDump"))
    })?;
    let mut all = dump["dynamic_listeners"].as_array()?.iter();
    let found = all.find(|one| one["name"] == name)?;
    Some(found["active_state"]["listener"].clone())
}

/// Removes fields that differ by the way of delivery, and empty ones.
fn bare(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let left = |(name, _): &(String, Value)| {
                !["rds", "route_config", "sds_config", "@type"].contains(&name.as_str())
            };
            let fields = fields
                .into_iter()
                .filter(left)
                .map(|(name, value)| (name, bare(value)));
            let is_nothing = |value: &Value| match value {
                Value::Object(fields) => fields.is_empty(),
                Value::Array(list) => list.is_empty(),
                Value::Bool(set) => !set,
                Value::Number(number) => number.as_f64() == Some(0.0),
                Value::String(text) => ["", "AUTO", "SANITIZE", "ALLOW"].contains(&text.as_str()),
                Value::Null => true,
            };
            fields.filter(|(_, value)| !is_nothing(value)).collect()
        }
        Value::Array(list) => list.into_iter().map(bare).collect(),
        other => other,
    }
}

#[test]
fn what_envoy_refuses_and_what_it_cannot_do_is_in_our_status() {
    let Some(program) = super::found() else {
        return;
    };
    let stage = Stage::new("STRICT");
    serve(&stage);
    let envoy = stage.envoy(&program, &bootstrap(&stage, &[]));
    both_ways(&stage);
    // An address that this machine does not have: Envoy cannot listen there, and reports it.
    stage.set("elsewhere.yaml", "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: elsewhere, namespace: shop}\n\
         spec:\n  workloadSelector: {labels: {voile.dev/pod: theirs}}\n  ingress:\n\
         \x20 - {port: {number: 8080, protocol: HTTP, name: p}, bind: 192.0.2.1, captureMode: NONE, defaultEndpoint: \"127.0.0.1:1\"}\n");
    wait_until("a refusal is told", || {
        of_envoy(&stage).to_string().contains("192.0.2.1")
    });
    let page = of_envoy(&stage);
    let listeners = &page["types"]["type.googleapis.com/envoy.config.listener.v3.Listener"];
    let reason = listeners["last_nack"].as_str().unwrap_or_default();
    assert!(reason.contains("192.0.2.1"), "{page}");
    stage.remove("elsewhere.yaml");
    wait_until("all is as before", || {
        stage.status(OURS, HTTP, "GET /a") == 200
    });
    // An unknown provider: its requests are denied, and the limit has a name.
    stage.set("custom.yaml", "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: ask, namespace: shop}\n\
         spec: {action: CUSTOM, selector: {matchLabels: {app: theirs}}, provider: {name: opa}, rules: [{to: [{operation: {paths: [\"/ask\"]}}]}]}\n");
    wait_until("what cannot be asked is denied", || {
        stage.status(OURS, HTTP, "GET /ask") == 403
    });
    assert_eq!(stage.status(OURS, HTTP, "GET /a"), 200);
    let limits = status(&stage)["translation_limits"]["shop/theirs"].to_string();
    assert!(limits.contains("unknown-provider"), "{limits}");
    drop(envoy);
}
