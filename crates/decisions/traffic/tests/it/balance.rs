//! Spread of requests over endpoints: shares by weight, keys that stay, priorities that fail over, slow and unhealthy
//! endpoints.

use std::cell::RefCell;
use std::net::IpAddr;
use std::time::Duration;

use fastrand::Rng;
use voile_traffic::balance::{
    Algorithm, Balancer, EndpointCost, EndpointLocality, EndpointTiers, EndpointVitals, HashCookie,
    HashKey, Locality, MAGLEV_SIZE, MIN_RING, RequestKey, RingEndpoint, Spread, Warmup, distance,
    distance_by_labels,
};

use super::sent::Sent;

/// Endpoints of a test: vitals, weights, unavailable ones, time.
pub(crate) struct Endpoints {
    pub(crate) vitals: RefCell<Vec<EndpointVitals>>,
    pub(crate) weights: Vec<u32>,
    pub(crate) gone: Vec<bool>,
    pub(crate) warmup: Option<Warmup>,
    pub(crate) now: Duration,
}

impl Endpoints {
    pub(crate) fn new(weights: &[u32]) -> Self {
        Self {
            vitals: RefCell::new(vec![EndpointVitals::new(Duration::ZERO); weights.len()]),
            weights: weights.to_vec(),
            gone: vec![false; weights.len()],
            warmup: None,
            now: Duration::ZERO,
        }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        (0..self.weights.len())
            .map(|n| format!("10.0.{}.{}:8080", n / 256, n % 256))
            .collect()
    }

    pub(crate) fn balancer(&self, algorithm: Algorithm, random: &mut Rng) -> Balancer {
        let names = self.names();
        let of = names.iter().zip(&self.weights);
        let of: Vec<_> = of
            .map(|(name, weight)| RingEndpoint {
                name,
                weight: *weight,
            })
            .collect();
        Balancer::new(algorithm, &of, || random.u64(..))
    }

    /// Returns the number of requests that each endpoint gets, all at once or one after the other.
    fn counts(&self, algorithm: Algorithm, requests: u32, at_once: bool) -> Vec<u32> {
        let mut random = Rng::with_seed(8);
        let mut balancer = self.balancer(algorithm, &mut random);
        let mut counts = vec![0; self.weights.len()];
        for _ in 0..requests {
            let key = random.u64(..);
            let chosen = balancer
                .choose(self, Some(key), || random.u64(..))
                .expect("somebody");
            counts[chosen] += 1;
            if at_once {
                self.vitals.borrow_mut()[chosen].begin();
            }
        }
        counts
    }
}

impl EndpointCost for Endpoints {
    fn cost(&self, place: usize) -> f64 {
        self.vitals.borrow()[place].cost(self.weights[place], self.now)
    }
    fn is_available(&self, place: usize) -> bool {
        !self.gone[place]
    }
    fn warmth(&self, place: usize) -> f64 {
        self.vitals.borrow()[place].warmth(self.warmup.as_ref(), self.now)
    }
}

const ALL: [Algorithm; 5] = [
    Algorithm::LeastCost,
    Algorithm::RoundRobin,
    Algorithm::Random,
    Algorithm::RingHash(MIN_RING * 8),
    Algorithm::Maglev(MAGLEV_SIZE),
];

/// The same, built in no time.
const SMALL: [Algorithm; 5] = [
    Algorithm::LeastCost,
    Algorithm::RoundRobin,
    Algorithm::Random,
    Algorithm::RingHash(8),
    Algorithm::Maglev(251),
];

