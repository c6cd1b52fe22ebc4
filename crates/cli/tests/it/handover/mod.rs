//! Restarting sidecars under load: the new process takes the listening sockets, the old one finishes what it has, and no
//! request of a client that keeps sending fails.

pub(crate) mod descriptors;
mod names;
pub(crate) mod protocols;

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::process::Signal;

use crate::mesh::load::Load;
use crate::mesh::{Client, Mesh, Process, application, get, read_answer, series, wait_until};

pub(crate) fn lending() -> Client {
    Client {
        handover: true,
        drain_timeout: Some("1s"),
        ..Client::default()
    }
}

#[test]
fn no_request_fails_while_both_sidecars_are_restarted_in_turn() {
    for extra in [
        &["--method", "POST", "--payload-size", "100"][..],
        &["--no-keepalive"][..],
    ] {
        let mut mesh = Mesh::start_as("STRICT", &lending());
        application::reflect(mesh.http_app());
        let options = [&["--rate", "1000", "--connections", "16"][..], extra].concat();
        let load = Load::start("load", &format!("http://{}/", mesh.http()), &options);
        for pod in ["client", "server", "client", "server"] {
            let mut old = mesh.replace(pod, &lending());
            let status = old.wait();
            assert!(status.success(), "{pod}: {status}\n{}", old.log());
            mesh.wait_ready();
        }
        wait_until("the last ones carry it", || {
            let labels = ["reporter=\"destination\"", "response_code=\"200\""];
            series(&mesh.server_metrics(), "istio_requests_total", &labels) > Some(1000.0)
        });
        let result = load.none_failed();
        assert!(result["status"]["200"].as_u64() > Some(1000), "{result:#}");
    }
}

#[test]
fn a_request_in_flight_outlives_its_process_and_new_ones_go_to_the_next() {
    let mut mesh = Mesh::start_as("STRICT", &lending());
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    application::serve(mesh.http_app(), move |stream| {
        let mut reader = BufReader::new(stream);
        while let Some((head, _)) = application::read_request(&mut reader) {
            if head.starts_with("GET /slow") {
                let released = released.lock().expect("one at a time");
                released.recv().expect("released");
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";
            if reader.get_mut().write_all(answer).is_err() {
                return;
            }
        }
    });
    let mut slow = TcpStream::connect(mesh.http()).expect("a connection");
    slow.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect("sent");
    let mut old = mesh.replace("client", &lending());
    wait_until("the new process serves", || {
        mesh.client.log().contains("listening sockets taken over") && old.log().contains("draining")
    });
    assert_eq!(get(mesh.http(), "/fast").expect("served").status, 200);
    assert!(old.is_running(), "it waits for its request");
    release.send(()).expect("the application waits");
    let answer = read_answer(&mut BufReader::new(slow)).expect("the answer");
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"done"[..]));
    assert!(answer.head.contains("Connection: close"), "{}", answer.head);
    assert!(old.wait().success(), "{}", old.log());
}

#[test]
fn a_successor_that_cannot_serve_changes_nothing() {
    let mut mesh = Mesh::start_as("STRICT", &lending());
    application::reflect(mesh.http_app());
    // One of another workload is refused by name, before it gets anything.
    let socket = mesh.handover_socket("client");
    let mut stranger = Process::start("stranger", |voile| {
        voile.args(["proxy", "--workload", "shop/other"]);
        voile.args(["--control", "https://127.0.0.1:1"]);
        voile
            .arg("--root-cert")
            .arg(mesh.state().join("root-cert.pem"));
        voile.arg("--token-file").arg("/nowhere");
        voile.arg("--handover").arg(&socket);
        voile.args(["--admin", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
        voile.args(["--readiness", "127.0.0.1:0"]);
    });
    assert_eq!(stranger.wait().code(), Some(1));
    let said = stranger.log();
    assert!(
        said.contains(
            "the running proxy refuses: this process speaks `voile-handover/1 shop/client`"
        ),
        "{said}"
    );
    // One that dies before it is ready leaves everything as it was.
    mesh.kill_control();
    let old = mesh.replace("client", &lending());
    wait_until("it has the sockets", || {
        mesh.client.log().contains("listening sockets taken over")
    });
    let mut failed = std::mem::replace(&mut mesh.client, old);
    failed.kill();
    for _ in 0..5 {
        assert_eq!(get(mesh.http(), "/").expect("served").status, 200);
    }
    wait_until("the old one says so", || {
        mesh.client.log().contains("this process keeps serving")
    });
    // And the next one is welcome.
    mesh.restart_control();
    let mut old = mesh.replace("client", &lending());
    assert!(old.wait().success(), "{}", old.log());
    mesh.wait_ready();
    assert_eq!(get(mesh.http(), "/").expect("served").status, 200);
    // A proxy that ends in good order removes the socket.
    mesh.client.terminate();
    assert!(mesh.client.wait().success());
    assert!(!socket.exists());
}

/// The successor has the same sockets, so a connection that it accepted would end with it.
#[test]
fn a_successor_that_is_not_ready_takes_no_connection() {
    const MORE: u16 = 8090;
    let mut mesh = Mesh::start_as("STRICT", &lending());
    application::reflect(mesh.http_app());
    // As long as a port is taken that it is to listen on, no process is ready; all else is served.
    let _taken = TcpListener::bind(mesh.address(100, MORE)).expect("a free address");
    mesh.set_extra_egress(Some((MORE, "HTTP")));
    let ready = |mesh: &Mesh| {
        get(mesh.management()[5], "/healthz/ready").is_ok_and(|page| page.status == 200)
    };
    wait_until("the port is missed", || !ready(&mesh));
    let old = mesh.replace("client", &lending());
    wait_until("the new process knows the mesh", || {
        mesh.client.log().contains("configuration in force")
    });
    // Only the new process could accept these.
    old.signal(Signal::STOP);
    let calls: Vec<TcpStream> = (0..4)
        .map(|_| TcpStream::connect(mesh.http()).expect("they wait in the kernel"))
        .collect();
    wait_until("it did what it was woken for", || mesh.client.is_at_rest());
    let mut failed = std::mem::replace(&mut mesh.client, old);
    failed.kill();
    mesh.client.signal(Signal::CONT);
    for mut call in calls {
        call.set_read_timeout(Some(Duration::from_secs(20)))
            .expect("open");
        call.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .expect("sent");
        let answer = read_answer(&mut BufReader::new(call)).expect("the old one serves it");
        assert_eq!(answer.status, 200);
    }
}

#[test]
fn another_version_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    // Something that listens and is no proxy: not even the same kind of socket.
    let _listener = UnixListener::bind(&path).expect("bound");
    let mut proxy = Process::start("proxy", |voile| {
        voile.args(["proxy", "--workload", "shop/client"]);
        voile.args(["--control", "https://127.0.0.1:1"]);
        voile.arg("--root-cert").arg("/nowhere");
        voile.arg("--token-file").arg("/nowhere");
        voile.arg("--handover").arg(&path);
    });
    assert_eq!(proxy.wait().code(), Some(1));
    assert!(proxy.log().contains("handover: "), "{}", proxy.log());
}
