//! Writes the head for the next hop: fields of the connection are left out, the rest is copied in runs.
//!
//! Removed: `Connection` and the fields it nominates, `Keep-Alive`, `Proxy-Connection`, `TE` other than `trailers`,
//! `Upgrade` unless it is offered on, `HTTP2-Settings`, and identity fields that only a proxy may set. Nothing is
//! added by itself (no `Via`, no `X-Request-Id`): a role adds the fields that its users expect. Lines with unusual
//! blanks are written anew, so that the next hop reads the same.

use std::borrow::Cow;

use crate::fields::{Field, KnownField, list, loosely_equal};
use crate::framing::{Framing, Version};
use crate::request::RequestHead;
use crate::response::ResponseHead;

/// Additions to a forwarded request.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestEdit<'a> {
    /// `Host` when the request names no authority (HTTP/1.0 only).
    pub default_authority: Option<&'a str>,
    /// The authority that goes on instead of the one that came; not of CONNECT, whose target it is.
    pub authority: Option<&'a str>,
    /// Path and query that go on instead of those that came.
    pub path: Option<&'a str>,
    /// Complete field lines, each with its CRLF.
    pub add: &'a [u8],
    /// Fields left out, in lower case: they are written anew in `add`, or were not to be believed. With them go those that
    /// differ by `_` for `-`, which some applications take for the same.
    pub leave_out: &'a [Cow<'static, str>],
}

/// Additions to a forwarded response.
#[derive(Debug, Clone, Copy)]
pub struct ResponseEdit {
    /// The version the client spoke.
    pub client: Version,
    /// True if the downstream connection is kept.
    pub persist: bool,
}

enum ForwardedLine {
    Keep,
    Drop,
    /// Write `name: value` anew.
    Rewrite,
    /// Write this instead.
    Replace(&'static [u8]),
}

/// Copies lines, joining neighbours into one run.
struct LineRuns<'a> {
    bytes: &'a [u8],
    from: usize,
    to: usize,
}

impl LineRuns<'_> {
    fn flush(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes[self.from..self.to]);
        self.from = self.to;
    }

    fn line(&mut self, field: &Field, action: ForwardedLine, out: &mut Vec<u8>) {
        let end = usize::from(field.line_end);
        let action = match action {
            ForwardedLine::Keep if !field.is_plain(self.bytes) => ForwardedLine::Rewrite,
            action => action,
        };
        if !matches!(action, ForwardedLine::Keep) {
            self.flush(out);
            self.from = end;
        }
        match action {
            ForwardedLine::Rewrite => {
                let value = field.value.of(self.bytes);
                write(out, &[field.name.of(self.bytes), b": ", value, b"\r\n"]);
            }
            ForwardedLine::Replace(text) => out.extend_from_slice(text),
            ForwardedLine::Keep | ForwardedLine::Drop => {}
        }
        self.to = end;
    }
}

fn write(out: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        out.extend_from_slice(part);
    }
}

