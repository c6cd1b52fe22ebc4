//! Tests of the metrics page, from workers' counters.

mod collectors;
mod contexts;
mod lines;
mod pages;

use std::time::{Duration, Instant};

use voile_telemetry::{
    IDLE_SERIES, LabelChange, Labels, MAX_ALL_VALUED, MAX_VALUED, MetricShape, PeerLabels,
    Projection, Reporter, Scrape, Security, ServiceLabels, Shard,
};

fn labels(client: &str) -> Labels {
    Labels {
        reporter: Reporter::Destination,
        source: PeerLabels {
            workload: client.to_owned(),
            ..PeerLabels::default()
        },
        destination: PeerLabels {
            workload: "server".to_owned(),
            canonical_service: "server".to_owned(),
            ..PeerLabels::default()
        },
        service: ServiceLabels {
            host: "server.shop.svc.cluster.local".to_owned(),
            name: "server".to_owned(),
            namespace: "shop".to_owned(),
        },
        protocol: "http",
        security: Security::MutualTls,
        values: Vec::new(),
    }
}

fn count(shard: &mut Shard, labels: &Labels, code: u16, micros: u64) {
    let id = shard.series(labels);
    shard.request(id, (code, "-"), Duration::from_micros(micros), (10, 1000));
}

/// Counts a request with this value, and gives the number of series that have it.
fn count_valued(shard: &mut Shard, client: &str, value: &str) {
    let id = shard.series(&labels(client));
    let name = ["request.host".into()];
    let part = shard.valued(id, &format!("{value}\0"), name.iter());
    shard.request(part, (200, "-"), Duration::from_millis(1), (10, 1000));
}

/// The page with a label `host` of the requests' values in one metric.
fn page_by_host(shard: &Shard) -> String {
    let mut scrape = Scrape::default();
    scrape.add(shard.snapshot());
    let mut projection = Projection::default();
    let shape = MetricShape {
        off: false,
        labels: [("host".into(), LabelChange::Value("request.host".into()))].into(),
    };
    projection.set(Reporter::Destination, "istio_requests_total", shape);
    scrape.project(projection);
    scrape.render()
}

fn lines_of<'a>(page: &'a str, name: &str, client: &str) -> Vec<&'a str> {
    let of = format!("source_workload=\"{client}\"");
    let lines = page.lines();
    lines
        .filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(&of))
        .collect()
}

