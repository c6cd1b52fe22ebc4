//! RequestAuthentication from YAML to verdicts, with real processes and real tokens: the trusted issuers, the
//! application's view, and key servers that are slow, down or lying.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use voile_testkit::prerequisites::{Prerequisite, require};

use crate::mesh::issuer::{Issuer, KeyServer, Say, seconds};
use crate::mesh::{
    Answer, Client, HTTP_PORT, Mesh, application, exchange, get, series, wait_until,
};

pub(crate) const ISSUER: &str = "https://issuer.example";

/// A RequestAuthentication for the server, with rules in flow style.
pub(crate) fn believes(rules: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: tokens, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{app: server}}}}, jwtRules: [{rules}]}}\n"
    )
}

/// An AuthorizationPolicy for the server.
fn policy(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{app: server}}}}, {spec}}}\n"
    )
}

/// A rule that brings its keys, with further fields.
pub(crate) fn rule(issuer: &Issuer, more: &str) -> String {
    let keys = Value::from(issuer.keys());
    format!("{{issuer: \"{}\", jwks: {keys}{more}}}", issuer.name)
}

pub(crate) fn set(mesh: &Mesh, text: &str) {
    let file = mesh.config().join("tokens.yaml");
    let new = mesh.config().join(".tokens.new");
    std::fs::write(&new, text).expect("policies");
    std::fs::rename(new, file).expect("in place");
}

/// Waits until every worker obeys: each gets the change by a message of its own.
fn in_force(what: &str, mut seen: impl FnMut() -> bool) {
    const IN_A_ROW: usize = 12; // connections go to the worker with the fewest, so that both get some of these
    wait_until(what, || (0..IN_A_ROW).all(|_| seen()));
}

/// Answer to a request with these header lines.
fn ask(mesh: &Mesh, path: &str, lines: &str) -> Answer {
    let head = format!("GET {path} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n{lines}\r\n");
    exchange(mesh.http(), head.as_bytes()).expect("an answer")
}

fn bearer(mesh: &Mesh, token: &str) -> Answer {
    ask(mesh, "/", &format!("Authorization: Bearer {token}\r\n"))
}

pub(crate) fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

/// Waits until tokens are looked at.
pub(crate) fn looked_at(mesh: &Mesh) {
    in_force("tokens are looked at", || {
        bearer(mesh, "no.token.x").status == 401
    });
}

/// Tokens as strangers send them, and the status of each while `issuer` is trusted for the audience `shop`.
fn tokens(issuer: &Issuer) -> Vec<(&'static str, String, u16)> {
    let impostor = Issuer::new(ISSUER, "one");
    let stranger = Issuer::new("https://stranger.example", "one");
    let now = seconds();
    let good = json!({ "aud": "shop" });
    let head = |alg: &str| json!({ "alg": alg, "kid": "one" });
    let signed = |head: &Value, name: &str, value: Value| {
        let mut claims = json!({ "iss": ISSUER, "sub": "anna", "aud": "shop", "exp": now + 3600 });
        claims[name] = value;
        issuer.sign(head, &claims)
    };
    let of = |alg: &str| signed(&head(alg), "x", json!(1));
    let mut many: Value = (0..1000)
        .map(|n| (format!("claim-{n}"), json!(n)))
        .collect();
    many["aud"] = json!("shop");
    let whole = issuer.token("anna", good.clone());
    let (unsigned, _) = whole.rsplit_once('.').expect("three parts");
    let ours = head("ES256");
    let other_key = json!({ "alg": "ES256", "kid": "two" });
    let both = signed(&ours, "aud", json!(["x", "shop"]));
    vec![
        ("a good one", whole.clone(), 200),
        ("several audiences", both, 200),
        ("a thousand claims", issuer.token("anna", many), 200),
        ("another audience", signed(&ours, "aud", json!("bank")), 403),
        ("no audience", signed(&ours, "aud", json!([])), 403),
        ("expired", signed(&ours, "exp", json!(now - 3600)), 401),
        ("not yet", signed(&ours, "nbf", json!(now + 3600)), 401),
        ("another's key", impostor.token("anna", good.clone()), 401),
        ("another issuer", stranger.token("anna", good), 401),
        ("unknown kid", signed(&other_key, "x", json!(1)), 401),
        ("none", of("none"), 401),
        ("confused algorithm", of("HS256"), 401),
        ("another curve", of("ES384"), 401),
        ("no signature", unsigned.to_owned(), 401),
        ("an empty signature", format!("{unsigned}."), 401),
        ("a cut signature", whole[..whole.len() - 4].to_owned(), 401),
        ("one more part", format!("{whole}.x"), 401),
        ("noise", "!..".to_owned(), 401),
    ]
}

