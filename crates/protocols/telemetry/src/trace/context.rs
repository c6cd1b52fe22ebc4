//! W3C Trace Context (traceparent, tracestate) and B3 (single and multi). Reads them strictly, and continues them
//! with a new span id in every form in which they came. Malformed input is no context: a stranger must not choose the
//! content of this proxy's spans.

use std::borrow::Cow;
use std::fmt;
use std::fmt::Write as _;

/// Fields that are written anew where a request is traced; the first line of defence against two contexts in one request.
pub const CONTEXT_FIELDS: &[Cow<'static, str>] = &[
    Cow::Borrowed("traceparent"),
    Cow::Borrowed("tracestate"),
    Cow::Borrowed("b3"),
    Cow::Borrowed("x-b3-traceid"),
    Cow::Borrowed("x-b3-spanid"),
    Cow::Borrowed("x-b3-parentspanid"),
    Cow::Borrowed("x-b3-sampled"),
    Cow::Borrowed("x-request-id"),
];

/// Longest tracestate passed on, in bytes: the specification asks for at least 512; longer ones are dropped whole.
const MAX_TRACESTATE_BYTES: usize = 4096;

/// Longest request id believed, in bytes.
const MAX_REQUEST_ID_BYTES: usize = 256;

/// 16 bytes, never all zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceId(pub [u8; 16]);

/// 8 bytes, never all zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SpanId(pub [u8; 8]);

impl TraceId {
    /// Of two random numbers.
    #[must_use]
    pub fn random(mut random: impl FnMut() -> u64) -> Self {
        let number = (u128::from(random()) << 64) | u128::from(random().max(1));
        Self(number.to_be_bytes())
    }
}

impl SpanId {
    /// Of a random number.
    #[must_use]
    pub fn random(mut random: impl FnMut() -> u64) -> Self {
        Self(random().max(1).to_be_bytes())
    }
}

macro_rules! hex {
    ($id:ty) => {
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }
    };
}
hex!(TraceId);
hex!(SpanId);

/// In which forms a context came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ContextForms {
    w3c: bool,
    b3_single: bool,
    b3_multi: bool,
    /// B3's trace id had 64 bits.
    short: bool,
}

/// Sampling decision of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Sampled.
    Yes,
    /// Not sampled.
    No,
    /// Sampled, with the debug flag (B3).
    Debug,
}

/// Trace context of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IncomingContext {
    trace: Option<(TraceId, SpanId)>,
    decision: Option<Decision>,
    state: Option<String>,
    forms: ContextForms,
    request_id: Option<String>,
}

impl IncomingContext {
    /// Reads a request's fields, once over all of them.
    #[must_use]
    pub fn read<'a>(fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut seen = TraceFields::default();
        for (name, value) in fields {
            seen.field(name, value);
        }
        seen.judge()
    }

    /// Returns the caller's decision, if there is one.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        self.decision
    }

    /// `x-request-id`.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    /// Returns true if `x-request-id` says that the request is traced, as Envoy writes it there: the 15th letter of a
    /// UUID is `9` (sampled), `a` (forced by a service) or `b` (forced by a client).
    #[must_use]
    pub fn request_id_is_traced(&self) -> bool {
        let id = self.request_id.as_deref().unwrap_or_default();
        is_uuid(id) && matches!(id.as_bytes()[14], b'9' | b'a' | b'b')
    }
}

/// Raw values, and how often each was there.
#[derive(Default)]
struct TraceFields<'a> {
    traceparent: Option<&'a [u8]>,
    traceparents: u32,
    tracestate: String,
    b3: Option<&'a [u8]>,
    trace: Option<&'a [u8]>,
    span: Option<&'a [u8]>,
    sampled: Option<&'a [u8]>,
    flags: Option<&'a [u8]>,
    request_id: Option<&'a [u8]>,
}

impl<'a> TraceFields<'a> {
    fn field(&mut self, name: &str, value: &'a [u8]) {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        // By length first: most fields of a request are none of these.
        match name.len() {
            2 if is("b3") => self.b3 = Some(value),
            10 if is("tracestate") => {
                let text = std::str::from_utf8(value).unwrap_or_default();
                if !self.tracestate.is_empty() && !text.is_empty() {
                    self.tracestate.push(',');
                }
                self.tracestate.push_str(text);
            }
            10 if is("x-b3-flags") => self.flags = Some(value),
            11 if is("traceparent") => {
                self.traceparent = Some(value);
                self.traceparents += 1;
            }
            11 if is("x-b3-spanid") => self.span = Some(value),
            12 if is("x-b3-traceid") => self.trace = Some(value),
            12 if is("x-b3-sampled") => self.sampled = Some(value),
            12 if is("x-request-id") => self.request_id = Some(value),
            _ => {}
        }
    }