impl RequestHead<'_> {
    /// Appends the head to send upstream, always HTTP/1.1 in origin form (CONNECT's is its authority) with one `Host`.
    pub fn write_forwarded(&self, edit: &RequestEdit<'_>, out: &mut Vec<u8>) {
        let (index, bytes) = (self.index, self.bytes);
        let section = index.line_end + 2;
        let mut runs = LineRuns {
            bytes,
            from: index.start,
            to: section,
        };
        let authority = edit.authority.filter(|_| !self.is_connect());
        let moved = edit.path.is_some() || authority.is_some() || index.target.authority.is_some();
        if index.version == Version::Http10 || moved {
            runs.from = section;
            let path = match self.is_connect() {
                true => self.target(),
                false => edit.path.unwrap_or_else(|| self.path_and_query()),
            };
            let method = self.method();
            write(
                out,
                &[method.as_bytes(), b" ", path.as_bytes(), b" HTTP/1.1\r\n"],
            );
        }
        if let Some(authority) = authority {
            write(out, &[b"Host: ", authority.as_bytes(), b"\r\n"]);
        } else if let Some(authority) = index.target.authority {
            write(out, &[b"Host: ", authority.of(bytes), b"\r\n"]);
        } else if index.host.is_none() {
            let authority = edit.default_authority.unwrap_or_default();
            write(out, &[b"Host: ", authority.as_bytes(), b"\r\n"]);
        }
        for field in index.fields.all() {
            let left_out = !edit.leave_out.is_empty() && {
                let name = field.name.of(bytes);
                let same = |known: &Cow<'static, str>| loosely_equal(name, known.as_bytes());
                field.known == KnownField::Other && edit.leave_out.iter().any(same)
            };
            let renamed = field.known == KnownField::Host && authority.is_some();
            let action = if left_out || renamed {
                ForwardedLine::Drop
            } else {
                self.action(field)
            };
            runs.line(field, action, out);
        }
        runs.flush(out);
        if self.wants_upgrade() {
            out.extend_from_slice(b"Connection: Upgrade\r\n");
        }
        write(out, &[edit.add, b"\r\n"]);
    }

    fn action(&self, field: &Field) -> ForwardedLine {
        let value = field.value.of(self.bytes);
        match field.known {
            KnownField::Other if field.nominated => ForwardedLine::Drop,
            KnownField::ContentLength if self.is_connect() => ForwardedLine::Drop,
            KnownField::Other | KnownField::ContentLength | KnownField::TransferEncoding => {
                ForwardedLine::Keep
            }
            KnownField::Host if self.index.target.authority.is_some() => ForwardedLine::Drop,
            KnownField::Host => ForwardedLine::Keep,
            KnownField::Expect if self.expects_continue() => ForwardedLine::Keep,
            KnownField::Upgrade if self.wants_upgrade() => ForwardedLine::Keep,
            KnownField::Te if list(value).any(is_trailers) => {
                ForwardedLine::Replace(b"TE: trailers\r\n")
            }
            _ => ForwardedLine::Drop,
        }
    }
}

fn is_trailers(member: &[u8]) -> bool {
    member.eq_ignore_ascii_case(b"trailers")
}

impl ResponseHead<'_> {
    /// Returns true if the body's chunk framing must be removed for this client.
    pub fn must_unwrap(&self, client: Version) -> bool {
        client == Version::Http10 && self.framing() == Framing::Chunked
    }

    /// Appends the head to send downstream, always as HTTP/1.1 (RFC 9110 section 6.2), whatever the client spoke.
    pub fn write_forwarded(&self, edit: &ResponseEdit, out: &mut Vec<u8>) {
        let (index, bytes) = (self.index, self.bytes);
        let section = index.line_end + 2;
        let mut runs = LineRuns {
            bytes,
            from: 0,
            to: section,
        };
        if self.version() == Version::Http10 {
            out.extend_from_slice(b"HTTP/1.1");
            runs.from = b"HTTP/1.0".len();
        }
        for field in index.fields.all() {
            runs.line(field, self.action(field, edit.client), out);
        }
        runs.flush(out);
        let connection: &[u8] = match self.status() {
            101 => b"Connection: Upgrade\r\n",
            100..200 => b"",
            _ if self.opens_tunnel() => b"",
            _ if !edit.persist => b"Connection: close\r\n",
            _ if edit.client == Version::Http10 => b"Connection: keep-alive\r\n",
            _ => b"",
        };
        write(out, &[connection, b"\r\n"]);
    }

    /// Fields that go on to a client of another version of HTTP, which frames the body in its own way.
    pub fn fields_of_message(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let goes_on = |field: &&Field| {
            let framing = matches!(
                field.known,
                KnownField::TransferEncoding | KnownField::Upgrade
            );
            !framing && matches!(self.action(field, Version::Http11), ForwardedLine::Keep)
        };
        let fields = self.index.fields.all().iter().filter(goes_on);
        fields.map(|field| (field.name.of(self.bytes), field.value.of(self.bytes)))
    }

    fn action(&self, field: &Field, client: Version) -> ForwardedLine {
        let bodiless = matches!(self.status(), 100..200 | 204) || self.opens_tunnel();
        match field.known {
            KnownField::Other if field.nominated => ForwardedLine::Drop,
            // RFC 9112 section 6.1 and RFC 9110 section 8.6: neither belongs into 1xx, 204 or 2xx to CONNECT.
            KnownField::ContentLength | KnownField::TransferEncoding if bodiless => {
                ForwardedLine::Drop
            }
            KnownField::TransferEncoding if client == Version::Http10 => ForwardedLine::Drop,
            KnownField::Upgrade if matches!(self.status(), 101 | 426) => ForwardedLine::Keep,
            KnownField::Other
            | KnownField::ContentLength
            | KnownField::TransferEncoding
            | KnownField::Host
            | KnownField::Expect => ForwardedLine::Keep,
            _ => ForwardedLine::Drop,
        }
    }
}
