//! Random sets of CUSTOM, DENY and ALLOW policies with rules about tokens between them, and random requests for them.

use std::net::SocketAddr;

use serde_json::{Value, json};
use voile_testkit::authorization::Random;

use super::super::{policy, provider};
use super::ISSUER;
use crate::mesh::issuer::{Issuer, seconds};

/// Lists of an HTTP authorization service: the headers that it gets, and the headers that it may write.
const LISTS: &str = ", pathPrefix: /check, includeRequestHeadersInCheck: [x-ask, x-role, x-user, x-payload, x-token], \
    headersToUpstreamOnAllow: [authorization, x-role, x-user], headersToDownstreamOnAllow: [x-seen], \
    headersToDownstreamOnDeny: [x-why]";

/// One set of resources.
pub(crate) struct Set {
    pub(crate) resources: String,
    /// Some rule is about tokens, so that only token rules may write their headers.
    pub(crate) tokens: bool,
    /// A CUSTOM rule asks what a token's rule takes away or writes: ours asks in both readings, Istio in one.
    pub(crate) asks_more: bool,
    /// Its service is asked over HTTP.
    pub(crate) http: bool,
}

fn conditions(all: &[&str]) -> String {
    let rules: Vec<String> = all.iter().map(|rule| format!("{{{rule}}}")).collect();
    rules.join(", ")
}

/// A few of these, at least so many.
fn some<'a>(random: &mut Random, least: usize, most: usize, all: &[&'a str]) -> Vec<&'a str> {
    let count = least + random.below(most - least + 1);
    (0..count).map(|_| random.of(all)).collect()
}

/// The services that sets may ask: over gRPC, over HTTP.
pub(crate) type Services = [SocketAddr; 2];

/// The set of this number; what denies `/mark-NUMBER` shows that it is in force.
pub(crate) fn set(random: &mut Random, services: Services, issuer: &Issuer, number: usize) -> Set {
    let http = random.one_in(3);
    let (asks, asks_more) = custom(random, services, http);
    let mut resources = asks;
    let tokens = !random.one_in(4);
    if tokens {
        resources += &believes(random, issuer);
    }
    resources += &others(random, number);
    Set {
        resources,
        tokens,
        asks_more,
        http,
    }
}

/// A provider, and the policy that asks it; whether its rule asks what tokens change.
fn custom(random: &mut Random, [grpc, over_http]: Services, http: bool) -> (String, bool) {
    let fields = random.of(&[
        "",
        ", failOpen: true",
        ", statusOnError: \"503\"",
        ", failOpen: true, statusOnError: \"429\"",
        ", includeRequestBodyInCheck: {maxRequestBytes: 64, allowPartialMessage: true}",
    ]);
    let provider = match http {
        true => provider("envoyExtAuthzHttp", over_http, &format!("{LISTS}{fields}")),
        false => provider("envoyExtAuthzGrpc", grpc, fields),
    };
    let plain = [
        "",
        "to: [{operation: {paths: [\"/a*\"]}}]",
        "to: [{operation: {notPaths: [\"/free*\"]}}]",
        "to: [{operation: {methods: [POST]}}]",
        "when: [{key: \"request.headers[x-role]\", values: [guest]}]",
        "when: [{key: \"request.headers[x-role]\", notValues: [guest]}]",
        "when: [{key: \"request.headers[authorization]\", values: [\"*\"]}]",
    ];
    let twofold = [
        "when: [{key: \"request.headers[authorization]\", notValues: [\"*\"]}]",
        "when: [{key: \"request.headers[x-user]\", values: [anna]}]",
    ];
    let asks_more = random.one_in(4);
    let mut rules = some(random, 1, 2, &plain);
    if asks_more {
        rules = vec![random.of(&twofold)];
    }
    let rules = format!("rules: [{}]", conditions(&rules));
    let ask = format!("action: CUSTOM, provider: {{name: ext}}, {rules}");
    let mut ask = policy("ask", &ask);
    if random.one_in(10) {
        ask = ask.replace(
            "{name: ask, namespace: shop}",
            "{name: ask, namespace: shop, annotations: {istio.io/dry-run: \"true\"}}",
        );
    }
    (provider + &ask, asks_more)
}