#[test]
fn requests_spread_by_weight_whatever_the_algorithm() {
    for weights in [&[1, 1, 1, 1][..], &[1, 2, 3, 4], &[10, 90], &[5]] {
        let endpoints = Endpoints::new(weights);
        let total: u32 = weights.iter().sum();
        for algorithm in ALL {
            let counts = endpoints.counts(algorithm, 100_000, false);
            for (weight, count) in weights.iter().zip(&counts) {
                let (wanted, found) = (
                    f64::from(*weight) / f64::from(total),
                    f64::from(*count) / 1e5,
                );
                // By two thousand places a share on a ring is off by a forty-fifth of itself, or twice that.
                assert!(
                    (wanted - found).abs() < 0.03,
                    "{algorithm:?} {weights:?}: {counts:?}"
                );
            }
        }
    }
}

#[test]
fn what_is_in_flight_evens_out_by_weight() {
    let endpoints = Endpoints::new(&[1, 1, 1, 3]);
    let counts = endpoints.counts(Algorithm::LeastCost, 6_000, true);
    for (weight, count) in endpoints.weights.iter().zip(&counts) {
        assert!(count.abs_diff(weight * 1_000) < 100, "{counts:?}");
    }
}

#[test]
fn a_slow_endpoint_is_asked_seldom_and_who_says_retry_after_is_left_alone() {
    let mut endpoints = Endpoints::new(&[1; 10]);
    endpoints.now = Duration::from_secs(20);
    for (place, vitals) in endpoints.vitals.borrow_mut().iter_mut().enumerate() {
        let took = if place == 3 { 50 } else { 5 };
        vitals.observe(Duration::from_millis(took), endpoints.now);
    }
    let counts = endpoints.counts(Algorithm::LeastCost, 10_000, false);
    assert_eq!(
        counts[3], 0,
        "ten times as slow, it loses against each other: {counts:?}"
    );
    endpoints.vitals.borrow_mut()[5].shy(Some(Duration::from_secs(7)), endpoints.now);
    endpoints.now += Duration::from_secs(6);
    assert_eq!(endpoints.counts(Algorithm::LeastCost, 10_000, false)[5], 0);
    endpoints.now += Duration::from_secs(2);
    assert!(endpoints.counts(Algorithm::LeastCost, 10_000, false)[5] > 900);
    // Its estimate fades without requests; in the end it is tried again.
    for _ in 0..30 {
        endpoints.now += Duration::from_secs(1);
        for (place, vitals) in endpoints.vitals.borrow_mut().iter_mut().enumerate() {
            if place != 3 {
                vitals.observe(Duration::from_millis(5), endpoints.now);
            }
        }
    }
    assert!(endpoints.counts(Algorithm::LeastCost, 10_000, false)[3] > 900);
}

#[test]
fn a_new_endpoint_gets_its_share_by_and_by() {
    let mut endpoints = Endpoints::new(&[1; 4]);
    endpoints.now = Duration::from_secs(1_000);
    endpoints.vitals.borrow_mut()[0] = EndpointVitals::new(endpoints.now);
    for (place, vitals) in endpoints.vitals.borrow_mut().iter_mut().enumerate().skip(1) {
        *vitals = EndpointVitals::new(Duration::from_secs(place as u64));
        vitals.observe(Duration::from_millis(30), endpoints.now);
    }
    endpoints.warmup = Some(Warmup {
        duration: Duration::from_secs(100),
        minimum_percent: 10,
        aggression_thousandths: 1_000,
    });
    let cold = endpoints.counts(Algorithm::Random, 40_000, false)[0];
    assert!(
        cold.abs_diff(40_000 / 31) < 200,
        "a tenth of a share: {cold}"
    );
    endpoints.now += Duration::from_secs(50);
    let half = endpoints.counts(Algorithm::Random, 40_000, false)[0];
    assert!(half.abs_diff(40_000 / 7) < 400, "half a share: {half}");
    endpoints.now += Duration::from_secs(50);
    let warm = endpoints.counts(Algorithm::Random, 40_000, false)[0];
    assert!(warm.abs_diff(10_000) < 500, "{warm}");
}

