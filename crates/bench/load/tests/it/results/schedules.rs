//! Schedules as data.

use std::time::Duration;

use voile_load::ProfileSegment;
use voile_load::profile::Profile;
use voile_load::schedule::{Schedule, Spread};
use voile_load::trace::Trace;

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

fn whole() -> Spread {
    Spread::Even {
        offset: 0,
        stride: 1,
    }
}

/// Requests in each whole second.
fn by_second(schedule: Schedule) -> Vec<usize> {
    let mut seconds = Vec::new();
    for at in schedule {
        let second = (at / SECOND) as usize;
        while seconds.len() <= second {
            seconds.push(0);
        }
        seconds[second] += 1;
    }
    seconds
}

#[test]
fn a_ramp_sends_the_area_under_it() {
    let second = SECOND as f64;
    for (parts, wanted) in [
        // The area of each second of a ramp from 0 to 400/s, to the half.
        (vec![(0.0, 400.0, 4.0 * second)], vec![50, 150, 250, 350]),
        (vec![(400.0, 0.0, 4.0 * second)], vec![350, 250, 150, 50]),
        (
            vec![
                (100.0, 100.0, second),
                (0.0, 0.0, second),
                (300.0, 300.0, second),
            ],
            vec![100, 0, 300],
        ),
        (
            vec![(0.0, 100.0, 2.0 * second), (10.0, 10.0, second)],
            vec![25, 75, 10],
        ),
    ] {
        let end = wanted.len() as u64 * SECOND;
        let schedule = Schedule::shaped(0, end, Profile::new(&parts), whole(), 1);
        assert_eq!(by_second(schedule), wanted, "{parts:?}");
        let random = Spread::Random {
            share: 1.0,
            seed: 1,
        };
        let poisson = by_second(Schedule::shaped(0, end, Profile::new(&parts), random, 1));
        for (count, wanted) in poisson.iter().zip(&wanted) {
            // Six standard deviations, and the seed is fixed.
            let off = (*count as f64 - *wanted as f64).abs();
            assert!(
                off <= 6.0 * (*wanted as f64).sqrt(),
                "{poisson:?} of {parts:?}"
            );
        }
    }
}

#[test]
fn threads_share_a_shaped_schedule_without_a_gap() {
    let profile = || Profile::new(&[(10.0, 500.0, SECOND as f64), (50.0, 50.0, SECOND as f64)]);
    for burst in [1, 7] {
        let all: Vec<u64> =
            Schedule::shaped(3, 3 + 2 * SECOND, profile(), whole(), burst).collect();
        let mut shares: Vec<u64> = (0..3)
            .flat_map(|offset| {
                let spread = Spread::Even { offset, stride: 3 };
                Schedule::shaped(3, 3 + 2 * SECOND, profile(), spread, burst)
            })
            .collect();
        shares.sort_unstable();
        assert_eq!(shares, all);
    }
}

#[test]
fn bursts_are_due_at_once_and_keep_the_rate() {
    let even: Vec<u64> =
        Schedule::shaped(0, SECOND, Profile::constant(100.0), whole(), 10).collect();
    assert_eq!(even.len(), 100);
    for (k, at) in even.iter().enumerate() {
        assert_eq!(*at, k as u64 / 10 * 100_000_000);
    }
    let spread = Spread::Random {
        share: 0.5,
        seed: 3,
    };
    let random: Vec<u64> =
        Schedule::shaped(0, 100 * SECOND, Profile::constant(1000.0), spread, 5).collect();
    for burst in random.chunks(5) {
        assert!(burst.iter().all(|at| *at == burst[0]));
    }
    // 50,000 expected in 10,000 bursts: standard deviation 500.
    assert!((47_000..53_000).contains(&random.len()), "{}", random.len());
}

#[test]
fn a_recorded_trace_is_sent_as_it_was() {
    let text = "# time,path\n10.5,/a\n10.25\t/b\n\n  11.75  # last\n10.25;x\n";
    let instants = Trace::parse(text, 1.0).unwrap().instants;
    assert_eq!(instants, [0, 0, 250_000_000, 1_500_000_000]);
    assert_eq!(Trace::parse(text, 2.0).unwrap().instants[3], 750_000_000);
    let share = |offset| Schedule::trace(9, 9 + 2 * SECOND, instants.clone().into(), offset, 2);
    assert_eq!(share(0).collect::<Vec<_>>(), [9, 250_000_009]);
    assert_eq!(share(1).collect::<Vec<_>>(), [9, 1_500_000_009]);
    for (text, word) in [
        ("", "no request"),
        ("# x\n", "no request"),
        ("1\nx\n", "line 2"),
        ("NaN", "line 1"),
        ("inf", "line 1"),
    ] {
        assert!(
            Trace::parse(text, 1.0).unwrap_err().contains(word),
            "{text:?}"
        );
    }
}

