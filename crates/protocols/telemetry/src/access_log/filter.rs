//! Evaluates log filters. Allocates nothing, except for addresses compared as text. As in CEL, a comparison with an
//! absent value has no result. `&&` and `||` go on without one where they can. A filter without a result does not
//! pass.

use std::borrow::Cow;
use std::net::SocketAddr;

use voile_model::log_filter::{
    Attribute, Comparison, Expression, Literal, LogFilter, Operand, Search,
};
use voile_model::log_format::HeaderSource;

use super::entry::{AccessLogEntry, FLAGS};

enum Value<'a> {
    Text(Cow<'a, [u8]>),
    Number(i64),
    Bool(bool),
}

/// Returns true if an entry is to be logged.
#[must_use]
pub fn passes(filter: &LogFilter, entry: &AccessLogEntry<'_>) -> bool {
    truth(filter.expression(), entry) == Some(true)
}

fn truth(expression: &Expression, entry: &AccessLogEntry<'_>) -> Option<bool> {
    match expression {
        Expression::Or(all) => any(all, entry, true),
        Expression::And(all) => any(all, entry, false),
        Expression::Not(inner) => truth(inner, entry).map(|truth| !truth),
        Expression::Has(operand) => Some(value(operand, entry).is_some()),
        Expression::Is(operand) => match value(operand, entry)? {
            Value::Bool(truth) => Some(truth),
            Value::Text(_) | Value::Number(_) => None,
        },
        Expression::Compare(comparison, one, other) => {
            let order = compare(&value(one, entry)?, &value(other, entry)?)?;
            Some(match comparison {
                Comparison::Equal => order.is_eq(),
                Comparison::NotEqual => order.is_ne(),
                Comparison::Less => order.is_lt(),
                Comparison::LessOrEqual => order.is_le(),
                Comparison::Greater => order.is_gt(),
                Comparison::GreaterOrEqual => order.is_ge(),
            })
        }
        Expression::In(operand, list) => {
            let value = value(operand, entry)?;
            let same = |item: &Literal| {
                compare(&value, &literal(item)).is_some_and(std::cmp::Ordering::is_eq)
            };
            Some(list.iter().any(same))
        }
        Expression::Search(search, operand, text) => {
            let Value::Text(found) = value(operand, entry)? else {
                return None;
            };
            Some(match search {
                Search::StartsWith => found.starts_with(text.as_bytes()),
                Search::EndsWith => found.ends_with(text.as_bytes()),
                Search::Contains => contains(&found, text.as_bytes()),
            })
        }
    }
}

/// `decisive` if any is; else no answer if any has none.
fn any(all: &[Expression], entry: &AccessLogEntry<'_>, decisive: bool) -> Option<bool> {
    let mut answer = Some(!decisive);
    for one in all {
        match truth(one, entry) {
            Some(found) if found == decisive => return Some(decisive),
            Some(_) => {}
            None => answer = None,
        }
    }
    answer
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part)
}

fn compare(one: &Value<'_>, other: &Value<'_>) -> Option<std::cmp::Ordering> {
    match (one, other) {
        (Value::Text(one), Value::Text(other)) => Some(one.cmp(other)),
        (Value::Number(one), Value::Number(other)) => Some(one.cmp(other)),
        (Value::Bool(one), Value::Bool(other)) => Some(one.cmp(other)),
        _ => None,
    }
}

fn literal(literal: &Literal) -> Value<'_> {
    match literal {
        Literal::Text(text) => Value::Text(Cow::Borrowed(text.as_bytes())),
        Literal::Number(number) => Value::Number(*number),
        Literal::Bool(truth) => Value::Bool(*truth),
    }
}

fn value<'a>(operand: &'a Operand, entry: &AccessLogEntry<'a>) -> Option<Value<'a>> {
    match operand {
        Operand::Literal(found) => Some(literal(found)),
        Operand::Header(direction, name) => entry.header(*direction, name).map(bytes),
        Operand::Attribute(attribute) => of_entry(*attribute, entry),
    }
}

