//! `voile up` beside somebody who writes its files in place: no request fails while a file is empty or half written.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::mesh::{get, wait_until};
use crate::up::{Up, bookstore};

/// The gaps between emptying a file and writing it again.
const GAPS: [u64; 4] = [20, 50, 500, 2000];
/// Between two lines of a slow writer.
const LINE: Duration = Duration::from_millis(20);

/// Asks again and again until it is told to end; how many requests it sent, and how those failed that did.
fn ask_until(end: &Arc<AtomicBool>, to: SocketAddr) -> JoinHandle<(usize, Vec<String>)> {
    let end = Arc::clone(end);
    std::thread::spawn(move || {
        let (mut sent, mut failed) = (0, Vec::new());
        while !end.load(Ordering::Relaxed) {
            sent += 1;
            match get(to, "/") {
                Ok(answer) if answer.status == 200 => {}
                Ok(answer) => failed.push(answer.status.to_string()),
                Err(error) => failed.push(error.to_string()),
            }
        }
        (sent, failed)
    })
}

/// Time that a shell's `sleep` would take, during which the mesh does what it does.
fn pause(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::thread::park_timeout(time.saturating_sub(start.elapsed()));
    }
}

#[test]
fn no_request_fails_while_files_are_written_in_place() {
    let mut up = Up::start(bookstore, &["--quiet"]);
    let to = up.ready()["bookstore/storefront"];
    let files: Vec<_> = fs::read_dir(up.file(""))
        .expect("the folder")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "yaml"))
        .map(|path| (path.clone(), fs::read_to_string(&path).expect("text")))
        .collect();
    let end = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..2).map(|_| ask_until(&end, to)).collect();
    for gap in GAPS {
        for (path, _) in &files {
            fs::write(path, "").expect("emptied");
        }
        pause(Duration::from_millis(gap));
        for (path, text) in &files {
            fs::write(path, text).expect("written");
        }
        // Long enough that each gap is an episode of its own.
        pause(Duration::from_millis(200));
    }
    for (path, text) in &files {
        let mut writer = fs::File::create(path).expect("emptied");
        for line in text.split_inclusive('\n') {
            writer.write_all(line.as_bytes()).expect("written");
            pause(LINE);
        }
    }
    pause(Duration::from_secs(2));
    end.store(true, Ordering::Relaxed);
    for client in clients {
        let (sent, failed) = client.join().expect("it ends");
        assert!(
            failed.is_empty(),
            "{} of {sent} failed: {failed:?}",
            failed.len()
        );
        assert!(sent > 100, "{sent} were sent");
    }
    let said = up.text("err");
    assert!(said.contains("while it is being written"), "{said}");
    assert!(
        !said.contains(" is replaced") && !said.contains(" goes"),
        "{said}"
    );

    // A removal that is meant is obeyed: removing every file removes every pod.
    for (path, _) in &files {
        fs::remove_file(path).expect("removed");
    }
    wait_until("the removal is obeyed", || up.text("err").contains(" goes"));
}
