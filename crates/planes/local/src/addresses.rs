//! Addresses of one mesh, and their owners.
//!
//! On loopback a mesh owns one block 127.S.0.0/16. Pods take its low part. Every (pod, service) pair takes one
//! address of the rest, so that a service can be reached on its own port. In namespaces pods take 10.244.0.0/16, and
//! every service has one virtual address in 10.96.0.0/16, the same for all. An address stays with its owner over
//! edits, and one that was given up is reused last: a client may still hold it in a pool.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Slots of a /16: an address is `127.S.(slot / 256).(slot % 256)`.
type Slot = u16;

/// Pods: 127.S.0.2 to 127.S.15.254; about four thousand, far more than one machine runs.
const PODS: std::ops::RangeInclusive<Slot> = 2..=(15 * 256 + 254);
/// Service listeners: 127.S.16.1 to 127.S.254.254; about sixty thousand (pod, service) pairs.
const LISTENERS: std::ops::RangeInclusive<Slot> = (16 * 256 + 1)..=(254 * 256 + 254);

/// The block of a mesh has no address left.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AddressError {
    /// More pods than the block holds.
    #[error("too many pods: a mesh has at most {limit} addresses; run fewer replicas")]
    Pods {
        /// Number of pods that the block can hold.
        limit: usize,
    },
    /// More pairs of pod and visible service than the block holds.
    #[error(
        "too many pairs of pod and visible service: a mesh has at most {limit} addresses; limit the visible services with a Sidecar's egress.hosts"
    )]
    Listeners {
        /// Number of pairs that the block can hold.
        limit: usize,
    },
}

/// Isolation of a mesh's pods from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodIsolation {
    /// By addresses in 127.S.0.0/16, with this S.
    Loopback(u8),
    /// By network namespaces.
    Namespaces,
}

/// First octets of pods in namespaces.
const POD_NETWORK: [u8; 2] = [10, 244];
/// First octets of virtual addresses of services in namespaces.
const SERVICE_NETWORK: [u8; 2] = [10, 96];
/// Returns true for a virtual address of a service.
pub fn is_service(address: Ipv4Addr) -> bool {
    address.octets()[..2] == SERVICE_NETWORK
}

/// Bits of both.
pub const PREFIX_V4: u8 = 16;
/// Bits of the pods' IPv6 network.
pub const PREFIX_V6: u8 = 64;
/// The bridge, which is every pod's default gateway.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(POD_NETWORK[0], POD_NETWORK[1], 0, 1);
/// Address of the name server in namespaces. It is Kubernetes' usual address, and no service gets it.
pub const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(SERVICE_NETWORK[0], SERVICE_NETWORK[1], 0, 10);

/// The IPv6 address beside an IPv4 address of a pod (or the gateway).
pub fn beside(address: Ipv4Addr) -> Ipv6Addr {
    let [_, _, high, low] = address.octets();
    Ipv6Addr::new(
        0xfd00,
        0x244,
        0,
        0,
        0,
        0,
        0,
        u16::from_be_bytes([high, low]),
    )
}

/// The addresses of one mesh, by owner.
#[derive(Debug, Clone)]
pub struct Addresses {
    layout: PodIsolation,
    pods: Pool<String>,
    listeners: Pool<(String, String)>,
}

impl Addresses {
    /// No address given yet.
    pub fn new(layout: PodIsolation) -> Self {
        Self {
            layout,
            pods: Pool::new(PODS),
            listeners: Pool::new(LISTENERS),
        }
    }

    /// Returns the isolation of the pods.
    pub fn layout(&self) -> PodIsolation {
        self.layout
    }

    /// The address of a pod (`namespace/name`), the same on every call.
    pub fn pod(&mut self, pod: &str) -> Result<Ipv4Addr, AddressError> {
        let slot = self.pods.take(pod.to_owned());
        slot.map(|slot| self.address(slot, POD_NETWORK))
            .ok_or(AddressError::Pods { limit: PODS.len() })
    }

    /// The address where `pod` reaches `service`, the same on every call; in namespaces the same for every pod.
    pub fn listener(&mut self, pod: &str, service: &str) -> Result<Ipv4Addr, AddressError> {
        let pod = match self.layout {
            PodIsolation::Loopback(_) => pod,
            PodIsolation::Namespaces => "",
        };
        let slot = self.listeners.take((pod.to_owned(), service.to_owned()));
        slot.map(|slot| self.address(slot, SERVICE_NETWORK))
            .ok_or(AddressError::Listeners {
                limit: LISTENERS.len(),
            })
    }

    /// Gives up the addresses of pods and pairs that were not requested since `begin`.
    pub fn finish(&mut self) {
        self.pods.finish();
        self.listeners.finish();
    }

    /// Begins a new expansion: addresses that are not requested again until [`Self::finish`] are given up there.
    pub fn begin(&mut self) {
        self.pods.asked.clear();
        self.listeners.asked.clear();
    }

