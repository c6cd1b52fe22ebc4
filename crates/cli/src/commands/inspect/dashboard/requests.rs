//! The latest requests of the mesh. Proxies record them only while the page shows them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::StatusCode;
use serde_json::{Value, json};
use voile_telemetry::admin::{PageRequest, PageResponse};

use crate::commands::inspect::monitoring::WatchedMesh;
use crate::commands::inspect::traffic::proxy_watch::{WatchNews, WatchedRecords};
use crate::commands::inspect::traffic::tap::PolicyDocuments;

/// Records that are kept for the page.
const KEPT: usize = 500;
/// A page that has not asked for so long shows something else.
const LOOKING: Duration = Duration::from_secs(6);
/// Time between two looks if the page still asks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct LatestRequests {
    watched: WatchedMesh,
    state: Mutex<RequestState>,
}

#[derive(Debug, Default)]
struct RequestState {
    /// Query of the proxies' page that is recorded; none while nobody looks.
    filter: Option<&'static str>,
    /// Number of the recording.
    recording: u64,
    asked: Option<Instant>,
    records: VecDeque<Value>,
    /// Number of the last record.
    last: u64,
    missed: u64,
    /// Why a proxy did not answer the last time; of the list of proxies without a name.
    problems: BTreeMap<String, String>,
}

impl LatestRequests {
    pub(super) fn new(watched: WatchedMesh) -> Arc<Self> {
        Arc::new(Self {
            watched,
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, RequestState> {
        // No change leaves it half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records after `after` of those that `show` names.
    pub(super) fn page(self: &Arc<Self>, question: &PageRequest) -> PageResponse {
        let filter = match question.parameter("show") {
            None | Some("all") => "",
            Some("errors") => "&status=5xx",
            Some("denied") => "&denied",
            Some(other) => {
                let reason = format!("show={other}: expected all, errors or denied\n");
                return PageResponse::text(StatusCode::BAD_REQUEST, reason);
            }
        };
        let after = question
            .parameter("after")
            .and_then(|after| after.parse().ok());
        let mut state = self.lock();
        state.asked = Some(Instant::now());
        if state.filter != Some(filter) {
            let recording = state.recording + 1;
            *state = RequestState {
                filter: Some(filter),
                recording,
                asked: state.asked,
                last: state.last,
                ..RequestState::default()
            };
            let requests = Arc::clone(self);
            // It ends when nobody looks any more.
            std::thread::spawn(move || requests.record(recording, filter));
        }
        let new = state.last.saturating_sub(after.unwrap_or(0));
        let known = state
            .records
            .len()
            .saturating_sub(usize::try_from(new).unwrap_or(usize::MAX));
        let records: Vec<&Value> = state.records.iter().skip(known).collect();
        let page = json!({
            "next": state.last, "missed": state.missed, "problem": state.problems.values().next(), "records": records,
        });
        PageResponse::json(page.to_string())
    }

    fn record(&self, recording: u64, filter: &str) {
        let filter = filter.to_owned();
        let watched = WatchedRecords {
            mesh: self.watched.clone(),
            filter: Box::new(move |_| Some(filter.clone())),
        };
        let told = watched.watch();
        let mut documents = PolicyDocuments::new(&self.watched);
        loop {
            let mut news = told.recv_timeout(LOOK_INTERVAL).ok();
            if let Some(WatchNews::Answered(proxy, Ok(page))) = &mut news {
                let records = page["records"].as_array_mut().into_iter().flatten();
                for record in records {
                    *record = documents.complete(proxy, record.take());
                }
            }
            let mut state = self.lock();
            if state.recording != recording {
                return;
            }
            if state.asked.is_none_or(|asked| asked.elapsed() > LOOKING) {
                state.filter = None;
                return;
            }
            news.into_iter().for_each(|news| state.take(news));
        }
    }
}

impl RequestState {
    fn take(&mut self, news: WatchNews) {
        match news {
            WatchNews::Listed(Ok(proxies)) => self.problems.retain(|of, _| proxies.contains(of)),
            WatchNews::Listed(Err(reason)) => drop(self.problems.insert(String::new(), reason)),
            WatchNews::Answered(proxy, Err(reason)) => drop(self.problems.insert(proxy, reason)),
            WatchNews::Answered(proxy, Ok(mut page)) => {
                self.problems.remove(&proxy);
                self.missed += page["missed"].as_u64().unwrap_or(0);
                let records = page["records"].as_array_mut().into_iter().flatten();
                let before = self.records.len();
                self.records.extend(records.map(Value::take));
                let all = self.records.len();
                self.last += (all - before) as u64;
                self.records.drain(..all.saturating_sub(KEPT));
            }
        }
    }
}
