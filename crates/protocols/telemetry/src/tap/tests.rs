//! Filters, bounds, and the questions of clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::task::Poll;
use std::time::SystemTime;

use super::*;
use crate::access_log::{NoFields, PolicyMarks, TlsFacts};

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 80);

fn question(query: &str) -> TapQuestion {
    parsed(query).expect("a question")
}

fn parsed(query: &str) -> Result<TapQuestion, String> {
    TapQuestion::parse(&PageRequest {
        method: http::Method::GET,
        path: "/tap".to_owned(),
        query: query.to_owned(),
        open_metrics: false,
        local: None,
    })
}

fn http<'a>(method: &'a str, path: &'a str, code: u16) -> HttpLogFields<'a> {
    HttpLogFields {
        method,
        path,
        authority: "shop",
        version: "HTTP/1.1",
        code,
        request_head: 0,
        response_head: 0,
        grpc_status: None,
        fields: &NoFields,
        request_duration: None,
        response_duration: Some(Duration::from_micros(1500)),
        decision_duration: Some(Duration::from_micros(100)),
        queue_duration: Some(Duration::from_micros(200)),
        upstream_duration: Some(Duration::from_micros(1200)),
        attempts: 1,
        trace_id: "",
    }
}

fn entry<'a>(http: Option<HttpLogFields<'a>>, details: &'a str) -> AccessLogEntry<'a> {
    AccessLogEntry {
        http,
        start: SystemTime::UNIX_EPOCH,
        duration: Duration::from_micros(2250),
        flags: "-",
        details,
        termination: "",
        upstream_failure: "",
        downstream_failure: "",
        received: 1,
        sent: 2,
        upstream: Some(ADDRESS),
        upstream_local: None,
        cluster: "inbound|80||",
        local: ADDRESS,
        remote: ADDRESS,
        server_name: "",
        route: "default",
        tls: Some(TlsFacts {
            version: "TLSv1.3",
            cipher: "",
            peer: "spiffe://cluster.local/ns/shop/sa/client",
            own: "",
        }),
        marks: PolicyMarks::default(),
    }
}

async fn answer(tap: &Tap, query: &str) -> Value {
    let question = question(query);
    tap.begin(&question).expect("room");
    serde_json::from_str(&tap.answer(&question).await).expect("JSON")
}

#[test]
fn a_filter_passes_what_it_names_and_nothing_else() {
    let denied = "rbac_access_denied_matched_policy[ns[shop]-policy[no]-rule[0]]";
    let mut plaintext = entry(None, "filter_chain_not_found");
    plaintext.termination = "plaintext refused: PeerAuthentication is STRICT";
    let entries = [
        entry(Some(http("GET", "/cart/1", 200)), "via_upstream"),
        entry(Some(http("POST", "/pay", 503)), "via_upstream"),
        entry(Some(http("GET", "/admin", 403)), denied),
        entry(None, ""),
        plaintext,
    ];
    for (query, passed) in [
        ("", [true; 5]),
        ("path=/cart", [true, false, false, false, false]),
        ("path=%2Fcart%2F1", [true, false, false, false, false]),
        ("method=post", [false, true, false, false, false]),
        ("status=5xx", [false, true, false, false, false]),
        ("status=403", [false, false, true, false, false]),
        ("denied", [false, false, true, false, true]),
        ("from=ns/shop/sa/client", [true; 5]),
        ("from=ns/other/", [false; 5]),
        ("path=/cart&status=503", [false; 5]),
    ] {
        let filter = question(query).filter;
        assert_eq!(
            entries.each_ref().map(|one| filter.passes(one, None)),
            passed,
            "{query}"
        );
    }
}

#[test]
fn of_a_node_proxy_a_filter_passes_the_pods_that_it_names() {
    let mut denied = entry(None, "");
    denied.flags = "DENY";
    denied.termination = "denied by policy shop/no";
    for (query, passed) in [
        ("", true),
        ("denied", true),
        ("workload=shop", true),
        ("workload=shop/web", true),
        ("workload=shop%2Fweb-0", true),
        ("workload=other&workload=shop/web", true),
        ("workload=shop/we", false),
        ("workload=sho", false),
        ("workload=other/web", false),
    ] {
        let end = NodeEnd {
            pod: "shop/web-0",
            service: "web.shop.svc.cluster.local",
        };
        let filter = question(query).filter;
        assert_eq!(filter.passes(&denied, Some(&end)), passed, "{query}");
        assert!(
            filter.passes(&denied, None),
            "{query}: a sidecar has one pod"
        );
    }
}

#[test]
fn a_wrong_parameter_is_named_with_what_it_must_be() {
    for (query, reason) in [
        (
            "status=7xx",
            "status=7xx: expected a status such as 503, or a class such as 5xx",
        ),
        (
            "status=x",
            "status=x: expected a status such as 503, or a class such as 5xx",
        ),
        ("after=-1", "after=-1: expected a whole number"),
        ("path=%ff", "path=%ff: not UTF-8"),
        (
            "paht=/",
            "no parameter `paht`; there are session, after, wait, path, method, status, from, denied, workload",
        ),
    ] {
        assert_eq!(parsed(query).expect_err(query), reason);
    }
}

