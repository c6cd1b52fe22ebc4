//! Load generator, echo server and byte relay, on raw epoll and threads of their own.
//!
//! Nothing here knows the proxy: no HTTP code is shared with it, so that a bug cannot hide itself.

mod accept;
mod body;
pub mod bulk;
pub mod capacity;
mod choice;
pub mod clock;
mod condition;
mod connect;
pub mod describe;
mod duration;
pub mod echo;
pub mod fortio;
pub mod grpc;
mod http2;
pub mod options;
pub mod outcome;
mod poll;
pub mod profile;
pub mod read;
mod reflection;
pub mod relay;
pub mod response;
pub mod run;
pub mod samples;
pub mod schedule;
mod shovel;
mod stop;
mod table;
mod tally;
mod target;
mod threads;
mod tls;
pub mod trace;
mod view;
mod wire;
mod worker;

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
