//! Layouts of times: strftime's specifiers as far as they have a meaning in UTC, and Envoy's fractions of seconds.

use std::sync::Arc;

use super::{FormatError, shown};

/// A part of a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimePart {
    /// Text as it stands.
    Text(Arc<str>),
    /// `%Y`.
    Year,
    /// `%y`.
    ShortYear,
    /// `%m`.
    Month,
    /// `%d`.
    Day,
    /// `%e`: padded with a blank.
    DayBlank,
    /// `%j`.
    DayOfYear,
    /// `%H`.
    Hour,
    /// `%M`.
    Minute,
    /// `%S`.
    Second,
    /// `%s`: seconds since 1970.
    Epoch,
    /// `%f`, `%1f` to `%9f`: so many digits of the fraction of a second.
    Fraction(u8),
    /// `%b`.
    MonthName,
    /// `%a`.
    DayName,
    /// `%z`: always `+0000`.
    Offset,
    /// `%Z`: always `UTC`.
    Zone,
}

/// A layout, or the default: RFC 3339 with milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeLayout(Option<Arc<[TimePart]>>);

impl TimeLayout {
    /// RFC 3339 with milliseconds, in UTC.
    pub const DEFAULT: Self = Self(None);

    /// The parts; `None` for the default.
    #[must_use]
    pub fn parts(&self) -> Option<&[TimePart]> {
        self.0.as_deref()
    }

    /// Checks a layout.
    pub(super) fn parse(command: &str, layout: &str) -> Result<Self, FormatError> {
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut letters = layout.chars();
        while let Some(letter) = letters.next() {
            if letter != '%' {
                text.push(letter);
                continue;
            }
            let mut specifier = String::new();
            // One letter, with digits (`%3f`) or Envoy's `E` (`%E3S`) before it.
            for letter in letters.by_ref() {
                specifier.push(letter);
                let before = letter.is_ascii_digit() || (letter == 'E' && specifier.len() == 1);
                if !before {
                    break;
                }
            }
            if specifier == "%" {
                text.push('%');
                continue;
            }
            if !text.is_empty() {
                parts.push(TimePart::Text(std::mem::take(&mut text).into()));
            }
            take(&specifier, &mut parts).ok_or_else(|| {
                let message = format!(
                    "`%{}` is no part of a time in `{command}`",
                    shown(&specifier)
                );
                let help =
                    "%Y %y %m %d %e %j %H %M %S %s %f %3f %E3S %b %a %F %T %D %R %z %Z and %% are";
                FormatError::new(message, help)
            })?;
        }
        if !text.is_empty() {
            parts.push(TimePart::Text(text.into()));
        }
        Ok(Self(Some(parts.into())))
    }
}

fn take(specifier: &str, parts: &mut Vec<TimePart>) -> Option<()> {
    use TimePart::{
        Day, DayBlank, DayName, DayOfYear, Epoch, Fraction, Hour, Minute, Month, MonthName, Offset,
        Second, ShortYear, Year, Zone,
    };
    let text = |text: &str| TimePart::Text(text.into());
    let found: &[TimePart] = match specifier {
        "Y" => &[Year],
        "y" => &[ShortYear],
        "m" => &[Month],
        "d" => &[Day],
        "e" => &[DayBlank],
        "j" => &[DayOfYear],
        "H" => &[Hour],
        "M" => &[Minute],
        "S" => &[Second],
        "s" => &[Epoch],
        "f" => &[Fraction(9)],
        "b" | "h" => &[MonthName],
        "a" => &[DayName],
        "z" => &[Offset],
        "Z" => &[Zone],
        "F" => &[Year, text("-"), Month, text("-"), Day],
        "T" => &[Hour, text(":"), Minute, text(":"), Second],
        "R" => &[Hour, text(":"), Minute],
        "D" => &[Month, text("/"), Day, text("/"), ShortYear],
        "Ez" => &[Offset],
        fraction => return fraction_of(fraction, parts),
    };
    parts.extend_from_slice(found);
    Some(())
}

/// `3f` and `E3S`.
fn fraction_of(specifier: &str, parts: &mut Vec<TimePart>) -> Option<()> {
    let digits = |text: &str| {
        text.parse::<u8>()
            .ok()
            .filter(|digits| (1..=9).contains(digits))
    };
    if let Some(count) = specifier.strip_suffix('f') {
        parts.push(TimePart::Fraction(digits(count)?));
    } else {
        let count = specifier.strip_prefix('E')?.strip_suffix('S')?;
        parts.extend([
            TimePart::Second,
            TimePart::Text(".".into()),
            TimePart::Fraction(digits(count)?),
        ]);
    }
    Some(())
}
