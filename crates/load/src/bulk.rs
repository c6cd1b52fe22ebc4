//! Bulk load: as many bytes as go through, one way, for a while. Counted at the far end: bytes that our sink says it
//! has taken, or, of a sink that says nothing, bytes that the kernel knows to have arrived.

mod outcome;
mod worker;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;

use crate::accept::raise_descriptor_limit;
use crate::clock::{now, unix_now};
use crate::options::LoadOptions;
use crate::run::{START_LEAD_NS, every_second, timeline};
use crate::stop::Stop;
use worker::{Count, Worker};

pub use outcome::{BulkResult, BulkSecond};

/// Runs the load, blocking until it is over. With `progress`, prints a line to stderr each second.
pub fn run(options: &LoadOptions, stop: &Stop, progress: bool) -> io::Result<BulkResult> {
    options
        .check()
        .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
    raise_descriptor_limit();
    let options = Arc::new(options.clone());
    let connected = Arc::new(Barrier::new(options.threads + 1));
    let started = Arc::new(Barrier::new(options.threads + 1));
    let start = Arc::new(AtomicU64::new(0));
    let arrived = Arc::new(AtomicU64::new(0));
    let (done, finished) = channel::<()>();
    let mut threads = Vec::new();
    for index in 0..options.threads {
        let (options, stop, done) = (Arc::clone(&options), stop.clone(), done.clone());
        let (connected, started) = (Arc::clone(&connected), Arc::clone(&started));
        let (start, arrived) = (Arc::clone(&start), Arc::clone(&arrived));
        let body = move || {
            let prepared = Worker::new(&options, index, arrived).and_then(|mut worker| {
                worker.prepare(&stop)?;
                Ok(worker)
            });
            connected.wait();
            started.wait();
            let timeline = timeline(&options, start.load(Ordering::Acquire));
            let count = prepared.and_then(|worker| worker.run(timeline, &stop));
            let _ = done.send(());
            count
        };
        let thread = thread::Builder::new().name(format!("bulk-{index}"));
        threads.push(thread.spawn(body)?);
    }
    drop(done);
    connected.wait();
    let timeline = timeline(&options, now() + START_LEAD_NS);
    start.store(timeline.start, Ordering::Release);
    let start_unix = unix_now() + timeline.measure.saturating_sub(now());
    started.wait();
    every_second(&finished, options.threads, |elapsed, span| {
        let bytes = arrived.swap(0, Ordering::Relaxed);
        progress.then(|| {
            let rate = outcome::gigabits(bytes, span.as_secs_f64());
            format!("{:>4} s  {rate:>8.3} Gbit/s", elapsed.as_secs())
        })
    });
    let mut total = Count::default();
    for thread in threads {
        let count = thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a bulk thread panicked")))?;
        total.merge(&count);
    }
    Ok(BulkResult::new(&options, &total, timeline, start_unix))
}
