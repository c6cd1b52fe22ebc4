//! Routes in gRPC's words, and what gRPC has no word for.

use std::time::Duration;

use serde_json::{Value, json};
use voile_envoy::grpc::{Alternative, GrpcRoute, routes};
use voile_model::mesh::{Criterion, Subject, TextMatch};

/// `uri=^/a`, `h:NAME=…`, `-h:NAME=…`, `q:NAME=…`, `m=…`, `s=…`, `a=…`; after `=` the text is exact, or `^prefix`, `~regex`, `+` (there).
fn alternative(words: &str) -> Alternative {
    let mut made = Alternative::default();
    for word in words.split_whitespace() {
        let (what, value) = word.split_once('=').expect("a condition");
        let text = match value.split_at(1) {
            ("+", _) => TextMatch::Present,
            ("^", prefix) => TextMatch::Prefix(prefix.into()),
            ("~", regex) => TextMatch::Regex(regex.into()),
            _ => TextMatch::Exact(value.into()),
        };
        let (subject, criterion) = match what.split_once(':') {
            None if what == "uri" => (Subject::Uri, Criterion::Is(text)),
            None if what == "m" => (Subject::Method, Criterion::Is(text)),
            None if what == "s" => (Subject::Scheme, Criterion::Is(text)),
            None if what == "a" => (Subject::Authority, Criterion::Is(text)),
            Some(("h", name)) => (Subject::Header(name.into()), Criterion::Is(text)),
            Some(("-h", name)) => (Subject::WithoutHeader(name.into()), Criterion::IsNot(text)),
            Some(("q", name)) => (Subject::QueryParam(name.into()), Criterion::Is(text)),
            _ => panic!("{word}"),
        };
        made.criteria.insert(subject, criterion);
    }
    made
}

fn matches(words: &str) -> Result<Vec<Value>, String> {
    let route = GrpcRoute {
        matches: vec![alternative(words)],
        ..GrpcRoute::to("c")
    };
    let made = routes("r", &[route])?;
    let all = made["virtual_hosts"][0]["routes"]
        .as_array()
        .expect("routes")
        .clone();
    Ok(all.into_iter().map(|mut one| one["match"].take()).collect())
}

#[test]
fn what_grpc_can_ask_is_asked_and_what_is_known_of_every_call_is_not() {
    let header = |name: &str, value: Value| json!({ "name": name, "string_match": value });
    let missing = |name: &str| json!({ "name": name, "present_match": true, "invert_match": true });
    let other = |name: &str, value: &str| json!({ "name": name, "string_match": { "exact": value }, "invert_match": true });
    let rows = [
        ("uri=/s.S/M", json!([{ "path": "/s.S/M" }])),
        ("uri=^/s.S/", json!([{ "prefix": "/s.S/" }])),
        ("uri=~/s.*", json!([{ "safe_regex": { "regex": "/s.*" } }])),
        (
            "h:x=1",
            json!([{ "prefix": "/", "headers": [header("x", json!({ "exact": "1" }))] }]),
        ),
        ("m=POST", json!([{ "prefix": "/" }])),
        ("m=^P", json!([{ "prefix": "/" }])),
        // No call is any of these.
        ("m=GET", json!([])),
        ("q:a=+", json!([])),
        // Missing, or another.
        (
            "-h:x=1",
            json!([{ "prefix": "/", "headers": [missing("x")] }, { "prefix": "/", "headers": [other("x", "1")] }]),
        ),
        (
            "-h:x=+",
            json!([{ "prefix": "/", "headers": [missing("x")] }]),
        ),
    ];
    for (words, wanted) in rows {
        assert_eq!(matches(words).map(Value::from), Ok(wanted), "{words}");
    }
    assert_eq!(matches("-h:x=1 -h:y=1 -h:z=1").map(|all| all.len()), Ok(8));
}

#[test]
fn what_grpc_cannot_ask_refuses_all_routes_with_its_reason() {
    for (words, wanted) in [
        ("s=http", "`scheme`: gRPC routes cannot match this"),
        ("a=web", "`authority`: gRPC routes cannot match this"),
        ("m=~P.*", "`method`: gRPC routes cannot match methods"),
        (
            "h:grpc-timeout=+",
            "`headers[grpc-timeout]`: gRPC routes cannot match this header",
        ),
        (
            "h:user-agent=+",
            "`headers[user-agent]`: gRPC routes cannot match this header",
        ),
        (
            "-h:trace-bin=+",
            "`withoutHeaders[trace-bin]`: gRPC routes cannot match this header",
        ),
        (
            "-h:x=~a*",
            "`withoutHeaders[x]`: Istio also evaluates the expression for a missing `x`",
        ),
        (
            "-h:a=1 -h:b=1 -h:c=1 -h:d=1 -h:e=1",
            "at most 4 headers can be expressed, not 5",
        ),
    ] {
        let said = matches(words).expect_err(words);
        assert!(
            said.starts_with("route 0: ") && said.contains(wanted),
            "{words}: {said}"
        );
    }
}

#[test]
fn shares_and_times_are_in_grpcs_words() {
    let route = GrpcRoute {
        clusters: vec![("a".to_owned(), 3), ("b".to_owned(), 1)],
        timeout: Some(Duration::from_millis(1500)),
        ..GrpcRoute::to("")
    };
    let made = routes("r", &[route]).expect("routes");
    let action = &made["virtual_hosts"][0]["routes"][0]["route"];
    assert_eq!(
        *action,
        json!({
            "weighted_clusters": { "clusters": [{ "name": "a", "weight": 3 }, { "name": "b", "weight": 1 }] },
            "max_stream_duration": { "max_stream_duration": "1.500s" },
        })
    );
}
