//! HTTP/2 of our own, for the generator and the echo server: state machines that are fed bytes and leave bytes to be
//! written. Ours because it must cost little, run on the generator's own loop, and not be the code under test.
//!
//! ```text
//! bytes ─▶ frame ─▶ core: settings, windows, header blocks ─▶ client: one stream per lane ─▶ answers
//!                                                          └▶ server: one stream per lane ─▶ requests
//! ```

mod caller;
mod client;
mod core;
mod frame;
mod hpack;
mod huffman;
mod server;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use crate::body::Malformed;
pub(crate) use caller::{CallError, Http2Caller};
pub(crate) use client::{Http2Client, RequestShape};
pub(crate) use server::{Http2Server, Reply, RequestProgress, ResponseBody, ServerStream};

/// Connection preface of a client (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
