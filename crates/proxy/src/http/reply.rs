//! Replies of our own: short, plain, without a `server` field.

use voile_http1::Version;

/// What the client is told when no upstream answers it.
pub(crate) struct Reply<'a> {
    pub(crate) status: u16,
    pub(crate) reason: &'a str,
    pub(crate) persist: bool,
    pub(crate) client: Version,
    /// The request was HEAD: everything but the body.
    pub(crate) head_only: bool,
    /// Tell the sidecar that asked that nothing was done.
    pub(crate) unprocessed: bool,
}

fn phrase(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        408 => "Request Timeout",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

impl Reply<'_> {
    /// Writes the whole reply; gives the length of its head.
    pub(crate) fn write(&self, out: &mut Vec<u8>) -> usize {
        out.clear();
        let mut add = |parts: &[&str]| {
            for part in parts {
                out.extend_from_slice(part.as_bytes());
            }
        };
        let mut digits = [0; 20];
        let mut status = [0; 20];
        add(&[
            "HTTP/1.1 ",
            decimal(self.status.into(), &mut status),
            " ",
            phrase(self.status),
            "\r\n",
        ]);
        let length = decimal(self.reason.len() + 1, &mut digits);
        add(&[
            "content-type: text/plain\r\ncontent-length: ",
            length,
            "\r\n",
        ]);
        if !self.persist {
            add(&["connection: close\r\n"]);
        } else if self.client == Version::Http10 {
            add(&["connection: keep-alive\r\n"]);
        }
        if self.unprocessed {
            add(&["x-voile-unprocessed: 1\r\n"]);
        }
        add(&["\r\n"]);
        let head = out.len();
        if !self.head_only {
            out.extend_from_slice(self.reason.as_bytes());
            out.push(b'\n');
        }
        head
    }
}

fn decimal(mut number: usize, room: &mut [u8; 20]) -> &str {
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    std::str::from_utf8(&room[at..]).unwrap_or_default()
}
