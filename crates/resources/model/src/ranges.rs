//! Things by ranges of addresses: which lie around an address, the narrowest first. One look for each length of prefix in
//! use, however many ranges there are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use crate::mesh::AddressRange;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges<T>(BTreeMap<Reverse<u8>, HashMap<IpAddr, BTreeSet<T>>>);

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord> Ranges<T> {
    /// Adds a thing that has this range.
    pub fn insert(&mut self, range: AddressRange, thing: T) {
        let networks = self.0.entry(Reverse(range.prefix)).or_default();
        let network = masked(range.address, range.prefix);
        networks.entry(network).or_default().insert(thing);
    }

    /// It has it no more.
    pub fn remove(&mut self, range: AddressRange, thing: &T) {
        let Some(networks) = self.0.get_mut(&Reverse(range.prefix)) else {
            return;
        };
        let network = masked(range.address, range.prefix);
        if let Some(things) = networks.get_mut(&network) {
            things.remove(thing);
            if things.is_empty() {
                networks.remove(&network);
            }
        }
        if networks.is_empty() {
            self.0.remove(&Reverse(range.prefix));
        }
    }

    /// The entries whose range contains the address, the narrowest first; equal ranges in order.
    pub fn around(&self, address: IpAddr) -> impl Iterator<Item = (u8, &T)> {
        let bits = bits(address);
        let fits = self.0.iter().filter(move |(prefix, _)| prefix.0 <= bits);
        fits.flat_map(move |(prefix, networks)| {
            let things = networks
                .get(&masked(address, prefix.0))
                .into_iter()
                .flatten();
            things.map(|thing| (prefix.0, thing))
        })
    }
}

fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// The first address of the network of `prefix` bits that an address lies in.
pub fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    let free = u32::from(bits(address).saturating_sub(prefix));
    match address {
        IpAddr::V4(v4) => {
            IpAddr::V4((v4.to_bits() & u32::MAX.checked_shl(free).unwrap_or(0)).into())
        }
        IpAddr::V6(v6) => {
            IpAddr::V6((v6.to_bits() & u128::MAX.checked_shl(free).unwrap_or(0)).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_range_comes_first_and_families_are_kept_apart() {
        let range = |text: &str| {
            let (address, prefix) = text.split_once('/').expect("a range");
            AddressRange {
                address: address.parse().expect("an address"),
                prefix: prefix.parse().expect("bits"),
            }
        };
        let all = [
            ("10.0.0.0/8", "wide"),
            ("10.1.0.0/16", "middle"),
            ("10.1.2.0/24", "narrow"),
            ("10.1.2.0/24", "another"),
            ("0.0.0.0/0", "all"),
            ("fd00::/8", "six"),
            ("::/0", "all six"),
        ];
        let mut ranges = Ranges::default();
        for (text, thing) in all {
            ranges.insert(range(text), thing);
        }
        let cases: [(&str, &[&str]); 6] = [
            ("10.1.2.3", &["another", "narrow", "middle", "wide", "all"]),
            ("10.1.3.3", &["middle", "wide", "all"]),
            ("10.255.255.255", &["wide", "all"]),
            ("11.0.0.0", &["all"]),
            ("fd00::1", &["six", "all six"]),
            ("2001:db8::1", &["all six"]),
        ];
        for (address, expected) in cases {
            let address = address.parse().expect("an address");
            let found: Vec<_> = ranges.around(address).map(|(_, thing)| *thing).collect();
            assert_eq!(found, expected, "{address}");
        }
        for (text, thing) in all {
            ranges.remove(range(text), &thing);
        }
        assert_eq!(ranges, Ranges::default());
    }
}
