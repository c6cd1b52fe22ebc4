//! Threads that connect, start together and count for themselves, for any generator; and the live line meanwhile.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::accept::raise_descriptor_limit;
use crate::clock::{MILLISECOND, now, unix_now};
use crate::options::LoadOptions;
use crate::stop::Stop;
use crate::worker::Timeline;

/// From "all connected" to the first request: time for every thread to wake and arm its timer.
const START_LEAD_NS: u64 = 10 * MILLISECOND;
/// Interval of the live line.
const LIVE_EVERY: Duration = Duration::from_secs(1);

/// Start of a run that does not begin because one thread could not: then no thread sends.
const NEVER: u64 = u64::MAX;

/// Work of one thread.
pub(crate) trait Generator: Sized {
    /// Result of the thread.
    type Count: Send + 'static;

    /// Connects.
    fn prepare(&mut self, stop: &Stop) -> io::Result<()>;

    /// Sends, and counts what comes of it.
    fn run(self, timeline: Timeline, stop: &Stop) -> io::Result<Self::Count>;
}

/// Results of all threads.
pub(crate) struct ThreadResults<T> {
    pub(crate) counts: Vec<T>,
    pub(crate) timeline: Timeline,
    /// Unix time at which the measured part began, in nanoseconds.
    pub(crate) start_unix: u64,
}

/// Runs `options.threads` generators, each made by `make` on its own thread, blocking until all are done. Each second, `line`
/// formats the time since the start and the counts since the last line; the text goes to stderr.
pub(crate) fn run<G: Generator>(
    options: &Arc<LoadOptions>,
    stop: &Stop,
    make: impl Fn(usize) -> io::Result<G> + Clone + Send + 'static,
    line: impl FnMut(Duration, Duration) -> Option<String>,
) -> io::Result<ThreadResults<G::Count>> {
    options
        .check()
        .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
    raise_descriptor_limit();
    let connected = Arc::new(Barrier::new(options.threads + 1));
    let started = Arc::new(Barrier::new(options.threads + 1));
    let start = Arc::new(AtomicU64::new(NEVER));
    let failed = Arc::new(AtomicBool::new(false));
    let (done, finished) = channel::<()>();
    let mut threads = Vec::new();
    for index in 0..options.threads {
        let (options, stop, done) = (Arc::clone(options), stop.clone(), done.clone());
        let (connected, started) = (Arc::clone(&connected), Arc::clone(&started));
        let (start, failed) = (Arc::clone(&start), Arc::clone(&failed));
        let make = make.clone();
        let body = move || {
            let prepared = make(index).and_then(|mut generator| {
                generator.prepare(&stop)?;
                Ok(generator)
            });
            failed.fetch_or(prepared.is_err(), Ordering::AcqRel);
            connected.wait();
            started.wait();
            let start = start.load(Ordering::Acquire);
            let count = prepared.and_then(|generator| match start {
                NEVER => Ok(None),
                start => generator.run(timeline(&options, start), &stop).map(Some),
            });
            let _ = done.send(());
            count
        };
        let thread = thread::Builder::new().name(format!("load-{index}"));
        threads.push(thread.spawn(body)?);
    }
    drop(done);
    connected.wait();
    let timeline = timeline(options, now() + START_LEAD_NS);
    if !failed.load(Ordering::Acquire) {
        start.store(timeline.start, Ordering::Release);
    }
    let start_unix = unix_now() + timeline.measure.saturating_sub(now());
    started.wait();
    every_second(&finished, options.threads, line);
    let panicked = |_| Err(io::Error::other("a load thread panicked"));
    let counts = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(panicked))
        .collect::<io::Result<Vec<_>>>()?;
    Ok(ThreadResults {
        counts: counts.into_iter().flatten().collect(),
        timeline,
        start_unix,
    })
}

fn timeline(options: &LoadOptions, start: u64) -> Timeline {
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
fn every_second(
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
                    let _ = io::stderr().write_all(line.as_bytes());
                }
                last = at;
            }
        }
    }
}
