//! The process around a data plane: options that every proxy has, the reasons why one cannot run, its pages for people and
//! scrapers, its DNS server, and its end. `proxy` and `node` use it. It names no route, policy or pod.

mod dns;
mod options;
mod pages;
mod shutdown;

pub use dns::{DnsServer, DnsSockets};
pub use options::{ExternalResolver, ProcessOptions, RunError};
pub use pages::{PageSockets, PageSource};
pub use shutdown::{Signals, drain, until_over};
