//! Text of figures for people: few digits, units, intervals; and escaping for HTML.

use crate::record::{CellKey, Estimate, ValueKind};

/// Microseconds (the unit stands in the heading).
#[must_use]
pub fn micro(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Microseconds, written with their unit: µs below a thousand, then ms, then s.
#[must_use]
pub fn duration(us: f64) -> String {
    let digits = |value: f64| match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    match us.abs() {
        v if v < 999.5 => format!("{} µs", digits(us)),
        v if v < 999_500.0 => format!("{} ms", digits(us / 1e3)),
        _ => format!("{} s", digits(us / 1e6)),
    }
}

/// Bytes, in MiB.
#[must_use]
pub fn bytes(value: f64) -> String {
    format!("{:.1} MiB", value / (1024.0 * 1024.0))
}

/// Bytes, with the unit that suits them.
#[must_use]
pub fn small_bytes(value: f64) -> String {
    match value.abs() {
        v if v < 1024.0 => format!("{value:.0} B"),
        v if v < 1024.0 * 1024.0 => format!("{:.1} KiB", value / 1024.0),
        _ => bytes(value),
    }
}

/// A share of a core, in percent.
#[must_use]
pub fn core_share(value: f64) -> String {
    match value * 100.0 {
        v if v.abs() >= 1.0 => format!("{v:.1} %"),
        v => format!("{v:.4} %"),
    }
}

/// Cores' worth of CPU.
#[must_use]
pub fn cores(value: f64) -> String {
    match value.abs() {
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// So many per second.
#[must_use]
pub fn per_second(value: f64) -> String {
    format!("{value:.0}/s")
}

/// Gigabits per second.
#[must_use]
pub fn gigabits(value: f64) -> String {
    format!("{value:.2} Gbit/s")
}

/// Name and formatter of a figure.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Formatter of a value.
    pub show: fn(f64) -> String,
    /// Name of the figure.
    pub words: String,
}

/// Roles of proxies in names of figures, and their words.
const PROXIES: [(&str, &str); 7] = [
    ("sidecar", " per proxy"),
    ("client-sidecar", " of the client's sidecar"),
    ("server-sidecar", " of the server's sidecar"),
    ("client-node", " of the client's node proxy"),
    ("server-node", " of the server's node proxy"),
    ("waypoint", " of the waypoint"),
    ("gateway", " of the gateway"),
];

/// Name and formatter of the figure of that name.
#[must_use]
pub fn unit(figure: &str) -> Unit {
    let (whose, name) = match figure.split_once('.') {
        Some((whose, name)) if PROXIES.iter().any(|(role, _)| *role == whose) => (whose, name),
        _ => ("", figure),
    };
    let of_each = PROXIES.iter().find(|(role, _)| *role == whose);
    let of_each = of_each.map_or("", |(_, words)| *words);
    let (words, show): (&str, fn(f64) -> String) = match name {
        "cpu_us_per_request" => ("CPU per request", duration),
        "vcpu" => ("cores used", cores),
        "machine_cpu_us_per_request" => ("machine CPU per request", duration),
        "machine_cpu_less_load_server_us_per_request" => (
            "machine CPU per request less generator and server",
            duration,
        ),
        "added_us.p50" => ("added p50", duration),
        "added_us.p90" => ("added p90", duration),
        "added_us.p99" => ("added p99", duration),
        "latency_us.p50" => ("p50", duration),
        "latency_us.p90" => ("p90", duration),
        "latency_us.p99" => ("p99", duration),
        "latency_us.p999" => ("p99.9", duration),
        "achieved_rps" => ("requests per second", per_second),
        "gigabits_per_second" => ("throughput", gigabits),
        "gigabits_per_core" => ("throughput per core of the proxies", gigabits),
        "rss_bytes" => ("RSS", bytes),
        "pss_bytes" => ("PSS", bytes),
        "anonymous_bytes" => ("anonymous memory", bytes),
        "idle_cpu" => ("CPU doing nothing", core_share),
        "bytes_per_connection" => ("bytes per connection (PSS)", small_bytes),
        "anonymous_bytes_per_connection" => ("anonymous bytes per connection", small_bytes),
        "idle_rss_bytes" => ("RSS when started", bytes),
        "idle_pss_bytes" => ("PSS when started", bytes),
        "idle_anonymous_bytes" => ("anonymous memory when started", bytes),
        other => (other, micro),
    };
    Unit {
        show,
        words: format!("{words}{of_each}"),
    }
}

/// A ratio.
#[must_use]
pub fn ratio(value: f64) -> String {
    format!("{value:.2}×")
}

/// `median [low–high]`, or the median alone.
#[must_use]
pub fn interval(estimate: &Estimate, show: fn(f64) -> String) -> String {
    let middle = show(estimate.median);
    match range(estimate, show) {
        Some(range) => format!("{middle} [{range}]"),
        None => middle,
    }
}

/// `low–high`; their unit is left out where it is the median's.
#[must_use]
pub fn range(estimate: &Estimate, show: fn(f64) -> String) -> Option<String> {
    let middle = show(estimate.median);
    let (low, high) = (show(estimate.low?), show(estimate.high?));
    let unit = middle.trim_start_matches(|c: char| !c.is_alphabetic() && !"×/%".contains(c));
    if !low.ends_with(unit) || !high.ends_with(unit) {
        return Some(format!("{low}–{high}"));
    }
    let plain = |text: &str| {
        let number = text.strip_suffix(unit).unwrap_or(text);
        number.trim_end().to_owned()
    };
    Some(format!("{}–{}", plain(&low), plain(&high)))
}

/// A cell's path and load as a heading.
#[must_use]
pub fn title(cell: &CellKey) -> String {
    format!("{}, {}", path_title(&cell.mode, cell.tls), load_title(cell))
}

impl std::fmt::Display for CellKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let load = load_title(self);
        if self.is_baseline() {
            return write!(f, "baseline, {load}");
        }
        let tls = if self.tls { "mutual TLS" } else { "plaintext" };
        write!(f, "{} {} {tls}, {load}", self.contestant, self.mode)
    }
}

