//! Supervised children: started, watched and ended, also when they resist.

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use voile_host::child::{ChildExit, Output, Spec, pids_of_group, stop_all};
use voile_host::machine::cores_here;

const LONG: Duration = Duration::from_secs(20);

fn shell(script: &str) -> Spec {
    Spec::new("script", "/bin/sh").arg("-c").arg(script)
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "never came true: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn exit_codes_and_signals_are_told_apart() {
    for (script, expected) in [
        ("exit 0", ChildExit::Code(0)),
        ("exit 3", ChildExit::Code(3)),
        ("kill -9 $$", ChildExit::Signal(9)),
    ] {
        let mut child = shell(script).start().expect("sh exists");
        assert_eq!(child.wait(LONG), Some(expected), "{script}");
        assert_eq!(child.wait(LONG), Some(expected), "asked again: {script}");
    }
}

#[test]
fn a_program_that_does_not_exist_is_named() {
    let error = Spec::new("ghost", "/no/such/program")
        .start()
        .expect_err("cannot start");
    assert!(error.is_not_found());
    assert!(
        error.to_string().contains("ghost") && error.to_string().contains("/no/such/program"),
        "{error}"
    );
}

#[test]
fn output_goes_to_files_and_to_lines() {
    let folder = tempfile::tempdir().expect("temp dir");
    let file = folder.path().join("out");
    let (sender, lines) = mpsc::channel();
    let mut child = shell("echo one; echo two >&2; printf three >&2")
        .stdout(Output::File(file.clone()))
        .stderr(Output::Lines(Box::new(move |line| {
            sender.send(line.to_owned()).expect("receiver lives");
        })))
        .start()
        .expect("sh exists");
    child.wait(LONG).expect("ends");
    assert_eq!(fs::read_to_string(file).expect("readable"), "one\n");
    assert_eq!(lines.iter().collect::<Vec<_>>(), ["two", "three"]);
}

#[test]
fn a_child_that_ignores_term_is_killed_with_its_descendants() {
    let (sender, lines) = mpsc::channel();
    let mut child = shell("trap '' TERM; sh -c 'trap \"\" TERM; echo up; while :; do sleep 60; done' & while :; do sleep 60; done")
        .stdout(Output::Lines(Box::new(move |_| sender.send(()).unwrap_or_default())))
        .start()
        .expect("sh exists");
    lines.recv_timeout(LONG).expect("the descendant is up");
    let group = child.pid();
    wait_until("shell, inner shell and sleeps run", || {
        child.group_pids().len() >= 3
    });
    assert_eq!(child.stop(Duration::from_millis(50)), ChildExit::Signal(9));
    wait_until("the group is gone", || pids_of_group(group).is_empty());
}

/// The cores that the kernel lets a process run on.
fn allowed(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = |line: &str| line.strip_prefix("Cpus_allowed_list:").map(str::to_owned);
    let list = status.lines().find_map(line).expect("a list");
    list.trim().to_owned()
}

#[test]
fn a_child_that_is_pinned_may_run_on_its_cores_alone_and_so_may_its_descendants() {
    let here = cores_here();
    let last = *here.last().expect("we run somewhere");
    let mut child = shell("sleep 600 & wait")
        .cores(&[last])
        .start()
        .expect("sh exists");
    wait_until("shell and sleep run", || child.group_pids().len() >= 2);
    for pid in child.group_pids() {
        assert_eq!(allowed(pid), last.to_string());
    }
    child.stop(Duration::ZERO);
    let free = shell("exec sleep 600").start().expect("sh exists");
    assert_eq!(allowed(free.pid()), allowed(std::process::id()));
}

#[test]
fn descendants_are_ended_when_the_leader_ends_by_itself() {
    let mut child = shell("sleep 600 & exit 4").start().expect("sh exists");
    let group = child.pid();
    assert_eq!(child.wait(LONG), Some(ChildExit::Code(4)));
    wait_until("the group is gone", || pids_of_group(group).is_empty());
}

#[test]
fn a_dropped_child_is_ended() {
    let child = shell("exec sleep 600").start().expect("sh exists");
    let pid = child.pid();
    drop(child);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn a_child_outlives_the_thread_that_started_it() {
    let mut child = std::thread::spawn(|| shell("exec sleep 600").start().expect("sh exists"))
        .join()
        .expect("no panic");
    assert_eq!(
        child.wait(Duration::from_millis(50)),
        None,
        "the death signal fired when the thread ended"
    );
    child.stop(LONG);
}

#[test]
fn many_children_share_one_grace() {
    let mut children: Vec<_> = (0..4)
        .map(|_| shell("exec sleep 600").start().expect("sh exists"))
        .collect();
    stop_all(&mut children, LONG);
    for child in &mut children {
        assert_eq!(child.try_exit(), Some(ChildExit::Signal(15)));
    }
}

#[test]
fn the_command_line_is_quoted_where_a_shell_needs_it() {
    let spec = Spec::new("x", "/bin/echo").args(["plain", "two words", "it's", ""]);
    assert_eq!(
        spec.command_line(),
        r"/bin/echo plain 'two words' 'it'\''s' ''"
    );
}
