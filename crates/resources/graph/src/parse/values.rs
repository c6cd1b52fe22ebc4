//! Values with units: sizes, shares, durations, bounded numbers. Each says what would be right.

use std::time::Duration;

use voile_model::codes;
use voile_model::reading::Cursor;

use crate::model::{Memory, Probability};
use crate::size::{self, MAX_SIZE};

/// A size in bytes, with or without a unit.
pub(super) fn size(cursor: &Cursor<'_>) -> Option<u64> {
    let text = cursor.raw()?;
    let help =
        "a number of bytes such as 128, or with a unit such as 10 KB or 1MiB (powers of 1024)";
    let bytes = cursor.report().parsed(&text, "a size", size::parse, help)?;
    if bytes > MAX_SIZE {
        let message = format!("{bytes} bytes are more than the {MAX_SIZE} allowed");
        cursor
            .report()
            .error(codes::BAD_VALUE, &text.at, message, "");
        return None;
    }
    Some(bytes)
}

/// `0.1%`, or a number from 0 to 1.
pub(super) fn share(cursor: &Cursor<'_>) -> Option<Probability> {
    let text = cursor.raw()?;
    let help = "a percentage such as 0.1%, or a number from 0 to 1";
    cursor.report().parsed(&text, "a share", parse_share, help)
}

/// Reads `0.1%`, or a number from 0 to 1; none when it is neither.
#[must_use]
pub fn parse_share(text: &str) -> Option<Probability> {
    let (number, hundred) = match text.strip_suffix('%') {
        Some(number) => (number.trim_end(), 100.0),
        None => (text, 1.0),
    };
    // Rust reads `inf`, `+1` and the like; a share is digits.
    let plain = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '-');
    if !number.chars().all(plain) {
        return None;
    }
    Probability::new(number.parse::<f64>().ok()? / hundred)
}

/// A size, or a percentage of the process's cgroup limit.
pub(super) fn memory(cursor: &Cursor<'_>) -> Option<Memory> {
    let text = cursor.raw()?;
    if text.value.contains('%') {
        return share(cursor).map(Memory::OfLimit);
    }
    size(cursor).map(Memory::Bytes)
}

/// Probability of a call: isotope's whole number of percent from 1 to 100, or a percentage.
pub(super) fn probability(cursor: &Cursor<'_>) -> Option<Probability> {
    let text = cursor.raw()?;
    let report = cursor.report();
    let parse = |text: &str| match text.contains('%') {
        true => parse_share(text).filter(|share| *share != Probability::NONE),
        false => {
            let percent: u32 = text.parse().ok()?;
            (1..=100)
                .contains(&percent)
                .then(|| Probability::new(f64::from(percent) / 100.0))?
        }
    };
    let help = match &*text.value {
        "0" => "isotope takes 0 for always: write 100, or remove the call",
        _ => "a whole number of percent from 1 to 100, or a percentage such as 0.5%",
    };
    report.parsed(&text, "a probability", parse, help)
}

/// A duration of at most so long.
pub(super) fn duration(cursor: &Cursor<'_>, most: Duration) -> Option<Duration> {
    let text = cursor.text()?;
    let duration = cursor.report().duration(&text)?;
    if duration > most {
        let message = format!("{duration:?} is longer than the {most:?} allowed");
        cursor
            .report()
            .error(codes::BAD_VALUE, &text.at, message, "");
        return None;
    }
    Some(duration)
}

/// A whole number within bounds.
pub(super) fn integer(cursor: &Cursor<'_>, least: u32, most: u32, help: &str) -> Option<u32> {
    let number = cursor.integer()?;
    let fits = u32::try_from(number.value).ok();
    let fits = fits.filter(|number| (least..=most).contains(number));
    if fits.is_none() {
        let message = format!(
            "{} is not allowed: expected {least} to {most}",
            number.value
        );
        cursor
            .report()
            .error(codes::BAD_VALUE, &number.at, message, help);
    }
    fits
}
