//! Access logs: one line per request or opaque connection, written by a thread of its own through a bounded queue.
//! When the queue is full the line is dropped and counted; a slow disk never slows a request.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Lines that may wait to be written: a second of 8,000 requests.
pub const MAX_QUEUED_LINES: usize = 8192;

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Istio's default text format.
    Text,
    /// One JSON object per line, with Istio's field names.
    Json,
}

/// What one line tells. Empty strings are written as `-`.
#[derive(Debug, Clone, Default)]
pub struct Entry<'a> {
    /// When it began.
    pub start: Option<SystemTime>,
    /// `GET`; empty for opaque connections.
    pub method: &'a str,
    /// Path with query.
    pub path: &'a str,
    /// `HTTP/1.1`.
    pub protocol: &'a str,
    /// 0 for opaque connections, or when no status was sent.
    pub code: u16,
    /// Envoy's flags.
    pub flags: &'a str,
    /// One word on how it ended.
    pub details: &'a str,
    /// Why TLS or connecting upstream failed.
    pub failure: &'a str,
    /// Body bytes from the client.
    pub received: u64,
    /// Body bytes to the client.
    pub sent: u64,
    /// From begin to end.
    pub duration: Duration,
    /// `x-forwarded-for`.
    pub forwarded_for: &'a str,
    /// `user-agent`.
    pub user_agent: &'a str,
    /// `x-request-id`.
    pub request_id: &'a str,
    /// `Host`.
    pub authority: &'a str,
    /// Endpoint called.
    pub upstream_host: &'a str,
    /// `outbound|80||host` or `inbound|8080||`.
    pub upstream_cluster: &'a str,
    /// Our listening address.
    pub downstream_local: &'a str,
    /// Who called.
    pub downstream_remote: &'a str,
    /// The caller's verified identity.
    pub downstream_principal: &'a str,
}

/// The sending end. Cheap to clone, one per worker.
#[derive(Debug, Clone)]
pub struct AccessLog {
    lines: SyncSender<String>,
    encoding: Encoding,
    dropped: Arc<AtomicU64>,
}

