//! Servers of the table: what each does with a request, in the words of either version.

use crate::http::stage::{Step, say};

use super::client::{Body, Request};

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
const RESET: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
const GO_AWAY: u8 = 7;

pub(super) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;

/// What the server does once it has the request, or the beginning that the client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Server {
    /// Answers `ok` with its length.
    Answers,
    /// Answers `ok` without a length.
    AnswersUnsized,
    /// Answers without a body.
    AnswersEmpty,
    /// Answers a gRPC call with a message and status 0.
    AnswersCall,
    /// Says 103 as often before its answer.
    Hints(usize),
    /// Answers 503, or a gRPC call with status 14, then well.
    FailsOnce,
    FailsCallOnce,
    /// Ends its connection before, within the head of, and within the body of its answer.
    ClosesBefore,
    ClosesWithinHead,
    ClosesWithinBody,
    /// Resets its connection.
    ResetsBefore,
    ResetsWithinBody,
    /// Resets the stream. HTTP/2 only.
    ResetsStreamBefore,
    ResetsStreamWithinBody,
    /// Refuses the stream as unprocessed, each time or on its first connection. HTTP/2 only.
    Refuses,
    RefusesOnce,
    /// Leaves without having processed the stream, and is there again. HTTP/2 only.
    LeavesOnce,
    /// Answers a request, ends the connection at the next one, and is there again.
    ClosesUsed,
    /// Says something that is no head.
    Babbles,
    /// Breaks the framing of its body.
    BreaksBody,
    /// Says nothing; an HTTP/2 server takes no more of a body than the first window.
    Silent,
    /// Reads no body; an HTTP/2 server no more than the first window.
    Unreading,
    /// Begins its answer, and reads no body.
    StopsUnreading,
    /// Begins its answer, and says no more.
    Stops,
    /// Grants a tunnel, and says nothing in it.
    Grants,
    /// No listener.
    Missing,
    /// Connections to it are neither opened nor refused.
    Unreachable,
}

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// HPACK literals; each text is shorter than 127 bytes.
pub(super) fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    frame(HEADERS, flags | END_HEADERS, stream, &block)
}

fn reset(code: u32) -> Step {
    say(frame(RESET, 0, 1, &code.to_be_bytes()))
}

/// The server's scripts, one for each connection; the last also for all later ones.
pub(super) fn scripts(server: Server, http2: bool, request: &Request) -> Vec<Vec<Step>> {
    let (begin, hear, stream) = match http2 {
        true => {
            let settings = say(frame(SETTINGS, 0, 0, &[]));
            let kind = match request.body {
                Body::None => HEADERS,
                _ => DATA,
            };
            (vec![Step::Until(PREFACE), settings], Step::Frame(kind), 1)
        }
        false => (vec![], Step::Until(request.end_in_http1()), 0),
    };
    let answer = |server, stream| match http2 {
        true => in_http2(server, stream),
        false => in_http1(server),
    };
    let one =
        |steps: Vec<Step>| [begin.clone(), vec![hear.clone()], steps, vec![Step::Eof]].concat();
    let good = match request.grpc {
        true => Server::AnswersCall,
        false => Server::Answers,
    };
    let well = one(answer(good, stream));
    match server {
        // Half of an answer ends one wait, nothing ends the other.
        Server::Unreading | Server::StopsUnreading if !http2 => {
            let head = vec![Step::Until(b"\r\n\r\n")];
            let waits = vec![Step::Wait, Step::Wait];
            vec![[head, answer(server, stream), waits].concat()]
        }
        // Later connections meet a silent one.
        Server::Stops => vec![one(answer(server, stream)), one(vec![])],
        Server::ClosesUsed => {
            let mut first = answer(good, stream);
            first.extend([hear.clone(), Step::HalfClose]);
            vec![one(first), well]
        }
        Server::FailsOnce | Server::FailsCallOnce if http2 => {
            let mut both = answer(server, stream);
            both.push(hear.clone());
            both.extend(answer(good, stream + 2));
            vec![one(both)]
        }
        Server::FailsOnce | Server::FailsCallOnce | Server::RefusesOnce | Server::LeavesOnce => {
            vec![one(answer(server, stream)), well]
        }
        _ => vec![one(answer(server, stream))],
    }
}

