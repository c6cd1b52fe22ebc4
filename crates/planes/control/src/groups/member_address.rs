//! Which addresses a workload may claim that joins by itself: the one it connects from, and those its WorkloadGroup allows. Addresses
//! that never belong to one host of a network are refused whatever the group says.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use voile_model::mesh::AddressRange;

/// Addresses at which clouds answer with a machine's credentials (AWS over IPv6, Alibaba); 169.254.169.254 is link-local.
const METADATA: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
];

/// Description of an address that no member may claim; `None` if the address may belong to a host.
fn reserved(address: IpAddr) -> Option<&'static str> {
    if METADATA.contains(&address) {
        return Some("the address of a cloud's metadata service");
    }
    let (v4, v6) = match address {
        IpAddr::V4(address) => (Some(address), None),
        IpAddr::V6(address) => (None, Some(address)),
    };
    // 0.0.0.0/8 and 240.0.0.0/4, where virtual addresses of ServiceEntries are.
    let no_host = |address: Ipv4Addr| address.octets()[0] == 0 || address.octets()[0] >= 240;
    let no_host = v4.is_some_and(no_host) || address.is_unspecified();
    let link_local = v4.is_some_and(|address| address.is_link_local())
        || v6.is_some_and(|address| address.is_unicast_link_local());
    [
        (
            no_host || address.is_multicast(),
            "not the address of a single host",
        ),
        (link_local, "a link-local address"),
    ]
    .into_iter()
    .find_map(|(is, what)| is.then_some(what))
}

/// Checks that a caller connecting from `peer` may claim `address` in a group that allows these ranges. A peer on loopback runs
/// on this machine and may claim any loopback address: a mesh on one machine lives there.
///
/// # Errors
/// The reason of the refusal.
pub(super) fn may_claim(
    address: IpAddr,
    peer: Option<IpAddr>,
    allowed: &[AddressRange],
) -> Result<(), String> {
    let (address, peer) = (address.to_canonical(), peer.map(|peer| peer.to_canonical()));
    if let Some(what) = reserved(address) {
        return Err(format!("{address} is {what}"));
    }
    if address.is_loopback() {
        return match peer {
            Some(peer) if peer.is_loopback() => Ok(()),
            _ => Err(format!(
                "{address} is a loopback address, and the caller is on another machine"
            )),
        };
    }
    if peer == Some(address) || allowed.iter().any(|range| range.contains(address)) {
        return Ok(());
    }
    let from = peer.map_or_else(|| "an unknown address".to_owned(), |peer| peer.to_string());
    Err(format!(
        "{address} is neither the address that the caller connects from ({from}) nor in a range that the group allows: add the range to the group's annotation `voile.dev/member-addresses`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_claims_the_address_it_connects_from_or_one_that_its_group_allows() {
        for (address, peer, allowed, why) in [
            ("10.0.0.7", "10.0.0.7", "", ""),
            ("::ffff:10.0.0.7", "10.0.0.7", "", ""),
            ("10.0.0.7", "::ffff:10.0.0.7", "", ""),
            ("fd00::7", "fd00::7", "", ""),
            ("10.0.0.7", "10.9.9.9", "10.0.0.0/24", ""),
            ("::ffff:10.0.0.7", "10.9.9.9", "10.0.0.0/24", ""),
            ("127.70.0.2", "127.0.0.1", "", ""),
            ("::1", "127.0.0.1", "", ""),
            ("10.0.0.7", "10.0.0.8", "", "connects from (10.0.0.8)"),
            ("10.0.0.7", "127.0.0.1", "", "connects from (127.0.0.1)"),
            ("10.0.1.7", "10.0.0.8", "10.0.0.0/24", "nor in a range"),
            ("10.0.0.7", "", "", "an unknown address"),
            ("93.184.216.34", "10.0.0.8", "", "nor in a range"),
            ("127.0.0.1", "10.0.0.8", "127.0.0.0/8", "loopback"),
            ("::ffff:127.0.0.1", "10.0.0.8", "", "loopback"),
            ("127.0.0.1", "", "127.0.0.0/8", "loopback"),
            ("::1", "fd00::7", "::/1", "loopback"),
            (
                "169.254.169.254",
                "169.254.169.254",
                "169.254.0.0/16",
                "link-local",
            ),
            ("::ffff:169.254.169.254", "127.0.0.1", "", "link-local"),
            ("fe80::1", "fe80::1", "", "link-local"),
            ("fd00:ec2::254", "fd00:ec2::254", "fd00::/8", "metadata"),
            ("100.100.100.200", "100.100.100.200", "", "metadata"),
            ("0.0.0.0", "0.0.0.0", "", "a single host"),
            ("0.1.2.3", "127.0.0.1", "0.0.0.0/8", "a single host"),
            ("::", "::", "", "a single host"),
            ("224.0.0.1", "224.0.0.1", "224.0.0.0/4", "a single host"),
            ("ff02::1", "ff02::1", "", "a single host"),
            (
                "255.255.255.255",
                "127.0.0.1",
                "255.255.255.255/32",
                "a single host",
            ),
            ("240.240.1.1", "127.0.0.1", "240.0.0.0/4", "a single host"),
        ] {
            let ranges = allowed.split(',').filter(|range| !range.is_empty());
            let ranges: Vec<AddressRange> = ranges.filter_map(AddressRange::parse).collect();
            let claimed = may_claim(
                address.parse().expect("an address"),
                peer.parse().ok(),
                &ranges,
            );
            match (why, claimed) {
                ("", claimed) => assert_eq!(claimed, Ok(()), "{address} from {peer}"),
                (why, Err(said)) => assert!(said.contains(why), "{address} from {peer}: {said}"),
                (why, Ok(())) => panic!("{address} from {peer} is taken, not refused: {why}"),
            }
        }
    }
}
