//! Frames in, frames out: the answers to a peer's frames. The other end is written by hand.

mod hostile;
mod rules;

use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use super::*;
use crate::frame::{FrameHead, HEAD_BYTES, flag, number};
use crate::handle::{Link, RecvStream, ResponseFuture, SendResponse, SendStream};

const CONFIG: Config = Config {
    stream_window: 100_000,
    connection_window: 200_000,
    max_header_list: 16_000,
    max_continuations: 4,
    max_peer_streams: 8,
    initial_streams: 100,
    max_remembered_resets: 8,
    max_unseen_resets: 3,
    max_provoked_resets: 3,
    forgiving_streams: 4,
    max_unsent: 64_000,
    max_empty_frames: 5,
    max_interim: 3,
    max_heads: 45_000,
    max_window_changes: 20,
};

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write(&mut out, kind, flags, stream, payload);
    out
}

/// A block of plain literals.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            assert!(text.len() < 127);
            out.push(text.len() as u8);
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

const GET: [(&str, &str); 3] = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
const OK: [(&str, &str); 1] = [(":status", "200")];

fn headers(stream: u32, end: bool, fields: &[(&str, &str)]) -> Vec<u8> {
    let end = if end { flag::END_STREAM } else { 0 };
    frame(
        kind::HEADERS,
        flag::END_HEADERS | end,
        stream,
        &block(fields),
    )
}

fn data(stream: u32, end: bool, payload: &[u8]) -> Vec<u8> {
    frame(kind::DATA, u8::from(end), stream, payload)
}

fn number_frame(kind: u8, stream: u32, number: u32) -> Vec<u8> {
    frame(kind, 0, stream, &number.to_be_bytes())
}

/// Returns the written frames, one a line: kind, flags, stream, and the length or the code it carries.
fn said(link: &Link) -> Vec<String> {
    let mut connection = link.borrow();
    let mut bytes = connection.output().to_vec();
    connection.wrote(bytes.len());
    if bytes.starts_with(PREFACE) {
        bytes.drain(..PREFACE.len());
    }
    let (mut rest, mut lines) = (&bytes[..], Vec::new());
    while let Some((head, after)) = rest.split_at_checked(HEAD_BYTES) {
        let head = FrameHead::read(head.try_into().expect("nine bytes"));
        let (payload, next) = after.split_at(head.length);
        rest = next;
        let (id, end) = (head.stream, if head.flags & 1 == 1 { " end" } else { "" });
        lines.push(match head.kind {
            kind::DATA => format!("DATA {id} {}{end}", head.length),
            kind::HEADERS => format!("HEADERS {id}{end}"),
            kind::RST_STREAM => format!("RST {id} {}", ErrorCode(number(payload))),
            kind::SETTINGS if !end.is_empty() => "SETTINGS ack".to_owned(),
            kind::SETTINGS => "SETTINGS".to_owned(),
            kind::PING => format!("PING{end}"),
            kind::GOAWAY => {
                format!(
                    "GOAWAY {} {}",
                    number(payload),
                    ErrorCode(number(&payload[4..]))
                )
            }
            kind::WINDOW_UPDATE => format!("WINDOW {id} {}", number(payload)),
            kind => format!("frame {kind}"),
        });
    }
    lines
}

fn server() -> Link {
    let link = Link::new(Connection::server(&CONFIG, Pool::new()));
    hear(
        &link,
        &[PREFACE, &frame(kind::SETTINGS, 0, 0, &[])].concat(),
    );
    assert_eq!(said(&link), ["SETTINGS", "WINDOW 0 134465", "SETTINGS ack"]);
    link
}

fn client() -> Link {
    let link = Link::new(Connection::client(&CONFIG, Pool::new()));
    hear(&link, &frame(kind::SETTINGS, 0, 0, &[]));
    assert_eq!(said(&link), ["SETTINGS", "WINDOW 0 134465", "SETTINGS ack"]);
    link
}

fn hear(link: &Link, bytes: &[u8]) {
    link.borrow().receive(bytes);
}

fn accept(link: &Link) -> (Fields, RecvStream, SendResponse) {
    link.accept().expect("a stream")
}

