//! Medians and intervals over rounds. Pure: the seed is an argument, so a record always gives the same report.
//!
//! The interval of a median (of a figure, or of ratios within rounds) lies between two of the rounds themselves, as far in
//! as 95 % allows. It covers the true median for any distribution of the noise, and needs no resampling. A ratio of two medians
//! is no median of rounds, so its interval is a percentile bootstrap, *expanded* for few rounds. The plain bootstrap is too
//! narrow there: it forgets the √(n/(n−1)) and the t-quantile. Its tail share is therefore lowered to `Φ(−√(n/(n−1)) · t)`
//! (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015). METHODOLOGY.md has the coverage of both by simulation.

use crate::record::Estimate;

/// With fewer rounds no interval is reported: even the least and the greatest of five cover only 93.75 %.
pub const ROUNDS_FOR_INTERVAL: usize = 6;
/// Probability that an interval misses at each end.
const TAIL: f64 = 0.025;
/// Resamples of a bootstrap: enough that the tails used (about 0.5 %) rest on ten resamples or more.
pub const RESAMPLES: usize = 2000;

/// Two-sided 95 % quantiles of Student's t for 5 to 30 degrees of freedom.
const T_975: [f64; 26] = [
    2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
    2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The median; none of nothing.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.to_vec();
    median_in_place(&mut sorted)
}

fn median_in_place(values: &mut [f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    Some(if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    })
}

/// Median over rounds with its interval (none with fewer than [`ROUNDS_FOR_INTERVAL`]). None of nothing.
#[must_use]
pub fn estimate(rounds: &[f64]) -> Option<Estimate> {
    let mut sorted = rounds.to_vec();
    let median = median_in_place(&mut sorted)?;
    let rank = rank(sorted.len());
    Some(Estimate {
        median,
        low: rank.map(|rank| sorted[rank - 1]),
        high: rank.map(|rank| sorted[sorted.len() - rank]),
        rounds: sorted.len() as u32,
    })
}

/// The greatest rank for which the interval from that round to the same from above covers the median at 95 % or more: the
/// number of rounds below the true median is binomial. None where even the first and the last cover less.
fn rank(n: usize) -> Option<usize> {
    let (mut choose, mut below) = (1.0, 0.5f64.powi(n as i32));
    if n < ROUNDS_FOR_INTERVAL {
        return None;
    }
    let mut rank = 1;
    loop {
        choose *= (n - rank + 1) as f64 / rank as f64;
        below += choose * 0.5f64.powi(n as i32);
        if below > TAIL {
            return Some(rank);
        }
        rank += 1;
    }
}

/// The median of the ratios within rounds, with its interval. Rounds in which the divisor is not positive say nothing.
#[must_use]
pub fn paired_ratio(rounds: &[(f64, f64)]) -> Option<Estimate> {
    let ratios: Vec<f64> = rounds
        .iter()
        .filter(|pair| pair.1 > 0.0)
        .map(|pair| pair.0 / pair.1)
        .collect();
    estimate(&ratios)
}

/// The ratio of two medians over the same rounds, resampled together. For differences (added latency), which may be near
/// zero or below in one round, so that ratios within rounds would explode. None when the divisor is not above zero.
#[must_use]
pub fn ratio_of_medians(rounds: &[(f64, f64)], seed: u64) -> Option<Estimate> {
    bootstrap(rounds, seed, |sample, scratch| {
        scratch.clear();
        scratch.extend(sample.iter().map(|pair| pair.1));
        let divisor = median_in_place(scratch).filter(|divisor| *divisor > 0.0)?;
        scratch.clear();
        scratch.extend(sample.iter().map(|pair| pair.0));
        Some(median_in_place(scratch)? / divisor)
    })
}

/// The ratio of the medians of two sets of rounds that were not measured together, each resampled by itself.
#[must_use]
pub fn unpaired_ratio(ours: &[f64], theirs: &[f64], seed: u64) -> Option<Estimate> {
    let fewer = ours.len().min(theirs.len());
    let middle = median(ours)? / median(theirs).filter(|divisor| *divisor > 0.0)?;
    let mut estimate = Estimate {
        median: middle,
        low: None,
        high: None,
        rounds: fewer as u32,
    };
    if fewer < ROUNDS_FOR_INTERVAL {
        return Some(estimate);
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut resampled = |values: &[f64]| {
        let mut sample: Vec<f64> = values
            .iter()
            .map(|_| values[random.usize(..values.len())])
            .collect();
        median_in_place(&mut sample)
    };
    let mut outcomes: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            Some(resampled(ours)? / resampled(theirs).filter(|divisor| *divisor > 0.0)?)
        })
        .collect();
    if outcomes.len() < RESAMPLES {
        return Some(estimate);
    }
    outcomes.sort_unstable_by(f64::total_cmp);
    let tail = tail_share(fewer);
    estimate.low = Some(quantile(&outcomes, tail));
    estimate.high = Some(quantile(&outcomes, 1.0 - tail));
    Some(estimate)
}

