//! HTTP connection managers and proxies of bytes: the last filters of a chain, inbound and outbound.

use serde_json::{Value, json};
use voile_model::mesh::ForwardClientCertificate;
use voile_model::mesh::traffic::PortTraffic;
use voile_model::mesh::{DEFAULT_RETRIES, Mesh, PathNormalization, RetrySettings, Workload};

use super::traffic;
use crate::json::{duration, from_control, typed};

/// Which way a connection goes.
#[derive(Clone, Copy)]
pub(crate) enum TrafficDirection<'a> {
    /// To the application of this workload.
    In(&'a Workload),
    /// From an application.
    Out,
    /// From outside, at this gateway.
    Edge(&'a Workload),
}

impl TrafficDirection<'_> {
    /// Envoy's word.
    pub(crate) fn direction(self) -> &'static str {
        match self {
            Self::In(_) => "INBOUND",
            Self::Out | Self::Edge(_) => "OUTBOUND",
        }
    }
}

/// Source of routes.
pub(crate) enum Routes {
    /// They are here.
    Inline(Value),
    /// The control plane has them under this name.
    Named(String),
}

/// The filter that serves HTTP, with these filters before its router.
pub(crate) fn http(
    mesh: &Mesh,
    way: TrafficDirection<'_>,
    stat_prefix: &str,
    routes: Routes,
    before: &[Value],
) -> Value {
    let router = typed(
        "envoy.filters.http.router",
        "extensions.filters.http.router.v3.Router",
        json!({}),
    );
    let filters: Vec<Value> = before.iter().cloned().chain([router]).collect();
    let mut config = json!({
        "stat_prefix": stat_prefix,
        "codec_type": "AUTO",
        "http_filters": filters,
        "upgrade_configs": [{ "upgrade_type": "websocket" }],
        // The mesh has no timeout where nobody asks for one.
        "stream_idle_timeout": "0s",
        "server_header_transformation": "PASS_THROUGH",
        "preserve_external_request_id": true,
        "http_protocol_options": { "accept_http_10": true },
    });
    match routes {
        Routes::Inline(routes) => config["route_config"] = routes,
        Routes::Named(name) => {
            config["rds"] = json!({ "config_source": from_control(), "route_config_name": name });
        }
    }
    match way {
        TrafficDirection::In(workload) => {
            inbound(mesh, workload, &mut config);
            config["skip_xff_append"] = json!(true);
            let said = workload.topology.forwards.sidecar;
            let said = said.or(mesh.config.proxy.forwards.sidecar);
            // The peer's certificate alone names the peer, unless a setting says otherwise.
            let forwards = said.unwrap_or(ForwardClientCertificate::SanitizeSet);
            config["forward_client_cert_details"] = json!(word(forwards));
            let said = workload.certificate_details(&mesh.config.proxy.forwards);
            let mut told = json!({ "subject": said.subject, "dns": said.dns, "uri": said.uri });
            for (key, wanted) in [("cert", said.certificate), ("chain", said.chain)] {
                if wanted {
                    told[key] = json!(true);
                }
            }
            config["set_current_client_cert_details"] = told;
        }
        TrafficDirection::Edge(workload) => {
            inbound(mesh, workload, &mut config);
            let forwards = workload.forwards(&mesh.config.proxy.forwards);
            config["forward_client_cert_details"] = json!(word(forwards));
            config["set_current_client_cert_details"] =
                json!({ "subject": true, "cert": true, "dns": true, "uri": true });
            // No address is trusted for being private.
            config["internal_address_config"] = json!({ "unix_sockets": false });
        }
        // The application's own `x-forwarded-for` is left as it is.
        TrafficDirection::Out => {
            config["use_remote_address"] = json!(false);
            config["forward_client_cert_details"] = json!("SANITIZE");
        }
    }
    if let Some(log) = access_log(mesh) {
        config["access_log"] = json!([log]);
    }
    typed(
        "envoy.filters.network.http_connection_manager",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        config,
    )
}

/// Envoy's word.
fn word(forwards: ForwardClientCertificate) -> &'static str {
    match forwards {
        ForwardClientCertificate::Sanitize => "SANITIZE",
        ForwardClientCertificate::ForwardOnly => "FORWARD_ONLY",
        ForwardClientCertificate::AppendForward => "APPEND_FORWARD",
        ForwardClientCertificate::SanitizeSet => "SANITIZE_SET",
        ForwardClientCertificate::AlwaysForwardOnly => "ALWAYS_FORWARD_ONLY",
    }
}

