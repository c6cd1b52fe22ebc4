//! Trace context: incoming and outgoing headers. Random numbers are 1, 2, 3, …

use voile_telemetry::trace::{Context, IncomingContext, context_lines, request_id};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn incoming(fields: &[(&str, &str)]) -> IncomingContext {
    IncomingContext::read(fields.iter().map(|(name, value)| (*name, value.as_bytes())))
}

/// The lines that go on, and whether the trace is sampled; chance says yes.
fn onward(fields: &[(&str, &str)]) -> (Vec<String>, bool) {
    let mut next = 0;
    let context = Context::follow(&incoming(fields), true, || {
        next += 1;
        next
    });
    let lines = context_lines(Some(&context), None);
    (lines.lines().map(str::to_owned).collect(), context.sampled)
}

#[test]
fn a_context_is_continued_with_a_new_span_in_the_forms_it_came_in() {
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let single = format!("{TRACE}-{SPAN}-1");
    for (came, goes, sampled) in [
        (
            vec![("traceparent", parent.as_str())],
            vec![format!("traceparent: 00-{TRACE}-0000000000000001-01")],
            true,
        ),
        (
            vec![
                ("TraceParent", parent.as_str()),
                ("tracestate", "a=1"),
                ("tracestate", "b=2"),
            ],
            vec![
                format!("traceparent: 00-{TRACE}-0000000000000001-01"),
                "tracestate: a=1,b=2".to_owned(),
            ],
            true,
        ),
        (
            vec![("traceparent", &parent.replace("-01", "-00"))],
            vec![format!("traceparent: 00-{TRACE}-0000000000000001-00")],
            false,
        ),
        (
            vec![("b3", single.as_str())],
            vec![format!("b3: {TRACE}-0000000000000001-1-{SPAN}")],
            true,
        ),
        (
            vec![("b3", &format!("{}-{SPAN}-d", &TRACE[16..]))],
            vec![format!("b3: {}-0000000000000001-d-{SPAN}", &TRACE[16..])],
            true,
        ),
        (
            vec![
                ("x-b3-traceid", TRACE),
                ("X-B3-SpanId", SPAN),
                ("x-b3-sampled", "0"),
            ],
            vec![
                format!("x-b3-traceid: {TRACE}"),
                "x-b3-spanid: 0000000000000001".to_owned(),
                format!("x-b3-parentspanid: {SPAN}"),
                "x-b3-sampled: 0".to_owned(),
            ],
            false,
        ),
        // W3C's word goes before B3's; both are written.
        (
            vec![("b3", "0"), ("traceparent", parent.as_str())],
            vec![
                format!("traceparent: 00-{TRACE}-0000000000000001-01"),
                format!("b3: {TRACE}-0000000000000001-1-{SPAN}"),
            ],
            true,
        ),
        // A later version may say more.
        (
            vec![("traceparent", &format!("cc-{TRACE}-{SPAN}-01-more"))],
            vec![format!("traceparent: 00-{TRACE}-0000000000000001-01")],
            true,
        ),
    ] {
        assert_eq!(onward(&came), (goes, sampled), "{came:?}");
    }
}

#[test]
fn what_is_malformed_is_no_context_and_a_new_one_begins() {
    let new = "traceparent: 00-00000000000000010000000000000002-0000000000000003-01".to_owned();
    let zeros = "0".repeat(32);
    let long = "a".repeat(100_000);
    for parent in [
        "",
        "00",
        &format!("00-{zeros}-{SPAN}-01"),
        &format!("00-{TRACE}-0000000000000000-01"),
        &format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
        &format!("00-{TRACE}-{SPAN}-01-more"),
        &format!("ff-{TRACE}-{SPAN}-01"),
        &format!("00-{TRACE}-{SPAN}-0g"),
        &format!("00_{TRACE}-{SPAN}-01"),
        &format!("00-{TRACE}-{SPAN}-01\u{e9}"),
        &long,
    ] {
        let came = [("traceparent", parent), ("tracestate", "a=1")];
        assert_eq!(onward(&came), (vec![new.clone()], true), "{parent:.80}");
    }
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let twice = [
        ("traceparent", parent.as_str()),
        ("traceparent", parent.as_str()),
    ];
    assert_eq!(onward(&twice), (vec![new.clone()], true));
    for b3 in [
        "x",
        "-",
        "1-2-3-4-5-6",
        &format!("{TRACE}-{SPAN}-7"),
        &format!("{TRACE}-{SPAN}-1-a-b"),
    ] {
        assert_eq!(onward(&[("b3", b3)]), (vec![new.clone()], true), "{b3}");
    }
}

#[test]
fn a_decision_without_a_trace_holds_for_the_trace_that_begins() {
    let (lines, sampled) = onward(&[("b3", "0")]);
    assert!(!sampled && lines[0].ends_with("-00"), "{lines:?}");
    assert!(
        lines[1].starts_with("b3: ") && lines[1].ends_with("-0"),
        "{lines:?}"
    );
}

#[test]
fn the_request_id_is_passed_or_made_and_carries_the_decision_as_envoys_does() {
    let uuid = "3f1b2c4d-0000-4abc-8def-000000000001";
    let traced = "3f1b2c4d-0000-9abc-8def-000000000001";
    assert_eq!(request_id(Some("mine"), Some(true), || 0), "mine");
    assert_eq!(request_id(Some(uuid), None, || 0), uuid);
    assert_eq!(request_id(Some(uuid), Some(false), || 0), uuid);
    assert_eq!(request_id(Some(uuid), Some(true), || 0), traced);
    let made = request_id(None, Some(true), || 0x0123_4567_89ab_cdef);
    assert_eq!(made, "01234567-89ab-9def-8123-456789abcdef");
    for (id, says) in [
        (traced, true),
        (uuid, false),
        ("9", false),
        (&traced.replace('-', "_"), false),
    ] {
        let came = incoming(&[("x-request-id", id)]);
        assert_eq!(came.request_id_is_traced(), says, "{id}");
    }
    // An id that cannot be a header value is not accepted.
    for id in ["", "a b", "a\r\nb", &"x".repeat(300)] {
        assert_eq!(
            incoming(&[("x-request-id", id)]).request_id(),
            None,
            "{id:.20}"
        );
    }
}
