//! Is a small difference seen, and none where there is none? The committed A/A records hold the noise of real runs: one cell
//! measured twice in every round. Half of each is made slower and dearer by what a user would want to know of, or left as it
//! is, and the same summary is asked that every report is drawn from.

use std::fs;
use std::path::Path;

use voile_report::record::{Record, Run};
use voile_report::summarise::summarise;

/// What is put into the second half.
const MICROSECONDS: f64 = 50.0;
const CPU: f64 = 1.05;
const LATENCY_FIGURE: &str = "latency_us.p50";
const CPU_FIGURE: &str = "sidecar.cpu_us_per_request";

/// The committed A/A records, cut into experiments of so many repeats (of 7 or 8 rounds) each.
fn runs(joined: u32) -> Vec<Record> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/records");
    let mut all = Vec::new();
    let records = fs::read_dir(&folder).expect("committed").flatten();
    let of_aa = |name: &String| name.contains("-aa-");
    let names = records.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(of_aa).collect();
    names.sort();
    for name in names {
        let text = fs::read_to_string(folder.join(&name).join("record.json")).expect("committed");
        let record = Record::from_json(&text).expect("a record");
        let whole = record.experiment.repeats / joined * joined;
        for first in (1..=whole).step_by(joined as usize) {
            let repeats = first..first + joined;
            let of_it = record
                .runs
                .iter()
                .filter(|run| repeats.contains(&run.repeat));
            let runs: Vec<Run> = of_it.cloned().collect();
            all.push(Record {
                runs,
                experiment: record.experiment.clone(),
                ..Record::default()
            });
        }
    }
    all
}

/// In how many runs the figure is said to differ.
fn alarms(records: &mut [Record], figure: &str) -> usize {
    let differs = |record: &mut Record| {
        summarise(record);
        let control = record.control.as_ref().expect("A/A");
        control.alarms.iter().any(|alarm| alarm == figure)
    };
    records
        .iter_mut()
        .map(differs)
        .filter(|differs| *differs)
        .count()
}

fn inject(records: &mut [Record]) {
    for run in records
        .iter_mut()
        .flat_map(|record| &mut record.runs)
        .filter(|run| run.control)
    {
        run.latency_us.p50 = run.latency_us.p50.map(|us| us + MICROSECONDS);
        for process in run
            .processes
            .iter_mut()
            .filter(|p| p.role.ends_with("-sidecar"))
        {
            process.cpu_us_per_request *= CPU;
        }
    }
}

#[test]
fn an_injected_difference_is_seen_and_none_where_nothing_was_injected() {
    let mut small = runs(1);
    let number = small.len();
    assert!(number >= 80, "{number} runs");
    let false_alarms = alarms(&mut small, LATENCY_FIGURE) + alarms(&mut small, CPU_FIGURE);
    inject(&mut small);
    let latency = alarms(&mut small, LATENCY_FIGURE);
    let of_few = alarms(&mut small, CPU_FIGURE);
    // Seven rounds of a second see five percent of CPU more often than not; four times as many always do.
    let mut larger = runs(4);
    inject(&mut larger);
    let of_many = alarms(&mut larger, CPU_FIGURE);
    println!(
        "{number} runs: {false_alarms} false alarms of {}; +50 us seen in {latency}, +5 % CPU in {of_few}, with four times the \
         rounds in {of_many} of {}",
        2 * number,
        larger.len()
    );
    assert!(
        false_alarms * 20 <= 2 * number,
        "{false_alarms} false alarms in {number} runs"
    );
    assert!(
        latency * 20 >= number * 19,
        "+50 us seen in {latency} of {number}"
    );
    assert!(of_few * 2 > number, "+5 % CPU seen in {of_few} of {number}");
    assert_eq!(of_many, larger.len(), "+5 % CPU with four times the rounds");
}
