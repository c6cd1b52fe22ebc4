//! An endpoint is chosen for about the same number of instructions among ten and among ten thousand.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use fastrand::Rng;
use voile_traffic::balance::Algorithm;

use crate::balance::Endpoints;

const SUBJECT: &str = "cost::balance::subject";

/// Instructions of this profile in 200 ns, the time promised for a choice; optimized code needs a tenth.
const ENOUGH: u64 = 6_000;

/// Growth in percent from ten endpoints to ten thousand. A sorted or queued structure takes a step more for each
/// doubling.
const GROWTH_PERCENT: u64 = 120;

/// With weights that differ or not. The ring is a small one: ten thousand times two places.
const CASES: [(Algorithm, bool); 7] = [
    (Algorithm::LeastCost, false),
    (Algorithm::LeastCost, true),
    (Algorithm::RoundRobin, false),
    (Algorithm::RoundRobin, true),
    (Algorithm::Random, true),
    (Algorithm::RingHash(8), false),
    (Algorithm::Maglev(65_537), true),
];

const SIZES: [usize; 2] = [10, 10_000];

#[test]
fn an_endpoint_is_chosen_among_ten_thousand_as_cheaply_as_among_ten() {
    let Some(counts) = super::count(SUBJECT, CASES.len() * SIZES.len()) else {
        return;
    };
    let cases = SIZES
        .iter()
        .flat_map(|size| CASES.iter().enumerate().map(move |case| (size, case)));
    let mut few = BTreeMap::new();
    let mut grown = Vec::new();
    for ((size, (number, case)), count) in cases.zip(counts) {
        println!("{case:?} of {size}: {count} instructions");
        let few = *few.entry(number).or_insert(count);
        let bound = match case {
            (Algorithm::RoundRobin, true) | (Algorithm::RingHash(_), _) => ENOUGH,
            _ => (few * GROWTH_PERCENT / 100).min(ENOUGH),
        };
        if count > bound {
            grown.push(format!("{case:?} of {size}: {count}, {bound} were enough"));
        }
    }
    assert!(grown.is_empty(), "{grown:#?}");
}

/// The process that is counted.
#[test]
#[ignore = "the test above runs it under valgrind"]
fn subject() {
    if !super::is_counted() {
        return;
    }
    for size in SIZES {
        for (algorithm, weighted) in CASES {
            let weight = |place: usize| 1 + u32::from(weighted) * (place % 7) as u32;
            let weights: Vec<u32> = (0..size).map(weight).collect();
            let endpoints = Endpoints::new(&weights);
            let mut random = Rng::with_seed(3);
            let mut balancer = endpoints.balancer(algorithm, &mut random);
            super::counted(|| {
                let key = Some(random.u64(..));
                let chosen = balancer.choose(black_box(&endpoints), key, || random.u64(..));
                assert!(chosen.is_some());
            });
        }
    }
}

/// Choices in one timed round, and the number of rounds; their median is printed.
const CHOICES: u32 = 200_000;
const ROUNDS: usize = 11;

/// Prints the time of a choice, for docs/decisions/0026. It checks no bound, since a time depends on the machine,
/// too.
#[test]
#[ignore = "prints nanoseconds, for people: cargo test --release -p voile-traffic --test it -- --ignored --nocapture cost::balance::times"]
fn times() {
    for size in [10, 100, 1_000, 10_000] {
        for (algorithm, weighted) in CASES {
            let weight = |place: usize| 1 + u32::from(weighted) * (place % 7) as u32;
            let weights: Vec<u32> = (0..size).map(weight).collect();
            let mut endpoints = Endpoints::new(&weights);
            let mut random = Rng::with_seed(3);
            let mut now = Duration::from_secs(1);
            for vitals in endpoints.vitals.get_mut() {
                // None is like another, as in a mesh that is at work.
                vitals.observe(Duration::from_micros(random.u64(200..20_000)), now);
                (0..random.u8(..4)).for_each(|_| vitals.begin());
            }
            let mut balancer = endpoints.balancer(algorithm, &mut random);
            let mut round = || {
                let begun = Instant::now();
                for _ in 0..CHOICES {
                    now += Duration::from_micros(50);
                    endpoints.now = now;
                    let key = Some(random.u64(..));
                    let chosen = balancer.choose(black_box(&endpoints), key, || random.u64(..));
                    black_box(chosen);
                }
                begun.elapsed().as_nanos() as f64 / f64::from(CHOICES)
            };
            let mut times: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
            times.sort_by(f64::total_cmp);
            let (least, median, most) = (times[0], times[ROUNDS / 2], times[ROUNDS - 1]);
            let with = if weighted { "weights" } else { "no weights" };
            println!("{algorithm:?}, {with}, of {size}: {median:.0} ns ({least:.0}–{most:.0})");
        }
    }
}
