//! Load generator, echo server and byte relay, on raw epoll and threads of their own.
//!
//! Nothing here knows the proxy: no HTTP code is shared with it, so that a bug cannot hide itself.

pub mod bulk;
mod connect;
pub mod describe;
pub mod echo;
mod generator;
pub mod grpc;
mod http2;
pub mod options;
mod reflection;
pub mod relay;
pub mod response;
mod results;
pub mod run;
mod target;
mod tls;
mod wire;

pub use results::{comparison, fortio, outcome, samples, trace};
use results::{condition, failures, table, tally, units, view};

use generator::{accept, body, choice, duration, poll, shovel, stop, threads, worker};
pub use generator::{capacity, clock, profile, schedule};

pub use condition::LoadCondition;
pub use duration::parse_duration;
pub use options::{Bulk, LoadOptions, LoadProtocol, LoadTarget, Resolve, Scheme};
pub use outcome::LoadResult;
pub use profile::ProfileSegment;
pub use run::run;
pub use schedule::ArrivalPattern;
pub use stop::Stop;
pub use tls::{Tls, TlsOptions, UnverifiedServer, shown_certificate};
pub use view::Progress;
