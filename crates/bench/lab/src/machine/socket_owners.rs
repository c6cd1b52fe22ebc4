//! Owners of listening sockets, by the kernel's tables: which process listens at an address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use voile_host::netns::Namespace;

/// An address as `/proc` has it: numbers of four bytes as they lie in memory.
fn as_the_kernel(address: IpAddr) -> String {
    let word = |bytes: &[u8; 4]| format!("{:08X}", u32::from_ne_bytes(*bytes));
    match address {
        IpAddr::V4(v4) => word(&v4.octets()),
        IpAddr::V6(v6) => v6.octets().as_chunks().0.iter().map(word).collect(),
    }
}

/// The process among these that listens at the address; if the kernel redirects, at that port of any address.
pub(crate) fn listener_owner(
    address: SocketAddr,
    redirected: Option<u16>,
    pids: &[u32],
) -> io::Result<Option<u32>> {
    for pid in pids {
        let table = sockets(&format!("/proc/{pid}"))?;
        if holds(*pid, &listening(&table, address, redirected))? {
            return Ok(Some(*pid));
        }
    }
    Ok(None)
}

/// The same in a network that they need not be in themselves.
pub(crate) fn inside_owner(
    inside: &Namespace,
    address: SocketAddr,
    redirected: Option<u16>,
    pids: &[u32],
) -> io::Result<Option<u32>> {
    let table = inside.run(|| sockets("/proc/thread-self"))??;
    let inodes = listening(&table, address, redirected);
    for pid in pids {
        if holds(*pid, &inodes)? {
            return Ok(Some(*pid));
        }
    }
    Ok(None)
}

/// The kernel's tables of TCP sockets, as they are where that task is.
fn sockets(task: &str) -> io::Result<String> {
    let table = std::fs::read_to_string(format!("{task}/net/tcp"))?;
    // Without IPv6 there is no second one.
    Ok(table + &std::fs::read_to_string(format!("{task}/net/tcp6")).unwrap_or_default())
}

/// Sockets that listen at the address, by name.
fn listening(table: &str, address: SocketAddr, redirected: Option<u16>) -> Vec<String> {
    let local = format!("{}:{:04X}", as_the_kernel(address.ip()), address.port());
    let port = redirected.map(|port| format!(":{port:04X}"));
    let here = |listens: &str| match &port {
        Some(port) => listens.ends_with(port.as_str()),
        None => listens == local,
    };
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let listening = here(fields.get(1)?) && *fields.get(3)? == "0A";
        listening.then(|| format!("socket:[{}]", fields.get(9).unwrap_or(&"")))
    };
    table.lines().filter_map(socket).collect()
}

/// Returns true if the process holds one of these sockets.
fn holds(pid: u32, sockets: &[String]) -> io::Result<bool> {
    for descriptor in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Ok(link) = std::fs::read_link(descriptor?.path()) else {
            continue;
        };
        if sockets.iter().any(|socket| Path::new(socket) == link) {
            return Ok(true);
        }
    }
    Ok(false)
}
