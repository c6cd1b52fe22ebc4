//! Bounds the instructions that the generator spends on a request, counted by valgrind, so that the cost cannot creep up. This
//! binary runs itself once more under valgrind as the generator. The server stays in this process and is not counted.
//!
//! The counts are those of the profile under test (dev in CI: several times the release profile's).

use std::env;
use std::process::Command;

use voile_load::echo::EchoOptions;
use voile_load::{LoadOptions, LoadTarget, Stop};
use voile_testkit::prerequisites::{Prerequisite, program};

use crate::server::{PATIENCE, Served, loopback};

/// Tells the process under valgrind where to send requests.
const ORDERS: &str = "VOILE_TEST_LOAD_COST";
const SUBJECT: &str = "results::cost::subject";
/// Number of requests; large enough to hide one-time costs.
const COUNTED: u64 = 4_000;
/// Margin above the bound. Processors differ in the vector instructions that their libraries choose, and machines in how many
/// answers come at once.
const MARGIN_PERCENT: u64 = 10;

#[inline(never)]
fn begin_counting() {
    std::hint::black_box(());
}

#[inline(never)]
fn end_counting() {
    std::hint::black_box(());
}

/// The generator, under valgrind.
#[test]
#[ignore = "started by the tests beside it"]
fn subject() {
    let Ok(url) = env::var(ORDERS) else { return };
    let mut options = LoadOptions::new(LoadTarget::parse(&url).unwrap());
    // As fast as possible, and always the same number, however slow the machine is.
    options.rate = 0.0;
    options.requests = Some(COUNTED);
    options.duration = voile_load::options::UNTIL_STOPPED;
    options.timeout = PATIENCE;
    options.connections = 4;
    if url.starts_with("tcp:") {
        options.body = vec![b'x'; 64];
    }
    begin_counting();
    let result = voile_load::run(&options, &Stop::new().unwrap(), false).unwrap();
    end_counting();
    println!("sent={} ", result.ok);
}

/// Checks what a request costs. Skips where valgrind is missing.
fn check(url: &str, bound: u64) {
    let Some(valgrind) = program(Prerequisite::Valgrind, "valgrind") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("counts");
    let subject = Command::new(valgrind)
        .args(["--tool=callgrind", "--zero-before=*::begin_counting*"])
        .arg("--dump-before=*::end_counting*")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(env::current_exe().unwrap())
        .args([
            "--exact",
            SUBJECT,
            "--ignored",
            "--test-threads=1",
            "--nocapture",
        ])
        .env(ORDERS, url)
        .output()
        .unwrap();
    assert!(subject.status.success(), "{subject:?}");
    let said = String::from_utf8_lossy(&subject.stdout);
    let sent = said
        .split("sent=")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let sent: u64 = sent.and_then(|sent| sent.parse().ok()).unwrap();
    let counts = std::fs::read_to_string(out.with_extension("1")).unwrap();
    let total = counts
        .lines()
        .find_map(|line| line.strip_prefix("totals: "));
    let total: u64 = total.unwrap().trim().parse().unwrap();
    let each = total / sent.max(1);
    println!("{url}: {each} instructions a request, {sent} requests");
    assert!(
        each <= bound + bound * MARGIN_PERCENT / 100,
        "{each} instructions where {bound} were enough; `valgrind --tool=callgrind voile load` shows where they go"
    );
}

#[test]
fn a_request_costs_the_generator_so_many_instructions() {
    let server = Served::echo(EchoOptions::default());
    check(&format!("http://{}/?size=1024", server.address), 19_500);
    check(&format!("h2c://{}/?size=1024", server.address), 29_000);
    let tcp = Served::at(EchoOptions {
        tcp: vec![loopback()],
        ..EchoOptions::default()
    });
    check(&format!("tcp://{}", tcp.address), 17_700);
}