#[test]
fn nobody_who_may_not_be_asked_is_chosen_and_somebody_is_if_anybody_may() {
    let mut random = Rng::with_seed(9);
    for round in 0..300 {
        let size = random.usize(1..40);
        let weights: Vec<u32> = (0..size).map(|_| random.u32(1..50)).collect();
        let mut endpoints = Endpoints::new(&weights);
        let rare = random.u8(..10);
        endpoints
            .gone
            .iter_mut()
            .for_each(|gone| *gone = random.u8(..10) < rare);
        let anybody = endpoints.gone.contains(&false);
        for algorithm in SMALL {
            let mut balancer = endpoints.balancer(algorithm, &mut random);
            for _ in 0..20 {
                let key = random.bool().then(|| random.u64(..));
                let chosen = balancer.choose(&endpoints, key, || random.u64(..));
                assert_eq!(chosen.is_some(), anybody, "{round} {algorithm:?}");
                assert!(
                    chosen.is_none_or(|chosen| !endpoints.gone[chosen]),
                    "{round} {algorithm:?}"
                );
            }
        }
    }
}

#[test]
fn when_an_endpoint_leaves_only_its_keys_move_and_a_few_of_maglevs() {
    const KEYS: usize = 20_000;
    for (algorithm, others) in [
        (Algorithm::RingHash(MIN_RING * 8), 0.0),
        (Algorithm::Maglev(MAGLEV_SIZE), 0.04),
    ] {
        for size in [2, 5, 20] {
            let mut random = Rng::with_seed(size as u64);
            let before = Endpoints::new(&vec![1; size]);
            let mut whole = before.balancer(algorithm, &mut random);
            let left = random.usize(..size);
            // Once it is ill, once it is not listed any more.
            let mut ill = Endpoints::new(&vec![1; size]);
            ill.gone[left] = true;
            let names: Vec<String> = before.names();
            let rest: Vec<usize> = (0..size).filter(|place| *place != left).collect();
            let placed: Vec<_> = rest
                .iter()
                .map(|place| RingEndpoint {
                    name: &names[*place],
                    weight: 1,
                })
                .collect();
            let fewer = Endpoints::new(&vec![1; size - 1]);
            let mut without = Balancer::new(algorithm, &placed, || 0);
            let (mut own, mut moved) = (0, 0);
            for _ in 0..KEYS {
                let key = Some(random.u64(..));
                let first = whole.choose(&before, key, || 0).expect("one");
                let now = rest[without.choose(&fewer, key, || 0).expect("one")];
                let around = whole.choose(&ill, key, || 0).expect("one");
                own += usize::from(first == left);
                moved += usize::from(first != left && first != now);
                assert!(
                    first == left || around == first,
                    "while it is ill only its own keys move"
                );
                assert!(now != left && around != left);
            }
            let share = own as f64 / KEYS as f64;
            assert!(
                (share - 1.0 / size as f64).abs() < 0.03,
                "{algorithm:?} {size}: {share}"
            );
            let moved = moved as f64 / KEYS as f64;
            assert!(
                moved <= others,
                "{algorithm:?} {size}: {moved} of the others' keys"
            );
        }
    }
}

fn place(priority: u32, locality: u32, locality_weight: u32, healthy: bool) -> EndpointLocality {
    EndpointLocality {
        priority,
        locality,
        locality_weight,
        weight: 1,
        healthy,
    }
}

