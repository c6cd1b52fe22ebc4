//! Many sets of policies in one stock Envoy: each set is two routes, picked by a header, one with its rules for requests and
//! one with those for connections. Every answer says what each filter found.
//!
//! Without TLS the peer's identity comes by a header that becomes filter state, as in Istio's waypoints; over TLS it is the
//! certificate's. The connection's addresses come by the PROXY protocol, the client's also by X-Forwarded-For.

use serde_json::{Map, Value, json};
use voile_envoy::{CUSTOM_PREFIX, Layer, PeerIdentity, Translation, custom_filter, token_filter};
use voile_model::mesh::authorization::StringMatch;
use voile_model::mesh::{
    ExtAuthzProvider, ExtAuthzTransport, HttpAuthorizer, ProviderService, TokenRule,
};
use voile_model::{Hostname, Port};
use voile_policy::authorization::{Action, Policy};

use crate::stock::{Certificates, loopback, typed};
use crate::translation::tokens::bare;

/// The filter with the rules under which a provider is asked.
const CUSTOM: &str = "custom";
/// The header by which a request says what the provider shall say of it.
pub(crate) const GRANT: &str = "x-grant";
/// The header by which the provider says that it was asked.
pub(crate) const ASKED: &str = "x-asked";

/// Providers of CUSTOM policies that the generator knows.
const PROVIDERS: [&str; 2] = ["ext", "other"];

/// One of the filters with rules.
struct Filter {
    name: &'static str,
    /// Prefix of its results.
    prefix: String,
    actions: Vec<Action>,
    dry_run: bool,
    /// Its rules decide nothing.
    shadow: bool,
}

fn filters() -> Vec<Filter> {
    let custom = || PROVIDERS.map(|name| Action::Custom(name.into())).to_vec();
    let filter = |name, actions, dry_run, shadow| Filter {
        name,
        prefix: match name {
            CUSTOM => CUSTOM_PREFIX.to_owned(),
            name => format!("{name}_"),
        },
        actions,
        dry_run,
        shadow,
    };
    vec![
        filter("dry_custom", custom(), true, true),
        filter("dry_deny", vec![Action::Deny], true, true),
        filter("dry_allow", vec![Action::Allow], true, true),
        // Istio asks in shadow whether the provider must be asked.
        filter(CUSTOM, custom(), false, true),
        filter("audit", vec![Action::Audit], false, false),
        filter("deny", vec![Action::Deny], false, false),
        filter("allow", vec![Action::Allow], false, false),
    ]
}

/// Rules of several actions as one.
fn rules(set: &[Policy], translation: Translation, filter: &Filter) -> Option<Value> {
    let mut all: Option<Value> = None;
    for action in &filter.actions {
        let rules = match action {
            Action::Custom(provider) if !filter.dry_run => translation.custom_rules(set, provider),
            action => translation.rules(set, action, filter.dry_run),
        };
        let Some(mut rules) = rules else { continue };
        match &mut all {
            None => all = Some(rules),
            Some(all) => {
                let more = rules["policies"].as_object_mut().map(std::mem::take);
                let policies = all["policies"].as_object_mut();
                policies.expect("policies").extend(more.unwrap_or_default());
            }
        }
    }
    all
}

/// The rules of one set at one layer, as a route's own.
fn overrides(set: &[Policy], translation: Translation) -> Value {
    let mut all = Map::new();
    for filter in filters() {
        let Some(rules) = rules(set, translation, &filter) else {
            continue;
        };
        let (field, prefix) = match filter.shadow {
            true => ("shadow_rules", "shadow_rules_stat_prefix"),
            false => ("rules", "rules_stat_prefix"),
        };
        let config = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBACPerRoute",
            "rbac": { field: rules, prefix: filter.prefix },
        });
        all.insert(filter.name.to_owned(), config);
    }
    all.into()
}

fn routes(sets: &[&[Policy]], peer: PeerIdentity) -> Value {
    let layers = [("h", Layer::Http), ("t", Layer::Tcp)];
    let route = |number: usize, set: &[Policy], (letter, layer): (&str, Layer)| {
        let name = format!("{letter}{number}");
        json!({
            "match": { "prefix": "/", "headers": [{ "name": "x-set", "string_match": { "exact": name } }] },
            "direct_response": { "status": 200 },
            "typed_per_filter_config": overrides(set, Translation { layer, peer }),
        })
    };
    let numbered = sets.iter().enumerate();
    numbered
        .flat_map(|(number, set)| layers.map(|layer| route(number, set, layer)))
        .collect()
}

