//! Behaviour of the data plane over real sockets, one binary so that it links once.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set its stage has failed"
)]

mod http;
mod pairs;
