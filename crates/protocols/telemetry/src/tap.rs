//! Finished requests and connections for people who watch them live. A session has a filter and a bounded buffer; it ends by
//! itself when it is no longer asked. Workers of a sidecar have a log for the sessions only while there is one; those of a node proxy
//! look whether there is one.
//!
//! ```text
//! worker: Entry ─filter─▶ record ─▶ buffer of the session ──▶ page ──▶ client, who asks again
//! ```

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::Notify;
use voile_model::mesh::telemetry::TelemetrySide;

use crate::MetricFamily;
use crate::access_log::{AccessLogEntry, HttpLogFields};
use crate::admin::PageRequest;

/// Most sessions of one proxy.
pub const MAX_SESSIONS: usize = 4;
/// Time after the last question at which a session ends.
pub const SESSION_IDLE: Duration = Duration::from_secs(10);
/// Longest time that a question waits for a record, in seconds.
pub const MAX_WAIT_SECONDS: u64 = 20;
/// Most records of a session in a second, and most that wait for its next question. Further ones are counted, not kept.
pub const MAX_RECORDS: usize = 1024;
/// Most bytes of these records.
pub const MAX_BYTES: usize = 1024 * 1024;
/// Most bytes of records in one answer, if it is not a single one: a client that does not read holds no more.
pub const MAX_ANSWER_BYTES: usize = 128 * 1024;
/// Longest text of one field, in bytes.
const MAX_FIELD_BYTES: usize = 1024;
/// Words of a record's details, or of the reason for its end, by which a policy refused.
const REFUSALS: [&str; 6] = [
    "PeerAuthentication",
    "rbac_access_denied",
    "jwt_authn_access_denied",
    "ext_authz_denied",
    "ext_authz_error",
    "rate_limited",
];

/// A question for records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapQuestion {
    /// Chosen by the client, the same for all its questions.
    session: u64,
    /// Number of the last record that the client has.
    after: u64,
    wait: Duration,
    filter: TapFilter,
}

/// What a node proxy knows of a connection and a sidecar need not say.
#[derive(Debug, Clone, Copy)]
pub struct NodeEnd<'a> {
    /// Namespace and name of the pod that the proxy serves.
    pub pod: &'a str,
    /// Host name of the service that the client called; empty if unknown.
    pub service: &'a str,
}

/// Which requests and connections a session wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct TapFilter {
    /// Prefix of the path.
    path: Option<String>,
    method: Option<String>,
    /// First and last status.
    status: Option<(u16, u16)>,
    /// Part of the caller's identity.
    from: Option<String>,
    /// Only what a policy refused.
    denied: bool,
    /// Of a node proxy, only the connections of these: `NAMESPACE`, or `NAMESPACE/NAME` of a pod or workload. All if empty.
    workloads: Vec<String>,
}

/// Returns true if `target` (`NAMESPACE`, or `NAMESPACE/NAME` of a pod or workload) means this pod or workload.
#[must_use]
pub fn is_meant(target: &str, workload: &str) -> bool {
    let rest = workload.strip_prefix(target);
    // The pods of a workload have its name and more.
    rest.is_some_and(|rest| match target.contains('/') {
        true => rest.is_empty() || rest.starts_with('-'),
        false => rest.starts_with('/'),
    })
}

impl TapQuestion {
    /// Reads the query of a page.
    ///
    /// # Errors
    /// The parameter that is wrong, and what it must be.
    pub fn parse(question: &PageRequest) -> Result<Self, String> {
        let mut parsed = Self {
            session: 0,
            after: 0,
            wait: Duration::ZERO,
            filter: TapFilter::default(),
        };
        for pair in question.query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decoded = percent_decode_str(value).decode_utf8();
            let value = decoded.map_err(|_| format!("{name}={value}: not UTF-8"))?;
            let number = || {
                let wrong = || format!("{name}={value}: expected a whole number");
                value.parse::<u64>().map_err(|_| wrong())
            };
            match name {
                "session" => parsed.session = number()?,
                "after" => parsed.after = number()?,
                "wait" => parsed.wait = Duration::from_secs(number()?.min(MAX_WAIT_SECONDS)),
                "path" => parsed.filter.path = Some(value.into_owned()),
                "method" => parsed.filter.method = Some(value.to_ascii_uppercase()),
                "status" => parsed.filter.status = Some(statuses(&value)?),
                "from" => parsed.filter.from = Some(value.into_owned()),
                "denied" => parsed.filter.denied = &*value != "false",
                "workload" => parsed.filter.workloads.push(value.into_owned()),
                _ => {
                    return Err(format!(
                        "no parameter `{name}`; there are session, after, wait, path, method, status, from, denied, workload"
                    ));
                }
            }
        }
        Ok(parsed)
    }
}

