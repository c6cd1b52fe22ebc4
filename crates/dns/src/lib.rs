//! DNS without a mesh: a proxy's client and server side. The crate's user decides the meaning of a name.
//!
//! ```text
//! server ─packet─▶ Responder ─▶ Names (the user) ─▶ message (answers made here)
//!                            └▶ Upstreams ─▶ exchange (UDP, TCP) ─▶ resolver's bytes, kept
//! Resolver: hosts file, then Upstreams ─▶ Table: last good addresses by name, time an argument
//! ```

mod question;
mod exchange;
mod hosts;
mod forwarder;
pub mod message;
mod resolver;
mod responder;
mod server;
mod table;
mod told;
mod upstream;
mod watched;

pub use question::{DnsQuestion, LookupAction};
pub use exchange::{ExchangeError, DnsTransport, Within};
pub use forwarder::{DnsUpstream, QueryTurn};
pub use message::{Query, QueryKind, ReceivedMessage};
pub use resolver::{Family, ResolvedAddresses, LookupError, Resolver, addresses_in};
pub use responder::{DnsCounters, LocalName, Names, Owner, Responder, TTL_SECONDS};
pub use server::{AnswerSource, QueryLimits, SocketPair, serve};
pub use table::{TableChange, NameState, Table};
pub use told::told;
pub use upstream::{ForwardError, Upstreams};
