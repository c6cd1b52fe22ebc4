//! `record.json`, there and back.

use voile_report::record::{FORMAT, Latency, Record};

const FIXTURE: &str = include_str!("../fixture/record.json");

#[test]
fn a_record_survives_writing_and_reading() {
    let record = Record::from_json(FIXTURE).expect("the fixture is a record");
    let again = Record::from_json(&record.to_json()).expect("what we write we read");
    assert_eq!(record, again);
}

#[test]
fn what_is_no_record_is_refused_with_a_reason() {
    let newer = FIXTURE.replacen(
        &format!("\"format\": {FORMAT}"),
        &format!("\"format\": {}", FORMAT + 1),
        1,
    );
    for (text, expected) in [
        ("", "not a record"),
        ("[]", "not a record"),
        ("{\"format\": 1}", "missing field"),
        (newer.as_str(), "newer than this program"),
    ] {
        let error = Record::from_json(text).expect_err("refused");
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn the_field_names_that_readers_rely_on_are_there() {
    let json: serde_json::Value = serde_json::from_str(FIXTURE).expect("JSON");
    for pointer in [
        "/environment/cpu",
        "/environment/kernel",
        "/environment/cores",
        "/environment/versions",
        "/environment/profile",
        "/runs/0/contestant",
        "/runs/0/mode",
        "/runs/0/tls",
        "/runs/0/protocol",
        "/runs/0/arrival",
        "/runs/0/rate",
        "/runs/0/connections",
        "/runs/0/round",
        "/runs/0/valid",
        "/runs/0/invalid_reasons",
        "/runs/0/achieved_rps",
        "/runs/0/errors",
        "/runs/0/latency_us/p50",
        "/runs/0/latency_us/p90",
        "/runs/0/latency_us/p99",
        "/runs/0/latency_us/p999",
        "/runs/0/latency_us/max",
        "/runs/0/latency_us/mean",
        "/runs/0/service_us/p50",
        "/runs/0/machine_cpu_us_per_request",
        "/runs/0/processes/0/name",
        "/runs/0/processes/0/role",
        "/runs/0/processes/0/host",
        "/runs/0/processes/0/pids",
        "/runs/0/processes/0/cpu_us_per_request",
        "/runs/0/processes/0/vcpu",
        "/runs/0/processes/0/rss_bytes",
        "/runs/0/processes/0/pss_bytes",
        "/runs/0/processes/0/ctx_switches_per_request",
        "/summary/0/contestant",
        "/summary/0/figures",
    ] {
        assert!(json.pointer(pointer).is_some(), "{pointer} is missing");
    }
}

#[test]
fn a_percentile_with_fewer_than_ten_samples_beyond_it_is_left_out() {
    let all = Some(1.0);
    for (count, p50, p90, p99, p999) in [
        (19, None, None, None, None),
        (20, all, None, None, None),
        (100, all, all, None, None),
        (999, all, all, None, None),
        (1000, all, all, all, None),
        (10_000, all, all, all, all),
    ] {
        let latency = Latency {
            p50: all,
            p90: all,
            p99: all,
            p999: all,
            max: all,
            mean: all,
            count,
        }
        .trimmed();
        assert_eq!(
            (latency.p50, latency.p90, latency.p99, latency.p999),
            (p50, p90, p99, p999),
            "{count} samples"
        );
        assert_eq!(latency.max, all);
    }
}