/// Shares in percent by priority and locality, of endpoints `healthy/all` for each (priority, locality, weight).
fn shares(levels: &[(u32, u32, u32, usize, usize)], panic_percent: u32) -> Vec<u32> {
    let mut places = Vec::new();
    for &(priority, locality, weight, healthy, all) in levels {
        places.extend((0..all).map(|n| place(priority, locality, weight, n < healthy)));
    }
    let spread = Spread {
        panic_percent,
        ..Spread::default()
    };
    let tiers = EndpointTiers::new(&places, &spread, None);
    let mut random = Rng::with_seed(6);
    let mut counts = vec![0; levels.len()];
    const DRAWS: u32 = 20_000;
    for _ in 0..DRAWS {
        if let Some(group) = tiers.choose(random.u64(..)) {
            let group = &tiers.groups()[group];
            assert!(!group.members.is_empty());
            let member = places[group.members[0] as usize];
            let level = |(p, l, w, ..): &(u32, u32, u32, usize, usize)| {
                *p == member.priority && (*w == 0 || *l == member.locality)
            };
            counts[levels.iter().position(level).expect("known")] += 1;
            let well = |member: &u32| places[*member as usize].healthy;
            assert!(
                group.panics || group.members.iter().all(well),
                "the sick are asked in panic only"
            );
        }
    }
    counts
        .iter()
        .map(|count| (count * 100 + DRAWS / 2) / DRAWS)
        .collect()
}

#[test]
fn priorities_fail_over_as_their_health_goes() {
    // (priority, locality, weight, healthy, all), panic below, shares
    type Row<'r> = (&'r [(u32, u32, u32, usize, usize)], u32, &'r [u32]);
    let table: &[Row<'_>] = &[
        (&[(0, 0, 0, 10, 10), (1, 0, 0, 10, 10)], 50, &[100, 0]),
        (&[(0, 0, 0, 8, 10), (1, 0, 0, 10, 10)], 50, &[100, 0]),
        (&[(0, 0, 0, 7, 10), (1, 0, 0, 10, 10)], 50, &[98, 2]),
        (&[(0, 0, 0, 5, 10), (1, 0, 0, 10, 10)], 50, &[70, 30]),
        (&[(0, 0, 0, 0, 10), (1, 0, 0, 10, 10)], 50, &[0, 100]),
        (&[(0, 0, 0, 0, 10), (1, 0, 0, 5, 10)], 0, &[0, 100]),
        (&[(0, 0, 0, 1, 4), (1, 0, 0, 1, 4)], 0, &[50, 50]),
        // No endpoint is healthy: none is selected, or all are.
        (&[(0, 0, 0, 0, 10), (1, 0, 0, 0, 10)], 0, &[0, 0]),
        (&[(0, 0, 0, 0, 30), (1, 0, 0, 0, 10)], 50, &[75, 25]),
        // Localities of one level, by weight and by capacity.
        (&[(0, 0, 1, 2, 2), (0, 1, 3, 2, 2)], 0, &[25, 75]),
        (&[(0, 0, 1, 2, 2), (0, 1, 1, 1, 2)], 0, &[59, 41]),
        (&[(0, 0, 1, 2, 2), (0, 1, 1, 0, 2)], 0, &[100, 0]),
        (
            &[(0, 0, 1, 8, 10), (0, 1, 1, 10, 10), (1, 2, 1, 9, 9)],
            0,
            &[50, 50, 0],
        ),
    ];
    for (levels, panic_percent, wanted) in table {
        assert_eq!(
            shares(levels, *panic_percent),
            *wanted,
            "{levels:?} {panic_percent}"
        );
    }
}

#[test]
fn the_sick_are_asked_only_where_the_well_of_all_levels_do_not_suffice() {
    let level = |priority, healthy| (0..10).map(move |n| place(priority, 0, 0, n < healthy));
    for (first, second, panic_percent, wanted) in [
        (1, 10, 50, [false, false]),
        (1, 4, 50, [true, true]),
        (2, 5, 50, [true, false]),
        (1, 4, 0, [false, false]),
    ] {
        let places: Vec<EndpointLocality> = level(0, first).chain(level(1, second)).collect();
        let spread = Spread {
            panic_percent,
            ..Spread::default()
        };
        let tiers = EndpointTiers::new(&places, &spread, None);
        let panics: Vec<bool> = tiers.groups().iter().map(|group| group.panics).collect();
        assert_eq!(panics, wanted, "{first} {second} {panic_percent}");
    }
}

