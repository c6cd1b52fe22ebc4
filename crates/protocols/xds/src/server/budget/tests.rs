//! Budget of one identity, as products; an account equals the sum of its streams.

use super::*;

/// An allowance of a mesh of so many resources, for an identity with so many workloads.
fn allowance(workloads: usize, resources: usize) -> Allowance {
    Allowance {
        workloads,
        resources,
        serves_nodes: false,
    }
}

const MIB: usize = 1024 * 1024;

#[test]
fn what_an_identity_may_have_in_all_is_bounded_whatever_its_streams_ask() {
    for (workloads, resources, stream, identity, streams) in [
        (0, 0, 4 * MIB, 8 * MIB, 64),
        (1, 0, 4 * MIB, 8 * MIB + 256 * 1024, 68),
        (
            1_000,
            5_000,
            4 * MIB + 5_000 * 1024,
            268 * MIB - 192 * 1024 - 37_888,
            4_064,
        ),
        (10_000, 5_000, 4 * MIB + 5_000 * 1024, 512 * MIB, 40_064),
        (1, 50_000, 4 * MIB + 50_000 * 1024, 0, 68),
    ] {
        let one = allowance(workloads, resources);
        assert_eq!(one.stream_bytes(), stream);
        assert_eq!(one.streams(), streams);
        if identity == 0 {
            // Two whole streams and the workload's.
            assert_eq!(one.identity_bytes(), 2 * stream + HELD_PER_WORKLOAD);
        } else if workloads != 1_000 {
            assert_eq!(one.identity_bytes(), identity);
        }
        // The product of streams and what each may hold is far more, and is not what counts.
        assert!(one.identity_bytes() < one.streams() * one.stream_bytes());
        assert!(one.identity_bytes() <= MAX_HELD_PER_IDENTITY.max(2 * stream));
    }
    // All streams of an identity fit into its bytes, each with a connection; and a whole message of its largest size does.
    for workloads in [0, 1, 100, 1_000] {
        let one = allowance(workloads, 100);
        assert!(one.streams() * STREAM_BYTES <= one.identity_bytes());
        assert!(one.message_bytes() + STREAM_BYTES <= one.identity_bytes());
    }
}

#[test]
fn unread_responses_of_an_identity_are_bounded_whatever_its_streams() {
    for (workloads, resources) in [(0, 0), (1, 0), (3, 5_000), (10_000, 5_000), (1, 500_000)] {
        let one = allowance(workloads, resources);
        let own = WHOLE_STREAMS * one.stream_unread();
        assert!(one.unread_bytes() <= MAX_UNREAD_PER_IDENTITY.max(own));
        assert!(one.unread_bytes() < one.streams() * one.stream_unread());
    }
    let accounts = Accounts::default();
    let now = Instant::now();
    let one = allowance(1, 0);
    let mut all: Vec<StreamBudget> = (0..one.streams())
        .map(|_| accounts.open(&"a".into(), &one, now).expect("a stream"))
        .collect();
    // A stream and its successor for the workload, and no more: the others are ended.
    let all_types = |share: &mut StreamBudget| share.leave_unread(UNREAD_PER_STREAM, &one).is_ok();
    let kept = all
        .iter_mut()
        .filter_map(|share| all_types(share).then_some(()))
        .count();
    assert_eq!(kept, WHOLE_STREAMS + 1);
    // Whoever reads makes room, as does a stream that ends.
    all[0].leave_unread(0, &one).expect("less");
    assert!(all_types(&mut all[kept]));
    assert!(!all_types(&mut all[kept + 1]));
    all.remove(1);
    assert!(all_types(&mut all[kept]));
    let mut other = accounts.open(&"b".into(), &one, now).expect("a stream");
    assert!(all_types(&mut other), "somebody else's");
}

