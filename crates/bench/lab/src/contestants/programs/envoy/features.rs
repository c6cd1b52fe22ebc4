//! Feature sets in Envoy's configuration: the features of Istio's profiles, written into the committed templates at the end of
//! each connection manager and each TCP proxy. Also counts the written records, in files and statistics.

use std::collections::BTreeMap;
use std::path::Path;

use crate::contestants::contestant::{ExpectedOutput, RecordedOutput, lines};
use crate::definition::{AccessLog, PeerFeatures};
use crate::machine::instance::SERVER;

/// Ends of a connection manager's own fields and of a TCP proxy's, as the templates write them.
const HTTP_END: &str = "          generate_request_id: false\n";
const TCP_END: &str = "          idle_timeout: 3600s\n";
const CLUSTERS: &str = "  clusters:\n";

/// Fields of Istio's access log, in its order: name in JSON, and value in the text format.
const FIELDS: [(&str, &str); 22] = [
    ("start_time", "[%START_TIME%]"),
    ("method", "\"%REQ(:METHOD)%"),
    ("path", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"),
    ("protocol", "%PROTOCOL%\""),
    ("response_code", "%RESPONSE_CODE%"),
    ("response_flags", "%RESPONSE_FLAGS%"),
    ("response_code_details", "%RESPONSE_CODE_DETAILS%"),
    (
        "connection_termination_details",
        "%CONNECTION_TERMINATION_DETAILS%",
    ),
    (
        "upstream_transport_failure_reason",
        "\"%UPSTREAM_TRANSPORT_FAILURE_REASON%\"",
    ),
    ("bytes_received", "%BYTES_RECEIVED%"),
    ("bytes_sent", "%BYTES_SENT%"),
    ("duration", "%DURATION%"),
    (
        "upstream_service_time",
        "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%",
    ),
    ("x_forwarded_for", "\"%REQ(X-FORWARDED-FOR)%\""),
    ("user_agent", "\"%REQ(USER-AGENT)%\""),
    ("request_id", "\"%REQ(X-REQUEST-ID)%\""),
    ("authority", "\"%REQ(:AUTHORITY)%\""),
    ("upstream_host", "\"%UPSTREAM_HOST%\""),
    ("upstream_cluster", "%UPSTREAM_CLUSTER_RAW%"),
    ("upstream_local_address", "%UPSTREAM_LOCAL_ADDRESS%"),
    ("downstream_local_address", "%DOWNSTREAM_LOCAL_ADDRESS%"),
    ("downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%"),
];

/// The template with these features; `name` is the process's.
pub(super) fn with(template: &str, features: &PeerFeatures, name: &str) -> Result<String, String> {
    let mut text = template.to_owned();
    let mut http = String::new();
    if features.sampling.is_some() {
        // Envoy decides by the request's id what is traced; Istio leaves it on.
        http += "          generate_request_id: true\n";
    } else {
        http += HTTP_END;
    }
    if let Some(log) = features.log {
        http += &access_log(log, "http", name);
        replace(
            &mut text,
            TCP_END,
            &(TCP_END.to_owned() + &access_log(log, "tcp", name)),
        )?;
    }
    if let Some(percent) = features.sampling {
        http += &tracing(percent, name);
    }
    replace(&mut text, HTTP_END, &http)?;
    if features.collects() {
        replace(&mut text, CLUSTERS, &(CLUSTERS.to_owned() + COLLECTOR))?;
    }
    if features.asks && text.contains(SERVER_CLUSTER) {
        replace(&mut text, ROUTER, &(ASKING.to_owned() + ROUTER))?;
    }
    if features.detection {
        text = detecting(&text)?;
    }
    if features.quiet {
        text += "stats_config: {stats_matcher: {reject_all: true}}\n";
    }
    Ok(text)
}

fn replace(text: &mut String, from: &str, to: &str) -> Result<(), String> {
    if !text.contains(from) {
        return Err(format!("Envoy's template has no {:?}", from.trim()));
    }
    *text = text.replace(from, to);
    Ok(())
}

/// Cluster for log entries and spans: the server that all requests lead to, as for Voile.
const COLLECTOR: &str = "  - name: collector
    type: STATIC
    connect_timeout: 2s
    load_assignment:
      cluster_name: collector
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: ${ECHO_ADDRESS}, port_value: ${ECHO_PORT}}}}}]}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
";

/// The last filter of each chain of HTTP filters, and text that only the server's template has.
const ROUTER: &str = "          - name: envoy.filters.http.router\n";
const SERVER_CLUSTER: &str = "stat_prefix: inbound_";

/// Every request waits for a word of that server, as for Voile.
const ASKING: &str = "          - name: envoy.filters.http.ext_authz
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
              transport_api_version: V3
              grpc_service: {envoy_grpc: {cluster_name: collector}, timeout: 600s}
";

