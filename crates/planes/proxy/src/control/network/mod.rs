//! Sockets of the proxy: accepting connections and datagrams, and DNS.

pub(in crate::control) mod accept;
pub(in crate::control) mod capture_check;
pub(in crate::control) mod datagrams;
pub(in crate::control) mod dns;
pub(in crate::control) mod sockets;
