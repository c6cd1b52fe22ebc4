//! Renders log lines from entries, by a checked format. Text from clients or servers stays within its quotes and its
//! line.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use voile_model::log_format::{
    CommandValue, Fact, FormatCommand, HeaderSource, JsonNode, LineLayout, LinePiece, LogFormat,
    TimeLayout, TimePart,
};

use super::entry::{AccessLogEntry, DryRunEntry, FLAGS, grpc_name};

/// The value of one command.
enum Value<'a> {
    Absent,
    Text(&'a str),
    /// As a stranger sent it.
    Bytes(&'a [u8]),
    Number(u64),
    Socket(SocketAddr),
    Address(IpAddr),
    Time(SystemTime, &'a TimeLayout),
}

/// A format and the process's values for it.
#[derive(Debug)]
pub struct Renderer {
    format: LogFormat,
    omit_empty: bool,
    hostname: String,
    environment: Vec<(Arc<str>, String)>,
}

impl Renderer {
    /// Makes lines of `format`; variables of the environment are read now.
    #[must_use]
    pub fn new(format: LogFormat, omit_empty: bool) -> Self {
        let mut environment: Vec<(Arc<str>, String)> = Vec::new();
        for FormatCommand { what, .. } in format.commands() {
            if let CommandValue::Environment(name) = what
                && let Ok(value) = std::env::var(&**name)
            {
                environment.push((Arc::clone(name), value));
            }
        }
        Self {
            format,
            omit_empty,
            hostname: crate::process::hostname(),
            environment,
        }
    }

    pub(super) fn format(&self) -> &LogFormat {
        &self.format
    }

    /// The line of an entry, with its end.
    #[must_use]
    pub fn line(&self, entry: &AccessLogEntry<'_>) -> String {
        let mut out = String::with_capacity(512);
        match self.format.layout() {
            LineLayout::Text(pieces) => {
                self.text(pieces, entry, &mut out);
                if !out.ends_with('\n') {
                    out.push('\n');
                }
            }
            LineLayout::Json(node) => {
                self.json(node, entry, &mut out);
                out.push('\n');
            }
        }
        out
    }

    fn text(&self, pieces: &[LinePiece], entry: &AccessLogEntry<'_>, out: &mut String) {
        for piece in pieces {
            match piece {
                LinePiece::Text(text) => out.push_str(text),
                LinePiece::Command(command) => {
                    let from = out.len();
                    write_value(&self.value(command, entry), out);
                    if out.len() == from {
                        out.push_str(if self.omit_empty { "" } else { "-" });
                        continue;
                    }
                    cut(out, from, command.cut);
                    escape_in_place(out, from);
                }
            }
        }
    }

    /// False when nothing was written because there is nothing to say.
    fn json(&self, node: &JsonNode, entry: &AccessLogEntry<'_>, out: &mut String) -> bool {
        match node {
            JsonNode::Verbatim(text) => out.push_str(text),
            JsonNode::Object(fields) => {
                out.push('{');
                let mut first = true;
                for (key, node) in fields {
                    let from = out.len();
                    if !first {
                        out.push(',');
                    }
                    quoted(key, out);
                    out.push(':');
                    if self.json(node, entry, out) {
                        first = false;
                    } else {
                        out.truncate(from);
                    }
                }
                out.push('}');
            }
            JsonNode::List(items) => {
                out.push('[');
                for (index, node) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    if !self.json(node, entry, out) {
                        out.push_str("null");
                    }
                }
                out.push(']');
            }
            JsonNode::Text { pieces, .. } => return self.json_text(pieces, entry, out),
        }
        true
    }

    /// One command alone keeps its type; several pieces are a text.
    fn json_text(
        &self,
        pieces: &[LinePiece],
        entry: &AccessLogEntry<'_>,
        out: &mut String,
    ) -> bool {
        if let [LinePiece::Command(command)] = pieces {
            let value = self.value(command, entry);
            match value {
                Value::Absent if self.omit_empty => return false,
                Value::Absent => out.push_str("null"),
                Value::Number(number) => {
                    let _ = write!(out, "{number}");
                }
                value => {
                    let mut text = String::new();
                    write_value(&value, &mut text);
                    cut(&mut text, 0, command.cut);
                    quoted(&text, out);
                }
            }
            return true;
        }
        let mut text = String::new();
        for piece in pieces {
            match piece {
                LinePiece::Text(literal) => text.push_str(literal),
                LinePiece::Command(command) => {
                    let from = text.len();
                    write_value(&self.value(command, entry), &mut text);
                    if text.len() == from && !self.omit_empty {
                        text.push('-');
                    }
                    cut(&mut text, from, command.cut);
                }
            }
        }
        quoted(&text, out);
        true
    }

    fn value<'a>(&'a self, command: &'a FormatCommand, entry: &AccessLogEntry<'a>) -> Value<'a> {
        match &command.what {
            CommandValue::StartTime(layout) => Value::Time(entry.start, layout),
            CommandValue::EmitTime(layout) => Value::Time(SystemTime::now(), layout),
            CommandValue::Header {
                direction,
                name,
                or,
                without_query,
            } => {
                let first = header(entry, *direction, name);
                let found = first.or_else(|| header(entry, *direction, or.as_deref()?));
                match found {
                    Some(Value::Bytes(bytes)) if *without_query => {
                        let end = bytes.iter().position(|b| *b == b'?');
                        Value::Bytes(&bytes[..end.unwrap_or(bytes.len())])
                    }
                    found => found.unwrap_or(Value::Absent),
                }
            }
            CommandValue::Environment(name) => {
                let found = self.environment.iter().find(|(known, _)| known == name);
                found.map_or(Value::Absent, |(_, value)| Value::Text(value))
            }
            CommandValue::Query(name) => {
                let query = entry
                    .http
                    .and_then(|http| Some(http.path.split_once('?')?.1));
                let mut pairs = query.unwrap_or_default().split('&');
                let found = pairs.find_map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (*key == **name).then_some(value)
                });
                some_text(found.unwrap_or_default())
            }
            CommandValue::Fact(Fact::Hostname) => some_text(&self.hostname),
            CommandValue::Fact(fact) => fact_of(*fact, entry),
        }
    }
}

