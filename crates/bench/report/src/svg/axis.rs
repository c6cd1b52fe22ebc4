//! Axes: steps that people count in, and where a value lies between two ends.

use super::lines::Scale;

/// Axis of a plot: maps values to positions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    scale: Scale,
}

impl Axis {
    /// From the least to the greatest, a linear one from zero.
    pub(super) fn of(values: impl Iterator<Item = f64> + Clone, scale: Scale) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let most = values.fold(f64::NEG_INFINITY, f64::max);
        if !least.is_finite() || !most.is_finite() {
            return Self {
                low: 0.0,
                high: 1.0,
                scale: Scale::Linear,
            };
        }
        match scale {
            Scale::Linear => {
                let low = least.min(0.0);
                let high = if most > low { most } else { low + 1.0 };
                // Room above the highest, so that nothing touches the frame.
                let room = (high - low) * 0.06;
                let low = if low < 0.0 { low - room } else { low };
                Self {
                    low,
                    high: high + room,
                    scale,
                }
            }
            Scale::Log => {
                let least = least.max(1e-3).log10();
                let most = most.max(1e-3).log10().max(least + 0.1);
                let room = (most - least) * 0.06;
                Self {
                    low: least - room,
                    high: most + room,
                    scale,
                }
            }
        }
    }

    /// 0 at the low end, 1 at the high end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(1e-3).log10(),
        };
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// About five round values.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let ticks = match self.scale {
            Scale::Linear => return even_ticks(self.low, self.high),
            Scale::Log => log_ticks(self.low, self.high),
        };
        // Between two neighbours of 1, 2, 5 lies no other of them: even steps say more there.
        if ticks.len() > 1 {
            return ticks;
        }
        even_ticks(10f64.powf(self.low), 10f64.powf(self.high))
    }
}

fn even_ticks(low: f64, high: f64) -> Vec<f64> {
    let step = step((high - low) / 4.0);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last).map(|at| at as f64 * step).collect()
}

/// 1, 2 or 5 times a power of ten, not below.
fn step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0];
    let times = times
        .into_iter()
        .find(|times| times * power >= least * 0.999);
    times.unwrap_or(10.0) * power
}

/// 1, 2 and 5 times each power of ten between the two logarithms, fewer where that is too many.
pub(super) fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let all = (-3..10).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)));
    let mut ticks: Vec<f64> = all
        .filter(|value| (low..=high).contains(&value.log10()))
        .collect();
    if ticks.len() > 7 {
        ticks.retain(|value| value.log10().fract().abs() < 1e-9);
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        for (values, scale, expected) in [
            (vec![0.0, 4.1], Scale::Linear, vec![0.0, 2.0, 4.0]),
            (vec![100.0, 900.0], Scale::Linear, vec![0.0, 500.0]),
            (
                vec![10.0, 1000.0],
                Scale::Log,
                vec![10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0],
            ),
            (vec![110.0, 150.0], Scale::Log, vec![120.0, 140.0]),
            (vec![-1.0, 1.0], Scale::Linear, vec![-1.0, 0.0, 1.0]),
        ] {
            let axis = Axis::of(values.iter().copied(), scale);
            assert_eq!(axis.ticks(), expected, "{values:?}");
            assert!(
                expected
                    .iter()
                    .all(|tick| (0.0..=1.0).contains(&axis.at(*tick)))
            );
        }
    }

    #[test]
    fn an_axis_of_nothing_or_of_one_value_is_an_axis() {
        for values in [vec![], vec![5.0], vec![0.0], vec![f64::NAN]] {
            for scale in [Scale::Linear, Scale::Log] {
                let axis = Axis::of(values.iter().copied(), scale);
                assert!(axis.at(5.0).is_finite(), "{values:?}");
            }
        }
    }
}