#[test]
fn good_tokens_pass_and_others_are_refused_with_a_reason() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let issuer = Issuer::new(ISSUER, "one");
    set(&mesh, &believes(&rule(&issuer, ", audiences: [shop]")));
    looked_at(&mesh);
    for (what, token, status) in tokens(&issuer) {
        let answer = bearer(&mesh, &token);
        assert_eq!(answer.status, status, "{what}: {}", text(&answer));
        let head = answer.head.to_ascii_lowercase();
        let challenged = head.contains("www-authenticate: bearer realm=\"http://server/\"");
        assert_eq!(challenged, status == 401, "{what}: {head}");
    }
    assert_eq!(ask(&mesh, "/", "").status, 200, "no token is no claim");
    let basic = ask(&mesh, "/", "Authorization: Basic YTpi\r\n");
    assert_eq!(basic.status, 200, "another scheme");
    let preflight = "OPTIONS / HTTP/1.1\r\nHost: server\r\nConnection: close\r\nOrigin: https://a\r\n\
         Access-Control-Request-Method: GET\r\nAuthorization: Bearer x.y.z\r\n\r\n";
    let passed = exchange(mesh.http(), preflight.as_bytes()).expect("an answer");
    assert_eq!(
        passed.status, 200,
        "a preflight brings no token that counts"
    );
    let metrics = mesh.server_metrics();
    for outcome in ["verified", "refused"] {
        let label = format!("verdict=\"{outcome}\"");
        let seen = series(&metrics, "voile_tokens_total", &[&label]);
        assert!(seen > Some(0.0), "{metrics}");
    }
}

/// The same over HTTP/2, by a stranger's client.
fn over_http2(mesh: &Mesh, token: &str) {
    let url = format!("http://{}/a?b=c", mesh.inbound(HTTP_PORT));
    let curl = |more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-i", "--http2-prior-knowledge", "-H", "x-user: root"]);
        let output = require(Prerequisite::Curl, curl.args(more).arg(&url).output())?;
        Some(String::from_utf8_lossy(&output.stdout).to_ascii_lowercase())
    };
    if let Some(said) = curl(&["-H", &format!("authorization: Bearer {token}")]) {
        assert!(
            said.contains("x-user: anna") && !said.contains("root"),
            "{said}"
        );
        assert!(!said.contains("authorization:"), "{said}");
    }
    if let Some(said) = curl(&["-H", "authorization: Bearer x.y.z"]) {
        assert!(said.starts_with("http/2 401"), "{said}");
        assert!(said.contains("www-authenticate: bearer"), "{said}");
    }
    let grpc = "content-type: application/grpc";
    if let Some(said) = curl(&["-H", "authorization: Bearer x.y.z", "-H", grpc]) {
        assert!(said.contains("grpc-status: 16"), "{said}");
        assert!(said.contains("grpc-message: jwt"), "{said}");
    }
}

