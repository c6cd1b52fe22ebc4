//! Two records of the same experiment, one divided by the other: before and after a change. They were not measured in the
//! same rounds, so nothing can be paired, and what the machine did in between stands in every ratio; the page says so.

use crate::record::{Estimate, Record};
use crate::statistics::unpaired_ratio;
use crate::summarise::by_cell;
use crate::table::{Row, aligned, heading};
use crate::words::{self, interval, ratio};

/// What is compared, and its heading.
const FIGURES: [(&str, &str); 5] = [
    ("latency_us.p50", "p50"),
    ("latency_us.p99", "p99"),
    ("sidecar.cpu_us_per_request", "CPU/request/sidecar"),
    ("machine_cpu_us_per_request", "machine CPU/request"),
    ("sidecar.rss_bytes", "RSS/sidecar"),
];

/// Compares them, in text.
///
/// # Errors
/// When they cannot be compared: another profile, another load, no cell in common.
pub fn render(first: &Record, second: &Record) -> Result<String, String> {
    refuse(first, second)?;
    let (ours, theirs) = (by_cell(first), by_cell(second));
    let seed = first.experiment.seed;
    let mut rows = vec![heading(
        &[&[""][..], &FIGURES.map(|(_, title)| title)].concat(),
    )];
    let mut last = String::new();
    for (key, rounds) in &ours {
        let Some(others) = theirs.get(key) else {
            continue;
        };
        let title = words::title(key);
        if title != last {
            rows.push(Row::Title(title.clone()));
            last = title;
        }
        let cells = FIGURES.iter().map(|(name, _)| {
            let values = |rounds: &std::collections::BTreeMap<u32, crate::summarise::Figures>| {
                rounds
                    .values()
                    .filter_map(|f| f.get(*name).copied())
                    .collect::<Vec<f64>>()
            };
            let found: Option<Estimate> = unpaired_ratio(&values(rounds), &values(others), seed);
            found.map_or_else(|| "–".to_owned(), |r| interval(&r, ratio))
        });
        rows.push(Row::Cells(
            std::iter::once(key.contestant.clone())
                .chain(cells)
                .collect(),
        ));
    }
    if rows.len() == 1 {
        return Err("the records have no cell in common".to_owned());
    }
    let mut text = format!(
        "{} ({}) divided by {} ({}): ratios of medians with 95 % intervals.\n\
         Not measured in the same rounds: a machine that changed in between looks like a difference.\n",
        first.experiment.name,
        first.experiment.started_at,
        second.experiment.name,
        second.experiment.started_at
    );
    for difference in differences(first, second) {
        text += &difference;
        text.push('\n');
    }
    Ok(text + "\n" + &aligned(&rows))
}

/// What forbids a comparison.
fn refuse(first: &Record, second: &Record) -> Result<(), String> {
    let (a, b) = (&first.environment.profile, &second.environment.profile);
    if a != b {
        return Err(format!(
            "the first record is of a {a} build, the second of a {b} build: figures of different profiles are not compared"
        ));
    }
    let load = |record: &Record| {
        let run = record.runs.first();
        format!(
            "{} requests/s over {} connections, {} bytes, {} workers",
            run.map_or(0.0, |run| run.rate),
            run.map_or(0, |run| run.connections),
            record.experiment.size_bytes,
            record.experiment.workers
        )
    };
    let (a, b) = (load(first), load(second));
    if a == b {
        return Ok(());
    }
    Err(format!("the records are of different loads: {a}; {b}"))
}

/// What does not forbid it, but must be known.
fn differences(first: &Record, second: &Record) -> Vec<String> {
    let (a, b) = (&first.environment, &second.environment);
    let mut differences = Vec::new();
    for (what, a, b) in [
        ("processor", &a.cpu, &b.cpu),
        ("kernel", &a.kernel, &b.kernel),
        ("machine", &a.host, &b.host),
    ] {
        if a != b {
            differences.push(format!("Another {what}: {a}; {b}."));
        }
    }
    if a.cores != b.cores {
        differences.push(format!("Other cores: {}; {}.", a.cores, b.cores));
    }
    let names: std::collections::BTreeSet<&String> =
        a.versions.keys().chain(b.versions.keys()).collect();
    for name in names {
        let version = |versions: &std::collections::BTreeMap<String, String>| {
            versions
                .get(name)
                .cloned()
                .unwrap_or_else(|| "absent".to_owned())
        };
        let (a, b) = (version(&a.versions), version(&b.versions));
        if a != b {
            differences.push(format!("Another {name}: {a}; {b}."));
        }
    }
    if !a.voile_sha256.is_empty() && a.voile_sha256 == b.voile_sha256 {
        differences.push("Both measured the same voile program, byte for byte.".to_owned());
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Run;

    fn record(p50: f64, profile: &str) -> Record {
        let mut record = Record::default();
        record.environment.profile = profile.to_owned();
        for round in 1..=8 {
            let mut run = Run {
                contestant: "voile".to_owned(),
                mode: "both".to_owned(),
                tls: true,
                arrival: "uniform".to_owned(),
                round,
                valid: true,
                rate: 1000.0,
                ..Run::default()
            };
            run.latency_us.p50 = Some(p50 + f64::from(round));
            record.runs.push(run);
        }
        record
    }

    #[test]
    fn a_record_is_divided_by_another() {
        let text =
            render(&record(200.0, "release"), &record(400.0, "release")).expect("comparable");
        assert!(text.contains("0.51×"), "{text}");
        let text =
            render(&record(200.0, "release"), &record(200.0, "release")).expect("comparable");
        assert!(text.contains("1.00×"), "{text}");
    }

    #[test]
    fn what_cannot_be_compared_is_refused_with_the_reason() {
        let release = record(200.0, "release");
        let mut faster = release.clone();
        faster.runs[0].rate = 2000.0;
        let mut other = release.clone();
        other
            .runs
            .iter_mut()
            .for_each(|run| run.mode = "clientonly".to_owned());
        for (second, why) in [
            (
                record(200.0, "debug"),
                "different profiles are not compared",
            ),
            (faster, "different loads"),
            (other, "no cell in common"),
        ] {
            let error = render(&release, &second).expect_err("not comparable");
            assert!(error.contains(why), "{error}");
        }
    }
}