fn ask(link: &Link, end: bool) -> (ResponseFuture, SendStream) {
    let mut head = Fields::new();
    for (name, value) in GET {
        head.push(name, value.as_bytes());
    }
    link.send_request(head, end).expect("room for a stream")
}

fn now<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    match poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

#[test]
fn resets_that_we_are_made_to_send_end_the_connection() {
    let link = server();
    for at in 0..4 {
        let id = at * 2 + 1;
        hear(&link, &headers(id, false, &[("x", "y")]));
    }
    let said = said(&link);
    assert_eq!(said.last().expect("frames"), "GOAWAY 7 ENHANCE_YOUR_CALM");
}

#[test]
fn a_head_that_is_too_large_is_given_as_an_excerpt_and_the_next_is_served() {
    let link = server();
    let value = "x".repeat(120);
    let long: Vec<_> = (0..120).map(|_| ("x-a", value.as_str())).collect();
    let kind = [
        ("content-type", "application/grpc"),
        ("content-type", "again"),
    ];
    // Nothing of this would be let pass in a smaller head.
    let bad = [
        (":path", "/other"),
        (":authority", "a\r\nb"),
        (":status", "200"),
        (":unknown", "x"),
    ];
    let text = block(&[&GET[..], &bad, &long, &kind].concat());
    let (first, rest) = text.split_at(10_000);
    hear(&link, &frame(kind::HEADERS, 0, 1, first));
    hear(
        &link,
        &frame(kind::CONTINUATION, flag::END_HEADERS, 1, rest),
    );
    let (head, _body, mut respond) = accept(&link);
    assert!(head.is_cut());
    assert_eq!(head.method(), "GET");
    let kept: Vec<_> = head.all().map(|field| (field.name, field.value)).collect();
    let pseudo = kept.iter().filter(|(name, _)| name.starts_with(b":"));
    assert_eq!(pseudo.count(), 3, "{kept:?}");
    assert_eq!((head.path(), head.authority()), (Some("/"), None));
    let kept: Vec<_> = head.iter().collect();
    assert_eq!(kept, [("content-type", &b"application/grpc"[..])]);
    assert!(respond.send_response(Fields::response(431), true).is_ok());
    drop((_body, respond));
    assert_eq!(said(&link), ["HEADERS 1 end", "RST 1 NO_ERROR"]);
    hear(
        &link,
        &[data(1, true, b"on its way"), headers(3, true, &GET)].concat(),
    );
    let (head, ..) = accept(&link);
    assert!(!head.is_cut());
    assert_eq!(head.method(), "GET");
    assert_eq!(said(&link), ["RST 3 CANCEL"], "dropped unanswered");
}

#[test]
fn windows_open_again_when_half_was_taken() {
    let link = server();
    hear(&link, &headers(1, false, &GET));
    let (_, mut body, _respond) = accept(&link);
    for _ in 0..4 {
        hear(&link, &data(1, false, &[0; 16_000]));
        let chunk = now(|cx| body.poll_data(cx))
            .expect("data")
            .expect("more")
            .expect("well");
        body.release_capacity(chunk.len());
    }
    assert_eq!(said(&link), ["WINDOW 1 64000"]);
    for _ in 0..3 {
        hear(&link, &data(1, false, &[0; 16_000]));
    }
    let chunk = now(|cx| body.poll_data(cx))
        .expect("data")
        .expect("more")
        .expect("well");
    assert_eq!(chunk.len(), 48_000, "what waited comes in one piece");
    body.release_capacity(chunk.len());
    assert_eq!(said(&link), ["WINDOW 0 112000"]);
}

#[test]
fn more_than_a_window_is_refused_and_what_nobody_takes_is_given_back() {
    let link = server();
    hear(&link, &headers(1, false, &GET));
    let held = accept(&link);
    hear(&link, &data(1, false, &[0; 16_000]).repeat(7));
    assert_eq!(said(&link), ["RST 1 FLOW_CONTROL_ERROR"]);
    drop(held);
    assert_eq!(said(&link), ["WINDOW 0 112000"]);
    // Data for a stream that we reset counts in the connection's window, which is given back.
    hear(&link, &data(1, false, &[0; 16_000]).repeat(7));
    assert_eq!(said(&link), ["WINDOW 0 112000"]);
}

