//! Trailers between the versions: HTTP/1.1 writes them as lines behind the last chunk, HTTP/2 as a head of their own. Both
//! ways lose the fields that may not be trailers (RFC 9110 section 6.5.1). A trailer that frames, routes or identifies
//! would change the decision on the head.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use voile_http1::is_forbidden_trailer;
use voile_http2::Fields;

use crate::http::codec::BodySink;
use crate::http2::stream_copy::poll_give;

/// The trailers that complete lines say, `name: value\r\n` each, as the codec has checked them; none where nothing is left.
pub(crate) fn read(lines: &[u8]) -> Option<Fields> {
    let mut trailers = Fields::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        trailers.push_checked(name, value);
    }
    trailers.retain(|name, _| !is_forbidden_trailer(name));
    (!trailers.is_empty()).then_some(trailers)
}

/// The end of a chunked body with these trailers.
pub(crate) fn write_end(trailers: Option<&Fields>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flat_map(Fields::iter) {
        if !is_forbidden_trailer(name) {
            for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Gives what waits in `chunk`, and when it is over (`over`) the trailers that `lines` say, for a stream that plays an
/// HTTP/1.1 end; `ended` says that the receiver was told of the end.
pub(in crate::http2) fn poll_give_all(
    send: &mut impl BodySink,
    chunk: &mut Bytes,
    (over, lines, ended): (bool, &mut Vec<u8>, &mut bool),
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let trailers = match over && !*ended {
        true => read(lines),
        false => None,
    };
    let Some(trailers) = trailers else {
        return poll_give(send, chunk, over, ended, cx);
    };
    ready!(poll_give(send, chunk, false, ended, cx))?;
    let sent = send.send_trailers(trailers);
    sent.map_err(|_| io::ErrorKind::ConnectionReset)?;
    *ended = true;
    Poll::Ready(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_fields_are_lost_on_the_way() {
        let lines =
            b"X-Sum: 1\r\nx-sum:2\t\r\nContent_Length: 5\r\nSet-Cookie: a\r\nTE: x\r\nX-Empty:\r\n";
        let trailers = read(lines).expect("some are left");
        let left: Vec<_> = trailers
            .iter()
            .map(|(name, value)| (name, std::str::from_utf8(value).expect("text")))
            .collect();
        assert_eq!(left, [("x-sum", "1"), ("x-sum", "2"), ("x-empty", "")]);
        let mut out = Vec::new();
        write_end(Some(&trailers), &mut out);
        assert_eq!(out, b"0\r\nx-sum: 1\r\nx-sum: 2\r\nx-empty: \r\n\r\n");
    }

    #[test]
    fn nothing_is_no_trailers() {
        for lines in ["", "Host: a\r\n"] {
            assert!(read(lines.as_bytes()).is_none(), "{lines:?}");
        }
    }
}
