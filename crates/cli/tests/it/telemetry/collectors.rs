//! Collectors that are services of the mesh, behind a sidecar of their own and so reached by mutual TLS. Everything
//! arrives. A collector that is away, stalls or dies costs a bounded queue and a count of dropped entries, and no
//! request.

use std::io::{BufReader, Write as _};
use std::net::TcpStream;

use super::receiver::{Manner, Receiver};
use super::{apply, collectors, tag};
use crate::mesh::{Mesh, application, read_answer, series, wait_until};

/// Sends requests over one connection; each must be answered.
struct Caller(BufReader<TcpStream>);

impl Caller {
    fn new(mesh: &Mesh) -> Self {
        Self(BufReader::new(
            TcpStream::connect(mesh.http()).expect("a connection"),
        ))
    }

    fn ask(&mut self, path: &str, more: &str) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{more}\r\n");
        self.0
            .get_mut()
            .write_all(request.as_bytes())
            .expect("sent");
        assert_eq!(read_answer(&mut self.0).expect("an answer").status, 200);
    }
}

fn dropped(metrics: &str) -> (f64, f64) {
    let logs = series(
        metrics,
        "voile_access_log_dropped_total",
        &["sink=\"grpc\""],
    );
    let spans = series(metrics, "voile_spans_dropped_total", &[]);
    (logs.expect("told"), spans.expect("told"))
}

#[test]
fn entries_and_spans_of_both_sidecars_reach_a_collector_behind_mutual_tls() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let receiver = Receiver::start(mesh.tcp_app(), Manner::Takes);
    apply(&mesh, "all-of-it", &collectors(100.0, "all-of-it"));
    let mut caller = Caller::new(&mesh);
    for _ in 0..50 {
        caller.ask("/books", "x-big: small\r\n");
    }
    let entries = receiver.entries("/books", 100);
    for node in ["sidecar~", "client.shop", "server.shop"] {
        assert!(
            entries.iter().any(|(id, _)| id.contains(node)),
            "{node}: {:?}",
            entries[0].0
        );
    }
    for (id, entry) in &entries {
        let (request, response) = (entry.request.as_ref(), entry.response.as_ref());
        let request = request.expect("a request");
        assert_eq!(request.request_headers["x-big"], "small");
        assert_eq!(
            response.and_then(|response| response.response_code),
            Some(200)
        );
        let common = entry.common_properties.as_ref().expect("what is common");
        let tls = common.tls_properties.is_some();
        assert_eq!(
            tls,
            id.contains("server.shop"),
            "the caller's side was mutual TLS"
        );
    }
    wait_until("a span of each request and side", || {
        let spans = receiver.all_spans();
        let of = |service: &str| {
            let all = spans.iter().filter(|(name, span)| {
                name == service && tag(&span.attributes, "http.url").ends_with("/books")
            });
            all.count()
        };
        (of("client.shop"), of("server.shop")) == (50, 50)
    });
    for metrics in [mesh.client_metrics(), mesh.server_metrics()] {
        assert_eq!(dropped(&metrics), (0.0, 0.0));
    }
    // It was mutual TLS: the collector's own sidecar knows who called, and nothing else gets in under STRICT.
    let opened = series(
        &mesh.server_metrics(),
        "istio_tcp_connections_opened_total",
        &[
            "source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"",
            "connection_security_policy=\"mutual_tls\"",
        ],
    );
    assert!(opened.is_some_and(|opened| opened >= 2.0), "{opened:?}");
}

#[test]
fn a_collector_that_is_away_costs_what_it_would_have_got_and_gets_the_rest_when_it_comes() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    apply(&mesh, "away", &collectors(100.0, "away"));
    let mut caller = Caller::new(&mesh);
    for _ in 0..20 {
        caller.ask("/lost", "");
    }
    wait_until("what nobody took is counted", || {
        let (logs, spans) = dropped(&mesh.client_metrics());
        caller.ask("/lost", "");
        logs >= 20.0 && spans >= 20.0
    });
    let receiver = Receiver::start(mesh.tcp_app(), Manner::Takes);
    let mut asked = 0;
    wait_until("it gets what comes from now on", || {
        caller.ask("/kept", "");
        asked += 1;
        receiver.all_spans().len() > 1 && !receiver.entries("/kept", 0).is_empty()
    });
}

#[test]
fn a_collector_that_stands_still_fills_a_bounded_queue_and_delays_nobody() {
    /// Longest text that an entry takes, so that few requests fill the queue of 4 MiB.
    const BIG: usize = 8 * 1024;
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let receiver = Receiver::start(mesh.tcp_app(), Manner::Stalls);
    apply(&mesh, "still", &collectors(0.0, "still"));
    let big = format!("x-big: {}\r\n", "b".repeat(BIG));
    let mut caller = Caller::new(&mesh);
    wait_until("it is called", || {
        caller.ask("/still", "");
        receiver.connections() > 0
    });
    wait_until("the queue is full", || {
        for _ in 0..100 {
            caller.ask("/still", &big);
        }
        dropped(&mesh.client_metrics()).0 > 0.0
    });
    receiver.become_one_that(Manner::Takes);
    wait_until("what waited arrives, and what comes now", || {
        caller.ask("/after", "");
        !receiver.entries("/still", 0).is_empty() && !receiver.entries("/after", 0).is_empty()
    });
}

#[test]
fn a_collector_that_dies_again_and_again_loses_records_that_are_counted() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let receiver = Receiver::start(mesh.tcp_app(), Manner::Takes);
    apply(&mesh, "dying", &collectors(100.0, "dying"));
    let mut caller = Caller::new(&mesh);
    wait_until("it takes", || {
        caller.ask("/before", "");
        !receiver.entries("/before", 0).is_empty() && !receiver.all_spans().is_empty()
    });
    receiver.become_one_that(Manner::Dies);
    wait_until("what it did not take is counted", || {
        caller.ask("/dead", "");
        let (logs, spans) = dropped(&mesh.client_metrics());
        logs > 0.0 && spans > 0.0
    });
    receiver.become_one_that(Manner::Takes);
    wait_until("it takes again", || {
        caller.ask("/again", "");
        !receiver.entries("/again", 0).is_empty()
    });
}
