//! Outliers, circuit breakers and rate limits: ejections, refusals and recovery. Limits hold at every moment,
//! whatever workers do at once.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use fastrand::Rng;
use voile_traffic::{
    Breaker, BreakerLimits, Bucket, Ejection, EjectionReason, KeyedBuckets, LimitKey,
    OutlierDetection, Outliers, Rate, Resource, SuccessRate, UpstreamOutcome, unsuccessful,
};

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn all_may() -> OutlierDetection {
    OutlierDetection {
        max_ejection_percent: 100,
        ..OutlierDetection::default()
    }
}

#[test]
fn an_endpoint_is_put_out_after_so_many_bad_answers_in_a_row() {
    let five = OutlierDetection {
        consecutive_5xx: 3,
        ..all_may()
    };
    let gateway = OutlierDetection {
        consecutive_5xx: 0,
        consecutive_gateway: 2,
        ..all_may()
    };
    let local = OutlierDetection {
        consecutive_local: Some(2),
        ..five
    };
    // policy, statuses (0: no answer), after which it is out, if ever
    let table: [(&OutlierDetection, &[u16], Option<usize>); 12] = [
        (&five, &[500, 503, 0], Some(3)),
        (&five, &[500, 501, 200, 500, 599], None),
        (&five, &[500, 501, 404, 500, 599, 502], Some(6)),
        (&five, &[500, 500], None),
        (&gateway, &[502, 504], Some(2)),
        (&gateway, &[0, 503], Some(2)),
        (&gateway, &[502, 500, 503], None),
        (&gateway, &[500, 500, 500, 500], None),
        (&local, &[0, 0], Some(2)),
        (&local, &[0, 503, 0], None),
        (&local, &[0, 200, 0], None),
        (&local, &[500, 0, 500, 500], Some(4)),
    ];
    for (policy, statuses, wanted) in table {
        let outliers = Outliers::new(*policy, 2);
        let outcome = |status: &u16| match status {
            0 => UpstreamOutcome::Failed,
            status => UpstreamOutcome::Answered(*status),
        };
        let out = statuses
            .iter()
            .position(|status| !outliers.report(0, outcome(status), S).is_empty());
        assert_eq!(out.map(|at| at + 1), wanted, "{statuses:?}");
        assert_eq!(outliers.is_out(0, S), wanted.is_some());
        assert!(!outliers.is_out(1, S));
    }
}

fn fail(outliers: &Outliers, place: usize, now: Duration) {
    for _ in 0..5 {
        outliers.report(place, UpstreamOutcome::Answered(500), now);
    }
}

#[test]
fn each_time_out_is_longer_up_to_a_bound_and_good_conduct_shortens_it() {
    let outliers = Outliers::new(all_may(), 4);
    let mut now = S;
    for wanted in [30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 300] {
        fail(&outliers, 0, now);
        assert!(outliers.is_out(0, now + wanted * S - MS), "{wanted}");
        assert!(!outliers.is_out(0, now + wanted * S), "{wanted}");
        now += wanted * S;
    }
    // Eleven times it was out; seven intervals in.
    now += 70 * S;
    fail(&outliers, 0, now);
    assert!(outliers.is_out(0, now + 149 * S) && !outliers.is_out(0, now + 150 * S));
    now += 10_000 * S;
    fail(&outliers, 0, now);
    assert!(outliers.is_out(0, now + 29 * S) && !outliers.is_out(0, now + 30 * S));
}

#[test]
fn never_more_are_out_than_may_be() {
    // endpoints, at most out in percent, must stay in percent, may be out
    for (endpoints, most, stay, wanted) in [
        (10, 10, 0, 1),
        (10, 50, 0, 5),
        (10, 100, 0, 10),
        (10, 100, 30, 7),
        (3, 10, 0, 1),
        (3, 50, 0, 1),
        (3, 100, 50, 1),
        (2, 10, 60, 0),
        (1, 10, 0, 0),
        (1, 100, 0, 1),
        (5, 0, 0, 0),
        (0, 100, 100, 0),
    ] {
        let policy = OutlierDetection {
            max_ejection_percent: most,
            min_health_percent: stay,
            ..OutlierDetection::default()
        };
        let outliers = Outliers::new(policy, endpoints);
        (0..endpoints).for_each(|place| fail(&outliers, place, S));
        let said = (outliers.most_out(), outliers.out(S));
        assert_eq!(said, (wanted, wanted as usize), "{endpoints} {most} {stay}");
        // An endpoint that is back makes room, even if nothing has queried its state.
        (0..endpoints)
            .rev()
            .for_each(|place| fail(&outliers, place, 40 * S));
        assert_eq!(outliers.out(40 * S), wanted as usize);
    }
}

