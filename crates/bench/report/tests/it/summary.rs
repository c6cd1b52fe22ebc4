//! From runs to figures, with known answers.

use voile_report::record::{Latency, Process, Record, SliceRun};
use voile_report::summarise::summarise;
use voile_report::table;

fn run(contestant: &str, mode: &str, round: u32, p50: f64, cpu: f64) -> SliceRun {
    let sidecar = |role: &str, cpu| Process {
        role: role.to_owned(),
        cpu_us_per_request: cpu,
        ..Process::default()
    };
    SliceRun {
        contestant: contestant.to_owned(),
        mode: mode.to_owned(),
        arrival: "uniform".to_owned(),
        round,
        valid: true,
        latency_us: Latency {
            p50: Some(p50),
            count: 1000,
            ..Latency::default()
        },
        processes: if mode == "both" {
            vec![
                sidecar("client-sidecar", cpu),
                sidecar("server-sidecar", cpu * 3.0),
                sidecar("load", 7.0),
            ]
        } else {
            Vec::new()
        },
        ..SliceRun::default()
    }
}

/// Eight rounds on a machine that slows down from round to round.
fn record() -> Record {
    let mut record = Record::default();
    for round in 1..=8 {
        let slow = f64::from(round);
        record
            .runs
            .push(run("baseline", "baseline", round, 100.0 * slow, 0.0));
        record
            .runs
            .push(run("voile", "both", round, 150.0 * slow, 10.0 * slow));
        record
            .runs
            .push(run("envoy", "both", round, 200.0 * slow, 40.0 * slow));
    }
    record
}

#[test]
fn figures_are_medians_and_per_sidecar_is_the_mean_of_those_on_the_path() {
    let mut record = record();
    summarise(&mut record);
    let voile = record
        .summary
        .iter()
        .find(|s| s.contestant == "voile")
        .expect("summed up");
    assert_eq!(voile.figures["latency_us.p50"].median, 675.0);
    assert_eq!(
        voile.figures["client-sidecar.cpu_us_per_request"].median,
        45.0
    );
    assert_eq!(voile.figures["sidecar.cpu_us_per_request"].median, 90.0);
    assert_eq!(voile.figures["load.cpu_us_per_request"].median, 7.0);
    assert_eq!(voile.figures["added_us.p50"].median, 225.0);
    assert!(
        !voile.figures.contains_key("latency_us.p99"),
        "a percentile that was left out stays out"
    );
}

#[test]
fn ratios_do_not_see_the_machine_slow_down() {
    let mut record = record();
    summarise(&mut record);
    let voile = record
        .summary
        .iter()
        .find(|s| s.contestant == "voile")
        .expect("summed up");
    let cpu = voile.ratios["envoy"]["sidecar.cpu_us_per_request"];
    assert_eq!(
        (cpu.median, cpu.low, cpu.high),
        (0.25, Some(0.25), Some(0.25))
    );
    assert_eq!(voile.ratios["envoy"]["added_us.p50"].median, 0.5);
}

#[test]
fn the_second_half_of_the_control_is_compared_with_the_first_and_part_of_nothing_else() {
    let mut record = record();
    for round in 1..=8 {
        let slow = f64::from(round);
        record.runs.push(SliceRun {
            control: true,
            ..run("voile", "both", round, 300.0 * slow, 10.0 * slow)
        });
    }
    summarise(&mut record);
    let voile = record
        .summary
        .iter()
        .find(|s| s.contestant == "voile")
        .expect("summed up");
    assert_eq!(
        (voile.runs_valid, voile.figures["latency_us.p50"].median),
        (8, 675.0)
    );
    let control = record.control.expect("has a control");
    assert_eq!(control.ratios["latency_us.p50"].median, 2.0);
    assert_eq!(control.alarms, ["latency_us.p50"]);
    assert_eq!(control.noise_floor["sidecar.cpu_us_per_request"], 0.0);
}

#[test]
fn a_cell_without_a_valid_slice_is_listed_without_figures() {
    let mut record = record();
    for run in record
        .runs
        .iter_mut()
        .filter(|run| run.contestant == "envoy")
    {
        run.valid = false;
    }
    summarise(&mut record);
    let envoy = record
        .summary
        .iter()
        .find(|s| s.contestant == "envoy")
        .expect("listed");
    assert_eq!(
        (envoy.runs_valid, envoy.runs_invalid, envoy.figures.len()),
        (0, 8, 0)
    );
    let voile = record
        .summary
        .iter()
        .find(|s| s.contestant == "voile")
        .expect("summed up");
    assert!(
        voile
            .ratios
            .get("envoy")
            .is_none_or(std::collections::BTreeMap::is_empty)
    );
}

/// Without a measured baseline, contestants are compared by the latency of a request, not by the added latency.
#[test]
fn medians_are_divided_where_there_is_no_baseline_to_subtract() {
    let divided = |record: &Record| {
        let text = table::render(record);
        let (_, below) = text.split_once("divided by").expect("the ratios");
        below.to_owned()
    };
    let mut with = record();
    summarise(&mut with);
    assert!(divided(&with).contains("added p50"));
    let mut without = record();
    without.runs.retain(|run| run.mode == "both");
    summarise(&mut without);
    let table = divided(&without);
    assert!(
        table.contains(" p50 ") && !table.contains("added p50"),
        "{table}"
    );
    assert!(table.contains("0.75×"), "{table}");
}
