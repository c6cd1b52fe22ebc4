//! More than a sidecar will carry: it refuses the surplus at once, serves what it took, and is itself again afterwards.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, RwLock, mpsc};
use std::time::Duration;

use crate::mesh::{Client, Mesh, application, get, memory, put, read_answer, series, wait_until};

fn limited(arguments: &[&str]) -> Client {
    Client {
        arguments: arguments.iter().map(ToString::to_string).collect(),
        ..Client::default()
    }
}

/// An application that answers on command.
fn waits(mesh: &Mesh) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (reached, arrivals) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    application::serve(mesh.http_app(), move |stream| {
        let mut reader = BufReader::new(stream);
        while application::read_request(&mut reader).is_some() {
            reached.send(()).expect("the test waits");
            let wait = || released.lock().expect("one at a time").recv();
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";
            if wait().is_err() || reader.get_mut().write_all(answer).is_err() {
                return;
            }
        }
    });
    (arrivals, release)
}

#[test]
fn requests_beyond_the_limits_are_refused_at_once_and_counted() {
    for (flag, reason) in [
        ("--max-requests", "requests"),
        ("--max-requests-per-destination", "requests_per_destination"),
    ] {
        let mesh = Mesh::start_as("STRICT", &limited(&[flag, "2"]));
        let (arrivals, release) = waits(&mesh);
        let mut waiting: Vec<TcpStream> = (0..2)
            .map(|_| {
                let mut stream = TcpStream::connect(mesh.http()).expect("a connection");
                stream
                    .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                    .expect("sent");
                arrivals.recv().expect("it reaches the application");
                stream
            })
            .collect();
        for _ in 0..3 {
            let refused = get(mesh.http(), "/").expect("an answer");
            assert_eq!(refused.status, 503);
            let body = String::from_utf8_lossy(&refused.body);
            assert!(body.starts_with("overload: "), "{body}");
        }
        for _ in 0..3 {
            release.send(()).expect("the application waits");
        }
        for stream in waiting.drain(..) {
            let answer = read_answer(&mut BufReader::new(stream)).expect("served");
            assert_eq!(answer.status, 200, "what was taken is finished");
        }
        assert_eq!(get(mesh.http(), "/").expect("room again").status, 200);
        let page = mesh.client_metrics();
        let label = format!("reason=\"{reason}\"");
        assert_eq!(
            series(&page, "voile_requests_overload_total", &[&label]),
            Some(3.0)
        );
        let flagged = [r#"response_flags="UO""#, r#"response_code="503""#];
        assert_eq!(series(&page, "istio_requests_total", &flagged), Some(3.0));
    }
}

#[test]
fn connections_beyond_the_limit_are_closed_at_once() {
    let mesh = Mesh::start_as("STRICT", &limited(&["--max-connections", "3"]));
    application::reflect(mesh.http_app());
    let held: Vec<TcpStream> = (0..3)
        .map(|_| {
            let mut stream = TcpStream::connect(mesh.http()).expect("a connection");
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .expect("sent");
            let answer = read_answer(&mut BufReader::new(&stream)).expect("served");
            assert_eq!(answer.status, 200);
            stream
        })
        .collect();
    assert!(get(mesh.http(), "/").is_err(), "closed without an answer");
    drop(held);
    wait_until("there is room again", || {
        get(mesh.http(), "/").is_ok_and(|answer| answer.status == 200)
    });
    assert!(
        mesh.client_metrics()
            .contains("voile_connections_shed_total")
    );
}

#[test]
fn at_the_memory_limit_new_work_is_refused_until_there_is_room_again() {
    // Far below what it uses: everything is refused, yet it lives and says why.
    let tight = Mesh::start_as("STRICT", &limited(&["--memory-limit", "1M"]));
    application::reflect(tight.http_app());
    wait_until("it looks at its memory", || get(tight.http(), "/").is_err());
    let answer = get(tight.client_admin(), "/ready").expect("its pages are there");
    assert_eq!(answer.status, 200);
    // Enough: nothing is refused.
    let roomy = Mesh::start_as("STRICT", &limited(&["--memory-limit", "2G"]));
    application::reflect(roomy.http_app());
    for _ in 0..200 {
        assert_eq!(get(roomy.http(), "/").expect("served").status, 200);
    }
    let page = roomy.client_metrics();
    let refused = series(&page, "voile_requests_overload_total", &["memory"]);
    assert_eq!(refused, Some(0.0));
}

/// The server of the crowd: answers at once, but `/slow` only when the gate is open; says what arrived.
fn slow_server(gate: &Arc<RwLock<()>>, reached: &mpsc::Sender<()>, stream: TcpStream) {
    let mut reader = BufReader::new(stream);
    while let Some((head, _)) = application::read_request(&mut reader) {
        if head.starts_with("GET /slow") {
            // The receiver is gone once the crowd is there.
            let _ = reached.send(());
            drop(gate.read());
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";
        if reader.get_mut().write_all(answer).is_err() {
            return;
        }
    }
}

/// A connection whose only request was answered.
fn idle(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect("sent");
    let answer = read_answer(&mut BufReader::new(&stream)).expect("served");
    assert_eq!(answer.status, 200);
    stream
}

/// Slow requests, one after another, until the proxy refuses one: the last of them.
fn crowd(mesh: &Mesh, arrivals: &mpsc::Receiver<()>) -> Vec<TcpStream> {
    /// More than enough to reach the limit: each holds at least a buffer of 16 KiB, and a connection to the server.
    const CROWD: usize = 3000;
    const TURN: Duration = Duration::from_millis(20);
    let counted = || -> f64 {
        let page = mesh.client_metrics();
        let shed = series(&page, "voile_connections_shed_total", &[]);
        let refused = series(&page, "voile_requests_overload_total", &["memory"]);
        shed.unwrap_or(0.0) + refused.unwrap_or(0.0)
    };
    let before = counted();
    // Of the last of an earlier crowd, which left before it was answered.
    while arrivals.try_recv().is_ok() {}
    let mut crowd = Vec::new();
    while crowd.len() < CROWD {
        let mut stream = TcpStream::connect(mesh.http()).expect("a connection");
        // A connection may be closed at once; a request that came in may be refused with a word.
        let _ = stream.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
        crowd.push(stream);
        while arrivals.recv_timeout(TURN).is_err() {
            if counted() > before {
                return crowd;
            }
        }
    }
    panic!("{CROWD} requests in flight and no end");
}

/// Fills a proxy beyond its memory limit and lets everybody go; the descriptors it holds afterwards beside those of
/// idle connections to the server.
fn fill_and_empty(
    mesh: &Mesh,
    gate: &RwLock<()>,
    arrivals: &mpsc::Receiver<()>,
    idle: Vec<TcpStream>,
) -> usize {
    let closed = gate.write().expect("nobody panics");
    let mut crowd = crowd(mesh, arrivals);
    wait_until("it said so before", || {
        mesh.client
            .log()
            .contains("memory limit is near: closing idle connections")
    });
    for stream in idle {
        let end = std::io::Read::read(&mut &stream, &mut [0; 1]);
        assert!(
            matches!(end, Ok(0) | Err(_)),
            "an idle connection was kept: {end:?}"
        );
    }
    // The proxy serves the connections that it accepted, and then has room again.
    drop(closed);
    crowd.pop();
    for (number, stream) in crowd.into_iter().enumerate() {
        let answer = read_answer(&mut BufReader::new(stream));
        let status = answer.map(|answer| answer.status);
        assert_eq!(
            status.as_ref().ok(),
            Some(&200),
            "request {number}: {status:?}"
        );
    }
    wait_until("it serves again", || {
        get(mesh.http(), "/").is_ok_and(|answer| answer.status == 200)
    });
    let gauge = |name| series(&mesh.client_metrics(), name, &[]);
    wait_until("nobody is connected any more", || {
        gauge("voile_connections") == Some(0.0)
    });
    let kept = gauge("voile_upstream_idle_connections").expect("a number") as usize;
    descriptors(mesh.client.pid()) - kept
}

fn descriptors(pid: u32) -> usize {
    let folder = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    folder.count()
}

#[test]
fn near_its_memory_limit_a_proxy_lets_go_of_what_is_idle_then_refuses_and_recovers() {
    /// Memory allowed above that of an idle proxy.
    const ROOM: u64 = 12 << 20;
    /// Connections to the pages and to the control plane come and go.
    const SLACK: usize = 4;
    let limit = memory(
        Mesh::start_as("STRICT", &limited(&[])).client.pid(),
        "VmRSS:",
    ) + ROOM;
    let mesh = Mesh::start_as("STRICT", &limited(&["--memory-limit", &limit.to_string()]));
    let (reached, arrivals) = mpsc::channel();
    let gate = Arc::new(RwLock::new(()));
    let open = Arc::clone(&gate);
    application::serve(mesh.http_app(), move |stream| {
        slow_server(&open, &reached, stream);
    });
    let idle: Vec<TcpStream> = (0..20).map(|_| idle(mesh.http())).collect();
    let first = fill_and_empty(&mesh, &gate, &arrivals, idle);
    fill_and_empty(&mesh, &gate, &arrivals, Vec::new());
    let third = fill_and_empty(&mesh, &gate, &arrivals, Vec::new());
    assert!(third <= first + SLACK, "descriptors: {first} {third}");
    // The workers return freed memory a moment after the last of them is empty.
    wait_until("what it holds is within the limit", || {
        memory(mesh.client.pid(), "VmRSS:") <= limit
    });
}

#[test]
fn a_limit_of_the_mesh_configuration_holds_while_it_is_there() {
    let mesh = Mesh::start_as("STRICT", &limited(&[]));
    application::reflect(mesh.http_app());
    let set = |values: &str| {
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |-\n    defaultConfig: {{runtimeValues: {{{values}}}}}\n"
        );
        put(&mesh.config().join("istio.yaml"), &text);
    };
    let held = idle(mesh.http());
    set("overload.global_downstream_max_connections: \"1\"");
    wait_until("no other is taken", || get(mesh.http(), "/").is_err());
    set("");
    wait_until("others are taken again", || {
        get(mesh.http(), "/").is_ok_and(|answer| answer.status == 200)
    });
    drop(held);
}