#[test]
fn access_logs_are_traces_too() {
    let asked = |text: &str| {
        let trace = Trace::parse(text, 1.0)
            .map_err(|why| panic!("{text}: {why}"))
            .unwrap();
        let which = trace.which.iter().map(|which| {
            let asked = &trace.requests[*which as usize];
            format!("{} {}", asked.method, asked.path)
        });
        (trace.instants.clone(), which.collect::<Vec<_>>().join(", "))
    };
    let (half, second) = (SECOND / 2, SECOND);
    for (text, instants, wanted) in [
        // Our own: the method may be left out.
        ("1.5 POST /a\n1 /b x\n", vec![0, half], "GET /b, POST /a"),
        ("7;GET;/a\n", vec![0], "GET /a"),
        ("7 nothing\n", vec![0], ""),
        // nginx and Apache, across a day and a zone; two of one second share it.
        (
            "1.2.3.4 - - [28/Feb/2024:23:59:59 +0000] \"GET /a?b=1 HTTP/1.1\" 200 5 \"-\" \"curl\"\n\
             ::1 - me [29/Feb/2024:00:59:59 +0100] \"HEAD / HTTP/1.0\" 200 5\n\
             1.2.3.4 - - [29/Feb/2024:00:00:00 +0000] \"GET /a?b=1 HTTP/1.1\" 200 5\n",
            vec![0, half, second],
            "GET /a?b=1, HEAD /, GET /a?b=1",
        ),
        // Envoy's and Istio's.
        (
            "[2026-11-21T20:00:00.500Z] \"GET /x HTTP/1.1\" 200 - via_upstream\n\
             [2026-11-21T19:59:59.000Z] \"- - -\" 0 -\n",
            vec![0, second + half],
            "",
        ),
        // JSON of several makers.
        (
            "{\"start_time\":\"2026-11-21T20:00:00.5Z\",\"method\":\"PUT\",\"path\":\"/p\"}\n\
             {\"start_time\":\"2026-11-21T20:00:01.000Z\",\"path\":\"/q\"}\n",
            vec![0, half],
            "PUT /p, GET /q",
        ),
        (
            "{\"time\":\"21/Nov/2026:20:00:00 +0000\",\"request\":\"GET /n HTTP/1.1\"}\n",
            vec![0],
            "GET /n",
        ),
        (
            "{\"ts\":1700000000.25}\n{\"ts\":\"1700000000.75\"}\n",
            vec![0, half],
            "",
        ),
        (
            "2026-11-21T20:00:00Z GET /x\n2026-11-21T21:00:00+01:00 GET /x\n",
            vec![0, half],
            "GET /x, GET /x",
        ),
    ] {
        assert_eq!(asked(text), (instants, wanted.to_owned()), "{text}");
    }
    for (text, word) in [
        (
            "1.2.3.4 - - [32/Feb/2024:23:59:59 +0000] \"GET / HTTP/1.1\" 200",
            "line 1",
        ),
        ("1.2.3.4 - - [yesterday] \"GET / HTTP/1.1\" 200", "line 1"),
        ("{\"path\":\"/\"}", "no time in it"),
        ("{\"time\":true}", "is not a time"),
        ("{\"time\":", "not JSON"),
        ("1\n99999999999999", "line 2"),
        ("2026-11-21T20:00:00+ü", "line 1"),
    ] {
        let why = Trace::parse(text, 1.0).unwrap_err();
        assert!(why.contains(word), "{text}: {why}");
    }
    // The first line without a request is named, and the times are good all the same.
    let trace = Trace::parse("1 GET /\n\n2\n", 1.0).unwrap();
    assert_eq!((trace.nameless, trace.instants.len()), (Some(3), 2));
}

#[test]
fn rates_over_time_are_read_and_wrong_ones_refused() {
    let part = |from, to, seconds: u64| ProfileSegment {
        from,
        to,
        length: (seconds > 0).then(|| Duration::from_secs(seconds)),
    };
    for (text, wanted) in [
        ("1000", vec![part(1000.0, 1000.0, 0)]),
        ("0", vec![part(0.0, 0.0, 0)]),
        ("100..2000", vec![part(100.0, 2000.0, 0)]),
        (
            "100, 200,1.5",
            vec![
                part(100.0, 100.0, 0),
                part(200.0, 200.0, 0),
                part(1.5, 1.5, 0),
            ],
        ),
        (
            "100@5s,0..1e3@10s",
            vec![part(100.0, 100.0, 5), part(0.0, 1000.0, 10)],
        ),
    ] {
        assert_eq!(ProfileSegment::parse(text).unwrap(), wanted, "{text}");
    }
    for text in [
        "", "x", "-1", "1..", "..2", "1@", "1@0s", "1@5s,2", "nan", "inf", "1,,2",
    ] {
        assert!(ProfileSegment::parse(text).is_err(), "{text}");
    }
}