    fn judge(self) -> IncomingContext {
        let mut incoming = IncomingContext {
            request_id: self.request_id.and_then(believable_id),
            ..IncomingContext::default()
        };
        self.b3_multi(&mut incoming);
        if let Some(value) = self.b3 {
            b3_single(value, &mut incoming);
        }
        // Two of them are none; W3C's word goes before B3's.
        let parent = self.traceparent.filter(|_| self.traceparents == 1);
        if let Some((trace, span, sampled)) = parent.and_then(traceparent) {
            incoming.trace = Some((trace, span));
            incoming.decision = Some(if sampled { Decision::Yes } else { Decision::No });
            incoming.forms.w3c = true;
            let printable = self.tracestate.bytes().all(|b| matches!(b, 0x20..=0x7e));
            let fits = (1..=MAX_TRACESTATE_BYTES).contains(&self.tracestate.len());
            incoming.state = (printable && fits).then_some(self.tracestate);
        }
        incoming
    }

    fn b3_multi(&self, incoming: &mut IncomingContext) {
        let trace = self.trace.and_then(trace_id);
        let span = self.span.and_then(hex_bytes::<8>).and_then(span_id);
        if let (Some((trace, short)), Some(span)) = (trace, span) {
            incoming.trace = Some((trace, span));
            incoming.forms.b3_multi = true;
            incoming.forms.short = short;
        }
        let said = match (self.flags, self.sampled) {
            (Some(b"1"), _) => Some(Decision::Debug),
            (_, Some(b"1" | b"true")) => Some(Decision::Yes),
            (_, Some(b"0" | b"false")) => Some(Decision::No),
            _ => None,
        };
        incoming.forms.b3_multi |= said.is_some();
        incoming.decision = said;
    }
}

/// `TRACE-SPAN[-SAMPLED[-PARENT]]`, or only the decision.
fn b3_single(value: &[u8], incoming: &mut IncomingContext) {
    let decision = |text: &[u8]| match text {
        b"1" => Some(Decision::Yes),
        b"0" => Some(Decision::No),
        b"d" => Some(Decision::Debug),
        _ => None,
    };
    let parts: Vec<&[u8]> = value.split(|byte| *byte == b'-').collect();
    match parts.as_slice() {
        [alone] => {
            if let Some(decision) = decision(alone) {
                incoming.decision = Some(decision);
                incoming.forms.b3_single = true;
            }
        }
        [trace, span, rest @ ..] if rest.len() <= 2 => {
            let said = rest.first().map(|text| decision(text));
            let trace = trace_id(trace);
            let span = hex_bytes::<8>(span).and_then(span_id);
            if let (Some((trace, short)), Some(span)) = (trace, span)
                && said != Some(None)
            {
                incoming.trace = Some((trace, span));
                incoming.decision = said.flatten();
                incoming.forms.b3_single = true;
                incoming.forms.short = short;
            }
        }
        _ => {}
    }
}

/// `00-TRACE-SPAN-FLAGS`; later versions may say more behind it.
fn traceparent(value: &[u8]) -> Option<(TraceId, SpanId, bool)> {
    let lower = |part: &[u8]| part.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let (known, rest) = value.split_at_checked(55)?;
    let mut parts = known.split(|byte| *byte == b'-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || ![version, trace, span, flags].into_iter().all(lower) {
        return None;
    }
    let version = hex_bytes::<1>(version)?[0];
    let whole = match version {
        0 => rest.is_empty(),
        0xff => false,
        _ => matches!(rest, [] | [b'-', ..]),
    };
    let trace = hex_bytes::<16>(trace).filter(|id| id.iter().any(|b| *b != 0))?;
    let span = span_id(hex_bytes::<8>(span)?)?;
    let flags = hex_bytes::<1>(flags)?[0];
    whole.then_some((TraceId(trace), span, flags & 1 == 1))
}

/// 16 or 32 hexadecimal digits; whether there were 16.
fn trace_id(text: &[u8]) -> Option<(TraceId, bool)> {
    let (bytes, short) = match text.len() {
        16 => {
            let mut bytes = [0; 16];
            bytes[8..].copy_from_slice(&hex_bytes::<8>(text)?);
            (bytes, true)
        }
        _ => (hex_bytes::<16>(text)?, false),
    };
    bytes
        .iter()
        .any(|b| *b != 0)
        .then_some((TraceId(bytes), short))
}

fn span_id(bytes: [u8; 8]) -> Option<SpanId> {
    bytes.iter().any(|b| *b != 0).then_some(SpanId(bytes))
}

