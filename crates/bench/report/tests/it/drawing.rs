//! The drawings keep their promises: self-contained, escaped, invalid runs listed and nowhere drawn.

use voile_report::record::{Record, ValueKind};
use voile_report::summarise::summarise;
use voile_report::targets::{TargetResult, TargetVerdict};
use voile_report::{csv, html, table};

const FIXTURE: &str = include_str!("../fixture/record.json");

fn fixture() -> Record {
    Record::from_json(FIXTURE).expect("the fixture is a record")
}

#[test]
fn the_report_is_one_file_that_needs_no_network_and_no_script() {
    let page = html::render(&fixture());
    for part in [
        "<svg",
        "<title>",
        "In words",
        "Proof of path",
        "A/A control",
        "Environment",
        "Repeat it",
        "prefers-color-scheme",
        "@media print",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    for foreign in [
        "http://", "https://", "<script", "@import", "url(", "<link", "<img",
    ] {
        assert!(!page.contains(foreign), "{foreign} has no place in it");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    for none in ["NaN", ">inf", "\"inf", " inf<", "-inf"] {
        assert!(
            !page.contains(none),
            "a figure that is none was drawn: {none}"
        );
    }
}

#[test]
fn the_report_begins_with_three_figures_and_one_plot_and_folds_the_rest() {
    let page = html::render(&fixture());
    let order = [
        "class=\"tiles\"",
        "<h3>Added latency</h3>",
        "<h3>CPU per request</h3>",
        "<h3>Memory</h3>",
        "How far to trust it: ",
        "<figure class=\"first\">",
        "<nav>Below: ",
        "<summary>In words</summary>",
        "<summary>Figures</summary>",
        "<summary>Repeat it</summary>",
    ];
    let places = order.map(|part| {
        page.find(part)
            .unwrap_or_else(|| panic!("{part} is missing"))
    });
    assert!(places.is_sorted(), "{places:?}");
    let links = page.matches("<a href=\"#part-").count();
    assert_eq!(links, page.matches("<details class=\"part\">").count());
    let text = table::render(&fixture());
    let lines: Vec<&str> = text.lines().take(5).collect();
    assert!(lines[0].starts_with("voile, two sidecars"), "{lines:?}");
    for (line, title) in lines[1..]
        .iter()
        .zip(["Added latency", "CPU per request", "Memory"])
    {
        assert!(line.trim_start().starts_with(title), "{line}");
    }
    assert!(lines[4].starts_with("How far to trust it: "), "{lines:?}");
}

#[test]
fn the_same_record_gives_the_same_drawings() {
    assert_eq!(html::render(&fixture()), html::render(&fixture()));
    assert_eq!(csv::render(&fixture()), csv::render(&fixture()));
}

#[test]
fn markup_in_a_record_is_shown_as_text() {
    let mut record = fixture();
    let evil = "<script>alert(1)</script>";
    evil.clone_into(&mut record.experiment.name);
    evil.clone_into(&mut record.environment.cpu);
    record.notes.push(evil.to_owned());
    record.runs[0].valid = false;
    record.runs[0].invalid_reasons = vec![evil.to_owned()];
    for summary in &mut record.summary {
        summary.contestant = evil.to_owned();
    }
    let page = html::render(&record);
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
}

#[test]
fn an_invalid_slice_is_listed_with_its_reason_and_counted_nowhere() {
    let mut record = fixture();
    let spoiled = record
        .runs
        .iter()
        .position(|run| run.valid && run.mode == "baseline")
        .expect("a baseline run");
    record.runs[spoiled].latency_us.p50 = Some(1e9);
    record.runs[spoiled].valid = false;
    record.runs[spoiled].invalid_reasons = vec!["a dog barked".to_owned()];
    summarise(&mut record);
    assert!(record.summary.iter().all(|s| {
        s.figures
            .values()
            .all(|figure| figure.high.unwrap_or(0.0) < 1e8)
    }));
    assert!(html::render(&record).contains("a dog barked"));
}

#[test]
fn results_csv_has_the_columns_that_istio_tools_users_know() {
    let text = csv::render(&fixture());
    let mut lines = text.lines();
    let head = lines.next().expect("a head");
    assert!(head.starts_with("StartTime,ActualDuration,Labels,NumThreads,ActualQPS,p50,p90,p99,p999,cpu_mili_avg_istio_proxy_fortioclient,cpu_mili_avg_istio_proxy_fortioserver,"));
    assert!(
        head.contains(",mem_Mi_avg_istio_proxy_fortioclient,mem_Mi_avg_istio_proxy_fortioserver,")
    );
    let columns = head.split(',').count();
    assert_eq!(lines.clone().count(), fixture().summary.len());
    assert!(lines.all(|line| line.split(',').count() == columns));
}

#[test]
fn the_table_shows_each_contestant() {
    let record = fixture();
    let text = table::render(&record);
    for summary in &record.summary {
        assert!(text.contains(&summary.contestant));
    }
}

#[test]
fn an_empty_record_is_drawn_too() {
    let record = Record::default();
    assert!(html::render(&record).contains("</html>"));
    assert_eq!(csv::render(&record).lines().count(), 1);
    assert_eq!(table::render(&record), "");
}

#[test]
fn verdicts_stand_on_the_page_and_columns_are_those_that_were_measured() {
    let mut record = fixture();
    record.verdicts = vec![TargetVerdict {
        row: "cheaper <than> all".to_owned(),
        cell: "HTTP/1.1".to_owned(),
        figure: "sidecar.cpu_us_per_request".to_owned(),
        wanted: "≤ 0.9 × nginx".to_owned(),
        seen: "0.71× nginx".to_owned(),
        beside: String::new(),
        outcome: TargetResult::Reached,
    }];
    let page = html::render(&record);
    for part in [
        "cheaper &lt;than&gt; all",
        "0.71× nginx",
        "t good\">reached",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    let text = table::render(&record);
    assert!(
        text.contains("added p50") && !text.contains("requests/s"),
        "{text}"
    );
    for summary in &mut record.summary {
        summary.kind = ValueKind::Saturation;
        summary.figures.retain(|name, _| name == "achieved_rps");
    }
    let text = table::render(&record);
    assert!(
        text.contains("requests/s") && !text.contains("added p50"),
        "{text}"
    );
}