#[test]
fn data_goes_as_far_as_windows_allow_and_on_when_they_open() {
    let link = server();
    let window = [&[0, 4][..], &10_u32.to_be_bytes()].concat();
    hear(&link, &frame(kind::SETTINGS, 0, 0, &window));
    hear(&link, &headers(1, true, &GET));
    let (_, _, mut respond) = accept(&link);
    let mut send = respond
        .send_response(Fields::response(200), false)
        .expect("sent");
    assert_eq!(now(|cx| send.poll_capacity(cx)), Some(Ok(10)));
    send.send_data(Bytes::from_static(&[0; 25]), false)
        .expect("sent");
    let mut trailers = Fields::new();
    trailers.push("grpc-status", b"0");
    send.send_trailers(trailers).expect("sent");
    assert_eq!(said(&link), ["SETTINGS ack", "HEADERS 1", "DATA 1 10"]);
    drop((send, respond));
    assert_eq!(said(&link), [""; 0], "the rest is still to come");
    hear(&link, &number_frame(kind::WINDOW_UPDATE, 1, 5));
    assert_eq!(said(&link), ["DATA 1 5"]);
    let window = [&[0, 4][..], &30_u32.to_be_bytes()].concat();
    hear(&link, &frame(kind::SETTINGS, 0, 0, &window));
    assert_eq!(said(&link), ["DATA 1 10", "HEADERS 1 end", "SETTINGS ack"]);
}

#[test]
fn where_much_comes_there_is_room_for_as_much_again() {
    let link = server();
    hear(&link, &headers(1, false, &GET));
    let (_, mut body, _respond) = accept(&link);
    let room = || {
        link.borrow()
            .streams
            .iter()
            .next()
            .expect("one")
            .1
            .data
            .capacity()
    };
    let mut bring = |frames: usize| {
        for _ in 0..frames {
            hear(&link, &data(1, false, &[0; 10_000]));
        }
        let room = room();
        let taken = now(|cx| body.poll_data(cx)).expect("data").expect("more");
        body.release_capacity(frames * 10_000);
        assert_eq!(taken.expect("well").len(), frames * 10_000);
        room
    };
    assert_eq!(bring(1), 10_000, "little is held in no more than it is");
    bring(5);
    assert_eq!(bring(1), 50_000, "as much as came before");
    assert_eq!(bring(1), 10_000, "which was little");
}

#[test]
fn what_fills_the_room_is_frames_that_fill_tls_records() {
    const RECORD: usize = 16 * 1024;
    for (records, frames) in [(1, vec![16_375]), (4, vec![16_375; 4])] {
        let link = Link::new(Connection::client(
            &CONFIG,
            Pool::with_room(records * RECORD),
        ));
        let window = number_frame(kind::WINDOW_UPDATE, 0, 1_000_000);
        let windows = [&[0, 4][..], &1_000_000_u32.to_be_bytes()].concat();
        hear(
            &link,
            &[frame(kind::SETTINGS, 0, 0, &windows), window].concat(),
        );
        let (_response, mut send) = ask(&link, false);
        said(&link);
        let room = now(|cx| send.poll_capacity(cx)).expect("room");
        assert_eq!(room, Ok(frames.iter().sum()));
        send.send_copy(&vec![0; room.expect("well")], false)
            .expect("sent");
        assert_eq!(link.borrow().output().len(), records * RECORD);
        assert_eq!(now(|cx| send.poll_capacity(cx)), None);
        let frames: Vec<_> = frames
            .iter()
            .map(|length| format!("DATA 1 {length}"))
            .collect();
        assert_eq!(said(&link), frames);
    }
}

