//! What backends speak besides HTTP/1.1: HTTP/2 without TLS, known beforehand, and WebSocket.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use http::Response;

/// No read of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that answers `h2c`, and knows nothing but HTTP/2; gives its port.
pub(super) fn h2c(ip: IpAddr) -> u16 {
    let listener = std::net::TcpListener::bind((ip, 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    crate::mesh::application::serve(listener, |stream| {
        stream.set_nonblocking(true).expect("set");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream).expect("a stream");
            let Ok(mut connection) = h2::server::handshake(stream).await else {
                return;
            };
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let text = format!("h2c\n{} {}\n", request.method(), request.uri().path());
                let head = Response::new(());
                // Whoever went away hears nothing.
                if let Ok(mut body) = respond.send_response(head, false) {
                    let _ = body.send_data(Bytes::from(text), true);
                }
            }
        });
    });
    port
}

/// The other end of a WebSocket: says its name, and then what it hears.
pub(super) fn echo(mut reader: BufReader<TcpStream>, name: &str) {
    let head =
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    let mut heard = [0; 64];
    let mut told = reader
        .get_mut()
        .write_all(format!("{head}{name}\n").as_bytes());
    // Until whoever speaks has gone.
    while let (Ok(()), Ok(count @ 1..)) = (told, reader.read(&mut heard)) {
        told = reader.get_mut().write_all(&heard[..count]);
    }
}

/// `HOST PATH => NAME`: who is at the other end of a WebSocket, and says again what is said there.
pub(super) fn upgraded(line: &str, at: SocketAddr) -> Result<(), String> {
    let (asked, wanted) = line.split_once(" => ").expect("=>");
    let (host, path) = asked.split_once(' ').expect("host and path");
    let ask = || -> std::io::Result<(String, Vec<u8>)> {
        let mut stream = TcpStream::connect(at)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head)? > 0 {}
        let mut name = String::new();
        reader.read_line(&mut name)?;
        let said = [0x81, 4, b't', b'e', b'x', b't', 0x82, 3, 0, 255, 13];
        reader.get_mut().write_all(&said)?;
        let mut again = vec![0; said.len()];
        reader.read_exact(&mut again)?;
        let as_said = again == said;
        Ok((head, if as_said { name.into_bytes() } else { again }))
    };
    let (head, heard) = ask().map_err(|error| error.to_string())?;
    let fine = head.starts_with("HTTP/1.1 101 ") && heard == format!("{wanted}\n").as_bytes();
    fine.then_some(()).ok_or(format!("{head}{heard:?}"))
}
