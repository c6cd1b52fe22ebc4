//! A route is chosen for the same number of instructions among one and among ten thousand.

use std::collections::BTreeMap;
use std::env;
use std::hint::black_box;
use std::time::Instant;

use fastrand::Rng;
use voile_traffic::route::{Match, RouteTable};

use crate::routes::route;
use crate::sent::Sent;

const SUBJECT: &str = "cost::routes::subject";

/// Growth allowed from one route to any number, in percent, as the issue promises it.
const GROWTH_PERCENT: u64 = 120;

/// A microsecond, in instructions of this profile. Optimized code needs a tenth of them, and does 3,000 in one.
const MICROSECOND: u64 = 10_000;

/// Routes. Ten thousand are counted by hand, in a minute of the release profile and far longer in this one:
/// `VOILE_ROUTES=10000 cargo test --release -p voile-traffic --test it cost -- --nocapture`.
fn numbers() -> Vec<usize> {
    let more = env::var("VOILE_ROUTES")
        .ok()
        .and_then(|more| more.parse().ok());
    [1, 10, 100, 300].into_iter().chain(more).collect()
}

/// Shape of a table's routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Shape {
    Exact,
    ExactAnyCase,
    Prefix,
    Segments,
    /// Prefixes of many lengths, some below others: the search for the longest takes a few steps.
    Nested,
    /// Expressions that begin with different texts.
    Regex,
    /// One path, and a header by which routes are told apart.
    Header,
}

impl Shape {
    const ALL: [Self; 7] = [
        Self::Exact,
        Self::ExactAnyCase,
        Self::Prefix,
        Self::Segments,
        Self::Nested,
        Self::Regex,
        Self::Header,
    ];

    fn route(self, number: usize) -> Match {
        let service = format!("/service-{number:05}/items");
        let words = match self {
            Self::Exact => format!("={service}"),
            Self::ExactAnyCase => format!("i={service}"),
            Self::Prefix => format!("^{service}"),
            Self::Segments => service,
            Self::Nested => nested(number),
            Self::Regex => format!("~{service}/[0-9]+"),
            Self::Header => format!("/items h:x-user=user-{number:05}"),
        };
        route(&words)
    }

    fn request(self, number: usize) -> Sent {
        let service = format!("/service-{number:05}/items");
        match self {
            Self::Exact | Self::ExactAnyCase => Sent::get(&service),
            Self::Prefix | Self::Segments | Self::Regex => Sent::get(&format!("{service}/7")),
            Self::Nested => Sent::get(&nested(number)),
            Self::Header => Sent::get("/items/7").with("x-user", &format!("user-{number:05}")),
        }
    }
}

/// The deepest of forty first, which else would never be reached.
fn nested(number: usize) -> String {
    let (service, depth) = (number / 40, 39 - number % 40);
    format!("/service-{service:03}{}", "/deep".repeat(depth))
}

/// Shape, number of routes, the one that is hit.
fn cases() -> Vec<(Shape, usize, Option<usize>)> {
    let mut cases = Vec::new();
    for shape in Shape::ALL {
        for number in numbers() {
            for hit in [Some(0), Some(number - 1), None] {
                cases.push((shape, number, hit));
            }
        }
    }
    cases
}

#[test]
fn a_route_is_chosen_among_ten_thousand_as_cheaply_as_alone() {
    let Some(counts) = super::count(SUBJECT, cases().len()) else {
        return;
    };
    let mut alone = BTreeMap::new();
    let mut grown = Vec::new();
    for ((shape, number, hit), count) in cases().into_iter().zip(counts) {
        println!("{shape:?} hit {hit:?} of {number}: {count} instructions");
        let alone = *alone.entry((shape, hit.is_some())).or_insert(count);
        let bound = match shape {
            // A path that really has forty beginnings that routes ask for, against one that has one; and from one route,
            // which is compared, to many, which are found by a header's value.
            Shape::Nested | Shape::Header => alone + MICROSECOND,
            _ => alone * GROWTH_PERCENT / 100,
        };
        if count > bound {
            grown.push(format!(
                "{shape:?} hit {hit:?} of {number}: {count}, {bound} were enough"
            ));
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
    for shape in Shape::ALL {
        for number in numbers() {
            let routes = (0..number).map(|number| vec![shape.route(number)]);
            let table = RouteTable::new(routes);
            for hit in [Some(0), Some(number - 1), None] {
                let request = shape.request(hit.unwrap_or(99_999));
                super::counted(|| assert_eq!(table.choose(black_box(&request)), hit));
            }
        }
    }
}

/// Choices in one timed round, and the number of rounds; their median is printed.
const CHOICES: u32 = 100_000;
const ROUNDS: usize = 11;

/// Prints the time of a choice, for docs/decisions/0026. It checks no bound, since a time depends on the machine,
/// too. Each request hits a random route, so that a large table is not read at the same few places.
#[test]
#[ignore = "prints nanoseconds, for people: cargo test --release -p voile-traffic --test it -- --ignored --nocapture cost::routes::times"]
fn times() {
    for shape in Shape::ALL {
        for number in [1, 100, 10_000] {
            let table = RouteTable::new((0..number).map(|number| vec![shape.route(number)]));
            let requests: Vec<Sent> = (0..number).map(|number| shape.request(number)).collect();
            let mut random = Rng::with_seed(3);
            let mut round = || {
                let hits: Vec<usize> = (0..CHOICES).map(|_| random.usize(..number)).collect();
                let begun = Instant::now();
                for hit in hits {
                    assert_eq!(table.choose(black_box(&requests[hit])), Some(hit));
                }
                begun.elapsed().as_nanos() as f64 / f64::from(CHOICES)
            };
            let mut times: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
            times.sort_by(f64::total_cmp);
            let (least, median, most) = (times[0], times[ROUNDS / 2], times[ROUNDS - 1]);
            println!("{shape:?}, of {number}: {median:.0} ns ({least:.0}–{most:.0})");
        }
    }
}
