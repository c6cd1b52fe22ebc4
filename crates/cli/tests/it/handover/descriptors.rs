//! A sidecar whose descriptors run out for a moment hands over afterwards.

use rustix::process::{Pid, Resource, Rlimit};

use crate::handover::lending;
use crate::mesh::{Mesh, application, get, wait_until};

/// Lets a process open no more descriptors than this; gives what it could before.
pub(crate) fn limit_descriptors(pid: u32, most: u64) -> u64 {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id"));
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let lowered = Rlimit {
        current: Some(most),
        maximum: limit.maximum,
    };
    let before = rustix::process::prlimit(pid, Resource::Nofile, lowered).expect("our own process");
    before.current.unwrap_or(most)
}

#[test]
fn handover_goes_on_after_descriptors_ran_out() {
    let mut mesh = Mesh::start_as("STRICT", &lending());
    application::reflect(mesh.http_app());
    assert_eq!(get(mesh.http(), "/").expect("served").status, 200);
    let pid = mesh.client.pid();
    // A limit below what is open: nothing more opens.
    let before = limit_descriptors(pid, 3);
    let mut old = mesh.replace("client", &lending());
    wait_until("the successor is noticed", || {
        let log = old.log();
        log.contains("cannot accept a successor") || log.contains("no handover from now on")
    });
    limit_descriptors(pid, before);
    let status = old.wait();
    assert!(status.success(), "{status}\n{}", old.log());
    mesh.wait_ready();
    assert_eq!(get(mesh.http(), "/").expect("served").status, 200);
}