#[test]
fn the_application_sees_what_the_rule_says_and_no_forgery() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let issuer = Issuer::new(ISSUER, "one");
    let outputs = ", fromHeaders: [{name: authorization, prefix: \"Bearer \"}], fromParams: [token], fromCookies: [session], \
                   outputPayloadToHeader: x-payload, outputClaimToHeaders: [{header: x-user, claim: sub}]";
    set(&mesh, &believes(&rule(&issuer, outputs)));
    looked_at(&mesh);
    let token = issuer.token("anna", json!({}));
    let forged = "X-User: root\r\nx_user: root\r\nX-Payload: e30\r\nX-Other: stays\r\n";
    let payload = token.split('.').nth(1).expect("three parts");
    let seen = |path: &str, lines: &str| {
        let answer = ask(&mesh, path, lines);
        assert_eq!(answer.status, 200, "{path} {lines}");
        text(&answer).to_ascii_lowercase()
    };
    let nothing = seen("/", forged);
    assert!(
        !nothing.contains("root") && !nothing.contains("x-payload"),
        "{nothing}"
    );
    assert!(nothing.contains("x-other: stays"), "{nothing}");
    for (path, lines) in [
        (
            "/a?b=c".to_owned(),
            format!("Authorization: Bearer {token}\r\n{forged}"),
        ),
        (format!("/a?token={token}&b=c"), forged.to_owned()),
        (
            "/a?b=c".to_owned(),
            format!("Cookie: one=1; session={token}; two=2\r\n{forged}"),
        ),
    ] {
        let head = seen(&path, &lines);
        assert!(head.starts_with("get /a?b=c http/1.1"), "{head}");
        assert!(head.contains("x-user: anna\r\n"), "{head}");
        assert!(
            head.contains(&format!("x-payload: {}", payload.to_ascii_lowercase())),
            "{head}"
        );
        assert!(
            !head.contains("root") && !head.contains(&token.to_ascii_lowercase()),
            "{head}"
        );
        assert_eq!(head.matches("x-user").count(), 1, "{head}");
        if lines.starts_with("Cookie") {
            assert!(head.contains("cookie: one=1; two=2"), "{head}");
        }
    }
    over_http2(&mesh, &token);
    set(
        &mesh,
        &believes(&rule(&issuer, ", forwardOriginalToken: true")),
    );
    in_force("the token goes on", || {
        let answer = bearer(&mesh, &token);
        answer.status == 200 && text(&answer).contains(&token)
    });
}

#[test]
fn a_rule_that_demands_a_token_refuses_requests_without_one() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let issuer = Issuer::new(ISSUER, "one");
    set(&mesh, &believes(&rule(&issuer, ", presence: REQUIRED")));
    in_force("a token must be there", || {
        ask(&mesh, "/", "").status == 401
    });
    let refused = ask(&mesh, "/", "");
    assert_eq!(text(&refused), "Jwt is missing");
    let head = refused.head.to_ascii_lowercase();
    let challenge = "www-authenticate: bearer realm=\"http://server/\"\r\n";
    assert!(head.contains(challenge), "{head}");
    let good = issuer.token("anna", json!({}));
    assert_eq!(bearer(&mesh, &good).status, 200);
}

#[test]
fn claims_decide_in_authorization_policies() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let issuer = Issuer::new(ISSUER, "one");
    let other = Issuer::new("https://other.example", "two");
    let rules = format!("{}, {}", rule(&issuer, ""), rule(&other, ""));
    let policies = policy(
        "allow",
        &format!(
            "rules: [{{from: [{{source: {{requestPrincipals: [\"{ISSUER}/anna\"]}}}}]}}, \
             {{when: [{{key: \"request.auth.claims[groups]\", values: [admin]}}]}}, \
             {{when: [{{key: \"request.auth.claims[scope]\", values: [write]}}]}}]"
        ),
    );
    set(&mesh, &(believes(&rules) + &policies));
    in_force("both are in force", || ask(&mesh, "/", "").status == 403);
    for (token, status) in [
        (issuer.token("anna", json!({})), 200),
        (issuer.token("berta", json!({})), 403),
        (other.token("anna", json!({})), 403),
        (
            other.token("carla", json!({ "groups": ["user", "admin"] })),
            200,
        ),
        (
            other.token("carla", json!({ "groups": ["administrator"] })),
            403,
        ),
        (issuer.token("dora", json!({ "scope": "read write" })), 200),
        (issuer.token("dora", json!({ "scope": "read" })), 403),
        ("x.y.z".to_owned(), 401),
    ] {
        assert_eq!(bearer(&mesh, &token).status, status, "{token}");
    }
    // The same answer for a token that is remembered.
    let token = issuer.token("anna", json!({}));
    for _ in 0..20 {
        assert_eq!(bearer(&mesh, &token).status, 200);
    }
}

/// A mesh whose control plane asks for keys often.
fn with_key_server(first: Say) -> (Mesh, KeyServer) {
    with_key_server_and(first, "--jwks-loopback=allow")
}

fn with_key_server_and(first: Say, word: &str) -> (Mesh, KeyServer) {
    let server = KeyServer::start(first);
    let how = Client {
        control: ["--jwks-refresh", "100ms", word].map(str::to_owned).into(),
        ..Client::default()
    };
    let mesh = Mesh::start_as("PERMISSIVE", &how);
    application::reflect(mesh.http_app());
    (mesh, server)
}