/// The one service that is all providers.
fn provider() -> ExtAuthzProvider {
    let exact = |name: &str| vec![StringMatch::Exact(name.into())];
    ExtAuthzProvider {
        service: ProviderService {
            namespace: None,
            host: Hostname::new("authorizer.test").expect("a name"),
            port: Port::new(80).expect("a port"),
        },
        timeout: None,
        fail_open: false,
        status_on_error: Some(500),
        body: None,
        transport: ExtAuthzTransport::Http(HttpAuthorizer {
            request_headers: exact(GRANT),
            downstream_on_allow: exact(ASKED),
            downstream_on_deny: exact(ASKED),
            ..HttpAuthorizer::default()
        }),
    }
}

/// The filter that makes a header the peer's identity.
fn filter_state() -> Value {
    let principal = json!({
        "object_key": "io.istio.peer_principal",
        "factory_key": "envoy.string",
        "format_string": {
            "text_format_source": { "inline_string": "%REQ(x-principal)%" },
            "omit_empty_values": true,
        },
        "skip_if_empty": true,
    });
    typed(
        "state",
        "extensions.filters.http.set_filter_state.v3.Config",
        json!({ "on_request_headers": [principal] }),
    )
}

/// Every answer, whoever gives it, says what the filters found.
fn told() -> Value {
    let header = |key: &str, value: &str| json!({ "header": { "key": key, "value": value } });
    let at_least = json!({ "op": "GE", "value": { "default_value": 0, "runtime_key": "none" } });
    json!({ "mappers": [{
        "filter": { "status_code_filter": { "comparison": at_least } },
        "headers_to_add": [
            header("x-rbac", "%DYNAMIC_METADATA(envoy.filters.http.rbac)%"),
            header("x-details", "%RESPONSE_CODE_DETAILS%"),
        ],
    }] })
}

fn manager(sets: &[&[Policy]], keys: &str, peer: PeerIdentity) -> Value {
    // Tokens of any issuer, as a source of claims.
    let any_issuer = TokenRule {
        forward_original: true,
        ..bare("")
    };
    let mut http_filters = vec![filter_state()];
    http_filters.extend(token_filter(&[(&any_issuer, keys)]));
    let rbac = |filter: Filter| {
        typed(
            filter.name,
            "extensions.filters.http.rbac.v3.RBAC",
            json!({}),
        )
    };
    for filter in filters() {
        let asks = filter.name == CUSTOM;
        http_filters.push(rbac(filter));
        if asks {
            let provider = provider();
            http_filters.extend(PROVIDERS.map(|name| custom_filter(name, &provider, "authorizer")));
        }
    }
    http_filters.push(typed(
        "router",
        "extensions.filters.http.router.v3.Router",
        json!({}),
    ));
    typed(
        "http",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        json!({
            "stat_prefix": "test",
            "use_remote_address": true,
            "xff_num_trusted_hops": 1,
            "normalize_path": true,
            "local_reply_config": told(),
            "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": routes(sets, peer) }] },
            "http_filters": http_filters,
        }),
    )
}

/// Name of the listener for these connections.
pub(crate) fn listener_name(tls: bool, ipv6: bool) -> String {
    let family = if ipv6 { 6 } else { 4 };
    format!("{}{family}", if tls { "tls" } else { "plain" })
}

/// A listener for each way to connect.
pub(crate) fn listeners<'a>(
    sets: impl Iterator<Item = &'a [Policy]>,
    keys: &str,
    certificates: &Certificates,
    ipv6: bool,
) -> Vec<Value> {
    let proxy = typed(
        "proxy",
        "extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
        json!({}),
    );
    let inspector = typed(
        "inspector",
        "extensions.filters.listener.tls_inspector.v3.TlsInspector",
        json!({}),
    );
    let sets: Vec<&[Policy]> = sets.collect();
    let plain = json!({ "filters": [manager(&sets, keys, PeerIdentity::FilterState)] });
    let tls = json!({
        "filters": [manager(&sets, keys, PeerIdentity::Certificate)],
        "transport_socket": certificates.transport_socket(),
    });
    let mut all = Vec::new();
    for ipv6 in [false, true].into_iter().take(1 + usize::from(ipv6)) {
        for (is_tls, chain) in [(false, &plain), (true, &tls)] {
            all.push(json!({
                "name": listener_name(is_tls, ipv6),
                "address": loopback(ipv6),
                "listener_filters": [proxy, inspector],
                "filter_chains": [chain],
            }));
        }
    }
    all
}
