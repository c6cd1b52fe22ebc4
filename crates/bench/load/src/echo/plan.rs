//! Parses the query of a request's target: `?size=1024&delay=2ms:10,5ms:5&status=503:1&close=true&header=Name:Value`. The server
//! parses each target once and keeps the plan. Values may be lists with percentages, as Fortio's are.

use crate::duration::parse_duration;
use crate::options::MAX_MESSAGES;

/// The largest body made on demand.
pub const MAX_SIZE: usize = 1 << 30;
/// The longest delay on demand, in nanoseconds: 60 s.
pub const MAX_DELAY: u64 = 60 * crate::clock::SECOND;
/// The most values of one probability list.
const MAX_CHOICES: usize = 32;

/// A value, or several with their probabilities; the rest to 100 % is the default.
#[derive(Debug, Clone, PartialEq)]
pub enum WeightedValue<T> {
    /// Always this.
    Always(T),
    /// Each value with the upper edge of its share of 0…100, ascending; then the default.
    Weighted(Vec<(f64, T)>, T),
}

impl<T: Copy> WeightedValue<T> {
    /// Reads `VALUE`, or `VALUE:PERCENT,VALUE:PERCENT…` where percentages may leave a rest for the default.
    pub fn parse(
        text: &str,
        default: T,
        value: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Self, String> {
        if !text.contains([':', ',']) {
            return Ok(Self::Always(value(text)?));
        }
        let (mut edges, mut sum) = (Vec::new(), 0.0);
        for part in text.split(',') {
            let (item, percent) = part
                .split_once(':')
                .ok_or(format!("`{part}`: expected VALUE:PERCENT"))?;
            let share: f64 = percent
                .trim_end_matches('%')
                .parse()
                .map_err(|_| format!("`{percent}` is not a percentage"))?;
            if !(0.0..=100.0).contains(&share) || edges.len() == MAX_CHOICES {
                return Err(format!(
                    "`{part}`: expected 0 to 100 percent and at most {MAX_CHOICES} values"
                ));
            }
            sum += share;
            edges.push((sum, value(item)?));
        }
        // Room for the rounding of percentages like 33.3.
        if sum > 100.001 {
            return Err(format!(
                "`{text}`: percentages add up to {sum}, more than 100"
            ));
        }
        Ok(Self::Weighted(edges, default))
    }

    /// The value for a random number from 0 up to 1.
    pub fn pick(&self, random: impl FnOnce() -> f64) -> T {
        match self {
            Self::Always(value) => *value,
            Self::Weighted(edges, default) => {
                let at = random() * 100.0;
                edges
                    .iter()
                    .find(|(edge, _)| at < *edge)
                    .map_or(*default, |(_, value)| *value)
            }
        }
    }
}

/// Answer to the requests of one target.
#[derive(Debug, Clone)]
pub struct ResponsePlan {
    /// The target of the plan.
    pub target: Vec<u8>,
    /// Nanoseconds to wait.
    pub delay: WeightedValue<u64>,
    /// Status code.
    pub status: WeightedValue<u16>,
    /// Status of gRPC calls.
    pub grpc_status: WeightedValue<u16>,
    /// Body size; none echoes the request's body.
    pub size: WeightedValue<Option<usize>>,
    /// Messages that a repeating call answers with.
    pub messages: u32,
    /// Nanoseconds to wait for each request that waits already, and this one.
    pub delay_per_request: u64,
    /// Compress the answer, for clients that take it.
    pub gzip: WeightedValue<bool>,
    /// Close the connection after the answer.
    pub close: WeightedValue<bool>,
    /// `Content-Type` of answers, instead of the one that fits them.
    pub kind: Option<String>,
    /// Header lines to add, each with CRLF.
    pub headers: String,
    /// Paths that an external authorizer denies begin with one of these.
    pub deny: Vec<String>,
    /// Answer with a description of the request (`/debug`).
    pub debug: bool,
    /// The whole answer, when every request gets the same.
    pub fixed: Option<Vec<u8>>,
}

/// Answer of the server where the target sets nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Defaults {
    pub(crate) size: Option<usize>,
    pub(crate) delay: u64,
    /// The query of targets that have none.
    pub(crate) query: String,
    /// Header lines of every answer.
    pub(crate) headers: String,
}

