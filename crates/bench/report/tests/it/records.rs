//! `record.json`, there and back.

use voile_report::record::{FORMAT, Latency, Record, SCENE_FORMAT};

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
        &format!("\"format\": {}", SCENE_FORMAT + 1),
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

/// Figures as the build that wrote the file printed them.
#[test]
fn a_graph_in_the_form_of_an_older_build_keeps_its_figures() {
    use voile_report::record::scene::SceneKind;
    use voile_report::scenes;

    let file = serde_json::from_str(include_str!("../fixture/graph.json")).expect("JSON");
    let mut record = scenes::read(SceneKind::Graph, file).expect("a record");
    scenes::conclude(&mut record);
    let text = scenes::terminal(&record);
    for words in [
        "5 services, 4.75 requests for each at the entry point, 4 deep",
        "Added to the median per level of calls: -1.32 ms.",
        "over 4 pairs of services: 1.72 ms in the middle, from 841 µs (reviews → ratings) to 2.51 ms (storefront → books)",
        "CPU of all sidecars per request at the entry point: 4.59 ms; per request at a service, its two sidecars together: 967 µs.",
        "Memory of a sidecar: 11.0 MiB.",
        "67.66 cores for all sidecars, and its 2000 sidecars 21.5 GiB of memory",
        "Invalid: round 2 with the mesh: more than 1% of requests failed: 1 of 40",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.contains("with the mesh   "))
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect()
        })
        .collect();
    let row = |measure: &'static str, figures: [&'static str; 4]| {
        let found = rows.iter().find(|row| row[0].starts_with(measure));
        assert_eq!(found.map(|row| &row[1..]), Some(&figures[..]), "{text}");
    };
    row("p50, ", ["23.0 ms", "without 20.9 ms", "-5.27 ms", "0.77×"]);
    row("p90, ", ["45.6 ms", "without 34.2 ms", "6.02 ms", "1.11×"]);
    row("p99, ", ["58.9 ms", "without 57.1 ms", "1.86 ms", "1.03×"]);
    row(
        "CPU of the machine",
        ["106 ms", "without 106 ms", "-786 µs", "0.99×"],
    );
    row(
        "CPU of the services",
        ["4.09 ms", "without 4.15 ms", "-85.0 µs", "0.98×"],
    );
}
