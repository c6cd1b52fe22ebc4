//! `GET` of a path by HTTP/1.1, over TLS where it is asked for (and then by HTTP/2 where the server prefers it), on a connection
//! of its own: only the status matters.
//! Redirects to the same host are followed as the kubelet does, to another port and scheme too; one that leads elsewhere is
//! the answer.

pub(crate) mod page;
mod redirect;
mod two;

use std::io::{self, Read, Write};

use super::ProbeServer;
use redirect::{RedirectOutcome, RedirectTarget};

/// Requests of one question, as the kubelet's: the first and those that redirects lead to.
const MAX_REQUESTS: usize = 10;
/// The largest head of an answer, in bytes: as much as servers commonly send.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Largest part of an answer's body that is read, in bytes, as by the kubelet: a server that is cut off in its words
/// complains.
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
    let (head, body) = read_head(&mut stream)?;
    read_body(&mut stream, &head, body)?;
    Ok(head)
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

#[derive(Debug, Default, PartialEq, Eq)]
struct ProbeHead {
    status: u16,
    location: Option<String>,
    /// Of the body; `None` is until the connection ends, or in chunks.
    length: Option<u64>,
    is_chunked: bool,
    content_type: Option<String>,
}

/// Reads the head of the answer itself, and the first bytes of the body.
fn read_head(stream: &mut impl Read) -> io::Result<(ProbeHead, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        while let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = parse(&bytes[..end]).ok_or_else(|| wrong("the answer is not HTTP/1"))?;
            bytes.drain(..end + 4);
            if !(100..200).contains(&head.status) || head.status == 101 {
                return Ok((head, bytes));
            }
            // That was a word beforehand, such as 103.
        }
        if bytes.len() > MAX_HEAD_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the head of the answer is larger than {MAX_HEAD_BYTES} bytes"),
            ));
        }
        match stream.read(&mut chunk)? {
            0 => return Err(wrong("the connection ended before an answer")),
            read => bytes.extend_from_slice(&chunk[..read]),
        }
    }
}

/// Hears the server out, as far as a body is worth it.
fn read_body(stream: &mut impl Read, head: &ProbeHead, mut bytes: Vec<u8>) -> io::Result<()> {
    if matches!(head.status, 101 | 204 | 304) {
        return Ok(());
    }
    let announced = head
        .length
        .map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    let wanted = announced.unwrap_or(usize::MAX).min(MAX_BODY_BYTES);
    let mut chunk = [0; 1024];
    while bytes.len() < wanted {
        // Some keep the connection although they were asked not to; the last chunk is an end, too.
        if announced.is_none() && bytes.ends_with(b"0\r\n\r\n") {
            return Ok(());
        }
        match stream.read(&mut chunk) {
            Ok(0) if announced.is_some() => {
                return Err(wrong("the connection ended within the answer's body"));
            }
            Ok(0) => return Ok(()),
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
            // An end of TLS without a farewell, where the end of the connection was the end of the body.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && announced.is_none() => {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn parse(head: &[u8]) -> Option<ProbeHead> {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    let status = Some(status)
        .filter(|status| status.len() == 3)?
        .parse()
        .ok()
        .filter(|status| *status >= 100)?;
    let fields: Vec<_> = lines.filter_map(|line| line.split_once(':')).collect();
    let field = |wanted: &str| {
        let mut own = fields
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        own.next().map(|(_, value)| value.trim())
    };
    let chunked = field("transfer-encoding").is_some();
    let length = field("content-length").filter(|_| !chunked);
    Some(ProbeHead {
        status,
        location: field("location").map(str::to_owned),
        length: length.and_then(|length| length.parse().ok()),
        is_chunked: chunked,
        content_type: field("content-type").map(str::to_ascii_lowercase),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_or_refused() {
        let good = |status, location: Option<&str>, length| {
            Ok(ProbeHead {
                status,
                location: location.map(str::to_owned),
                length,
                ..ProbeHead::default()
            })
        };
        let long = format!("HTTP/1.1 200 OK\r\nA: {}\r\n", "a".repeat(MAX_HEAD_BYTES));
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\nbody", good(200, None, None)),
            (
                "HTTP/1.0 503 no\r\nLocation: /x\r\nCONTENT-length: 7\r\n\r\n",
                good(503, Some("/x"), Some(7)),
            ),
            (
                "HTTP/1.1 200 x\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n",
                good(200, None, None),
            ),
            (
                "HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
                good(204, None, None),
            ),
            ("HTTP/1.1 200 OK\r\n", Err("ended before an answer")),
            ("HTTP/1.1 99 x\r\n\r\n", Err("not HTTP/1")),
            ("HTTP/1.1 +20 x\r\n\r\n", Err("not HTTP/1")),
            ("SSH-2.0-x\r\n\r\n", Err("not HTTP/1")),
            (&long, Err("larger than")),
        ] {
            let found = read_head(&mut answer.as_bytes()).map_err(|error| error.to_string());
            match (found, expected) {
                (Ok((head, _)), Ok(expected)) => {
                    let head = ProbeHead {
                        is_chunked: false,
                        ..head
                    };
                    assert_eq!(head, expected, "{answer:?}");
                }
                (Err(said), Err(part)) => assert!(said.contains(part), "{answer:?}: {said}"),
                (found, _) => panic!("{answer:?}: {found:?}"),
            }
        }
    }

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

    #[test]
    fn no_byte_flipped_or_cut_of_an_answer_makes_more_of_it_than_an_answer() {
        let good =
            b"HTTP/1.1 103 x\r\n\r\nHTTP/1.1 302 x\r\nLocation: /y\r\nContent-Length: 3\r\n\r\nabc";
        for at in 0..good.len() {
            for value in 0..=255 {
                let mut changed = good.to_vec();
                changed[at] = value;
                for cut in [changed.len(), at] {
                    let mut stream = &changed[..cut];
                    if let Ok((head, rest)) = read_head(&mut stream) {
                        assert!((100..1000).contains(&head.status), "{head:?}");
                        assert!(rest.len() <= MAX_HEAD_BYTES);
                        let _ = read_body(&mut stream, &head, rest);
                    }
                }
            }
        }
    }
}