/// A RequestAuthentication for the server.
fn believes(random: &mut Random, issuer: &Issuer) -> String {
    let keys = Value::from(issuer.keys());
    let from = random.of(&["", ", fromHeaders: [{name: x-token}]"]);
    let keep = random.one_in(2);
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: tokens, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{app: server}}}}, jwtRules: [{{issuer: \"{ISSUER}\", jwks: {keys}, \
         forwardOriginalToken: {keep}, outputPayloadToHeader: x-payload, \
         outputClaimToHeaders: [{{header: x-user, claim: sub}}]{from}}}]}}\n"
    )
}

/// DENY and ALLOW policies.
fn others(random: &mut Random, number: usize) -> String {
    // Only the rules under test may deny a request with a mark.
    let denials = [
        "when: [{key: \"request.headers[x-role]\", values: [guest]}]",
        "when: [{key: \"request.auth.claims[sub]\", values: [berta]}]",
        "from: [{source: {notRequestPrincipals: [\"*\"]}}]",
        "when: [{key: \"request.headers[authorization]\", values: [\"*\"]}]",
        "when: [{key: \"request.headers[x-user]\", values: [\"*\"]}]",
    ]
    .map(|rule| format!("to: [{{operation: {{notPaths: [\"/mark-*\"]}}}}], {rule}"));
    let closed = "to: [{operation: {paths: [\"/a/closed\"]}}]";
    let denials: Vec<&str> = denials.iter().map(|rule| &**rule).chain([closed]).collect();
    let mark = format!("to: [{{operation: {{paths: [\"/mark-{number}\"]}}}}]");
    let mut denied = some(random, 0, 2, &denials);
    denied.push(&mark);
    let mut resources = policy(
        "deny",
        &format!("action: DENY, rules: [{}]", conditions(&denied)),
    );
    if random.one_in(2) {
        let principal = format!("from: [{{source: {{requestPrincipals: [\"{ISSUER}/anna\"]}}}}]");
        let allowances = [
            &*principal,
            "when: [{key: \"request.headers[x-role]\", values: [admin]}]",
            "to: [{operation: {paths: [\"/a*\"]}}]",
            "when: [{key: \"request.headers[x-user]\", values: [anna]}]",
        ];
        let mut allowed = some(random, 1, 2, &allowances);
        allowed.push("to: [{operation: {paths: [\"/mark-*\"]}}]");
        resources += &policy("allow", &format!("rules: [{}]", conditions(&allowed)));
    }
    resources
}

/// A token, good or not.
fn token(random: &mut Random, issuer: &Issuer) -> String {
    match random.below(6) {
        0 | 1 => issuer.token("anna", json!({})),
        2 => issuer.token("berta", json!({})),
        3 => issuer.token("anna", json!({ "exp": seconds() - 1_000 })),
        4 => issuer.token("anna", json!({ "iss": "https://another.example" })),
        _ => "x.y.z".to_owned(),
    }
}

/// A request with all of its lines but the one that names the proxy.
pub(crate) fn request(random: &mut Random, issuer: &Issuer) -> String {
    let method = random.of(&["GET", "GET", "POST"]);
    let path = random.of(&[
        "/a/open",
        "/a/closed",
        "/free/x",
        "/b",
        "/a/../b",
        "/a?token=t&b=1",
    ]);
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: server\r\n");
    for _ in 0..random.of(&[0, 1, 1, 1, 2]) {
        head += &match random.one_in(5) {
            true => format!("X-Token: {}\r\n", token(random, issuer)),
            false => format!("Authorization: Bearer {}\r\n", token(random, issuer)),
        };
    }
    let role = random.of(&[
        "",
        "",
        "x-role: guest\r\n",
        "x-role: admin\r\n",
        "X-Role: guest\r\nx-role: admin\r\n",
    ]);
    let forged = random.of(&[
        "",
        "",
        "x-user: anna\r\n",
        "x-user: root\r\nx-payload: e30\r\n",
    ]);
    let wish = match random.below(10) {
        0..=2 => "allow".to_owned(),
        3 => "deny".to_owned(),
        4 => "page".to_owned(),
        5 => "fail".to_owned(),
        6 => "change".to_owned(),
        7 => format!("write authorization=Bearer {}", token(random, issuer)),
        8 => random
            .of(&["write x-role=guest", "write x-role=admin"])
            .to_owned(),
        _ => "write x-user=root".to_owned(),
    };
    head += &format!("{role}{forged}x-group: one\r\nx-ask: {wish}\r\n");
    match method {
        "POST" => head + "Content-Length: 3\r\n\r\nabc",
        _ => head + "\r\n",
    }
}
