//! Active health checks: which answers take an endpoint out and bring it back, and that one worker asks at a time.

use std::time::Duration;

use voile_traffic::{CheckPolicy, CheckedEndpoint, EndpointHealth, FIRST_WITHIN};

const S: Duration = Duration::from_secs(1);

fn policy(healthy: u32, unhealthy: u32) -> CheckPolicy {
    CheckPolicy {
        interval: 10 * S,
        jitter_percent: 10,
        healthy,
        unhealthy,
    }
}

#[test]
fn the_first_answer_decides_and_then_so_many_in_a_row() {
    // healthy, unhealthy, answers, how it stands after each
    for (healthy, unhealthy, answers, stands) in [
        (2, 3, "+", "+"),
        (2, 3, "-", "-"),
        (2, 3, "+--+--+---", "+++++++++-"),
        (2, 3, "-+-++", "----+"),
        (1, 1, "+-+-", "+-+-"),
        (3, 1, "-++-+++", "------+"),
        (1, 2, "+-+-+-", "++++++"),
        (2, 3, "-----++---+", "------+++--"),
    ] {
        let (policy, checked) = (policy(healthy, unhealthy), CheckedEndpoint::default());
        assert_eq!(checked.standing(), EndpointHealth::Unasked);
        assert!(!checked.is_unwell(), "who was not asked takes traffic");
        let mut before = EndpointHealth::Unasked;
        let stood = answers.chars().map(|answer| {
            let news = checked.heard(&policy, answer == '+');
            let now = checked.standing();
            let takes = |standing| standing != EndpointHealth::Unwell;
            assert_eq!(news.is_some(), takes(before) != takes(now), "{answers}");
            assert_eq!(checked.is_unwell(), now == EndpointHealth::Unwell);
            before = now;
            if takes(now) { '+' } else { '-' }
        });
        let stood: String = stood.collect();
        assert_eq!(stood, stands, "{answers} by {healthy} and {unhealthy}");
    }
}

#[test]
fn what_is_asked_otherwise_stands_as_it_stood() {
    let (policy, old) = (policy(2, 2), CheckedEndpoint::default());
    old.heard(&policy, false);
    let new = CheckedEndpoint::follow(&old);
    assert_eq!(new.standing(), EndpointHealth::Unwell);
    // But it begins to count.
    old.heard(&policy, true);
    assert_eq!(CheckedEndpoint::follow(&old).heard(&policy, true), None);
}

#[test]
fn a_question_is_put_once_when_it_is_due_and_the_first_within_a_second() {
    let policy = policy(1, 1);
    for lot in [1 << 40, 1 << 62, 1 << 63, u64::MAX] {
        let checked = CheckedEndpoint::default();
        let first = checked.claim(&policy, 5 * S, lot).expect_err("not at once");
        assert!(first > 5 * S && first <= 5 * S + FIRST_WITHIN, "{first:?}");
        assert_eq!(
            checked.claim(&policy, 5 * S, !lot),
            Err(first),
            "somebody said when"
        );
        let now = first + S;
        assert_eq!(checked.claim(&policy, now, lot), Ok(()), "it is due");
        let next = checked.claim(&policy, now, lot);
        let next = next.expect_err("somebody asks already");
        let more = (next - now).saturating_sub(10 * S).as_secs_f64();
        let share = lot as f64 / u64::MAX as f64;
        assert!((more - share).abs() < 1e-6, "{lot}: {more} more, by lot");
    }
}

#[test]
fn many_that_begin_together_are_asked_at_different_times() {
    let policy = CheckPolicy {
        interval: S / 5,
        ..policy(1, 1)
    };
    let mut random = fastrand::Rng::with_seed(7);
    let firsts = (0..1_000).map(|_| {
        let first = CheckedEndpoint::default().claim(&policy, S, random.u64(..));
        first.expect_err("not at once")
    });
    let mut tenths = [0; 10];
    for first in firsts {
        let after = first - S;
        assert!(after <= policy.interval, "within the interval: {after:?}");
        tenths[(after.as_millis() / 20).min(9) as usize] += 1;
    }
    assert!(
        tenths.iter().all(|tenth| (50..200).contains(tenth)),
        "{tenths:?}"
    );
}

#[test]
fn of_workers_that_come_at_once_one_asks() {
    let (policy, checked) = (policy(1, 1), CheckedEndpoint::default());
    let first = checked.claim(&policy, S, 0).expect_err("not at once");
    for round in 1..=200 {
        let now = first + round * 20 * S;
        let (checked, policy) = (&checked, &policy);
        let asked: usize = std::thread::scope(|scope| {
            let one =
                |lot| scope.spawn(move || usize::from(checked.claim(policy, now, lot).is_ok()));
            let all: Vec<_> = (0..4).map(|lot| one(lot << 60)).collect();
            all.into_iter()
                .map(|one| one.join().expect("no panic"))
                .sum()
        });
        assert_eq!(asked, 1, "round {round}");
    }
}
