//! `GET` of a path by HTTP/1.1 on a connection of its own: only the status matters. Redirects within the application are
//! followed as the kubelet does; one that leads elsewhere is an answer.

use std::io::{self, Read, Write};

use super::Server;

/// Redirects that are followed, as the kubelet's.
const MAX_REDIRECTS: usize = 10;
/// The largest head of an answer, in bytes: as much as servers commonly send.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// What applications know probes by, to leave them out of their logs.
const USER_AGENT: &str = "kube-probe/voile";

/// Asks; the status of the answer.
pub(crate) fn get(server: &Server, path: &str, headers: &[(String, String)]) -> io::Result<u16> {
    let mut path = path.to_owned();
    for _ in 0..=MAX_REDIRECTS {
        let mut stream = server.connect()?;
        let request = request(&server.address.to_string(), &path, headers);
        stream.write_all(request.as_bytes())?;
        let head = read_head(&mut stream)?;
        let next = match head.status {
            301 | 302 | 303 | 307 | 308 => within(server, head.location.as_deref()),
            _ => None,
        };
        match next {
            Some(next) => path = next,
            None => return Ok(head.status),
        }
    }
    Err(io::Error::other(format!(
        "redirected more than {MAX_REDIRECTS} times"
    )))
}

fn request(authority: &str, path: &str, headers: &[(String, String)]) -> String {
    let mut text = format!("GET {path} HTTP/1.1\r\n");
    let usual = [
        ("Host", authority),
        ("User-Agent", USER_AGENT),
        ("Accept", "*/*"),
    ];
    let given = |name: &str| {
        headers
            .iter()
            .any(|(own, _)| own.eq_ignore_ascii_case(name))
    };
    let usual = usual.into_iter().filter(|(name, _)| !given(name));
    let own = headers.iter().map(|(name, value)| (&**name, &**value));
    for (name, value) in usual.chain(own).chain([("Connection", "close")]) {
        text.push_str(name);
        text.push_str(": ");
        text.push_str(value);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    text
}

/// The path, if the redirect leads to the same server.
fn within(server: &Server, location: Option<&str>) -> Option<String> {
    let location = location?;
    let own = format!("http://{}", server.address);
    let path = location.strip_prefix(&own).unwrap_or(location);
    let local = path.starts_with('/') && !path.starts_with("//");
    let fit = path.bytes().all(|byte| byte.is_ascii_graphic());
    let path = path.split('#').next()?;
    (local && fit).then(|| path.to_owned())
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    location: Option<String>,
}

fn read_head(stream: &mut impl Read) -> io::Result<Head> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut bytes = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        while let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head =
                parse(&bytes[..end]).ok_or_else(|| wrong("the answer is not HTTP/1".to_owned()))?;
            if !(100..200).contains(&head.status) || head.status == 101 {
                return Ok(head);
            }
            bytes.drain(..end + 4); // a word beforehand, such as 103
        }
        if bytes.len() > MAX_HEAD_BYTES {
            return Err(wrong(format!(
                "the head of the answer is larger than {MAX_HEAD_BYTES} bytes"
            )));
        }
        match stream.read(&mut chunk)? {
            0 => return Err(wrong("the connection ended before an answer".to_owned())),
            read => bytes.extend_from_slice(&chunk[..read]),
        }
    }
}

fn parse(head: &[u8]) -> Option<Head> {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    let status = Some(status)
        .filter(|status| status.len() == 3)?
        .parse()
        .ok()
        .filter(|status| *status >= 100)?;
    let mut fields = lines.filter_map(|line| line.split_once(':'));
    let location = fields.find(|(name, _)| name.eq_ignore_ascii_case("location"));
    Some(Head {
        status,
        location: location.map(|(_, value)| value.trim().to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_or_refused() {
        let good = |status, location: Option<&str>| {
            Ok(Head {
                status,
                location: location.map(str::to_owned),
            })
        };
        let long = format!("HTTP/1.1 200 OK\r\nA: {}\r\n", "a".repeat(MAX_HEAD_BYTES));
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\nbody", good(200, None)),
            (
                "HTTP/1.0 503 no\r\nLocation: /x\r\n\r\n",
                good(503, Some("/x")),
            ),
            (
                "HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
                good(204, None),
            ),
            ("HTTP/1.1 200 OK\r\n", Err("ended before an answer")),
            ("HTTP/1.1 99 x\r\n\r\n", Err("not HTTP/1")),
            ("HTTP/1.1 +20 x\r\n\r\n", Err("not HTTP/1")),
            ("SSH-2.0-x\r\n\r\n", Err("not HTTP/1")),
            (&long, Err("larger than")),
        ] {
            let found = read_head(&mut answer.as_bytes()).map_err(|error| error.to_string());
            match (found, expected) {
                (Ok(head), Ok(expected)) => assert_eq!(head, expected, "{answer:?}"),
                (Err(said), Err(part)) => assert!(said.contains(part), "{answer:?}: {said}"),
                (found, _) => panic!("{answer:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn own_fields_take_the_place_of_the_usual_ones() {
        let own = [("hOST".to_owned(), "shop".to_owned())];
        assert_eq!(
            request("127.0.0.1:1", "/x", &own),
            "GET /x HTTP/1.1\r\nUser-Agent: kube-probe/voile\r\nAccept: */*\r\nhOST: shop\r\nConnection: close\r\n\r\n"
        );
    }
}