#[test]
fn node_proxies_that_come_back_with_fifty_thousand_workloads_each_are_served() {
    // A workload's name and version, as a proxy says them when it comes back: `Kubernetes//Pod/NAMESPACE/NAME`.
    const NAME: usize = 110;
    let nodes = Allowance {
        workloads: 1_000,
        resources: 60_000,
        serves_nodes: true,
    };
    let held = 60_000;
    assert!(held * (NAME + 16 + 8) <= nodes.message_bytes());
    assert!(held <= nodes.fields());
    let kept = held * (SENT_BYTES + NAME + 16);
    assert!(kept <= nodes.stream_bytes());
    let accounts = Accounts::default();
    let now = Instant::now();
    let mut all = Vec::new();
    for _ in 0..nodes.workloads {
        let mut share = accounts
            .open(&"node".into(), &nodes, now)
            .expect("a stream");
        share.hold(kept, 0, &nodes).expect("what it holds");
        share.work(2 * held, &nodes, now).expect("what that costs");
        all.push(share);
    }
    // Anybody else of that mesh may hold all of it, once or twice.
    let one = allowance(1, 60_000);
    let mut share = accounts.open(&"one".into(), &one, now).expect("a stream");
    share
        .hold(kept, one.message_bytes(), &one)
        .expect("the whole mesh");
}

#[test]
fn streams_bytes_and_work_are_the_identitys_and_come_back_when_streams_end() {
    let accounts = Accounts::default();
    let now = Instant::now();
    let one = allowance(1, 0);
    let open = |who: &str, at| accounts.open(&who.into(), &one, at);
    let mut all: Vec<StreamBudget> = (0..one.streams())
        .map(|_| open("a", now).expect("a stream"))
        .collect();
    assert!(open("a", now).is_err(), "one more");
    assert!(open("b", now).is_ok(), "somebody else's");
    all.pop();
    all.push(open("a", now).expect("there is room again"));
    // The total of all streams is bounded: one stream holds all it may, and the others get nothing.
    let (mut taken, mut refused) = (0, 0);
    for share in &mut all {
        match share.hold(one.stream_bytes(), 0, &one) {
            Ok(()) => taken += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(
        taken == 1 && refused == one.streams() - 1,
        "{taken} and {refused}"
    );
    assert!(all[0].hold(one.stream_bytes() + 1, 0, &one).is_err());
    // A stream may always give memory back.
    all[0].hold(10, 0, &one).expect("less");
    all[1]
        .hold(one.stream_bytes(), 0, &one)
        .expect("the room that is free again");
    // Work: a burst, then what is earned.
    let mut looks = 0;
    while all[0].work(50_000, &one, now).is_ok() {
        looks += 1;
    }
    let burst = WORK_BURST + WORK_PER_WORKLOAD;
    assert!(
        (burst / 50_000 - 3..=burst / 50_000 + 1).contains(&looks),
        "{looks}"
    );
    assert!(all[1].work(1, &one, now).is_err(), "another stream of it");
    drop(all);
    assert!(open("a", now).is_err(), "to come again does not help");
    assert!(open("a", now + WORK_REFILL).is_ok());
    assert!(open("b", now).is_ok());
}

#[test]
fn certificates_and_streams_share_the_work_of_an_identity() {
    let accounts = Accounts::default();
    let now = Instant::now();
    let one = allowance(1, 0);
    let (a, b) = ("a".into(), "b".into());
    let certified = |at| {
        let work = (CERTIFICATE_WORK, &one);
        (0..)
            .take_while(|_| accounts.work(&a, work, at).is_ok())
            .count()
    };
    let burst = (WORK_BURST + WORK_PER_WORKLOAD) / CERTIFICATE_WORK;
    assert_eq!(certified(now), burst + 1);
    assert!(accounts.open(&a, &one, now).is_err(), "nor a stream");
    assert!(accounts.work(&b, (CERTIFICATE_WORK, &one), now).is_ok());
    let later = certified(now + WORK_REFILL / 10);
    assert!((burst / 10..=burst / 10 + 1).contains(&later), "{later}");
}

#[test]
fn names_that_are_refused_are_a_line_a_second_and_identity() {
    let accounts = Accounts::default();
    let now = Instant::now();
    let one = allowance(1, 0);
    let share = accounts.open(&"a".into(), &one, now).expect("a stream");
    let other = accounts.open(&"a".into(), &one, now).expect("a stream");
    assert_eq!(share.log_refused(3, now), Some(3));
    assert_eq!(other.log_refused(100_000, now), None);
    assert_eq!(share.log_refused(1, now + LOG_EVERY / 2), None);
    assert_eq!(share.log_refused(1, now + LOG_EVERY), Some(100_002));
}
