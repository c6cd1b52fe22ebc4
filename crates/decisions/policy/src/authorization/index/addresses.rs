//! Index from an address to the blocks that contain it. It costs one lookup for each length of block that occurs: at
//! most 33 for IPv4 and 129 for IPv6, for any number of blocks.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

use crate::authorization::cidr::{Cidr, mask_v4, mask_v6};

/// A hasher for keys of policies: two multiplications.
#[derive(Debug, Default)]
struct Quick(u64);

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }
}

type Blocks<A> = HashMap<(A, u8), u32, BuildHasherDefault<Quick>>;

/// Blocks of addresses and what is registered under each.
#[derive(Debug, Default)]
pub(super) struct AddressTable {
    v4: Blocks<u32>,
    v4_lengths: Vec<u8>,
    v6: Blocks<(u64, u64)>,
    v6_lengths: Vec<u8>,
}

/// The halves of an IPv6 address: `u128` would make every entry half as large again.
fn halves(address: u128) -> (u64, u64) {
    ((address >> 64) as u64, address as u64)
}

impl AddressTable {
    /// A table of blocks, each once.
    pub(super) fn new(entries: &[(Cidr, u32)]) -> Self {
        let mut table = Self::default();
        for (cidr, registered) in entries {
            let lengths = match cidr.address() {
                IpAddr::V4(address) => {
                    table
                        .v4
                        .insert((address.into(), cidr.length()), *registered);
                    &mut table.v4_lengths
                }
                IpAddr::V6(address) => {
                    let key = (halves(address.into()), cidr.length());
                    table.v6.insert(key, *registered);
                    &mut table.v6_lengths
                }
            };
            if !lengths.contains(&cidr.length()) {
                lengths.push(cidr.length());
            }
        }
        table.v4.shrink_to_fit();
        table.v6.shrink_to_fit();
        table
    }

    /// Reports everything registered under a block that contains the address. The address must not be IPv4-mapped.
    pub(super) fn each(&self, address: IpAddr, found: &mut impl FnMut(u32)) {
        match address {
            IpAddr::V4(address) => {
                let address = u32::from(address);
                for length in &self.v4_lengths {
                    if let Some(registered) = self.v4.get(&(address & mask_v4(*length), *length)) {
                        found(*registered);
                    }
                }
            }
            IpAddr::V6(address) => {
                let address = u128::from(address);
                for length in &self.v6_lengths {
                    let key = (halves(address & mask_v6(*length)), *length);
                    if let Some(registered) = self.v6.get(&key) {
                        found(*registered);
                    }
                }
            }
        }
    }

    pub(super) fn memory(&self) -> usize {
        let v4 = self.v4.capacity() * (size_of::<((u32, u8), u32)>() + 1);
        v4 + self.v6.capacity() * (size_of::<(((u64, u64), u8), u32)>() + 1)
    }
}
