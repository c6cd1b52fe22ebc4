//! The reported percentiles against what the server's own log says. The log bounds each request's time from both sides by the
//! order of events alone, so a busy machine widens the bounds and breaks none. How close the figures are is for the lab.

use std::time::Duration;

use voile_load::Stop;
use voile_load::echo::{EchoOptions, Log, Stall};
use voile_load::samples::Samples;

use crate::server::{PATIENCE, Served};

/// A reported percentile may be so far from the exact one: the histogram keeps three digits.
const WITHIN: f64 = 0.001;
/// Lost by rounding, in µs.
const ROUNDING: f64 = 1.0;

/// The smallest of these sorted times (ns) that so many do not exceed, in µs.
fn exact(sorted: &[u64], quantile: f64) -> f64 {
    let rank = (quantile * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted[rank - 1] as f64 / 1e3
}

/// One connection sends a request after the other. A request takes at least the time for which the server held it, and at most
/// the time between the answer before it and the arrival of the request after it.
#[test]
fn percentiles_are_within_what_the_servers_own_log_allows() {
    let log = Log::default();
    let server = Served::echo(EchoOptions {
        log: Some(Log::clone(&log)),
        ..EchoOptions::default()
    });
    // No shape that a formula has.
    let mut options = server.load("/?delay=2ms:20,3ms:20,5ms:20,9ms:20,20ms:15,45ms:4.5");
    (options.rate, options.connections) = (0.0, 1);
    options.duration = Duration::from_secs(3);
    options.timeout = PATIENCE;
    let result = voile_load::run(&options, &Stop::new().unwrap(), false).unwrap();
    let log = log.lock().unwrap();
    let count = usize::try_from(result.ok).unwrap();
    assert!(
        count > 20 && result.errors_total == 0,
        "{:?}",
        result.errors
    );
    // Begun at the end, and not counted.
    assert!(log.len() - count <= 1, "{count} of {}", log.len());
    let (mut least, mut most): (Vec<u64>, Vec<u64>) = (1..count - 1)
        .map(|at| (log[at].1 - log[at].0, log[at + 1].0 - log[at - 1].1))
        .unzip();
    // The first and the last have no neighbour.
    least.extend([0, 0]);
    most.extend([u64::MAX, u64::MAX]);
    least.sort_unstable();
    most.sort_unstable();
    let samples = Samples::decode(&result.service_histogram).unwrap();
    assert_eq!(samples.count(), result.ok);
    for quantile in [0.1, 0.25, 0.5, 0.75, 0.9] {
        let told = samples.quantile_us(quantile) as f64;
        let (least, most) = (exact(&least, quantile), exact(&most, quantile));
        assert!(
            told >= least * (1.0 - WITHIN) - ROUNDING && told <= most * (1.0 + WITHIN) + ROUNDING,
            "{quantile}: {told} µs reported, {least} to {most} in the log"
        );
    }
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

/// Two fifteenths of the requests fall due in the stall and wait for what is left of it: the q-quantile waits
/// 800 ms × (1 - (1 - q) / (2 / 15)).
/// Connections are few, so the requests in flight alone would hide it.
#[test]
fn a_programmed_stall_is_not_hidden_from_the_latency() {
    let (every, length) = (Duration::from_secs(4), Duration::from_millis(800));
    let stall = Some(Stall { every, length });
    let server = Served::echo(EchoOptions {
        stall,
        ..EchoOptions::default()
    });
    let mut options = server.load("/");
    (options.rate, options.connections) = (200.0, 32);
    // The first stall begins a period after the server's start. A later start of the load meets more of stalls, not less.
    options.duration = every + every / 2;
    options.timeout = PATIENCE;
    let result = voile_load::run(&options, &Stop::new().unwrap(), false).unwrap();
    assert_eq!(result.ok, result.scheduled, "{:?}", result.errors);
    let samples = |histogram: &str| Samples::decode(histogram).unwrap();
    let latency = samples(&result.latency_histogram);
    let service = samples(&result.service_histogram);
    for (quantile, ms) in [(0.90, 200.0), (0.95, 500.0), (0.99, 740.0)] {
        // Requests fall due at whole steps of 5 ms.
        let told = latency.quantile_us(quantile) as f64 / 1e3;
        assert!(told >= ms * 0.98, "{quantile}: {told} ms for {ms}");
        let service = service.quantile_us(quantile) as f64 / 1e3;
        assert!(service <= told, "{quantile}: {service} ms of {told}");
    }
}
