//! Load against our own echo server: latency counts from the intended instant, and the record holds together.
//! Times are only ever bounded from below: a loaded machine makes things late, never early.

use std::time::Duration;

use serde_json::Value;
use voile_load::echo::{EchoOptions, Stall};
use voile_load::samples::Samples;
use voile_load::{ArrivalPattern, LoadCondition, LoadOptions, LoadResult, Stop, parse_duration};

use crate::server::{PATIENCE, Served, Then, load, scripted};

fn run(options: &LoadOptions) -> LoadResult {
    voile_load::run(options, &Stop::new().unwrap(), false).unwrap()
}

#[test]
fn a_fixed_delay_is_the_least_latency() {
    let server = Served::echo(EchoOptions::default());
    let mut options = server.load("/?delay=2ms&size=1024");
    options.expect_size = Some(1024);
    let result = run(&options);
    assert_eq!((result.scheduled, result.sent, result.ok), (100, 100, 100));
    let service = Samples::decode(&result.service_histogram).unwrap();
    assert_eq!(
        service.count_up_to(1_900),
        0,
        "nothing is faster than the delay"
    );
    assert!(result.latency_us.p50 >= 2_000);
    assert!(result.latency_us.p50 >= result.service_us.p50);
    assert_eq!(result.bytes.body, 100 * 1024);
}

#[test]
fn a_stall_is_seen_by_every_request_that_was_due_in_it() {
    let stall = Stall {
        every: Duration::from_millis(500),
        length: Duration::from_millis(200),
    };
    let server = Served::echo(EchoOptions {
        stall: Some(stall),
        ..EchoOptions::default()
    });
    let mut options = server.load("/");
    options.rate = 500.0;
    options.connections = 8;
    // Long enough to hold one whole stall whenever it begins.
    options.duration = Duration::from_millis(1_200);
    let result = run(&options);
    assert_eq!(result.ok, result.scheduled);
    let over_50_ms = |text: &str| {
        let samples = Samples::decode(text).unwrap();
        samples.count() - samples.count_up_to(50_000)
    };
    let seen = over_50_ms(&result.latency_histogram);
    // 150 of the stall's 200 ms leave more than 50 ms to wait: 75 requests at 500/s.
    assert!(seen >= 70, "{seen}");
    assert!(
        result.latency_us.max >= 150_000,
        "{}",
        result.latency_us.max
    );
    // A generator that counts from the actual send would have reported this number.
    let hidden = over_50_ms(&result.service_histogram);
    assert!(hidden < seen, "{hidden} of {seen}");
}

#[test]
fn every_arrival_sends_its_whole_schedule() {
    let server = Served::echo(EchoOptions {
        threads: 2,
        ..EchoOptions::default()
    });
    for arrival in [
        ArrivalPattern::Uniform,
        ArrivalPattern::Poisson,
        ArrivalPattern::Fortio,
    ] {
        for threads in [1, 3] {
            let mut options = server.load("/?size=10");
            (options.arrival, options.threads) = (arrival, threads);
            options.warmup = Duration::from_millis(50);
            let result = run(&options);
            assert_eq!(
                result.ok, result.scheduled,
                "{arrival:?} on {threads} threads"
            );
            // Poisson: 100 expected, standard deviation 10, seed fixed.
            assert!(
                (60..140).contains(&result.scheduled),
                "{arrival:?}: {}",
                result.scheduled
            );
            if arrival == ArrivalPattern::Uniform {
                assert_eq!(result.scheduled, 100);
            }
        }
    }
}

#[test]
fn maximum_rate_keeps_every_connection_busy() {
    let server = Served::echo(EchoOptions::default());
    let mut options = server.load("/?size=10");
    options.rate = 0.0;
    options.duration = Duration::from_millis(200);
    let result = run(&options);
    assert!(result.ok > 0);
    assert_eq!(result.ok, result.scheduled);
    assert_eq!(result.options.arrival, "closed");
    assert!(result.to_table().contains("maximum rate (closed loop)"));
}