#[test]
fn never_more_are_out_than_may_be_while_workers_report_at_once() {
    let policy = OutlierDetection {
        max_ejection_percent: 30,
        consecutive_5xx: 1,
        base_ejection: 2 * MS,
        max_ejection: 5 * MS,
        ..OutlierDetection::default()
    };
    let mut seen = 0;
    for round in 0..300 {
        let outliers = Outliers::new(policy, 20);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let outliers = &outliers;
                scope.spawn(move || {
                    let mut random = Rng::with_seed(round * 4 + seed);
                    for step in 0..200_u32 {
                        let now = S + step * MS / 10;
                        outliers.report(random.usize(..20), UpstreamOutcome::Failed, now);
                    }
                });
            }
        });
        // At a moment before all ejections, none is back yet.
        let out = outliers.out(S);
        let most = outliers.most_out() as usize;
        assert!(out <= most, "{out} of {most}");
        seen += usize::from(out == most);
    }
    assert!(seen > 100, "it was tried: {seen}");
}

fn by_rates(rule: SuccessRate) -> OutlierDetection {
    OutlierDetection {
        consecutive_5xx: 0,
        success_rate: Some(rule),
        ..all_may()
    }
}

#[test]
fn who_succeeds_far_less_often_than_the_others_is_put_out_by_the_interval() {
    let rule = SuccessRate::default();
    let even = [(99, 100); 9];
    let one = [&even[..], &[(50, 100)]].concat();
    assert_eq!(unsuccessful(&one, &rule), [9]);
    assert_eq!(unsuccessful(&even, &rule), [0; 0]);
    assert_eq!(
        unsuccessful(&[&even[..], &[(0, 99)]].concat(), &rule),
        [0; 0],
        "too few requests"
    );
    assert_eq!(unsuccessful(&one[6..], &rule), [0; 0], "too few endpoints");
    let outliers = Outliers::new(by_rates(rule), 10);
    for request in 0..1_000 {
        let bad = request % 10 == 3 && request % 20 == 3;
        let status = if bad { 500 } else { 200 };
        let out = outliers.report(request % 10, UpstreamOutcome::Answered(status), S);
        assert_eq!(out, []);
    }
    let out = outliers.report(0, UpstreamOutcome::Answered(200), 10 * S);
    let reason = EjectionReason::SuccessRate;
    let third = Ejection { place: 3, reason };
    assert_eq!(out, [third], "the interval is over");
    assert_eq!(
        (outliers.out(10 * S), outliers.is_out(3, 10 * S)),
        (1, true)
    );
    // Counts begin anew with each interval: these are too few to be judged by.
    for request in 0..500 {
        let status = if request % 10 == 0 { 500 } else { 200 };
        outliers.report(request % 10, UpstreamOutcome::Answered(status), 11 * S);
    }
    assert_eq!(
        outliers.report(1, UpstreamOutcome::Answered(200), 21 * S),
        []
    );
}

#[test]
fn who_differs_from_the_others_by_a_rounding_alone_does_not_differ() {
    let strict = SuccessRate {
        stdev_factor: 0,
        ..SuccessRate::default()
    };
    for successes in 0..=1_000 {
        for endpoints in [5, 7, 10] {
            let even = vec![(successes, 1_000); endpoints];
            assert_eq!(unsuccessful(&even, &strict), [0; 0], "{successes}");
        }
    }
    let one = [
        (999, 1_000),
        (999, 1_000),
        (998, 1_000),
        (999, 1_000),
        (999, 1_000),
    ];
    assert_eq!(unsuccessful(&one, &strict), [2]);
}

