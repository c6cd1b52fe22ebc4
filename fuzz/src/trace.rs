//! Trace context: for any fields of a request, the outgoing context is one strict context of the same trace.

use voile_telemetry::trace::{Context, Decision, IncomingContext, context_lines, request_id};

/// The names a first byte stands for.
const NAMES: [&str; 10] = [
    "traceparent",
    "tracestate",
    "b3",
    "x-b3-traceid",
    "x-b3-spanid",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-flags",
    "x-request-id",
    "Accept",
];

/// Lines of which the first byte is the name and the rest the value.
pub(crate) fn context(data: &[u8]) {
    let fields = data.split(|byte| *byte == b'\n').filter_map(|line| {
        let (name, value) = line.split_first()?;
        Some((NAMES[usize::from(*name) % NAMES.len()], value))
    });
    let incoming = IncomingContext::read(fields);
    let mut seed = 7u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed
    };
    for sampled in [false, true] {
        let context = Context::follow(&incoming, sampled, &mut random);
        let traced = Some(context.sampled);
        let id = request_id(incoming.request_id(), traced, &mut random);
        let lines = context_lines(Some(&context), Some(&id));
        let read = read(&lines);
        let again =
            IncomingContext::read(read.iter().map(|(name, value)| (*name, value.as_bytes())));
        let next = Context::follow(&again, !sampled, &mut random);
        assert_eq!(next.trace, context.trace, "{lines}");
        assert_eq!(next.parent, Some(context.span), "{lines}");
        assert_eq!(next.state, context.state, "{lines}");
        // B3's flags pass as they are beside these lines, so a context that debugs says so there.
        if incoming.decision() != Some(Decision::Debug) {
            assert_eq!(next.sampled, context.sampled, "{lines}");
        }
        if let Some(decision) = incoming.decision() {
            assert_eq!(context.sampled, decision != Decision::No);
        }
        assert_eq!(again.request_id(), Some(id.as_str()), "{lines}");
        assert!(again.request_id_is_traced() || !incoming.request_id_is_traced());
    }
}

/// The lines, each of them a field of visible text and nothing else.
fn read(lines: &str) -> Vec<(&str, &str)> {
    let inner = lines.strip_suffix("\r\n").expect("a line ends");
    let pairs: Vec<(&str, &str)> = inner
        .split("\r\n")
        .map(|line| line.split_once(": ").expect("a name and a value"))
        .collect();
    for (name, value) in &pairs {
        assert!(NAMES.contains(name), "{name}");
        let visible = value.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
        assert!(visible && !value.is_empty(), "{name}: {value:?}");
        let same = pairs.iter().filter(|(other, _)| other == name);
        assert_eq!(same.count(), 1, "{name} is there once");
    }
    pairs
}
