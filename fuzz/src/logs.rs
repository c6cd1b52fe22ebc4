//! Access logs: an accepted format or filter means the same when it is read again. For any bytes of a stranger, a
//! text line stays one line and a JSON line stays JSON.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use voile_model::log_filter::LogFilter;
use voile_model::log_format::{HeaderSource, LogFormat};
use voile_telemetry::access_log::{
    AccessLogEntry, Fields, HttpLogFields, PolicyMarks, Renderer, TlsFacts, passes,
};

/// Longest complaint, in bytes: it quotes no more of a format than a person reads.
const MAX_COMPLAINT: usize = 4096;
/// Longest rendering of one byte of a stranger: `\x00`, or `�` escaped.
const GROWTH: usize = 6;
/// Longest value that does not come from a stranger, in bytes.
const MAX_OWN_VALUE: usize = 512;

/// Every field has this value.
struct Sent<'a>(&'a [u8]);

impl Fields for Sent<'_> {
    fn field(&self, _: HeaderSource, _: &str) -> Option<&[u8]> {
        Some(self.0)
    }
}

/// Splits the data into the written format and, after a zero byte, the stranger's bytes.
fn parts(data: &[u8]) -> Option<(&str, &[u8])> {
    let end = data.iter().position(|byte| *byte == 0);
    let (written, sent) = data.split_at(end.unwrap_or(data.len()));
    Some((
        std::str::from_utf8(written).ok()?,
        sent.get(1..).unwrap_or(b""),
    ))
}

/// A request whose client sent `sent` wherever it could, and an opaque connection.
fn entries(sent: &[u8], mut look: impl FnMut(&AccessLogEntry<'_>)) {
    let text = String::from_utf8_lossy(sent);
    let fields = Sent(sent);
    let number = sent.first().copied().unwrap_or_default();
    let address = SocketAddr::from(([127, 0, 0, 1], 80));
    let http = HttpLogFields {
        method: &text,
        path: &text,
        authority: &text,
        version: "HTTP/1.1",
        code: u16::from(number) * 3,
        request_head: u64::from(number),
        response_head: 0,
        grpc_status: Some(u16::from(number)).filter(|status| *status < 32),
        fields: &fields,
        request_duration: None,
        response_duration: Some(Duration::from_micros(number.into())),
        decision_duration: None,
        queue_duration: None,
        upstream_duration: None,
        attempts: 1,
        trace_id: "",
    };
    let request = AccessLogEntry {
        http: Some(http),
        start: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
        duration: Duration::from_micros(u64::from(number) * 1000),
        flags: "UF",
        details: "via_upstream",
        termination: "",
        upstream_failure: &text,
        downstream_failure: &text,
        received: 5,
        sent: u64::MAX / 4,
        upstream: Some(address),
        upstream_local: None,
        cluster: "outbound|80||server",
        local: address,
        remote: address,
        server_name: &text,
        route: "default",
        tls: Some(TlsFacts {
            peer: "spiffe://td/ns/a/sa/b",
            ..TlsFacts::default()
        }),
        marks: PolicyMarks::default(),
    };
    look(&request);
    look(&AccessLogEntry {
        http: None,
        tls: None,
        ..request
    });
}

/// A text format.
pub(crate) fn text(data: &[u8]) {
    let Some((written, sent)) = parts(data) else {
        return;
    };
    let format = match LogFormat::text(written) {
        Ok(format) => format,
        Err(error) => return complaint(&error.message, &error.help),
    };
    assert_eq!(LogFormat::text(format.source()), Ok(format.clone()));
    let commands = format.commands().len();
    let plain = !written.contains(char::is_control);
    for omit_empty in [false, true] {
        let renderer = Renderer::new(format.clone(), omit_empty);
        entries(sent, |entry| {
            let line = renderer.line(entry);
            let inner = line.strip_suffix('\n').expect("a line ends");
            if plain {
                assert!(!inner.contains(char::is_control), "{inner:?}");
            }
            let limit = written.len() + commands * (sent.len() * GROWTH + MAX_OWN_VALUE) + 1;
            assert!(line.len() <= limit, "{} of {limit}", line.len());
        });
    }
}

/// A JSON format.
pub(crate) fn json(data: &[u8]) {
    let Some((written, sent)) = parts(data) else {
        return;
    };
    let format = match LogFormat::json(written) {
        Ok(format) => format,
        Err(error) => return complaint(&error.message, &error.help),
    };
    let source = format.source();
    let keys = object(source);
    assert_eq!(LogFormat::json(source), Ok(format.clone()), "{source}");
    for omit_empty in [false, true] {
        let renderer = Renderer::new(format.clone(), omit_empty);
        entries(sent, |entry| {
            let line = renderer.line(entry);
            let line = line.strip_suffix('\n').expect("a line ends");
            assert!(!line.contains(char::is_control), "{line:?}");
            let told = object(line);
            match omit_empty {
                false => assert!(told.keys().eq(keys.keys()), "{line}"),
                true => assert!(told.keys().all(|key| keys.contains_key(key)), "{line}"),
            }
        });
    }
}

fn object(text: &str) -> serde_json::Map<String, serde_json::Value> {
    match serde_json::from_str(text) {
        Ok(serde_json::Value::Object(object)) => object,
        other => panic!("{text:?} is {other:?}"),
    }
}

/// A filter.
pub(crate) fn filter(data: &[u8]) {
    let Some((written, sent)) = parts(data) else {
        return;
    };
    let filter = match LogFilter::parse(written) {
        Ok(filter) => filter,
        Err(error) => return complaint(&error.message, &error.help),
    };
    assert_eq!(filter.source(), written);
    // A double negation means the same where there is an answer at all.
    let twice = LogFilter::parse(&format!("!(!({written}))")).ok();
    entries(sent, |entry| {
        let passed = passes(&filter, entry);
        if let Some(twice) = &twice {
            assert_eq!(passed, passes(twice, entry), "{written}");
        }
    });
}

fn complaint(message: &str, help: &str) {
    assert!(!message.is_empty());
    assert!(message.len() + help.len() <= MAX_COMPLAINT, "{message}");
    assert!(!message.contains('\n'), "{message}");
}
