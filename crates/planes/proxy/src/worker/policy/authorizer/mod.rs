//! External authorization services, as one worker calls them.
//!
//! ```text
//! CUSTOM rule matches ─► question (gRPC │ HTTP) ─► callee ─► answer, checked ─► allowed │ denied │ failed
//! ```
//! Only permitted parts of an answer are applied; a failed question counts as the provider's settings say.

mod answer;
mod asking;
mod question;

use crate::plan::AuthorizerPlan;
use crate::worker::policy::external_call::Callee;
pub(crate) use answer::{AllowedChanges, AuthorizerResponse};
pub(in crate::worker) use answer::{lawful_name, lawful_value};
pub(crate) use question::{AuthorizerRequest, CheckSubject};

/// External authorization service, as one worker calls it.
pub(crate) struct Authorizer {
    plan: AuthorizerPlan,
    callee: Callee,
}

impl Authorizer {
    /// Which service is asked: changes when it does.
    pub(crate) fn id(&self) -> u32 {
        self.callee.id()
    }

    /// Its provider's name.
    pub(crate) fn name(&self) -> &str {
        &self.plan.settings.name
    }

    /// Returns true if requests pass while the service cannot be asked.
    pub(crate) fn fails_open(&self) -> bool {
        self.plan.settings.fail_open
    }

    /// HTTP status for clients while the service cannot be asked.
    pub(crate) fn status_on_error(&self) -> u16 {
        self.plan.settings.status_on_error.unwrap_or(403)
    }

    /// Closes connections that carry nothing.
    pub(crate) fn relieve(&self) {
        self.callee.relieve();
    }
}
