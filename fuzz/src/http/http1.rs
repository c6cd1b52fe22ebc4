//! Heads: read in pieces they mean the same as whole, and a forwarded head reads as the received one.

use voile_http1::{
    Framing, MAX_HEAD_BYTES, MAX_HEADERS, Progress, Reject, RequestEdit, RequestHead, RequestIndex,
    RequestSummary, ResponseEdit, ResponseIndex, Version,
};

/// Result of reading a head, and the number of bytes it needed.
type Read = (Result<Progress, Reject>, usize);

/// Reads a growing buffer in pieces of `step` bytes, as they might arrive.
fn in_pieces(
    bytes: &[u8],
    step: usize,
    mut parse: impl FnMut(&[u8]) -> Result<Progress, Reject>,
) -> Read {
    let mut end = 0;
    loop {
        end = (end + step).min(bytes.len());
        match parse(&bytes[..end]) {
            Ok(Progress::Partial) if end < bytes.len() => {}
            result => return (result, end),
        }
    }
}

/// The first byte says how the rest arrives; the rest is the message.
fn pace(data: &[u8]) -> (usize, &[u8]) {
    match data {
        [] => (1, data),
        [pace, message @ ..] => (usize::from(*pace % 32) + 1, message),
    }
}

/// No head that leaves us may be read in two ways.
fn assert_strict(head: &[u8]) {
    assert!(head.ends_with(b"\r\n\r\n"), "{}", head.escape_ascii());
    let inner = &head[..head.len() - 4];
    for (at, byte) in inner.iter().enumerate() {
        match byte {
            b'\n' => assert!(at > 0 && inner[at - 1] == b'\r', "bare LF"),
            b'\r' => assert_eq!(inner.get(at + 1), Some(&b'\n'), "bare CR"),
            0 => panic!("NUL"),
            _ => {}
        }
    }
    let mut framings = 0;
    for line in inner.split(|byte| *byte == b'\n').skip(1) {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        assert!(!name.is_empty(), "a line without name");
        assert!(
            !line.starts_with(b" ") && !line.starts_with(b"\t"),
            "obs-fold"
        );
        assert!(!name.ends_with(b" "), "blank before the colon");
        let is_framing = name.eq_ignore_ascii_case(b"content-length")
            || name.eq_ignore_ascii_case(b"transfer-encoding");
        framings += usize::from(is_framing);
    }
    assert!(framings <= 1, "two framings: {}", head.escape_ascii());
}

/// Returns true if a head within its limits may go beyond them on the next hop. Each hop adds a line or two
/// (`Connection`, framing), and the next hop has the same limits.
fn at_the_limit(read: &Result<Progress, Reject>, lines: usize, length: usize) -> bool {
    let beyond = matches!(read, Err(Reject::TooManyHeaders | Reject::HeadTooLarge));
    beyond && (lines + ADDED_LINES > MAX_HEADERS || length + ADDED_BYTES > MAX_HEAD_BYTES)
}

/// Lines that one hop adds at most.
const ADDED_LINES: usize = 2;
/// Bytes of them, and of blanks written anew.
const ADDED_BYTES: usize = 256;

/// A request head.
pub(crate) fn request(data: &[u8]) {
    let (step, bytes) = pace(data);
    let mut whole = RequestIndex::default();
    let all = whole.parse(bytes);
    let mut index = RequestIndex::default();
    let (pieces, _) = in_pieces(bytes, step, |bytes| index.parse(bytes));
    match (&all, &pieces) {
        (Ok(whole), Ok(pieces)) => assert_eq!(whole, pieces),
        // The first fault is named; the refusal must not depend on the pace.
        (Err(_), Err(_)) => {}
        _ => panic!("whole {all:?}, in pieces {pieces:?}"),
    }
    if !matches!(all, Ok(Progress::Complete)) {
        return;
    }
    assert_eq!(whole.head_len(), index.head_len());
    let head = whole.head(bytes);
    assert!(head.target().ends_with(head.path_and_query()) || head.path_and_query() == "/");
    assert_eq!(head.is_connect(), head.path_and_query().is_empty());
    assert!(head.path_and_query().starts_with(head.path()));
    for (name, _) in head.headers() {
        let first = head
            .headers()
            .find(|(one, _)| one.eq_ignore_ascii_case(name));
        assert_eq!(head.header(name), first.map(|(_, value)| value));
    }
    edited_request(&head, whole.head_len());
    let mut out = Vec::new();
    head.write_forwarded(&RequestEdit::default(), &mut out);
    assert_strict(&out);
    let mut again = RequestIndex::default();
    let read = again.parse(&out);
    // HTTP/1.0 may leave out an authority that HTTP/1.1 requires; the engine always knows one then.
    if head.authority().is_none() || at_the_limit(&read, head.headers().count(), whole.head_len()) {
        return;
    }
    assert!(
        matches!(read, Ok(Progress::Complete)),
        "{read:?}: {}",
        out.escape_ascii()
    );
    assert_eq!(again.head_len(), out.len());
    let forwarded = again.head(&out);
    assert_eq!(forwarded.method(), head.method());
    assert_eq!(forwarded.path_and_query(), head.path_and_query());
    assert_eq!(forwarded.framing(), head.framing());
    assert_eq!(forwarded.authority(), head.authority());
    for (name, value) in forwarded.headers() {
        let connection_level = ["connection", "upgrade", "te", "host"];
        if !connection_level
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known))
        {
            let sent = head
                .headers()
                .any(|(theirs, what)| theirs == name && what == value);
            assert!(sent, "{name} was not received");
        }
    }
}

