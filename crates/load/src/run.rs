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
    let watched = progress || !options.abort.is_empty();
    let live = watched.then(Arc::<Mutex<Live>>::default);
    let (theirs, told) = (Arc::clone(&options), live.clone());
    let make = move |index| Worker::new(Arc::clone(&theirs), index, told.clone());
    let mut aborted = None;
    let ran = threads::run(&options, stop, make, |elapsed, _| {
        let live = live.as_deref()?;
        let second = std::mem::take(&mut *live.lock().unwrap_or_else(PoisonError::into_inner));
        if aborted.is_none() && elapsed > options.warmup {
            aborted = broken(&options, &second, elapsed);
            if aborted.is_some() {
                stop.raise();
            }
        }
        progress.then(|| live_line(&second, elapsed))
    })?;
    let mut total = Tally::new(ran.timeline.measure, ran.timeline.end);
    for tally in &ran.counts {
        total.merge(tally);
    }
    let interrupted = total.end < ran.timeline.end;
    let mut result = LoadResult::new(
        &options,
        &total,
        ran.start_unix,
        interrupted && aborted.is_none(),
    );
    if let Some(why) = aborted {
        result.valid = false;
        result.invalid_reasons.push(why.clone());
        result.aborted = Some(why);
    }
    Ok(result)
}

/// Why the run must end after such a second.
fn broken(options: &LoadOptions, second: &Live, elapsed: Duration) -> Option<String> {
    if second.latency.count() == 0 {
        return None;
    }
    options.abort.iter().find_map(|condition| {
        let (broken, found) = condition.of(&second.latency, second.errors);
        let at = elapsed.as_secs();
        broken.then(|| format!("aborted after {at} s: {found} within a second ({condition})"))
    })
}

fn live_line(second: &Live, elapsed: Duration) -> String {
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
