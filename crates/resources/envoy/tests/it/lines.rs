//! Several lines of one header field: whether a stock Envoy makes one value of them before its rules see it, field by field,
//! and that our engine does the same of the same fields.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde_json::json;
use voile_envoy::{Layer, PeerIdentity, Translation};
use voile_policy::authorization::{
    Action, Attribute, Engine, HttpFacts, Policy, PolicyName, PolicyRule, RequestFacts, Term,
    Verdict,
};

use crate::stock::{self, Call, Certificates, Envoy, plain_listener, typed};

/// Fields that come with requests, or did, or look as if they could: joined ones and others, but none that Envoy takes out.
const FIELDS: &str = "
    accept accept-charset accept-encoding accept-language access-control-request-headers access-control-request-method
    access-control-request-private-network age allow alt-used apikey authorization baggage cache-control content-disposition
    content-encoding content-language content-location content-type cookie date dnt early-data expect forwarded from
    grpc-accept-encoding grpc-encoding grpc-status grpc-timeout if-match if-modified-since if-none-match if-range
    if-unmodified-since last-modified link max-forwards origin pragma priority proxy-authorization range referer
    sec-fetch-mode server set-cookie traceparent tracestate user-agent vary via warning x-api-key
    x-auth-request-email x-b3-traceid x-client-trace-id x-custom x-envoy-attempt-count x-envoy-decorator-operation
    x-envoy-downstream-service-cluster x-envoy-downstream-service-node x-envoy-external-address x-envoy-is-timeout-retry
    x-envoy-original-host x-envoy-original-path  
    x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-prefix x-forwarded-proto x-forwarded-user
    x-original-url x-real-ip x-request-id x-token x-user
";
const LINES: [[&str; 2]; 4] = [["one", "two"], ["one", ""], ["", "two"], ["one", "one"]];
const VALUES: [&str; 8] = [
    "one", "two", "one,two", "one, two", "one,", ",two", "one,one", "*",
];

/// A rule for each field and value, of which the path says which is meant.
fn rule(field: &str, number: usize, value: &str) -> PolicyRule {
    let term = |attribute, value: String| {
        Term::parse(attribute, "shop", &[value], &[]).expect("a good value")
    };
    let header = Attribute::RequestHeader(field.into());
    PolicyRule {
        to: vec![vec![term(Attribute::Path, format!("/{number}/{field}"))]],
        when: vec![term(header, value.to_owned())],
        ..PolicyRule::default()
    }
}

fn policy() -> Policy {
    let fields = FIELDS.split_whitespace();
    let rules = fields.flat_map(|field| {
        let numbered = VALUES.iter().enumerate();
        numbered.map(move |(number, value)| rule(field, number, value))
    });
    Policy {
        name: PolicyName {
            namespace: "shop".into(),
            name: "lines".into(),
        },
        origin: None,
        action: Action::Allow,
        dry_run: false,
        rules: rules.collect(),
    }
}

fn listener(policy: &Policy) -> serde_json::Value {
    let translation = Translation {
        layer: Layer::Http,
        peer: PeerIdentity::FilterState,
    };
    let rules = translation.rules(std::slice::from_ref(policy), &Action::Allow, false);
    let rbac = typed(
        "rbac",
        "extensions.filters.http.rbac.v3.RBAC",
        json!({ "rules": rules.expect("rules") }),
    );
    let router = typed(
        "router",
        "extensions.filters.http.router.v3.Router",
        json!({}),
    );
    let routes = json!([{ "match": { "prefix": "/" }, "direct_response": { "status": 200 } }]);
    let manager = typed(
        "http",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        json!({
            "stat_prefix": "test",
            "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": routes }] },
            "http_filters": [rbac, router],
        }),
    );
    plain_listener(&manager)
}

#[test]
fn lines_are_one_value_for_the_fields_that_a_stock_envoy_joins() {
    let Some(program) = stock::found() else {
        return;
    };
    let policy = policy();
    let engine = Engine::new(std::slice::from_ref(&policy));
    let envoy = Envoy::start(&program, &[listener(&policy)], &[]);
    let certificates = Certificates::new();
    let localhost = IpAddr::from(Ipv4Addr::LOCALHOST);
    let to = SocketAddr::new(localhost, 80);
    let call = Call::plain(to);
    let mut asking = envoy.connect(&call, &certificates);
    let (mut joined, mut wrong) = (0, Vec::new());
    for field in FIELDS.split_whitespace() {
        for lines in LINES {
            for (number, value) in VALUES.iter().enumerate() {
                let path = format!("/{number}/{field}");
                let [first, second] = lines;
                let text = format!(
                    "GET {path} HTTP/1.1\r\nhost: app\r\n{field}: {first}\r\n{field}: {second}\r\n\r\n"
                );
                let theirs = asking.ask_one(&text).status == 200;
                let headers = lines
                    .map(|line| (field.to_owned(), line.to_owned()))
                    .to_vec();
                let facts = RequestFacts {
                    source: None,
                    source_ip: localhost,
                    remote_ip: localhost,
                    destination: to,
                    sni: None,
                    http: Some(HttpFacts {
                        authority: Some(b"app"),
                        method: b"GET",
                        path: path.as_bytes(),
                        headers: &headers,
                        claims: None,
                    }),
                };
                let ours = matches!(engine.decide(&facts).verdict, Verdict::Allowed(_));
                joined += usize::from(theirs && value.contains("one,two"));
                if ours != theirs {
                    wrong.push(format!(
                        "{field} {lines:?} is {value}: Envoy {theirs}, ours {ours}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}: {}", wrong.len(), wrong.join("\n"));
    assert!(joined > 30, "{joined} are joined");
}