#[test]
fn streams_beyond_the_limit_of_either_end_wait_for_one_to_end() {
    for (ours, theirs) in [(Some(1), None), (None, Some(1)), (Some(1), Some(2))] {
        let link = client();
        if let Some(ours) = ours {
            link.borrow().limit_local_streams(ours);
        }
        if let Some(theirs) = theirs {
            let setting = [&[0, 3][..], &u32::to_be_bytes(theirs)].concat();
            hear(&link, &frame(kind::SETTINGS, 0, 0, &setting));
            assert_eq!(said(&link), ["SETTINGS ack"]);
        }
        assert_eq!(link.borrow().max_local_streams(), 1);
        let _both = [ask(&link, true), ask(&link, true)];
        assert_eq!(said(&link), ["HEADERS 1 end"], "{ours:?} {theirs:?}");
        hear(&link, &headers(1, true, &OK));
        assert_eq!(said(&link), ["HEADERS 3 end"], "{ours:?} {theirs:?}");
    }
}

#[test]
fn streams_take_turns_when_the_connection_is_full() {
    let link = server();
    hear(
        &link,
        &[headers(1, true, &GET), headers(3, true, &GET)].concat(),
    );
    let mut sends = Vec::new();
    while let Some((_, _, mut respond)) = link.accept() {
        sends.push(
            respond
                .send_response(Fields::response(200), false)
                .expect("sent"),
        );
    }
    let room = now(|cx| sends[0].poll_capacity(cx))
        .expect("room")
        .expect("well");
    sends[0]
        .send_data(vec![0; room].into(), false)
        .expect("sent");
    for send in &mut sends {
        assert_eq!(now(|cx| send.poll_capacity(cx)), None);
    }
    let said_now = said(&link);
    assert_eq!(said_now.last().expect("frames"), &format!("DATA 1 {room}"));
    assert!(!link.borrow().replenish());
    for send in &mut sends {
        assert!(now(|cx| send.poll_capacity(cx)).is_some());
    }
}

#[test]
fn a_body_ends_with_trailers_a_length_or_an_error() {
    let long = [
        headers(1, false, &[OK[0], ("content-length", "5")]),
        data(1, false, b"four"),
    ];
    type End = Option<Result<(), Failure>>;
    let cases: Vec<(&str, Vec<u8>, End)> = vec![
        ("not yet", vec![], None),
        (
            "short",
            data(1, true, b""),
            Some(Err(Failure::Violation(ErrorCode::PROTOCOL_ERROR))),
        ),
        (
            "long",
            data(1, true, b"55"),
            Some(Err(Failure::Violation(ErrorCode::PROTOCOL_ERROR))),
        ),
        ("right", data(1, true, b"5"), Some(Ok(()))),
        (
            "reset",
            number_frame(kind::RST_STREAM, 1, 8),
            Some(Err(Failure::Reset(ErrorCode::CANCEL))),
        ),
    ];
    for (what, bytes, expected) in cases {
        let link = client();
        let (mut response, _send) = ask(&link, true);
        hear(&link, &[long.concat(), bytes].concat());
        now(|cx| response.poll_head(cx))
            .expect("a head")
            .expect("well");
        let mut body = response.into_body();
        let mut end = None;
        while let Some(chunk) = now(|cx| body.poll_data(cx)) {
            match chunk {
                Some(Ok(_)) => {}
                Some(Err(failure)) => {
                    end = Some(Err(failure));
                    break;
                }
                None => {
                    end = Some(Ok(()));
                    break;
                }
            }
        }
        assert_eq!(end, expected, "{what}");
    }
}

#[test]
fn requests_wait_for_the_servers_leave_and_go_out_in_order() {
    let link = client();
    hear(&link, &frame(kind::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1]));
    let (mut first, _a) = ask(&link, true);
    let (_second, mut b) = ask(&link, false);
    let (_third, _c) = ask(&link, true);
    b.send_data(Bytes::from_static(b"xy"), true)
        .expect("queued");
    assert_eq!(said(&link), ["SETTINGS ack", "HEADERS 1 end"]);
    hear(&link, &headers(1, true, &OK));
    assert!(now(|cx| first.poll_head(cx)).is_some());
    assert_eq!(said(&link), ["HEADERS 3", "DATA 3 2 end"]);
    hear(&link, &headers(3, true, &OK));
    assert_eq!(said(&link), ["HEADERS 5 end"]);
}

