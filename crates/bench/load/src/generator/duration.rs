//! Durations as people write them: `250us`, `2ms`, `1.5s`, `10m`, `1h`, and sequences such as `1m30s`.

use std::time::Duration;

/// The longest accepted: a year; beyond that it is a slip of the pen, and sums of nanoseconds stay in 64 bits.
const MAX_SECONDS: f64 = 366.0 * 86_400.0;

/// Reads a duration. A bare `0` needs no unit.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "`{text}` is not a duration: expected a number and us, ms, s, m or h, such as 2ms or 1m30s"
        )
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut seconds) = (text, 0.0);
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let unit = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        seconds += number
            * match unit {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3_600.0,
                _ => return Err(wrong()),
            };
        rest = tail;
    }
    if seconds > MAX_SECONDS {
        return Err(format!("`{text}` is longer than a year"));
    }
    Ok(Duration::from_nanos((seconds * 1e9).round() as u64))
}
