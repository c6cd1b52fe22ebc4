//! Tests by ranks, which hold for any distribution of the noise. Mann and Whitney (1947, exact for few values): is one set of
//! rounds higher than another? Pettitt (1979, by permutation): did a series change somewhere? Holm (1979), and Benjamini and
//! Hochberg (1995): which of many tests may be claimed together?

/// Up to this many values together the distribution is counted out; beyond it is normal to four digits.
const EXACT: usize = 60;
/// Permutations of a series: they give a probability of 0.001 to ± 0.0005.
const PERMUTATIONS: u32 = 4000;

/// Twice the rank of each value, ties sharing theirs, so that ranks stay whole.
fn doubled_ranks(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0; values.len()];
    let mut from = 0;
    while from < order.len() {
        let value = values[order[from]];
        let same = order[from..].iter().take_while(|at| values[**at] == value);
        let to = from + same.count().max(1);
        for at in &order[from..to] {
            ranks[*at] = from + 1 + to;
        }
        from = to;
    }
    ranks
}

/// The probability of ranks of `ours` at least as high as these, if `ours` and `theirs` do not differ (one-sided). 1 where
/// one of them is empty.
#[must_use]
pub fn higher(ours: &[f64], theirs: &[f64]) -> f64 {
    let (m, n) = (ours.len(), theirs.len());
    if m == 0 || n == 0 {
        return 1.0;
    }
    let all: Vec<f64> = ours.iter().chain(theirs).copied().collect();
    let ranks = doubled_ranks(&all);
    let seen: usize = ranks[..m].iter().sum();
    if m + n <= EXACT {
        exact(&ranks, m, seen)
    } else {
        normal(&ranks, m, seen)
    }
}

/// The share of all choices of `m` ranks whose sum is at least `seen`.
fn exact(ranks: &[usize], m: usize, seen: usize) -> f64 {
    let most: usize = ranks.iter().sum();
    // ways[k][s]: choices of k ranks with sum s.
    let mut ways = vec![vec![0.0f64; most + 1]; m + 1];
    ways[0][0] = 1.0;
    for (done, rank) in ranks.iter().enumerate() {
        for k in (1..=m.min(done + 1)).rev() {
            let (fewer, more) = ways.split_at_mut(k);
            let (fewer, more) = (&fewer[k - 1], &mut more[0]);
            for sum in (*rank..=most).rev() {
                more[sum] += fewer[sum - rank];
            }
        }
    }
    let all: f64 = ways[m].iter().sum();
    let beyond: f64 = ways[m][seen.min(most)..].iter().sum();
    beyond / all
}

fn normal(ranks: &[usize], m: usize, seen: usize) -> f64 {
    let count = ranks.len() as f64;
    let (m, n) = (m as f64, count - m as f64);
    let mean = ranks.iter().sum::<usize>() as f64 / count;
    let spread = ranks
        .iter()
        .map(|rank| (*rank as f64 - mean).powi(2))
        .sum::<f64>();
    let variance = m * n / (count * (count - 1.0)) * spread;
    if variance <= 0.0 {
        return 1.0;
    }
    // Half a step towards the middle: the sum is whole, in steps of two.
    let z = (seen as f64 - 1.0 - m * mean) / variance.sqrt();
    crate::statistics::normal_below(-z)
}

/// Most likely change of a series, and the chance of a change as great in a shuffled series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// The first value after the change.
    pub at: usize,
    /// The share of shuffled series that change as much.
    pub chance: f64,
}

/// The one most likely change of a series; none of fewer than four values.
#[must_use]
pub fn change(values: &[f64], seed: u64) -> Option<Change> {
    if values.len() < 4 {
        return None;
    }
    let ranks: Vec<i64> = doubled_ranks(values)
        .into_iter()
        .map(|rank| rank as i64)
        .collect();
    let (at, seen) = greatest(&ranks);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut shuffled = ranks;
    let mut as_great = 0;
    for _ in 0..PERMUTATIONS {
        random.shuffle(&mut shuffled);
        as_great += u32::from(greatest(&shuffled).1 >= seen);
    }
    Some(Change {
        at,
        chance: f64::from(as_great + 1) / f64::from(PERMUTATIONS + 1),
    })
}