/// `503`, or `5xx` for all from 500 to 599.
fn statuses(text: &str) -> Result<(u16, u16), String> {
    let wrong = || format!("status={text}: expected a status such as 503, or a class such as 5xx");
    let hundreds = text.strip_suffix("xx").map(str::parse::<u16>);
    let (first, last) = match hundreds {
        Some(class) => {
            let first = class.map_err(|_| wrong())?.saturating_mul(100);
            (first, first.saturating_add(99))
        }
        None => {
            let status = text.parse().map_err(|_| wrong())?;
            (status, status)
        }
    };
    (100..600)
        .contains(&first)
        .then_some((first, last))
        .ok_or_else(wrong)
}

impl TapFilter {
    fn passes(&self, entry: &AccessLogEntry<'_>, end: Option<&NodeEnd<'_>>) -> bool {
        let http = entry.http.as_ref();
        let in_http = |test: &dyn Fn(&HttpLogFields<'_>) -> bool| http.is_some_and(test);
        let from = || entry.tls.map_or("", |tls| tls.peer);
        (self.path.as_ref()).is_none_or(|path| in_http(&|http| http.path.starts_with(path)))
            && (self.method.as_ref()).is_none_or(|method| in_http(&|http| http.method == method))
            && (self.status)
                .is_none_or(|(first, last)| in_http(&|http| (first..=last).contains(&http.code)))
            && (self.from.as_ref()).is_none_or(|part| from().contains(&**part))
            && (!self.denied || is_refused(entry))
            && (self.workloads.is_empty()
                || end.is_none_or(|end| {
                    let mut wanted = self.workloads.iter();
                    wanted.any(|target| is_meant(target, end.pod))
                }))
    }
}

fn is_refused(entry: &AccessLogEntry<'_>) -> bool {
    let said = [entry.details, entry.termination];
    let refused = |text: &str| REFUSALS.iter().any(|refusal| text.contains(refusal));
    // A node proxy has ztunnel's word.
    entry.flags == "DENY" || said.into_iter().any(refused)
}

/// Records that wait for the next question of one client.
#[derive(Debug)]
struct TapSession {
    id: u64,
    filter: TapFilter,
    /// With the number of the last one.
    records: VecDeque<String>,
    bytes: usize,
    last: u64,
    /// Records dropped since the last answer.
    missed: u64,
    asked: Instant,
    /// Questions that wait.
    waiting: usize,
    /// The client went away while it waited.
    left: bool,
    /// Begin of a second, and the records in it.
    second: (Instant, usize),
}

impl TapSession {
    fn push(&mut self, record: String) {
        self.bytes += record.len();
        self.last += 1;
        self.records.push_back(record);
        while self.records.len() > MAX_RECORDS || self.bytes > MAX_BYTES {
            let Some(dropped) = self.records.pop_front() else {
                return;
            };
            self.bytes -= dropped.len();
            self.missed += 1;
        }
    }

    /// Returns false if this second has had its records.
    fn has_time(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.second.0) >= Duration::from_secs(1) {
            self.second = (now, 0);
        }
        self.second.1 += 1;
        self.second.1 <= MAX_RECORDS
    }

    /// Drops what the client has.
    fn acknowledge(&mut self, after: u64) {
        let first = self.last - self.records.len() as u64;
        for _ in first..after.min(self.last) {
            if let Some(known) = self.records.pop_front() {
                self.bytes -= known.len();
            }
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.waiting == 0 && (self.left || self.asked + SESSION_IDLE <= now)
    }
}

/// The sessions of one proxy.
#[derive(Debug, Default)]
pub struct Tap {
    sessions: Mutex<Vec<TapSession>>,
    /// Their number when they were last looked at.
    count: AtomicUsize,
    recorded: Notify,
}

impl Tap {
    fn sessions(&self) -> MutexGuard<'_, Vec<TapSession>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open_sessions(Instant::now()).len()
    }

