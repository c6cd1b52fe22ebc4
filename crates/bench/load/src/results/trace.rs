//! Recorded traces: times of requests, and their methods and paths. A line a request, in several formats: seconds, an access log
//! of a web server or a proxy, or JSON. Pure.

use serde_json::Value;

use crate::clock::SECOND;

/// The most requests of a recorded trace: 400 MB of instants.
const MAX_TRACE: usize = 50_000_000;
/// The most different requests of a trace: each is made ready before the run.
pub const MAX_RECORDED: usize = 10_000;
/// Times beyond this many seconds (the year 2262) are no times.
const MAX_SECONDS: f64 = 9.2e9;
/// JSON fields of the time, in the order of the search.
const TIME_FIELDS: [&str; 6] = ["start_time", "@timestamp", "timestamp", "time", "ts", "t"];
/// JSON fields of the requested path.
const PATH_FIELDS: [&str; 5] = ["path", "request_uri", "uri", "url", "target"];

/// A recorded request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordedRequest {
    /// Method.
    pub method: String,
    /// Path and query.
    pub path: String,
}

/// A recorded trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// When requests are due, in nanoseconds from the first, ascending.
    pub instants: Vec<u64>,
    /// The distinct requests.
    pub requests: Vec<RecordedRequest>,
    /// Index in `requests` for each instant. Empty if some lines name no request.
    pub which: Vec<u32>,
    /// First line that names no request.
    pub nameless: Option<usize>,
}

/// One line.
struct TraceLine {
    /// Nanoseconds since the trace's own origin.
    at: i64,
    /// The time was written in whole seconds, as web servers do.
    coarse: bool,
    asked: Option<RecordedRequest>,
}

impl Trace {
    /// Reads a trace; `#` begins a comment. Times are divided by `speed`. Requests of the same whole second of a log that knows
    /// no finer time are spread over it.
    ///
    /// # Errors
    /// Says which line has no time, or that there is none.
    pub fn parse(text: &str, speed: f64) -> Result<Self, String> {
        let mut lines = Vec::new();
        let mut nameless = None;
        for (number, text) in text.lines().enumerate() {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let line = line(text).map_err(|why| format!("line {}: {why}", number + 1))?;
            if lines.len() == MAX_TRACE {
                return Err(format!("more than {MAX_TRACE} requests"));
            }
            if line.asked.is_none() {
                nameless = nameless.or(Some(number + 1));
            }
            lines.push(line);
        }
        lines.sort_by_key(|line| line.at);
        let first = lines.first().ok_or("there is no request in it")?.at;
        if lines.iter().all(|line| line.coarse) {
            spread(&mut lines);
        }
        let instants = lines.iter().map(|line| {
            let since = line.at.abs_diff(first);
            (since as f64 / speed).round() as u64
        });
        let mut trace = Self {
            instants: instants.collect(),
            nameless,
            ..Self::default()
        };
        if nameless.is_none() {
            trace.name(lines)?;
        }
        Ok(trace)
    }

    fn name(&mut self, lines: Vec<TraceLine>) -> Result<(), String> {
        let mut numbers = std::collections::HashMap::new();
        for asked in lines.into_iter().filter_map(|line| line.asked) {
            let next = numbers.len();
            let number = *numbers.entry(asked).or_insert(next);
            self.which.push(number as u32);
        }
        if numbers.len() > MAX_RECORDED {
            // The times are good all the same.
            self.which.clear();
            return Ok(());
        }
        let mut requests: Vec<_> = numbers.into_iter().collect();
        requests.sort_by_key(|(_, number)| *number);
        self.requests = requests.into_iter().map(|(asked, _)| asked).collect();
        Ok(())
    }
}

/// Puts requests of the same second evenly into it.
fn spread(lines: &mut [TraceLine]) {
    for second in lines.chunk_by_mut(|one, next| one.at == next.at) {
        let count = second.len() as i64;
        for (line, nth) in second.iter_mut().zip(0..) {
            line.at += nth * SECOND as i64 / count;
        }
    }
}

fn line(text: &str) -> Result<TraceLine, String> {
    if text.starts_with('{') {
        return json(text);
    }
    let word = text.split([' ', '\t', ',', ';']).next().unwrap_or_default();
    let rest = &text[word.len()..];
    if let Some(at) = seconds(word) {
        let rest = rest.split('#').next().unwrap_or_default();
        return Ok(TraceLine {
            at,
            coarse: false,
            asked: asked(rest),
        });
    }
    if let Some((at, coarse)) = date(word) {
        let asked = quoted(rest).map_or_else(|| asked(rest), asked);
        return Ok(TraceLine { at, coarse, asked });
    }
    let bracketed = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    if let Some((time, rest)) = bracketed
        && let Some((at, coarse)) = date(time)
    {
        let asked = quoted(rest).and_then(asked);
        return Ok(TraceLine { at, coarse, asked });
    }
    Err(format!(
        "`{word}` is not a time in seconds, and there is no date in access log format"
    ))
}