/// Returns a header. Envoy's service time is not a real header: it is the measured duration.
fn header<'a>(
    entry: &AccessLogEntry<'a>,
    direction: HeaderSource,
    name: &str,
) -> Option<Value<'a>> {
    if direction == HeaderSource::Response && name == "x-envoy-upstream-service-time" {
        let measured = entry.http.and_then(|http| http.response_duration);
        return measured.map(milliseconds);
    }
    entry.header(direction, name).map(Value::Bytes)
}

fn milliseconds<'a>(duration: Duration) -> Value<'a> {
    Value::Number(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn some_text(text: &str) -> Value<'_> {
    match text {
        "" => Value::Absent,
        text => Value::Text(text),
    }
}

fn rehearsed(said: Option<DryRunEntry<'_>>) -> Value<'_> {
    match said {
        None => Value::Absent,
        Some(DryRunEntry { allowed: true, .. }) => Value::Text("allowed"),
        Some(DryRunEntry { allowed: false, .. }) => Value::Text("denied"),
    }
}

/// Everything that takes no argument. Facts of requests are absent for opaque connections.
fn fact_of<'a>(fact: Fact, entry: &AccessLogEntry<'a>) -> Value<'a> {
    let or_absent = |value: Option<Value<'a>>| value.unwrap_or(Value::Absent);
    let tls = entry.tls.unwrap_or_default();
    match fact {
        Fact::ResponseFlags => Value::Text(entry.flags),
        Fact::ResponseFlagsLong => {
            let found = FLAGS.iter().find(|(short, ..)| *short == entry.flags);
            Value::Text(found.map_or("-", |(_, long, _)| long))
        }
        Fact::Audited => some_text(if entry.marks.audited { "true" } else { "" }),
        Fact::RehearsedAllow => rehearsed(entry.marks.allow),
        Fact::RehearsedAllowRule => some_text(entry.marks.allow.map_or("", |said| said.rule)),
        Fact::RehearsedDeny => rehearsed(entry.marks.deny),
        Fact::RehearsedDenyRule => some_text(entry.marks.deny.map_or("", |said| said.rule)),
        Fact::ResponseCodeDetails => some_text(entry.details),
        Fact::ConnectionTerminationDetails => some_text(entry.termination),
        Fact::UpstreamFailure => some_text(entry.upstream_failure),
        Fact::DownstreamFailure => some_text(entry.downstream_failure),
        Fact::BytesReceived => Value::Number(entry.received),
        Fact::BytesSent => Value::Number(entry.sent),
        Fact::Duration => milliseconds(entry.duration),
        Fact::UpstreamHost => or_absent(entry.upstream.map(Value::Socket)),
        Fact::UpstreamHostAddress => or_absent(entry.upstream.map(|a| Value::Address(a.ip()))),
        Fact::UpstreamHostPort => or_absent(entry.upstream.map(port)),
        Fact::UpstreamLocal => or_absent(entry.upstream_local.map(Value::Socket)),
        Fact::UpstreamLocalAddress => {
            or_absent(entry.upstream_local.map(|a| Value::Address(a.ip())))
        }
        Fact::UpstreamLocalPort => or_absent(entry.upstream_local.map(port)),
        Fact::UpstreamCluster => some_text(entry.cluster),
        Fact::DownstreamLocal => Value::Socket(entry.local),
        Fact::DownstreamLocalAddress => Value::Address(entry.local.ip()),
        Fact::DownstreamLocalPort => port(entry.local),
        Fact::DownstreamRemote => Value::Socket(entry.remote),
        Fact::DownstreamRemoteAddress => Value::Address(entry.remote.ip()),
        Fact::DownstreamRemotePort => port(entry.remote),
        Fact::ServerName => some_text(entry.server_name),
        Fact::RouteName => some_text(entry.route),
        Fact::PeerUriSan => some_text(tls.peer),
        Fact::LocalUriSan => some_text(tls.own),
        Fact::TlsVersion => some_text(tls.version),
        Fact::TlsCipher => some_text(tls.cipher),
        Fact::AccessLogType => Value::Text(match entry.http {
            Some(_) => "DownstreamEnd",
            None => "TcpConnectionEnd",
        }),
        Fact::ResponseCode => Value::Number(entry.http.map_or(0, |http| http.code.into())),
        Fact::WireReceived => {
            Value::Number(entry.received + entry.http.map_or(0, |http| http.request_head))
        }
        Fact::WireSent => {
            Value::Number(entry.sent + entry.http.map_or(0, |http| http.response_head))
        }
        fact => or_absent(http_fact(fact, entry)),
    }
}

