//! Requests stay in their zone as far as that leaves every endpoint with the same load: tables, and a property over all callers.

use fastrand::Rng;
use voile_traffic::balance::{EndpointLocality, EndpointTiers, Spread, Zones};

/// Points of chance at which shares are read.
const POINTS: u64 = 10_000;

/// Returns the share of each zone, in tenths of a percent, for a caller in the first of them.
fn shares(tiers: &EndpointTiers, places: &[EndpointLocality], zones: usize) -> Vec<u64> {
    let mut counts = vec![0; zones];
    for point in 0..POINTS {
        let chosen = tiers.choose(point * (u64::MAX / POINTS) + 1);
        let Some(group) = chosen.map(|chosen| &tiers.groups()[chosen]) else {
            continue;
        };
        let member = places[group.members[0] as usize];
        counts[member.locality as usize] += 1;
    }
    let tenths = |count: u64| (count * 1_000 + POINTS / 2) / POINTS;
    counts.into_iter().map(tenths).collect()
}

/// So many of each zone are well, of so many, each with the weight of its zone.
fn places(zones: &[(usize, usize, u32)]) -> Vec<EndpointLocality> {
    let mut places = Vec::new();
    for (locality, (well, all, weight)) in zones.iter().enumerate() {
        places.extend((0..*all).map(|n| EndpointLocality {
            priority: 3,
            locality: locality as u32,
            locality_weight: 1,
            weight: *weight,
            healthy: n < *well,
        }));
    }
    places
}

fn asking(callers: &[u32], elsewhere: u32, least: u32) -> Zones {
    Zones {
        priority: 3,
        callers: callers.into(),
        elsewhere,
        least,
    }
}

#[test]
fn a_zone_keeps_what_its_endpoints_can_take() {
    // endpoints (well, all, weight), callers, callers elsewhere, at least so many endpoints; shares
    type Row<'r> = (&'r [(usize, usize, u32)], &'r [u32], u32, u32, &'r [u64]);
    let table: &[Row<'_>] = &[
        (&[(2, 2, 1), (2, 2, 1)], &[1, 1], 0, 1, &[1000, 0]),
        (&[(2, 2, 1), (2, 2, 1)], &[1, 3], 0, 1, &[1000, 0]),
        (&[(2, 2, 1), (2, 2, 1)], &[3, 1], 0, 1, &[667, 333]),
        // The example in Envoy's source.
        (
            &[(25, 25, 1), (50, 50, 1), (25, 25, 1)],
            &[40, 40, 20],
            0,
            6,
            &[625, 250, 125],
        ),
        // All callers are here: endpoints are asked alike.
        (&[(1, 1, 1), (3, 3, 1)], &[4, 0], 0, 1, &[250, 750]),
        // Some callers are in zones without endpoints, and leave room here.
        (&[(1, 1, 1), (1, 1, 1)], &[1, 0], 1, 1, &[1000, 0]),
        // No endpoint is here: callers of other zones come first there.
        (
            &[(0, 0, 1), (1, 1, 1), (2, 2, 1)],
            &[1, 1, 1],
            0,
            1,
            &[0, 0, 1000],
        ),
        // So few endpoints that zones do not matter; nothing is known of callers.
        (&[(1, 1, 1), (3, 3, 1)], &[1, 1], 0, 5, &[250, 750]),
        (&[(1, 1, 1), (3, 3, 1)], &[0, 2], 0, 1, &[250, 750]),
        // The sick take nothing, and do not count.
        (&[(1, 2, 1), (2, 2, 1)], &[1, 1], 0, 3, &[667, 333]),
        (&[(1, 2, 1), (2, 2, 1)], &[1, 1], 0, 4, &[333, 667]),
        (&[(0, 2, 1), (2, 2, 1)], &[1, 1], 0, 1, &[0, 1000]),
        // By weight, where an endpoint has one.
        (&[(1, 1, 3), (3, 3, 1)], &[1, 1], 0, 1, &[1000, 0]),
        (&[(1, 1, 1), (1, 1, 3)], &[1, 1], 0, 1, &[500, 500]),
    ];
    for (endpoints, callers, elsewhere, least, wanted) in table {
        let (places, zones) = (places(endpoints), asking(callers, *elsewhere, *least));
        let tiers = EndpointTiers::new(&places, &Spread::default(), Some(&zones));
        let found = shares(&tiers, &places, endpoints.len());
        assert_eq!(found, *wanted, "{endpoints:?} {zones:?}");
    }
}