fn json(text: &str) -> Result<TraceLine, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
    let named = |names: &[&str]| names.iter().find_map(|name| value.get(*name)).cloned();
    let time = named(&TIME_FIELDS).ok_or_else(|| {
        let fields = TIME_FIELDS.join(", ");
        format!("no time in it; looked for {fields}")
    })?;
    let found = match &time {
        Value::Number(number) => seconds(&number.to_string()),
        Value::String(text) => seconds(text),
        _ => None,
    };
    let found = found.map(|at| (at, false));
    let found = found.or_else(|| date(time.as_str()?));
    let (at, coarse) = found.ok_or_else(|| format!("{time} is not a time"))?;
    let whole = value.get("request").and_then(Value::as_str).and_then(asked);
    let asked = whole.or_else(|| {
        let path = named(&PATH_FIELDS)?;
        let method = named(&["method", "request_method"]);
        let method = method.as_ref().and_then(Value::as_str).unwrap_or("GET");
        recorded(method, path.as_str()?)
    });
    Ok(TraceLine { at, coarse, asked })
}

/// Returns the text between the first quotes.
fn quoted(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('"')?;
    rest.split_once('"').map(|(inside, _)| inside)
}

/// `METHOD PATH …`, or a path alone.
fn asked(text: &str) -> Option<RecordedRequest> {
    let mut words = text
        .split([' ', '\t', ',', ';', '"'])
        .filter(|word| !word.is_empty());
    let first = words.next()?;
    if first.starts_with('/') {
        return recorded("GET", first);
    }
    recorded(first, words.next()?)
}

fn recorded(method: &str, path: &str) -> Option<RecordedRequest> {
    let upper = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    let printable = path.bytes().all(|byte| byte.is_ascii_graphic());
    (upper && path.starts_with('/') && printable).then(|| RecordedRequest {
        method: method.to_owned(),
        path: path.to_owned(),
    })
}

/// Seconds as people write them, in nanoseconds: digit by digit, since a float knows today only to a quarter of a microsecond.
fn seconds(text: &str) -> Option<i64> {
    let rough: f64 = text.parse().ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if rough.is_nan() || rough.abs() >= MAX_SECONDS {
        None
    } else if digits(whole) && digits(fraction) && fraction.len() <= 9 {
        let whole: i64 = if whole.is_empty() {
            0
        } else {
            whole.parse().ok()?
        };
        let fraction: i64 = format!("{fraction:0<9}").parse().ok()?;
        whole.checked_mul(SECOND as i64)?.checked_add(fraction)
    } else {
        Some((rough * SECOND as f64).round() as i64)
    }
}

/// A date of RFC 3339 (`2026-11-21T20:00:00.5Z`) or of the common log format (`21/Nov/2026:20:00:00 +0000`), in nanoseconds since
/// 1970, and whether it knows whole seconds only.
fn date(text: &str) -> Option<(i64, bool)> {
    let text = text.trim();
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let mark = |at: usize| text.as_bytes().get(at).copied();
    let (day, clock, rest) = if mark(2) == Some(b'/') {
        const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
        let month = MONTHS.find(text.get(3..6)?)? as i64 / 3 + 1;
        (
            days(number(7, 11)?, month, number(0, 2)?),
            12,
            text.get(20..)?,
        )
    } else {
        let dashed = mark(4) == Some(b'-') && mark(7) == Some(b'-');
        if !dashed || !matches!(mark(10), Some(b'T' | b't' | b' ')) {
            return None;
        }
        (
            days(number(0, 4)?, number(5, 7)?, number(8, 10)?),
            11,
            text.get(19..)?,
        )
    };
    let of_day = number(clock, clock + 2)? * 3_600
        + number(clock + 3, clock + 5)? * 60
        + number(clock + 6, clock + 8)?;
    let digits = rest.strip_prefix('.').map(|rest| {
        &rest[..rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len())]
    });
    let fraction = match digits {
        Some(digits) => (format!("0.{digits}").parse::<f64>().ok()? * SECOND as f64).round() as i64,
        None => 0,
    };
    let zone = &rest[digits.map_or(0, |digits| digits.len() + 1)..];
    let at = (day? * 86_400 + of_day - offset(zone.trim())?).checked_mul(SECOND as i64)?;
    Some((at + fraction, digits.is_none()))
}

/// Seconds east of Greenwich: `Z`, `+02:00`, `-0700`, or nothing.
fn offset(zone: &str) -> Option<i64> {
    if zone.is_empty() || zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, digits) = match zone.split_at_checked(1)? {
        ("+", digits) => (1, digits.replace(':', "")),
        ("-", digits) => (-1, digits.replace(':', "")),
        _ => return None,
    };
    let (hours, minutes) = digits.split_at_checked(2)?;
    let seconds = hours.parse::<i64>().ok()? * 3_600 + minutes.parse::<i64>().ok()? * 60;
    Some(sign * seconds)
}

/// Days from 1970 to a date, by the usual arithmetic of eras.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    if !((1..=12).contains(&month) && (1..=31).contains(&day) && (1..=2261).contains(&year)) {
        return None;
    }
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}
