//! A blunt HTTP/1.1 client for tests: sends exactly the bytes it is given and reads one answer, sharing no code with the
//! proxy under test.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A test's patience with one read.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// Connects, sends `bytes`, reads one answer.
pub(crate) fn exchange(address: SocketAddr, bytes: &[u8]) -> io::Result<Answer> {
    let mut stream = connect(address)?;
    stream.write_all(bytes)?;
    read_answer(&mut BufReader::new(stream))
}

/// GET on a connection of its own.
pub(crate) fn get(address: SocketAddr, path: &str) -> io::Result<Answer> {
    exchange(
        address,
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    )
}

/// Connects, sends `bytes` and returns everything until the other side closes.
pub(crate) fn read_to_end(address: SocketAddr, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = connect(address)?;
    stream.write_all(bytes)?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => Err(error),
        _ => Ok(answer),
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads one final answer (1xx are skipped); a body that ends early is an error.
pub(crate) fn read_answer(stream: &mut impl BufRead) -> io::Result<Answer> {
    loop {
        let head = read_head(stream)?;
        let status = head.get(9..12).and_then(|code| code.parse().ok());
        let status: u16 =
            status.ok_or_else(|| io::Error::other(format!("no status line: {head:?}")))?;
        if (100..200).contains(&status) && status != 101 {
            continue;
        }
        let body = read_body(stream, &head, status)?;
        return Ok(Answer { status, head, body });
    }
}

fn read_head(stream: &mut impl BufRead) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the head ends early: {head:?}"),
            ));
        }
    }
    Ok(head)
}

fn read_body(stream: &mut impl BufRead, head: &str, status: u16) -> io::Result<Vec<u8>> {
    let field = |name: &str| {
        head.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    };
    let mut body = Vec::new();
    if field("transfer-encoding") == Some("chunked") {
        loop {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            let size = usize::from_str_radix(line.trim(), 16)
                .map_err(|_| io::Error::other(format!("chunk size {line:?}")))?;
            let mut chunk = vec![0; size + 2];
            stream.read_exact(&mut chunk)?;
            body.extend_from_slice(&chunk[..size]);
            if size == 0 {
                return Ok(body);
            }
        }
    }
    if let Some(length) = field("content-length").and_then(|value| value.parse().ok()) {
        body.resize(length, 0);
        stream.read_exact(&mut body)?;
    } else if ![101, 204, 304].contains(&status) {
        stream.read_to_end(&mut body)?;
    }
    Ok(body)
}