fn http_fact<'a>(fact: Fact, entry: &AccessLogEntry<'a>) -> Option<Value<'a>> {
    let http = entry.http?;
    Some(match fact {
        Fact::Method => some_text(http.method),
        Fact::Path => some_text(http.path),
        Fact::Protocol => some_text(http.version),
        Fact::RequestHeadBytes => Value::Number(http.request_head),
        Fact::ResponseHeadBytes => Value::Number(http.response_head),
        Fact::RequestDuration => milliseconds(http.request_duration?),
        Fact::ResponseDuration => milliseconds(http.response_duration?),
        Fact::ResponseTxDuration => {
            milliseconds(entry.duration.saturating_sub(http.response_duration?))
        }
        Fact::GrpcStatus => match grpc_name(http.grpc_status?) {
            Some(name) => Value::Text(name),
            None => Value::Number(http.grpc_status?.into()),
        },
        Fact::GrpcStatusNumber => Value::Number(http.grpc_status?.into()),
        Fact::TraceId => some_text(http.trace_id),
        Fact::Attempts => Value::Number(http.attempts.into()),
        _ => return None,
    })
}

fn port<'a>(address: SocketAddr) -> Value<'a> {
    Value::Number(address.port().into())
}

fn write_value(value: &Value<'_>, out: &mut String) {
    let _ = match value {
        Value::Absent => Ok(()),
        Value::Text(text) => out.write_str(text),
        Value::Bytes(bytes) => {
            for chunk in bytes.utf8_chunks() {
                out.push_str(chunk.valid());
                if !chunk.invalid().is_empty() {
                    out.push(char::REPLACEMENT_CHARACTER);
                }
            }
            Ok(())
        }
        Value::Number(number) => write!(out, "{number}"),
        Value::Socket(address) => write!(out, "{address}"),
        Value::Address(address) => write!(out, "{address}"),
        Value::Time(time, layout) => write_time(*time, layout, out),
    };
}

