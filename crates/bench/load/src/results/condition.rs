//! Bounds on measured figures, in a user's form: `p99<5ms,errors<0.1%`. The capacity search requires them to hold. A run is
//! aborted when a bound written with `>` comes true.

use std::fmt;

use crate::duration::parse_duration;
use crate::samples::Samples;
use crate::units::time;

/// Figure that a bound limits.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Metric {
    /// A quantile of latency, 0…1.
    Quantile(f64),
    Mean,
    Max,
    /// Failed requests, as a fraction of all.
    Errors,
}

/// One bound.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadCondition {
    text: String,
    metric: Metric,
    above: bool,
    /// µs, or a fraction.
    limit: f64,
}

impl LoadCondition {
    /// Reads `p50`, `p99`, `p99.9`, `mean`, `max` with a duration, `errors` with a percentage; several with commas. `sign` is the
    /// sign that the caller allows, `<` or `>`.
    ///
    /// # Errors
    /// Says which bound is wrong and what was expected.
    pub fn parse(text: &str, sign: char) -> Result<Vec<Self>, String> {
        text.split(',')
            .map(|one| Self::one(one.trim(), sign))
            .collect()
    }

    fn one(text: &str, sign: char) -> Result<Self, String> {
        let wrong = || format!("`{text}`: expected such as p99{sign}5ms or errors{sign}0.1%");
        let (name, value) = text.split_once(sign).ok_or_else(wrong)?;
        let (name, value) = (name.trim(), value.trim_start_matches('=').trim());
        let metric = match name {
            "errors" => Metric::Errors,
            "mean" => Metric::Mean,
            "max" => Metric::Max,
            _ => {
                let digits = name.strip_prefix('p').ok_or_else(wrong)?;
                // Records call p99.9 p999.
                let percent = match digits {
                    "999" => Some(99.9),
                    digits => digits.parse::<f64>().ok(),
                };
                let percent = percent.filter(|percent| (0.0..100.0).contains(percent));
                Metric::Quantile(percent.ok_or_else(wrong)? / 100.0)
            }
        };
        let limit = if metric == Metric::Errors {
            let percent = value.strip_suffix('%').ok_or_else(wrong)?;
            let percent = percent.trim().parse::<f64>().ok();
            let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
            percent.ok_or_else(wrong)? / 100.0
        } else {
            parse_duration(value)?.as_secs_f64() * 1e6
        };
        Ok(Self {
            text: text.to_owned(),
            metric,
            above: sign == '>',
            limit,
        })
    }

    /// Reports if the condition is on the share of failures.
    #[must_use]
    pub fn on_errors(&self) -> bool {
        self.metric == Metric::Errors
    }

    /// Tests the condition on the latencies of the requests that were answered as expected, beside which `errors` failed. Returns
    /// the result, and the figure found, in words. Without such a request, no condition on latency is true.
    #[must_use]
    pub fn of(&self, latency: &Samples, errors: u64) -> (bool, String) {
        let (found, words) = match self.metric {
            Metric::Errors => {
                let share = errors as f64 / (latency.count() + errors).max(1) as f64;
                (share, format!("errors {:.3}%", share * 100.0))
            }
            _ if latency.count() == 0 => return (false, "no answer as expected".to_owned()),
            Metric::Mean => shown("mean", latency.summary().mean),
            Metric::Max => shown("max", latency.max_us() as f64),
            Metric::Quantile(at) => {
                let name = format!("p{}", (at * 1e5).round() / 1e3);
                shown(&name, latency.quantile_us(at) as f64)
            }
        };
        let holds = if self.above {
            found > self.limit
        } else {
            found < self.limit
        };
        (holds, words)
    }
}

fn shown(name: &str, us: f64) -> (f64, String) {
    (us, format!("{name} {}", time(us.round() as u64)))
}

impl fmt::Display for LoadCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_and_hold_or_not() {
        let mut samples = Samples::new();
        for ms in 1..=1000 {
            samples.record(ms * 1_000_000);
        }
        for (text, sign, errors, wanted) in [
            ("p50<501ms", '<', 0, true),
            ("p50 < 400ms", '<', 0, false),
            ("p99.9<1010ms", '<', 0, true),
            ("p999<900ms", '<', 0, false),
            ("max<=2s", '<', 0, true),
            ("mean<500ms", '<', 0, false),
            ("errors<1%", '<', 10, true),
            ("errors<1%", '<', 11, false),
            ("errors>1%", '>', 11, true),
            ("p99>2s", '>', 0, false),
        ] {
            let all = LoadCondition::parse(text, sign).expect(text);
            let (holds, words) = all[0].of(&samples, errors);
            assert_eq!(holds, wanted, "{text}: {words}");
        }
        let both = LoadCondition::parse("p99<5ms,errors<0.1%", '<').expect("two");
        let failures_alone: Vec<_> = both.iter().map(|one| one.of(&Samples::new(), 7)).collect();
        assert_eq!(
            failures_alone[0],
            (false, "no answer as expected".to_owned())
        );
        assert_eq!(failures_alone[1], (false, "errors 100.000%".to_owned()));
        for text in [
            "",
            "p99",
            "p99>5ms",
            "p101<1s",
            "errors<5",
            "errors<101%",
            "x<1s",
            "p99<fast",
            "p<1s",
        ] {
            assert!(LoadCondition::parse(text, '<').is_err(), "{text}");
        }
    }
}
