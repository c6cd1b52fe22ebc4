//! An objective, and the cheapest data plane that holds it.

use serde::Serialize;

use crate::features::{Choice, DataPlane};
use crate::lookup::Figure;
use crate::predict::{Costs, Forecast};

/// A limited figure of the whole graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limited {
    /// Cores.
    Cpu,
    /// Bytes.
    Memory,
    /// Microseconds.
    P50,
    /// Microseconds.
    P90,
    /// Microseconds.
    P99,
}

/// Upper bounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Budget {
    /// Each figure with its bound.
    pub bounds: Vec<(Limited, f64)>,
}

/// Outcome of a budget for one forecast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Held {
    /// Also the upper ends of all intervals are within it, and no figure is extrapolated.
    Yes,
    /// The values are within it; an upper end is not, or a figure is extrapolated or has no interval.
    Perhaps,
    /// A value is beyond it, or is not known.
    No,
}

impl Budget {
    /// Reads `cpu=2,memory=512MiB,p99=20ms`.
    ///
    /// # Errors
    /// With the part that is wrong, and the cure.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).map(|part| {
            let (name, bound) = part
                .split_once('=')
                .ok_or_else(|| wrong(part, "FIGURE=BOUND"))?;
            let (limited, bound) = match name {
                "cpu" => (Limited::Cpu, number(bound)),
                "memory" => (
                    Limited::Memory,
                    voile_graph::size::parse(bound).map(|bytes| bytes as f64),
                ),
                "p50" => (Limited::P50, microseconds(bound)),
                "p90" => (Limited::P90, microseconds(bound)),
                "p99" => (Limited::P99, microseconds(bound)),
                _ => return Err(wrong(part, "one of cpu, memory, p50, p90, p99")),
            };
            let bound = bound.filter(|bound| *bound > 0.0);
            let bound = bound.ok_or_else(|| wrong(part, "cpu=2, memory=512MiB or p99=20ms"))?;
            Ok((limited, bound))
        });
        let bounds = parts.collect::<Result<_, String>>()?;
        Ok(Self { bounds })
    }

    /// Judges a forecast.
    #[must_use]
    pub fn judge(&self, total: &Costs) -> Held {
        let held = self
            .bounds
            .iter()
            .map(|(limited, bound)| match figure(total, *limited) {
                Some(figure) if figure.value > *bound => Held::No,
                Some(figure)
                    if figure.extrapolated.is_empty()
                        && figure.high.is_some_and(|high| high <= *bound) =>
                {
                    Held::Yes
                }
                Some(_) => Held::Perhaps,
                None => Held::No,
            });
        let all: Vec<Held> = held.collect();
        match () {
            () if all.contains(&Held::No) => Held::No,
            () if all.contains(&Held::Perhaps) => Held::Perhaps,
            () => Held::Yes,
        }
    }
}

/// The choices that carry what was asked for: the same features on each data plane, mutual TLS only if it was asked for or is
/// always there.
#[must_use]
pub fn candidates(wanted: &Choice) -> Vec<Choice> {
    let secure = matches!(
        wanted.plane,
        DataPlane::MutualTls | DataPlane::Node | DataPlane::Waypoint
    );
    let planes = DataPlane::ALL.into_iter().filter(|plane| match plane {
        DataPlane::None => wanted.plane == DataPlane::None,
        DataPlane::Sidecar => !secure,
        _ => true,
    });
    planes.filter_map(|plane| wanted.on(plane).ok()).collect()
}

/// The cheapest forecast that holds a budget, by cores and then by memory: first of those that hold it surely.
#[must_use]
pub fn cheapest<'a>(budget: &Budget, forecasts: &'a [Forecast]) -> Option<&'a Forecast> {
    let of = |wanted: Held| {
        let all = forecasts
            .iter()
            .filter(move |one| budget.judge(&one.total) == wanted);
        all.min_by(|one, other| {
            let cost = |one: &Forecast| (one.total.vcpu.value, one.total.memory_bytes.value);
            let (one, other) = (cost(one), cost(other));
            one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
        })
    };
    of(Held::Yes).or_else(|| of(Held::Perhaps))
}

