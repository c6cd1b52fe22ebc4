//! A whole run of requests: threads whose tallies are added up, and what the live line says.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::options::LoadOptions;
use crate::outcome::LoadResult;
use crate::stop::Stop;
use crate::tally::Tally;
use crate::threads;
use crate::worker::{Live, Worker};

/// Runs the load, blocking until it is over. With `progress`, prints a line to stderr each second.
pub fn run(options: &LoadOptions, stop: &Stop, progress: bool) -> io::Result<LoadResult> {
    let options = Arc::new(options.clone());
    let live = progress.then(Arc::<Mutex<Live>>::default);
    let (theirs, told) = (Arc::clone(&options), live.clone());
    let make = move |index| Worker::new(Arc::clone(&theirs), index, told.clone());
    let ran = threads::run(&options, stop, make, |elapsed, _| {
        live.as_deref().map(|live| live_line(live, elapsed))
    })?;
    let mut total = Tally::new(ran.timeline.measure, ran.timeline.end);
    for tally in &ran.counts {
        total.merge(tally);
    }
    let interrupted = total.end < ran.timeline.end;
    Ok(LoadResult::new(
        &options,
        &total,
        ran.start_unix,
        interrupted,
    ))
}

fn live_line(live: &Mutex<Live>, elapsed: Duration) -> String {
    let second = std::mem::take(&mut *live.lock().unwrap_or_else(PoisonError::into_inner));
    let (ok, errors) = (second.ok, second.errors);
    let (p50, p99) = (
        second.latency.quantile_us(0.50),
        second.latency.quantile_us(0.99),
    );
    let seconds = elapsed.as_secs();
    let rate = ok + errors;
    format!(
        "{seconds:>4} s  {rate:>7} answers/s  {ok:>7} ok  {errors:>5} errors  p50 {p50:>7} µs  p99 {p99:>7} µs"
    )
}
