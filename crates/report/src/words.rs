//! How figures are written for people: few digits, units, intervals; and escaping for HTML.

use crate::record::Estimate;

/// Microseconds (the unit stands in the heading).
#[must_use]
pub fn micro(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Bytes, in MiB.
#[must_use]
pub fn bytes(value: f64) -> String {
    format!("{:.1} MiB", value / (1024.0 * 1024.0))
}

/// A ratio.
#[must_use]
pub fn ratio(value: f64) -> String {
    format!("{value:.2}×")
}

/// `median [low–high]`, or the median alone.
#[must_use]
pub fn interval(estimate: &Estimate, show: fn(f64) -> String) -> String {
    match (estimate.low, estimate.high) {
        (Some(low), Some(high)) => {
            let plain = |value| show(value).trim_end_matches('×').to_owned();
            format!("{} [{}–{}]", show(estimate.median), plain(low), plain(high))
        }
        _ => show(estimate.median),
    }
}

/// A cell's mode as a heading.
#[must_use]
pub fn mode_title(mode: &str, tls: bool, arrival: &str) -> String {
    let path = match mode {
        "baseline" => "baseline: no proxy",
        "clientonly" => "clientonly: one sidecar, at the client",
        "serveronly" => "serveronly: one sidecar, at the server",
        "both" => "both: two sidecars",
        other => other,
    };
    let tls = match (mode, tls) {
        ("baseline", _) => "",
        (_, true) => ", mutual TLS",
        (_, false) => ", plaintext",
    };
    format!("{path}{tls}, {arrival} arrival")
}

/// Text inside HTML or SVG, attribute values included.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Control characters have no place in a page; a terminal escape in a log line would end up here.
            c if c.is_control() && c != '\n' && c != '\t' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_text_stays_text() {
        assert_eq!(
            escape("<svg onload='x'>&\"\u{1b}"),
            "&lt;svg onload=&#39;x&#39;&gt;&amp;&quot;\u{fffd}"
        );
    }

    #[test]
    fn figures_have_as_many_digits_as_they_mean() {
        assert_eq!(
            [micro(1234.56), micro(12.345), micro(1.234), micro(-150.4)],
            ["1235", "12.3", "1.23", "-150"]
        );
        let estimate = Estimate {
            median: 0.5,
            low: Some(0.4),
            high: Some(0.61),
            rounds: 8,
        };
        assert_eq!(interval(&estimate, ratio), "0.50× [0.40–0.61]");
        assert_eq!(
            interval(
                &Estimate {
                    low: None,
                    ..estimate
                },
                ratio
            ),
            "0.50×"
        );
    }
}