/// Trust in a caller's headers, and normalization of paths before rules compare them.
fn inbound(mesh: &Mesh, workload: &Workload, config: &mut Value) {
    let trusted = workload
        .topology
        .trusted_proxies
        .unwrap_or(mesh.config.proxy.trusted_proxies);
    config["use_remote_address"] = json!(true);
    config["xff_num_trusted_hops"] = json!(trusted);
    let mode = mesh.config.path_normalization;
    if mode == PathNormalization::None {
        return;
    }
    config["normalize_path"] = json!(true);
    if mode != PathNormalization::Base {
        config["merge_slashes"] = json!(true);
    }
    if mode == PathNormalization::DecodeAndMergeSlashes {
        config["path_with_escaped_slashes_action"] = json!("UNESCAPE_AND_FORWARD");
    }
}

/// The same, with what is said of calls to that.
pub(super) fn tcp_to(mesh: &Mesh, cluster: &str, said: &PortTraffic) -> Value {
    let mut filter = tcp(mesh, cluster);
    traffic::carry(&mut filter, said);
    filter
}

/// The filter that carries bytes to a cluster.
pub(crate) fn tcp(mesh: &Mesh, cluster: &str) -> Value {
    let mut config = json!({ "stat_prefix": cluster, "cluster": cluster });
    if let Some(log) = access_log(mesh) {
        config["access_log"] = json!([log]);
    }
    typed(
        "envoy.filters.network.tcp_proxy",
        "extensions.filters.network.tcp_proxy.v3.TcpProxy",
        config,
    )
}

/// The mesh's access log; its language is Envoy's own.
fn access_log(mesh: &Mesh) -> Option<Value> {
    let log = mesh.config.access_log.as_ref()?;
    let source = log.format.source();
    let format = match log.format.is_json() {
        true => json!({ "json_format": serde_json::from_str::<Value>(source).ok()? }),
        false => json!({ "text_format_source": { "inline_string": source } }),
    };
    Some(typed(
        "envoy.access_loggers.file",
        "extensions.access_loggers.file.v3.FileAccessLog",
        json!({ "path": &*log.path, "log_format": format }),
    ))
}

/// Retry conditions without a retry policy: Istio's default.
const RETRY_ON: &str =
    "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes";
/// Number of draws of another endpoint before the same one is tried again.
const SELECTIONS: &str = "5";

/// Retry policy of requests, from their route or else the mesh; `None` if there are no retries.
pub(crate) fn retry(mesh: &Mesh, of_route: Option<&RetrySettings>) -> Option<Value> {
    let written = of_route.or(mesh.config.default_retry.as_ref());
    let retries = written.map_or(DEFAULT_RETRIES, |policy| policy.retries);
    if retries == 0 {
        return None;
    }
    let predicate = typed(
        "envoy.retry_host_predicates.previous_hosts",
        "extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
        json!({}),
    );
    let mut retry = json!({
        "retry_on": RETRY_ON,
        "num_retries": retries,
        "retry_host_predicate": [predicate],
        "host_selection_retry_max_attempts": SELECTIONS,
    });
    if let Some(policy) = written {
        as_written(policy, &mut retry);
    }
    Some(retry)
}

fn as_written(policy: &RetrySettings, retry: &mut Value) {
    let codes = policy.on.iter().filter_map(|on| on.parse::<u16>().ok());
    let codes: Vec<u16> = codes.collect();
    let words = policy.on.iter().filter(|on| on.parse::<u16>().is_err());
    let mut words: Vec<&str> = words.map(AsRef::as_ref).collect();
    if !codes.is_empty() {
        retry["retriable_status_codes"] = json!(codes);
        words.push("retriable-status-codes");
    }
    if !words.is_empty() {
        retry["retry_on"] = json!(words.join(","));
    }
    if let Some(timeout) = policy.per_try_timeout {
        retry["per_try_timeout"] = duration(timeout);
    }
    if let Some(backoff) = policy.backoff {
        retry["retry_back_off"] = json!({ "base_interval": duration(backoff) });
    }
}
