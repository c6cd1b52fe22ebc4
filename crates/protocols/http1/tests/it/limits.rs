//! Limits hold at their exact value, whole and in pieces.

use voile_http1::{
    MAX_FORWARDED_HEADERS, MAX_HEAD_BYTES, MAX_REQUEST_LINE_BYTES, Progress, Reject, RequestIndex,
};

fn feed(bytes: &[u8], piece: usize) -> Result<Progress, Reject> {
    let mut index = RequestIndex::default();
    index.reset();
    let mut end = 0;
    loop {
        end = bytes.len().min(end + piece);
        match index.parse(&bytes[..end])? {
            Progress::Partial if end < bytes.len() => {}
            done => return Ok(done),
        }
    }
}

fn check(bytes: &[u8], expected: Result<Progress, Reject>) {
    for piece in [bytes.len(), 1, 7, 4096] {
        assert_eq!(feed(bytes, piece), expected, "in pieces of {piece}");
    }
}

/// A request whose head has exactly so many bytes.
fn head_of(size: usize) -> Vec<u8> {
    let mut head = b"GET / HTTP/1.1\r\nHost: x\r\nPad: ".to_vec();
    head.resize(size - 4, b'p');
    head.extend_from_slice(b"\r\n\r\n");
    head
}

#[test]
fn a_head_may_be_as_large_as_the_limit_and_no_larger() {
    check(&head_of(MAX_HEAD_BYTES), Ok(Progress::Complete));
    check(&head_of(MAX_HEAD_BYTES + 1), Err(Reject::HeadTooLarge));
    check(&head_of(MAX_HEAD_BYTES * 3), Err(Reject::HeadTooLarge));
}

#[test]
fn an_endless_head_is_refused_at_the_limit() {
    let mut head = head_of(MAX_HEAD_BYTES + 4);
    head.truncate(MAX_HEAD_BYTES);
    check(&head, Err(Reject::HeadTooLarge));
}

#[test]
fn as_many_fields_as_the_limit_and_no_more() {
    let with = |count: usize| {
        format!(
            "GET / HTTP/1.1\r\nHost: x\r\n{}\r\n",
            "a: b\r\n".repeat(count - 1)
        )
        .into_bytes()
    };
    check(&with(24), Ok(Progress::Complete));
    check(&with(25), Ok(Progress::Complete));
    check(&with(MAX_FORWARDED_HEADERS), Ok(Progress::Complete));
    check(
        &with(MAX_FORWARDED_HEADERS + 1),
        Err(Reject::TooManyHeaders),
    );
}

#[test]
fn a_request_line_may_be_as_long_as_the_limit_and_no_longer() {
    let with = |length: usize| {
        let path = "p".repeat(length - "GET / HTTP/1.1".len());
        format!("GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes()
    };
    check(&with(MAX_REQUEST_LINE_BYTES), Ok(Progress::Complete));
    check(
        &with(MAX_REQUEST_LINE_BYTES + 1),
        Err(Reject::TargetTooLong),
    );
    check(
        &vec![b'A'; MAX_REQUEST_LINE_BYTES + 2],
        Err(Reject::TargetTooLong),
    );
}

#[test]
fn statuses_tell_the_client_what_to_change() {
    assert_eq!(Reject::HeadTooLarge.status(), 431);
    assert_eq!(Reject::TooManyHeaders.status(), 431);
    assert_eq!(Reject::TargetTooLong.status(), 414);
}
