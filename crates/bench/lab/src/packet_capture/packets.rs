//! From a captured packet to a TCP segment, of either family: only what is whole and plain is taken.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// TCP's number among protocols.
const TCP: u8 = 6;
/// The header that says how long a packet of more than 64 KiB is, among IPv6's own.
const HOP_BY_HOP: u8 = 0;
/// Length of IPv6's own header.
const V6_HEADER: usize = 40;

/// A TCP segment.
pub(super) struct Segment<'a> {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// Place of the payload's first byte in its direction.
    pub(super) sequence: u32,
    /// A SYN: all state of this pair of addresses belongs to an older connection.
    pub(super) opens: bool,
    pub(super) payload: &'a [u8],
}

/// The segment in a packet, from the IP header on.
pub(super) fn parse(packet: &[u8]) -> Option<Segment<'_>> {
    let (from, to, tcp) = match packet.first()? >> 4 {
        4 => ipv4(packet)?,
        6 => ipv6(packet)?,
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes(*tcp.get(at..)?.first_chunk::<2>()?));
    let data = usize::from(*tcp.get(12)? >> 4) * 4;
    Some(Segment {
        from: SocketAddr::new(from, port(0)?),
        to: SocketAddr::new(to, port(2)?),
        sequence: u32::from_be_bytes(*tcp.get(4..)?.first_chunk::<4>()?),
        opens: *tcp.get(13)? & 0x02 != 0,
        payload: tcp.get(data..)?,
    })
}

/// Source, destination, and the bytes after the header.
type Carried<'a> = (IpAddr, IpAddr, &'a [u8]);

/// Segmentation offload sets the length to zero if it exceeds the field.
fn end(said: usize, header: usize, packet: &[u8]) -> usize {
    if said == header {
        packet.len()
    } else {
        said.min(packet.len())
    }
}

fn ipv4(packet: &[u8]) -> Option<Carried<'_>> {
    let header = usize::from(packet.first()? & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
    if header < 20 || *packet.get(9)? != TCP {
        return None;
    }
    let address = |at: usize| {
        Some(IpAddr::V4(Ipv4Addr::from(
            *packet.get(at..)?.first_chunk::<4>()?,
        )))
    };
    let tcp = packet.get(header..end(total, 0, packet))?;
    Some((address(12)?, address(16)?, tcp))
}

fn ipv6(packet: &[u8]) -> Option<Carried<'_>> {
    let length = usize::from(u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?]));
    let address = |at: usize| {
        Some(IpAddr::V6(Ipv6Addr::from(
            *packet.get(at..)?.first_chunk::<16>()?,
        )))
    };
    let (from, to) = (address(8)?, address(24)?);
    let (next, header) = match *packet.get(6)? {
        HOP_BY_HOP => {
            let more = usize::from(*packet.get(V6_HEADER + 1)?) * 8 + 8;
            (*packet.get(V6_HEADER)?, V6_HEADER + more)
        }
        next => (next, V6_HEADER),
    };
    let end = end(V6_HEADER + length, V6_HEADER, packet);
    (next == TCP).then_some((from, to, packet.get(header..end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    /// Ports 80 and 443, no options.
    const HEADER: [u8; 20] = [
        0, 80, 1, 187, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn packets_that_are_not_whole_tcp_are_left_alone() {
        let mut packet = vec![
            0x45, 0, 0, 44, 0, 0, 0, 0, 64, 6, 0, 0, 127, 0, 0, 1, 127, 0, 0, 2,
        ];
        packet.extend(HEADER);
        packet.extend(b"data");
        let segment = parse(&packet).expect("tcp");
        assert_eq!(
            (segment.from, segment.to),
            (address("127.0.0.1:80"), address("127.0.0.2:443"))
        );
        assert_eq!(segment.payload, b"data");
        for cut in 0..40 {
            assert!(parse(&packet[..cut]).is_none(), "cut at {cut}");
        }
        packet[9] = 17;
        assert!(parse(&packet).is_none(), "UDP");
    }

    fn v6(next: u8, length: u16, between: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend(length.to_be_bytes());
        packet.extend([next, 64]);
        for last in [1, 2] {
            let mut address = [0; 16];
            (address[0], address[15]) = (0xfd, last);
            packet.extend(address);
        }
        packet.extend(between);
        packet.extend(HEADER);
        packet.extend(b"data");
        packet
    }

    #[test]
    fn segments_over_ipv6_are_understood_jumbo_ones_too_and_others_are_left_alone() {
        let jumbo = [TCP, 0, 0xc2, 4, 0, 0, 0, 32];
        for packet in [v6(TCP, 24, &[]), v6(TCP, 0, &[]), v6(HOP_BY_HOP, 0, &jumbo)] {
            let segment = parse(&packet).expect("tcp");
            assert_eq!(
                (segment.from, segment.to, segment.payload),
                (
                    address("[fd00::1]:80"),
                    address("[fd00::2]:443"),
                    &b"data"[..]
                )
            );
            for cut in 0..packet.len() - 4 {
                assert!(parse(&packet[..cut]).is_none(), "cut at {cut}");
            }
        }
        let padded = [v6(TCP, 24, &[]), vec![0; 6]].concat();
        assert_eq!(parse(&padded).map(|s| s.payload.len()), Some(4));
        for packet in [
            v6(17, 24, &[]),
            v6(HOP_BY_HOP, 32, &[17, 0, 0, 0, 0, 0, 0, 0]),
            vec![0x50; 60],
        ] {
            assert!(parse(&packet).is_none());
        }
    }
}
