//! Numbers of sources: who a head is counted to. A source is a client's address and identity, or a server as its pool key
//! names it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

/// Bits of an IPv6 address that its owner does not choose freely.
const NETWORK_BITS: u32 = 64;

/// The number of a client. One that has a network of IPv6 addresses has one number.
#[must_use]
pub fn source_number(address: IpAddr, principal: &str) -> u64 {
    let network = match address.to_canonical() {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address) >> (128 - NETWORK_BITS) << (128 - NETWORK_BITS),
    };
    number_of(&(network, principal))
}

/// The number of whatever tells servers apart.
#[must_use]
pub fn number_of(key: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_one_owner_is_one_source() {
        let number = |address: &str, principal| {
            source_number(address.parse().expect("an address"), principal)
        };
        let one = number("2001:db8:1:2::1", "");
        assert_eq!(one, number("2001:db8:1:2:ffff::2", ""));
        assert_eq!(number("10.0.0.1", "a"), number("::ffff:10.0.0.1", "a"));
        for (address, principal) in [
            ("2001:db8:1:3::1", ""),
            ("10.0.0.1", ""),
            ("2001:db8:1:2::1", "a"),
        ] {
            assert_ne!(one, number(address, principal), "{address} {principal}");
        }
    }
}
