//! Notes that workers keep of a request while they serve it, for its log entry. Workers keep no notes that no log
//! wants.

use std::sync::Arc;

use voile_model::log_format::{CommandValue, Fact, FormatCommand, HeaderSource, LogFormat};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogNeeds {
    /// Times within the request, or anything of the response.
    pub response: bool,
    /// Our end of the upstream connection.
    pub upstream_local: bool,
    /// An `x-request-id`, even when the client sends none.
    pub request_id: bool,
    /// Response headers, in lower case.
    pub response_fields: Vec<Arc<str>>,
    /// Response trailers, in lower case.
    pub trailer_fields: Vec<Arc<str>>,
}

impl LogNeeds {
    /// Merges the notes of both.
    #[must_use]
    pub fn or(mut self, other: &Self) -> Self {
        let add = |mine: &mut Vec<Arc<str>>, theirs: &[Arc<str>]| {
            for name in theirs {
                if !mine.contains(name) {
                    mine.push(Arc::clone(name));
                }
            }
        };
        add(&mut self.response_fields, &other.response_fields);
        add(&mut self.trailer_fields, &other.trailer_fields);
        self.response |= other.response;
        self.upstream_local |= other.upstream_local;
        self.request_id |= other.request_id;
        self
    }

    /// Returns true if no notes are wanted.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        !(self.response || self.upstream_local || self.request_id)
    }

    pub(super) fn field(&mut self, direction: HeaderSource, name: &Arc<str>) {
        match direction {
            HeaderSource::Request => self.request_id |= &**name == "x-request-id",
            HeaderSource::Response => {
                self.response = true;
                self.response_fields.push(Arc::clone(name));
            }
            HeaderSource::Trailer => {
                self.response = true;
                self.trailer_fields.push(Arc::clone(name));
            }
        }
    }

    pub(super) fn of_format(format: &LogFormat) -> Self {
        let mut wants = Self::default();
        for FormatCommand { what, .. } in format.commands() {
            match what {
                CommandValue::Header {
                    direction,
                    name,
                    or,
                    ..
                } => {
                    wants.field(*direction, name);
                    or.iter().for_each(|name| wants.field(*direction, name));
                }
                CommandValue::Fact(
                    Fact::UpstreamLocal | Fact::UpstreamLocalAddress | Fact::UpstreamLocalPort,
                ) => wants.upstream_local = true,
                CommandValue::Fact(
                    Fact::ResponseDuration | Fact::ResponseTxDuration | Fact::RequestDuration,
                ) => wants.response = true,
                CommandValue::Fact(_) | CommandValue::StartTime(_) | CommandValue::EmitTime(_) => {}
                CommandValue::Environment(_) | CommandValue::Query(_) => {}
            }
        }
        wants
    }
}
