//! Replays every case of the corpus whole, byte by byte and split at every position: the outcome must be the same.
//!
//! A case is a line `> outcome` followed by the message, in which line ends do not count and `\r \n \t \0 \xNN \\` do.
//! `#` begins a comment. Outcomes: `framing keep|close [extras] body=N rest=N`, `STATUS reason`, `partial`, `body reason`.

use std::fmt::Write as _;

use voile_http1::{Body, Framing, Progress, RequestIndex, RequestSummary, ResponseIndex};

struct Case {
    file: &'static str,
    line: usize,
    expected: String,
    bytes: Vec<u8>,
}

fn unescape(text: &str, into: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'\\' {
            into.push(*first);
            continue;
        }
        let used = match rest[0] {
            b'r' => {
                into.push(b'\r');
                1
            }
            b'n' => {
                into.push(b'\n');
                1
            }
            b't' => {
                into.push(b'\t');
                1
            }
            b'0' => {
                into.push(0);
                1
            }
            b'\\' => {
                into.push(b'\\');
                1
            }
            b'x' => {
                into.push(
                    u8::from_str_radix(&text[text.len() - rest.len() + 1..][..2], 16).unwrap(),
                );
                3
            }
            other => panic!("unknown escape {}", other as char),
        };
        rest = &rest[used..];
    }
}

fn cases(file: &'static str, text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(expected) = line.strip_prefix("> ") {
            cases.push(Case {
                file,
                line: number + 1,
                expected: expected.trim().to_owned(),
                bytes: Vec::new(),
            });
        } else if !line.starts_with('#') && !line.is_empty() {
            unescape(
                line,
                &mut cases
                    .last_mut()
                    .expect("a case begins with its outcome")
                    .bytes,
            );
        }
    }
    assert!(!cases.is_empty(), "{file} has cases");
    cases
}

fn framing_word(framing: Framing) -> String {
    match framing {
        Framing::None => "none".into(),
        Framing::Length(length) => format!("length-{length}"),
        Framing::Chunked => "chunked".into(),
        Framing::UntilClose => "until-close".into(),
    }
}

/// Feeds pieces as an engine would: the head from a growing buffer, the body from the available bytes.
struct Receiver<H> {
    bytes: Vec<u8>,
    head: H,
    body: Option<(String, Body, usize)>,
    failed: Option<String>,
}

impl<H: FnMut(&[u8]) -> Result<Option<(String, Framing, usize)>, String>> Receiver<H> {
    fn new(head: H) -> Self {
        Self {
            bytes: Vec::new(),
            head,
            body: None,
            failed: None,
        }
    }

    fn feed(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        if self.failed.is_some() {
            return;
        }
        if self.body.is_none() {
            match (self.head)(&self.bytes) {
                Ok(None) => return,
                Ok(Some((word, framing, at))) => self.body = Some((word, Body::new(framing), at)),
                Err(reject) => {
                    self.failed = Some(reject);
                    return;
                }
            }
        }
        if let Some((_, body, at)) = &mut self.body {
            match body.accept(&self.bytes[*at..]) {
                Ok(used) => *at += used,
                Err(error) => self.failed = Some(format!("body {}", error.reason())),
            }
        }
    }

    fn outcome(self, head_len: impl Fn(&[u8]) -> usize) -> String {
        match (self.failed, self.body) {
            (Some(failed), _) => failed,
            (None, None) => "partial".into(),
            (None, Some((mut word, body, at))) => {
                let consumed = at - head_len(&self.bytes);
                let done = if body.is_done() || matches!(body, Body::UntilClose) {
                    ""
                } else {
                    "+"
                };
                write!(
                    word,
                    " body={consumed}{done} rest={}",
                    self.bytes.len() - at
                )
                .unwrap();
                word
            }
        }
    }
}