#[test]
fn near_endpoints_come_first_as_istio_ranks_them() {
    let at = |words: &str| {
        let mut parts = words.split('/').map(str::to_owned);
        let mut part = || parts.next().unwrap_or_default();
        Locality {
            region: part(),
            zone: part(),
            subzone: part(),
        }
    };
    let failover = [("eu".to_owned(), "us".to_owned())];
    for (to, said, wanted) in [
        ("eu/a/1", true, 0),
        ("eu/a/2", true, 1),
        ("eu/b/1", true, 2),
        ("us/a/1", true, 3),
        ("ap/a/1", true, 4),
        ("ap/a/1", false, 3),
    ] {
        let failover = if said { &failover[..] } else { &[] };
        assert_eq!(distance(&at("eu/a/1"), &at(to), failover), wanted, "{to}");
    }
    let labels = ["region", "rack=r1", "host"].map(str::to_owned);
    for (of, wanted) in [
        (["eu", "r1", "h1"], 0),
        (["eu", "r1", "h2"], 1),
        (["eu", "r2", "h1"], 2),
        (["us", "r1", "h1"], 3),
    ] {
        let value = |values: [&'static str; 3]| {
            move |name: &str| {
                let place = ["region", "rack", "host"]
                    .iter()
                    .position(|known| *known == name);
                place.map(|place| values[place])
            }
        };
        let own = value(["eu", "r9", "h1"]);
        assert_eq!(
            distance_by_labels(&labels, own, value(of)),
            wanted,
            "{of:?}"
        );
    }
}

#[test]
fn a_requests_key_is_of_its_header_cookie_source_or_parameter() {
    let source: IpAddr = "10.1.2.3".parse().expect("an address");
    let cookie = |ttl| {
        HashKey::Cookie(HashCookie {
            name: "at".into(),
            path: None,
            ttl,
            attributes: vec!["Secure".into()],
        })
    };
    let key = |of: &HashKey, sent: &Sent| of.key(sent, source, || 0xabc);
    let header = HashKey::Header("x-user".into());
    let query = HashKey::Query("user".into());
    let ann = key(&header, &Sent::get("/").with("x-user", "ann"));
    assert!(matches!(ann, RequestKey::Of(_)));
    assert_ne!(ann, key(&header, &Sent::get("/").with("x-user", "bob")));
    for same in [
        key(&query, &Sent::get("/?a=b&user=ann")),
        key(
            &cookie(None),
            &Sent::get("/").with("cookie", "bat=x; at=ann; z=y"),
        ),
        key(&cookie(None), &Sent::get("/").with("cookie", "at=\"ann\"")),
    ] {
        assert_eq!(same, ann);
    }
    // The authority is no header here, but by its name it is.
    let host = HashKey::Header("host".into());
    let by_host = key(&host, &Sent::get("/"));
    assert!(matches!(by_host, RequestKey::Of(_)), "{by_host:?}");
    assert_eq!(
        key(&HashKey::Header(":authority".into()), &Sent::get("/")),
        by_host
    );
    assert_eq!(key(&header, &Sent::get("/")), RequestKey::None);
    assert_eq!(key(&query, &Sent::get("/")), RequestKey::None);
    assert_eq!(
        key(&cookie(None), &Sent::get("/").with("cookie", "bat=x")),
        RequestKey::None
    );
    assert!(matches!(
        key(&HashKey::SourceIp, &Sent::get("/")),
        RequestKey::Of(_)
    ));
    let given = key(&cookie(Some(Duration::from_secs(60))), &Sent::get("/"));
    let RequestKey::New(new, line) = given else {
        panic!("{given:?}");
    };
    assert_eq!(
        line,
        "at=\"0000000000000abc\"; Max-Age=60; Path=/; Secure; HttpOnly"
    );
    let back = Sent::get("/").with("cookie", "at=0000000000000abc");
    assert_eq!(
        key(&cookie(None), &back),
        RequestKey::Of(new),
        "what was given out leads to the same place"
    );
}