impl ResponsePlan {
    /// Reads the query of a target; an error names the argument.
    pub(crate) fn of(target: &[u8], defaults: &Defaults) -> Result<Self, String> {
        let text = std::str::from_utf8(target).map_err(|_| "target is not UTF-8".to_owned())?;
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let mut plan = Self {
            target: target.to_vec(),
            delay: WeightedValue::Always(defaults.delay),
            status: WeightedValue::Always(200),
            grpc_status: WeightedValue::Always(0),
            size: WeightedValue::Always(defaults.size),
            messages: 1,
            delay_per_request: 0,
            gzip: WeightedValue::Always(false),
            close: WeightedValue::Always(false),
            kind: None,
            headers: defaults.headers.clone(),
            deny: Vec::new(),
            debug: path.trim_end_matches('/').ends_with("/debug"),
            fixed: None,
        };
        let query = if query.is_empty() {
            &defaults.query
        } else {
            query
        };
        let mut seen = Vec::new();
        for argument in query.split('&').filter(|argument| !argument.is_empty()) {
            let (name, value) = match argument.split_once('=') {
                // As in Fortio's server: an empty value is ignored, and the first of two counts.
                Some((_, "")) => continue,
                Some(both) => both,
                None => (argument, ""),
            };
            if !matches!(name, "header" | "deny") && seen.contains(&name) {
                continue;
            }
            seen.push(name);
            plan.argument(name, &percent_decode(value))
                .map_err(|why| format!("query argument {name}: {why}"))?;
        }
        Ok(plan)
    }

    /// Reports if the answer may need the request's body.
    #[must_use]
    pub fn echoes(&self) -> bool {
        !self.debug
            && match &self.size {
                WeightedValue::Always(size) => size.is_none(),
                WeightedValue::Weighted(..) => true,
            }
    }

    fn argument(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "delay" => self.delay = WeightedValue::parse(value, 0, delay)?,
            "status" => self.status = WeightedValue::parse(value, 200, status)?,
            "grpc-status" => self.grpc_status = WeightedValue::parse(value, 0, grpc_status)?,
            // As in Fortio: requests outside all percentages get their own body back.
            "size" => self.size = WeightedValue::parse(value, None, |text| size(text).map(Some))?,
            "messages" => {
                let count = value.parse().ok().filter(|count| *count <= MAX_MESSAGES);
                self.messages = count.ok_or_else(|| {
                    format!("`{value}` is not a number of messages up to {MAX_MESSAGES}")
                })?;
            }
            "delay-per-request" => self.delay_per_request = delay(value)?,
            "gzip" => self.gzip = share(value)?,
            "close" => self.close = share(value)?,
            "header" => self.header(value)?,
            "deny" if self.deny.len() == MAX_CHOICES => {
                return Err(format!("at most {MAX_CHOICES} paths"));
            }
            "deny" => self.deny.push(value.to_owned()),
            // Others are the caller's own affair, as with any server.
            _ => {}
        }
        Ok(())
    }

    fn header(&mut self, value: &str) -> Result<(), String> {
        let (name, value) = value.split_once(':').ok_or("expected Name:Value")?;
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty()
            || !name.bytes().all(token)
            || value.bytes().any(|byte| byte < b' ' || byte == 0x7f)
        {
            return Err("not a valid HTTP field".to_owned());
        }
        if ["content-length", "transfer-encoding", "connection"]
            .iter()
            .any(|own| name.eq_ignore_ascii_case(own))
        {
            return Err(format!("{name} is set by the server"));
        }
        if name.eq_ignore_ascii_case("content-type") {
            self.kind = Some(value.trim().to_owned());
        } else {
            self.headers += &format!("{name}: {}\r\n", value.trim());
        }
        Ok(())
    }
}

fn delay(text: &str) -> Result<u64, String> {
    let delay = parse_duration(text)?.as_nanos() as u64;
    if delay > MAX_DELAY {
        Err(format!("`{text}` is longer than 60 s"))
    } else {
        Ok(delay)
    }
}

fn status(text: &str) -> Result<u16, String> {
    let code = text.parse().ok().filter(|code| (200..=599).contains(code));
    code.ok_or_else(|| format!("`{text}` is not a status from 200 to 599"))
}

fn grpc_status(text: &str) -> Result<u16, String> {
    let code = text.parse().ok().filter(|code| *code <= 16);
    code.ok_or_else(|| format!("`{text}` is not a gRPC status from 0 to 16"))
}

fn size(text: &str) -> Result<usize, String> {
    let size = text.parse().ok().filter(|size| *size <= MAX_SIZE);
    size.ok_or_else(|| format!("`{text}` is not a number of bytes up to {MAX_SIZE}"))
}

/// `true`, `false`, or the percentage of answers that close, or are compressed.
fn share(text: &str) -> Result<WeightedValue<bool>, String> {
    match text {
        "" | "true" => Ok(WeightedValue::Always(true)),
        "false" => Ok(WeightedValue::Always(false)),
        percent => {
            let percent = percent.strip_prefix("true:").unwrap_or(percent);
            WeightedValue::parse(&format!("true:{percent}"), false, |_| Ok(true))
        }
    }
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let digit = |offset: usize| {
            bytes
                .get(at + offset)
                .and_then(|byte| (*byte as char).to_digit(16))
        };
        match (bytes[at], digit(1), digit(2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                decoded.push(if byte == b'+' { b' ' } else { byte });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
