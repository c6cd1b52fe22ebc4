//! The latest requests of the mesh. Proxies record them only while the page shows them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::StatusCode;
use serde_json::{Value, json};
use voile_telemetry::admin::{PageRequest, PageResponse};

use crate::commands::inspect::monitoring::WatchedMesh;
use crate::commands::inspect::traffic::tap::{Answer, MAX_PROXIES, PolicyDocuments, watch};

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
    /// Why a proxy, by its index, did not answer the last time.
    problem: Option<(Option<usize>, String)>,
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
            "next": state.last, "missed": state.missed, "problem": state.problem.as_ref().map(|(_, reason)| reason), "records": records,
        });
        PageResponse::json(page.to_string())
    }

    fn record(&self, recording: u64, filter: &str) {
        let proxies = self
            .watched
            .proxies()
            .and_then(|proxies| match proxies.len() {
                0..=MAX_PROXIES => Ok(proxies),
                many => Err(format!(
                    "{many} proxies are too many to watch here; cure: voile tap NAMESPACE/NAME"
                )),
            });
        let proxies = match proxies {
            Ok(proxies) => proxies,
            Err(reason) => {
                self.lock().problem = Some((None, reason));
                Vec::new()
            }
        };
        let told = watch(&proxies, filter);
        let mut documents = PolicyDocuments::new(&self.watched);
        loop {
            let answer = told.recv_timeout(LOOK_INTERVAL);
            let answered = answer.ok().map(|(index, answer): Answer| {
                let proxy = proxies[index].to_string();
                let answer = answer.map(|page| {
                    let records = page["records"].as_array().cloned().unwrap_or_default();
                    let records = records.into_iter();
                    let records: Vec<_> =
                        records.map(|one| documents.complete(&proxy, one)).collect();
                    (records, page["missed"].as_u64().unwrap_or(0))
                });
                (index, answer)
            });
            if proxies.is_empty() {
                std::thread::park_timeout(LOOK_INTERVAL);
            }
            let mut state = self.lock();
            if state.recording != recording {
                return;
            }
            if state.asked.is_none_or(|asked| asked.elapsed() > LOOKING) {
                state.filter = None;
                return;
            }
            match answered {
                Some((index, Ok((records, missed)))) => {
                    state.problem.take_if(|(of, _)| *of == Some(index));
                    state.missed += missed;
                    state.last += records.len() as u64;
                    state.records.extend(records);
                    let over = state.records.len().saturating_sub(KEPT);
                    state.records.drain(..over);
                }
                Some((index, Err(reason))) => state.problem = Some((Some(index), reason)),
                None => {}
            }
        }
    }
}