/// Cuts a value to so many bytes, never within a letter.
fn cut(out: &mut String, from: usize, limit: Option<usize>) {
    if let Some(limit) = limit
        && out.len() - from > limit
    {
        let mut end = from + limit;
        while !out.is_char_boundary(end) {
            end -= 1;
        }
        out.truncate(end);
    }
}

/// A value of a text line can end neither its quotes nor its line.
fn escape_in_place(out: &mut String, from: usize) {
    let harmless = |letter: char| {
        !(letter.is_control() || matches!(letter, '"' | '\\' | '\u{2028}' | '\u{2029}'))
    };
    if out[from..].chars().all(harmless) {
        return;
    }
    let value = out.split_off(from);
    for letter in value.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if harmless(letter) => out.push(letter),
            letter if u32::from(letter) < 0x100 => {
                let _ = write!(out, "\\x{:02x}", u32::from(letter));
            }
            letter => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(letter));
            }
        }
    }
}

/// A JSON string.
fn quoted(text: &str, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            letter if letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}') => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
}

fn write_time(time: SystemTime, layout: &TimeLayout, out: &mut String) -> std::fmt::Result {
    let time = OffsetDateTime::from(time);
    let Some(parts) = layout.parts() else {
        return write!(
            out,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
            time.year(),
            u8::from(time.month()),
            time.day(),
            time.hour(),
            time.minute(),
            time.second(),
            time.millisecond()
        );
    };
    for part in parts {
        write_time_part(time, part, out)?;
    }
    Ok(())
}

fn write_time_part(time: OffsetDateTime, part: &TimePart, out: &mut String) -> std::fmt::Result {
    let name = |name: String| name.chars().take(3).collect::<String>();
    match part {
        TimePart::Text(text) => out.write_str(text),
        TimePart::Year => write!(out, "{:04}", time.year()),
        TimePart::ShortYear => write!(out, "{:02}", time.year().rem_euclid(100)),
        TimePart::Month => write!(out, "{:02}", u8::from(time.month())),
        TimePart::Day => write!(out, "{:02}", time.day()),
        TimePart::DayBlank => write!(out, "{:2}", time.day()),
        TimePart::DayOfYear => write!(out, "{:03}", time.ordinal()),
        TimePart::Hour => write!(out, "{:02}", time.hour()),
        TimePart::Minute => write!(out, "{:02}", time.minute()),
        TimePart::Second => write!(out, "{:02}", time.second()),
        TimePart::Epoch => write!(out, "{}", time.unix_timestamp()),
        TimePart::Fraction(digits) => {
            let digits = usize::from(*digits).min(9);
            let nanoseconds = format!("{:09}", time.nanosecond());
            out.write_str(&nanoseconds[..digits])
        }
        TimePart::MonthName => out.write_str(&name(time.month().to_string())),
        TimePart::DayName => out.write_str(&name(time.weekday().to_string())),
        TimePart::Offset => out.write_str("+0000"),
        TimePart::Zone => out.write_str("UTC"),
    }
}