/// A role's edits hold: removed fields are gone, added ones are there, an authority is never missing.
fn edited_request(head: &RequestHead<'_>, length: usize) {
    let edit = RequestEdit {
        default_authority: Some("a"),
        authority: None,
        path: None,
        add: b"x-added: 1\r\n",
        leave_out: &["accept".into(), "x-added".into()],
    };
    let mut out = Vec::new();
    head.write_forwarded(&edit, &mut out);
    assert_strict(&out);
    let mut index = RequestIndex::default();
    let read = index.parse(&out);
    if at_the_limit(&read, head.headers().count(), length) {
        return;
    }
    assert!(
        matches!(read, Ok(Progress::Complete)),
        "{read:?}: {}",
        out.escape_ascii()
    );
    let forwarded = index.head(&out);
    assert_eq!(forwarded.header("x-added"), Some(&b"1"[..]));
    assert_eq!(forwarded.header("accept"), None);
    assert_eq!(forwarded.authority(), head.authority().or(Some("a")));
    assert_eq!(forwarded.framing(), head.framing());
    assert_eq!(forwarded.is_idempotent(), head.is_idempotent());
}

/// A response head; the second byte describes the request.
pub(crate) fn response(data: &[u8]) {
    let (step, rest) = pace(data);
    let Some((asked, bytes)) = rest.split_first() else {
        return;
    };
    let asked = RequestSummary {
        head: asked & 1 != 0,
        upgrade: asked & 2 != 0,
        connect: asked & 4 != 0,
    };
    let mut whole = ResponseIndex::default();
    let all = whole.parse(bytes, asked);
    let mut index = ResponseIndex::default();
    let (pieces, _) = in_pieces(bytes, step, |bytes| index.parse(bytes, asked));
    match (&all, &pieces) {
        (Ok(whole), Ok(pieces)) => assert_eq!(whole, pieces),
        (Err(_), Err(_)) => {}
        _ => panic!("whole {all:?}, in pieces {pieces:?}"),
    }
    if !matches!(all, Ok(Progress::Complete)) {
        return;
    }
    let head = whole.head(bytes);
    // Only checks that they end: the engine's tests check their meaning.
    let _ = (head.is_unprocessed(), head.keep_alive_timeout());
    for (client, persist) in [
        (Version::Http10, true),
        (Version::Http11, true),
        (Version::Http11, false),
    ] {
        let edit = ResponseEdit { client, persist };
        let mut out = Vec::new();
        head.write_forwarded(&edit, &mut out);
        assert_strict(&out);
        let mut again = ResponseIndex::default();
        let read = again.parse(&out, asked);
        if at_the_limit(&read, head.headers().count(), whole.head_len()) {
            continue;
        }
        assert!(
            matches!(read, Ok(Progress::Complete)),
            "{read:?}: {}",
            out.escape_ascii()
        );
        assert_eq!(again.head_len(), out.len());
        let forwarded = again.head(&out);
        assert_eq!(forwarded.status(), head.status());
        assert_eq!(forwarded.is_interim(), head.is_interim());
        if !persist && !head.is_interim() && !head.opens_tunnel() {
            assert!(!forwarded.keep_alive(), "{}", out.escape_ascii());
        }
        let unwrapped = head.must_unwrap(client) && head.framing() == Framing::Chunked;
        let wanted = match unwrapped {
            true => Framing::UntilClose,
            false => head.framing(),
        };
        assert_eq!(forwarded.framing(), wanted, "{}", out.escape_ascii());
    }
}
