//! DNS without a mesh: a proxy's client and server side. The crate's user decides the meaning of a name.
//!
//! ```text
//! server ─packet─▶ Responder ─▶ Names (the user) ─▶ message (answers made here)
//!                            └▶ Upstreams ─▶ exchange (UDP, TCP) ─▶ resolver's bytes, kept
//! Resolver: hosts file, then Upstreams ─▶ Table: last good addresses by name, time an argument
//! ```

mod asked;
mod exchange;
mod hosts;
mod line;
pub mod message;
mod resolver;
mod responder;
mod server;
mod table;
mod told;
mod upstream;
mod watched;

pub use asked::{Asked, Asking};
pub use exchange::{ExchangeError, Over, Within};
pub use line::{Line, Turn};
pub use message::{Query, QueryKind, Received};
pub use resolver::{Family, Found, LookupError, Resolver, addresses_in};
pub use responder::{Figures, Meaning, Names, Owner, Responder, TTL_SECONDS};
pub use server::{Answers, Bounds, Service, serve};
pub use table::{Settled, State, Table};
pub use told::told;
pub use upstream::{ForwardError, Upstreams};
