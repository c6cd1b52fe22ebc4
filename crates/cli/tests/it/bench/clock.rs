//! `voile bench` while the machine's wall clock is set. The real clock is not touched: the programs of one run see another
//! wall clock, from a library that is loaded before libc and follows a file. Every other clock is the kernel's.

use std::path::{Path, PathBuf};
use std::process::Command;

use voile_testkit::prerequisites::{Prerequisite, require, skip};

use crate::bench::{changed, record};
use crate::mesh::{Process, wait_until};

/// Seconds that the clock is off by as soon as the file is there.
const STEPS: [i64; 2] = [3600, -3600];

/// The wall clock as after a change by an administrator.
const LIBRARY: &str = r"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    int ended = syscall(SYS_clock_gettime, clock, time);
    if (clock == CLOCK_REALTIME && access(SET, F_OK) == 0) {
        time->tv_sec += STEP;
    }
    return ended;
}
";

/// Nothing but the clock is to spoil a slice, on however busy a machine.
fn definition() -> String {
    changed(&[
        ("rounds = 3", "rounds = 5"),
        ("slice = \"150ms\"", "slice = \"1s\""),
        ("rate = 400", "rate = 100"),
        (
            "max_drift = 1000.0",
            "max_drift = 1000.0\nmax_machine_busy = 1.0\nmax_generator_busy = 1.0",
        ),
        ("\"baseline\", \"relay\"", "\"baseline\""),
        ("\"baseline\", \"both\"", "\"baseline\""),
        ("response_sizes = [64, 4096]", ""),
    ])
}

/// The library, made by the compiler that links this test, too; none where that is not here or the program loads none.
fn library(folder: &Path, set: &Path, step: i64) -> Option<PathBuf> {
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    std::fs::write(&source, LIBRARY).expect("written");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg(format!("-DSET=\"{}\"", set.display()))
        .arg(format!("-DSTEP={step}"))
        .output();
    let made = require(Prerequisite::Cc, made)?;
    assert!(made.status.success(), "{made:?}");
    let program = std::fs::read(env!("CARGO_BIN_EXE_voile")).expect("the program");
    let dynamic = program.windows(4).any(|name| name == b"ld-l");
    if !dynamic {
        skip(Prerequisite::DynamicLinking, "the program loads no library");
        return None;
    }
    Some(library)
}

/// Returns true if a child of this process is the load generator.
fn measures(parent: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task"))
        .into_iter()
        .flatten();
    let children = tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
        .collect::<String>();
    children.split_ascii_whitespace().any(|child| {
        let words = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(b"load")
    })
}

#[test]
fn a_clock_that_is_set_during_a_slice_is_named_the_slice_taken_again_and_no_latency_bent() {
    for step in STEPS {
        let folder = tempfile::tempdir().expect("a folder");
        let set = folder.path().join("set");
        let Some(library) = library(folder.path(), &set, step) else {
            return;
        };
        let (file, out) = (folder.path().join("it.toml"), folder.path().join("out"));
        std::fs::write(&file, definition()).expect("written");
        let mut bench = Process::start("bench", |voile| {
            voile.args(["bench", "run"]).arg(&file).arg("--out");
            voile.arg(&out).env("LD_PRELOAD", &library);
        });
        wait_until("a slice after the first is taken", || {
            bench.log().contains("slice 2/") && measures(bench.pid())
        });
        std::fs::write(&set, "").expect("written");
        let ended = bench.wait();
        let log = bench.log();
        assert_eq!(ended.code(), Some(0), "{log}");
        let words = format!("the machine's clock was set during the slice: it stepped by {step:+}");
        let record = record(&out);
        let runs = record["runs"].as_array().expect("runs");
        let (spoiled, others): (Vec<_>, Vec<_>) = runs.iter().partition(|run| {
            let reasons = run["invalid_reasons"].to_string();
            reasons.contains(&words)
        });
        let [_] = &spoiled[..] else {
            panic!(
                "one slice saw it: {} of {}: {log}",
                spoiled.len(),
                runs.len()
            );
        };
        // A busy machine may have spoiled another before, and only one of five is taken again.
        assert!(others.iter().any(|run| run["again"] == true), "{runs:#?}");
        assert!(
            log.contains(&words) && log.contains("does not count"),
            "{log}"
        );
        let page = std::fs::read_to_string(out.join("report.html")).expect("a report");
        assert!(page.contains("clock was set during the slice"));
        for run in runs {
            let figure = |name: &str| run[name].as_f64().expect("a number");
            let (asked, seconds) = (figure("rate"), figure("seconds"));
            assert!((0.9..10.0).contains(&seconds), "{run:#}");
            let requests = run["requests"].as_u64().expect("requests") as f64;
            assert!((requests - asked).abs() <= asked / 2.0, "{run:#}");
            let p50 = run["latency_us"]["p50"].as_f64().expect("a median");
            assert!((1.0..10e6).contains(&p50), "an hour is in it: {run:#}");
        }
        drop(bench);
    }
}
