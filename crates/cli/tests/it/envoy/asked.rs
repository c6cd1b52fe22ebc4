//! Tokens and external services at an Envoy that asks our control plane for everything: keys that are fetched and change, a service
//! that is asked over gRPC and over HTTP, and that order in which Istio has them. Our sidecar, asked the same, says the same.

use super::served::{bootstrap, both_ways, serve, status};
use super::stage::{HTTP, OURS, Stage, THEIRS};
use crate::mesh::exchange;
use crate::mesh::issuer::{Issuer, KeyServer, Say};
use crate::policies::authorization::in_force;
use crate::policies::custom::authorizer::{Authorizer, http};
use crate::policies::custom::{free, over_http, provider};

const ISSUER: &str = "https://issuer.example";

/// Tokens of the issuer are believed, who has one may see what is private, and some paths are asked about.
fn rules(keys: &KeyServer, provider: &str) -> String {
    let security = "---\napiVersion: security.istio.io/v1\nkind:";
    format!(
        "{provider}\
         {security} RequestAuthentication\nmetadata: {{name: tokens, namespace: shop}}\nspec: {{jwtRules: [{{issuer: \"{ISSUER}\", \
         jwksUri: \"{}\", outputClaimToHeaders: [{{header: x-user, claim: sub}}]}}]}}\n\
         {security} AuthorizationPolicy\nmetadata: {{name: private, namespace: shop}}\nspec: {{action: DENY, rules: [{{from: \
         [{{source: {{notRequestPrincipals: [\"{ISSUER}/anna\"]}}}}], to: [{{operation: {{ports: [\"{HTTP}\"], paths: [\"/private*\"]}}}}]}}]}}\n\
         {security} AuthorizationPolicy\nmetadata: {{name: ask, namespace: shop}}\nspec: {{action: CUSTOM, provider: {{name: ext}}, \
         rules: [{{to: [{{operation: {{ports: [\"{HTTP}\"], paths: [\"*/asked\", /deny, /let]}}}}]}}]}}\n",
        keys.uri()
    )
}

/// Answer of the other pod's application to a request with these fields.
fn ask(stage: &Stage, pod: u8, path: &str, fields: &str) -> (u16, String) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: other\r\n{fields}Connection: close\r\n\r\n");
    let answer = exchange(stage.calls(pod, HTTP), head.as_bytes()).ok();
    answer.map_or((0, String::new()), |answer| {
        let body = String::from_utf8_lossy(&answer.body).to_lowercase();
        (answer.status, answer.head.to_lowercase() + &body)
    })
}

fn bearer(issuer: &Issuer, subject: &str) -> String {
    let token = issuer.token(subject, serde_json::json!({}));
    format!("authorization: Bearer {token}\r\n")
}

/// Waits until an answer is this one, at both.
fn becomes(stage: &Stage, path: &str, fields: &str, wanted: u16) {
    for pod in [OURS, THEIRS] {
        in_force(&format!("{path} is {wanted} from pod {pod}"), || {
            ask(stage, pod, path, fields).0 == wanted
        });
    }
}

/// Rows of token, external decision and path: the status of each, and the fields that the
/// application sees.
fn by_tokens_and_over_grpc(stage: &Stage, service: &Authorizer, [one, two]: [&Issuer; 2]) {
    for pod in [OURS, THEIRS] {
        let rows = [
            ("/private", bearer(one, "bob"), 403, ""),
            ("/a", bearer(two, "anna"), 401, ""),
            (
                "/a",
                bearer(one, "bob") + "x-user: root\r\n",
                200,
                "x-user: bob",
            ),
            ("/asked", "x-ask: allow\r\n".to_owned(), 200, "get /asked"),
            ("/private/asked", "x-ask: allow\r\n".to_owned(), 403, ""),
            // The external service may add the token, which the proxy then verifies.
            (
                "/private/asked",
                format!(
                    "x-ask: write {}",
                    bearer(one, "anna").replacen(": ", "=", 1)
                ),
                200,
                "x-user: anna",
            ),
        ];
        for (path, fields, wanted, seen) in rows {
            let (status, text) = ask(stage, pod, path, &fields);
            assert_eq!(status, wanted, "{path} {fields} from pod {pod}: {text}");
            assert!(
                text.contains(seen),
                "{path} {fields} from pod {pod}: {text}"
            );
            assert!(!text.contains("root"), "forged: {text}");
        }
        let asked = http(&service.about("/private/asked"));
        assert_eq!(
            asked.headers["x-ask"].split('=').next(),
            Some("write authorization")
        );
        service.take();
    }
}

/// The same service's like over HTTP: its no in its words, its yes in headers.
fn over_http_too(stage: &Stage, keys: &KeyServer) {
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let heard = over_http::authorizer(listener);
    let over_http = provider(over_http::KIND, at, over_http::LISTS);
    stage.set("rules.yaml", &rules(keys, &over_http));
    becomes(stage, "/deny", "", 401);
    for pod in [OURS, THEIRS] {
        let (_, refused) = ask(stage, pod, "/deny", "");
        assert!(
            refused.contains("x-why: rain") && refused.ends_with("rain"),
            "{refused}"
        );
        let (status, let_in) = ask(stage, pod, "/let", "x-told: 1\r\nx-untold: 2\r\n");
        assert_eq!(status, 200, "{let_in}");
        assert!(let_in.contains("x-user-mail: a@b"), "{let_in}");
        let (told, _) = over_http::about(&heard, "/check/let");
        assert!(
            told.contains("x-told: 1") && !told.contains("x-untold"),
            "{told}"
        );
    }
}

#[test]
fn tokens_and_external_services_are_the_same_at_envoy_as_at_our_sidecar() {
    let Some(program) = super::found() else {
        return;
    };
    let (one, two) = (Issuer::new(ISSUER, "one"), Issuer::new(ISSUER, "two"));
    let keys = KeyServer::start(Say::Status(503));
    let often = ["--jwks-refresh", "100ms"].map(str::to_owned);
    let stage = Stage::controlled("STRICT", &often);
    serve(&stage);
    let envoy = stage.envoy(&program, &bootstrap(&stage, &[]));
    both_ways(&stage);

    let listener = free();
    let at = listener.local_addr().expect("an address");
    let service = Authorizer::start(listener);
    let over_grpc = provider("envoyExtAuthzGrpc", at, "");
    stage.set("rules.yaml", &rules(&keys, &over_grpc));
    // Envoy refuses tokens that cannot be verified yet; all other rules are in force.
    becomes(&stage, "/private", "", 403);
    becomes(&stage, "/a", &bearer(&one, "anna"), 401);
    let limits = || status(&stage)["translation_limits"]["shop/theirs"].to_string();
    assert!(limits().contains("keys-missing"), "{}", limits());
    keys.say(Say::Document(one.keys()));
    becomes(&stage, "/private", &bearer(&one, "anna"), 200);
    becomes(&stage, "/asked", "x-ask: deny\r\n", 403);
    by_tokens_and_over_grpc(&stage, &service, [&one, &two]);

    keys.say(Say::Document(two.keys()));
    becomes(&stage, "/private", &bearer(&two, "anna"), 200);
    becomes(&stage, "/private", &bearer(&one, "anna"), 401);

    over_http_too(&stage, &keys);
    assert_eq!(envoy.counted("update_rejected"), 0, "{}", envoy.said());
    let limits = limits();
    assert!(
        !limits.contains("unknown-provider") && !limits.contains("keys-missing"),
        "{limits}"
    );
}
