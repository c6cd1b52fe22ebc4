//! Small text that people read: clipping of hostile values, near misses, causes of errors, durations.

use std::time::Duration;

/// Longest piece of a user's text repeated in a message, in characters.
const MAX_QUOTED_CHARS: usize = 80;
/// Longest text for which a near miss is looked for, in bytes: the search is quadratic, and no field name is longer.
const MAX_SUGGESTED_BYTES: usize = 64;

/// An error and its causes in one line: the own text of tonic and hyper ("transport error") says nothing.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        let said = one.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = one.source();
    }
    text
}

/// Text fit for a message: control characters shown as escapes, never longer than a line.
pub fn clip(text: &str) -> String {
    let mut clipped: String = text
        .chars()
        .take(MAX_QUOTED_CHARS)
        .flat_map(escape)
        .collect();
    if text.chars().nth(MAX_QUOTED_CHARS).is_some() {
        clipped.push('…');
    }
    clipped
}

fn escape(c: char) -> Vec<char> {
    // Also what reorders or hides text in a terminal.
    let hidden = matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    if c.is_control() || hidden {
        c.escape_unicode().collect()
    } else {
        vec![c]
    }
}

/// The candidate most like `text`, if one is near enough to be what was meant.
pub(crate) fn nearest<'a>(
    text: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    const NEAR: f64 = 0.8; // found by trying: keeps one-letter slips in short names, drops strangers
    if text.len() > MAX_SUGGESTED_BYTES {
        return None;
    }
    let folded = text.to_ascii_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&folded, &candidate.to_ascii_lowercase()),
                candidate,
            )
        })
        .filter(|(distance, candidate)| {
            let longest = folded.chars().count().max(candidate.chars().count());
            *distance <= 1 && longest > 1 || *distance as f64 <= (1.0 - NEAR) * longest as f64 + 0.5
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `did you mean …?`, or the allowed words if the list is short.
pub fn suggest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str> + Clone) -> String {
    const SHORT_LIST: usize = 12;
    if let Some(near) = nearest(text, candidates.clone()) {
        return format!("did you mean `{near}`?");
    }
    let all: Vec<&str> = candidates.into_iter().collect();
    if all.is_empty() || all.len() > SHORT_LIST {
        String::new()
    } else {
        format!("one of {}", all.join(", "))
    }
}

/// A duration in Go's notation (`10s`, `1h30m`, `1.5s`, `250ms`), as Istio and Kubernetes write it; none if it is not
/// one, or longer than a year.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 7] = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("µs", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
    ];
    const MAX_SECONDS: f64 = 365.0 * 24.0 * 3600.0; // a year: longer is a mistake, and must not overflow arithmetic
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let after = &rest[digits..];
        let letters = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (_, unit) = UNITS.iter().find(|(unit, _)| *unit == &after[..letters])?;
        seconds += number * unit;
        rest = &after[letters..];
    }
    (!text.is_empty() && seconds <= MAX_SECONDS).then(|| Duration::from_secs_f64(seconds))
}
