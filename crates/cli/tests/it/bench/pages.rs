//! The pages on measuring, run as they stand. Runs of the lab are smoke tests here: two rounds, so no intervals and no verdicts.

use crate::mesh::page_commands::End::{Failure, Success};
use crate::mesh::page_commands::Page;
use crate::up::netns::start;
use crate::up::pair;

#[test]
fn a_mesh_and_a_service_are_measured_by_the_tutorial() {
    // A machine without namespaces skips it.
    let Some(possible) = start(pair, None) else {
        return;
    };
    drop(possible);
    let folder = tempfile::tempdir().expect("a folder");
    let mut page = Page::open_here("docs/tutorials/measure.md", folder.path().to_owned());
    page.run(&[
        ("voile bench quick", Success("slices in all")),
        ("voile bench quick", Success("CPU per request")),
        ("mkdir lab", Success("")),
        ("cat >lab/shop.yaml", Success("")),
        ("sed", Success("")),
        ("cat >load.yaml", Success("")),
        ("voile up lab --quiet", Success("")),
        ("until grep", Success("ready after")),
        ("for round in", Success("plain/load-3-0 has")),
        ("voile load", Success("plain-3.json")),
        ("voile stop", Success("has ended")),
        ("voile bench quick", Success("after/report.html")),
        ("voile bench compare", Success("ratios of medians")),
        ("voile bench gate", Failure("6 valid rounds or more")),
    ]);
    page.ends();
    let report = std::fs::read_to_string(page.file("before/report.html")).expect("a report");
    assert!(report.contains("CPU per request"));
    for name in ["shop-1.json", "plain-1.json"] {
        let text = std::fs::read_to_string(page.file(name)).expect("a result");
        let result: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert!(result["ok"].as_u64() > Some(0), "{name}: {result:#}");
    }
}

#[test]
fn a_committed_record_is_read_by_the_guide() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut page = Page::open_here("docs/guides/report.md", folder.path().to_owned());
    page.run(&[
        ("cp -r", Success("")),
        ("voile bench report", Success("266 % at p99 are noise")),
        ("voile bench targets", Success("1.41× [0.49–4.38]")),
        ("zcat", Success("generator late: 1.797ms at p99, bound 1ms")),
        ("voile bench compare", Success("1.10× [1.02–1.21]")),
        ("voile bench gate", Success("no regression is proven")),
        ("voile bench gate", Success("ratios to nginx within rounds")),
        ("voile bench gate", Failure("5 worse")),
    ]);
    page.ends();
    assert!(page.file("mine/plots").is_dir());
}

#[test]
fn a_feature_is_priced_by_the_guide() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut page = Page::open_here("docs/guides/price.md", folder.path().to_owned());
    page.run(&[
        ("voile bench run", Success("voile+tracing-1")),
        ("voile bench security-policies", Success("principals")),
        ("cat >price.toml", Success("")),
        ("voile bench run", Success("voile+access-log")),
        (
            "voile bench run",
            Success("voile+access-log divided by voile, within rounds"),
        ),
    ]);
    page.ends();
}
