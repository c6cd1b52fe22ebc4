//! CUSTOM policies as Envoy's external authorization: shadow rules find what they match, and the filter asks the provider where
//! those rules left their mark.

use std::time::Duration;

use serde_json::{Value, json};
use voile_model::mesh::{BodyInCheck, ExtAuthzProvider, ExtAuthzTransport, HttpAuthorizer};
use voile_policy::authorization::{Action, Policy};

use crate::Translation;
use crate::matchers;

/// Prefix of the shadow rules' results.
pub const CUSTOM_PREFIX: &str = "istio_ext_authz_";
/// Timeout of an answer if the provider has none: Istio's default.
const USUAL_TIMEOUT: Duration = Duration::from_secs(600);

/// Prefix of the names of a provider's rules.
fn mark(provider: &str) -> String {
    format!("istio-ext-authz-{provider}")
}

impl Translation {
    /// The shadow rules for one provider's policies, to be told by `CUSTOM_PREFIX`; none where there are no such policies.
    pub fn custom_rules(&self, policies: &[Policy], provider: &str) -> Option<Value> {
        let action = Action::Custom(provider.into());
        let mut rules = self.rules(policies, &action, false)?;
        let named = rules["policies"].as_object_mut().map(std::mem::take);
        let named = named.into_iter().flatten();
        let named = named.map(|(name, rule)| (format!("{}-{name}", mark(provider)), rule));
        rules["policies"] = Value::Object(named.collect());
        Some(rules)
    }
}

/// The filter that asks a provider of this name, which is this cluster, about what its shadow rules have matched.
pub fn custom_filter(name: &str, provider: &ExtAuthzProvider, cluster: &str) -> Value {
    let host = &provider.service.host;
    let timeout = provider.timeout.unwrap_or(USUAL_TIMEOUT);
    let timeout = format!("{}s", timeout.as_secs_f64());
    let mut config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz",
        "transport_api_version": "V3",
        "failure_mode_allow": provider.fail_open,
        "filter_enabled_metadata": {
            "filter": "envoy.filters.http.rbac",
            "path": [{ "key": format!("{CUSTOM_PREFIX}shadow_effective_policy_id") }],
            "value": { "string_match": { "prefix": mark(name) } },
        },
    });
    if let Some(status) = provider.status_on_error {
        config["status_on_error"] = json!({ "code": status });
    }
    if let Some(body) = &provider.body {
        let BodyInCheck {
            max_bytes,
            allow_partial,
            pack_as_bytes,
        } = body;
        config["with_request_body"] = json!({
            "max_request_bytes": max_bytes,
            "allow_partial_message": allow_partial,
            "pack_as_bytes": pack_as_bytes,
        });
    }
    match &provider.transport {
        ExtAuthzTransport::Grpc => {
            config["grpc_service"] = json!({
                "envoy_grpc": { "cluster_name": cluster, "authority": host.to_string() },
                "timeout": timeout,
            });
        }
        ExtAuthzTransport::Http(http) => {
            let uri =
                json!({ "uri": format!("http://{host}"), "cluster": cluster, "timeout": timeout });
            config["http_service"] = http_service(http, uri);
            if let Some(headers) = matchers::names(&http.request_headers) {
                config["allowed_headers"] = headers;
            }
        }
    }
    json!({ "name": "envoy.filters.http.ext_authz", "typed_config": config })
}

/// The same about connections, which only gRPC can ask about; none for a provider over HTTP.
pub(crate) fn custom_network_filter(
    name: &str,
    provider: &ExtAuthzProvider,
    cluster: &str,
) -> Option<Value> {
    if provider.transport != ExtAuthzTransport::Grpc {
        return None;
    }
    let mut filter = custom_filter(name, provider, cluster);
    let http = filter["typed_config"].take();
    let config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.ext_authz.v3.ExtAuthz",
        "stat_prefix": "tcp.",
        "transport_api_version": "V3",
        "failure_mode_allow": provider.fail_open,
        "grpc_service": http["grpc_service"],
        "filter_enabled_metadata": {
            "filter": "envoy.filters.network.rbac",
            "path": http["filter_enabled_metadata"]["path"],
            "value": http["filter_enabled_metadata"]["value"],
        },
    });
    Some(json!({ "name": "envoy.filters.network.ext_authz", "typed_config": config }))
}

fn http_service(http: &HttpAuthorizer, uri: Value) -> Value {
    let mut service = json!({ "server_uri": uri });
    if !http.path_prefix.is_empty() {
        service["path_prefix"] = json!(&*http.path_prefix);
    }
    let headers = http.additional_headers.iter();
    let headers = headers.map(|(name, value)| json!({ "key": &**name, "value": &**value }));
    let headers: Vec<Value> = headers.collect();
    if !headers.is_empty() {
        service["authorization_request"] = json!({ "headers_to_add": headers });
    }
    for (field, names) in [
        ("allowed_upstream_headers", &http.upstream_on_allow),
        ("allowed_client_headers", &http.downstream_on_deny),
        (
            "allowed_client_headers_on_success",
            &http.downstream_on_allow,
        ),
    ] {
        if let Some(names) = matchers::names(names) {
            service["authorization_response"][field] = names;
        }
    }
    service
}
