//! Each field of a provider that is asked about requests, against the field of Envoy's filter that Istio's generator gives for it.

use std::time::Duration;

use serde_json::{Value, json};
use voile_envoy::{CUSTOM_PREFIX, custom_filter};
use voile_model::mesh::authorization::StringMatch;
use voile_model::mesh::{
    BodyInCheck, ExtAuthzProvider, ExtAuthzTransport, HttpAuthorizer, ProviderService,
};
use voile_model::{Hostname, Port};
use voile_policy::authorization::{Action, PolicyRule};

use super::{HTTP, policy};

fn provider(transport: ExtAuthzTransport) -> ExtAuthzProvider {
    ExtAuthzProvider {
        service: ProviderService {
            namespace: None,
            host: Hostname::new("authz.shop.svc.cluster.local").expect("a name"),
            port: Port::new(80).expect("a port"),
        },
        timeout: None,
        fail_open: false,
        status_on_error: None,
        body: None,
        transport,
    }
}

fn config(provider: &ExtAuthzProvider) -> Value {
    custom_filter("ext", provider, "outbound|80||authz")["typed_config"].take()
}

#[test]
fn a_providers_rules_are_shadows_that_its_filter_looks_for() {
    let custom = |name: &str| policy(Action::Custom(name.into()), vec![PolicyRule::default()]);
    let rules = HTTP.custom_rules(&[custom("ext"), custom("other")], "ext");
    let rules = rules.expect("rules");
    assert_eq!(rules["action"], "DENY");
    let names: Vec<&String> = rules["policies"]
        .as_object()
        .expect("rules")
        .keys()
        .collect();
    assert_eq!(names, ["istio-ext-authz-ext-ns[shop]-policy[p]-rule[0]"]);
    assert_eq!(HTTP.custom_rules(&[custom("other")], "ext"), None);
    let wanted = json!({
        "filter": "envoy.filters.http.rbac",
        "path": [{ "key": "istio_ext_authz_shadow_effective_policy_id" }],
        "value": { "string_match": { "prefix": "istio-ext-authz-ext" } },
    });
    assert_eq!(CUSTOM_PREFIX, "istio_ext_authz_");
    let config = config(&provider(ExtAuthzTransport::Grpc));
    assert_eq!(config["filter_enabled_metadata"], wanted);
}

#[test]
fn what_a_provider_says_of_every_transport() {
    let mut one = provider(ExtAuthzTransport::Grpc);
    let usual = config(&one);
    assert_eq!(usual["failure_mode_allow"], false);
    assert_eq!(usual["status_on_error"], Value::Null);
    assert_eq!(usual["with_request_body"], Value::Null);
    let service = json!({
        "envoy_grpc": { "cluster_name": "outbound|80||authz", "authority": "authz.shop.svc.cluster.local" },
        "timeout": "600s",
    });
    assert_eq!(usual["grpc_service"], service);
    one.fail_open = true;
    one.status_on_error = Some(503);
    one.timeout = Some(Duration::from_millis(250));
    one.body = Some(BodyInCheck {
        max_bytes: 8192,
        allow_partial: true,
        pack_as_bytes: true,
    });
    let config = config(&one);
    assert_eq!(config["failure_mode_allow"], true);
    assert_eq!(config["status_on_error"], json!({ "code": 503 }));
    assert_eq!(config["grpc_service"]["timeout"], "0.25s");
    let body =
        json!({ "max_request_bytes": 8192, "allow_partial_message": true, "pack_as_bytes": true });
    assert_eq!(config["with_request_body"], body);
}

#[test]
fn what_a_provider_says_of_http() {
    let bare = config(&provider(
        ExtAuthzTransport::Http(HttpAuthorizer::default()),
    ));
    let uri = json!({
        "uri": "http://authz.shop.svc.cluster.local",
        "cluster": "outbound|80||authz",
        "timeout": "600s",
    });
    assert_eq!(bare["http_service"], json!({ "server_uri": uri }));
    assert_eq!(bare["allowed_headers"], Value::Null);
    let all = config(&provider(ExtAuthzTransport::Http(HttpAuthorizer {
        path_prefix: "/check".into(),
        request_headers: vec![
            StringMatch::Exact("x-a".into()),
            StringMatch::Prefix("x-b-".into()),
            StringMatch::Suffix("-c".into()),
        ],
        additional_headers: vec![("x-mesh".into(), "voile".into())],
        upstream_on_allow: vec![StringMatch::Exact("x-up".into())],
        downstream_on_deny: vec![StringMatch::Exact("x-no".into())],
        downstream_on_allow: vec![StringMatch::Exact("x-yes".into())],
    })));
    let one = |kind: &str, text: &str| json!({ kind: text, "ignore_case": true });
    let listed =
        json!({ "patterns": [one("exact", "x-a"), one("prefix", "x-b-"), one("suffix", "-c")] });
    assert_eq!(all["allowed_headers"], listed);
    let service = json!({
        "server_uri": uri,
        "path_prefix": "/check",
        "authorization_request": { "headers_to_add": [{ "key": "x-mesh", "value": "voile" }] },
        "authorization_response": {
            "allowed_upstream_headers": { "patterns": [one("exact", "x-up")] },
            "allowed_client_headers": { "patterns": [one("exact", "x-no")] },
            "allowed_client_headers_on_success": { "patterns": [one("exact", "x-yes")] },
        },
    });
    assert_eq!(all["http_service"], service);
}