fn access_log(log: AccessLog, kind: &str, name: &str) -> String {
    const TYPES: &str = "type.googleapis.com/envoy.extensions.access_loggers";
    if log == AccessLog::Service {
        let message = match kind {
            "http" => "HttpGrpcAccessLogConfig",
            _ => "TcpGrpcAccessLogConfig",
        };
        return format!(
            "          access_log:
          - name: envoy.access_loggers.{kind}_grpc
            typed_config:
              \"@type\": {TYPES}.grpc.v3.{message}
              common_config:
                log_name: {name}
                transport_api_version: V3
                grpc_service: {{envoy_grpc: {{cluster_name: collector}}}}
"
        );
    }
    let format = if log == AccessLog::Json {
        let field = |(name, value): &(&str, &str)| {
            let value = value.trim_matches(['"', '[', ']']);
            format!("                  {name}: \"{value}\"\n")
        };
        let fields: String = FIELDS.iter().map(field).collect();
        format!("                json_format:\n{fields}")
    } else {
        let line: Vec<&str> = FIELDS.iter().map(|(_, value)| *value).collect();
        let line = line.join(" ") + " %REQUESTED_SERVER_NAME% %ROUTE_NAME%";
        format!(
            "                text_format_source:\n                  inline_string: |\n                    {line}\n"
        )
    };
    format!(
        "          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              \"@type\": {TYPES}.file.v3.FileAccessLog
              path: ${{FOLDER}}/{name}-access.log
              log_format:
{format}"
    )
}

fn tracing(percent: u8, name: &str) -> String {
    format!(
        "          tracing:
            random_sampling: {{value: {percent}}}
            provider:
              name: envoy.tracers.opentelemetry
              typed_config:
                \"@type\": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig
                grpc_service:
                  envoy_grpc: {{cluster_name: collector}}
                  timeout: 10s
                service_name: {name}
"
    )
}

/// Each listener looks at the first bytes before it chooses what to do with the rest, as Istio's do on ports that say
/// nothing of their protocol: HTTP of either version, or bytes that go where the port's cluster is. Between the sidecars
/// the protocol is named in ALPN, so that the server's side only reads the hello.
fn detecting(template: &str) -> Result<String, String> {
    const INSPECT: &str = "type.googleapis.com/envoy.extensions.filters.listener";
    const HTTP: &str = "envoy.filters.network.http_connection_manager";
    let (head, listeners, clusters) = split(template)?;
    let mut text = head.to_owned();
    let listeners = format!("\n{}", listeners.trim_end());
    for listener in listeners.split("\n  - name: ").skip(1) {
        let listener = format!("  - name: {listener}\n");
        if !listener.contains(HTTP) {
            text += &listener;
            continue;
        }
        let tls = listener.contains("transport_socket:");
        let (inspector, config, matched) = if tls {
            (
                "tls_inspector",
                "TlsInspector",
                "[istio-http/1.1, istio-h2]",
            )
        } else {
            (
                "http_inspector",
                "HttpInspector",
                "[http/1.0, http/1.1, h2c]",
            )
        };
        let chains = format!(
            "    listener_filters:
    - name: envoy.filters.listener.{inspector}
      typed_config:
        \"@type\": {INSPECT}.{inspector}.v3.{config}
    listener_filters_timeout: 5s
    continue_on_listener_filters_timeout: true
    filter_chains:
    - filter_chain_match: {{application_protocols: {matched}}}
      filters:
"
        );
        let mut changed = listener.clone();
        replace(
            &mut changed,
            "    filter_chains:\n    - filters:\n",
            &chains,
        )?;
        let codec = if changed.contains("codec_type: HTTP1") {
            "HTTP1"
        } else {
            "HTTP2"
        };
        replace(
            &mut changed,
            &format!("codec_type: {codec}"),
            "codec_type: AUTO",
        )?;
        let cluster = listener
            .split_once("route: {cluster: ")
            .and_then(|(_, rest)| rest.split(',').next())
            .unwrap_or("echo");
        text += &changed;
        text += &otherwise(cluster, tls);
    }
    text += clusters;
    let wanted = "        common_tls_context:\n";
    let alpn = "        common_tls_context:\n          alpn_protocols: [istio-http/1.1]\n";
    if text.contains("UpstreamTlsContext") {
        replace(&mut text, wanted, alpn)?;
    }
    Ok(text)
}

/// The chain for bytes that are no HTTP.
fn otherwise(cluster: &str, tls: bool) -> String {
    let socket = if tls {
        "      transport_socket: *mutual\n"
    } else {
        ""
    };
    format!(
        "    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: undetected
          cluster: {cluster}
{socket}"
    )
}