fn request_outcome<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> String {
    let mut index = RequestIndex::default();
    index.reset();
    let mut length = 0;
    let mut receiver = Receiver::new(|bytes: &[u8]| match index.parse(bytes) {
        Ok(Progress::Partial) => Ok(None),
        Ok(Progress::Complete) => {
            let head = index.head(bytes);
            length = index.head_len();
            let keep = if head.keep_alive() { "keep" } else { "close" };
            let mut word = format!("{} {keep}", framing_word(head.framing()));
            for (said, name) in [
                (head.wants_upgrade(), "upgrade"),
                (head.expects_continue(), "continue"),
            ] {
                if said {
                    write!(word, " {name}").unwrap();
                }
            }
            Ok(Some((word, head.framing(), index.head_len())))
        }
        Err(reject) => Err(format!("{} {}", reject.status(), reject.reason())),
    });
    pieces.for_each(|piece| receiver.feed(piece));
    let Receiver {
        bytes,
        body,
        failed,
        ..
    } = receiver;
    Receiver {
        bytes,
        body,
        failed,
        head: |_: &[u8]| Ok(None),
    }
    .outcome(|_| length)
}

fn response_outcome<'a>(asked: RequestSummary, pieces: impl Iterator<Item = &'a [u8]>) -> String {
    let mut index = ResponseIndex::default();
    index.reset();
    let mut length = 0;
    let mut receiver = Receiver::new(|bytes: &[u8]| match index.parse(bytes, asked) {
        Ok(Progress::Partial) => Ok(None),
        Ok(Progress::Complete) => {
            let head = index.head(bytes);
            length = index.head_len();
            let keep = if head.keep_alive() { "keep" } else { "close" };
            let word = format!("{} {} {keep}", head.status(), framing_word(head.framing()));
            Ok(Some((word, head.framing(), index.head_len())))
        }
        Err(reject) => Err(reject.reason().to_owned()),
    });
    pieces.for_each(|piece| receiver.feed(piece));
    let Receiver {
        bytes,
        body,
        failed,
        ..
    } = receiver;
    Receiver {
        bytes,
        body,
        failed,
        head: |_: &[u8]| Ok(None),
    }
    .outcome(|_| length)
}

fn check(
    case: &Case,
    outcome: impl Fn(&mut dyn Iterator<Item = &[u8]>) -> String,
    complaints: &mut String,
) {
    let bytes = &case.bytes;
    let mut complain = |how: &str, got: String| {
        if got != case.expected {
            let Case {
                file,
                line,
                expected,
                ..
            } = case;
            writeln!(
                complaints,
                "{file}:{line} {how}: expected {expected:?}, got {got:?}"
            )
            .unwrap();
        }
    };
    complain("whole", outcome(&mut std::iter::once(&bytes[..])));
    complain("byte by byte", outcome(&mut bytes.chunks(1)));
    for at in 1..bytes.len() {
        complain(
            &format!("split at {at}"),
            outcome(&mut [&bytes[..at], &bytes[at..]].into_iter()),
        );
    }
}

#[test]
fn every_request_of_the_corpus_comes_out_the_same_however_it_is_split() {
    let mut complaints = String::new();
    let files = [
        ("requests.txt", include_str!("../corpus/requests.txt")),
        ("smuggling.txt", include_str!("../corpus/smuggling.txt")),
        ("chunked.txt", include_str!("../corpus/chunked.txt")),
    ];
    for (file, text) in files {
        for case in cases(file, text) {
            check(&case, |pieces| request_outcome(pieces), &mut complaints);
        }
    }
    assert!(complaints.is_empty(), "\n{complaints}");
}

#[test]
fn every_response_of_the_corpus_comes_out_the_same_however_it_is_split() {
    let mut complaints = String::new();
    for mut case in cases("responses.txt", include_str!("../corpus/responses.txt")) {
        let mut asked = RequestSummary::default();
        if let Some(rest) = case.expected.strip_prefix("HEAD ") {
            (asked.head, case.expected) = (true, rest.to_owned());
        } else if let Some(rest) = case.expected.strip_prefix("UPGRADE ") {
            (asked.upgrade, case.expected) = (true, rest.to_owned());
        } else if let Some(rest) = case.expected.strip_prefix("CONNECT ") {
            (asked.connect, case.expected) = (true, rest.to_owned());
        }
        check(
            &case,
            |pieces| response_outcome(asked, pieces),
            &mut complaints,
        );
    }
    assert!(complaints.is_empty(), "\n{complaints}");
}