fn bootstrap(
    rounds: &[(f64, f64)],
    seed: u64,
    statistic: impl Fn(&[(f64, f64)], &mut Vec<f64>) -> Option<f64>,
) -> Option<Estimate> {
    let mut scratch = Vec::with_capacity(rounds.len());
    let middle = statistic(rounds, &mut scratch)?;
    let mut estimate = Estimate {
        median: middle,
        low: None,
        high: None,
        rounds: rounds.len() as u32,
    };
    if rounds.len() < ROUNDS_FOR_INTERVAL {
        return Some(estimate);
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut sample = rounds.to_vec();
    let mut outcomes = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        for slot in &mut sample {
            *slot = rounds[random.usize(..rounds.len())];
        }
        outcomes.extend(statistic(&sample, &mut scratch));
    }
    // When resamples have no answer (a divisor at zero), neither end can be trusted.
    if outcomes.len() < RESAMPLES {
        return Some(estimate);
    }
    outcomes.sort_unstable_by(f64::total_cmp);
    let tail = tail_share(rounds.len());
    estimate.low = Some(quantile(&outcomes, tail));
    estimate.high = Some(quantile(&outcomes, 1.0 - tail));
    Some(estimate)
}

/// The share of resamples cut off at each end for a 95 % interval over `n` rounds.
fn tail_share(n: usize) -> f64 {
    let t = T_975
        .get(n.saturating_sub(ROUNDS_FOR_INTERVAL))
        .copied()
        .unwrap_or(1.96 + 2.4 / (n as f64 - 1.0));
    normal_below(-(n as f64 / (n as f64 - 1.0)).sqrt() * t)
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

/// Φ by Abramowitz and Stegun 26.2.17 (error below 7.5e-8), for x ≤ 0.
pub(crate) fn normal_below(x: f64) -> f64 {
    let z = x.abs();
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let series = t
        * (0.319_381_53
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt() * series;
    if x <= 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_known() {
        for (values, expected) in [
            (vec![], None),
            (vec![3.0], Some(3.0)),
            (vec![9.0, 1.0], Some(5.0)),
            (vec![5.0, 1.0, 100.0], Some(5.0)),
            (vec![4.0, 1.0, 3.0, 2.0], Some(2.5)),
        ] {
            assert_eq!(median(&values), expected, "{values:?}");
        }
    }

    #[test]
    fn the_normal_distribution_is_known() {
        for (x, expected) in [
            (0.0, 0.5),
            (-1.0, 0.158_655),
            (-1.96, 0.024_998),
            (-2.528, 0.005_736),
            (1.0, 0.841_345),
        ] {
            assert!(
                (normal_below(x) - expected).abs() < 1e-5,
                "{x}: {}",
                normal_below(x)
            );
        }
    }

    #[test]
    fn no_interval_is_told_of_fewer_than_six_rounds() {
        for rounds in 1..=5usize {
            let values: Vec<f64> = (0..rounds).map(|i| i as f64 + 1.0).collect();
            let estimate = estimate(&values).expect("has a median");
            assert_eq!(
                (estimate.low, estimate.high, estimate.rounds),
                (None, None, rounds as u32)
            );
        }
        let estimate = estimate(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).expect("has a median");
        assert_eq!((estimate.low, estimate.high), (Some(1.0), Some(6.0)));
    }

    /// From tables of the binomial distribution (David and Nagaraja, "Order Statistics", 7.1).
    #[test]
    fn an_interval_lies_between_two_rounds_that_cover_at_least_95_percent() {
        for (rounds, expected) in [
            (5, None),
            (6, Some(1)),
            (7, Some(1)),
            (8, Some(1)),
            (9, Some(2)),
            (11, Some(2)),
            (12, Some(3)),
            (15, Some(4)),
            (17, Some(5)),
            (20, Some(6)),
            (23, Some(7)),
            (100, Some(40)),
        ] {
            assert_eq!(rank(rounds), expected, "{rounds} rounds");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_interval_and_constants_have_none_to_speak_of() {
        let pairs = [5.0, 7.0, 4.0, 9.0, 6.0, 5.5, 8.0].map(|value| (value, 5.0));
        assert_eq!(ratio_of_medians(&pairs, 7), ratio_of_medians(&pairs, 7));
        let constant = estimate(&[2.0; 8]).expect("has a median");
        assert_eq!(
            (constant.median, constant.low, constant.high),
            (2.0, Some(2.0), Some(2.0))
        );
    }

    #[test]
    fn ratios_are_paired_within_rounds() {
        // The machine became three times slower half way; within rounds the ratio never moved.
        let rounds: Vec<(f64, f64)> = (0..8)
            .map(|i| if i < 4 { (10.0, 20.0) } else { (30.0, 60.0) })
            .collect();
        let ratio = paired_ratio(&rounds).expect("has a ratio");
        assert_eq!(
            (ratio.median, ratio.low, ratio.high),
            (0.5, Some(0.5), Some(0.5))
        );
        assert_eq!(paired_ratio(&[(1.0, 0.0)]), None);
    }

    #[test]
    fn a_ratio_of_differences_near_zero_is_told_without_interval_or_not_at_all() {
        assert_eq!(ratio_of_medians(&[(1.0, -1.0), (1.0, -2.0)], 1), None);
        let shaky: Vec<(f64, f64)> = [-3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0]
            .map(|d| (1.0, d))
            .to_vec();
        let ratio = ratio_of_medians(&shaky, 1).expect("the divisor's median is 1");
        assert_eq!((ratio.median, ratio.low, ratio.high), (1.0, None, None));
    }

    #[test]
    fn sets_of_different_length_are_compared_without_pairing() {
        let (ours, theirs) = (
            [10.0, 11.0, 9.0, 10.5, 9.5, 10.0, 10.2],
            [20.0, 21.0, 19.0, 20.5, 19.5, 20.0],
        );
        let ratio = unpaired_ratio(&ours, &theirs, 1).expect("has a ratio");
        let (low, high) = (ratio.low.expect("low"), ratio.high.expect("high"));
        assert!(
            ratio.median == 0.5 && low <= 0.5 && (0.5..0.6).contains(&high),
            "{ratio:?}"
        );
        assert_eq!(
            unpaired_ratio(&ours, &theirs[..5], 1).and_then(|r| r.low),
            None
        );
        assert_eq!(unpaired_ratio(&ours, &[0.0; 8], 1), None);
        assert_eq!(unpaired_ratio(&[], &theirs, 1), None);
    }

    /// A noisy slice: log-normal, with now and then a slice that something else on the machine spoiled.
    fn noisy(random: &mut fastrand::Rng, spread: f64) -> f64 {
        let gauss = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let spoiled = if random.f64() < 0.05 { 1.5 } else { 1.0 };
        (gauss * spread).exp() * spoiled
    }

    const EXPERIMENTS: u64 = 400;

    /// Number of alarms in 400 simulated experiments of this many rounds.
    fn alarms(rounds: usize, effect: f64, seed: u64) -> usize {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..EXPERIMENTS)
            .filter(|_| {
                let pairs: Vec<(f64, f64)> = (0..rounds)
                    .map(|_| {
                        let machine = noisy(&mut random, 0.10); // shared by both halves of a round
                        (
                            machine * noisy(&mut random, 0.03) * effect,
                            machine * noisy(&mut random, 0.03),
                        )
                    })
                    .collect();
                excludes(paired_ratio(&pairs), 1.0)
            })
            .count()
    }

    fn excludes(ratio: Option<Estimate>, truth: f64) -> bool {
        let ratio = ratio.expect("has a ratio");
        ratio.low.is_some_and(|low| low > truth) || ratio.high.is_some_and(|high| high < truth)
    }

    #[test]
    fn the_same_contestant_twice_raises_at_most_five_false_alarms_in_a_hundred() {
        for rounds in [6, 8, 9, 12, 16] {
            let alarms = alarms(rounds, 1.0, 42);
            assert!(alarms <= 20, "{rounds} rounds: {alarms} of {EXPERIMENTS}");
        }
    }

    /// Skewed to one side, as a 99th percentile is: an interval by symmetry or by the mean would miss here.
    #[test]
    fn a_skewed_figure_is_covered_in_95_of_100_experiments() {
        let truth = 1.0 + 0.5 * std::f64::consts::LN_2; // median of 1 + an exponential of mean 0.5
        for rounds in [6, 8, 9, 12, 16] {
            let mut random = fastrand::Rng::with_seed(44);
            let misses = (0..EXPERIMENTS)
                .filter(|_| {
                    let values: Vec<f64> = (0..rounds)
                        .map(|_| 1.0 - 0.5 * (1.0 - random.f64()).ln())
                        .collect();
                    excludes(estimate(&values), truth)
                })
                .count();
            assert!(misses <= 20, "{rounds} rounds: {misses} of {EXPERIMENTS}");
        }
    }

    /// Added latency is the difference of two figures, each with a skewed tail. Both added latencies subtract the same baseline.
    #[test]
    fn a_ratio_of_added_latencies_is_covered_in_95_of_100_experiments() {
        for rounds in [8, 12] {
            let mut random = fastrand::Rng::with_seed(45);
            let misses = (0..EXPERIMENTS)
                .filter(|experiment| {
                    let pairs: Vec<(f64, f64)> = (0..rounds)
                        .map(|_| {
                            let mut tail = |mean: f64| mean - 40.0 * (1.0 - random.f64()).ln();
                            let baseline = tail(100.0);
                            (tail(300.0) - baseline, tail(300.0) - baseline)
                        })
                        .collect();
                    excludes(ratio_of_medians(&pairs, *experiment), 1.0)
                })
                .count();
            assert!(misses <= 20, "{rounds} rounds: {misses} of {EXPERIMENTS}");
        }
    }

    #[test]
    fn ten_percent_more_is_detected() {
        for (rounds, least) in [(8, 240), (9, 320), (12, 340), (16, 370)] {
            let alarms = alarms(rounds, 1.10, 43);
            assert!(
                alarms >= least,
                "{rounds} rounds: {alarms} of {EXPERIMENTS}"
            );
        }
    }
}