#[test]
fn as_many_of_those_that_succeed_less_often_are_put_out_as_is_said() {
    for (percent, least, most) in [(0, 0, 0), (30, 200, 400), (100, 1_000, 1_000)] {
        let rule = SuccessRate {
            enforcing_percent: percent,
            minimum_hosts: 2,
            request_volume: 1,
            stdev_factor: 500,
        };
        let policy = OutlierDetection {
            base_ejection: MS,
            max_ejection: MS,
            ..by_rates(rule)
        };
        let outliers = Outliers::new(policy, 3);
        let mut put_out = 0;
        for interval in 1..=1_000 {
            let now = interval * 10 * S + interval * Duration::from_nanos(7_919);
            // The first answer of the next interval triggers the comparison of earlier counts.
            put_out += outliers
                .report(0, UpstreamOutcome::Answered(200), now)
                .len();
            for (place, status) in [(0, 200), (1, 200), (2, 500)] {
                outliers.report(place, UpstreamOutcome::Answered(status), now + S);
            }
        }
        put_out += outliers
            .report(0, UpstreamOutcome::Answered(200), 20_000 * S)
            .len();
        assert!((least..=most).contains(&put_out), "{percent}: {put_out}");
    }
}

#[test]
fn who_always_succeeds_is_never_put_out_whenever_workers_compare() {
    let rule = SuccessRate {
        minimum_hosts: 2,
        request_volume: 1,
        stdev_factor: 0,
        enforcing_percent: 100,
    };
    let policy = OutlierDetection {
        interval: MS,
        ..by_rates(rule)
    };
    let outliers = Outliers::new(policy, 4);
    let clock = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for request in 0..200_000 {
                    let now = S + clock.fetch_add(1, Relaxed) * Duration::from_micros(100);
                    let out = outliers.report(request % 4, UpstreamOutcome::Answered(200), now);
                    assert_eq!(out, []);
                }
            });
        }
    });
}

#[test]
fn who_is_out_stays_out_when_others_come_and_go() {
    let old = Outliers::new(all_may(), 3);
    (0..2).for_each(|place| fail(&old, place, S));
    let new = Outliers::follow(all_may(), &[None, Some(1), Some(2), Some(0)], &old);
    let out: Vec<bool> = (0..4).map(|place| new.is_out(place, 2 * S)).collect();
    assert_eq!(out, [false, true, false, true]);
    let fewer = OutlierDetection {
        max_ejection_percent: 50,
        ..all_may()
    };
    let new = Outliers::follow(fewer, &[Some(0), Some(1)], &old);
    assert_eq!(new.out(2 * S), 1, "never more than may be");
}

#[test]
fn what_was_counted_of_who_stays_counts_when_others_come_and_go() {
    let old = Outliers::new(by_rates(SuccessRate::default()), 5);
    let ask = |outliers: &Outliers, requests: u32, now| {
        let each = (0..requests).flat_map(|_| 0..5);
        let answered = each.flat_map(|place| {
            let status = if place == 4 { 503 } else { 200 };
            outliers.report(place, UpstreamOutcome::Answered(status), now)
        });
        answered.count()
    };
    assert_eq!(ask(&old, 60, S), 0);
    let was = [Some(0), Some(1), Some(2), Some(3), Some(4), None];
    let new = Outliers::follow(by_rates(SuccessRate::default()), &was, &old);
    assert_eq!(ask(&new, 60, 2 * S), 0);
    let out = new.report(5, UpstreamOutcome::Answered(200), 10 * S);
    assert_eq!(out.iter().map(|one| one.place).collect::<Vec<_>>(), [4]);
}

#[test]
fn a_breaker_never_lets_more_through_than_its_limit() {
    let breaker = Breaker::new(BreakerLimits {
        requests: Some(3),
        retries: Some(0),
        ..BreakerLimits::default()
    });
    assert!(breaker.take(Resource::Retries).is_none());
    let free: Vec<_> = (0..1_000)
        .map(|_| breaker.take(Resource::Pending))
        .collect();
    assert!(free.iter().all(Option::is_some), "what has no limit passes");
    let held: Vec<_> = (0..3).map(|_| breaker.take(Resource::Requests)).collect();
    assert!(held.iter().all(Option::is_some));
    assert!(breaker.take(Resource::Requests).is_none());
    drop(held);
    assert_eq!(breaker.used(Resource::Requests), 0);
    let under_way = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let Some(held) = breaker.take(Resource::Requests) else {
                        continue;
                    };
                    assert!(under_way.fetch_add(1, Relaxed) < 3);
                    under_way.fetch_sub(1, Relaxed);
                    drop(held);
                }
            });
        }
    });
    assert_eq!(breaker.used(Resource::Requests), 0);
}

