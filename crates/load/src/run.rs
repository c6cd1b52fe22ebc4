//! A whole run: threads that connect, start together, and whose tallies are added up; and the live line meanwhile.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::accept::raise_descriptor_limit;
use crate::clock::{MILLISECOND, now, unix_now};
use crate::options::LoadOptions;
use crate::outcome::LoadResult;
use crate::stop::Stop;
use crate::tally::Tally;
use crate::worker::{Live, Timeline, Worker};

/// From "all connected" to the first request: time for every thread to wake and arm its timer.
pub(crate) const START_LEAD_NS: u64 = 10 * MILLISECOND;
/// How often the live line is printed.
const LIVE_EVERY: Duration = Duration::from_secs(1);

/// Runs the load, blocking until it is over. With `progress`, prints a line to stderr each second.
pub fn run(options: &LoadOptions, stop: &Stop, progress: bool) -> io::Result<LoadResult> {
    options
        .check()
        .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
    raise_descriptor_limit();
    let options = Arc::new(options.clone());
    let connected = Arc::new(Barrier::new(options.threads + 1));
    let started = Arc::new(Barrier::new(options.threads + 1));
    let start = Arc::new(AtomicU64::new(0));
    let live = progress.then(Arc::<Mutex<Live>>::default);
    let (done, finished) = channel::<()>();
    let mut threads = Vec::new();
    for index in 0..options.threads {
        let worker = Worker::new(Arc::clone(&options), index, live.clone())?;
        let (options, stop, done) = (Arc::clone(&options), stop.clone(), done.clone());
        let (connected, started, start) = (
            Arc::clone(&connected),
            Arc::clone(&started),
            Arc::clone(&start),
        );
        let body = move || {
            let mut worker = worker;
            let prepared = worker.prepare(&stop);
            connected.wait();
            started.wait();
            let timeline = timeline(&options, start.load(Ordering::Acquire));
            let tally = prepared.and_then(|()| worker.run(timeline, &stop));
            let _ = done.send(());
            tally
        };
        threads.push(
            thread::Builder::new()
                .name(format!("load-{index}"))
                .spawn(body)?,
        );
    }
    drop(done);
    connected.wait();
    let timeline = timeline(&options, now() + START_LEAD_NS);
    start.store(timeline.start, Ordering::Release);
    let start_unix = unix_now() + timeline.measure.saturating_sub(now());
    started.wait();
    every_second(&finished, options.threads, |elapsed, _| {
        live.as_deref().map(|live| live_line(live, elapsed))
    });
    let mut total = Tally::new(timeline.measure, timeline.end);
    for thread in threads {
        let tally = thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a load thread panicked")))?;
        total.merge(&tally);
    }
    let interrupted = total.end < timeline.end;
    Ok(LoadResult::new(&options, &total, start_unix, interrupted))
}

pub(crate) fn timeline(options: &LoadOptions, start: u64) -> Timeline {
    let nanoseconds =
        |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4);
    let measure = start.saturating_add(nanoseconds(options.warmup));
    Timeline {
        start,
        measure,
        end: measure.saturating_add(nanoseconds(options.duration)),
    }
}

/// Waits for all threads, printing to stderr each second what `line` says of the time since the start and since the
/// last line.
pub(crate) fn every_second(
    finished: &Receiver<()>,
    mut running: usize,
    mut line: impl FnMut(Duration, Duration) -> Option<String>,
) {
    let began = Instant::now();
    let (mut last, mut next) = (began, began + LIVE_EVERY);
    while running > 0 {
        match finished.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(()) => running -= 1,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                next += LIVE_EVERY;
                let at = Instant::now();
                if let Some(line) = line(at - began, at - last) {
                    // A broken stderr must not end the run.
                    let _ = writeln!(io::stderr(), "{line}");
                }
                last = at;
            }
        }
    }
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