#[test]
fn requests_are_told_apart_by_a_value_of_their_own_only_where_a_metric_has_it() {
    let mut shard = Shard::default();
    for host in ["a", "b", "a", "\"\n"] {
        count_valued(&mut shard, "client", host);
    }
    let page = page_by_host(&shard);
    let hosts: Vec<_> = lines_of(&page, "istio_requests_total", "client")
        .into_iter()
        .map(|line| line.split_once(",host=").expect("a host").1)
        .collect();
    assert_eq!(hosts, [r#""\"\n"} 1"#, "\"a\"} 2", "\"b\"} 1"], "{page}");
    let sizes = lines_of(&page, "istio_request_bytes_count", "client");
    let [size] = sizes[..] else {
        panic!("{sizes:#?}");
    };
    assert!(size.ends_with("} 4") && !size.contains("host="), "{size}");
}

#[test]
fn a_client_with_too_many_values_is_counted_under_other_and_no_other_client_is() {
    let mut shard = Shard::default();
    for number in 0..3 * MAX_VALUED {
        count_valued(&mut shard, "hostile", &format!("x{number}"));
    }
    count_valued(&mut shard, "honest", "a");
    let page = page_by_host(&shard);
    let hostile = lines_of(&page, "istio_requests_total", "hostile");
    assert_eq!(hostile.len(), MAX_VALUED + 1);
    let other = hostile
        .iter()
        .filter(|line| line.contains(",host=\"other\"} 200"));
    assert_eq!(other.count(), 1, "{hostile:#?}");
    let honest = lines_of(&page, "istio_requests_total", "honest");
    assert!(honest[0].ends_with(",host=\"a\"} 1"), "{honest:#?}");
    // Many such clients leave room for the series of others.
    for client in 0..MAX_ALL_VALUED / MAX_VALUED {
        for number in 0..MAX_VALUED {
            count_valued(
                &mut shard,
                &format!("hostile{client}"),
                &format!("x{number}"),
            );
        }
    }
    count(&mut shard, &labels("newcomer"), 200, 1);
    let page = page_by_host(&shard);
    assert_eq!(lines_of(&page, "istio_requests_total", "newcomer").len(), 1);
    // What nobody uses makes room.
    let now = Instant::now();
    shard.expire(now);
    shard.expire(now + IDLE_SERIES);
    count_valued(&mut shard, "hostile0", "new");
    let page = page_by_host(&shard);
    let hostile = lines_of(&page, "istio_requests_total", "hostile0");
    assert!(hostile[0].ends_with(",host=\"new\"} 1"), "{hostile:#?}");
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

#[test]
fn series_that_nobody_counts_in_expire_at_a_scrape_and_make_room() {
    let mut shard = Shard::with_limit(2);
    let begin = Instant::now();
    let (busy, idle) = (shard.series(&labels("busy")), shard.series(&labels("idle")));
    let count = |shard: &mut Shard, id| shard.request(id, (200, "-"), Duration::ZERO, (1, 1));
    count(&mut shard, busy);
    count(&mut shard, idle);
    shard.expire(begin);
    count(&mut shard, busy);
    shard.expire(begin + IDLE_SERIES - Duration::from_secs(1));
    assert!(shard.is_current(idle));
    shard.expire(begin + IDLE_SERIES);
    assert!(shard.is_current(busy) && !shard.is_current(idle));
    let page_of = page(&[&shard]);
    assert!(!page_of.contains("source_workload=\"idle\""), "{page_of}");
    assert!(
        page_of.contains("voile_metric_series_expired_total 1\n"),
        "{page_of}"
    );
    // The place belongs to another series now; the old number does not count in it.
    let new = shard.series(&labels("new"));
    assert!(shard.is_current(new) && !shard.is_current(idle));
    count(&mut shard, idle);
    let page_of = page(&[&shard]);
    assert!(!page_of.contains("source_workload=\"new\""), "{page_of}");
    assert!(page_of.contains("source_workload=\"other\""), "{page_of}");
    // An opaque connection that is still open keeps its series.
    let mut shard = Shard::default();
    let open = shard.series(&labels("open"));
    shard.tcp_opened(open);
    for hours in 0..5 {
        shard.expire(begin + Duration::from_secs(3600 * hours));
    }
    assert!(shard.is_current(open));
    shard.tcp_closed(open, "-", 1, 1);
    shard.expire(begin + Duration::from_secs(3600 * 6));
    shard.expire(begin + Duration::from_secs(3600 * 7));
    assert!(!shard.is_current(open));
}

#[test]
fn overrides_change_what_is_shown_and_series_that_become_the_same_are_added_up() {
    let mut shard = Shard::default();
    count(&mut shard, &labels("a"), 200, 1);
    count(&mut shard, &labels("b"), 200, 1);
    let mut scrape = Scrape::default();
    scrape.add(shard.snapshot());
    let mut projection = Projection::default();
    let changes = [
        ("source_workload", LabelChange::Remove),
        ("destination_workload", LabelChange::Set("it".into())),
        ("region", LabelChange::Set("eu\"1".into())),
    ];
    let changed = |(name, change): (&str, LabelChange)| (name.into(), change);
    let shape = MetricShape {
        off: false,
        labels: changes.map(changed).into(),
    };
    projection.set(Reporter::Destination, "istio_requests_total", shape);
    let off = MetricShape {
        off: true,
        ..MetricShape::default()
    };
    projection.set(Reporter::Destination, "istio_request_bytes", off);
    scrape.project(projection);
    let page = scrape.render();
    let lines: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("istio_requests_total"))
        .collect();
    let [line] = lines[..] else {
        panic!("{lines:#?}");
    };
    assert!(
        line.ends_with("response_flags=\"-\",region=\"eu\\\"1\"} 2"),
        "{line}"
    );
    assert!(
        line.contains("destination_workload=\"it\"") && !line.contains("source_workload="),
        "{line}"
    );
    assert!(!page.contains("istio_request_bytes"), "{page}");
    let seconds = page
        .lines()
        .filter(|line| line.starts_with("istio_response_bytes_count"));
    assert_eq!(seconds.count(), 2, "others are as they were");
}

#[test]
fn what_a_waypoint_counts_for_a_service_has_the_shape_of_that_service_in_place_of_the_usual() {
    let mut shard = Shard::default();
    let of = |reporter, host: &str| Labels {
        reporter,
        service: ServiceLabels {
            host: host.to_owned(),
            ..ServiceLabels::default()
        },
        ..labels("a")
    };
    for host in ["apart", "plain", "usual"] {
        count(&mut shard, &of(Reporter::Waypoint, host), 200, 1);
    }
    count(&mut shard, &of(Reporter::Destination, "apart"), 200, 1);
    let mut scrape = Scrape::default();
    scrape.add(shard.snapshot());
    let said = |value: &str| MetricShape {
        off: false,
        labels: [("region".into(), LabelChange::Set(value.into()))].into(),
    };
    let name = "istio_requests_total";
    let mut projection = Projection::default();
    projection.set(Reporter::Waypoint, name, said("all"));
    let service = |host| of(Reporter::Waypoint, host).service;
    projection.set_behind_waypoint(&service("apart"), name, said("own"));
    projection.set_behind_waypoint(&service("plain"), name, MetricShape::default());
    scrape.project(projection);
    let page = scrape.render();
    let region = |reporter: &str, host: &str| {
        let mut lines = page.lines().filter(|line| line.starts_with(name));
        let line = lines.find(|line| {
            line.contains(&format!("reporter=\"{reporter}\""))
                && line.contains(&format!("destination_service=\"{host}\""))
        });
        let (_, rest) = line.expect("a line").split_once("region=\"")?;
        rest.split('"').next()
    };
    assert_eq!(region("waypoint", "apart"), Some("own"));
    assert_eq!(region("waypoint", "plain"), None);
    assert_eq!(region("waypoint", "usual"), Some("all"));
    assert_eq!(region("destination", "apart"), None);
}

#[test]
fn open_metrics_names_counters_by_their_family_and_says_that_the_page_is_whole() {
    let mut shard = Shard::default();
    count(&mut shard, &labels("a"), 200, 1);
    let page = voile_telemetry::open_metrics(&page(&[&shard]));
    assert!(page.contains("# TYPE istio_requests counter\n"), "{page}");
    assert!(page.contains("\nistio_requests_total{"), "{page}");
    assert!(
        page.contains("# TYPE istio_request_bytes histogram\n"),
        "{page}"
    );
    assert!(page.ends_with("\n# EOF\n"), "{page}");
}