    fn address(&self, slot: Slot, network: [u8; 2]) -> Ipv4Addr {
        let [high, low] = slot.to_be_bytes();
        match self.layout {
            PodIsolation::Loopback(block) => Ipv4Addr::new(127, block, high, low),
            PodIsolation::Namespaces => Ipv4Addr::new(network[0], network[1], high, low),
        }
    }
}

#[derive(Debug, Clone)]
struct Pool<K> {
    range: std::ops::RangeInclusive<Slot>,
    /// Slot after the last one given, at which the search for a free slot begins.
    next: Slot,
    held: BTreeMap<K, Slot>,
    used: BTreeSet<Slot>,
    asked: BTreeSet<K>,
}

impl<K: Ord + Clone> Pool<K> {
    fn new(range: std::ops::RangeInclusive<Slot>) -> Self {
        let next = *range.start();
        Self {
            range,
            next,
            held: BTreeMap::new(),
            used: BTreeSet::new(),
            asked: BTreeSet::new(),
        }
    }

    fn take(&mut self, key: K) -> Option<Slot> {
        self.asked.insert(key.clone());
        if let Some(slot) = self.held.get(&key) {
            return Some(*slot);
        }
        let slot = self.free()?;
        self.used.insert(slot);
        self.held.insert(key, slot);
        self.next = if slot == *self.range.end() {
            *self.range.start()
        } else {
            slot + 1
        };
        Some(slot)
    }

    fn free(&self) -> Option<Slot> {
        let behind = self.next..=*self.range.end();
        let before = *self.range.start()..=self.next;
        // 127.S.x.0 and .255 are lawful on loopback, but look like a network's and a broadcast address.
        behind
            .chain(before)
            .find(|slot| !matches!(slot & 0xff, 0 | 0xff) && !self.used.contains(slot))
    }

    fn finish(&mut self) {
        let Self {
            held, used, asked, ..
        } = self;
        held.retain(|key, slot| {
            let keep = asked.contains(key);
            if !keep {
                used.remove(slot);
            }
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_stays_with_its_owner_and_is_reused_last() {
        let mut addresses = Addresses::new(PodIsolation::Loopback(7));
        assert_eq!(addresses.pod("a/one"), Ok(Ipv4Addr::new(127, 7, 0, 2)));
        assert_eq!(addresses.pod("a/two"), Ok(Ipv4Addr::new(127, 7, 0, 3)));
        assert_eq!(
            addresses.listener("a/one", "a/x"),
            Ok(Ipv4Addr::new(127, 7, 16, 1))
        );
        addresses.begin();
        assert_eq!(addresses.pod("a/two"), Ok(Ipv4Addr::new(127, 7, 0, 3)));
        addresses.finish();
        assert_eq!(
            addresses.pod("a/three"),
            Ok(Ipv4Addr::new(127, 7, 0, 4)),
            "the address of a/one must rest"
        );
        assert_eq!(
            addresses.listener("a/one", "a/x"),
            Ok(Ipv4Addr::new(127, 7, 16, 2))
        );
    }

    #[test]
    fn in_namespaces_every_pod_reaches_a_service_at_one_address() {
        let mut addresses = Addresses::new(PodIsolation::Namespaces);
        let pod = addresses.pod("a/one").expect("an address");
        assert_eq!(pod, Ipv4Addr::new(10, 244, 0, 2));
        assert_eq!(beside(pod).to_string(), "fd00:244::2");
        assert_ne!(pod, GATEWAY);
        let one = addresses.listener("a/one", "a/x").expect("an address");
        assert_eq!(one, Ipv4Addr::new(10, 96, 16, 1));
        assert_eq!(addresses.listener("a/two", "a/x"), Ok(one));
        assert_ne!(addresses.listener("a/two", "a/y"), Ok(one));
    }

    #[test]
    fn addresses_that_look_like_a_network_are_skipped_and_the_block_ends_with_an_error() {
        let mut addresses = Addresses::new(PodIsolation::Loopback(1));
        let mut seen = BTreeSet::new();
        let error = (0..70_000)
            .find_map(|n| match addresses.pod(&format!("a/{n}")) {
                Ok(address) => {
                    assert!(!matches!(address.octets()[3], 0 | 255), "{address}");
                    assert!(
                        address.octets()[2] <= 15,
                        "{address} is among the listeners"
                    );
                    assert!(seen.insert(address), "{address} given twice");
                    None
                }
                Err(error) => Some(error),
            })
            .expect("a /20 ends before 70,000");
        assert_eq!(error, AddressError::Pods { limit: PODS.len() });
        // One given up makes room for one, and only one.
        addresses.begin();
        for n in 1..seen.len() {
            addresses.pod(&format!("a/{n}")).expect("already held");
        }
        addresses.finish();
        assert!(addresses.pod("b/new").is_ok());
        assert!(addresses.pod("b/newer").is_err());
    }
}
