//! One mesh, one block 127.S.0.0/16: the claim that keeps two meshes on a machine apart.
//!
//! The claim is an abstract Unix socket. Like loopback addresses it belongs to the network namespace, and the kernel
//! lets go of it when the process ends, however it ends: no lock file can be left behind.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;

/// Second octets that a mesh may own. 127.0 is in general use, and 127.255 holds the broadcast address.
const OCTETS: std::ops::RangeInclusive<u8> = 1..=254;
/// The control plane's ports are 127.0.0.1:(BASE + 10 × S + last digit of Istio's port); below Linux's ephemeral ports.
const CONTROL_PORT_BASE: u16 = 21_000;
/// Of each control plane the last digits of its ports: discovery, monitoring. The first has Istio's.
const CONTROL_PORTS: [(u16, u16); MAX_CONTROL_PLANES] = [(2, 4), (5, 6), (7, 8)];
/// Control planes of one mesh: as many as ten ports allow, and more than one machine has use for.
pub const MAX_CONTROL_PLANES: usize = 3;

/// All blocks are taken, or nothing could be claimed at all.
#[derive(Debug, thiserror::Error)]
#[error(
    "no loopback block is free: all of 127.1.0.0/16 to 127.254.0.0/16 are taken by other meshes"
)]
pub struct NoBlock;

/// Addresses at which one control plane listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlPlace {
    /// It serves proxies.
    pub xds: SocketAddr,
    /// It serves its metrics and readiness.
    pub monitoring: SocketAddr,
}

/// A claimed block; dropping it lets go.
#[derive(Debug)]
pub struct Block {
    octet: u8,
    _claim: UnixListener,
}

impl Block {
    /// Claims the first block that no other mesh holds and whose control ports are free.
    pub fn claim() -> Result<Self, NoBlock> {
        OCTETS.filter_map(Self::try_claim).next().ok_or(NoBlock)
    }

    fn try_claim(octet: u8) -> Option<Self> {
        let name = std::os::unix::net::SocketAddr::from_abstract_name(format!(
            "voile-up/127.{octet}.0.0/16"
        ))
        .ok()?;
        let block = Self {
            octet,
            _claim: UnixListener::bind_addr(&name).ok()?,
        };
        // A foreigner may hold one of the ports. It may also take one later; then control says so and does not start.
        let mut places = block.control_planes().into_iter();
        let is_free = |address| TcpListener::bind(address).is_ok();
        let free = places.all(|place| is_free(place.xds) && is_free(place.monitoring));
        free.then_some(block)
    }

    /// The second octet, S of 127.S.0.0/16.
    pub fn octet(&self) -> u8 {
        self.octet
    }

    /// Returns the addresses of all possible control planes. They are on 127.0.0.1, because the certificates name
    /// that address.
    pub fn control_planes(&self) -> [ControlPlace; MAX_CONTROL_PLANES] {
        CONTROL_PORTS.map(|(xds, monitoring)| ControlPlace {
            xds: self.control(xds),
            monitoring: self.control(monitoring),
        })
    }

    fn control(&self, last: u16) -> SocketAddr {
        (
            Ipv4Addr::LOCALHOST,
            CONTROL_PORT_BASE + 10 * u16::from(self.octet) + last,
        )
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_meshes_never_hold_the_same_block_and_a_dropped_one_is_free_again() {
        let first = Block::claim().expect("a block is free");
        let second = Block::claim().expect("another block is free");
        assert_ne!(first.octet(), second.octet());
        assert_ne!(first.control_planes(), second.control_planes());
        assert!(Block::try_claim(first.octet()).is_none(), "claimed twice");
        let octet = second.octet();
        drop(second);
        assert!(Block::try_claim(octet).is_some(), "not let go");
    }
}
