//! Does the summary see a small difference, and none where there is none? The committed A/A records hold the noise of real runs:
//! one cell measured twice in every round. The test makes half of each slower and dearer by an amount that a user would want to
//! know of, or leaves it as it is. It then asks the same summary that every report is drawn from.

use std::fs;
use std::path::Path;

use voile_report::gzip;
use voile_report::record::{Record, SliceRun};
use voile_report::summarise::summarise;

/// Slowdown that the test adds to the second half.
const MICROSECONDS: f64 = 50.0;
const CPU: f64 = 1.05;
const LATENCY_FIGURE: &str = "latency_us.p50";
const CPU_FIGURE: &str = "sidecar.cpu_us_per_request";

/// The committed A/A records, cut into experiments of so many repeats (of 7 or 8 rounds) each.
fn runs(joined: u32) -> Vec<Record> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../benchmarks/records");
    let mut all = Vec::new();
    let records = fs::read_dir(&folder).expect("committed").flatten();
    let of_aa = |name: &String| name.contains("-aa-");
    let names = records.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(of_aa).collect();
    names.sort();
    for name in names {
        let bytes = fs::read(folder.join(&name).join("record.json.gz")).expect("committed");
        let text = gzip::decompress(&bytes).expect("undamaged");
        let record = Record::from_json(&text).expect("a record");
        let whole = record.experiment.repeats / joined * joined;
        for first in (1..=whole).step_by(joined as usize) {
            let repeats = first..first + joined;
            let of_it = record
                .runs
                .iter()
                .filter(|run| repeats.contains(&run.repeat));
            let runs: Vec<SliceRun> = of_it.cloned().collect();
            all.push(Record {
                runs,
                experiment: record.experiment.clone(),
                ..Record::default()
            });
        }
    }
    all
}

/// Runs that report a difference of the figure.
fn alarms(records: &mut [Record], figure: &str) -> Vec<bool> {
    let differs = |record: &mut Record| {
        summarise(record);
        let control = record.control.as_ref().expect("A/A");
        control.alarms.iter().any(|alarm| alarm == figure)
    };
    records.iter_mut().map(differs).collect()
}

/// The smallest difference that each run says it could have seen, as a share.
fn floors(records: &[Record], figure: &str) -> Vec<f64> {
    let floor = |record: &Record| {
        let control = record.control.as_ref().expect("summarised");
        control.noise_floor[figure]
    };
    records.iter().map(floor).collect()
}

fn seen(alarms: &[bool]) -> usize {
    alarms.iter().filter(|alarm| **alarm).count()
}

/// Reports for each run if its noise floor is low enough to show the added latency.
fn latency_promised(records: &[Record]) -> Vec<bool> {
    let floors = floors(records, LATENCY_FIGURE);
    let promised = |(record, floor): (&Record, f64)| {
        let mut all: Vec<f64> = record
            .runs
            .iter()
            .filter_map(|r| r.latency_us.p50)
            .collect();
        all.sort_by(f64::total_cmp);
        let p50 = all[all.len() / 2];
        (1.0 - floor) * (p50 + MICROSECONDS) > p50
    };
    records.iter().zip(floors).map(promised).collect()
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
    assert!(number >= 100, "{number} runs");
    let false_alarms =
        seen(&alarms(&mut small, LATENCY_FIGURE)) + seen(&alarms(&mut small, CPU_FIGURE));
    let cpu_floors = floors(&small, CPU_FIGURE);
    let latency_promised = latency_promised(&small);
    inject(&mut small);
    let latency_seen = alarms(&mut small, LATENCY_FIGURE);
    let latency = seen(&latency_seen);
    let of_few = alarms(&mut small, CPU_FIGURE);
    let mut larger = runs(4);
    inject(&mut larger);
    let latency_of_many = seen(&alarms(&mut larger, LATENCY_FIGURE));
    let of_many = seen(&alarms(&mut larger, CPU_FIGURE));
    println!(
        "{number} runs: {false_alarms} false alarms of {}; +50 us seen in {latency} ({} promise it), +5 % CPU in {}; with four times the rounds in \
         {latency_of_many} and {of_many} of {}",
        2 * number,
        seen(&latency_promised),
        seen(&of_few),
        larger.len()
    );
    assert!(
        false_alarms * 20 <= 2 * number,
        "{false_alarms} false alarms in {number} runs"
    );
    // Every run reports its smallest visible difference. It must see any larger difference.
    let promised = |floor: &f64| (1.0 - floor) * CPU > 1.0;
    for (number, (floor, saw)) in cpu_floors.iter().zip(&of_few).enumerate() {
        assert!(
            *saw || !promised(floor),
            "run {number} says it could see {floor}, and did not see 0.05"
        );
    }
    assert!(cpu_floors.iter().filter(|floor| promised(floor)).count() * 20 > number);
    // The floor is a share of the first half's median, which has noise of its own: a promise may fail where an interval may.
    let both = latency_promised.iter().zip(&latency_seen);
    let unkept = both.filter(|(promised, saw)| **promised && !**saw).count();
    assert!(
        unkept * 20 <= seen(&latency_promised),
        "{unkept} runs say they could see +50 us, and did not"
    );
    // Two of six records are of days on which the machine was louder: such small runs say that they cannot see this, and more
    // rounds do.
    assert!(
        latency * 5 >= number * 4,
        "+50 us seen in {latency} of {number}"
    );
    assert_eq!(
        latency_of_many,
        larger.len(),
        "+50 us with four times the rounds"
    );
    assert!(
        of_many * 5 >= larger.len() * 4,
        "+5 % CPU with four times the rounds seen in {of_many}"
    );
}
