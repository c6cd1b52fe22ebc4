//! Fortio's results beside ours: the reader reads the files of Fortio 1.66.5, and our files in Fortio's form read the same.

use voile_load::Stop;
use voile_load::comparison::{parse, table};
use voile_load::echo::EchoOptions;

use crate::server::Served;

/// The form that Fortio 1.66.5 writes, with figures of our own.
const FORTIO: &str = r#"{
  "RunType": "HTTP", "Labels": "x", "StartTime": "2026-11-21T10:00:00Z", "RequestedQPS": "100", "RequestedDuration": "5s",
  "ActualQPS": 99.5, "ActualDuration": 5000000000, "NumThreads": 4, "Version": "1.66.5",
  "DurationHistogram": {
    "Count": 500, "Min": 0.001, "Max": 0.02, "Sum": 1.25, "Avg": 0.0025, "StdDev": 0.001,
    "Data": [{"Start": 0.001, "End": 0.02, "Percent": 100, "Count": 500}],
    "Percentiles": [{"Percentile": 50, "Value": 0.002}, {"Percentile": 75, "Value": 0.003}, {"Percentile": 90, "Value": 0.004}, {"Percentile": 99, "Value": 0.01}]
  },
  "ErrorsDurationHistogram": {"Count": 3, "Min": 0, "Max": 0, "Sum": 0, "Avg": 0, "StdDev": 0, "Data": null},
  "RetCodes": {"200": 497, "503": 3}, "URL": "http://a/", "NumConnections": 1
}"#;

#[test]
fn a_result_of_fortios_stands_beside_ours() {
    let server = Served::echo(EchoOptions::default());
    let result = voile_load::run(&server.load("/?size=10"), &Stop::new().unwrap(), false).unwrap();
    let theirs = parse("theirs.json", FORTIO).unwrap();
    assert_eq!(
        (
            theirs.by.as_str(),
            theirs.rate,
            theirs.requests,
            theirs.errors
        ),
        ("fortio 1.66.5", 99.5, 500, 3)
    );
    assert_eq!(
        theirs.percentiles_us,
        [
            Some(2_000.0),
            Some(3_000.0),
            Some(4_000.0),
            Some(10_000.0),
            None
        ]
    );
    let ours = parse("ours.json", &result.to_json()).unwrap();
    let form = parse(
        "form.json",
        &result.to_fortio(&voile_load::fortio::FortioForm::default()),
    )
    .unwrap();
    assert_eq!(
        (ours.requests, ours.errors, ours.by.as_str()),
        (100, 0, "voile load")
    );
    assert_eq!(
        (form.requests, form.errors, form.by.as_str()),
        (100, 0, "voile load")
    );
    for (ours, form) in ours.percentiles_us.iter().zip(form.percentiles_us) {
        assert!(
            (ours.unwrap() - form.unwrap()).abs() < 1.0,
            "{ours:?} {form:?}"
        );
    }
    let text = table(&[theirs, ours]);
    assert!(
        text.contains("theirs.json  fortio 1.66.5        99.5        3     2.500     2.000"),
        "{text}"
    );
    assert!(
        text.contains("p50\n  theirs.json ") && text.contains('█'),
        "{text}"
    );
}

#[test]
fn what_is_no_result_is_refused_with_a_word() {
    for (text, word) in [
        ("", "not JSON"),
        ("{}", "neither"),
        (r#"{"DurationHistogram":{}}"#, "missing"),
        (r#"{"latency_us":{}}"#, "missing"),
    ] {
        let why = parse("it", text).unwrap_err();
        assert!(why.contains(word), "{text}: {why}");
    }
}