fn figure(total: &Costs, limited: Limited) -> Option<&Figure> {
    match limited {
        Limited::Cpu => Some(&total.vcpu),
        Limited::Memory => Some(&total.memory_bytes),
        Limited::P50 => total.p50_us.as_ref(),
        Limited::P90 => total.p90_us.as_ref(),
        Limited::P99 => total.p99_us.as_ref(),
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

fn microseconds(text: &str) -> Option<f64> {
    for (unit, factor) in [("us", 1.0), ("µs", 1.0), ("ms", 1e3), ("s", 1e6)] {
        if let Some(digits) = text.strip_suffix(unit) {
            return number(digits).map(|time| time * factor);
        }
    }
    None
}

fn wrong(part: &str, cure: &str) -> String {
    format!("`{part}` is no bound; cure: {cure}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::Axis;

    fn forecast(vcpu: f64, p99: f64) -> Forecast {
        let known = |value: f64| Figure {
            value,
            low: Some(value * 0.9),
            high: Some(value * 1.1),
            ..Figure::default()
        };
        Forecast {
            with: format!("{vcpu}"),
            rate: 1.0,
            services: Vec::new(),
            total: Costs {
                vcpu: known(vcpu),
                memory_bytes: known(1e6),
                p50_us: None,
                p90_us: None,
                p99_us: Some(known(p99)),
            },
            notes: Vec::new(),
        }
    }

    #[test]
    fn bounds_are_read_or_refused_with_their_cure() {
        let budget = Budget::parse("cpu=2, memory=512MiB,p99=20ms").expect("a budget");
        assert_eq!(
            budget.bounds,
            [
                (Limited::Cpu, 2.0),
                (Limited::Memory, 536_870_912.0),
                (Limited::P99, 20_000.0)
            ]
        );
        for (text, words) in [
            ("", "FIGURE=BOUND"),
            ("cpu", "FIGURE=BOUND"),
            ("cost=2", "one of cpu"),
            ("p99=20", "p99=20ms"),
            ("cpu=-1", "cpu=2"),
            ("memory=many", "memory=512MiB"),
        ] {
            let why = Budget::parse(text).expect_err(text);
            assert!(why.contains(words), "{text}: {why}");
        }
    }

    #[test]
    fn the_cheapest_that_surely_holds_comes_before_a_cheaper_that_perhaps_does() {
        let budget = Budget::parse("cpu=4,p99=10ms").expect("a budget");
        let all = [
            forecast(1.0, 20_000.0),
            forecast(2.0, 9500.0),
            forecast(3.0, 5000.0),
            forecast(3.5, 1000.0),
        ];
        let held: Vec<Held> = all.iter().map(|one| budget.judge(&one.total)).collect();
        assert_eq!(held, [Held::No, Held::Perhaps, Held::Yes, Held::Yes]);
        assert_eq!(cheapest(&budget, &all).map(|one| &*one.with), Some("3"));
        assert_eq!(
            cheapest(&budget, &all[..2]).map(|one| &*one.with),
            Some("2")
        );
        assert_eq!(cheapest(&budget, &all[..1]), None);
    }

    #[test]
    fn an_extrapolated_figure_holds_a_budget_perhaps() {
        let budget = Budget::parse("cpu=4").expect("a budget");
        let mut total = forecast(1.0, 1.0).total;
        assert_eq!(budget.judge(&total), Held::Yes);
        total.vcpu.extrapolated.insert(Axis::Rate);
        assert_eq!(budget.judge(&total), Held::Perhaps);
    }

    #[test]
    fn candidates_carry_what_was_asked_for() {
        for (wanted, expected) in [
            ("none", "none; sidecar; sidecar,mtls; node; node,waypoint"),
            ("mtls", "sidecar,mtls; node; node,waypoint"),
            (
                "mtls,policies",
                "sidecar,mtls,policies; node,waypoint,policies",
            ),
        ] {
            let choices = candidates(&Choice::parse(wanted).expect("a choice"));
            let shown: Vec<String> = choices.iter().map(Choice::to_string).collect();
            assert_eq!(shown.join("; "), expected);
        }
    }
}
