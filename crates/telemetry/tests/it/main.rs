//! What a scraper reads, from what workers counted.

mod collectors;
mod contexts;
mod lines;

use std::time::Duration;

use voile_telemetry::{Labels, Peer, Reporter, Scrape, Security, Service, Shard};

fn labels(client: &str) -> Labels {
    Labels {
        reporter: Reporter::Destination,
        source: Peer {
            workload: client.to_owned(),
            ..Peer::default()
        },
        destination: Peer {
            workload: "server".to_owned(),
            canonical_service: "server".to_owned(),
            ..Peer::default()
        },
        service: Service {
            host: "server.shop.svc.cluster.local".to_owned(),
            name: "server".to_owned(),
            namespace: "shop".to_owned(),
        },
        protocol: "http",
        security: Security::MutualTls,
    }
}

fn count(shard: &mut Shard, labels: &Labels, code: u16, micros: u64) {
    let id = shard.series(labels);
    shard.request(id, (code, "-"), Duration::from_micros(micros), (10, 1000));
}

#[test]
fn grpc_calls_are_told_apart_by_their_status_and_their_messages_are_counted() {
    let mut shard = Shard::default();
    let id = shard.series(&Labels {
        protocol: "grpc",
        ..labels("client")
    });
    for (status, messages) in [(Some(0), (1, 1)), (Some(0), (3, 10)), (Some(14), (1, 0))] {
        shard.grpc(id, (200, "-", status), Duration::ZERO, (1, 1), messages);
    }
    count(&mut shard, &labels("client"), 200, 1);
    let page = page(&[&shard]);
    let value = |name: &str, status: &str| {
        let line = page.lines().find(|line| {
            line.starts_with(name)
                && line.contains("request_protocol=\"grpc\"")
                && line.contains(&format!("grpc_response_status=\"{status}\""))
        });
        line.and_then(|line| line.rsplit(' ').next())
            .map(str::to_owned)
    };
    for (name, status, expected) in [
        ("istio_requests_total", "0", "2"),
        ("istio_requests_total", "14", "1"),
        ("istio_request_messages_total", "0", "4"),
        ("istio_response_messages_total", "0", "11"),
        ("istio_response_messages_total", "14", "0"),
    ] {
        assert_eq!(
            value(name, status).as_deref(),
            Some(expected),
            "{name} {status}"
        );
    }
    let http = |line: &&str| {
        line.starts_with("istio_request_messages_total") && line.contains("protocol=\"http\"")
    };
    assert_eq!(page.lines().filter(http).count(), 0, "messages are gRPC's");
}

fn page(shards: &[&Shard]) -> String {
    let mut scrape = Scrape::default();
    shards.iter().for_each(|shard| scrape.add(shard.snapshot()));
    scrape.render()
}

#[test]
fn two_workers_requests_are_one_series_with_istios_labels() {
    let (mut one, mut two) = (Shard::default(), Shard::default());
    count(&mut one, &labels("client"), 200, 400);
    count(&mut two, &labels("client"), 200, 700);
    let page = page(&[&one, &two]);
    let wanted = "istio_requests_total{reporter=\"destination\",source_workload=\"client\",\
        source_canonical_service=\"unknown\",source_canonical_revision=\"unknown\",source_workload_namespace=\"unknown\",\
        source_principal=\"unknown\",source_app=\"unknown\",source_version=\"unknown\",source_cluster=\"unknown\",\
        destination_workload=\"server\",destination_workload_namespace=\"unknown\",destination_principal=\"unknown\",\
        destination_app=\"unknown\",destination_version=\"unknown\",\
        destination_service=\"server.shop.svc.cluster.local\",destination_canonical_service=\"server\",\
        destination_canonical_revision=\"latest\",destination_service_name=\"server\",\
        destination_service_namespace=\"shop\",destination_cluster=\"unknown\",request_protocol=\"http\",\
        connection_security_policy=\"mutual_tls\",response_code=\"200\",grpc_response_status=\"\",response_flags=\"-\"} 2";
    assert_eq!(
        page.lines().filter(|line| *line == wanted).count(),
        1,
        "{page}"
    );
    for (bound, cumulative) in [("0.5", 1), ("1", 2), ("+Inf", 2)] {
        let end = format!("le=\"{bound}\"}} {cumulative}");
        let found = |line: &&str| {
            line.starts_with("istio_request_duration_milliseconds_bucket") && line.ends_with(&end)
        };
        assert_eq!(page.lines().filter(found).count(), 1, "{bound}: {page}");
    }
    let sum = |line: &&str| {
        line.starts_with("istio_request_duration_milliseconds_sum") && line.ends_with(" 1.1")
    };
    assert_eq!(page.lines().filter(sum).count(), 1, "{page}");
}

#[test]
fn every_family_has_one_head_and_every_sample_a_head() {
    let mut shard = Shard::default();
    count(&mut shard, &labels("a"), 200, 1);
    count(&mut shard, &labels("b"), 503, 1);
    let page = page(&[&shard]);
    let mut typed = Vec::new();
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ") {
            typed.push(name.split(' ').next().unwrap_or_default());
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            assert!(
                typed.last().is_some_and(|head| name.starts_with(head)),
                "{line}"
            );
        }
    }
    let unique: std::collections::BTreeSet<_> = typed.iter().collect();
    assert_eq!(unique.len(), typed.len(), "{typed:?}");
}

#[test]
fn a_name_with_quotes_and_line_feeds_stays_in_its_quotes() {
    let mut shard = Shard::default();
    count(&mut shard, &labels("a\"b\\c\nd"), 200, 1);
    assert!(page(&[&shard]).contains(r#"source_workload="a\"b\\c\nd","#));
}

#[test]
fn series_beyond_the_limit_are_counted_as_other() {
    let mut shard = Shard::with_limit(2);
    for client in ["a", "b", "c", "d", "a"] {
        count(&mut shard, &labels(client), 200, 1);
    }
    let page = page(&[&shard]);
    assert!(
        page.contains("voile_metric_series_overflowed_total 2\n"),
        "{page}"
    );
    let other = |line: &&str| {
        line.starts_with("istio_requests_total") && line.contains("source_workload=\"other\"")
    };
    let line = page.lines().find(other).expect("the series of the others");
    assert!(line.ends_with(" 2"), "{line}");
}

#[test]
fn an_upstream_that_invents_codes_stays_bounded() {
    let mut shard = Shard::default();
    for code in 100..1000 {
        count(&mut shard, &labels("a"), code, 1);
    }
    let page = page(&[&shard]);
    let lines = page
        .lines()
        .filter(|line| line.starts_with("istio_requests_total"));
    assert_eq!(lines.count(), voile_telemetry::MAX_OUTCOMES);
}

#[test]
fn what_was_counted_before_the_caller_was_known_gets_the_callers_labels() {
    let mut shard = Shard::default();
    let early = shard.provisional(&labels(""));
    shard.request(early, (200, "-"), Duration::ZERO, (1, 1));
    shard.settle(early, |labels| labels.source.workload = "client".to_owned());
    count(&mut shard, &labels("client"), 200, 1);
    let page = page(&[&shard]);
    let mut lines = page
        .lines()
        .filter(|line| line.starts_with("istio_requests_total"));
    let line = lines.next().expect("a series");
    assert!(
        line.contains("source_workload=\"client\"") && line.ends_with(" 2"),
        "{line}"
    );
    assert_eq!(lines.next(), None);
}
