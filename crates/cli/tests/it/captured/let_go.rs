//! Tests that a sidecar drops a subscription on demand after no traffic has used it for a while. The next request subscribes
//! again and gets the current state.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use super::{CLIENT, Captured, SERVER, VIP, config_dump, connect, listen};
use crate::mesh::{application, series, wait_until};

const SHORT: &str = "defaultConfig: {runtimeValues: {voile.service_idle_timeout: 1s}}";

/// An application that says this.
fn answer(listener: TcpListener, text: &'static str) {
    application::serve(listener, move |mut stream| {
        let mut reader = std::io::BufReader::new(stream.try_clone().expect("a copy"));
        while application::read_request(&mut reader).is_some() {
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{text}");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
}

fn ask(mesh: &Captured) -> String {
    let mut stream = connect(&mesh.client, (VIP, 80));
    let request = b"GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answered");
    text
}

/// A request on a connection that stays.
fn say(open: &mut TcpStream) {
    open.write_all(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n")
        .expect("sent");
    super::hear(open, b"HTTP/1.1 200 OK\r\n", "the open connection");
    let mut rest = [0; 4096];
    let _ = open.read(&mut rest).expect("the rest of it");
}

/// A connection that stays, and was used.
fn held(mesh: &Captured) -> TcpStream {
    let mut open = connect(&mesh.client, (VIP, 80));
    say(&mut open);
    open
}

fn let_go(mesh: &Captured) -> f64 {
    let page = mesh.metrics(&mesh.client);
    series(&page, "voile_destinations_let_go_total", &[]).expect("it is counted")
}

fn wait_until_it_goes(mesh: &Captured, before: f64) {
    wait_until("it is let go", || let_go(mesh) > before);
}

#[test]
fn a_service_that_nobody_uses_is_let_go_and_answers_as_it_is_by_then_when_it_is_used_again() {
    let Some(mesh) = Captured::start("STRICT", SHORT) else {
        return;
    };
    answer(listen(&mesh.server, (Ipv4Addr::UNSPECIFIED, 8080)), "here");
    answer(listen(&mesh.server, (Ipv4Addr::UNSPECIFIED, 8081)), "gone");
    assert!(ask(&mesh).ends_with("here"));
    // A client with an open connection keeps the service in the config dump.
    let open = held(&mesh);
    assert!(config_dump(&mesh.client).contains("shop/server.shop.svc"));
    drop(open);
    wait_until_it_goes(&mesh, 0.0);
    // No part of the service is left: not its name, its endpoints or its protocol.
    let left = [
        "shop/server.shop.svc".to_owned(),
        SERVER.to_string(),
        format!("{VIP}"),
    ];
    wait_until("the control plane has said so", || {
        let dump = config_dump(&mesh.client);
        left.iter().all(|name| !dump.contains(name)) && dump.contains(&CLIENT.to_string())
    });
    // The service changes while no proxy subscribes to it.
    let text = std::fs::read_to_string(mesh.folder.path().join("config/mesh.yaml"));
    let moved = text
        .expect("the mesh")
        .replace("targetPort: 8080", "targetPort: 8081");
    mesh.write("mesh.yaml", &moved);
    wait_until("the server's sidecar knows", || {
        config_dump(&mesh.server).contains("8081")
    });
    // A request that comes just when it is let go is answered like any other.
    for _ in 0..6 {
        let before = let_go(&mesh);
        assert!(ask(&mesh).ends_with("gone"));
        wait_until_it_goes(&mesh, before);
    }
    let refused = series(
        &mesh.metrics(&mesh.client),
        "istio_requests_total",
        &["response_code=\"503\""],
    );
    assert_eq!(refused, None);
}

#[test]
fn a_connection_that_is_open_keeps_its_service_and_who_called_is_forgotten() {
    let Some(mesh) = Captured::start("PERMISSIVE", SHORT) else {
        return;
    };
    answer(listen(&mesh.server, (Ipv4Addr::UNSPECIFIED, 8080)), "here");
    let mut open = held(&mesh);
    // Another destination comes and goes meanwhile, twice.
    application::reflect(listen(&mesh.world, (super::WORLD, 8088)));
    for _ in 0..2 {
        let before = let_go(&mesh);
        let mut other = connect(&mesh.client, (super::WORLD, 8088));
        other
            .write_all(b"GET / HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n")
            .expect("sent");
        let mut text = Vec::new();
        other.read_to_end(&mut text).expect("answered");
        wait_until_it_goes(&mesh, before);
        let page = mesh.metrics(&mesh.client);
        assert_eq!(series(&page, "voile_destinations", &[]), Some(1.0));
    }
    say(&mut open);
    drop(open);
    wait_until("what it kept is let go", || {
        let page = mesh.metrics(&mesh.client);
        series(&page, "voile_destinations", &[]) == Some(0.0)
    });
    // Without a certificate the server's sidecar asked who calls from there, for its labels.
    let mut plain = connect(&mesh.world, (SERVER, 8080));
    plain
        .write_all(b"GET / HTTP/1.1\r\nHost: s\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut text = Vec::new();
    plain.read_to_end(&mut text).expect("answered");
    wait_until("who called is forgotten", || {
        let page = mesh.metrics(&mesh.server);
        series(&page, "voile_strangers", &[]) == Some(0.0)
            && series(&page, "voile_strangers_let_go_total", &[]) > Some(0.0)
    });
}
