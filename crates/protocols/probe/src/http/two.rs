//! The same question by HTTP/2, where a server of TLS chooses it: one stream of a connection that asks nothing else. Frames,
//! limits and rules are `voile-http2`'s; here its bytes meet the socket.

use std::io::{self, Read, Write};
use std::task::{Context, Poll, Waker};

use voile_http2::{Config, Connection, Failure, Fields, Link, Pool, RecvStream};
use voile_pages::MAX_HEAD_BYTES;

use super::redirect::RedirectTarget;
use super::{MAX_BODY_BYTES, ProbeHead, fields, wrong};

/// Limits on memory and work for a server's answer.
static LIMITS: Config = Config {
    stream_window: 64 * 1024,
    connection_window: 64 * 1024,
    max_header_list: MAX_HEAD_BYTES as u32,
    max_continuations: 8,
    max_peer_streams: 0,
    initial_streams: 1,
    max_remembered_resets: 1,
    max_unseen_resets: 1,
    max_provoked_resets: 1,
    forgiving_streams: 1,
    max_unsent: 64 * 1024,
    max_empty_frames: 100,
    max_interim: 8,
    max_heads: 4 * MAX_HEAD_BYTES,
    max_window_changes: 100,
};

/// Asks, and hears the answer out as far as it is worth it.
pub(super) fn ask(
    stream: &mut (impl Read + Write),
    authority: &str,
    place: &RedirectTarget,
    headers: &[(String, String)],
) -> io::Result<ProbeHead> {
    let link = Link::new(Connection::client(&LIMITS, Pool::new()));
    let answer = exchange(stream, &link, &request(authority, place, headers));
    // A farewell; whether it arrives does not matter.
    let mut connection = link.borrow();
    connection.leave();
    connection.end();
    drop(connection);
    let _ = say(stream, &link);
    answer
}

fn exchange(
    stream: &mut (impl Read + Write),
    link: &Link,
    request: &Fields,
) -> io::Result<ProbeHead> {
    let begun = link.send_request(request.clone(), true);
    let (mut answer, _said) = begun.ok_or_else(|| wrong("cannot open a stream"))?;
    let head = until(stream, link, |cx| {
        // Words beforehand, such as 103.
        while let Poll::Ready(Some(_)) = answer.poll_informational(cx) {}
        answer.poll_head(cx)
    })?
    .map_err(failed)?;
    hear_out(stream, link, &mut answer.into_body())?;
    let location = head.get("location").map(String::from_utf8_lossy);
    Ok(ProbeHead {
        status: head.status(),
        location: location.map(|location| location.trim().to_owned()),
    })
}

fn hear_out(
    stream: &mut (impl Read + Write),
    link: &Link,
    body: &mut RecvStream,
) -> io::Result<()> {
    let mut taken = 0;
    while taken < MAX_BODY_BYTES {
        match until(stream, link, |cx| body.poll_data(cx))? {
            None => return Ok(()),
            Some(bytes) => {
                let bytes = bytes.map_err(failed)?;
                taken += bytes.len();
                body.release_capacity(bytes.len());
            }
        }
    }
    Ok(())
}

fn request(authority: &str, place: &RedirectTarget, headers: &[(String, String)]) -> Fields {
    let all = fields(authority, place, headers);
    let is_host = |name: &str| name.eq_ignore_ascii_case("host");
    let host = all.clone().find(|(name, _)| is_host(name));
    let mut request = Fields::new();
    request.push(":method", b"GET");
    request.push(":scheme", b"https");
    request.push(":authority", host.map_or("", |(_, host)| host).as_bytes());
    request.push(":path", place.target.as_bytes());
    for (name, value) in all.filter(|(name, _)| !is_host(name)) {
        // `Question::fault` has checked the fields before.
        request.push_checked(name.as_bytes(), value.as_bytes());
    }
    request
}

/// Moves bytes both ways until `poll` has a result.
fn until<T>(
    stream: &mut (impl Read + Write),
    link: &Link,
    mut ask: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> io::Result<T> {
    let mut bytes = [0; 4096];
    // No task has to be woken: this thread reads until there is something.
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(found) = ask(&mut cx) {
            return Ok(found);
        }
        say(stream, link)?;
        match stream.read(&mut bytes)? {
            0 => link.borrow().closed(),
            read => link.borrow().receive(&bytes[..read]),
        }
    }
}

/// Writes the waiting output.
fn say(stream: &mut impl Write, link: &Link) -> io::Result<()> {
    let mut connection = link.borrow();
    let bytes = connection.output().len();
    if bytes > 0 {
        stream.write_all(connection.output())?;
        connection.wrote(bytes);
        // TLS buffers encrypted bytes.
        stream.flush()?;
    }
    Ok(())
}

fn failed(failure: Failure) -> io::Error {
    let why = match failure {
        Failure::Reset(reason) => format!("the server reset the request: {reason}"),
        Failure::Unprocessed => "the server refused the request unprocessed".to_owned(),
        Failure::Violation(reason) => format!("the response violates HTTP/2: {reason}"),
        Failure::Connection => "the connection ended before an answer".to_owned(),
    };
    io::Error::new(io::ErrorKind::InvalidData, why)
}