#[tokio::test]
async fn a_client_gets_each_record_once_and_an_answer_that_was_lost_again() {
    let tap = Tap::default();
    assert_eq!(
        answer(&tap, "session=7").await["records"],
        serde_json::json!([])
    );
    tap.offer(
        TelemetrySide::Server,
        &entry(Some(http("GET", "/a", 200)), "via_upstream"),
        None,
    );
    let first = answer(&tap, "session=7").await;
    assert_eq!(
        answer(&tap, "session=7").await,
        first,
        "the answer was lost"
    );
    assert_eq!(
        first,
        serde_json::json!({"next": 1, "missed": 0, "records": [{
            "time": "1970-01-01T00:00:00Z", "side": "inbound", "duration_ms": 2.25, "response_ms": 1.5,
            "proxy_ms": 0.1, "queue_ms": 0.2, "upstream_ms": 1.2,
            "details": "via_upstream", "cluster": "inbound|80||", "route": "default", "tls": "TLSv1.3",
            "from": "spiffe://cluster.local/ns/shop/sa/client", "method": "GET", "path": "/a", "authority": "shop",
            "protocol": "HTTP/1.1", "client": "127.0.0.1:80", "destination": "127.0.0.1:80",
            "endpoint": "127.0.0.1:80", "bytes_received": 1, "bytes_sent": 2, "status": 200, "attempts": 1,
        }]})
    );
    tap.offer(TelemetrySide::Client, &entry(None, ""), None);
    let second = answer(&tap, "session=7&after=1").await;
    assert_eq!(
        (&second["next"], &second["records"][0]["side"]),
        (&2.into(), &"outbound".into())
    );
    assert_eq!(second["records"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_question_waits_for_a_record_that_it_wants() {
    let tap = std::sync::Arc::new(Tap::default());
    let asked = question("session=1&wait=20&status=503");
    tap.begin(&asked).expect("room");
    let waiting = std::sync::Arc::clone(&tap);
    let answered = tokio::spawn(async move { waiting.answer(&asked).await });
    tokio::task::yield_now().await;
    tap.offer(
        TelemetrySide::Server,
        &entry(Some(http("GET", "/other", 200)), ""),
        None,
    );
    tap.offer(
        TelemetrySide::Server,
        &entry(Some(http("GET", "/wanted", 503)), ""),
        None,
    );
    let page = answered.await.expect("an answer");
    assert!(
        page.contains("/wanted") && !page.contains("/other"),
        "{page}"
    );
}

#[tokio::test]
async fn what_a_slow_client_misses_is_counted_and_the_buffer_stays_within_its_bounds() {
    let tap = Tap::default();
    answer(&tap, "session=1").await;
    let long = "x".repeat(16 * MAX_FIELD_BYTES);
    for _ in 0..2 * MAX_RECORDS {
        tap.offer(
            TelemetrySide::Server,
            &entry(Some(http("GET", &long, 200)), ""),
            None,
        );
    }
    let (mut kept, mut missed, mut bytes, mut after) = (0, 0, 0, 0);
    loop {
        let page = answer(&tap, &format!("session=1&after={after}")).await;
        let size = page.to_string().len();
        assert!(size < MAX_ANSWER_BYTES + MAX_ANSWER_BYTES / 8, "{size}");
        let records = page["records"].as_array().map_or(0, Vec::len);
        if records == 0 {
            break;
        }
        kept += records as u64;
        missed += page["missed"].as_u64().expect("a number");
        bytes += size;
        after = page["next"].as_u64().expect("a number");
    }
    assert!(bytes < MAX_BYTES + MAX_BYTES / 8, "{kept} records");
    assert_eq!(kept + missed, 2 * MAX_RECORDS as u64);
    assert!(kept > 100, "{kept} records");
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_makes_room_for_the_next() {
    let tap = Tap::default();
    for session in 0..2 * MAX_SESSIONS {
        let asked = question(&format!("session={session}&wait=20"));
        tap.begin(&asked).expect("room");
        let mut waiting = Box::pin(tap.answer(&asked));
        let first = std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx)));
        assert!(first.await.is_pending(), "there is no record");
        assert_eq!(tap.len(), 1);
        drop(waiting);
    }
    assert!(tap.is_empty());
    assert_eq!(tap.next_end(), None);
}

#[tokio::test]
async fn further_sessions_are_refused_and_one_that_nobody_asks_for_ends() {
    let tap = Tap::default();
    for session in 0..MAX_SESSIONS {
        answer(&tap, &format!("session={session}")).await;
    }
    let refused = tap.begin(&question("session=99")).expect_err("no room");
    assert!(
        refused.starts_with("4 others watch this proxy"),
        "{refused}"
    );
    tap.begin(&question("session=0")).expect("it is known");
    assert!(tap.next_end().is_some() && tap.is_watched());
    tap.sessions()
        .iter_mut()
        .for_each(|one| one.asked -= SESSION_IDLE);
    // A node proxy does not ask when a session ends.
    tap.offer(TelemetrySide::Server, &entry(None, ""), None);
    assert!(!tap.is_watched());
    assert_eq!(tap.next_end(), None);
    answer(&tap, "session=99").await;
}