    /// Returns true if nobody watches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if somebody watches, or did when the last entry was offered. Costs as much as reading a number.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// The sessions that are not over.
    fn open_sessions(&self, now: Instant) -> MutexGuard<'_, Vec<TapSession>> {
        let mut sessions = self.sessions();
        sessions.retain(|session| !session.is_over(now));
        self.count.store(sessions.len(), Ordering::Relaxed);
        sessions
    }

    /// Begins the session of a question, if there is none yet.
    ///
    /// # Errors
    /// There are too many.
    pub fn begin(&self, question: &TapQuestion) -> Result<(), String> {
        let now = Instant::now();
        let mut sessions = self.open_sessions(now);
        let known = sessions.iter_mut().find(|one| one.id == question.session);
        if let Some(session) = known {
            session.asked = now;
            session.left = false;
            session.filter.clone_from(&question.filter);
            return Ok(());
        }
        if sessions.len() >= MAX_SESSIONS {
            return Err(format!(
                "{MAX_SESSIONS} others watch this proxy; it ends a session {SESSION_IDLE:?} after its last question"
            ));
        }
        sessions.push(TapSession {
            id: question.session,
            filter: question.filter.clone(),
            records: VecDeque::new(),
            bytes: 0,
            // A session that ended meanwhile goes on with its numbers.
            last: question.after,
            missed: 0,
            asked: now,
            waiting: 0,
            left: false,
            second: (now, 0),
        });
        self.count.store(sessions.len(), Ordering::Relaxed);
        Ok(())
    }

    /// The records after those that the client has, as JSON: `{"next", "missed", "records"}`. Waits for one.
    pub async fn answer(&self, question: &TapQuestion) -> String {
        let until = tokio::time::Instant::now() + question.wait;
        let mut waits = WaitingQuestion::new(self, question.session);
        let page = self.wait_for_page(question, until).await;
        waits.answered = true;
        page
    }

    async fn wait_for_page(&self, question: &TapQuestion, until: tokio::time::Instant) -> String {
        loop {
            let recorded = self.recorded.notified();
            tokio::pin!(recorded);
            recorded.as_mut().enable();
            let page = self.page(question);
            if let Some(page) = page {
                return page;
            }
            if tokio::time::timeout_at(until, recorded).await.is_err() {
                return self.page(question).unwrap_or_else(|| {
                    let next = question.after;
                    format!("{{\"next\":{next},\"missed\":0,\"records\":[]}}")
                });
            }
        }
    }

    /// None if there is no record yet.
    fn page(&self, question: &TapQuestion) -> Option<String> {
        let mut sessions = self.sessions();
        let session = sessions.iter_mut().find(|one| one.id == question.session)?;
        session.acknowledge(question.after);
        if session.records.is_empty() {
            return None;
        }
        let missed = std::mem::take(&mut session.missed);
        let first = session.last - session.records.len() as u64;
        let mut bytes = 0;
        let fitting = session.records.iter().take_while(|record| {
            bytes += record.len();
            bytes <= MAX_ANSWER_BYTES
        });
        let fitting = fitting.count().max(1);
        let records = session.records.make_contiguous()[..fitting].join(",");
        let next = first + fitting as u64;
        Some(format!(
            "{{\"next\":{next},\"missed\":{missed},\"records\":[{records}]}}"
        ))
    }

    /// Notes an entry for the sessions that want it. A node proxy says whose it is.
    pub fn offer(
        &self,
        side: TelemetrySide,
        entry: &AccessLogEntry<'_>,
        end: Option<&NodeEnd<'_>>,
    ) {
        let now = Instant::now();
        let mut sessions = self.open_sessions(now);
        let mut written = None;
        let wanted = |one: &&mut TapSession| one.filter.passes(entry, end);
        for session in sessions.iter_mut().filter(wanted) {
            if !session.has_time(now) {
                session.missed += 1;
                continue;
            }
            let text = written.get_or_insert_with(|| record(side, entry, end).to_string());
            session.push(text.clone());
        }
        drop(sessions);
        if written.is_some() {
            self.recorded.notify_waiters();
        }
    }

    /// When the next session ends if it is not asked; none if all have ended.
    #[must_use]
    pub fn next_end(&self) -> Option<Instant> {
        let now = Instant::now();
        let sessions = self.open_sessions(now);
        let ends = sessions.iter().map(|session| match session.waiting {
            0 => session.asked + SESSION_IDLE,
            _ => now + SESSION_IDLE,
        });
        ends.min()
    }
}