fn in_http1(server: Server) -> Vec<Step> {
    const LONG: &str = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf";
    const OPEN: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let well = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    match server {
        Server::Answers => vec![say(well)],
        Server::AnswersUnsized => vec![say(format!("{OPEN}2\r\nok\r\n0\r\n\r\n"))],
        Server::AnswersEmpty => vec![say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")],
        Server::AnswersCall => {
            let body = "a\r\n\0\0\0\0\u{5}hello\r\n0\r\ngrpc-status: 0\r\n\r\n";
            let kind = "\r\nContent-Type: application/grpc\r\n\r\n";
            vec![say(OPEN.replace("\r\n\r\n", kind) + body)]
        }
        Server::Hints(times) => {
            let hints = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(times);
            vec![say(hints + well)]
        }
        Server::FailsOnce => vec![say("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")],
        Server::FailsCallOnce => {
            let end = "Content-Type: application/grpc\r\ngrpc-status: 14\r\n";
            vec![say(format!(
                "HTTP/1.1 200 OK\r\n{end}Content-Length: 0\r\n\r\n"
            ))]
        }
        Server::ClosesBefore => vec![Step::HalfClose],
        Server::ClosesWithinHead => vec![say("HTTP/1.1 200 OK\r\nCont"), Step::HalfClose],
        Server::ClosesWithinBody => vec![say(LONG), Step::Wait, Step::HalfClose],
        Server::ResetsBefore => vec![Step::Reset],
        Server::ResetsWithinBody => vec![say(LONG), Step::Wait, Step::Reset],
        Server::Babbles => vec![say("220 smtp.test ESMTP\r\n\r\n")],
        Server::BreaksBody => vec![
            say(format!("{OPEN}4\r\nhalf\r\n")),
            Step::Wait,
            say("zz\r\n"),
        ],
        Server::Stops | Server::StopsUnreading => vec![say(LONG)],
        Server::Grants => vec![say("HTTP/1.1 200 OK\r\n\r\n")],
        _ => vec![],
    }
}

fn in_http2(server: Server, stream: u32) -> Vec<Step> {
    let ok = (":status", "200");
    let well = [
        headers(stream, 0, &[ok, ("content-length", "2")]),
        frame(DATA, END_STREAM, stream, b"ok"),
    ]
    .concat();
    let half = [
        headers(stream, 0, &[ok, ("content-length", "9")]),
        frame(DATA, 0, stream, b"half"),
    ]
    .concat();
    match server {
        Server::Answers => vec![say(well)],
        Server::AnswersUnsized => {
            let body = frame(DATA, END_STREAM, stream, b"ok");
            vec![say([headers(stream, 0, &[ok]), body].concat())]
        }
        Server::AnswersEmpty => vec![say(headers(stream, END_STREAM, &[ok]))],
        Server::AnswersCall => {
            let head = headers(stream, 0, &[ok, ("content-type", "application/grpc")]);
            let body = frame(DATA, 0, stream, b"\0\0\0\0\x05hello");
            let end = headers(stream, END_STREAM, &[("grpc-status", "0")]);
            vec![say([head, body, end].concat())]
        }
        Server::Hints(times) => {
            let hints = headers(stream, 0, &[(":status", "103")]).repeat(times);
            vec![say([hints, well].concat())]
        }
        Server::FailsOnce => vec![say(headers(stream, END_STREAM, &[(":status", "503")]))],
        Server::FailsCallOnce => {
            let end = [
                ok,
                ("content-type", "application/grpc"),
                ("grpc-status", "14"),
            ];
            vec![say(headers(stream, END_STREAM, &end))]
        }
        Server::ClosesBefore => vec![Step::HalfClose],
        Server::ClosesWithinHead => vec![say(&well[..12]), Step::HalfClose],
        Server::ClosesWithinBody => vec![say(half), Step::Wait, Step::HalfClose],
        Server::ResetsBefore => vec![Step::Reset],
        Server::ResetsWithinBody => vec![say(half), Step::Wait, Step::Reset],
        Server::ResetsStreamBefore => vec![reset(INTERNAL_ERROR)],
        Server::ResetsStreamWithinBody => vec![say(half), Step::Wait, reset(INTERNAL_ERROR)],
        Server::Refuses | Server::RefusesOnce => vec![reset(REFUSED_STREAM)],
        Server::LeavesOnce => vec![say(frame(GO_AWAY, 0, 0, &[0; 8]))],
        Server::Babbles => vec![say(headers(stream, END_STREAM, &[("x", "y")]))],
        Server::BreaksBody => {
            let end = frame(DATA, END_STREAM, stream, b"");
            vec![say(half), Step::Wait, say(end)]
        }
        Server::Stops | Server::StopsUnreading => vec![say(half)],
        Server::Grants => vec![say(headers(stream, 0, &[ok]))],
        _ => vec![],
    }
}
