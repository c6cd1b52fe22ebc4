//! Protocols of backends besides HTTP/1.1: HTTP/2 without TLS, by prior knowledge, gRPC over it, and
//! WebSocket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Version};

use crate::mesh::Answer;
use crate::traffic::http2::message;

/// No read of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of gRPC's message prefix: the compression flag and the length.
const PREFIX_BYTES: usize = 5;

fn on_this_thread<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(work)
}

/// A server that knows nothing but HTTP/2, and answers `h2c`; calls of gRPC with its name and their head. Gives its port.
pub(super) fn h2c(ip: IpAddr, name: &'static str) -> u16 {
    let listener = std::net::TcpListener::bind((ip, 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    crate::mesh::application::serve(listener, move |stream| {
        stream.set_nonblocking(true).expect("set");
        on_this_thread(async {
            let stream = tokio::net::TcpStream::from_std(stream).expect("a stream");
            let Ok(mut connection) = h2::server::handshake(stream).await else {
                return;
            };
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                if is_grpc(request.headers()) {
                    let mut text = format!("{name}\nCALL {} HTTP/2\n", request.uri().path());
                    text += &lines(request.headers());
                    let head = Response::builder().header("content-type", GRPC);
                    let head = head.body(()).expect("a head");
                    if let Ok(mut body) = respond.send_response(head, false) {
                        let ok = HeaderMap::from_iter([(GRPC_STATUS, "0".parse().expect("0"))]);
                        let _ = body.send_data(message(&text), false);
                        let _ = body.send_trailers(ok);
                    }
                    continue;
                }
                let text = format!("h2c\n{} {}\n", request.method(), request.uri().path());
                let head = Response::new(());
                // A client that is gone reads nothing.
                if let Ok(mut body) = respond.send_response(head, false) {
                    let _ = body.send_data(Bytes::from(text), true);
                }
            }
        });
    });
    port
}

const GRPC: &str = "application/grpc";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

fn is_grpc(head: &HeaderMap) -> bool {
    head.get("content-type").is_some_and(|kind| kind == GRPC)
}

fn lines(head: &HeaderMap) -> String {
    let line = |(name, value): (&HeaderName, &HeaderValue)| {
        format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()))
    };
    head.iter().map(line).collect()
}

/// One call of gRPC over HTTP/2, with a message and an expected end. The status is 200 for gRPC's 0, and else gRPC's own.
pub(super) fn call(
    at: SocketAddr,
    host: &str,
    path: &str,
    fields: &[(&str, &str)],
) -> io::Result<Answer> {
    let mut request = Request::post(format!("http://{host}{path}"))
        .version(Version::HTTP_2)
        .header("content-type", GRPC)
        .header("te", "trailers");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let request = request.body(()).expect("a head");
    on_this_thread(async {
        let calling = tokio::time::timeout(PATIENCE, called(at, request));
        calling.await.map_err(|_| io::ErrorKind::TimedOut)?
    })
}

async fn called(at: SocketAddr, request: Request<()>) -> io::Result<Answer> {
    let stream = tokio::net::TcpStream::connect(at).await?;
    let (mut send, connection) = h2::client::handshake(stream)
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(async {
        // The call itself reports the end of the connection.
        let _ = connection.await;
    });
    let sent = send.send_request(request, false);
    let (response, mut body) = sent.map_err(io::Error::other)?;
    body.send_data(message("asked"), true)
        .map_err(io::Error::other)?;
    let (head, mut stream) = response.await.map_err(io::Error::other)?.into_parts();
    let mut data = Vec::new();
    while let Some(chunk) = stream.data().await {
        let chunk = chunk.map_err(io::Error::other)?;
        data.extend_from_slice(&chunk);
        let _ = stream.flow_control().release_capacity(chunk.len());
    }
    let trailers = stream.trailers().await.map_err(io::Error::other)?;
    let wrong = |what: &str| io::Error::other(format!("{what}: {head:?} {trailers:?}"));
    if head.status != 200 || !is_grpc(&head.headers) {
        return Err(wrong("no answer of gRPC"));
    }
    // An answer without a message says it in its head.
    let ended = trailers.as_ref().unwrap_or(&head.headers);
    let code = ended.get(GRPC_STATUS).and_then(|code| code.to_str().ok());
    let status = match code.and_then(|code| code.parse().ok()) {
        Some(0) => 200,
        Some(code) => code,
        None => return Err(wrong("no status of gRPC")),
    };
    let message = data.get(PREFIX_BYTES..).unwrap_or_default().to_vec();
    if status == 200 && data[..PREFIX_BYTES.min(data.len())] != prefix(&message) {
        return Err(wrong("no whole message"));
    }
    Ok(Answer {
        status,
        head: lines(&head.headers),
        body: message,
    })
}

fn prefix(message: &[u8]) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d] = u32::try_from(message.len()).expect("short").to_be_bytes();
    [0, a, b, c, d]
}

/// The other end of a WebSocket: says its name, and then what it hears.
pub(super) fn echo(mut reader: BufReader<TcpStream>, name: &str) {
    let head =
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    let mut heard = [0; 64];
    let mut told = reader
        .get_mut()
        .write_all(format!("{head}{name}\n").as_bytes());
    // Echoes until the client leaves.
    while let (Ok(()), Ok(count @ 1..)) = (told, reader.read(&mut heard)) {
        told = reader.get_mut().write_all(&heard[..count]);
    }
}

/// `HOST PATH => NAME`: checks the server at the other end of a WebSocket, and its echo.
pub(super) fn upgraded(line: &str, at: SocketAddr) -> Result<(), String> {
    let (asked, wanted) = line.split_once(" => ").expect("=>");
    let (host, path) = asked.split_once(' ').expect("host and path");
    let ask = || -> io::Result<(String, Vec<u8>)> {
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