#[test]
fn never_more_pass_in_any_time_than_burst_and_rate_allow() {
    let mut random = Rng::with_seed(12);
    for _ in 0..200 {
        let (requests, burst) = (random.u32(1..50), random.u32(1..20));
        let interval = random.u32(1..2_000) * MS;
        let rate = Rate::new(requests, interval, burst).expect("good");
        let bucket = Bucket::new(rate);
        let (mut now, mut passed) = (S, Vec::new());
        for _ in 0..400 {
            now += random.u32(0..40) * MS;
            let verdict = bucket.take(now);
            if verdict.allowed {
                passed.push(now);
            } else {
                let early = bucket.take(now + verdict.retry_in - Duration::from_nanos(1));
                assert!(!early.allowed && verdict.remaining == 0, "{verdict:?}");
            }
        }
        for (first, from) in passed.iter().enumerate() {
            for (last, to) in passed.iter().enumerate().skip(first) {
                let earned =
                    (*to - *from).as_secs_f64() * f64::from(requests) / interval.as_secs_f64();
                let most = f64::from(burst) + earned + 1e-6;
                assert!(
                    (last - first + 1) as f64 <= most,
                    "{rate:?} {from:?} {to:?}"
                );
            }
        }
        assert!(passed.len() >= burst as usize);
    }
}

#[test]
fn clients_are_told_what_is_left_and_when_there_is_more() {
    let rate = Rate::new(10, 60 * S, 20).expect("good");
    let bucket = Bucket::new(rate);
    assert_eq!(
        rate.policy("per \"user\"\n"),
        "\"per \\\"user\\\"\";q=20;w=120"
    );
    assert_eq!(bucket.take(S).field("all"), "\"all\";r=19;t=6");
    let (last, over) = ((0..19).map(|_| bucket.take(S)).last(), bucket.take(S));
    assert_eq!(last.expect("nineteen").field("all"), "\"all\";r=0;t=120");
    assert_eq!(
        (over.allowed, over.field("all").as_str(), over.retry_after()),
        (false, "\"all\";r=0;t=120", 6)
    );
    assert!(
        bucket.take(S + 6 * S).allowed,
        "it is told when the next may pass"
    );
    for (wrong, why) in [
        (Rate::new(0, S, 1), "at least one"),
        (Rate::new(1, S, 0), "at least one"),
        (Rate::new(1, Duration::ZERO, 1), "at least one"),
        (Rate::new(1, 3_600 * S, 10_000), "more than a year"),
    ] {
        let error = wrong.expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn keys_have_buckets_of_their_own_in_a_bounded_room() {
    let rate = Rate::new(1, S, 2).expect("good");
    let buckets = KeyedBuckets::new(rate, 1_000);
    let key = |name: &str| {
        LimitKey::new(7)
            .and(Some(b"route"))
            .and(Some(name.as_bytes()))
    };
    let pass = |name: &str, now| buckets.take(key(name), now).allowed;
    assert_eq!([0; 3].map(|_| pass("ann", S)), [true, true, false]);
    assert_eq!([0; 3].map(|_| pass("bob", S)), [true, true, false]);
    assert!(pass("ann", 2 * S) && !pass("ann", 2 * S));
    let nobody = LimitKey::new(7).and(None);
    assert_ne!(
        format!("{nobody:?}"),
        format!("{:?}", LimitKey::new(7).and(Some(b"")))
    );
    // A crowd of keys, each once: keys without room share a bucket, so that less passes, never more.
    let (mut twice, mut once) = (0, 0);
    for number in 0..3_000 {
        let passed = (0..3)
            .filter(|_| pass(&format!("crowd-{number}"), 10 * S))
            .count();
        assert!(passed <= 2);
        twice += usize::from(passed == 2);
        once += 1;
    }
    assert!(twice < once && twice >= 900, "{twice} of {once}");
    // Their buckets are full again, and their room is free.
    let fresh = (0..500)
        .filter(|number| pass(&format!("later-{number}"), 20 * S))
        .count();
    assert_eq!(fresh, 500);
}
