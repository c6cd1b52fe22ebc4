//! Small text that people read: clipping of hostile values, near misses, causes of errors, durations.

use std::fmt;
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
#[must_use]
pub fn nearest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = candidates
        .into_iter()
        .filter_map(|candidate| Some((distance_if_near(text, candidate)?, candidate)));
    near.min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Letters by which two words differ, if so few do that one may be meant for the other.
fn distance_if_near(text: &str, candidate: &str) -> Option<usize> {
    const NEAR: f64 = 0.8; // found by trying: keeps one-letter slips in short names, drops strangers
    let lengths = (text.chars().count(), candidate.chars().count());
    let longest = lengths.0.max(lengths.1);
    let allowed = ((1.0 - NEAR) * longest as f64 + 0.5).max(f64::from(u8::from(longest > 1)));
    // The number of letters alone drops most: the distance is costly.
    if text.len() > MAX_SUGGESTED_BYTES || lengths.0.abs_diff(lengths.1) as f64 > allowed {
        return None;
    }
    let (text, candidate) = (text.to_ascii_lowercase(), candidate.to_ascii_lowercase());
    let distance = strsim::damerau_levenshtein(&text, &candidate);
    (distance as f64 <= allowed).then_some(distance)
}

/// The known name that a reference to `(namespace, name)` probably means: one spelt alike in that namespace, else the
/// same name in another.
#[must_use]
pub fn nearest_name<'a>(
    (namespace, name): (&str, &str),
    known: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Option<(&'a str, &'a str)> {
    let near = known.into_iter().filter_map(|(its, known)| {
        let rank = match (its == namespace, known == name) {
            (true, true) => return None,
            (true, false) => (0, distance_if_near(name, known)?),
            (false, true) => (1, distance_if_near(namespace, its).unwrap_or(usize::MAX)),
            (false, false) => return None,
        };
        Some((rank, (its, known)))
    });
    near.min().map(|(_, meant)| meant)
}

/// The known host that an unknown one probably means: each of its labels is spelt alike, or it is a Kubernetes Service of
/// the same name in another namespace.
#[must_use]
pub fn nearest_host<'a>(host: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let first = host.split('.').next().unwrap_or_default();
    let near = known.into_iter().filter(|known| *known != host);
    let near = near.filter_map(|known| {
        let same_name = known.split('.').next() == Some(first) && known.contains(".svc.");
        let rank = match (labels_apart(host, known), same_name && !first.is_empty()) {
            (Some(letters), _) => (0, letters),
            (None, true) => (1, 0),
            (None, false) => return None,
        };
        Some((rank, known))
    });
    near.min().map(|(_, meant)| meant)
}

/// Letters by which the labels of two host names differ, if each label is near the other's.
fn labels_apart(host: &str, known: &str) -> Option<usize> {
    let (mut left, mut right) = (host.split('.'), known.split('.'));
    let mut letters = 0;
    loop {
        letters += match (left.next(), right.next()) {
            (None, None) => return Some(letters),
            (Some(one), Some(other)) if one == other => 0,
            (Some(one), Some(other)) => distance_if_near(one, other)?,
            _ => return None,
        };
    }
}

/// `did you mean …? If not, …`, or only what else to do.
#[must_use]
pub fn did_you_mean(meant: Option<impl fmt::Display>, otherwise: &str) -> String {
    match meant {
        Some(meant) => format!("did you mean `{meant}`? If not, {otherwise}"),
        None => otherwise.to_owned(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_reference_means_a_name_spelt_alike_or_the_same_name_elsewhere() {
        let known = [
            ("shop", "reviews"),
            ("shop", "ratings"),
            ("bank", "ledger"),
            ("shopp", "web"),
            ("ops", "web"),
        ];
        for (asked, expected) in [
            (("shop", "reviws"), Some(("shop", "reviews"))),
            (("shop", "Reviews"), Some(("shop", "reviews"))),
            (("shop", "ledger"), Some(("bank", "ledger"))),
            (("shop", "web"), Some(("shopp", "web"))),
            (("shop", "legder"), None),
            (("shop", "checkout"), None),
        ] {
            assert_eq!(nearest_name(asked, known), expected, "{asked:?}");
        }
    }

    #[test]
    fn a_misspelt_host_means_one_that_differs_little_in_each_label() {
        let known = [
            "reviews.shop.svc.cluster.local",
            "ratings.shop.svc.cluster.local",
            "api.example.com",
            "*.example.org",
        ];
        for (asked, expected) in [
            ("reviws.shop.svc.cluster.local", Some(known[0])),
            ("reviws.shp.svc.cluster.local", Some(known[0])),
            ("reviews.default.svc.cluster.local", Some(known[0])),
            ("reviews.shop", Some(known[0])),
            ("reviews", Some(known[0])),
            ("orders.shop.svc.cluster.local", None),
            ("api.exmaple.com", Some(known[2])),
            ("api.other.com", None),
            ("*.exmaple.org", Some(known[3])),
            ("", None),
        ] {
            assert_eq!(nearest_host(asked, known), expected, "{asked}");
        }
    }
}