/// Splits the template: text before the listeners, the listeners, and the clusters with all that follows.
fn split(template: &str) -> Result<(&str, &str, &str), String> {
    const LISTENERS: &str = "  listeners:\n";
    let missing = || "Envoy's template has no listeners or no clusters".to_owned();
    let from = template.find(LISTENERS).ok_or_else(missing)? + LISTENERS.len();
    let to = template.find(CLUSTERS).ok_or_else(missing)?;
    Ok((&template[..from], &template[from..to], &template[to..]))
}

/// Records that the sidecar has written by now; `role` and `name` are those of its process.
pub(super) fn recorded(
    features: &PeerFeatures,
    folder: &Path,
    (role, name): (&str, &str),
    protocol: &str,
    statistics: &dyn Fn() -> BTreeMap<String, u64>,
) -> Vec<RecordedOutput> {
    let mut all = Vec::new();
    let mut add = |what: String, count: u64, expected: ExpectedOutput| {
        all.push(RecordedOutput {
            what,
            count,
            expected,
        });
    };
    let counted = |ends: &str| -> u64 {
        let statistics = statistics();
        let named = statistics.iter().filter(|(name, _)| name.ends_with(ends));
        named.map(|(_, count)| count).sum()
    };
    match features.log {
        Some(AccessLog::Service) => {
            let words = format!(
                "entries that the {role} sent to the access log service, by its statistics"
            );
            let count = counted("access_logs.grpc_access_log.logs_written");
            add(words, count, ExpectedOutput::OneOf(1));
        }
        Some(_) => {
            let count = lines(&folder.join(format!("{name}-access.log")));
            let words = format!("lines in the {role}'s access log");
            add(words, count, ExpectedOutput::OneOf(1));
        }
        None => {}
    }
    if let Some(percent) = features.sampling.filter(|_| protocol != "tcp") {
        let words = format!("spans that the {role} sent, by its statistics");
        let one_of = 100 / u64::from(percent.max(1));
        let count = counted("tracing.opentelemetry.spans_sent");
        add(words, count, ExpectedOutput::OneOf(one_of));
    }
    if features.asks && protocol != "tcp" && role == SERVER {
        let words = format!(
            "external authorization calls of the {role} that were allowed, by its statistics"
        );
        // Envoy counts each answer once for the listener's HTTP and once for the cluster asked.
        let statistics = statistics();
        let of_listeners = statistics
            .iter()
            .filter(|(name, _)| name.starts_with("http.") && name.ends_with("ext_authz.ok"));
        let count = of_listeners.map(|(_, count)| count).sum();
        add(words, count, ExpectedOutput::OneOf(1));
    }
    if features.detection && protocol != "tcp" {
        let words = format!("connections whose protocol the {role} detected, by its statistics");
        let found = ["http11_found", "http2_found", "alpn_found"].map(counted);
        add(words, found.iter().sum(), ExpectedOutput::Some);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::super::super::listeners::fill;
    use super::super::{CLIENT_TEMPLATE, SERVER_TEMPLATE};
    use super::*;

    fn configured(template: &str, contestant: &str) -> String {
        let (_, features) = PeerFeatures::of(contestant).expect("known");
        with(template, &features, "envoy-side").expect("the template has what is changed")
    }

    #[test]
    fn a_feature_is_in_every_listener_and_nothing_else_changes() {
        for template in [CLIENT_TEMPLATE, SERVER_TEMPLATE] {
            assert_eq!(configured(template, "envoy"), template);
            let (http, tcp) = (
                template.matches(HTTP_END).count(),
                template.matches(TCP_END).count(),
            );
            for (contestant, words, times) in [
                ("envoy+access-log", "/envoy-side-access.log", http + tcp),
                ("envoy+access-log-json", "json_format:", http + tcp),
                ("envoy+access-log-grpc", "GrpcAccessLogConfig", http + tcp),
                ("envoy+tracing", "random_sampling: {value: 100}", http),
                ("envoy+tracing-1", "random_sampling: {value: 1}", http),
                ("envoy+demo", "envoy.tracers.opentelemetry", http),
                ("envoy+demo", "FileAccessLog", http + tcp),
                ("envoy+detection", "codec_type: AUTO", http),
                ("envoy+detection", "stat_prefix: undetected", http),
                ("envoy+no-metrics", "reject_all: true", 1),
                ("envoy+out-of-process", "GrpcAccessLogConfig", http + tcp),
            ] {
                let text = configured(template, contestant);
                assert_eq!(text.matches(words).count(), times, "{contestant}: {words}");
                let collects = ["grpc", "tracing", "demo", "out-of-process"]
                    .iter()
                    .any(|w| contestant.contains(w));
                assert_eq!(text.contains("- name: collector"), collects, "{contestant}");
            }
        }
        let asks =
            |template| configured(template, "envoy+out-of-process").contains("http.ext_authz");
        assert!(asks(SERVER_TEMPLATE) && !asks(CLIENT_TEMPLATE));
        fill("${FOLDER}", &[]).expect_err("values are still asked for");
    }
}