fn hex_bytes<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut bytes = [0; N];
    if text.len() != N * 2 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(bytes)
}

fn believable_id(value: &[u8]) -> Option<String> {
    let fits = (1..=MAX_REQUEST_ID_BYTES).contains(&value.len());
    let printable = value.iter().all(|b| matches!(b, 0x21..=0x7e));
    let text = std::str::from_utf8(value).ok()?;
    (fits && printable).then(|| text.to_owned())
}

fn is_uuid(id: &str) -> bool {
    let digit = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    id.len() == 36 && id.bytes().enumerate().all(digit)
}

/// A request's place in its trace, as it goes on from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// The trace.
    pub trace: TraceId,
    /// Our span.
    pub span: SpanId,
    /// The caller's span.
    pub parent: Option<SpanId>,
    /// True if the trace is sampled.
    pub sampled: bool,
    /// True if the debug flag is set (B3).
    debug: bool,
    /// tracestate, passed on as it came.
    pub state: Option<String>,
    forms: ContextForms,
}

impl Context {
    /// Continues the caller's context, or begins a new one: with the caller's decision, else with `sampled`.
    #[must_use]
    pub fn follow(
        incoming: &IncomingContext,
        sampled: bool,
        mut random: impl FnMut() -> u64,
    ) -> Self {
        let mut forms = incoming.forms;
        let (trace, parent) = match incoming.trace {
            Some((trace, span)) => (trace, Some(span)),
            None => {
                forms = ContextForms {
                    w3c: true,
                    short: false,
                    ..forms
                };
                (TraceId::random(&mut random), None)
            }
        };
        Self {
            trace,
            span: SpanId::random(&mut random),
            parent,
            sampled: match incoming.decision {
                Some(decision) => decision != Decision::No,
                None => sampled,
            },
            debug: incoming.decision == Some(Decision::Debug),
            state: incoming.state.clone(),
            forms,
        }
    }
}

/// The field lines of a context and of `request_id`, to be sent on in place of [`CONTEXT_FIELDS`].
#[must_use]
pub fn context_lines(context: Option<&Context>, request_id: Option<&str>) -> String {
    let mut lines = String::with_capacity(160);
    if let Some(context) = context {
        write_context(context, &mut lines);
    }
    if let Some(id) = request_id {
        let _ = write!(lines, "x-request-id: {id}\r\n");
    }
    lines
}

fn write_context(context: &Context, lines: &mut String) {
    let Context {
        trace, span, forms, ..
    } = context;
    let flag = u8::from(context.sampled);
    if forms.w3c {
        let _ = write!(lines, "traceparent: 00-{trace}-{span}-{flag:02x}\r\n");
        if let Some(state) = &context.state {
            let _ = write!(lines, "tracestate: {state}\r\n");
        }
    }
    if !(forms.b3_single || forms.b3_multi) {
        return;
    }
    let mut id = trace.to_string();
    if forms.short {
        id.drain(..16);
    }
    if forms.b3_single {
        let said = if context.debug {
            'd'
        } else {
            char::from(b'0' + flag)
        };
        let _ = write!(lines, "b3: {id}-{span}-{said}");
        if let Some(parent) = context.parent {
            let _ = write!(lines, "-{parent}");
        }
        lines.push_str("\r\n");
    }
    if forms.b3_multi {
        let _ = write!(lines, "x-b3-traceid: {id}\r\nx-b3-spanid: {span}\r\n");
        if let Some(parent) = context.parent {
            let _ = write!(lines, "x-b3-parentspanid: {parent}\r\n");
        }
        // Debug implies sampled, and says so by x-b3-flags, which passes as it is.
        if !context.debug {
            let _ = write!(lines, "x-b3-sampled: {flag}\r\n");
        }
    }
}

/// The `x-request-id` that goes on: the caller's, or a new UUID. `traced` is written into a UUID as Envoy does.
#[must_use]
pub fn request_id(
    incoming: Option<&str>,
    traced: Option<bool>,
    mut random: impl FnMut() -> u64,
) -> String {
    let mut id = match incoming {
        Some(id) => id.to_owned(),
        None => {
            let (high, low) = (random(), random());
            let (a, b) = (high >> 32, (high >> 16) & 0xffff);
            let (c, d) = (high & 0xfff, (low >> 48) & 0x3fff | 0x8000);
            format!(
                "{a:08x}-{b:04x}-4{c:03x}-{d:04x}-{:012x}",
                low & 0xffff_ffff_ffff
            )
        }
    };
    if traced == Some(true) && is_uuid(&id) && id.as_bytes()[14] == b'4' {
        id.replace_range(14..15, "9");
    }
    id
}