#[test]
fn a_stream_nobody_wants_is_reset_and_forgotten() {
    let link = client();
    drop(ask(&link, true));
    assert_eq!(said(&link), ["HEADERS 1 end", "RST 1 CANCEL"]);
    // Its answer was on its way.
    hear(
        &link,
        &[headers(1, false, &OK), data(1, true, b"x")].concat(),
    );
    assert_eq!(said(&link), [""; 0]);
    let server = server();
    hear(&server, &headers(1, false, &GET));
    let (_, body, mut respond) = accept(&server);
    drop(
        respond
            .send_response(Fields::response(200), true)
            .expect("sent"),
    );
    drop((body, respond));
    assert_eq!(said(&server), ["HEADERS 1 end", "RST 1 NO_ERROR"]);
}

#[test]
fn goodbye_is_said_twice_and_streams_in_flight_finish() {
    let link = server();
    hear(&link, &headers(1, true, &GET));
    let (_, _, mut respond) = accept(&link);
    link.borrow().leave();
    assert_eq!(said(&link), ["GOAWAY 2147483647 NO_ERROR", "PING"]);
    hear(&link, &headers(3, true, &GET));
    hear(&link, &frame(kind::PING, flag::ACK, 0, &GOODBYE));
    assert_eq!(said(&link), ["GOAWAY 3 NO_ERROR"]);
    hear(&link, &headers(5, true, &GET));
    let (_, _, mut later) = accept(&link);
    assert!(link.accept().is_none(), "the third came too late");
    assert_eq!(link.borrow().end(), None);
    for respond in [&mut respond, &mut later] {
        drop(
            respond
                .send_response(Fields::response(204), true)
                .expect("sent"),
        );
    }
    assert_eq!(link.borrow().end(), Some(Http2End::Clean));
    let client = client();
    let (mut response, _send) = ask(&client, true);
    client.borrow().leave();
    assert!(client.send_request(Fields::new(), true).is_none());
    assert_eq!(client.borrow().end(), None);
    hear(&client, &headers(1, true, &OK));
    assert!(now(|cx| response.poll_head(cx)).is_some());
    assert_eq!(client.borrow().end(), Some(Http2End::Clean));
    assert_eq!(said(&client), ["HEADERS 1 end", "GOAWAY 0 NO_ERROR"]);
}

#[test]
fn an_end_of_the_socket_fails_what_is_not_over() {
    let link = client();
    let (mut whole, _a) = ask(&link, true);
    let (mut half, _b) = ask(&link, true);
    hear(
        &link,
        &[headers(1, false, &OK), data(1, true, b"all")].concat(),
    );
    link.borrow().closed();
    assert!(matches!(now(|cx| whole.poll_head(cx)), Some(Ok(_))));
    let mut body = whole.into_body();
    assert!(matches!(now(|cx| body.poll_data(cx)), Some(Some(Ok(_)))));
    assert!(matches!(now(|cx| body.poll_data(cx)), Some(None)));
    let failed = now(|cx| half.poll_head(cx)).expect("an end");
    assert_eq!(failed.err(), Some(Failure::Connection));
    assert_eq!(link.borrow().end(), Some(Http2End::Closed));
}

#[test]
fn bad_beginnings_are_refused() {
    let settings = frame(kind::SETTINGS, 0, 0, &[]);
    for (what, bytes) in [
        ("HTTP/1.1", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        (
            "another preface",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX".to_vec(),
        ),
        (
            "no settings",
            [PREFACE, &frame(kind::PING, 0, 0, &[0; 8])].concat(),
        ),
    ] {
        let link = Link::new(Connection::server(&CONFIG, Pool::new()));
        hear(&link, &bytes);
        let end = link.borrow().end();
        assert_eq!(
            end,
            Some(Http2End::Error(ErrorCode::PROTOCOL_ERROR)),
            "{what}"
        );
    }
    let link = Link::new(Connection::client(&CONFIG, Pool::new()));
    hear(
        &link,
        &[settings, b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()].concat(),
    );
    assert_eq!(
        link.borrow().end(),
        Some(Http2End::Error(ErrorCode::FRAME_SIZE_ERROR))
    );
}