/// Title of a path: the proxies that requests pass.
#[must_use]
pub fn path_title(mode: &str, tls: bool) -> String {
    let path = match mode {
        "baseline" => "baseline: no proxy",
        "clientonly" => "clientonly: one sidecar, at the client",
        "serveronly" => "serveronly: one sidecar, at the server",
        "both" => "both: two sidecars",
        "node" => "node: two node proxies",
        "node+waypoint" => "node+waypoint: two node proxies, a waypoint between them",
        "gateway" => "gateway: one, before the server",
        other => other,
    };
    let tls = match (mode, tls) {
        ("baseline", _) => "",
        (_, true) => ", mutual TLS",
        (_, false) => ", plaintext",
    };
    format!("{path}{tls}")
}

/// A protocol as people call it.
#[must_use]
pub fn protocol(name: &str) -> &str {
    match name {
        "http1" => "HTTP/1.1",
        "http2" => "HTTP/2",
        "grpc" => "gRPC unary",
        "tcp" => "TCP",
        other => other,
    }
}

/// The load of a cell: `HTTP/1.1, 1000/s over 16 connections, uniform arrival`.
#[must_use]
pub fn load_title(cell: &CellKey) -> String {
    let protocol = protocol(&cell.protocol);
    let over = match cell.connections {
        1 => "1 connection".to_owned(),
        many => format!("{many} connections"),
    };
    let load = match cell.kind {
        ValueKind::Latency => format!(
            "{protocol}, {}/s over {over}, {} arrival",
            cell.rate, cell.arrival
        ),
        ValueKind::Saturation => format!("{protocol}, as many as go over {over}"),
        ValueKind::Bulk => format!("{protocol}, bytes as fast as they go over {over}"),
        ValueKind::Idle if cell.connections == 0 => "started and left alone".to_owned(),
        ValueKind::Idle => format!("{over} of {protocol} that say nothing"),
    };
    if cell.shape.is_plain() {
        load
    } else {
        format!("{load}, {}", cell.shape)
    }
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
    fn an_intervals_unit_is_told_once_where_all_three_have_it() {
        type Show = fn(f64) -> String;
        let cases: [(Show, [f64; 3], &str); 5] = [
            (duration, [29.7, 29.3, 30.0], "29.7 µs [29.3–30.0]"),
            (duration, [371.0, 165.0, 2150.0], "371 µs [165 µs–2.15 ms]"),
            (
                per_second,
                [49299.0, 44507.0, 50543.0],
                "49299/s [44507–50543]",
            ),
            (core_share, [0.0, 0.0, 0.00002], "0.0000 % [0.0000–0.0020]"),
            (ratio, [0.86, 0.78, 0.88], "0.86× [0.78–0.88]"),
        ];
        for (show, [median, low, high], words) in cases {
            let estimate = Estimate {
                median,
                low: Some(low),
                high: Some(high),
                ..Estimate::default()
            };
            assert_eq!(interval(&estimate, show), words);
        }
    }

    #[test]
    fn markup_in_text_stays_text() {
        assert_eq!(
            escape("<svg onload='x'>&\"\u{1b}"),
            "&lt;svg onload=&#39;x&#39;&gt;&amp;&quot;\u{fffd}"
        );
    }

    #[test]
    fn durations_carry_their_unit() {
        for (us, text) in [
            (0.0, "0.00 µs"),
            (42.36, "42.4 µs"),
            (-150.4, "-150 µs"),
            (999.4, "999 µs"),
            (999.6, "1.00 ms"),
            (2104.0, "2.10 ms"),
            (150_000.0, "150 ms"),
            (1_500_000.0, "1.50 s"),
        ] {
            assert_eq!(duration(us), text);
        }
        let over = |median, low, high| Estimate {
            median,
            low: Some(low),
            high: Some(high),
            rounds: 8,
        };
        assert_eq!(
            interval(&over(2104.0, 2050.0, 2200.0), duration),
            "2.10 ms [2.05–2.20]"
        );
        assert_eq!(
            interval(&over(1004.0, 950.0, 1100.0), duration),
            "1.00 ms [950 µs–1.10 ms]"
        );
        assert_eq!(interval(&over(3e6, 2e6, 4e6), bytes), "2.9 MiB [1.9–3.8]");
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
