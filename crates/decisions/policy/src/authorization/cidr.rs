//! Blocks of addresses, as policies write them. IPv4 and IPv6 never match each other; a client's IPv4-mapped IPv6 address
//! is its IPv4 address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A block of addresses; the bits beyond its length are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    address: IpAddr,
    length: u8,
}

/// Why a text is no block of addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address or ADDRESS/LENGTH")]
pub struct CidrError(String);

impl Cidr {
    /// The block of a length in bits around an address; `None` if the address has fewer bits.
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let address = match address {
            IpAddr::V4(v4) if length <= 32 => {
                Ipv4Addr::from(u32::from(v4) & mask_v4(length)).into()
            }
            IpAddr::V6(v6) if length <= 128 => {
                Ipv6Addr::from(u128::from(v6) & mask_v6(length)).into()
            }
            IpAddr::V4(_) | IpAddr::V6(_) => return None,
        };
        Some(Self { address, length })
    }

    /// The first address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Length of the prefix in bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Returns true if the block consists of IPv4-mapped IPv6 addresses. No client ever has an address in it.
    pub fn is_mapped(&self) -> bool {
        matches!(self.address, IpAddr::V6(v6) if self.length >= 96 && v6.to_ipv4_mapped().is_some())
    }

    /// Returns true if the block contains the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(block), IpAddr::V4(one)) => {
                u32::from(one) & mask_v4(self.length) == u32::from(block)
            }
            (IpAddr::V6(block), IpAddr::V6(one)) => {
                u128::from(one) & mask_v6(self.length) == u128::from(block)
            }
            _ => false,
        }
    }
}

/// The bits of an IPv4 address that a length keeps.
pub(super) fn mask_v4(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
}

/// The bits of an IPv6 address that a length keeps.
pub(super) fn mask_v6(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let parse = || {
            let (address, length) = match text.split_once('/') {
                Some((address, length)) => {
                    let plain = length == "0" || !length.starts_with(['0', '+']);
                    (address, Some(length.parse::<u8>().ok().filter(|_| plain)?))
                }
                None => (text, None),
            };
            let address: IpAddr = address.parse().ok()?;
            let whole = if address.is_ipv4() { 32 } else { 128 };
            Self::new(address, length.unwrap_or(whole))
        };
        parse().ok_or_else(|| CidrError(text.chars().take(100).collect()))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}
