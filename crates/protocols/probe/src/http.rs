//! `GET` of a path by HTTP/1.1, over TLS where it is asked for (and then by HTTP/2 where the server prefers it), on a connection
//! of its own: only the status matters.
//! Redirects to the same host are followed as the kubelet does, to another port and scheme too; one that leads elsewhere is
//! the answer.

pub(crate) mod page;
mod redirect;
mod two;

use std::io::{self, Write};

use voile_pages::Answer;

use super::ProbeServer;
use redirect::{RedirectOutcome, RedirectTarget};

/// Requests of one question, as the kubelet's: the first and those that redirects lead to.
const MAX_REQUESTS: usize = 10;
/// Largest part of an answer's body that is read, in bytes, as by the kubelet.
const MAX_BODY_BYTES: usize = 10 * 1024;
/// User agent by which applications recognize probes, to leave them out of their logs.
const USER_AGENT: &str = "kube-probe/voile";

/// Asks; the status of the answer.
pub(crate) fn get(
    server: &ProbeServer,
    tls: bool,
    path: &str,
    headers: &[(String, String)],
) -> io::Result<u16> {
    let host = server.address.ip().to_string();
    let mut place = RedirectTarget {
        tls,
        port: server.address.port(),
        target: path.to_owned(),
        // Only if the application did not set a `Host` itself.
        named: false,
    };
    for _ in 0..MAX_REQUESTS {
        let head = ask(server, &place, headers)?;
        let location = head.location.as_deref().unwrap_or_default();
        if !matches!(head.status, 301 | 302 | 303 | 307 | 308) || location.is_empty() {
            return Ok(head.status);
        }
        match redirect::leads(&place, &host, location).map_err(wrong)? {
            RedirectOutcome::Here(next) => place = next,
            RedirectOutcome::Elsewhere => return Ok(head.status),
        }
    }
    Err(io::Error::other(format!(
        "redirected more than {} times",
        MAX_REQUESTS - 1
    )))
}

fn ask(
    server: &ProbeServer,
    place: &RedirectTarget,
    headers: &[(String, String)],
) -> io::Result<ProbeHead> {
    let mut stream = server.stream(place.port, place.tls)?;
    let mut address = server.address;
    address.set_port(place.port);
    if stream.is_http2() {
        return two::ask(&mut stream, &address.to_string(), place, headers);
    }
    let request = request(&address.to_string(), place, headers);
    stream.write_all(request.as_bytes())?;
    // TLS buffers encrypted bytes.
    stream.flush()?;
    // The server is heard out: one that is cut off in its words complains.
    let answer = Answer::read(&mut stream, MAX_BODY_BYTES)?;
    Ok(ProbeHead {
        status: answer.status(),
        location: answer.field("location").map(str::to_owned),
    })
}

fn request(authority: &str, place: &RedirectTarget, headers: &[(String, String)]) -> String {
    let mut text = format!("GET {} HTTP/1.1\r\n", place.target);
    for (name, value) in fields(authority, place, headers).chain([("Connection", "close")]) {
        text.push_str(name);
        text.push_str(": ");
        text.push_str(value);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    text
}

/// The usual fields and the application's own, which take their place.
fn fields<'a>(
    authority: &'a str,
    place: &RedirectTarget,
    headers: &'a [(String, String)],
) -> impl Iterator<Item = (&'a str, &'a str)> + Clone {
    let usual = [
        ("Host", authority),
        ("User-Agent", USER_AGENT),
        ("Accept", "*/*"),
    ];
    fn is(own: &str, name: &str) -> bool {
        own.eq_ignore_ascii_case(name)
    }
    // A redirect that names its host means that one.
    let named = place.named;
    let own = headers.iter().map(|(name, value)| (&**name, &**value));
    let own = own.filter(move |(name, _)| !(named && is(name, "Host")));
    let given = own.clone();
    let usual = usual
        .into_iter()
        .filter(move |(name, _)| !given.clone().any(|(own, _)| is(own, name)));
    usual.chain(own)
}

fn wrong(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[derive(Debug)]
struct ProbeHead {
    status: u16,
    location: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_fields_take_the_place_of_the_usual_ones() {
        let own = [("hOST".to_owned(), "shop".to_owned())];
        let mut place = RedirectTarget {
            tls: false,
            port: 1,
            target: "/x".to_owned(),
            named: false,
        };
        assert_eq!(
            request("127.0.0.1:1", &place, &own),
            "GET /x HTTP/1.1\r\nUser-Agent: kube-probe/voile\r\nAccept: */*\r\nhOST: shop\r\nConnection: close\r\n\r\n"
        );
        place.named = true;
        assert_eq!(
            request("127.0.0.1:1", &place, &own),
            "GET /x HTTP/1.1\r\nHost: 127.0.0.1:1\r\nUser-Agent: kube-probe/voile\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        );
    }
}
