//! The reported percentiles against what the server was programmed to do. A loaded machine only ever adds time, so each
//! truth has several attempts: an error of the generator's own would be in all of them.

use std::time::Duration;

use voile_load::echo::{EchoOptions, Log, Stall};
use voile_load::samples::Samples;
use voile_load::{LoadOptions, LoadResult, Stop};

use crate::server::{PATIENCE, Served};

/// A reported percentile may be so far from the exact one.
const WITHIN: f64 = 0.01;
/// On a machine that is busy with others a run may be spoiled; one of so many has to hold.
const ATTEMPTS: usize = 10;

/// Runs until every percentile is within the bound of the exact one, or says how far off each was in the last attempt.
fn holds(
    options: &LoadOptions,
    of: fn(&LoadResult) -> &str,
    mut exact: impl FnMut() -> Vec<(f64, f64)>,
) {
    let mut off = Vec::new();
    for _ in 0..ATTEMPTS {
        // Discards the samples that earlier runs have left.
        exact();
        let result = voile_load::run(options, &Stop::new().unwrap(), false).unwrap();
        let samples = Samples::decode(of(&result)).unwrap();
        let told = exact().into_iter().map(|(quantile, ms)| {
            let told = samples.quantile_us(quantile) as f64 / 1_000.0;
            (quantile, ms, told)
        });
        off = told
            .filter(|(_, ms, told)| (told - ms).abs() > ms * WITHIN)
            .collect();
        if off.is_empty() && result.ok == result.scheduled {
            return;
        }
    }
    panic!("quantile, exact ms, reported ms: {off:?}");
}

/// Exact quantiles of the server's delays, from its own log, which is then emptied.
fn by_log(log: &Log, quantiles: &[f64]) -> Vec<(f64, f64)> {
    let mut held: Vec<u64> = std::mem::take(&mut *log.lock().unwrap())
        .iter()
        .map(|(arrived, answered)| answered - arrived)
        .collect();
    held.sort_unstable();
    if held.is_empty() {
        return Vec::new();
    }
    let exact = |quantile: &f64| {
        // The smallest value that so many do not exceed.
        let rank = (quantile * held.len() as f64).ceil().max(1.0) as usize;
        (*quantile, held[rank - 1] as f64 / 1e6)
    };
    quantiles.iter().map(exact).collect()
}

#[test]
fn percentiles_are_those_of_the_delays_in_the_servers_own_log() {
    let log = Log::default();
    let server = Served::echo(EchoOptions {
        log: Some(Log::clone(&log)),
        ..EchoOptions::default()
    });
    // No shape that a formula has, and every quantile of it known to the sample.
    let mut options = server.load("/?delay=150ms:20,170ms:20,200ms:20,260ms:20,500ms:15,900ms:4.5");
    (options.rate, options.connections) = (400.0, 400);
    options.duration = Duration::from_secs(2);
    options.timeout = PATIENCE;
    let quantiles = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0];
    // The tail of 0.5 % without a delay is below what 1 % of can be measured.
    holds(
        &options,
        |result| &result.service_histogram,
        || by_log(&log, &quantiles),
    );
}

#[test]
fn reported_percentiles_of_any_samples_are_exact_to_a_thousandth() {
    let mut random = fastrand::Rng::with_seed(7);
    for shape in [0.1, 1.0, 3.0] {
        let mut samples = Samples::new();
        // From microseconds to seconds, the same to the sample on every machine.
        let mut exact: Vec<u64> = (0..100_000)
            .map(|_| {
                let normal: f64 = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
                ((1_000_000.0 * (normal * shape).exp()) as u64).min(50_000_000_000)
            })
            .collect();
        for ns in &exact {
            samples.record(*ns);
        }
        exact.sort_unstable();
        for quantile in [0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let at =
                exact[((quantile * exact.len() as f64).ceil() as usize).max(1) - 1] as f64 / 1e3;
            let told = samples.quantile_us(quantile) as f64;
            // Half a microsecond is lost by rounding.
            assert!(
                (told - at).abs() <= at / 1_000.0 + 0.5,
                "{shape} {quantile}: {told} for {at}"
            );
        }
    }
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
    holds(
        &options,
        |result| &result.latency_histogram,
        || exact.to_vec(),
    );
    holds(
        &options,
        |result| &result.service_histogram,
        || exact.to_vec(),
    );
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
    holds(
        &options,
        |result| &result.latency_histogram,
        || exact.to_vec(),
    );
    let result = voile_load::run(&options, &Stop::new().unwrap(), false).unwrap();
    assert!(
        result.service_us.p90 < 200_000,
        "service time hides it: {}",
        result.service_us.p90
    );
}
