//! A whole run of requests: its threads, the sum of their tallies, and the text of the live line.

use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::options::{LoadOptions, UNTIL_STOPPED};
use crate::outcome::LoadResult;
use crate::stop::Stop;
use crate::tally::{FirstAnswer, RunTally};
use crate::threads;
use crate::view::{self, LoadView, Progress};
use crate::worker::{Live, LoadWorker};

/// Columns and lines where no terminal says how many it has.
const USUAL_ROOM: (usize, usize) = (80, 24);

/// Runs the load, blocking until it is over. `progress` selects the live view on stderr.
pub fn run(
    options: &LoadOptions,
    stop: &Stop,
    progress: impl Into<Progress>,
) -> io::Result<LoadResult> {
    let progress = progress.into();
    let options = Arc::new(options.clone());
    let watched = progress != Progress::Quiet || !options.abort.is_empty();
    let live = watched.then(Arc::<Mutex<Live>>::default);
    let first = Arc::<FirstAnswer>::default();
    let (theirs, told, signs) = (Arc::clone(&options), live.clone(), Arc::clone(&first));
    let make = move |index| {
        let mut worker = LoadWorker::new(Arc::clone(&theirs), index, told.clone())?;
        worker.first = Arc::clone(&signs);
        Ok(worker)
    };
    let mut aborted = None;
    let mut picture = LoadView::default();
    let planned = options.warmup + options.duration;
    let ran = threads::run(&options, stop, make, |elapsed, _| {
        if aborted.is_none() {
            aborted = hopeless(&options, &first, elapsed);
            if aborted.is_some() {
                stop.raise();
            }
        }
        let live = live.as_deref()?;
        let second = std::mem::take(&mut *live.lock().unwrap_or_else(PoisonError::into_inner));
        if aborted.is_none() && elapsed > options.warmup {
            aborted = broken(&options, &second, elapsed);
            if aborted.is_some() {
                stop.raise();
            }
        }
        match progress {
            Progress::Quiet => None,
            Progress::Lines => Some(view::line(&second, elapsed)),
            Progress::Picture => Some(picture.draw(&second, elapsed, planned, room())),
        }
    })?;
    // A broken stderr must not end the run.
    let _ = io::stderr().write_all(picture.erase().as_bytes());
    let mut total = RunTally::new(ran.timeline.measure, ran.timeline.end, false);
    for tally in &ran.counts {
        total.merge(tally);
    }
    total.settle();
    // A number of requests ends a run as planned; and one that has no end is ended by the user.
    let early = total.end < ran.timeline.end && stop.raised();
    let interrupted = early && options.duration < UNTIL_STOPPED;
    let aborted = aborted.or_else(|| total.aborted.map(unwanted));
    let mut result = LoadResult::new(
        &options,
        &total,
        ran.start_unix,
        interrupted && aborted.is_none(),
    );
    if let Some(why) = aborted {
        result.abort(why);
    }
    Ok(result)
}

/// Reason why the run must end, if no server has answered a request although it had its time.
fn hopeless(options: &LoadOptions, first: &FirstAnswer, elapsed: Duration) -> Option<String> {
    if options.give_up.is_zero() || elapsed < options.give_up {
        return None;
    }
    let cause = first.missing()?;
    Some(format!(
        "no request was answered in the first {} s: {cause}",
        elapsed.as_secs()
    ))
}

/// Columns and lines of the terminal behind stderr.
fn room() -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stderr());
    let told = size.map_or((0, 0), |size| (size.ws_col.into(), size.ws_row.into()));
    if told.0 == 0 || told.1 == 0 {
        USUAL_ROOM
    } else {
        told
    }
}

/// Reason why a request ended the run.
fn unwanted(status: Option<u16>) -> String {
    match status {
        Some(status) => format!("aborted: an answer had status {status}"),
        None => "aborted: a request got no answer".to_owned(),
    }
}

/// Reason why the run must end after this second.
fn broken(options: &LoadOptions, second: &Live, elapsed: Duration) -> Option<String> {
    options.abort.iter().find_map(|condition| {
        let (broken, found) = condition.of(&second.latency, second.errors);
        let at = elapsed.as_secs();
        broken.then(|| format!("aborted after {at} s: {found} within a second ({condition})"))
    })
}