impl AccessLog {
    /// Opens `path` (`/dev/stdout` or a file, appended to) and starts the writing thread.
    ///
    /// # Errors
    /// When the file cannot be opened or the thread not started.
    pub fn start(encoding: Encoding, path: &str) -> io::Result<(Self, Writing)> {
        let target: Box<dyn Write + Send> = match path {
            "" | "/dev/stdout" => Box::new(io::stdout()),
            "/dev/stderr" => Box::new(io::stderr()),
            file => Box::new(append(file)?),
        };
        let (lines, queue) = sync_channel(MAX_QUEUED_LINES);
        let (at_end, ended) = sync_channel::<()>(0);
        std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || {
                write_lines(&queue, target);
                drop(at_end);
            })?;
        let log = Self {
            lines,
            encoding,
            dropped: Arc::default(),
        };
        Ok((log, Writing(ended)))
    }

    /// Writes one entry, or drops it when the queue is full.
    pub fn write(&self, entry: &Entry<'_>) {
        let line = match self.encoding {
            Encoding::Text => text(entry),
            Encoding::Json => json(entry),
        };
        if self.lines.try_send(line).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// How long a process that ends waits for a slow disk or a reader that does not read.
pub const LAST_LINES: Duration = Duration::from_secs(1);

/// The writing thread. Dropping this leaves it to itself.
#[derive(Debug)]
pub struct Writing(Receiver<()>);

impl Writing {
    /// Waits until everything is written: at most [`LAST_LINES`], and only of use once every [`AccessLog`] is dropped.
    /// Says whether it is.
    #[must_use]
    pub fn finish(&self) -> bool {
        self.0.recv_timeout(LAST_LINES) == Err(RecvTimeoutError::Disconnected)
    }
}

fn append(path: &str) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Writes what is queued in one go, then waits for more; ends when every sender is gone.
fn write_lines(queue: &Receiver<String>, mut target: Box<dyn Write + Send>) {
    let mut batch = String::new();
    while let Ok(line) = queue.recv() {
        batch.clear();
        batch.push_str(&line);
        while batch.len() < 64 * 1024
            && let Ok(line) = queue.try_recv()
        {
            batch.push_str(&line);
        }
        // A full disk must not stop the proxy; the next batch tries again.
        if let Err(error) = target
            .write_all(batch.as_bytes())
            .and_then(|()| target.flush())
        {
            tracing::debug!(%error, "access log not written");
        }
    }
}

fn timestamp(entry: &Entry<'_>) -> String {
    let start = OffsetDateTime::from(entry.start.unwrap_or_else(SystemTime::now));
    let start = start
        .replace_nanosecond(start.nanosecond() / 1_000_000 * 1_000_000)
        .unwrap_or(start);
    start.format(&Rfc3339).unwrap_or_else(|_| "-".to_owned())
}

fn or_dash(value: &str) -> &str {
    if value.is_empty() { "-" } else { value }
}

/// A value from a stranger, so that it can neither end its quotes nor its line.
struct Quoted<'a>(&'a str);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for letter in or_dash(self.0).chars() {
            match letter {
                '"' | '\\' => write!(f, "\\{letter}")?,
                letter if letter.is_control() => write!(f, "\\u{{{:x}}}", u32::from(letter))?,
                letter => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

fn text(entry: &Entry<'_>) -> String {
    let mut line = String::with_capacity(384);
    let _ = write!(line, "[{}] ", timestamp(entry));
    let _ = match entry.method {
        "" => write!(line, "\"- - -\""),
        method => write!(
            line,
            "\"{} {} {}\"",
            Quoted(method),
            Quoted(entry.path),
            or_dash(entry.protocol)
        ),
    };
    let _ = writeln!(
        line,
        " {} {} {} - \"{}\" {} {} {} - \"{}\" \"{}\" \"{}\" \"{}\" \"{}\" {} - {} {} - {}",
        entry.code,
        or_dash(entry.flags),
        or_dash(entry.details),
        Quoted(entry.failure),
        entry.received,
        entry.sent,
        entry.duration.as_millis(),
        Quoted(entry.forwarded_for),
        Quoted(entry.user_agent),
        Quoted(entry.request_id),
        Quoted(entry.authority),
        Quoted(entry.upstream_host),
        or_dash(entry.upstream_cluster),
        or_dash(entry.downstream_local),
        or_dash(entry.downstream_remote),
        Quoted(entry.downstream_principal),
    );
    line
}

fn json(entry: &Entry<'_>) -> String {
    let optional = |value: &str| {
        if value.is_empty() {
            serde_json::Value::Null
        } else {
            value.into()
        }
    };
    let object = serde_json::json!({
        "start_time": timestamp(entry),
        "method": optional(entry.method),
        "path": optional(entry.path),
        "protocol": optional(entry.protocol),
        "response_code": entry.code,
        "response_flags": or_dash(entry.flags),
        "response_code_details": optional(entry.details),
        "upstream_transport_failure_reason": optional(entry.failure),
        "bytes_received": entry.received,
        "bytes_sent": entry.sent,
        "duration": u64::try_from(entry.duration.as_millis()).unwrap_or(u64::MAX),
        "x_forwarded_for": optional(entry.forwarded_for),
        "user_agent": optional(entry.user_agent),
        "request_id": optional(entry.request_id),
        "authority": optional(entry.authority),
        "upstream_host": optional(entry.upstream_host),
        "upstream_cluster": optional(entry.upstream_cluster),
        "downstream_local_address": optional(entry.downstream_local),
        "downstream_remote_address": optional(entry.downstream_remote),
        "downstream_peer_principal": optional(entry.downstream_principal),
    });
    let mut line = object.to_string();
    line.push('\n');
    line
}
