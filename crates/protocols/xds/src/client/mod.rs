//! The proxy's end of delta ADS: `Subscriptions` decides what to say, `driver` says it over TLS and comes back after
//! every failure. The proxy gives a handler that applies each response and names what it cannot use; everything else in
//! the response takes effect all the same.

mod attempts;
mod backoff;
mod changes;
mod connect;
mod driver;
mod replicas;
mod response_timeout;
mod state;
mod subscriptions;
#[cfg(test)]
mod tests;

pub use backoff::Backoff;
pub use changes::PendingChanges;
pub use connect::{ClientConfig, ClientError, Credential, CredentialSource, TokenFile};
pub use driver::{Handler, Health, SubscribeError, XdsClient};
pub use state::{ClientState, TypeState};
pub use subscriptions::{Rejection, ResourceUpdate, Subscriptions, UnansweredName, Update};