fn bytes(bytes: &[u8]) -> Value<'_> {
    Value::Text(Cow::Borrowed(bytes))
}

fn text(text: &str) -> Option<Value<'_>> {
    (!text.is_empty()).then(|| bytes(text.as_bytes()))
}

fn number(number: u64) -> Value<'static> {
    Value::Number(i64::try_from(number).unwrap_or(i64::MAX))
}

fn nanoseconds(duration: std::time::Duration) -> Value<'static> {
    Value::Number(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

fn address(address: SocketAddr) -> Value<'static> {
    Value::Text(Cow::Owned(address.to_string().into_bytes()))
}

fn of_entry<'a>(attribute: Attribute, entry: &AccessLogEntry<'a>) -> Option<Value<'a>> {
    let tls = entry.tls.unwrap_or_default();
    match attribute {
        Attribute::ConnectionMtls => Some(Value::Bool(!tls.peer.is_empty())),
        Attribute::ConnectionServerName => text(entry.server_name),
        Attribute::ConnectionTlsVersion => text(tls.version),
        Attribute::ConnectionTermination => text(entry.termination),
        Attribute::ConnectionPeer => text(tls.peer),
        Attribute::ConnectionLocal => text(tls.own),
        Attribute::SourceAddress => Some(address(entry.remote)),
        Attribute::SourcePort => Some(number(entry.remote.port().into())),
        Attribute::DestinationAddress => Some(address(entry.local)),
        Attribute::DestinationPort => Some(number(entry.local.port().into())),
        Attribute::UpstreamAddress => entry.upstream.map(address),
        Attribute::UpstreamPort => entry.upstream.map(|found| number(found.port().into())),
        Attribute::UpstreamFailure => text(entry.upstream_failure),
        Attribute::ClusterName => text(entry.cluster),
        Attribute::RouteName => text(entry.route),
        Attribute::RequestSize => Some(number(entry.received)),
        Attribute::ResponseSize => Some(number(entry.sent)),
        Attribute::RequestDuration => Some(nanoseconds(entry.duration)),
        Attribute::ResponseCodeDetails => text(entry.details),
        Attribute::ResponseFlags => {
            let found = FLAGS.iter().find(|(short, ..)| *short == entry.flags);
            Some(Value::Number(found.map_or(0, |(.., bit)| *bit)))
        }
        attribute => of_request(attribute, entry),
    }
}

fn of_request<'a>(attribute: Attribute, entry: &AccessLogEntry<'a>) -> Option<Value<'a>> {
    let http = entry.http?;
    let field = |name| entry.header(HeaderSource::Request, name).map(bytes);
    match attribute {
        Attribute::RequestPath => text(http.path),
        Attribute::RequestUrlPath => text(http.path.split('?').next()?),
        Attribute::RequestQuery => text(http.path.split_once('?')?.1),
        Attribute::RequestHost => text(http.authority),
        Attribute::RequestMethod => text(http.method),
        Attribute::RequestScheme => text(entry.scheme()),
        Attribute::RequestProtocol => text(http.version),
        Attribute::RequestId => field("x-request-id"),
        Attribute::RequestReferer => field("referer"),
        Attribute::RequestUserAgent => field("user-agent"),
        Attribute::RequestTotalSize => Some(number(entry.received + http.request_head)),
        Attribute::ResponseTotalSize => Some(number(entry.sent + http.response_head)),
        // No status at all is none to compare with, not a status of 0.
        Attribute::ResponseCode => (http.code != 0).then(|| number(http.code.into())),
        Attribute::ResponseGrpcStatus => http.grpc_status.map(|status| number(status.into())),
        Attribute::ResponseBackendLatency => http.response_duration.map(nanoseconds),
        _ => None,
    }
}
