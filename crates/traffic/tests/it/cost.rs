//! What decisions cost, in instructions counted by valgrind, so that they cannot come to grow with the number of routes or
//! endpoints. This binary runs itself once more under valgrind; building the tables is not counted.
//!
//! The counts are those of the profile under test and repeat exactly. Time is the laboratory's business.

mod balance;
mod routes;

use std::env;
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};

/// Decisions counted for each case.
const COUNTED: u64 = 50;
const ORDERS: &str = "VOILE_TEST_DECISIONS";

/// Instructions of one decision in each of so many cases, in order, when `subject` is run; none where valgrind is missing.
fn count(subject: &str, cases: usize) -> Option<Vec<u64>> {
    let found = Command::new("valgrind").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: instructions are counted by valgrind, which is not here");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("counts");
    let done = Command::new("valgrind")
        .args(["--tool=callgrind", "--zero-before=*::begin_counting*"])
        .arg("--dump-before=*::end_counting*")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(env::current_exe().expect("a path"))
        .args(["--exact", subject, "--ignored", "--test-threads=1"])
        .env(ORDERS, "count")
        .stdin(Stdio::null())
        .output()
        .expect("valgrind starts");
    assert!(done.status.success(), "{done:?}");
    let each = (1..=cases).map(|number| total(&out.with_extension(number.to_string())) / COUNTED);
    Some(each.collect())
}

fn total(out: &Path) -> u64 {
    let text = std::fs::read_to_string(out).expect("counts were written");
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
    totals.expect("totals").trim().parse().expect("a number")
}

/// Whether this process is the one that is counted.
fn is_counted() -> bool {
    env::var(ORDERS).is_ok()
}

/// Has decisions counted.
fn counted(mut decide: impl FnMut()) {
    // What is made once, and caches of expressions, are not the cost of a decision.
    decide();
    begin_counting();
    for _ in 0..COUNTED {
        decide();
    }
    end_counting();
}

/// Valgrind forgets what it counted when this is called.
#[inline(never)]
fn begin_counting() {
    // Not the same as the other: in release the two would be made one.
    black_box(1_u8);
}

/// Valgrind writes down what it counted when this is called.
#[inline(never)]
fn end_counting() {
    black_box(2_u8);
}
