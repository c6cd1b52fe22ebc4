//! Figures in the units that people read.

/// A time in its own unit, three digits.
pub(crate) fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..10_000 => format!("{:.2} ms", us as f64 / 1e3),
        10_000..100_000 => format!("{:.1} ms", us as f64 / 1e3),
        100_000..1_000_000 => format!("{:.0} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

/// A number with its thousands apart.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate per second: whole from a thousand on.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second < 1_000.0 {
        format!("{per_second:.1}/s")
    } else {
        format!("{}/s", count(per_second.round() as u64))
    }
}

/// A number of bytes, decimal, three digits.
pub(crate) fn bytes(number: f64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if number < 1e3 {
        return format!("{number:.0} B");
    }
    let (mut value, mut unit) = (number / 1e3, 0);
    while value >= 1e3 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    let digits = usize::from(value < 100.0) + usize::from(value < 10.0);
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_units_and_three_digits() {
        let times = [0, 999, 1_234, 12_340, 123_400, 3_000_000];
        let wanted = ["0 µs", "999 µs", "1.23 ms", "12.3 ms", "123 ms", "3.00 s"];
        assert_eq!(times.map(time), wanted);
        let counts = [0, 999, 1_000, 1_234_567];
        assert_eq!(counts.map(count), ["0", "999", "1,000", "1,234,567"]);
        let rates = [0.04, 999.94, 12_345.6];
        assert_eq!(rates.map(rate), ["0.0/s", "999.9/s", "12,346/s"]);
        let sizes = [0.0, 999.0, 1_234.0, 98_765.0, 123e6, 4.5e15];
        let wanted = ["0 B", "999 B", "1.23 kB", "98.8 kB", "123 MB", "4500 TB"];
        assert_eq!(sizes.map(bytes), wanted);
    }
}
