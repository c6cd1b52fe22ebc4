//! The process around a data plane: options that every proxy has, the reasons why one cannot run, and its pages for people and
//! scrapers. `proxy` and `node` use it. It names no route, policy or pod.

mod options;
mod pages;

pub use options::{ExternalResolver, ProcessOptions, RunError};
pub use pages::{PageSockets, PageSource};
