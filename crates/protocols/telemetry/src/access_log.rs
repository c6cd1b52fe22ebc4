//! Access logs: fields of a request or connection, their format, and their receivers. The worker that served the
//! request makes the line, after the response, and hands it to a bounded queue. A slow disk or service never slows a
//! request.
//!
//! ```text
//! worker: Entry ─filter─▶ render ─▶ line ──outbox──▶ thread: file
//!                       └▶ als::entry ────outbox──▶ control thread: gRPC service
//! ```

pub mod als;
mod entry;
mod file;
mod filter;
mod render;
mod wants;

use std::sync::Arc;

use voile_model::log_filter::LogFilter;
use voile_model::mesh::telemetry::TelemetrySide;

pub use als::AlsLog;
pub use entry::{
    AccessLogEntry, DryRunEntry, Fields, HttpLogFields, NoFields, PolicyMarks, TlsFacts,
};
pub use file::{FileLog, LAST_LINES, WriterThread};
pub use filter::passes;
pub use render::Renderer;
pub use wants::LogNeeds;

use crate::tap::Tap;

/// Receiver of one log's entries.
#[derive(Debug, Clone)]
pub enum Sink {
    /// A file, in a format.
    File(FileLog, Arc<Renderer>),
    /// A gRPC service.
    Grpc(AlsLog),
    /// People who watch, and the side of the proxy.
    Tap(Arc<Tap>, TelemetrySide),
}

/// One log of one side.
#[derive(Debug, Clone)]
pub struct Logger {
    filter: Option<Arc<LogFilter>>,
    sink: Sink,
    wants: LogNeeds,
}

impl Logger {
    /// A log whose entries pass `filter`.
    #[must_use]
    pub fn new(filter: Option<LogFilter>, sink: Sink) -> Self {
        let mut wants = match &sink {
            Sink::File(_, renderer) => LogNeeds::of_format(renderer.format()),
            Sink::Grpc(log) => log.wants(),
            Sink::Tap(..) => LogNeeds {
                response: true,
                ..LogNeeds::default()
            },
        };
        if let Some(filter) = &filter {
            wants.response |= filter.looks_at_response();
            for (direction, name) in filter.headers() {
                wants.field(direction, name);
            }
        }
        Self {
            filter: filter.map(Arc::new),
            sink,
            wants,
        }
    }

    /// Returns the notes that workers must keep of a request.
    #[must_use]
    pub fn wants(&self) -> &LogNeeds {
        &self.wants
    }

    /// Logs an entry if it passes.
    pub fn log(&self, entry: &AccessLogEntry<'_>) {
        if self
            .filter
            .as_ref()
            .is_some_and(|filter| !passes(filter, entry))
        {
            return;
        }
        match &self.sink {
            Sink::File(file, renderer) => file.write(renderer.line(entry)),
            Sink::Grpc(log) => log.write(entry),
            Sink::Tap(tap, side) => tap.offer(*side, entry, None),
        }
    }
}
