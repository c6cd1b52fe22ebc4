//! Curves of committed records.

use std::path::Path;

use voile_plan::Curves;
use voile_report::record::Record;

fn record(name: &str) -> Record {
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../benchmarks/records");
    let bytes = std::fs::read(records.join(name).join("record.json.gz")).expect("a record");
    let text = voile_report::gzip::decompress(&bytes).expect("gzip");
    Record::from_json(&text).expect("a record")
}

fn fit(names: &[&str]) -> Result<Curves, String> {
    voile_plan::fit(names.iter().map(|name| record(name)).collect())
}

#[test]
fn a_record_has_the_points_of_its_cells() {
    let curves = fit(&["2026-11-30-speed-mtls-profile", "2026-11-22-tokens"]).expect("curves");
    let loads = |set: &str| -> Vec<(f64, u32)> {
        let mut loads: Vec<_> = curves.sets[set]
            .iter()
            .map(|point| (point.rate, point.connections))
            .collect();
        loads.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        loads
    };
    let measured = [
        (50.0, 4),
        (1000.0, 2),
        (1000.0, 4),
        (1000.0, 16),
        (1000.0, 32),
        (1000.0, 64),
        (4000.0, 16),
    ];
    assert_eq!(loads("none"), measured);
    assert_eq!(loads("mtls"), measured[1..]);
    let point = curves.sets["mtls"]
        .iter()
        .find(|point| point.rate > 3999.0)
        .expect("a point");
    let side = point.sides["client-sidecar"];
    assert!(
        side.cpu_us
            .is_some_and(|cpu| (5.0..100.0).contains(&cpu.median))
    );
    assert!(side.memory_bytes.is_some_and(|memory| memory.median > 1e6));
    assert!(point.latency_us.p50.is_some_and(|p50| p50.median > 0.0));
    // A token costs the server's side, as the difference to requests without one.
    let token = &curves.sets["tokens"][0];
    assert!(
        token.sides["server-sidecar"]
            .cpu_us
            .is_some_and(|cpu| cpu.median < 100.0)
    );
}

#[test]
fn records_that_do_not_belong_together_are_refused_with_the_cure() {
    for (names, words) in [
        (
            &["2026-11-22-tokens", "2026-11-24-sidecar-free"][..],
            "one file of curves for each machine",
        ),
        (&[], "no record"),
    ] {
        let why = fit(names).expect_err("refused");
        assert!(why.contains(words), "{why}");
    }
}
