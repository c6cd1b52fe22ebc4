//! The load tools against real sockets on loopback, and their pure parts as tables.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should panic where it stands"
)]

mod bulk;
mod cost;
mod datagrams;
mod described;
mod descriptions;
mod echo;
mod hostile;
mod load;
mod misbehaving;
mod mixed;
mod multiplexed;
mod past;
mod relay;
mod responses;
mod schedules;
mod sealed;
mod server;
mod strangers;
mod talkative;
mod tls;
mod truth;
mod websocket;
