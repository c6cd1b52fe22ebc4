//! Free ports for servers that get their port on the command line.
//!
//! Taken below the range from which the kernel serves outgoing connections, so that none of those takes the port
//! between the check and the server's bind. Another program may still take it; the server then says so and fails to
//! become ready.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Mutex;

/// The lowest port we give out: below it live well-known services.
const LOWEST: u16 = 10_000;
/// The range used where the kernel does not say where its own begins.
const FALLBACK_EPHEMERAL_START: u16 = 32_768;

/// Addresses that were given out.
static GIVEN: Mutex<BTreeSet<SocketAddr>> = Mutex::new(BTreeSet::new());

/// Allows ports of this address to be given out again: their server is gone.
pub fn forget(address: IpAddr) {
    if let Ok(mut given) = GIVEN.lock() {
        given.retain(|one| one.ip() != address);
    }
}

/// A free port on the address. One process never gets the same (address, port) twice.
///
/// # Errors
/// When no port in the range can be bound there, for instance because the address is not ours.
pub fn free_port(address: IpAddr) -> io::Result<SocketAddr> {
    let mut given = GIVEN
        .lock()
        .map_err(|_| io::Error::other("the list of given ports is poisoned"))?;
    let highest = ephemeral_start().max(LOWEST + 1);
    let span = u32::from(highest - LOWEST);
    // Start where other processes of ours, running beside us, are unlikely to start.
    let start = std::process::id().wrapping_mul(7919) % span;
    let mut last = io::Error::new(io::ErrorKind::AddrInUse, "no free port");
    for step in 0..span {
        let port = LOWEST + ((start + step) % span) as u16;
        let candidate = SocketAddr::new(address, port);
        if given.contains(&candidate) {
            continue;
        }
        match TcpListener::bind(candidate) {
            Ok(_) => {
                given.insert(candidate);
                return Ok(candidate);
            }
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => last = e,
            Err(e) => {
                return Err(io::Error::new(
                    e.kind(),
                    format!("cannot listen on {address}: {e}"),
                ));
            }
        }
    }
    Err(io::Error::new(
        last.kind(),
        format!("no port between {LOWEST} and {highest} is free on {address}: {last}"),
    ))
}

fn ephemeral_start() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_ascii_whitespace().next()?.parse().ok())
        .unwrap_or(FALLBACK_EPHEMERAL_START)
}
