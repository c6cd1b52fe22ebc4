//! Memory that ten thousand rules cost a real proxy, with all that it and its allocator keep: the kernel's figure before and
//! after.

use std::fmt::Write as _;

use crate::mesh::{HTTP_PORT, Mesh, application, get, wait_until};

/// Rules, and their allowed cost: the figure.
const RULES: usize = 10_000;
const MAX_BYTES: u64 = 2_000_000;

/// Bytes of memory of a process that are no file's.
fn anonymous(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.expect("the kernel's word") * 1024
}

fn set(mesh: &Mesh, rules: usize) {
    let mut text = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: paths, namespace: shop}\n\
                    spec:\n  selector: {matchLabels: {app: server}}\n  rules:\n"
        .to_owned();
    for number in 0..rules {
        let _ = writeln!(
            text,
            "  - to: [{{operation: {{paths: [/api/v1/resources/{number:05}]}}}}]"
        );
    }
    let new = mesh.config().join(".authorization.new");
    std::fs::write(&new, text).expect("policies");
    std::fs::rename(new, mesh.config().join("authorization.yaml")).expect("in place");
}

#[test]
fn ten_thousand_rules_take_two_megabytes_of_a_proxy() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let status = |path: &str| get(mesh.inbound(HTTP_PORT), path).map_or(0, |answer| answer.status);
    let last = |rules: usize| format!("/api/v1/resources/{:05}", rules - 1);
    let obeyed = |rules: usize| {
        const IN_A_ROW: usize = 12; // by both workers
        (0..IN_A_ROW).all(|_| status(&last(rules)) == 200 && status("/other") == 403)
    };
    // A few first, so that the memory that every policy needs is already there.
    set(&mesh, 10);
    wait_until("ten rules are obeyed", || obeyed(10));
    let before = anonymous(mesh.server.pid());
    set(&mesh, RULES);
    wait_until("all rules are obeyed", || obeyed(RULES));
    // The proxy returns the memory of the compilation a moment later.
    let mut held = 0;
    wait_until("memory is given back", || {
        held = anonymous(mesh.server.pid()).saturating_sub(before);
        println!("{RULES} rules take {held} bytes of the proxy");
        held <= MAX_BYTES
    });
    assert!(held > 0, "nothing is measured");
}
