//! DNS without a mesh: a proxy's client and server side. The crate's user decides the meaning of a name.
//!
//! ```text
//! server ─packet─▶ Responder ─▶ Names (the user) ─▶ message (answers made here)
//!                            └▶ Upstreams ─▶ exchange (UDP, TCP) ─▶ resolver's bytes, kept
//! Resolver: hosts file, then Upstreams ─▶ Table: last good addresses by name, time an argument
//! ```

mod exchange;
mod forwarder;
mod hosts;
pub mod message;
mod question;
mod resolver;
mod responder;
mod server;
mod table;
mod told;
mod upstream;
mod watched;

pub use exchange::{DnsTransport, ExchangeError, Within};
pub use forwarder::{DnsUpstream, QueryTurn};
pub use message::{Query, QueryKind, ReceivedMessage};
pub use question::{DnsQuestion, LookupAction, sweep};
pub use resolver::{Family, LookupError, ResolvedAddresses, Resolver, addresses_in};
pub use responder::{DnsCounters, LocalName, Names, Owner, Responder, TTL_SECONDS};
pub use server::{AnswerSource, QueryLimits, SocketPair, serve};
pub use table::{NameState, Table, TableChange};
pub use told::told;
pub use upstream::{ForwardError, Upstreams};
