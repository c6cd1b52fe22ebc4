//! Sizes of payloads as isotope reads them (docker's `RAMInBytes`). A unit is a power of 1024 in every spelling, so that `1
//! KB`, `1k` and `1KiB` are all 1024 bytes.

/// Largest payload, in bytes: nothing real is larger, and a mistyped unit must not fill a disk or a day.
pub const MAX_SIZE: u64 = 1 << 30;

const UNITS: [(char, u32); 5] = [('k', 10), ('m', 20), ('g', 30), ('t', 40), ('p', 50)];

/// Reads a size; none when it is not one.
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let number: f64 = number.parse().ok()?;
    let unit = unit.strip_prefix(' ').unwrap_or(unit);
    let shift = match unit {
        "" | "b" => 0,
        _ => {
            let mut letters = unit.chars();
            let first = letters.next()?;
            if !matches!(letters.as_str(), "" | "b" | "i" | "ib") {
                return None;
            }
            UNITS.iter().find(|(letter, _)| *letter == first)?.1
        }
    };
    let bytes = number * (1u64 << shift) as f64;
    (bytes.is_finite() && bytes <= u64::MAX as f64 / 2.0).then_some(bytes as u64)
}

/// Writes a size so that it reads back the same: `128`, `16 KiB`, `1 MiB`.
#[must_use]
pub fn show(bytes: u64) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024_in_every_spelling() {
        for (text, expected) in [
            ("0", Some(0)),
            ("128", Some(128)),
            ("128b", Some(128)),
            ("1 KB", Some(1024)),
            ("1k", Some(1024)),
            ("10K", Some(10240)),
            ("1KiB", Some(1024)),
            ("1Ki", Some(1024)),
            ("1.5 MB", Some(1_572_864)),
            ("1Mi", Some(1 << 20)),
            ("2G", Some(2 << 30)),
            ("", None),
            ("KB", None),
            ("1 X", None),
            ("1 KBs", None),
            ("-1", None),
            ("1e3", None),
            ("1..2", None),
            ("99999999999999P", None),
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_shown_reads_back_the_same() {
        for bytes in [
            0,
            1,
            1023,
            1024,
            1025,
            16384,
            1 << 20,
            (1 << 20) + 1024,
            1 << 30,
        ] {
            assert_eq!(parse(&show(bytes)), Some(bytes), "{}", show(bytes));
        }
    }
}
