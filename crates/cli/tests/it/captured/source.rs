//! A pod that keeps its callers' addresses (`interceptionMode: TPROXY`): its application sees the caller's address, not
//! its sidecar's. Holds in each protocol, family and mode, and no caller gets another's pooled connection.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

use socket2::{Domain, Socket, Type};
use voile_host::netns::Namespace;
use voile_testkit::prerequisites::{Prerequisite, require};

use super::{CLIENT, Captured, FAR, PATIENCE, SERVER, VIP, WORLD, beside, listen};
use crate::mesh::{application, series};

const OPAQUE: u16 = 9000;
const SERVER_FIRST: u16 = 7777;

/// Answers every request with its caller: the address of its connection.
fn tell_http(listener: TcpListener) {
    application::serve(listener, |stream| {
        let caller = peer(&stream);
        let mut reader = std::io::BufReader::new(stream);
        while application::read_request(&mut reader).is_some() {
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{caller}",
                caller.len()
            );
            if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
}

/// Answers every connection with its caller's address, after its first byte or at once.
fn tell(listener: TcpListener, waits: bool) {
    application::serve(listener, move |mut stream| {
        let caller = peer(&stream);
        if !waits || stream.read_exact(&mut [0]).is_ok() {
            // A client that is gone reads nothing.
            let _ = stream.write_all(caller.as_bytes());
        }
    });
}

fn peer(stream: &TcpStream) -> String {
    let peer = stream.peer_addr().expect("connected");
    peer.ip().to_canonical().to_string()
}

/// Calls from this address of a namespace.
fn call(inside: &Namespace, from: IpAddr, to: SocketAddr) -> TcpStream {
    let call = || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(from, 0).into())?;
        socket.connect(&to.into())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        std::io::Result::Ok(TcpStream::from(socket))
    };
    let called = inside.run(call).expect("entered");
    called.unwrap_or_else(|error| panic!("{from} to {to}: {error}"))
}

/// The application's answer on this connection: the address of its caller.
fn asked(stream: &mut TcpStream, port: u16) -> String {
    match port {
        SERVER_FIRST => {}
        OPAQUE => stream.write_all(&[0]).expect("sent"),
        _ => {
            let request = b"GET /who HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";
            stream.write_all(request).expect("sent");
        }
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let body = answer.rsplit("\r\n\r\n").next().unwrap_or_default();
    body.to_owned()
}

#[test]
fn the_application_is_called_from_its_clients_own_address() {
    let policy = "outboundTrafficPolicy: {mode: ALLOW_ANY}";
    let Some(mesh) = Captured::start_as("tproxy", "PERMISSIVE", policy) else {
        return;
    };
    let any: IpAddr = match mesh.v6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    tell_http(listen(&mesh.server, (any, 8080)));
    tell(listen(&mesh.server, (any, OPAQUE)), true);
    tell(listen(&mesh.server, (any, SERVER_FIRST)), false);

    let mut callers: Vec<(&str, &Namespace, IpAddr)> = vec![
        ("with a sidecar", &mesh.client, CLIENT.into()),
        ("without", &mesh.world, WORLD.into()),
        ("from afar", &mesh.world, FAR.into()),
        ("the pod itself", &mesh.server, SERVER.into()),
    ];
    if mesh.v6 {
        callers.extend([
            ("with, by IPv6", &mesh.client, IpAddr::from(beside(CLIENT))),
            ("without, by IPv6", &mesh.world, beside(WORLD).into()),
        ]);
    }
    // Twice, so that connections to the application are pooled when others come.
    for round in 0..2 {
        for &(who, inside, from) in &callers {
            let to: IpAddr = match from {
                IpAddr::V4(_) => SERVER.into(),
                IpAddr::V6(_) => beside(SERVER).into(),
            };
            for port in [8080, OPAQUE, SERVER_FIRST] {
                let mut stream = call(inside, from, SocketAddr::new(to, port));
                let heard = asked(&mut stream, port);
                assert_eq!(heard, from.to_string(), "{who}, {port}, round {round}");
            }
        }
    }
    let mut stream = call(&mesh.client, CLIENT.into(), (VIP, 80).into());
    assert_eq!(asked(&mut stream, 80), CLIENT.to_string(), "by the service");
    let secured = [
        "reporter=\"destination\"",
        "connection_security_policy=\"mutual_tls\"",
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"",
    ];
    let metrics = mesh.metrics(&mesh.server);
    let counted = series(&metrics, "istio_requests_total", &secured);
    assert!(counted >= Some(3.0), "{metrics}");
}

#[test]
fn a_caller_with_the_same_port_as_the_sidecar_chose_is_still_told_apart() {
    let Some(mesh) = Captured::start_as("tproxy", "PERMISSIVE", "accessLogEncoding: TEXT") else {
        return;
    };
    tell(listen(&mesh.server, (SERVER, OPAQUE)), true);
    // Both namespaces have only one port to choose. So the client's connection to the sidecar and the sidecar's
    // connection to the application, in the client's name, have the same four numbers.
    for inside in [&mesh.world, &mesh.server] {
        let set = || std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40001");
        if require(Prerequisite::Sysctl, inside.run(set).expect("entered")).is_none() {
            return;
        }
    }
    for round in 0..3 {
        let mut stream = call(&mesh.world, FAR.into(), (SERVER, OPAQUE).into());
        assert_eq!(asked(&mut stream, OPAQUE), FAR.to_string(), "round {round}");
        // No port is left in TIME_WAIT for the next round.
        let socket = socket2::SockRef::from(&stream);
        socket
            .set_linger(Some(std::time::Duration::ZERO))
            .expect("open");
    }
}
