//! The process around a data plane: options that every proxy has, the reasons why one cannot run, its pages for people and
//! scrapers, and its DNS server. `proxy` and `node` use it. It names no route, policy or pod.

mod dns;
mod options;
mod pages;

pub use dns::{DnsServer, DnsSockets};
pub use options::{ExternalResolver, ProcessOptions, RunError};
pub use pages::{PageSockets, PageSource};