fn fetching(server: &KeyServer) -> String {
    believes(&format!(
        "{{issuer: \"{ISSUER}\", jwksUri: \"{}\", timeout: 0.5s}}",
        server.uri()
    ))
}

fn status_page(mesh: &Mesh) -> String {
    text(&get(mesh.monitoring(), "/debug/status").expect("the page"))
}

#[test]
fn keys_are_not_fetched_from_the_control_planes_own_machine_unless_that_is_allowed() {
    let issuer = Issuer::new(ISSUER, "one");
    let keys = Say::Document(issuer.keys());
    let (mesh, server) = with_key_server_and(keys, "--jwks-loopback=refuse");
    set(&mesh, &fetching(&server));
    wait_until("it is said, or the server is asked", || {
        server.asked() > 0 || status_page(&mesh).contains("it is a loopback address")
    });
    assert_eq!(server.asked(), 0, "{}", status_page(&mesh));
    looked_at(&mesh);
    assert_eq!(bearer(&mesh, &issuer.token("anna", json!({}))).status, 401);
}

#[test]
fn tokens_without_known_keys_are_refused_until_the_keys_come() {
    let (mesh, server) = with_key_server(Say::Nothing);
    let issuer = Issuer::new(ISSUER, "one");
    let token = issuer.token("anna", json!({}));
    set(&mesh, &fetching(&server));
    for bad in [
        Say::Nothing,
        Say::Drip,
        Say::Status(500),
        Say::Document("<html>sign in</html>".to_owned()),
        Say::Document(r#"{"keys":[]}"#.to_owned()),
        Say::Document(" ".repeat(2_000_000)),
    ] {
        server.say(bad.clone());
        let asked = server.asked();
        wait_until("it was asked", || server.asked() > asked + 1);
        looked_at(&mesh);
        let answer = bearer(&mesh, &token);
        assert_eq!(answer.status, 401, "{bad:?}");
        assert!(text(&answer).contains("Jwks"), "{}", text(&answer));
        assert_eq!(ask(&mesh, "/", "").status, 200, "others are not concerned");
    }
    let page = status_page(&mesh);
    assert!(
        page.contains(&server.uri()) && page.contains("missing"),
        "{page}"
    );
    server.say(Say::Document(issuer.keys()));
    in_force("the keys are here", || bearer(&mesh, &token).status == 200);
    assert!(status_page(&mesh).contains("good"));
}

#[test]
fn good_keys_outlive_their_server_and_a_restart() {
    let issuer = Issuer::new(ISSUER, "one");
    let (mut mesh, server) = with_key_server(Say::Document(issuer.keys()));
    let token = issuer.token("anna", json!({}));
    set(&mesh, &fetching(&server));
    looked_at(&mesh);
    in_force("the keys are here", || bearer(&mesh, &token).status == 200);
    for bad in [
        Say::Status(503),
        Say::Nothing,
        Say::Document("{}".to_owned()),
    ] {
        server.say(bad);
        let asked = server.asked();
        wait_until("it was asked", || server.asked() > asked + 1);
        assert_eq!(bearer(&mesh, &token).status, 200);
    }
    mesh.kill_control();
    assert_eq!(bearer(&mesh, &token).status, 200);
    mesh.restart_control();
    let asked = server.asked();
    wait_until("it is asked again", || server.asked() > asked);
    wait_until("the kept keys are known", || {
        status_page(&mesh).contains("\"kept\"")
    });
    for _ in 0..20 {
        assert_eq!(bearer(&mesh, &token).status, 200);
    }
}

#[test]
fn keys_turn_while_requests_run_and_none_is_lost() {
    let old = Issuer::new(ISSUER, "old");
    let new = Issuer::new(ISSUER, "new");
    let (mesh, server) = with_key_server(Say::Document(old.keys()));
    set(&mesh, &fetching(&server));
    let (was, is) = (old.token("anna", json!({})), new.token("anna", json!({})));
    looked_at(&mesh);
    in_force("the old keys are here", || {
        bearer(&mesh, &was).status == 200
    });
    assert_eq!(bearer(&mesh, &is).status, 401);
    let over = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let (over, served) = (Arc::clone(&over), Arc::clone(&served));
            let (to, token) = (mesh.http(), was.clone());
            std::thread::spawn(move || {
                let head = format!(
                    "GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
                );
                while !over.load(Ordering::SeqCst) {
                    let answer = exchange(to, head.as_bytes()).expect("an answer");
                    assert_eq!(answer.status, 200, "{}", text(&answer));
                    served.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    // Both for a while, as issuers do, and again and again in another order.
    let both = |one: &Issuer, two: &Issuer| json!({ "keys": [one.key(), two.key()] }).to_string();
    for turn in 0..6 {
        let document = match turn % 2 {
            0 => both(&old, &new),
            _ => both(&new, &old),
        };
        server.say(Say::Document(document));
        let asked = server.asked();
        wait_until("it was asked", || server.asked() > asked + 1);
    }
    in_force("the new keys are here", || bearer(&mesh, &is).status == 200);
    let before = served.load(Ordering::SeqCst);
    wait_until("requests went on", || {
        served.load(Ordering::SeqCst) > before + 20
    });
    over.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.join().expect("no request was lost");
    }
    server.say(Say::Document(new.keys()));
    in_force("the old key is gone", || bearer(&mesh, &was).status == 401);
    assert_eq!(bearer(&mesh, &is).status, 200);
}

/// Answers `/stream` with a beginning, and with the rest when it is cut; all else at once.
fn stream_application(mesh: &Mesh) {
    application::serve(mesh.http_app(), |stream| {
        let mut reader = BufReader::new(stream);
        let Some((head, _)) = application::read_request(&mut reader) else {
            return;
        };
        if !head.starts_with("GET /stream") {
            let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = reader.get_mut().write_all(whole);
            return;
        }
        let begin = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello\n\r\n";
        let _ = reader.get_mut().write_all(begin);
        // Until it is cut.
        let _ = reader.read_line(&mut String::new());
    });
}

/// A stream that has begun.
fn begun(mesh: &Mesh, lines: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(mesh.http()).expect("the listener");
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).expect("an open socket");
    let head = format!("GET /stream HTTP/1.1\r\nHost: server\r\n{lines}\r\n");
    stream.write_all(head.as_bytes()).expect("written");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.contains("hello") {
        line.clear();
        let read = reader.read_line(&mut line).expect("an answer");
        assert!(read > 0, "it ends early");
    }
    // The end of the chunk.
    reader.read_line(&mut line).expect("its end");
    reader
}

#[test]
fn a_stream_is_cut_when_its_issuer_is_believed_no_longer() {
    let mesh = Mesh::start("PERMISSIVE");
    stream_application(&mesh);
    let issuer = Issuer::new(ISSUER, "one");
    let other = Issuer::new(ISSUER, "two");
    let more = Issuer::new("https://b", "b");
    set(&mesh, &believes(&rule(&issuer, "")));
    looked_at(&mesh);
    // It expires in a moment; that is looked at when a request begins.
    let short = issuer.token("a", json!({ "exp": seconds() - 55 }));
    let mut believed = begun(&mesh, &format!("Authorization: Bearer {short}\r\n"));
    wait_until("the token has expired for good", || {
        bearer(&mesh, &short).status == 401
    });
    // A further rule keeps the earlier issuers trusted.
    let both = format!("{}, {}", rule(&issuer, ""), rule(&more, ""));
    set(&mesh, &believes(&both));
    wait_until("the other rule is in force", || {
        let metrics = mesh.server_metrics();
        series(&metrics, "voile_token_rules", &[]) == Some(2.0)
    });
    let patience = |reader: &BufReader<TcpStream>, limit| {
        let limit = Some(Duration::from_millis(limit));
        reader
            .get_ref()
            .set_read_timeout(limit)
            .expect("an open socket");
    };
    patience(&believed, 300);
    let quiet = believed
        .read(&mut [0; 64])
        .expect_err("nothing happens to it");
    assert_eq!(quiet.kind(), std::io::ErrorKind::WouldBlock);
    patience(&believed, 20_000);
    set(&mesh, &believes(&rule(&other, "")));
    let mut rest = Vec::new();
    let ended = believed.read_to_end(&mut rest);
    let whole = rest.windows(5).any(|bytes| bytes == b"0\r\n\r\n");
    assert!(
        !whole,
        "a cut answer does not look complete: {ended:?} {rest:?}"
    );
}
