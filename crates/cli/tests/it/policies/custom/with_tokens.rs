//! CUSTOM policies beside RequestAuthentication, in Istio's order. The external service sees the request with its token, and
//! may add one. Then the proxy verifies the token, and DENY and ALLOW policies judge the result.

use std::cell::Cell;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::authorizer::{Authorizer, http};
use super::{ask, custom, free, in_force, policy, provider, set, text};
use crate::mesh::issuer::Issuer;
use crate::mesh::{Answer, HTTP_PORT, Mesh, application, series};

const KIND: &str = "envoyExtAuthzGrpc";
const ISSUER: &str = "https://issuer.example";

/// A RequestAuthentication for the server, whose outputs are `x-user` and `x-payload`.
fn believes(issuer: &Issuer) -> String {
    let keys = Value::from(issuer.keys());
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: tokens, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{app: server}}}}, jwtRules: [{{issuer: \"{ISSUER}\", jwks: {keys}, \
         outputPayloadToHeader: x-payload, outputClaimToHeaders: [{{header: x-user, claim: sub}}]}}]}}\n"
    )
}

struct Court {
    mesh: Mesh,
    authorizer: Authorizer,
    issuer: Issuer,
    /// First part of every set of resources.
    usual: String,
    /// Sets that were put in force.
    sets: Cell<usize>,
}

impl Court {
    /// A mesh that believes an issuer, with these policies beside.
    fn begin(application: impl FnOnce(&Mesh), policies: &str) -> Self {
        let mesh = Mesh::start("PERMISSIVE");
        application(&mesh);
        let listener = free();
        let at = listener.local_addr().expect("an address");
        let issuer = Issuer::new(ISSUER, "one");
        let court = Self {
            authorizer: Authorizer::start(listener),
            usual: provider(KIND, at, "") + &believes(&issuer),
            sets: Cell::new(0),
            mesh,
            issuer,
        };
        court.set(policies);
        court
    }

    /// Puts other policies in force. After it returns, no worker uses the old ones.
    fn set(&self, policies: &str) {
        // A marker that no other set has: what it denies shows that all of the set is in force.
        self.sets.set(self.sets.get() + 1);
        let mark = format!("/mark-{}", self.sets.get());
        let marker = policy(
            "marker",
            &format!("action: DENY, rules: [{{to: [{{operation: {{paths: [\"{mark}\"]}}}}]}}]"),
        );
        set(&self.mesh, &(self.usual.clone() + policies + &marker));
        in_force("the policies are in force", || {
            self.get(&mark, "x-ask: allow\r\n").status == 403
        });
    }

    fn get(&self, path: &str, lines: &str) -> Answer {
        let lines = lines.trim_end();
        let head = format!("GET {path} HTTP/1.1\r\n{lines}");
        ask(&self.mesh, head.trim_end())
    }

    fn bearer(&self, subject: &str) -> String {
        let token = self.issuer.token(subject, json!({}));
        format!("authorization: Bearer {token}\r\n")
    }

    /// Returns true if the service was asked about a path.
    fn was_asked(&self, path: &str) -> bool {
        let asked = self.authorizer.asked();
        asked.iter().any(|asked| http(asked).path == path)
    }
}

/// A CUSTOM policy whose one rule asks this of the HTTP port.
fn asks(rule: &str) -> String {
    custom(&format!(
        "rules: [{{to: [{{operation: {{ports: [\"{HTTP_PORT}\"], notPaths: [\"/mark-*\"]}}}}]{rule}}}]"
    ))
}

fn reflected(mesh: &Mesh) {
    application::reflect(mesh.http_app());
}

#[test]
fn whoever_is_asked_sees_the_token_and_nothing_forged() {
    let court = Court::begin(reflected, &asks(""));
    let bearer = court.bearer("anna");
    let forged = "x-user: root\r\nX_User: root\r\nx-payload: e30\r\n";
    let answer = court.get("/one", &format!("x-ask: allow\r\n{forged}{bearer}"));
    assert_eq!(answer.status, 200);
    let told = http(&court.authorizer.about("/one"));
    assert_eq!(
        format!("authorization: {}\r\n", told.headers["authorization"]),
        bearer
    );
    let mut told = told.headers.iter();
    let claimed = told.find(|(name, value)| name.contains("payload") || value.contains("root"));
    assert_eq!(claimed, None);
    let seen = text(&answer).to_ascii_lowercase();
    assert!(seen.contains("x-user: anna\r\n"), "{seen}");
    assert!(
        !seen.contains("root") && !seen.contains("authorization"),
        "{seen}"
    );
    // A yes of the service cannot write a header that only tokens write.
    let lines = format!("x-ask: write x-user=root\r\n{bearer}");
    let seen = text(&court.get("/two", &lines)).to_ascii_lowercase();
    assert!(
        seen.contains("x-user: anna\r\n") && !seen.contains("x-user: root"),
        "{seen}"
    );
    let seen = text(&court.get("/three", "x-ask: write x-user=root\r\n")).to_ascii_lowercase();
    assert!(!seen.contains("x-user: "), "{seen}");
}

#[test]
fn a_token_that_whoever_is_asked_brings_is_the_requests() {
    let allow = format!(
        "rules: [{{from: [{{source: {{requestPrincipals: [\"{ISSUER}/anna\"]}}}}]}}, {{to: [{{operation: {{paths: [\"/mark-*\"]}}}}]}}]"
    );
    let court = Court::begin(reflected, &(asks("") + &policy("allow", &allow)));
    let brings = |subject: &str| {
        let token = court.issuer.token(subject, json!({}));
        format!("x-ask: write authorization=Bearer {token}\r\n")
    };
    assert_eq!(court.get("/", "x-ask: allow\r\n").status, 403);
    let answer = court.get("/", &brings("anna"));
    assert_eq!(answer.status, 200, "{}", text(&answer));
    let seen = text(&answer).to_ascii_lowercase();
    assert!(seen.contains("\r\nx-user: anna\r\n"), "{seen}");
    assert!(!seen.contains("\r\nauthorization:"), "{seen}");
    assert_eq!(court.get("/", &brings("berta")).status, 403);
    let spoilt = "x-ask: write authorization=Bearer x.y.z\r\n";
    assert_eq!(court.get("/", spoilt).status, 401);
    // In place of a bad one, too; and a bad one that is left is refused after the service was asked.
    let lines = format!("{}authorization: Bearer x.y.z\r\n", brings("anna"));
    assert_eq!(court.get("/", &lines).status, 200);
    let lines = "x-ask: allow\r\nauthorization: Bearer x.y.z\r\n";
    assert_eq!(court.get("/left", lines).status, 401);
    assert!(court.was_asked("/left"));
    let metrics = court.mesh.server_metrics();
    let label = ["verdict=\"verified\""];
    let verified = series(&metrics, "voile_tokens_total", &label);
    assert_eq!(verified, Some(3.0), "each request counts once: {metrics}");
}

#[test]
fn policies_judge_what_goes_on_and_not_what_came() {
    let deny =
        "action: DENY, rules: [{when: [{key: \"request.headers[x-role]\", values: [guest]}]}]";
    let court = Court::begin(reflected, &(asks("") + &policy("deny", deny)));
    assert_eq!(court.get("/", "x-ask: allow\r\n").status, 200);
    assert_eq!(court.get("/", "x-ask: write x-role=guest\r\n").status, 403);
    let promoted = "x-role: guest\r\nx-ask: write x-role=admin\r\n";
    assert_eq!(court.get("/", promoted).status, 200);
    assert_eq!(
        court.get("/", "x-role: guest\r\nx-ask: deny\r\n").status,
        403
    );
}

/// As in Istio: a session's new cookie must not be lost because the session may not do this one thing.
#[test]
fn what_a_yes_adds_to_an_answer_is_there_where_others_refuse() {
    let deny = "action: DENY, rules: [{to: [{operation: {paths: [\"/closed\"]}}]}]";
    let court = Court::begin(reflected, &(asks("") + &policy("deny", deny)));
    for (path, status, words) in [
        ("/closed", 403, "RBAC: access denied"),
        ("/?access_token=x.y.z", 401, "Jwt"),
    ] {
        let answer = court.get(path, "x-ask: change\r\n");
        assert_eq!(answer.status, status, "{path}");
        assert!(text(&answer).starts_with(words), "{path}: {answer:?}");
        let head = answer.head.to_ascii_lowercase();
        assert!(head.contains("x-seen: yes\r\n"), "{path}: {head}");
        let types: Vec<&str> = head.matches("content-type:").collect();
        assert_eq!(types.len(), 1, "{path}: {head}");
        assert!(head.contains("content-type: text/authorized\r\n"), "{head}");
        assert_eq!(head.contains("www-authenticate:"), status == 401, "{head}");
        let length = format!("content-length: {}\r\n", answer.body.len());
        assert!(head.contains(&length), "{path}: {head}");
    }
    let answer = court.get("/closed", "x-ask: allow\r\n");
    assert!(!answer.head.to_ascii_lowercase().contains("x-seen"));
}

/// Rules that ask what a token's rule takes away or writes, and requests without and with one: whether the service is asked.
/// Claims themselves such a rule may not ask (V0112), as in Istio.
#[test]
fn a_rule_asks_wherever_istio_would_and_where_it_means_to() {
    let court = Court::begin(reflected, &asks(""));
    for (number, (rule, without, with)) in [
        // The token's own header is there when Istio asks, and gone when policies judge.
        ("authorization]\", values: [\"*\"]", false, true),
        ("authorization]\", notValues: [\"*\"]", true, true),
        // A header made of its claims is absent when Istio asks, and present when policies judge.
        ("x-user]\", values: [anna]", false, true),
        ("x-user]\", notValues: [anna]", true, true),
        ("x-user]\", values: [berta]", false, false),
    ]
    .into_iter()
    .enumerate()
    {
        court.set(&asks(&format!(
            ", when: [{{key: \"request.headers[{rule}}}]"
        )));
        for (lines, asked) in [(String::new(), without), (court.bearer("anna"), with)] {
            let path = format!("/{number}/{}", lines.is_empty());
            let answer = court.get(&path, &format!("x-ask: deny\r\n{lines}"));
            assert_eq!(
                (answer.status, court.was_asked(&path)),
                if asked { (403, true) } else { (200, false) },
                "{rule} {lines}"
            );
        }
    }
}

#[test]
fn a_stream_by_a_token_that_was_brought_outlives_a_change_that_allows_it() {
    let allow = |who: &str| {
        let rule = format!(
            "rules: [{{from: [{{source: {{requestPrincipals: [\"{ISSUER}/{who}\"]}}}}]}}, {{to: [{{operation: {{paths: [\"/mark-*\"]}}}}]}}]"
        );
        asks("") + &policy("allow", &rule)
    };
    let court = Court::begin(streams, &allow("anna"));
    let token = court.issuer.token("anna", json!({}));
    let mut stream = TcpStream::connect(court.mesh.http()).expect("a connection");
    let patience = Some(Duration::from_secs(20));
    stream.set_read_timeout(patience).expect("an open socket");
    let head = format!(
        "GET /stream HTTP/1.1\r\nHost: server\r\nx-ask: write authorization=Bearer {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.contains("hello") {
        line.clear();
        assert!(reader.read_line(&mut line).expect("an answer") > 0);
    }
    reader.read_line(&mut line).expect("the end of the chunk");
    // Another set that says the same of it.
    court.set(&allow("anna"));
    let quiet = Some(Duration::from_millis(300));
    reader.get_ref().set_read_timeout(quiet).expect("a socket");
    let nothing = reader.read(&mut [0; 64]).expect_err("it goes on");
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    reader
        .get_ref()
        .set_read_timeout(patience)
        .expect("a socket");
    court.set(&allow("berta"));
    let mut rest = Vec::new();
    let ended = reader.read_to_end(&mut rest);
    let whole = rest.windows(5).any(|bytes| bytes == b"0\r\n\r\n");
    assert!(!whole, "cut: {ended:?} {rest:?}");
}

/// Begins an answer to `/stream` that never ends; all else is answered at once.
fn streams(mesh: &Mesh) {
    application::serve(mesh.http_app(), |stream| {
        let mut reader = BufReader::new(stream);
        let Some((head, _)) = application::read_request(&mut reader) else {
            return;
        };
        let begin = match head.starts_with("GET /stream") {
            true => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello\n\r\n",
            false => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        };
        let _ = reader.get_mut().write_all(begin.as_bytes());
        if head.starts_with("GET /stream") {
            // Until it is cut.
            let _ = reader.read_line(&mut String::new());
        }
    });
}
