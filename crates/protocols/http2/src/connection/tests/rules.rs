//! Tables of rule violations, and the errors that each end gets.

use super::*;

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_client_that_breaks_a_rule_ends_its_stream_or_its_connection() {
    let padded = |pad: u8, payload: &[u8]| {
        let payload = [&[pad], payload].concat();
        frame(kind::DATA, flag::PADDED, 1, &payload)
    };
    let open = headers(1, false, &GET);
    let closed = headers(1, true, &GET);
    let own_parent = [&[0, 0, 0, 3, 0][..], &block(&GET)].concat();
    let with_priority = flag::PRIORITY | flag::END_HEADERS;
    let setting = |name: u8, value: u32| {
        let payload = [&[0, name], &value.to_be_bytes()[..]].concat();
        frame(kind::SETTINGS, 0, 0, &payload)
    };
    let go_away = |code: &str| vec![format!("GOAWAY 1 {code}")];
    let nothing = |code: &str| vec![format!("GOAWAY 0 {code}")];
    let reset = |code: &str| vec![format!("RST 1 {code}")];
    let none = Vec::new;
    type Case = (&'static str, Vec<Vec<u8>>, Vec<String>);
    let cases: Vec<Case> = vec![
        (
            "DATA on stream 0",
            vec![data(0, false, b"x")],
            nothing("PROTOCOL_ERROR"),
        ),
        (
            "DATA on an idle stream",
            vec![data(1, false, b"x")],
            nothing("PROTOCOL_ERROR"),
        ),
        (
            "DATA after the end",
            vec![closed.clone(), data(1, false, b"x")],
            reset("STREAM_CLOSED"),
        ),
        (
            "HEADERS after the end",
            vec![closed.clone(), closed.clone()],
            reset("STREAM_CLOSED"),
        ),
        (
            "a second head",
            vec![open.clone(), headers(1, false, &[])],
            reset("PROTOCOL_ERROR"),
        ),
        (
            "trailers",
            vec![open.clone(), headers(1, true, &[("a", "b")])],
            none(),
        ),
        (
            "a status in trailers",
            vec![open.clone(), headers(1, true, &OK)],
            reset("PROTOCOL_ERROR"),
        ),
        (
            "an even stream",
            vec![headers(2, true, &GET)],
            nothing("PROTOCOL_ERROR"),
        ),
        (
            "a lower stream",
            vec![headers(3, true, &GET), open.clone()],
            vec!["GOAWAY 3 PROTOCOL_ERROR".into()],
        ),
        (
            "HEADERS on stream 0",
            vec![headers(0, true, &GET)],
            nothing("PROTOCOL_ERROR"),
        ),
        ("padding", vec![open.clone(), padded(2, b"abxx")], none()),
        (
            "only padding",
            vec![open.clone(), padded(4, b"abxx")],
            none(),
        ),
        (
            "too much padding",
            vec![open.clone(), padded(5, b"abxx")],
            go_away("PROTOCOL_ERROR"),
        ),
        (
            "no room for padding",
            vec![open.clone(), frame(kind::DATA, flag::PADDED, 1, &[])],
            go_away("FRAME_SIZE_ERROR"),
        ),
        (
            "a frame in a head",
            vec![
                frame(kind::HEADERS, 0, 1, &block(&GET)),
                frame(kind::PING, 0, 0, &[0; 8]),
            ],
            nothing("PROTOCOL_ERROR"),
        ),
        (
            "CONTINUATION of another",
            vec![
                frame(kind::HEADERS, 0, 1, &block(&GET)),
                frame(kind::CONTINUATION, 4, 3, &[]),
            ],
            nothing("PROTOCOL_ERROR"),
        ),
        (
            "CONTINUATION of nothing",
            vec![frame(kind::CONTINUATION, 4, 1, &[])],
            nothing("PROTOCOL_ERROR"),
        ),
        (
            "a head in pieces",
            vec![
                frame(kind::HEADERS, 1, 1, &block(&GET[..1])),
                frame(kind::CONTINUATION, 4, 1, &block(&GET[1..])),
            ],
            none(),
        ),
        (
            "a head in too many pieces",
            vec![
                frame(kind::HEADERS, 0, 1, &block(&GET)),
                frame(kind::CONTINUATION, 0, 1, &[]).repeat(5),
            ],
            nothing("ENHANCE_YOUR_CALM"),
        ),
        (
            "bad HPACK",
            vec![frame(kind::HEADERS, 4, 1, &[0x80])],
            nothing("COMPRESSION_ERROR"),
        ),
        (
            "its own parent",
            vec![frame(kind::HEADERS, with_priority, 3, &own_parent)],
            vec!["RST 3 PROTOCOL_ERROR".into()],
        ),
        (
            "PRIORITY of itself",
            vec![frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 0])],
            reset("PROTOCOL_ERROR"),
        ),
        (
            "PRIORITY cut short",
            vec![frame(kind::PRIORITY, 0, 1, &[0; 4])],
            nothing("FRAME_SIZE_ERROR"),
        ),
        (
            "RST of an idle stream",
            vec![number_frame(kind::RST_STREAM, 1, 8)],
            nothing("PROTOCOL_ERROR"),
        ),
        (
            "RST cut short",
            vec![open.clone(), frame(kind::RST_STREAM, 0, 1, &[0])],
            go_away("FRAME_SIZE_ERROR"),
        ),
        (
            "RST, then DATA",
            vec![
                open.clone(),
                number_frame(kind::RST_STREAM, 1, 8),
                data(1, false, b"x"),
            ],
            go_away("STREAM_CLOSED"),
        ),
        ("SETTINGS", vec![setting(3, 7)], vec!["SETTINGS ack".into()]),
        (
            "SETTINGS of nothing known",
            vec![setting(99, 7)],
            vec!["SETTINGS ack".into()],
        ),
        (
            "SETTINGS on a stream",
            vec![frame(kind::SETTINGS, 0, 1, &[])],
            nothing("PROTOCOL_ERROR"),
        ),
        (
            "SETTINGS cut short",
            vec![frame(kind::SETTINGS, 0, 0, &[0; 5])],
            nothing("FRAME_SIZE_ERROR"),
        ),
        (
            "SETTINGS acknowledged with more",
            vec![frame(kind::SETTINGS, 1, 0, &[0; 6])],
            nothing("FRAME_SIZE_ERROR"),
        ),
        (
            "a push of 2",
            vec![setting(2, 2)],
            nothing("PROTOCOL_ERROR"),
        ),
        (
            "a window beyond all",
            vec![setting(4, 0x8000_0000)],
            nothing("FLOW_CONTROL_ERROR"),
        ),
        (
            "frames too small",
            vec![setting(5, 16_383)],
            nothing("PROTOCOL_ERROR"),
        ),
        (
            "PING",
            vec![frame(kind::PING, 0, 0, &[7; 8])],
            vec!["PING end".into()],
        ),
        (
            "PING acknowledged",
            vec![frame(kind::PING, 1, 0, &[7; 8])],
            none(),
        ),
        (
            "PING cut short",
            vec![frame(kind::PING, 0, 0, &[7; 7])],
            nothing("FRAME_SIZE_ERROR"),
        ),
        (
            "PING on a stream",
            vec![frame(kind::PING, 0, 1, &[7; 8])],
            nothing("PROTOCOL_ERROR"),
        ),
        (
            "PUSH_PROMISE",
            vec![frame(5, 4, 1, &[0; 4])],
            nothing("PROTOCOL_ERROR"),
        ),
        ("a kind nobody knows", vec![frame(99, 255, 5, b"?")], none()),
        (
            "WINDOW of 0",
            vec![number_frame(kind::WINDOW_UPDATE, 0, 0)],
            nothing("PROTOCOL_ERROR"),
        ),
        (
            "WINDOW of 0 on a stream",
            vec![open.clone(), number_frame(kind::WINDOW_UPDATE, 1, 0)],
            reset("PROTOCOL_ERROR"),
        ),
        (
            "WINDOW beyond all",
            vec![number_frame(kind::WINDOW_UPDATE, 0, 0x7fff_ffff)],
            nothing("FLOW_CONTROL_ERROR"),
        ),
        (
            "WINDOW beyond all on a stream",
            vec![
                open.clone(),
                number_frame(kind::WINDOW_UPDATE, 1, 0x7fff_ffff),
            ],
            reset("FLOW_CONTROL_ERROR"),
        ),
        (
            "WINDOW of an idle stream",
            vec![number_frame(kind::WINDOW_UPDATE, 1, 1)],
            nothing("PROTOCOL_ERROR"),
        ),
        (
            "WINDOW cut short",
            vec![frame(kind::WINDOW_UPDATE, 0, 0, &[0; 3])],
            nothing("FRAME_SIZE_ERROR"),
        ),
        (
            "a frame too large",
            vec![frame(99, 0, 0, &[0; 16_385])],
            nothing("FRAME_SIZE_ERROR"),
        ),
        (
            "more streams than allowed",
            (0..9).map(|at| headers(at * 2 + 1, true, &GET)).collect(),
            vec!["RST 17 REFUSED_STREAM".into()],
        ),
        (
            "resets before anybody looked",
            (0..4)
                .map(|at| {
                    [
                        headers(at * 2 + 1, true, &GET),
                        number_frame(kind::RST_STREAM, at * 2 + 1, 8),
                    ]
                    .concat()
                })
                .collect(),
            vec!["GOAWAY 7 ENHANCE_YOUR_CALM".into()],
        ),
        (
            "DATA without data",
            vec![open.clone(), data(1, false, b"").repeat(6)],
            go_away("ENHANCE_YOUR_CALM"),
        ),
        ("GOAWAY", vec![frame(kind::GOAWAY, 0, 0, &[0; 8])], none()),
        (
            "GOAWAY cut short",
            vec![frame(kind::GOAWAY, 0, 0, &[0; 7])],
            nothing("FRAME_SIZE_ERROR"),
        ),
    ];
    let mut wrong = Vec::new();
    for (what, frames, expected) in cases {
        let bytes = frames.concat();
        for step in [bytes.len(), 1, 10] {
            let link = server();
            bytes.chunks(step).for_each(|piece| hear(&link, piece));
            let got = said(&link);
            if got != expected {
                wrong.push(format!(
                    "{what} in pieces of {step}: {got:?}, not {expected:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn what_a_server_says_reaches_the_stream_it_is_for() {
    let early = headers(1, false, &[(":status", "103")]);
    let ok = headers(1, false, &OK);
    let long = headers(1, false, &[OK[0], ("content-length", "5")]);
    let violation = Some(Err(Failure::Violation(ErrorCode::PROTOCOL_ERROR)));
    let go_away = |last: u32| frame(kind::GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat());
    type Case = (&'static str, Vec<u8>, Option<Result<u16, Failure>>);
    let cases: Vec<Case> = vec![
        ("nothing", vec![], None),
        ("an interim head", early.clone(), None),
        (
            "both heads",
            [early.clone(), ok.clone()].concat(),
            Some(Ok(200)),
        ),
        (
            "interim heads without end",
            early.repeat(4),
            Some(Err(Failure::Violation(ErrorCode::ENHANCE_YOUR_CALM))),
        ),
        (
            "an interim head with an end",
            headers(1, true, &[(":status", "103")]),
            violation,
        ),
        (
            "an upgrade",
            headers(1, false, &[(":status", "101")]),
            violation,
        ),
        ("no status", headers(1, true, &[("a", "b")]), violation),
        ("a request", headers(1, true, &GET), violation),
        ("a body first", data(1, false, b"x"), violation),
        (
            "too short a body",
            [long.clone(), data(1, true, b"four")].concat(),
            Some(Ok(200)),
        ),
        (
            "a reset",
            number_frame(kind::RST_STREAM, 1, 2),
            Some(Err(Failure::Reset(ErrorCode::INTERNAL_ERROR))),
        ),
        (
            "a refusal",
            number_frame(kind::RST_STREAM, 1, 7),
            Some(Err(Failure::Unprocessed)),
        ),
        (
            "a goodbye before",
            go_away(0),
            Some(Err(Failure::Unprocessed)),
        ),
        ("a goodbye after", go_away(1), None),
        (
            "an answer to nobody",
            headers(3, true, &OK),
            Some(Err(Failure::Violation(ErrorCode::PROTOCOL_ERROR))),
        ),
        (
            "a push",
            frame(5, 4, 1, &[0, 0, 0, 2, 0x88]),
            Some(Err(Failure::Violation(ErrorCode::PROTOCOL_ERROR))),
        ),
    ];
    for (what, bytes, expected) in cases {
        let link = client();
        let (mut response, _send) = ask(&link, true);
        hear(&link, &bytes);
        let got = now(|cx| response.poll_head(cx));
        let got = got.map(|head| head.map(|head| head.status()));
        assert_eq!(got, expected, "{what}");
    }
}
