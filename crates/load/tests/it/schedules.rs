//! Schedules as data.

use voile_load::schedule::Schedule;

const SECOND: u64 = 1_000_000_000;

#[test]
fn even_instants_are_computed_and_do_not_drift() {
    let all: Vec<u64> = Schedule::even(7, 7 + SECOND, 1000.0, 0, 1).collect();
    assert_eq!(all.len(), 1000);
    for (k, at) in all.iter().enumerate() {
        assert_eq!(*at, 7 + k as u64 * 1_000_000);
    }
    let far = Schedule::even(0, 100_000 * SECOND, 3.0, 299_999, 1).next();
    assert_eq!(far, Some(99_999_666_666_666));
}

#[test]
fn shares_of_threads_interleave_to_the_whole_schedule() {
    let whole: Vec<u64> = Schedule::even(5, 5 + SECOND, 700.0, 0, 1).collect();
    let mut shares: Vec<u64> = (0..3)
        .flat_map(|thread| Schedule::even(5, 5 + SECOND, 700.0, thread, 3))
        .collect();
    shares.sort_unstable();
    assert_eq!(shares, whole);
}

#[test]
fn fortio_connections_are_due_at_the_same_instants() {
    // 16 connections at 1000/s: each every 16 ms, all in phase.
    let one: Vec<u64> = Schedule::even(0, SECOND, 1000.0 / 16.0, 0, 1).collect();
    assert_eq!(&one[..3], [0, 16_000_000, 32_000_000]);
    assert_eq!(one.len(), 63);
}

#[test]
fn poisson_gaps_are_seeded_and_exponential() {
    let draw = |seed| Schedule::poisson(0, 100 * SECOND, 1000.0, seed).collect::<Vec<u64>>();
    let one = draw(1);
    assert_eq!(one, draw(1), "the same seed gives the same instants");
    assert_ne!(one, draw(2));
    assert!(one.is_sorted());
    // 100,000 expected, standard deviation 316: these bounds are ten deviations wide, and the seed is fixed.
    assert!((96_800..103_200).contains(&one.len()), "{}", one.len());
    let gaps: Vec<f64> = one
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) as f64)
        .collect();
    let longer_than_mean = gaps.iter().filter(|gap| **gap > 1e6).count() as f64 / gaps.len() as f64;
    assert!(
        (longer_than_mean - (-1.0f64).exp()).abs() < 0.01,
        "{longer_than_mean}"
    );
}

#[test]
fn a_cut_schedule_has_nothing_after_the_cut() {
    let mut schedule = Schedule::even(0, SECOND, 10.0, 0, 1);
    schedule.cut(250_000_000);
    assert_eq!(schedule.clone().count(), 3);
    schedule.cut(SECOND);
    assert_eq!(schedule.count(), 3, "a cut is never undone");
}
