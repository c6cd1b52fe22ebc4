//! Starting, stopping and losing the control plane: traffic goes on, nothing is left behind.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use crate::mesh::{
    HTTP_PORT, Mesh, Process, application, get, read_answer, read_to_end, wait_until,
};

#[test]
fn the_mesh_serves_without_its_control_plane_and_obeys_it_again_when_it_is_back() {
    let mut mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    mesh.kill_control();
    for _ in 0..5 {
        assert_eq!(
            get(mesh.http(), "/")
                .expect("served without control")
                .status,
            200
        );
    }
    mesh.restart_control();
    mesh.set_peer_authentication("STRICT");
    let plain = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    wait_until("the edit reaches the proxy after the restart", || {
        read_to_end(mesh.inbound(HTTP_PORT), plain).is_ok_and(|answer| answer.is_empty())
    });
    assert_eq!(
        get(mesh.http(), "/").expect("mutual TLS goes on").status,
        200
    );
}

#[test]
fn sigterm_finishes_the_request_in_flight_and_exits_in_good_order() {
    let mut mesh = Mesh::start("STRICT");
    let (reached, request_reached) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    application::serve(mesh.http_app(), move |stream| {
        let mut reader = BufReader::new(stream);
        while application::read_request(&mut reader).is_some() {
            reached.send(()).expect("the test waits");
            released
                .lock()
                .expect("one request at a time")
                .recv()
                .expect("released");
            reader
                .get_mut()
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")
                .expect("answered");
        }
    });
    let mut stream = TcpStream::connect(mesh.http()).expect("a connection");
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect("sent");
    request_reached
        .recv()
        .expect("the request reaches the application");
    mesh.client.terminate();
    wait_until("no new connections are taken", || {
        TcpStream::connect(mesh.http()).is_err()
    });
    release.send(()).expect("the application waits");
    let answer =
        read_answer(&mut BufReader::new(stream)).expect("the request in flight is finished");
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"done"[..]));
    let status = mesh.client.wait();
    assert!(status.success(), "{status}\n{}", mesh.client.log());
}

#[test]
fn a_port_in_use_is_said_by_name() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let mut control = Process::start("control", |voile| {
        voile
            .arg("control")
            .arg("--config")
            .arg(folder.path())
            .arg("--state")
            .arg(folder.path().join("state"));
        voile.args([
            "--listen",
            &address,
            "--plaintext",
            "off",
            "--monitoring",
            "127.0.0.1:0",
        ]);
    });
    let status = control.wait();
    assert_eq!(status.code(), Some(1), "{}", control.log());
    assert!(control.log().contains(&address), "{}", control.log());
}

#[test]
fn the_root_key_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let mesh = Mesh::start("STRICT");
    let mode = |name: &str| {
        std::fs::metadata(mesh.state().join(name))
            .expect("in the state folder")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode("root-key.pem"), 0o600);
    assert_eq!(mode("token-key.pem"), 0o600);
    assert_eq!(mode("."), 0o700);
}

#[test]
fn admin_tells_the_certificate_and_the_configuration_but_never_the_key() {
    let mesh = Mesh::start("STRICT");
    let certificates = get(mesh.server_admin(), "/certs").expect("certificates");
    let text = String::from_utf8(certificates.body).expect("text");
    assert!(
        text.contains("spiffe://cluster.local/ns/shop/sa/server"),
        "{text}"
    );
    let dump = get(mesh.server_admin(), "/config_dump").expect("the configuration");
    let text = text + &String::from_utf8(dump.body).expect("text");
    assert!(!text.contains("PRIVATE"), "{text}");
    assert!(text.contains("server.shop.svc.cluster.local"), "{text}");
}
