//! Peers that break no single rule and do too much of something. Each is stopped, or costs no more than it sends. The
//! connection's memory for it stays within the limits.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::budget::HeadBudget;
use crate::pool::{MemoryChange, ROOM_BYTES};

/// A request whose head is `long` bytes in a few bytes on the wire: one field into the table, then references to it.
fn bomb(stream: u32, long: usize, first: bool) -> Vec<u8> {
    let mut text = block(&GET);
    if first {
        text.extend_from_slice(&[0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
        text.extend(std::iter::repeat_n(b'x', 4000));
    } else {
        text.extend(std::iter::repeat_n(0xbe, long / 4001));
    }
    frame(
        kind::HEADERS,
        flag::END_HEADERS | flag::END_STREAM,
        stream,
        &text,
    )
}

fn setting(name: u16, value: u32) -> Vec<u8> {
    let payload = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(kind::SETTINGS, 0, 0, &payload)
}

#[test]
fn heads_made_large_by_hpack_are_bounded_for_the_connection_and_given_back() {
    let link = server();
    hear(&link, &bomb(1, 0, true));
    let mut held = vec![accept(&link)];
    // 12 KB each for 35 bytes: three fit beside the first.
    for id in [3, 5, 7, 9, 11] {
        hear(&link, &bomb(id, 12_003, false));
        held.extend(link.accept());
        assert!(link.borrow().heads <= CONFIG.max_heads);
    }
    assert_eq!(
        said(&link),
        ["RST 9 REFUSED_STREAM", "RST 11 REFUSED_STREAM"]
    );
    assert_eq!(held.len(), 4);
    // A refused stream may come again when others are over.
    drop(held);
    assert_eq!(link.borrow().heads, 0);
    said(&link);
    hear(&link, &bomb(13, 12_003, false));
    assert!(link.accept().is_some());
}

/// The pool of a worker whose connections take large heads from this budget.
fn pool_of(budget: &Arc<HeadBudget>) -> Pool {
    Pool::with_budget(ROOM_BYTES, Some(Arc::clone(budget)))
}

/// A server of a client from this source, beside others of its worker.
fn server_beside(pool: &Pool, source: u64) -> Link {
    let mut connection = Connection::server(&CONFIG, pool.clone());
    connection.set_source(source);
    let link = Link::new(connection);
    let hello = [PREFACE, &frame(kind::SETTINGS, 0, 0, &[])].concat();
    hear(&link, &hello);
    said(&link);
    link
}

#[test]
fn large_heads_of_all_connections_are_bounded_together_and_usual_ones_are_not_counted() {
    let budget = Arc::new(HeadBudget::new(50_000));
    let pool = pool_of(&budget);
    let (mut held, mut refused) = (Vec::new(), 0);
    let attackers: Vec<_> = (0..4).map(|_| server_beside(&pool, 1)).collect();
    for link in &attackers {
        hear(link, &bomb(1, 0, true));
        hear(link, &bomb(3, 12_003, false));
        while let Some(stream) = link.accept() {
            held.push(stream);
        }
        let lines = said(link);
        let is_refused = |line: &&String| line.ends_with("REFUSED_STREAM");
        refused += lines.iter().filter(is_refused).count();
    }
    assert!(budget.held() <= 25_000, "{}", budget.held());
    assert_eq!(
        (held.len() + refused, budget.refused()),
        (8, refused as u64)
    );
    assert!(refused >= 4, "{refused}");
    // Usual heads go on, of the same source and beside the largest that it may have.
    hear(&attackers[0], &headers(5, true, &GET));
    held.push(attackers[0].accept().expect("a usual head is taken"));
    // Another source has room for a large one.
    let honest = server_beside(&pool, 2);
    hear(&honest, &bomb(1, 0, true));
    held.push(honest.accept().expect("another source has room"));
    drop(held);
    assert_eq!(budget.held(), 0);
    // A head that is not whole counts, too, and so does one that nobody accepted.
    let open = frame(kind::HEADERS, 0, 7, &[0xff; 9000]);
    hear(&attackers[1], &open);
    hear(&attackers[2], &bomb(5, 8002, false));
    assert!(budget.held() > 17_000, "{}", budget.held());
    drop(attackers);
    assert_eq!(budget.held(), 0);
}

#[test]
fn the_largest_holders_of_memory_end_first_and_small_ones_are_spared() {
    let budget = Arc::new(HeadBudget::new(1_000_000));
    let pool = pool_of(&budget);
    let link = server_beside(&pool, 1);
    let mut held = Vec::new();
    for (id, bytes) in [(1, 30_000), (3, 60_000), (5, 1000)] {
        hear(&link, &headers(id, false, &GET));
        held.push(accept(&link));
        for _ in 0..bytes / 10_000 {
            hear(&link, &data(id, false, &[0; 10_000]));
        }
    }
    said(&link);
    assert_eq!(pool.shed(1, usize::MAX), (0, 0));
    let (freed, ended) = pool.shed(50_000, 16_384);
    assert!(freed >= 60_000 && ended == 1, "{freed} bytes of {ended}");
    assert_eq!(
        said(&link).last().expect("a reset"),
        "RST 3 ENHANCE_YOUR_CALM"
    );
    let (freed, ended) = pool.shed(usize::MAX, 16_384);
    assert!(freed >= 30_000 && ended == 1, "{freed} bytes of {ended}");
    assert_eq!(
        said(&link).last().expect("a reset"),
        "RST 1 ENHANCE_YOUR_CALM"
    );
    assert!(link.borrow().end().is_none(), "the connection goes on");
    // A peer that takes nothing of what is to be written loses its connection.
    let (_, _, respond) = &mut held[2];
    let long = "x".repeat(20_000);
    let mut head = Fields::response(200);
    head.push("x-a", long.as_bytes());
    respond.send_response(head, true).expect("room");
    assert_eq!(pool.shed(usize::MAX, 16_384).1, 1);
    assert_eq!(link.borrow().end(), Some(Http2End::Closed));
    drop(held);
    drop(link);
    assert_eq!(
        pool.shed(usize::MAX, 0),
        (0, 0),
        "nothing is listed any more"
    );
}

#[test]
fn data_counts_as_memory_in_frames_of_any_size_and_until_it_is_passed_on() {
    for bytes in [100, 1000, 4096, 10_000] {
        let pool = pool_of(&Arc::new(HeadBudget::new(1_000_000)));
        let grown = Rc::new(Cell::new(0));
        let counted = Rc::clone(&grown);
        pool.on_change(move |change| {
            if change == MemoryChange::Grown {
                counted.set(counted.get() + 1);
            }
        });
        let mut held = Vec::new();
        // Most of the windows of four connections.
        let links: Vec<_> = (0..4).map(|_| server_beside(&pool, 1)).collect();
        for (link, id) in links
            .iter()
            .flat_map(|link| [(link, 1), (link, 3), (link, 5)])
        {
            hear(link, &headers(id, false, &GET));
            held.push(accept(link));
            for _ in 0..60_000 / bytes {
                hear(link, &data(id, false, &vec![0; bytes]));
            }
        }
        assert!(grown.get() >= 1, "frames of {bytes} bytes");
        // Who took the data and did not pass it on still holds it.
        let mut cx = Context::from_waker(Waker::noop());
        let (_, receive, _) = &mut held[0];
        let taken = receive
            .poll_data(&mut cx)
            .map(|data| data.expect("data").expect("no failure"));
        let Poll::Ready(taken) = taken else {
            panic!("nothing was taken")
        };
        assert_eq!(taken.len(), 60_000 / bytes * bytes);
        assert_eq!(pool.shed(usize::MAX, 50_000).1, held.len());
    }
}

#[test]
fn a_servers_heads_are_bounded_too() {
    let link = client();
    let text = [&block(&OK)[..], &[0x40, 1, b'a', 0x7f, 0xa1, 0x1e]].concat();
    let text = [text, [b'x'].repeat(4000)].concat();
    let first = frame(kind::HEADERS, flag::END_HEADERS, 1, &text);
    let large = |id| {
        let text = [block(&OK), [0xbe].repeat(3)].concat();
        frame(kind::HEADERS, flag::END_HEADERS, id, &text)
    };
    let asked: Vec<_> = (0..6).map(|_| ask(&link, true)).collect();
    hear(&link, &first);
    [3, 5, 7, 9].iter().for_each(|id| hear(&link, &large(*id)));
    assert!(link.borrow().heads <= CONFIG.max_heads);
    assert_eq!(
        said(&link).last().expect("frames"),
        "RST 9 ENHANCE_YOUR_CALM"
    );
    drop(asked);
    assert_eq!(link.borrow().heads, 0);
}

#[test]
fn windows_that_change_without_end_are_answered_so_long() {
    let link = server();
    hear(&link, &headers(1, true, &GET));
    for round in 0..20_u32 {
        hear(&link, &setting(setting::INITIAL_WINDOW_SIZE, round % 2));
    }
    assert_eq!(said(&link), ["SETTINGS ack"].repeat(20));
    // Those that change nothing cost nothing.
    hear(&link, &setting(setting::INITIAL_WINDOW_SIZE, 1).repeat(50));
    assert_eq!(said(&link), ["SETTINGS ack"].repeat(50));
    hear(&link, &setting(setting::INITIAL_WINDOW_SIZE, 0));
    assert_eq!(said(&link), ["GOAWAY 1 ENHANCE_YOUR_CALM"]);
}

#[test]
fn floods_that_are_allowed_leave_nothing_behind() {
    let priority = frame(kind::PRIORITY, 0, 3, &[0, 0, 0, 0, 9]);
    let cases: [(&str, Vec<u8>); 6] = [
        ("PRIORITY of a stream", priority),
        (
            "PRIORITY of ever new streams",
            (0..9_u32)
                .flat_map(|id| frame(kind::PRIORITY, 0, id * 2 + 101, &[0; 5]))
                .collect(),
        ),
        ("a kind nobody knows", frame(77, 255, 3, &[7; 100])),
        (
            "windows of a stream that is over",
            number_frame(kind::WINDOW_UPDATE, 1, 1),
        ),
        (
            "resets of a stream that is over",
            number_frame(kind::RST_STREAM, 1, 8),
        ),
        ("GOAWAY", frame(kind::GOAWAY, 0, 0, &[0; 8])),
    ];
    for (what, bytes) in cases {
        let link = server();
        hear(&link, &headers(1, true, &GET));
        drop(accept(&link));
        said(&link);
        for _ in 0..2000 {
            hear(&link, &bytes);
        }
        let connection = link.borrow();
        assert_eq!(connection.output(), b"", "{what} is answered");
        assert_eq!(connection.streams.len(), 0, "{what}");
        drop(connection);
        hear(&link, &headers(301, true, &GET));
        assert!(link.accept().is_some(), "{what}: the next is served");
    }
}

#[test]
fn tables_that_change_their_size_without_end_are_followed() {
    let link = server();
    // The peer's own table, by the first bytes of a block.
    for at in 0..500_u32 {
        let size = if at % 2 == 0 {
            &[0x20][..]
        } else {
            &[0x3f, 0xe1, 0x1f]
        };
        let text = [size, &block(&GET)].concat();
        let end = flag::END_HEADERS | flag::END_STREAM;
        hear(&link, &frame(kind::HEADERS, end, at * 2 + 1, &text));
        let (_, _, mut respond) = accept(&link);
        // Ours, by its settings.
        let sizes = (0..20).flat_map(|round| setting(setting::HEADER_TABLE_SIZE, round % 3 * 2000));
        hear(&link, &sizes.collect::<Vec<_>>());
        let mut answer = Fields::response(200);
        answer.push("x-again", b"and again");
        respond.send_response(answer, true).expect("an open stream");
        // The changes in between are said once: the least, and the last.
        let written = link.borrow().output().len();
        assert!(written < 20 * HEAD_BYTES + 60, "{written} bytes");
        said(&link);
    }
    assert_eq!(link.borrow().streams.len(), 0);
}

#[test]
fn whoever_makes_us_reset_streams_is_stopped_however_it_does() {
    let open = |id| headers(id, false, &GET);
    let with = |more: fn(u32) -> Vec<u8>| move |id| [open(id), more(id)].concat();
    type Case = (&'static str, Box<dyn Fn(u32) -> Vec<u8>>);
    let cases: [Case; 6] = [
        (
            "a window of 0",
            Box::new(with(|id| number_frame(kind::WINDOW_UPDATE, id, 0))),
        ),
        (
            "a window beyond all",
            Box::new(with(|id| {
                number_frame(kind::WINDOW_UPDATE, id, 0x7fff_ffff)
            })),
        ),
        (
            "its own parent",
            Box::new(with(|id| {
                let parent = [&id.to_be_bytes()[..], &[0]].concat();
                frame(kind::PRIORITY, 0, id, &parent)
            })),
        ),
        (
            "DATA after the end",
            Box::new(with(|id| {
                [data(id, true, b""), data(id, false, b"x")].concat()
            })),
        ),
        (
            "a body that is too long",
            Box::new(|id| {
                let length = [GET[0], GET[1], GET[2], ("content-length", "1")];
                [headers(id, false, &length), data(id, false, b"xx")].concat()
            }),
        ),
        (
            "trailers with a pseudo-field",
            Box::new(with(|id| headers(id, true, &[(":path", "/")]))),
        ),
    ];
    for (what, case) in cases {
        let link = server();
        for at in 0..CONFIG.max_provoked_resets as u32 + 1 {
            hear(&link, &case(at * 2 + 1));
            drop(link.accept());
        }
        let said = said(&link);
        let last = said.last().expect("frames");
        assert!(last.ends_with("ENHANCE_YOUR_CALM"), "{what}: {said:?}");
        assert!(link.borrow().is_over(), "{what}");
    }
}

#[test]
fn a_body_in_single_bytes_or_behind_padding_holds_no_more_than_its_window() {
    let one = data(1, false, b"x");
    let padded = frame(
        kind::DATA,
        flag::PADDED,
        1,
        &[&[255][..], b"x", &[0; 255]].concat(),
    );
    let only_padding = frame(kind::DATA, flag::PADDED, 1, &[&[9][..], &[0; 9]].concat());
    for (what, piece, bytes) in [
        ("single bytes", one, 1),
        ("padding", padded, 1),
        ("nothing but padding", only_padding, 0),
    ] {
        let link = server();
        hear(&link, &headers(1, false, &GET));
        let (_, mut body, respond) = accept(&link);
        for _ in 0..5000 {
            hear(&link, &piece);
        }
        assert!(!link.borrow().is_over(), "{what}");
        let window = CONFIG.stream_window as usize;
        let got = now(|cx| body.poll_data(cx));
        let got = got.map_or(0, |chunk| {
            chunk.expect("data").expect("an open stream").len()
        });
        assert_eq!(got, 5000 * bytes, "{what}");
        assert!(got <= window, "{what}");
        // Padding was taken the moment it came; the rest when we say so.
        body.release_capacity(got);
        let held = link
            .borrow()
            .streams
            .iter()
            .map(|(_, stream)| stream.held)
            .sum::<u32>();
        assert_eq!(held, 0, "{what}");
        drop((body, respond));
    }
}

#[test]
fn an_answer_that_has_no_body_has_none() {
    let not_modified = [(":status", "304"), ("content-length", "9")];
    let long = [OK[0], ("content-length", "9")];
    let violation = Some(Some(Err(Failure::Violation(ErrorCode::PROTOCOL_ERROR))));
    let cases = [
        (
            "HEAD, an end",
            "HEAD",
            &long[..],
            data(1, true, b""),
            Some(None),
        ),
        (
            "HEAD, data",
            "HEAD",
            &long[..],
            data(1, true, b"smuggled!"),
            violation.clone(),
        ),
        (
            "304, an end",
            "GET",
            &not_modified[..],
            data(1, true, b""),
            Some(None),
        ),
        (
            "304, data",
            "GET",
            &not_modified[..],
            data(1, true, b"smuggled!"),
            violation.clone(),
        ),
        (
            "204, data",
            "GET",
            &[(":status", "204")][..],
            data(1, true, b"x"),
            violation,
        ),
        ("200, too little", "GET", &long[..], data(1, true, b"x"), {
            Some(Some(Err(Failure::Violation(ErrorCode::PROTOCOL_ERROR))))
        }),
    ];
    for (what, method, head, body, expected) in cases {
        let link = client();
        let mut request = Fields::new();
        for (name, value) in [(":method", method), GET[1], GET[2]] {
            request.push(name, value.as_bytes());
        }
        let (mut response, _send) = link.send_request(request, true).expect("room");
        hear(&link, &headers(1, false, head));
        now(|cx| response.poll_head(cx))
            .expect("a head")
            .expect("good");
        let mut rest = response.into_body();
        hear(&link, &body);
        let got = now(|cx| rest.poll_data(cx));
        let got = match got {
            Some(Some(Ok(_))) => now(|cx| rest.poll_data(cx)),
            other => other,
        };
        assert_eq!(got, expected, "{what}");
    }
}

#[test]
fn slow_readers_congest_a_connection_until_they_read() {
    let link = client();
    let mut asked: Vec<_> = (0..2).map(|_| ask(&link, true).0).collect();
    let bodies = [1, 3].map(|id| {
        let piece = data(id, false, &[0; 10_000]);
        [headers(id, false, &OK), piece.repeat(8)].concat()
    });
    bodies.iter().for_each(|body| hear(&link, body));
    assert!(link.borrow().is_congested(), "160 of 200 kilobytes wait");
    for response in &mut asked {
        now(|cx| response.poll_head(cx))
            .expect("a head")
            .expect("good");
    }
    let mut body = asked.remove(0).into_body();
    let chunk = now(|cx| body.poll_data(cx)).expect("data").expect("open");
    body.release_capacity(chunk.expect("good").len());
    assert!(!link.borrow().is_congested());
}

/// Text that no table shortens.
fn incompressible(bytes: usize, seed: usize) -> Fields {
    let mut head = Fields::response(200);
    head.push("x-a", format!("{seed:0bytes$}").as_bytes());
    head
}

#[test]
fn answers_to_a_peer_that_reads_nothing_are_bounded_and_come_again_when_it_reads() {
    let link = server();
    let mut held = Vec::new();
    let mut refused = 0;
    // Two heads of each stream: an interim one and its trailers or its final one.
    for round in 0..40_u32 {
        let id = round * 2 + 1;
        hear(&link, &headers(id, true, &GET));
        let (_, body, mut respond) = accept(&link);
        if round % 2 == 0 {
            let sent = respond.send_response(incompressible(4000, id as usize), true);
            refused += usize::from(sent.is_err());
        } else if let Ok(mut send) = respond.send_response(Fields::response(200), false) {
            let sent = send.send_trailers(incompressible(4000, id as usize));
            refused += usize::from(sent.is_err());
        } else {
            refused += 1;
        }
        held.push((body, respond));
        held.truncate(4);
        assert!(link.borrow().out.len() <= CONFIG.max_unsent + 5000);
    }
    assert!(refused > 15, "{refused}");
    let said = said(&link);
    let resets = said
        .iter()
        .filter(|line| line.ends_with("ENHANCE_YOUR_CALM"));
    assert_eq!(resets.count(), refused, "{said:?}");
    assert!(!said.iter().any(|line| line.starts_with("GOAWAY")));
    hear(&link, &headers(101, true, &GET));
    let (_, _body, mut respond) = accept(&link);
    assert!(respond.send_response(incompressible(4000, 7), true).is_ok());
}

#[test]
fn a_peer_that_reads_a_little_at_a_time_makes_us_hold_no_more() {
    let link = server();
    let mut held = Vec::new();
    for round in 0..200_u32 {
        hear(&link, &headers(round * 2 + 1, true, &GET));
        let (_, body, mut respond) = accept(&link);
        let head = incompressible(4000, round as usize);
        assert!(respond.send_response(head, true).is_ok());
        held = vec![(body, respond)];
        let mut connection = link.borrow();
        let some = connection.output().len().saturating_sub(100);
        connection.wrote(some);
        assert!(connection.out.len() < CONFIG.max_unsent);
    }
    drop(held);
}

#[test]
fn errors_are_forgotten_by_what_goes_well_and_not_otherwise() {
    // A stream that is an error costs one of three; four that end well give one back.
    let wrong = |id| headers(id, true, &[("x", "y")]);
    let serve = |link: &Link, id| {
        hear(link, &headers(id, true, &GET));
        let (_, _body, mut respond) = accept(link);
        assert!(respond.send_response(Fields::response(204), true).is_ok());
    };
    for (good, survives) in [(0, false), (3, false), (4, true), (5, true)] {
        let link = server();
        let mut ids = (1..).step_by(2);
        for _ in 0..20 {
            hear(&link, &wrong(ids.next().expect("a number")));
            if link.borrow().is_over() {
                break;
            }
            for _ in 0..good {
                serve(&link, ids.next().expect("a number"));
            }
        }
        assert_eq!(!link.borrow().is_over(), survives, "{good} between two");
    }
}
