//! Notes on requests must cost no system calls. strace counts them, if it is installed and may trace.

use std::io::{BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use voile_testkit::prerequisites::{Prerequisite, require, skip};

use super::{apply, mesh_config, telemetry};
use crate::mesh::{Mesh, Process, application, read_answer, wait_until};

const REQUESTS: usize = 100;

/// Attaches strace to all threads of a process; none where that cannot be done.
fn trace(process: &Process, calls: &str, into: &Path) -> Option<Child> {
    let pid = process.pid().to_string();
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-e", &format!("trace={calls}"), "-p", &pid])
        .arg("-o")
        .arg(into);
    let started = strace.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = require(Prerequisite::Strace, started)?;
    let mut gone = false;
    wait_until("strace looks at every thread", || {
        gone = child.try_wait().expect("it can be asked").is_some();
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
        gone || threads.flatten().all(|thread| {
            let status = std::fs::read_to_string(thread.path().join("status"));
            status.is_ok_and(|text| !text.contains("TracerPid:\t0\n"))
        })
    });
    if gone {
        skip(Prerequisite::Strace, "strace may not trace other processes");
        return None;
    }
    Some(child)
}

#[test]
fn a_connections_addresses_are_asked_of_the_kernel_once_however_many_requests_are_logged() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let folder = mesh.config();
    let folder = folder.parent().expect("a parent");
    let log = folder.join("all.log");
    let config = mesh_config(&format!(
        "extensionProviders:\n- name: all\n  envoyFileAccessLog:\n    path: {}\n    logFormat:\n      text: \"%REQ(:PATH)% %UPSTREAM_LOCAL_ADDRESS%\"\n",
        log.display()
    ));
    let resources = telemetry("  accessLogging:\n  - providers:\n    - name: all\n");
    apply(&mesh, "all.log", &format!("{config}{resources}"));
    let mut stream = BufReader::new(TcpStream::connect(mesh.http()).expect("a connection"));
    let mut ask = |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        stream
            .get_mut()
            .write_all(request.as_bytes())
            .expect("sent");
        let answer = read_answer(&mut stream).expect("an answer");
        assert_eq!(answer.status, 200);
    };
    ask("/first");
    let sidecars = [&mesh.client, &mesh.server];
    let traces = sidecars.map(|sidecar| folder.join(format!("{}.strace", sidecar.pid())));
    let mut traced = Vec::new();
    for (sidecar, into) in sidecars.into_iter().zip(&traces) {
        let Some(child) = trace(sidecar, "getsockname,getpeername", into) else {
            return;
        };
        traced.push(child);
    }
    (0..REQUESTS).for_each(|_| ask("/again"));
    for mut child in traced {
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
        child.wait().expect("strace ends");
    }
    for path in traces {
        let calls = std::fs::read_to_string(&path).expect("what strace saw");
        assert!(calls.lines().count() < REQUESTS / 10, "{calls}");
    }
    wait_until("every request is logged by both with our address", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let told = text.lines().filter(|line| line.starts_with("/again 127."));
        told.count() == 2 * REQUESTS
    });
}