#[test]
fn zones_are_of_one_level_and_the_next_takes_what_that_cannot() {
    let mut places = places(&[(1, 4, 1), (1, 4, 1)]);
    let mut beyond = places[0];
    beyond.priority = 4;
    beyond.locality = 2;
    places.extend([beyond; 4]);
    let zones = asking(&[1, 1], 0, 1);
    let tiers = EndpointTiers::new(&places, &Spread::default(), Some(&zones));
    // A quarter is well, and carries 35 of 100.
    assert_eq!(shares(&tiers, &places, 3), [350, 0, 650]);
    // Too few: all zones are treated alike, since health is unknown.
    let spread = Spread {
        panic_percent: 50,
        ..Spread::default()
    };
    places.truncate(8);
    let tiers = EndpointTiers::new(&places, &spread, Some(&zones));
    assert!(tiers.groups().iter().all(|group| group.panics));
    assert_eq!(shares(&tiers, &places, 2), [500, 500]);
}

#[test]
fn a_zone_that_is_not_needed_stands_by() {
    let places = places(&[(2, 2, 1), (2, 2, 1)]);
    let tiers = EndpointTiers::new(&places, &Spread::default(), Some(&asking(&[1, 1], 0, 1)));
    let members: Vec<&[u32]> = tiers.groups().iter().map(|group| &*group.members).collect();
    assert_eq!(members, [&[0, 1][..], &[2, 3]], "our own zone comes first");
}

/// View of a caller in `own`: its zone first, then the other zones with endpoints, and callers from elsewhere.
fn seen(
    own: usize,
    zones: &[((usize, usize, u32), u32)],
) -> (Vec<usize>, Vec<(usize, usize, u32)>, Zones) {
    let others = (0..zones.len()).filter(|zone| *zone != own && zones[*zone].0.0 > 0);
    let order: Vec<usize> = std::iter::once(own).chain(others).collect();
    let endpoints = order.iter().map(|zone| zones[*zone].0).collect();
    let callers: Vec<u32> = order.iter().map(|zone| zones[*zone].1).collect();
    let all: u32 = zones.iter().map(|(_, callers)| callers).sum();
    let elsewhere = all - callers.iter().sum::<u32>();
    (order, endpoints, asking(&callers, elsewhere, 1))
}

#[test]
fn every_endpoint_has_the_same_load_and_no_zone_keeps_less_than_it_could() {
    let cases = std::env::var("VOILE_CASES").map_or(200, |text| text.parse().expect("a number"));
    for seed in 0..cases {
        let mut random = Rng::with_seed(seed);
        let zone = |_| {
            let well = random.usize(0..6);
            let weight = if random.bool() { 1 } else { random.u32(1..5) };
            ((well, well + random.usize(0..3), weight), random.u32(0..6))
        };
        let zones: Vec<((usize, usize, u32), u32)> = (0..1 + seed as usize % 5).map(zone).collect();
        let all: u32 = zones.iter().map(|(_, callers)| callers).sum();
        let weighs = |(well, _, weight): (usize, usize, u32)| well as f64 * f64::from(weight);
        let total: f64 = zones.iter().map(|(endpoints, _)| weighs(*endpoints)).sum();
        if all == 0 || total == 0.0 {
            continue;
        }
        let mut loads = vec![0.0; zones.len()];
        for (own, (endpoints, callers)) in zones.iter().enumerate() {
            if *callers == 0 {
                continue;
            }
            let (order, of, zones) = seen(own, &zones);
            let places = places(&of);
            let tiers = EndpointTiers::new(&places, &Spread::default(), Some(&zones));
            let brought = f64::from(*callers) / f64::from(all);
            let shares = shares(&tiers, &places, of.len());
            let share = |place: usize| shares[place] as f64 / 1_000.0;
            let most = (weighs(*endpoints) / total / brought).min(1.0);
            assert!(
                (share(0) - most).abs() < 0.002,
                "{seed}: {zones:?} keep {shares:?}"
            );
            for (place, zone) in order.iter().enumerate() {
                loads[*zone] += brought * share(place);
            }
        }
        for (load, (endpoints, _)) in loads.iter().zip(&zones) {
            let due = weighs(*endpoints) / total;
            assert!((load - due).abs() < 0.004, "{seed}: {loads:?} of {zones:?}");
        }
    }
}
