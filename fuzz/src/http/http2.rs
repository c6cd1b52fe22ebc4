//! HTTP/2: bytes of a connection mean the same however they are cut, no peer makes this end hold or send more than
//! the limits allow, and HPACK blocks that are read and written again read as the same.

use std::task::{Context, Poll, Waker};

use voile_http2::{Config, Connection, Failure, Fields, Http2End, Link, PREFACE, Pool};

const CONFIG: Config = Config {
    stream_window: 20_000,
    connection_window: 70_000,
    max_header_list: 8000,
    max_continuations: 4,
    max_peer_streams: 16,
    initial_streams: 8,
    max_remembered_resets: 16,
    max_unseen_resets: 8,
    max_provoked_resets: 16,
    forgiving_streams: 4,
    max_unsent: 64_000,
    max_empty_frames: 16,
    max_interim: 4,
    max_heads: 32_000,
    max_window_changes: 16,
};

/// Empty SETTINGS, the first frame of a peer.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Requests that our client has under way.
const ASKED: usize = 3;

/// Most bytes that an input of this length provokes: the answer to each of the smallest frames, an answer 431, the
/// own settings.
fn most_said(bytes: usize) -> usize {
    bytes * 4 + 200
}

fn now<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    match poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Everything that a head says.
fn words(head: &Fields) -> Vec<(String, Vec<u8>)> {
    let pseudo = [
        (":method", Some(head.method())),
        (":scheme", head.scheme()),
        (":path", head.path()),
        (":authority", head.authority()),
        (":protocol", head.protocol()),
    ];
    let pseudo = pseudo
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.as_bytes().to_vec())));
    let plain = head
        .iter()
        .map(|(name, value)| (name.to_owned(), value.to_vec()));
    pseudo.chain(plain).collect()
}

/// A head that came may go on: to a log, to HTTP/1.1, to another connection.
fn assert_sound(head: &Fields) {
    for (name, value) in head.iter() {
        assert!(!name.is_empty());
        let token = |byte: u8| byte.is_ascii_graphic() && !byte.is_ascii_uppercase();
        assert!(name.bytes().all(token), "{name:?}");
        assert!(!name.contains([':', ' ', '(', '"', '/']), "{name:?}");
        let control = |byte: &u8| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f;
        assert!(!value.iter().any(control), "{}", value.escape_ascii());
    }
}

/// End of one stream, as its task sees it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    head: Option<Vec<(String, Vec<u8>)>>,
    status: u16,
    /// Of a stream that failed it depends on the pieces how much came before.
    body: Result<Vec<u8>, Failure>,
    ended: bool,
    trailers: Option<Vec<(String, Vec<u8>)>>,
}

/// End of a connection.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    said: Vec<u8>,
    end: Option<Http2End>,
    streams: Vec<Seen>,
}

fn read(body: &mut voile_http2::RecvStream) -> (Result<Vec<u8>, Failure>, bool) {
    let mut all = Vec::new();
    loop {
        match now(|cx| body.poll_data(cx)) {
            Some(Some(Ok(chunk))) => all.extend_from_slice(&chunk),
            Some(Some(Err(failure))) => return (Err(failure), false),
            Some(None) => return (Ok(all), true),
            None => return (Ok(all), false),
        }
    }
}

fn finish(
    head: Option<&Fields>,
    failure: Option<Failure>,
    body: &mut voile_http2::RecvStream,
) -> Seen {
    let (read, ended) = read(body);
    let body_bytes = read.as_ref().map_or(0, Vec::len);
    assert!(body_bytes <= CONFIG.stream_window as usize);
    let trailers = match now(|cx| body.poll_trailers(cx)) {
        Some(Ok(trailers)) => trailers,
        _ => None,
    };
    head.iter().for_each(|head| assert_sound(head));
    trailers.iter().for_each(assert_sound);
    Seen {
        head: head.map(words),
        status: head.map_or(0, Fields::status),
        body: failure.map_or(read, Err),
        ended,
        trailers: trailers.as_ref().map(words),
    }
}

fn feed(link: &Link, bytes: &[u8], step: usize) -> Vec<u8> {
    let mut said = link.borrow().output().to_vec();
    link.borrow().wrote(said.len());
    for piece in bytes.chunks(step) {
        let mut connection = link.borrow();
        connection.receive(piece);
        let output = connection.output();
        said.extend_from_slice(output);
        let length = output.len();
        connection.wrote(length);
    }
    assert!(said.len() <= most_said(bytes.len()), "{} bytes", said.len());
    said
}