#[test]
fn connections_are_reused_unless_told_otherwise() {
    let server = Served::echo(EchoOptions::default());
    let mut options = server.load("/");
    assert_eq!(
        run(&options).connects,
        0,
        "none is opened in the measured part"
    );
    options.keepalive = false;
    let result = run(&options);
    assert_eq!((result.ok, result.connects), (100, 100));
    let closing = server.load("/?close=true");
    let result = run(&closing);
    assert_eq!(result.ok, 100);
    assert!(
        result.connects >= 90,
        "a closed connection is opened again: {}",
        result.connects
    );
}

#[test]
fn payload_method_and_headers_arrive() {
    let server = Served::echo(EchoOptions::default());
    let mut options = server.load("/");
    options.method = "POST".to_owned();
    options.body = vec![b'x'; 300_000];
    options.expect_size = Some(300_000);
    options.headers = vec![
        ("X-A".to_owned(), "b".to_owned()),
        ("Host".to_owned(), "shop.example".to_owned()),
    ];
    let result = run(&options);
    assert_eq!(result.ok, 100, "{:?}", result.errors);
    let request = String::from_utf8(options.request()).unwrap();
    assert!(
        request.contains("\r\nHost: shop.example\r\n") && request.matches("Host:").count() == 1
    );
    options.method = "HEAD".to_owned();
    options.body.clear();
    options.expect_size = Some(0);
    assert_eq!(run(&options).ok, 100);
}

