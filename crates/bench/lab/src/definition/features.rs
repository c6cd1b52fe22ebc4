//! Feature sets: Voile with features that a user switches on. Each set is a contestant beside plain Voile, so its cost is a ratio
//! paired within rounds. A set that is not built is named as missing.

use super::Variant;

/// All sets that a definition may name, alone or joined by `+`; the first changes nothing.
pub(super) const FEATURES: [&str; 16] = [
    "default",
    "no-metrics",
    "detection",
    "access-log",
    "access-log-json",
    "access-log-grpc",
    "tracing",
    "tracing-1",
    "demo",
    "out-of-process",
    "ext-authz",
    "rate-limits",
    "round-robin",
    "least-request",
    "policies",
    "routes",
];

/// Messages about feature sets that cannot be measured yet.
const MISSING: [(&str, &str); 2] = [
    (
        "policies",
        "is an axis of its own: `policies = [100, 1000]`, `rules`, `principals`, `paths`, `source_ips`, with `verdicts`",
    ),
    (
        "routes",
        "is an axis of its own: `routes = [100, 1000]`, `prefix_routes`, `header_routes`, with `hits`",
    ),
];

/// Metrics off, as a user would do it.
const NO_METRICS: &str = "apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata:
  name: no-metrics
  namespace: lab
spec:
  metrics:
  - providers:
    - name: prometheus
    overrides:
    - match:
        metric: ALL_METRICS
      disabled: true
";

/// Collector of log entries and spans: the echo server, whose cost is charged to the server.
const COLLECTOR: &str = "apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: collector
  namespace: lab
spec:
  hosts:
  - collector.lab.internal
  location: MESH_EXTERNAL
  resolution: STATIC
  ports:
  - number: ${ECHO_PORT}
    name: grpc-collector
    protocol: GRPC
  endpoints:
  - address: ${ECHO_ADDRESS}
";

/// Every request to the server waits for a word of the same server, in another of its roles.
const ASKING: &str = "---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata:
  name: out-of-process
  namespace: lab
spec:
  selector:
    matchLabels:
      app: server
  action: CUSTOM
  provider:
    name: authorizer
  rules:
  - {}
";

/// A limit that each request counts in and none reaches.
const RATE_LIMIT: &str = "apiVersion: voile.dev/v1
kind: RateLimit
metadata:
  name: counted
  namespace: lab
spec:
  selector:
    matchLabels:
      app: server
  rules:
  - limits:
    - requests: 1000000
      per: 1s
";

/// DestinationRules that choose the load balancer for the called services, in a user's form.
fn balanced_by(simple: &str) -> String {
    let rule = |name: &str, host: &str| {
        format!(
            "apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata:
  name: {name}
  namespace: lab
spec:
  host: {host}
  trafficPolicy:
    loadBalancer:
      simple: {simple}
"
        )
    };
    let server = rule("server", "server.lab.svc.cluster.local");
    format!("{server}---\n{}", rule("direct", "${DIRECT_HOST}"))
}

/// Ports that say nothing of their protocol; the longer words first, since they hold the shorter.
const UNDECLARED: [(&str, &str); 4] = [
    (
        "      protocol: HTTP\n      name: http-mutual",
        "      name: mutual",
    ),
    (
        "      protocol: HTTP\n      name: http-plain",
        "      name: plain",
    ),
    ("name: http-mutual", "name: mutual"),
    ("name: http-plain", "name: plain"),
];

/// Parts of a `MeshConfig`.
#[derive(Default)]
struct MeshConfig {
    log: &'static str,
    log_service: bool,
    /// A service is asked about every request.
    asks: bool,
    /// Percent of requests whose spans are sent.
    sampling: Option<u8>,
}

impl MeshConfig {
    fn to_yaml(&self) -> String {
        let mut providers = String::new();
        let mut chosen = String::new();
        let mut rest = self.log.to_owned();
        if self.log_service {
            providers += "    - name: als\n      envoyHttpAls:\n        service: lab/collector.lab.internal\n        \
                          port: ${ECHO_PORT}\n";
            chosen += "      accessLogging: [als]\n";
        }
        if self.asks {
            providers += "    - name: authorizer\n      envoyExtAuthzGrpc:\n        service: lab/collector.lab.internal\n        \
                          port: ${ECHO_PORT}\n";
        }
        if let Some(percent) = self.sampling {
            providers += "    - name: otel\n      opentelemetry:\n        service: lab/collector.lab.internal\n        \
                          port: ${ECHO_PORT}\n";
            chosen += "      tracing: [otel]\n";
            rest += &format!("    defaultConfig:\n      tracing:\n        sampling: {percent}\n");
        }
        let mut text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: istio\n  namespace: istio-system\ndata:\n  \
                        mesh: |\n"
            .to_owned();
        text += &rest;
        if !providers.is_empty() {
            text += &format!(
                "    extensionProviders:\n{providers}    defaultProviders:\n{chosen}---\n{COLLECTOR}"
            );
        }
        if self.asks {
            text += ASKING;
        }
        text
    }
}

const LOG_FILE: &str = "    accessLogFile: ${FOLDER}/access.log\n";
const LOG_JSON: &str = "    accessLogFile: ${FOLDER}/access.log\n    accessLogEncoding: JSON\n";

