//! `GET` of a page whose body matters: metrics of an application.

use std::io::{self, Read, Write};

use super::super::ProbeServer;
use super::{MAX_HEAD_BYTES, read_head, wrong};

/// Asks for text in Prometheus' format by HTTP/1.1 in plaintext. Redirects are not followed. Returns the body of a 200.
pub(crate) fn read(server: &ProbeServer, path: &str, limit: usize) -> io::Result<String> {
    let mut stream = server.stream(server.address.port(), false)?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: voile\r\nAccept: text/plain;version=0.0.4\r\nConnection: close\r\n\r\n",
        server.address
    );
    stream.write_all(request.as_bytes())?;
    let (head, mut body) = read_head(&mut stream)?;
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
    let length = head
        .length
        .map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    // Chunks have their own framing.
    let limit = limit
        + if head.is_chunked {
            limit / 8 + MAX_HEAD_BYTES
        } else {
            0
        };
    let mut chunk = vec![0; 16 * 1024];
    while length.is_none_or(|length| body.len() < length)
        && !(head.is_chunked && body.ends_with(b"0\r\n\r\n"))
    {
        match stream.read(&mut chunk)? {
            0 if length.is_some() => return Err(wrong("the connection ended within the body")),
            0 => break,
            read => body.extend_from_slice(&chunk[..read]),
        }
        if body.len() > limit {
            return Err(io::Error::other(format!(
                "the body is larger than {limit} bytes"
            )));
        }
    }
    if head.is_chunked {
        body = joined(&body).ok_or_else(|| wrong("the chunks of the body are broken"))?;
    }
    String::from_utf8(body).map_err(|_| wrong("the body is not text"))
}

/// The data of a body in chunks.
fn joined(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut all = Vec::with_capacity(bytes.len());
    loop {
        let end = bytes.windows(2).position(|two| two == b"\r\n")?;
        let size = std::str::from_utf8(&bytes[..end]).ok()?;
        let size = size.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        bytes = &bytes[end + 2..];
        if size == 0 {
            return Some(all);
        }
        all.extend_from_slice(bytes.get(..size)?);
        bytes = bytes.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined_or_refused() {
        let whole: &[u8] = b"4\r\na 1\n\r\n4;x=y\r\nb 2\n\r\n0\r\n\r\n";
        assert_eq!(joined(whole).expect("whole"), b"a 1\nb 2\n");
        for end in 0..whole.len() - 2 {
            assert_eq!(joined(&whole[..end]), None, "cut at {end}");
        }
        assert_eq!(joined(b"ffffffffffffffff\r\n"), None);
    }
}
