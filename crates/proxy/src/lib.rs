//! The data plane: inbound, outbound, http, tcp

pub mod http;