/// Title of a feature set, and the resources that it adds.
fn adds(feature: &str) -> Option<(&'static str, String)> {
    let (title, resources) = match feature {
        "no-metrics" => (
            "metrics off, by a Telemetry resource",
            NO_METRICS.to_owned(),
        ),
        "rate-limits" => (
            "a rate limit at the server that no request reaches",
            RATE_LIMIT.to_owned(),
        ),
        "detection" => ("ports without a protocol: detection on", String::new()),
        "round-robin" => (
            "round robin, by a DestinationRule",
            balanced_by("ROUND_ROBIN"),
        ),
        "least-request" => (
            "least request of two endpoints, by a DestinationRule",
            balanced_by("LEAST_REQUEST"),
        ),
        _ => return configures(feature).map(|(title, config)| (title, config.to_yaml())),
    };
    Some((title, resources))
}

/// Title of a feature set, and its mesh configuration.
fn configures(feature: &str) -> Option<(&'static str, MeshConfig)> {
    let plain = MeshConfig::default();
    Some(match feature {
        "access-log" => (
            "an access log of both sidecars, Istio's text, into a file",
            MeshConfig {
                log: LOG_FILE,
                ..plain
            },
        ),
        "access-log-json" => (
            "an access log of both sidecars, Istio's JSON, into a file",
            MeshConfig {
                log: LOG_JSON,
                ..plain
            },
        ),
        "access-log-grpc" => (
            "an access log of both sidecars, to a gRPC access log service",
            MeshConfig {
                log_service: true,
                ..plain
            },
        ),
        "tracing" => (
            "spans of every request, over OTLP",
            MeshConfig {
                sampling: Some(100),
                ..plain
            },
        ),
        "tracing-1" => (
            "spans of one request in a hundred, over OTLP",
            MeshConfig {
                sampling: Some(1),
                ..plain
            },
        ),
        "demo" => (
            "as Istio's profile demo: spans of every request, and an access log into a file",
            MeshConfig {
                log: LOG_FILE,
                sampling: Some(100),
                ..plain
            },
        ),
        "ext-authz" => (
            "external authorization of every request over gRPC",
            MeshConfig {
                asks: true,
                ..plain
            },
        ),
        "out-of-process" => (
            "like Mixer: external authorization of every request over gRPC, and an access log to another service",
            MeshConfig {
                log_service: true,
                asks: true,
                ..plain
            },
        ),
        _ => return None,
    })
}

/// That contestant with these feature sets, as `no-metrics+detection`; or the reason why there is none.
pub(super) fn with_all(base: &Variant, features: &str) -> Result<Variant, &'static str> {
    let each = features.split('+').filter(|feature| *feature != "default");
    each.into_iter()
        .try_fold(base.clone(), |variant, feature| with(&variant, feature))
}

/// The name of Istio's own configuration, of which there is one.
const MESH_CONFIG: &str = "name: istio\n";

/// That contestant with a feature set; or the reason why there is none.
fn with(base: &Variant, feature: &str) -> Result<Variant, &'static str> {
    if let Some((_, why)) = MISSING.iter().find(|(name, _)| *name == feature) {
        return Err(why);
    }
    let mut variant = Variant {
        name: format!("{}+{feature}", base.name),
        ..base.clone()
    };
    if feature == "no-metrics" {
        variant.counts = false;
    }
    if feature == "detection" {
        let words = UNDECLARED.map(|(from, to)| (from.to_owned(), to.to_owned()));
        variant.replace.extend(words);
    }
    let (title, resources) = adds(feature).ok_or("is not a feature set")?;
    if resources.contains(MESH_CONFIG) && base.append.contains(MESH_CONFIG) {
        return Err(
            "two sets change MeshConfig, of which there is only one: use the set that does both",
        );
    }
    for (kept, more) in [
        (&mut variant.title, title),
        (&mut variant.append, resources.as_str()),
    ] {
        let apart = if kept.is_empty() || more.is_empty() {
            ""
        } else if more.contains('\n') {
            "\n---\n"
        } else {
            "; "
        };
        *kept = format!("{kept}{apart}{more}");
    }
    Ok(variant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_is_a_contestant_of_its_own_or_named_as_missing() {
        let base = Variant::plain("voile");
        for feature in &FEATURES[1..] {
            let missing = MISSING.iter().any(|(name, _)| name == feature);
            match with(&base, feature) {
                Ok(variant) => {
                    assert_eq!(variant.name, format!("voile+{feature}"));
                    assert!(!variant.title.is_empty() && !missing, "{feature}");
                    assert!(
                        !(variant.append.is_empty() && variant.replace.is_empty()),
                        "{feature}"
                    );
                }
                Err(why) => assert!(missing, "{feature}: {why}"),
            }
        }
    }

    #[test]
    fn sets_are_combined_unless_both_change_mesh_config() {
        let voile = Variant::plain("voile");
        let both = with_all(&voile, "no-metrics+detection").expect("built");
        assert_eq!(both.name, "voile+no-metrics+detection");
        assert!(!both.counts && !both.replace.is_empty());
        assert!(both.append.contains("no-metrics") && both.title.contains("; "));
        let log = with_all(&voile, "no-metrics+access-log").expect("built");
        assert_eq!(log.append.matches("\n---\n").count(), 1, "{}", log.append);
        assert!(with_all(&voile, "access-log+tracing").is_err());
        assert!(
            with_all(&voile, "detection+routes")
                .is_err_and(|why| why.contains("an axis of its own"))
        );
        assert_eq!(with_all(&voile, "default").expect("nothing"), voile);
    }

    #[test]
    fn the_demo_set_logs_and_traces_everything() {
        let demo = with(&Variant::plain("voile"), "demo").expect("built");
        for words in [
            "accessLogFile",
            "sampling: 100",
            "tracing: [otel]",
            "collector",
        ] {
            assert!(demo.append.contains(words), "{}", demo.append);
        }
    }
}