#[test]
fn the_json_holds_together() {
    let server = Served::echo(EchoOptions::default());
    let mut options = server.load("/?size=100&status=503:10");
    options.duration = Duration::from_millis(1_200);
    let result = run(&options);
    let json: Value = serde_json::from_str(&result.to_json()).unwrap();
    for field in [
        "version",
        "options",
        "start_unix_ns",
        "start_time",
        "duration_s",
        "requested_rps",
        "achieved_rps",
        "scheduled",
        "sent",
        "ok",
        "errors",
        "errors_total",
        "latency_us",
        "service_us",
        "error_latency_us",
        "lateness_us",
        "per_second",
        "latency_histogram",
        "service_histogram",
        "status",
        "bytes",
        "connects",
        "unsolicited",
        "cpu_us_per_request",
        "valid",
        "invalid_reasons",
        "interrupted",
    ] {
        assert!(json.get(field).is_some(), "{field} is missing");
    }
    for field in ["p50", "p75", "p90", "p99", "p999", "max", "mean", "count"] {
        assert!(json["latency_us"][field].is_number(), "{field}");
    }
    let seconds = json["per_second"].as_array().unwrap();
    assert_eq!(seconds.len(), 2);
    let sum = |field: &str| {
        seconds
            .iter()
            .map(|second| second[field].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(
        (sum("sent"), sum("ok"), sum("errors")),
        (result.sent, result.ok, result.errors_total)
    );
    let mut merged = Samples::new();
    for second in seconds {
        merged.merge(&Samples::decode(second["histogram"].as_str().unwrap()).unwrap());
    }
    let whole = Samples::decode(json["latency_histogram"].as_str().unwrap()).unwrap();
    assert_eq!(merged.summary(), whole.summary());
    assert_eq!(whole.count(), 600);
    assert!(result.errors["status"] > 0 && result.status["503"] == result.errors["status"]);
}

#[test]
fn the_fortio_json_has_fortios_shape() {
    let server = Served::echo(EchoOptions::default());
    let result = run(&server.load("/?delay=1ms"));
    let json: Value = serde_json::from_str(&result.to_fortio(&voile_load::fortio::FortioForm {
        labels: "a label/1".to_owned(),
        ..Default::default()
    }))
    .unwrap();
    assert_eq!(json["RunType"], "HTTP");
    assert_eq!(json["RequestedQPS"], "500");
    assert_eq!(json["RetCodes"]["200"], 100);
    assert!(json["ID"].as_str().unwrap().ends_with("_a_label_1"));
    let histogram = &json["DurationHistogram"];
    assert_eq!(histogram["Count"], 100);
    let data = histogram["Data"].as_array().unwrap();
    let count: u64 = data
        .iter()
        .map(|bucket| bucket["Count"].as_u64().unwrap())
        .sum();
    assert_eq!(count, 100);
    assert_eq!(data.last().unwrap()["Percent"], 100.0);
    assert_eq!(data[0]["Start"], histogram["Min"]);
    assert_eq!(data.last().unwrap()["End"], histogram["Max"]);
    let fifty = &histogram["Percentiles"][0];
    assert_eq!(fifty["Percentile"], 50.0);
    assert!(
        fifty["Value"].as_f64().unwrap() >= 0.001,
        "seconds, at least the delay"
    );
    assert_eq!(voile_load::fortio::edges().len(), 56);
}

#[test]
fn a_run_that_is_stopped_still_gives_its_result() {
    let server = Served::echo(EchoOptions::default());
    let mut options = server.load("/");
    options.duration = Duration::from_secs(3_600);
    let stop = Stop::new().unwrap();
    stop.raise();
    let result = voile_load::run(&options, &stop, false).unwrap();
    assert!(result.interrupted && !result.valid);
    assert!(result.duration_s < 3_600.0);
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    let server = Served::echo(EchoOptions::default());
    let refused = |change: &dyn Fn(&mut LoadOptions), word: &str| {
        let mut options = server.load("/");
        change(&mut options);
        let error = options.check().unwrap_err();
        assert!(error.contains(word), "{error}");
    };
    refused(&|options| options.rate = -1.0, "rate");
    refused(&|options| options.rate = f64::NAN, "rate");
    refused(&|options| options.connections = 0, "connections");
    refused(&|options| options.threads = 5, "threads");
    refused(&|options| options.duration = Duration::ZERO, "duration");
    refused(&|options| options.method = "GE T".to_owned(), "method");
    refused(
        &|options| options.headers.push(("a".into(), "b\r\nc: d".into())),
        "header",
    );
    refused(
        &|options| options.headers.push(("Content-Length".into(), "1".into())),
        "Content-Length",
    );
    refused(
        &|options| options.bind = Some("::1".parse().unwrap()),
        "bind",
    );
    for url in [
        "gopher://127.0.0.1/",
        "http://",
        "http://a@b/",
        "http://127.0.0.1:1/ x",
        "http://127.0.0.1:99999/",
    ] {
        assert!(voile_load::LoadTarget::parse(url).is_err(), "{url}");
    }
}

#[test]
fn durations_are_read_as_people_write_them() {
    for (text, nanoseconds) in [
        ("0", 0),
        ("250us", 250_000),
        ("2ms", 2_000_000),
        ("1.5s", 1_500_000_000),
        ("1m30s", 90_000_000_000),
    ] {
        assert_eq!(
            parse_duration(text).unwrap().as_nanos(),
            nanoseconds,
            "{text}"
        );
    }
    for text in ["", "1", "s", "1x", "-1s", "1.2.3s", "9999999h", "1s2"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}

#[test]
fn a_condition_ends_the_run_and_is_named() {
    let server = Served::echo(EchoOptions::default());
    let mut options = server.load("/?status=503:50");
    options.duration = Duration::from_secs(60);
    options.abort = LoadCondition::parse("p99>60s,errors>20%", '>').unwrap();
    let result = run(&options);
    assert!(result.duration_s < 30.0, "{}", result.duration_s);
    assert!(!result.valid && !result.interrupted);
    let why = result.aborted.expect("it says why");
    assert!(why.contains("errors>20%"), "{why}");
    assert_eq!(result.scheduled, result.ok + result.errors_total);
}

#[test]
fn the_capacity_of_a_server_with_a_known_limit_is_found() {
    // 4 connections, each busy for 20 ms: 200 a second, and not one more.
    let server = Served::echo(EchoOptions::default());
    let mut options = server.load("/?delay=20ms");
    options.rate = 40.0;
    options.duration = Duration::from_millis(500);
    let bounds = LoadCondition::parse("p90<60ms,errors<1%", '<').unwrap();
    let mut seen = 0;
    let found =
        voile_load::capacity::find(&options, &bounds, 0.2, &Stop::new().unwrap(), &mut |_| {
            seen += 1;
        });
    let found = found.unwrap();
    assert_eq!(seen, found.curve.len());
    // From below only as far as a loaded machine may go.
    assert!(found.capacity_rps <= 230.0, "{}", found.to_table());
    assert!(found.curve.iter().any(|probe| !probe.holds));
    assert!(
        found.to_table().contains("capacity"),
        "{}",
        found.to_table()
    );
    let json: Value = serde_json::from_str(&found.to_json()).unwrap();
    assert_eq!(json["bounds"][0], "p90<60ms");
}

#[test]
fn several_targets_get_their_shares_and_a_slow_one_keeps_nobody_waiting() {
    let fast = Served::echo(EchoOptions::default());
    let slow = Served::echo(EchoOptions::default());
    let target = |server: &Served, path: &str| {
        voile_load::LoadTarget::parse(&format!("http://{}{path}", server.address)).unwrap()
    };
    for (arrival, threads) in [
        (ArrivalPattern::Uniform, 1),
        (ArrivalPattern::Uniform, 2),
        (ArrivalPattern::Poisson, 2),
    ] {
        let mut options = fast.load("/?size=10");
        options.more = vec![
            (1.0, target(&fast, "/?size=20&status=503")),
            // One connection of two is busy for 100 ms of each of its 100 requests a second.
            (2.0, target(&slow, "/?delay=100ms")),
        ];
        (options.rate, options.connections) = (400.0, 4);
        (options.arrival, options.threads) = (arrival, threads);
        options.duration = Duration::from_secs(1);
        let result = run(&options);
        let counts: Vec<(u64, u64)> = result.targets.iter().map(|of| (of.ok, of.errors)).collect();
        let all: u64 = counts.iter().map(|(ok, errors)| ok + errors).sum();
        assert_eq!(all, result.scheduled, "{counts:?}");
        for ((ok, errors), share) in counts.iter().zip([0.25, 0.25, 0.5]) {
            let off = (ok + errors) as f64 - share * all as f64;
            // Six standard deviations; the seed is fixed.
            assert!(off.abs() < 60.0, "{arrival:?}: {counts:?}");
        }
        assert_eq!((counts[0].1, counts[1].0), (0, 0), "each its own status");
        assert!(
            counts[2].1 > 50,
            "the slow one cannot take its share: {counts:?}"
        );
        let slow = &result.targets[2].latency_us;
        assert!(slow.p50 >= 100_000, "{slow:?}");
        assert!(
            result.targets[0].latency_us.p50 < slow.p50 / 2,
            "the fast one does not wait for it"
        );
    }
}

#[test]
fn payload_sizes_are_spread_by_weight_and_come_back() {
    let server = Served::echo(EchoOptions::default());
    for scheme in ["http", "h2c"] {
        let mut options = server.load("/");
        options.target =
            voile_load::LoadTarget::parse(&format!("{scheme}://{}/", server.address)).unwrap();
        options.protocol = options.target.scheme.protocol();
        options.method = "POST".to_owned();
        options.sizes = voile_load::options::parse_sizes("100:3,40000:1").unwrap();
        let result = run(&options);
        assert_eq!(result.ok, 100, "{scheme}: {:?}", result.errors);
        // 100 × 100 B and 40 kB for each of about a quarter.
        let large = (result.bytes.body - 100 * 100) / 39_900;
        assert_eq!(result.bytes.body, 10_000 + large * 39_900);
        assert!((10..45).contains(&large), "{large}");
    }
    let parse = voile_load::options::parse_sizes;
    assert_eq!(parse("7").unwrap(), [(7, 1.0)]);
    let range = parse("100..1600").unwrap();
    assert_eq!(
        (range.len(), range[0].0, range[1].0, range[15].0),
        (16, 100, 200, 1600)
    );
    for text in [
        "",
        "x",
        "1:",
        "1:0",
        "1:-1",
        "2..1",
        "1..",
        "9999999999999",
        "1:nan",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
}

#[test]
fn connections_are_closed_after_their_number_of_answers() {
    let server = Served::echo(EchoOptions::default());
    for (scheme, streams) in [("http", 1), ("h2c", 1), ("h2c", 8)] {
        let mut options = server.load("/");
        options.target =
            voile_load::LoadTarget::parse(&format!("{scheme}://{}/", server.address)).unwrap();
        options.protocol = options.target.scheme.protocol();
        (options.streams, options.connections) = (streams, 2);
        options.reuse = Some((5, 10));
        let result = run(&options);
        assert_eq!(result.ok, 100, "{scheme} {streams}: {:?}", result.errors);
        // 100 answers, 5 to 10 a connection; with streams those in flight are answered too.
        let least = if streams == 1 { 8 } else { 4 };
        assert!(
            (least..=20).contains(&result.connects),
            "{scheme} {streams}: {}",
            result.connects
        );
    }
}

#[test]
fn recorded_requests_are_sent_as_they_were() {
    let server = Served::echo(EchoOptions::default());
    let log = "0 GET /?size=10\n0.01 HEAD /?size=500\n0.02 GET /?size=30\n0.03 POST /\n0.04 GET /?size=10\n";
    let trace = voile_load::trace::Trace::parse(log, 1.0).unwrap();
    for (scheme, threads) in [("http", 1), ("http", 2), ("h2c", 2)] {
        let mut options = server.load("/");
        options.target =
            voile_load::LoadTarget::parse(&format!("{scheme}://{}/", server.address)).unwrap();
        options.protocol = options.target.scheme.protocol();
        (options.threads, options.connections) = (threads, 2);
        options.body = vec![b'x'; 7];
        options.set_replay(trace.instants.clone());
        options.recorded = Some(voile_load::options::ReplayedTrace {
            requests: trace.requests.clone().into(),
            which: trace.which.clone().into(),
        });
        let result = run(&options);
        assert_eq!((result.ok, result.errors_total), (5, 0), "{scheme}");
        assert_eq!(result.bytes.body, 10 + 30 + 7 + 10, "{scheme}");
    }
}

#[test]
fn a_number_of_requests_ends_a_closed_loop() {
    let server = Served::echo(EchoOptions::default());
    for (threads, requests) in [(1, 1), (1, 250), (3, 251)] {
        let mut options = server.load("/?size=10&delay=1ms");
        (options.rate, options.requests, options.threads) = (0.0, Some(requests), threads);
        options.duration = voile_load::options::UNTIL_STOPPED;
        let result = run(&options);
        assert_eq!(
            (result.ok, result.sent, result.scheduled),
            (requests, requests, requests)
        );
        assert!(
            result.valid && !result.interrupted,
            "{:?}",
            result.invalid_reasons
        );
        // The answers are within the time that is told, at a rate that can be.
        assert!(result.duration_s >= 0.001, "{}", result.duration_s);
        assert!(result.achieved_rps <= 4_000.0, "{}", result.achieved_rps);
    }
}

#[test]
fn a_status_ends_the_run_at_once() {
    let server = Served::echo(EchoOptions::default());
    for (path, on, threads) in [
        ("/?status=503", Some(503), 2),
        ("/?status=503:10", Some(503), 1),
        ("/?delay=60s", None, 2),
    ] {
        let mut options = server.load(path);
        (options.threads, options.connections) = (threads, 4);
        options.duration = Duration::from_secs(60);
        options.timeout = Duration::from_millis(100);
        options.abort_on = vec![on];
        let began = std::time::Instant::now();
        let result = run(&options);
        assert!(began.elapsed() < PATIENCE, "{path} ends early");
        assert!(!result.valid && result.aborted.is_some(), "{path}");
    }
    let mut options = server.load("/?status=503");
    options.abort_on = vec![Some(404), None];
    assert_eq!(run(&options).aborted, None);
}

#[test]
fn http_1_0_is_spoken_with_a_connection_for_each_request() {
    for answer in [
        &b"HTTP/1.0 200 OK\r\n\r\nuntil the end"[..],
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ] {
        let mut options = load(scripted(answer, Then::Close), "/");
        (options.http10, options.keepalive) = (true, false);
        let request = options.request();
        assert!(request.starts_with(b"GET / HTTP/1.0\r\nHost: "));
        let result = run(&options);
        assert_eq!(
            (result.ok, result.errors_total, result.connects),
            (100, 0, 100)
        );
    }
}
