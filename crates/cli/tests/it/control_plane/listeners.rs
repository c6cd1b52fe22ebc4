//! Listeners that come, change and go while others serve; ports that another program has; ends that take too
//! long.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::mesh::{Client, Mesh, application, get, read_answer, series, wait_until};

const EXTRA_PORT: u16 = 8081;

fn serves(address: SocketAddr) -> bool {
    get(address, "/").is_ok_and(|answer| answer.status == 200)
}

/// One keep-alive connection, asked again and again.
struct Steady(BufReader<TcpStream>);

impl Steady {
    fn new(address: SocketAddr) -> Self {
        Self(BufReader::new(
            TcpStream::connect(address).expect("a connection"),
        ))
    }

    fn ask(&mut self) {
        self.0
            .get_mut()
            .write_all(b"GET /steady HTTP/1.1\r\nHost: server\r\n\r\n")
            .expect("the connection is open");
        assert_eq!(read_answer(&mut self.0).expect("answered").status, 200);
    }
}

#[test]
fn listeners_come_change_and_go_while_others_keep_their_connections() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let extra = SocketAddr::new(mesh.http().ip(), EXTRA_PORT);
    let mut steady = Steady::new(mesh.http());
    steady.ask();

    mesh.set_extra_egress(Some((EXTRA_PORT, "HTTP")));
    wait_until("the new listener serves", || serves(extra));
    let mut on_extra = Steady::new(extra);
    on_extra.ask();
    steady.ask();

    mesh.set_extra_egress(Some((EXTRA_PORT, "TCP")));
    wait_until("the changed listener relays", || {
        let relayed = "istio_tcp_connections_opened_total";
        serves(extra) && series(&mesh.client_metrics(), relayed, &[]).is_some()
    });
    steady.ask();

    mesh.set_extra_egress(None);
    wait_until("the removed listener is closed", || {
        TcpStream::connect(extra).is_err()
    });
    steady.ask();
}

#[test]
fn a_port_in_use_is_refused_by_name_while_others_serve_and_taken_once_it_is_free() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let extra = SocketAddr::new(mesh.http().ip(), EXTRA_PORT);
    let taken = TcpListener::bind(extra).expect("an address of this test");
    let mut steady = Steady::new(mesh.http());
    mesh.set_extra_egress(Some((EXTRA_PORT, "HTTP")));
    wait_until("control is told", || {
        let log = mesh.control.log();
        log.contains(&extra.to_string()) && log.contains("cannot listen")
    });
    wait_until("the proxy is not ready, and says why", || {
        get(mesh.client_admin(), "/ready").is_ok_and(|answer| {
            answer.status == 503
                && String::from_utf8_lossy(&answer.body).contains(&extra.to_string())
        })
    });
    steady.ask();
    assert!(serves(mesh.http()), "new connections to the others");
    drop(taken);
    wait_until("the listener serves after all", || serves(extra));
    mesh.wait_ready();
    steady.ask();
}

fn draining(limit: &'static str) -> Mesh {
    let how = Client {
        drain_timeout: Some(limit),
        ..Client::default()
    };
    Mesh::start_as("STRICT", &how)
}

/// An application that takes a request and never answers; gives the client's connection once it has.
fn stuck(mesh: &Mesh) -> TcpStream {
    let (reached, request_reached) = std::sync::mpsc::channel();
    application::serve(mesh.http_app(), move |stream| {
        let mut reader = BufReader::new(stream);
        if application::read_request(&mut reader).is_some() {
            // The test may have ended already.
            let _ = reached.send(());
            let _ = reader.read(&mut [0]);
        }
    });
    let mut stream = TcpStream::connect(mesh.http()).expect("a connection");
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect("sent");
    request_reached
        .recv()
        .expect("the request reaches the application");
    stream
}

#[test]
fn a_request_that_never_ends_is_cut_when_the_drain_timeout_is_over() {
    let mut mesh = draining("300ms");
    let mut stream = stuck(&mesh);
    mesh.client.terminate();
    let status = mesh.client.wait();
    assert!(status.success(), "{status}");
    assert!(
        mesh.client.log().contains("drain timeout"),
        "{}",
        mesh.client.log()
    );
    let mut rest = Vec::new();
    let cut = stream.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"HTTP/1.1 200"), "{cut:?}");
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut mesh = draining("1h");
    let _stream = stuck(&mesh);
    mesh.client.terminate();
    wait_until("draining has begun", || {
        mesh.client.log().contains("draining")
    });
    mesh.client.terminate();
    let status = mesh.client.wait();
    assert!(status.success(), "{status}");
    assert!(
        mesh.client.log().contains("second signal"),
        "{}",
        mesh.client.log()
    );
}

#[test]
fn a_proxy_out_of_descriptors_sheds_survives_and_recovers() {
    let how = Client {
        descriptors: Some(64),
        ..Client::default()
    };
    let mesh = Mesh::start_as("STRICT", &how);
    application::reflect(mesh.http_app());
    assert!(serves(mesh.http()));
    let crowd: Vec<_> = (0..200)
        .filter_map(|_| TcpStream::connect(mesh.http()).ok())
        .collect();
    wait_until("the crowd is shed in part", || {
        mesh.client.log().contains("reason=\"out of descriptors\"")
    });
    drop(crowd);
    wait_until("it serves again", || serves(mesh.http()));
}
