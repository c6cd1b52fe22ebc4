//! Protocols of applications, through two sidecars and mutual TLS: HTTP/1.1 in its shapes, upgrades, opaque
//! TCP.

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::mesh::{Mesh, application, exchange, get, read_answer, series};

#[test]
fn a_request_crosses_both_sidecars_by_mutual_tls_and_is_counted_with_istios_labels() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    for _ in 0..3 {
        let answer = get(mesh.http(), "/books?id=7").expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.body.starts_with(b"GET /books?id=7 HTTP/1.1\r\n"));
    }
    let identity = |name: &str| format!("spiffe://cluster.local/ns/shop/sa/{name}");
    let labels = [
        "reporter=\"destination\"".to_owned(),
        "response_code=\"200\"".to_owned(),
        "connection_security_policy=\"mutual_tls\"".to_owned(),
        "request_protocol=\"http\"".to_owned(),
        format!("source_principal=\"{}\"", identity("client")),
        format!("destination_principal=\"{}\"", identity("server")),
        "destination_workload=\"server\"".to_owned(),
        "destination_service=\"server.shop.svc.cluster.local\"".to_owned(),
    ];
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let metrics = mesh.server_metrics();
    assert_eq!(
        series(&metrics, "istio_requests_total", &labels),
        Some(3.0),
        "{metrics}"
    );
    let source = [
        "reporter=\"source\"",
        "source_workload=\"client\"",
        "destination_workload=\"server\"",
        "response_code=\"200\"",
    ];
    let metrics = mesh.client_metrics();
    assert_eq!(
        series(&metrics, "istio_requests_total", &source),
        Some(3.0),
        "{metrics}"
    );
}

#[test]
fn pipelined_requests_are_answered_in_order_on_one_connection() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let mut stream = TcpStream::connect(mesh.http()).expect("a connection");
    let requests: String = (0..10)
        .map(|n| format!("GET /{n} HTTP/1.1\r\nHost: server\r\n\r\n"))
        .collect();
    stream.write_all(requests.as_bytes()).expect("sent");
    let mut reader = BufReader::new(stream);
    for n in 0..10 {
        let answer = read_answer(&mut reader).expect("an answer");
        assert!(
            answer.body.starts_with(format!("GET /{n} ").as_bytes()),
            "{answer:?}"
        );
    }
}

#[test]
fn chunked_bodies_pass_both_ways_with_their_trailers() {
    let mesh = Mesh::start("STRICT");
    application::serve(mesh.http_app(), |mut stream| {
        let mut bytes = Vec::new();
        let mut buffer = [0; 1024];
        while !bytes.ends_with(b"\r\n\r\n") || !bytes.windows(3).any(|window| window == b"0\r\n") {
            match stream.read(&mut buffer) {
                Ok(count) if count > 0 => bytes.extend_from_slice(&buffer[..count]),
                _ => return,
            }
        }
        let sent = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        let seen = sent.contains("5\r\nhello\r\n") && sent.contains("x-sum: 7");
        let body = if seen { "seen" } else { "lost" };
        let answer = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-after\r\n\r\n4\r\n{body}\r\n0\r\nx-after: yes\r\n\r\n"
        );
        // The client may be gone: its own assertions tell.
        let _ = stream.write_all(answer.as_bytes());
    });
    let mut stream = TcpStream::connect(mesh.http()).expect("a connection");
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: server\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n")
        .expect("sent");
    let mut text = String::new();
    let mut buffer = [0; 1024];
    while !text.contains("0\r\nx-after: yes\r\n\r\n") {
        let count = stream.read(&mut buffer).expect("more of the answer");
        assert!(count > 0, "the answer ends early: {text:?}");
        text += &String::from_utf8_lossy(&buffer[..count]);
    }
    assert!(text.contains("4\r\nseen\r\n"), "{text:?}");
}

