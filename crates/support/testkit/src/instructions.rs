//! Instructions of a decision, counted by valgrind: a test's binary runs one of its tests once more under it. Counts are those of the
//! profile under test and repeat exactly.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::prerequisites::{Prerequisite, program};

/// Decisions counted for each case.
pub const COUNTED: u64 = 50;
/// Set in the process that is counted.
pub const ORDERS: &str = "VOILE_TEST_DECISIONS";

/// Instructions of one decision in each of so many cases, in order, when `subject` is run; none, and the test is skipped, where valgrind is missing.
///
/// # Panics
/// When valgrind or the subject fails, or wrote down fewer cases.
pub fn count(subject: &str, cases: usize) -> Option<Vec<u64>> {
    let valgrind = program(Prerequisite::Valgrind, "valgrind")?;
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("counts");
    let done = Command::new(valgrind)
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

/// Valgrind forgets what it counted when this is called.
#[inline(never)]
pub fn begin_counting() {
    // Not the same as the other: in release the two would be made one.
    std::hint::black_box(1_u8);
}

/// Valgrind writes down what it counted when this is called.
#[inline(never)]
pub fn end_counting() {
    std::hint::black_box(2_u8);
}
