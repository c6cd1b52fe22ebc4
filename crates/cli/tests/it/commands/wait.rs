//! `voile wait`, the hook of an injected sidecar.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use crate::mesh::Process;

#[test]
fn it_returns_once_the_page_says_ready_and_gives_the_reason_when_it_never_does() {
    let page = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = page.local_addr().expect("an address");
    let wait = |timeout: &str| {
        Process::output(|voile| {
            voile.args(["wait", "--readiness", &address.to_string()]);
            voile.args(["--timeout", timeout]);
        })
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            answer(
                &page,
                "503 Service Unavailable",
                "not ready: no configuration",
            );
            answer(&page, "200 OK", "ready");
            answer(
                &page,
                "503 Service Unavailable",
                "not ready: no configuration",
            );
        });
        let ready = wait("60s");
        assert!(ready.status.success(), "{ready:?}");
        let late = wait("0s");
        assert_eq!(late.status.code(), Some(1), "{late:?}");
        let said = String::from_utf8_lossy(&late.stderr);
        assert!(said.contains("not ready: no configuration"), "{said}");
    });
    drop(page);
    let gone = wait("0s");
    assert_eq!(gone.status.code(), Some(1), "{gone:?}");
}

fn answer(page: &TcpListener, status: &str, body: &str) {
    let (mut caller, _) = page.accept().expect("a question");
    let question = BufReader::new(caller.try_clone().expect("the socket"))
        .lines()
        .next();
    let question = question.expect("a line").expect("text");
    assert_eq!(question, "GET /healthz/ready HTTP/1.1");
    let length = body.len();
    write!(
        caller,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .expect("sent");
}