/// Pettitt's statistic: the greatest distance of the running sum of ranks from its expected value without a change.
fn greatest(ranks: &[i64]) -> (usize, i64) {
    let average = ranks.len() as i64 + 1;
    let (mut sum, mut best) = (0, (0, -1));
    for (at, rank) in ranks.iter().enumerate().take(ranks.len() - 1) {
        sum += rank - average;
        if sum.abs() > best.1 {
            best = (at + 1, sum.abs());
        }
    }
    best
}

/// Selects the probabilities that may be called proven together, so that with `level` none of all is wrong (Holm).
#[must_use]
pub fn proven_together(chances: &[f64], level: f64) -> Vec<bool> {
    step(chances, |rank, count| level / (count - rank) as f64, true)
}

/// Selects the probabilities that may be reported, so that the share `level` of the reported ones is wrong (Benjamini and
/// Hochberg).
#[must_use]
pub fn discovered(chances: &[f64], level: f64) -> Vec<bool> {
    step(
        chances,
        |rank, count| level * (rank + 1) as f64 / count as f64,
        false,
    )
}

/// Goes through the chances from the least: Holm stops at the first that fails, Benjamini and Hochberg take the last that holds.
fn step(chances: &[f64], bound: impl Fn(usize, usize) -> f64, stop_at_first: bool) -> Vec<bool> {
    let mut order: Vec<usize> = (0..chances.len()).collect();
    order.sort_by(|a, b| chances[*a].total_cmp(&chances[*b]));
    let holds = |(rank, at): (usize, &usize)| chances[*at] <= bound(rank, chances.len());
    let told = if stop_at_first {
        order
            .iter()
            .enumerate()
            .take_while(|each| holds(*each))
            .count()
    } else {
        let last = order.iter().enumerate().rfind(|each| holds(*each));
        last.map_or(0, |(rank, _)| rank + 1)
    };
    let mut told_of = vec![false; chances.len()];
    for at in &order[..told] {
        told_of[*at] = true;
    }
    told_of
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From tables (Hollander and Wolfe, "Nonparametric Statistical Methods", A.6), and by counting.
    #[test]
    fn probabilities_are_known() {
        for (ours, theirs, expected) in [
            (vec![4.0, 5.0, 6.0], vec![1.0, 2.0, 3.0], 0.05),
            (vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0], 1.0),
            (vec![3.0, 5.0, 6.0], vec![1.0, 2.0, 4.0], 0.10),
            (vec![1.0; 4], vec![1.0; 5], 1.0),
            (vec![], vec![1.0], 1.0),
            (
                (9..=16).map(f64::from).collect(),
                (1..=8).map(f64::from).collect(),
                1.0 / 12870.0,
            ),
        ] {
            let chance = higher(&ours, &theirs);
            assert!(
                (chance - expected).abs() < 1e-9,
                "{ours:?} {theirs:?}: {chance}"
            );
        }
    }

    #[test]
    fn the_normal_distribution_goes_on_where_counting_ends() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20 {
            let mut some = |count: usize| -> Vec<f64> {
                (0..count).map(|_| (random.f64() * 40.0).floor()).collect()
            };
            let (ours, theirs) = (some(28), some(28));
            let all: Vec<f64> = ours.iter().chain(&theirs).copied().collect();
            let ranks = doubled_ranks(&all);
            let seen = ranks[..28].iter().sum();
            let (exact, normal) = (exact(&ranks, 28, seen), normal(&ranks, 28, seen));
            assert!((exact - normal).abs() < 0.01, "{exact} {normal}");
        }
    }

    #[test]
    fn many_tests_together_are_held_to_more() {
        let chances = [0.001, 0.02, 0.04, 0.9];
        assert_eq!(proven_together(&chances, 0.05), [true, false, false, false]);
        assert_eq!(discovered(&chances, 0.05), [true, true, false, false]);
        assert_eq!(discovered(&[0.9, 0.04], 0.05), [false, false]);
        assert_eq!(proven_together(&[], 0.05), Vec::<bool>::new());
    }

    #[test]
    fn a_step_is_found_where_it_is() {
        let values: Vec<f64> = (0..14)
            .map(|i| if i < 6 { 10.0 } else { 12.0 } + f64::from(i % 3) / 10.0)
            .collect();
        let found = change(&values, 1).expect("long enough");
        assert_eq!(found.at, 6);
        assert!(found.chance < 0.01, "{found:?}");
        assert_eq!(change(&[1.0, 2.0, 3.0], 1), None);
        let same = change(&[5.0; 9], 1).expect("long enough");
        assert!(same.chance > 0.99, "{same:?}");
    }
}