/// The number of sessions, for the page of metrics.
#[must_use]
pub fn tap_sessions(count: usize) -> MetricFamily {
    MetricFamily::single(
        "voile_tap_sessions",
        "gauge",
        "Sessions of `voile tap` that see the requests or connections of this proxy.",
        count as f64,
    )
}

/// A question that waits keeps its session. A client that leaves meanwhile ends it.
struct WaitingQuestion<'a> {
    tap: &'a Tap,
    session: u64,
    answered: bool,
}

impl<'a> WaitingQuestion<'a> {
    fn new(tap: &'a Tap, session: u64) -> Self {
        let waits = Self {
            tap,
            session,
            answered: false,
        };
        waits.change(|session| session.waiting += 1);
        waits
    }

    fn change(&self, change: impl FnOnce(&mut TapSession)) {
        let mut sessions = self.tap.sessions();
        if let Some(session) = sessions.iter_mut().find(|one| one.id == self.session) {
            change(session);
        }
    }
}

impl Drop for WaitingQuestion<'_> {
    fn drop(&mut self) {
        self.change(|session| {
            session.waiting = session.waiting.saturating_sub(1);
            session.asked = Instant::now();
            session.left = !self.answered;
        });
    }
}

/// Facts of an entry, without headers and bodies. What is empty or unknown is left out.
fn record(side: TelemetrySide, entry: &AccessLogEntry<'_>, end: Option<&NodeEnd<'_>>) -> Value {
    let mut record = Map::new();
    let time = OffsetDateTime::from(entry.start).format(&Rfc3339);
    record.insert("time".to_owned(), time.unwrap_or_default().into());
    let side = match side {
        TelemetrySide::Client => "outbound",
        TelemetrySide::Server => "inbound",
    };
    record.insert("side".to_owned(), side.into());
    times(entry, &mut record);
    let mut text = |name: &str, text: &str| {
        if !matches!(text, "" | "-") {
            let end = text.floor_char_boundary(MAX_FIELD_BYTES);
            record.insert(name.to_owned(), text[..end].into());
        }
    };
    let tls = entry.tls.unwrap_or_default();
    for (name, value) in [
        ("workload", end.map_or("", |end| end.pod)),
        ("service", end.map_or("", |end| end.service)),
        ("flags", entry.flags),
        ("details", entry.details),
        ("termination", entry.termination),
        ("upstream_failure", entry.upstream_failure),
        ("downstream_failure", entry.downstream_failure),
        ("cluster", entry.cluster),
        ("server_name", entry.server_name),
        ("route", entry.route),
        ("from", tls.peer),
        ("tls", tls.version),
    ] {
        text(name, value);
    }
    if let Some(http) = &entry.http {
        let grpc = http.grpc_status.map(|status| status.to_string());
        for (name, value) in [
            ("method", http.method),
            ("path", http.path),
            ("authority", http.authority),
            ("protocol", http.version),
            ("trace_id", http.trace_id),
            ("grpc_status", grpc.as_deref().unwrap_or_default()),
        ] {
            text(name, value);
        }
    }
    let address = |address: std::net::SocketAddr| address.to_string();
    text("client", &address(entry.remote));
    text("destination", &address(entry.local));
    text("endpoint", &entry.upstream.map(address).unwrap_or_default());
    record.insert("bytes_received".to_owned(), entry.received.into());
    record.insert("bytes_sent".to_owned(), entry.sent.into());
    if let Some(http) = &entry.http {
        record.insert("status".to_owned(), http.code.into());
        record.insert("attempts".to_owned(), http.attempts.into());
    }
    record.into()
}

/// Where its time went, in milliseconds.
fn times(entry: &AccessLogEntry<'_>, record: &mut Map<String, Value>) {
    let of_http = |of: fn(&HttpLogFields<'_>) -> Option<Duration>| entry.http.as_ref().and_then(of);
    for (name, took) in [
        ("duration_ms", Some(entry.duration)),
        ("request_ms", of_http(|http| http.request_duration)),
        ("response_ms", of_http(|http| http.response_duration)),
        ("proxy_ms", of_http(|http| http.decision_duration)),
        ("queue_ms", of_http(|http| http.queue_duration)),
        ("upstream_ms", of_http(|http| http.upstream_duration)),
    ] {
        if let Some(took) = took {
            let milliseconds = (took.as_secs_f64() * 1e6).round() / 1e3;
            record.insert(name.to_owned(), milliseconds.into());
        }
    }
}

#[cfg(test)]
mod tests;
