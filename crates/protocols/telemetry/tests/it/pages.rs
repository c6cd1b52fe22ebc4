//! Silent and slow strangers at the pages: a probe is answered whatever they hold open.

use std::future::Future;

use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;
use voile_telemetry::admin::{
    ADMIN_HEADER_TIMEOUT, MAX_ADMIN_CONNECTIONS, PageResponse, serve, serve_local,
};

/// A request whose body never comes.
const SLOW: &[u8] = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nslow";
const PROBE: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// Runs `client` against a page that says "fine". The clock stands still while any task can run.
fn with_page<F: Future<Output = ()>>(client: impl FnOnce(std::net::SocketAddr) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::task::spawn_local(serve(listener, |_| async {
            PageResponse::text(StatusCode::OK, "fine")
        }));
        client(address).await;
    });
}

async fn send(address: std::net::SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(bytes).await.expect("written");
    stream
}

async fn read_to_end(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // A connection that is cut may be reset: the bytes before count.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_crowd_that_never_finishes_its_requests_does_not_keep_a_probe_out() {
    with_page(|address| async move {
        let begin = tokio::time::Instant::now();
        let mut crowd = Vec::new();
        for _ in 0..MAX_ADMIN_CONNECTIONS * 2 {
            crowd.push(send(address, SLOW).await);
        }
        let answer = read_to_end(send(address, PROBE).await).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer:?}");
        assert!(answer.ends_with("fine"), "{answer:?}");
        assert!(
            begin.elapsed() < ADMIN_HEADER_TIMEOUT,
            "the probe waited for the crowd"
        );
        let oldest = read_to_end(crowd.swap_remove(0)).await;
        assert_eq!(oldest, "", "the oldest made room");
    });
}

#[test]
fn a_body_that_does_not_come_is_answered_and_the_connection_closed() {
    with_page(|address| async move {
        let answer = read_to_end(send(address, SLOW).await).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
        assert!(answer.contains("did not arrive within 5s"), "{answer:?}");
    });
}

/// Requests that browsers send on behalf of another site's page, and names of other owners that resolve to this
/// address.
#[test]
fn a_page_of_another_site_changes_nothing_and_reads_nothing_secret() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let mut addresses = Vec::new();
        for local in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            addresses.push(listener.local_addr().expect("an address"));
            let fine = |_| async { PageResponse::text(StatusCode::OK, "fine") };
            match local {
                true => drop(tokio::task::spawn_local(serve_local(listener, fine))),
                false => drop(tokio::task::spawn_local(serve(listener, fine))),
            }
        }
        // Method, fields; answers of pages for all clients, and of pages for the machine.
        for (method, fields, open, local) in [
            ("POST", "Host: 127.0.0.1:15000", 200, 200),
            ("POST", "Host: [::1]:15000", 200, 200),
            ("PUT", "Host: localhost:15000", 200, 200),
            ("POST", "Host: 10.0.0.9", 200, 200),
            ("POST", "Host: 127.0.0.1:15000\r\nOrigin: http://127.0.0.1:15000", 200, 200),
            ("POST", "Host: 127.0.0.1:15000\r\nSec-Fetch-Site: same-origin", 200, 200),
            ("POST", "Host: 127.0.0.1:15000\r\nSec-Fetch-Site: none", 200, 200),
            ("POST", "Host: 127.0.0.1:15000\r\nSec-Fetch-Site: cross-site", 403, 403),
            ("POST", "Host: localhost:15000\r\nSec-Fetch-Site: same-site", 403, 403),
            ("POST", "Host: 127.0.0.1:15000\r\nOrigin: http://evil.example", 403, 403),
            ("POST", "Host: 127.0.0.1:15000\r\nOrigin: http://127.0.0.1:3000", 403, 403),
            ("POST", "Host: 127.0.0.1:15000\r\nOrigin: null", 403, 403),
            ("DELETE", "Host: 127.0.0.1\r\nOrigin: null", 403, 403),
            ("POST", "Host: rebound.example:15000", 403, 403),
            ("POST", "Host: localhost.evil.example", 403, 403),
            ("POST", "Host: rebound.example\r\nOrigin: http://rebound.example", 403, 403),
            ("POST", "Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Dest: document", 403, 403),
            ("GET", "Host: 127.0.0.1:15000\r\nSec-Fetch-Site: same-origin", 200, 200),
            ("GET", "Host: 127.0.0.1:15000\r\nSec-Fetch-Site: cross-site", 200, 403),
            ("GET", "Host: localhost:15000\r\nSec-Fetch-Site: same-site", 200, 403),
            ("GET", "Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Dest: document", 200, 200),
            ("GET", "Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Dest: iframe", 200, 403),
            ("GET", "Host: 127.0.0.1:15000\r\nOrigin: http://evil.example", 200, 403),
            ("GET", "Host: rebound.example:15000", 200, 403),
        ] {
            for (address, wanted) in addresses.iter().zip([open, local]) {
                let request =
                    format!("{method} / HTTP/1.1\r\n{fields}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                let answer = read_to_end(send(*address, request.as_bytes()).await).await;
                let status = format!("HTTP/1.1 {wanted} ");
                assert!(answer.starts_with(&status), "{method} {fields}: {answer:?}");
            }
        }
    });
}