#[test]
fn a_websocket_upgrade_becomes_a_two_way_stream() {
    let mesh = Mesh::start("STRICT");
    application::serve(mesh.http_app(), |stream| {
        let mut reader = BufReader::new(stream);
        let Some((head, _)) = application::read_request(&mut reader) else {
            return;
        };
        assert!(
            head.to_ascii_lowercase().contains("upgrade: websocket"),
            "{head}"
        );
        let stream = reader.get_mut();
        stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").expect("the switch");
        let mut frame = [0; 5];
        while reader.read_exact(&mut frame).is_ok() {
            reader.get_mut().write_all(&frame).expect("the echo");
        }
    });
    let stream = TcpStream::connect(mesh.http()).expect("a connection");
    let mut reader = BufReader::new(stream);
    let request = b"GET /ws HTTP/1.1\r\nHost: server\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    reader.get_mut().write_all(request).expect("sent");
    assert_eq!(read_answer(&mut reader).expect("the switch").status, 101);
    for word in [b"hello", b"again"] {
        reader.get_mut().write_all(word).expect("sent");
        let mut echo = [0; 5];
        reader.read_exact(&mut echo).expect("the echo");
        assert_eq!(&echo, word);
    }
}

#[test]
fn a_tcp_client_that_is_done_sending_still_gets_the_whole_answer() {
    let mesh = Mesh::start("STRICT");
    application::serve(mesh.tcp_app(), |mut stream| {
        let mut all = Vec::new();
        if stream.read_to_end(&mut all).is_ok() {
            all.reverse();
            // The client's assertion tells when this is lost.
            let _ = stream.write_all(&all);
        }
    });
    let sent: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
    let mut stream = TcpStream::connect(mesh.tcp()).expect("a connection");
    stream.write_all(&sent).expect("sent");
    stream.shutdown(Shutdown::Write).expect("half-closed");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the answer");
    answer.reverse();
    assert!(
        answer == sent,
        "{} of {} bytes came back whole",
        answer.len(),
        sent.len()
    );
    let labels = [
        "connection_security_policy=\"mutual_tls\"",
        "request_protocol=\"tcp\"",
    ];
    crate::mesh::wait_until("the connection is counted", || {
        series(
            &mesh.server_metrics(),
            "istio_tcp_received_bytes_total",
            &labels,
        ) == Some(1_000_000.0)
    });
}

#[test]
fn a_server_that_speaks_first_is_heard_on_a_declared_tcp_port() {
    let mesh = Mesh::start("STRICT");
    application::serve(mesh.tcp_app(), |mut stream| {
        stream.write_all(b"220 ready\r\n").expect("the greeting");
    });
    let mut stream = TcpStream::connect(mesh.tcp()).expect("a connection");
    let mut greeting = [0; 11];
    stream.read_exact(&mut greeting).expect("the greeting");
    assert_eq!(&greeting, b"220 ready\r\n");
}

#[test]
fn an_http_1_0_client_gets_an_answer_it_understands() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let answer = exchange(mesh.http(), b"GET /old HTTP/1.0\r\n\r\n").expect("an answer");
    assert_eq!(answer.status, 200);
    assert!(
        !answer.head.to_ascii_lowercase().contains("chunked"),
        "{}",
        answer.head
    );
}

#[test]
fn a_server_that_dies_in_the_middle_of_a_body_is_not_mistaken_for_a_whole_answer() {
    let mesh = Mesh::start("STRICT");
    application::serve(mesh.http_app(), |stream| {
        let mut reader = BufReader::new(stream);
        if application::read_request(&mut reader).is_some() {
            // Dropping the stream afterwards is the death.
            let _ = reader
                .get_mut()
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this");
        }
    });
    let failure = exchange(mesh.http(), b"GET / HTTP/1.1\r\nHost: server\r\n\r\n")
        .expect_err("a truncated answer");
    assert!(
        matches!(
            failure.kind(),
            std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset
        ),
        "{failure}"
    );
}

#[test]
fn a_dead_application_is_answered_503() {
    let mesh = Mesh::start("STRICT");
    let answer = get(mesh.http(), "/").expect("an answer");
    assert_eq!(answer.status, 503, "{answer:?}");
}
