//! Bulk load: as many bytes as go through, one way, for a while. Counted at the far end: bytes that our sink says it
//! has taken, or, of a sink that says nothing, bytes that the kernel knows to have arrived.

mod outcome;
mod worker;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::options::LoadOptions;
use crate::stop::Stop;
use crate::threads;
use worker::{BulkCount, BulkWorker};

pub use outcome::{BulkResult, BulkSecond};

/// Runs the load, blocking until it is over. With `progress`, prints a line to stderr each second.
pub fn run(options: &LoadOptions, stop: &Stop, progress: bool) -> io::Result<BulkResult> {
    let options = Arc::new(options.clone());
    let arrived = Arc::new(AtomicU64::new(0));
    let (theirs, counted) = (Arc::clone(&options), Arc::clone(&arrived));
    let make = move |index| BulkWorker::new(&theirs, index, Arc::clone(&counted));
    let ran = threads::run(&options, stop, make, |elapsed, span| {
        let bytes = arrived.swap(0, Ordering::Relaxed);
        progress.then(|| {
            let rate = outcome::gigabits(bytes, span.as_secs_f64());
            format!("{:>4} s  {rate:>8.3} Gbit/s\n", elapsed.as_secs())
        })
    })?;
    let mut total = BulkCount::default();
    for count in &ran.counts {
        total.merge(count);
    }
    Ok(BulkResult::new(
        &options,
        &total,
        ran.timeline,
        ran.start_unix,
    ))
}
