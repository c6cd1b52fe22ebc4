//! Denial of a connection or request: the response for the client, and the details for the log.

use voile_telemetry::access_log::PolicyMarks;

use crate::http::ExternalReply;
use crate::worker::policy::policy_audit::AccessRecord;

/// Response header that carries a denial's details to the client. The access log always has them.
const DENIED_BY: &str = "x-voile-denied-by";

/// Why there is none.
#[derive(Debug, Clone)]
pub(crate) struct Denied {
    /// HTTP status of the response.
    pub(crate) status: u16,
    /// Envoy's details: the deciding policy and rule.
    pub(crate) details: String,
    /// For people.
    pub(crate) reason: String,
    /// The words of an external service, for clients of HTTP.
    pub(crate) told: Option<Box<ExternalReply>>,
    /// Audit and dry-run results of policies, for logs.
    pub(in crate::worker) said: Option<Box<AccessRecord>>,
}

impl Denied {
    pub(in crate::worker) fn new(
        status: u16,
        details: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            status,
            details: details.into(),
            reason: reason.into(),
            told: None,
            said: None,
        }
    }

    /// Response of the denial, for the client. It names the deciding policy only at log level debug; other clients must not
    /// learn it.
    pub(crate) fn take_told(&mut self) -> Option<Box<ExternalReply>> {
        let mut told = self.told.take();
        let is_line = !self.details.is_empty() && !self.details.contains(char::is_control);
        if is_line && tracing::enabled!(tracing::Level::DEBUG) {
            let line = format!("{DENIED_BY}: {}\r\n", self.details);
            let told = told.get_or_insert_default();
            told.lines.extend_from_slice(line.as_bytes());
        }
        told
    }

    /// Audit and dry-run results, which decide nothing.
    pub(crate) fn marks(&self) -> PolicyMarks<'_> {
        self.said
            .as_deref()
            .map(AccessRecord::marks)
            .unwrap_or_default()
    }
}