fn served(bytes: &[u8], step: usize) -> Outcome {
    let link = Link::new(Connection::server(&CONFIG, Pool::new()));
    let said = feed(&link, &[PREFACE, &SETTINGS, bytes].concat(), step);
    let (mut streams, mut heads, mut bodies) = (Vec::new(), 0, 0);
    let mut held = Vec::new();
    while let Some((head, mut body, respond)) = link.accept() {
        heads += head.size();
        assert!(head.size() <= CONFIG.max_header_list as usize);
        let seen = finish(Some(&head), None, &mut body);
        bodies += seen.body.as_ref().map_or(0, Vec::len);
        streams.push(seen);
        held.push((body, respond));
    }
    assert!(streams.len() <= CONFIG.max_peer_streams as usize);
    assert!(heads <= CONFIG.max_heads, "{heads} bytes of heads");
    assert!(
        bodies <= CONFIG.connection_window as usize,
        "{bodies} bytes"
    );
    let end = link.borrow().end();
    // Dropping everything must work after any end.
    held.clear();
    Outcome { said, end, streams }
}

fn answered(bytes: &[u8], step: usize) -> Outcome {
    let link = Link::new(Connection::client(&CONFIG, Pool::new()));
    let mut asked = Vec::new();
    for number in 0..ASKED {
        let mut head = Fields::new();
        // The last one opens a tunnel, whose answers have no length and whose way there stays open.
        let connects = number == ASKED - 1;
        let fields: &[(&str, &str)] = match connects {
            true => &[(":method", "CONNECT"), (":authority", "db.test:443")],
            false => &[(":method", "GET"), (":scheme", "http"), (":path", "/")],
        };
        for (name, value) in fields {
            head.push(name, value.as_bytes());
        }
        asked.extend(link.send_request(head, !connects));
    }
    let said = feed(&link, &[&SETTINGS, bytes].concat(), step);
    let mut streams = Vec::new();
    for (mut response, _send) in asked {
        let head = now(|cx| response.poll_head(cx));
        let failure = head.as_ref().and_then(|head| head.as_ref().err().copied());
        let head = head.and_then(Result::ok);
        streams.push(finish(head.as_ref(), failure, &mut response.into_body()));
    }
    let end = link.borrow().end();
    Outcome { said, end, streams }
}

/// The first byte says how the rest is cut, as both ends' peers would send it.
pub(crate) fn any_split(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else {
        return;
    };
    let step = usize::from(*step % 32) + 1;
    let whole = PREFACE.len() + SETTINGS.len() + bytes.len();
    for carry in [served, answered] {
        let (one, other) = (carry(bytes, whole), carry(bytes, step));
        assert_eq!(one, other, "in pieces of {step}");
    }
}

/// One frame of headers with an end, behind which there is nothing.
fn request(id: u32, block: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 0, block.len() as u8, 1, 5];
    frame.extend_from_slice(&id.to_be_bytes());
    frame.extend_from_slice(block);
    frame
}

/// Blocks, each behind its length: the fields of each, written and read again, are the same. Tables go on from one to
/// the next in both.
pub(crate) fn hpack(data: &[u8]) {
    let first = Link::new(Connection::server(&CONFIG, Pool::new()));
    let second = Link::new(Connection::server(&CONFIG, Pool::new()));
    let between = Link::new(Connection::client(&CONFIG, Pool::new()));
    first.borrow().receive(PREFACE);
    first.borrow().receive(&SETTINGS);
    between.borrow().receive(&SETTINGS);
    let (mut rest, mut id) = (data, 1);
    while let Some((length, after)) = rest.split_first() {
        let (block, next) = after.split_at(after.len().min(usize::from(*length)));
        rest = next;
        first.borrow().receive(&request(id, block));
        id += 2;
        let Some((head, ..)) = first.accept() else {
            continue;
        };
        assert_sound(&head);
        if head.is_cut() {
            continue; // To be refused; it goes nowhere.
        }
        let expected = words(&head);
        let Some(_call) = between.send_request(head, true) else {
            return;
        };
        let said = between.borrow().output().to_vec();
        between.borrow().wrote(said.len());
        second.borrow().receive(&said);
        let (head, ..) = second.accept().expect("what we write is good");
        assert_eq!(words(&head), expected);
    }
}
