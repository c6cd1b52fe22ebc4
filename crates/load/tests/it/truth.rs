//! The reported percentiles against what the server was programmed to do. A loaded machine only ever adds time, so each
//! truth has several attempts: an error of the generator's own would be in all of them.

use std::time::Duration;

use voile_load::echo::{EchoOptions, Stall};
use voile_load::samples::Samples;
use voile_load::{LoadOptions, LoadResult, Stop};

use crate::server::{PATIENCE, Served};

/// A reported percentile may be so far from the exact one.
const WITHIN: f64 = 0.01;
const ATTEMPTS: usize = 6;

/// Runs until every percentile is within the bound, or says how far off the last attempt was.
fn holds(options: &LoadOptions, exact: &[(f64, f64)], of: fn(&LoadResult) -> &str) {
    let mut off = Vec::new();
    for _ in 0..ATTEMPTS {
        let result = voile_load::run(options, &Stop::new().unwrap(), false).unwrap();
        if result.ok != result.scheduled {
            // The machine stood still for longer than answers are waited for.
            off = vec![(0.0, result.scheduled as f64, result.ok as f64)];
            continue;
        }
        let samples = Samples::decode(of(&result)).unwrap();
        let told = exact.iter().map(|(quantile, ms)| {
            let told = samples.quantile_us(*quantile) as f64 / 1_000.0;
            (*quantile, *ms, told)
        });
        off = told
            .filter(|(_, ms, told)| (told - ms).abs() > ms * WITHIN)
            .collect();
        if off.is_empty() {
            return;
        }
    }
    panic!("quantile, programmed ms, reported ms: {off:?}");
}

#[test]
fn percentiles_are_those_of_the_programmed_delays() {
    let server = Served::echo(EchoOptions::default());
    let path = "/?delay=200ms:60,400ms:30,700ms:10";
    let mut options = server.load(path);
    (options.rate, options.connections) = (400.0, 400);
    options.duration = Duration::from_secs(2);
    options.timeout = PATIENCE;
    // Of 800 requests the shares are within 5 % of the programmed ones by six deviations: these quantiles are well inside.
    let exact = [
        (0.10, 200.0),
        (0.50, 200.0),
        (0.70, 400.0),
        (0.80, 400.0),
        (0.97, 700.0),
        (0.999, 700.0),
    ];
    holds(&options, &exact, |result| &result.latency_histogram);
    holds(&options, &exact, |result| &result.service_histogram);
}

#[test]
fn a_programmed_stall_has_the_percentiles_that_follow_from_it() {
    let (every, length) = (Duration::from_secs(4), Duration::from_millis(800));
    let stall = Some(Stall { every, length });
    let server = Served::echo(EchoOptions {
        stall,
        ..EchoOptions::default()
    });
    let mut options = server.load("/");
    (options.rate, options.connections) = (200.0, 32);
    // One whole period holds one whole stall, wherever it begins.
    options.duration = every;
    options.timeout = PATIENCE;
    // A fifth of the requests fall due in the stall and wait for what is left of it: the q-quantile waits
    // 800 ms × (1 - (1 - q) / 0.2). Connections are few, so that those in flight alone would hide it. A stall at the very end is
    // shorter than the second for which answers are waited for.
    let exact = [(0.90, 400.0), (0.95, 600.0), (0.99, 760.0)];
    holds(&options, &exact, |result| &result.latency_histogram);
    let result = voile_load::run(&options, &Stop::new().unwrap(), false).unwrap();
    assert!(
        result.service_us.p90 < 200_000,
        "service time hides it: {}",
        result.service_us.p90
    );
}
