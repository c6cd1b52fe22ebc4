//! Journal of recent events for followers: a short memory and a growing number. A follower gives the last number it knows and
//! waits for more. A follower that was away for too long is told that events are missing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::watch;

/// Events that are remembered. Two thousand proxies that come back at once are more than this: the newest stay.
const REMEMBERED: usize = 1_000;
/// Longest that a question waits for something new.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum JournalEvent {
    /// A new snapshot is there for all to ask for: how many resources changed, by type.
    Published {
        version: String,
        changed: BTreeMap<String, usize>,
    },
    /// Every connected proxy has acknowledged all that it was sent.
    InSync { version: String, proxies: usize },
    /// A proxy came.
    Connected { stream: u64, identity: String },
    /// A proxy went.
    Disconnected {
        stream: u64,
        identity: String,
        reason: String,
    },
    /// A proxy refuses something.
    Refused {
        stream: u64,
        identity: String,
        #[serde(rename = "type")]
        kind: String,
        /// All of the type that it refuses now, by name.
        resources: Vec<String>,
        reason: String,
    },
    /// The state folder does not hold the root that proxies trust any more.
    StateLost { reason: String },
    /// It does again.
    StateBack,
    /// Somebody has a new certificate.
    Certified {
        identity: String,
        asked_by: String,
        until: u64,
    },
}

#[derive(Debug, Clone, Serialize)]
struct JournalEntry {
    number: u64,
    /// Milliseconds since 1970.
    at: u64,
    #[serde(flatten)]
    what: JournalEvent,
}

#[derive(Debug, Default)]
struct Memory {
    entries: VecDeque<JournalEntry>,
    last: u64,
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Journal {
    memory: Mutex<Memory>,
    last: watch::Sender<u64>,
    /// Milliseconds since 1970: whoever knows numbers of another time knows those of a process that is gone.
    began: u64,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            memory: Mutex::default(),
            last: watch::channel(0).0,
            began: now(),
        }
    }
}

#[derive(Serialize)]
struct Page<'a> {
    /// When numbers began.
    began: u64,
    /// Number to ask after next.
    last: u64,
    /// Events that were forgotten before they were asked for.
    missed: u64,
    events: Vec<&'a JournalEntry>,
}

impl Journal {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, what: JournalEvent) {
        let mut memory = self.memory();
        memory.last += 1;
        let entry = JournalEntry {
            number: memory.last,
            at: now(),
            what,
        };
        if memory.entries.len() >= REMEMBERED {
            memory.entries.pop_front();
        }
        memory.entries.push_back(entry);
        self.last.send_replace(memory.last);
    }

    /// Events after this number, waiting so long for one. `None` asks for nothing but the number to begin with.
    pub(crate) async fn after(&self, number: Option<u64>, wait: Duration) -> String {
        if let Some(number) = number {
            let mut last = self.last.subscribe();
            let more = last.wait_for(|last| *last > number);
            // Nothing new is an answer, too.
            let _ = tokio::time::timeout(wait.min(LONGEST_WAIT), more).await;
        }
        let memory = self.memory();
        let number = number.unwrap_or(memory.last).min(memory.last);
        let first = memory
            .entries
            .front()
            .map_or(memory.last + 1, |one| one.number);
        let events = memory.entries.iter().filter(|one| one.number > number);
        let page = Page {
            began: self.began,
            last: memory.last,
            missed: first.saturating_sub(number + 1),
            events: events.collect(),
        };
        serde_json::to_string(&page).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected(stream: u64) -> JournalEvent {
        JournalEvent::Connected {
            stream,
            identity: "one".to_owned(),
        }
    }

    fn read(page: &str) -> (u64, u64, Vec<u64>) {
        let page: serde_json::Value = serde_json::from_str(page).expect("JSON");
        let number = |value: &serde_json::Value| value.as_u64().expect("a number");
        let events = page["events"].as_array().expect("a list");
        let streams = events.iter().map(|one| number(&one["stream"])).collect();
        (number(&page["last"]), number(&page["missed"]), streams)
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_is_told_what_came_since_and_what_is_forgotten() {
        let journal = Journal::default();
        let wait = Duration::from_secs(1);
        assert_eq!(read(&journal.after(None, wait).await), (0, 0, vec![]));
        journal.note(connected(7));
        journal.note(connected(8));
        assert_eq!(
            read(&journal.after(Some(0), wait).await),
            (2, 0, vec![7, 8])
        );
        assert_eq!(read(&journal.after(Some(1), wait).await), (2, 0, vec![8]));
        assert_eq!(read(&journal.after(Some(2), wait).await), (2, 0, vec![]));
        assert_eq!(read(&journal.after(Some(99), wait).await), (2, 0, vec![]));
        for stream in 0..REMEMBERED as u64 {
            journal.note(connected(stream));
        }
        let (last, missed, streams) = read(&journal.after(Some(1), wait).await);
        assert_eq!((last, missed), (REMEMBERED as u64 + 2, 1));
        assert_eq!(streams.len(), REMEMBERED);
    }

    #[tokio::test]
    async fn who_waits_is_woken() {
        let journal = Journal::default();
        let asked = journal.after(Some(0), LONGEST_WAIT);
        let noted = async { journal.note(connected(1)) };
        let (page, ()) = tokio::join!(asked, noted);
        assert_eq!(read(&page), (1, 0, vec![1]));
    }
}
