//! Peers that break the rules, by hand: the treatment of each, and what it costs others.

mod alpn;
mod clients;
mod downgrades;
mod memory;
mod servers;
