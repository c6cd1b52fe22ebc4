//! `GET` of a page whose body matters: metrics of an application.

use std::io::{self, Read, Write};

use voile_http1::{Body, Framing};

use super::super::ProbeServer;
use super::{ProbeHead, read_head, wrong};

/// Bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// Asks for text in Prometheus' format by HTTP/1.1 in plaintext. Redirects are not followed. Returns the body of a 200.
pub(crate) fn read(server: &ProbeServer, path: &str, limit: usize) -> io::Result<String> {
    let mut stream = server.stream(server.address.port(), false)?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: voile\r\nAccept: text/plain;version=0.0.4\r\nConnection: close\r\n\r\n",
        server.address
    );
    stream.write_all(request.as_bytes())?;
    let (head, bytes) = read_head(&mut stream)?;
    if head.status != 200 {
        return Err(io::Error::other(format!("the answer is {}", head.status)));
    }
    let kind = head.content_type.as_deref().unwrap_or("text/plain");
    if !["text/plain", "application/openmetrics-text"]
        .iter()
        .any(|one| kind.starts_with(one))
    {
        return Err(io::Error::other(format!("the answer is `{kind}`")));
    }
    let text = read_body(&mut stream, &head, bytes, limit)?;
    String::from_utf8(text).map_err(|_| wrong("the body is not text"))
}

/// Reads the data of a whole body, which begins with `bytes`.
fn read_body(
    stream: &mut impl Read,
    head: &ProbeHead,
    mut bytes: Vec<u8>,
    limit: usize,
) -> io::Result<Vec<u8>> {
    let mut body = Body::new(match head.length {
        _ if head.is_chunked => Framing::Chunked,
        Some(length) => Framing::Length(length),
        None => Framing::UntilClose,
    });
    let mut data = Vec::new();
    loop {
        let unwrapped = body.unwrap_in_place(&mut bytes);
        let (_, kept) = unwrapped.map_err(|error| wrong(error.reason()))?;
        data.extend_from_slice(&bytes[..kept]);
        if data.len() > limit {
            let error = format!("the body is larger than {limit} bytes");
            return Err(io::Error::other(error));
        }
        if body.is_done() {
            return Ok(data);
        }
        bytes.resize(READ_BYTES, 0);
        let read = stream.read(&mut bytes)?;
        bytes.truncate(read);
        match body {
            Body::UntilClose if read == 0 => return Ok(data),
            _ if read == 0 => return Err(wrong("the connection ended within the body")),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined_and_a_body_that_is_cut_is_refused() {
        let head = ProbeHead {
            is_chunked: true,
            ..ProbeHead::default()
        };
        let whole: &[u8] = b"4\r\na 1\n\r\n4;x=y\r\nb 2\n\r\n0\r\n\r\n";
        for first in 0..whole.len() {
            let (begin, mut rest) = whole.split_at(first);
            let read = read_body(&mut rest, &head, begin.to_vec(), 8);
            assert_eq!(read.expect("whole"), b"a 1\nb 2\n");
            let cut = read_body(&mut io::empty(), &head, begin.to_vec(), 8);
            assert!(cut.is_err(), "cut at {first}");
        }
        let large = read_body(&mut io::empty(), &head, whole.to_vec(), 7);
        assert!(large.is_err(), "larger than its limit");
    }
}
