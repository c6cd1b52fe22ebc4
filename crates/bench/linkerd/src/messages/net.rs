//! `io.linkerd.proxy.net`: addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The eight hextets as two numbers.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Ipv6 {
    /// The first four.
    #[prost(fixed64, tag = "1")]
    pub first: u64,
    /// The last four.
    #[prost(fixed64, tag = "2")]
    pub last: u64,
}

/// An address of either family.
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub enum Ip {
    /// As a number, not as bytes.
    #[prost(fixed32, tag = "1")]
    V4(u32),
    /// As two of them.
    #[prost(message, tag = "2")]
    V6(Ipv6),
}

/// An address.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct IpAddress {
    /// Which.
    #[prost(oneof = "Ip", tags = "1, 2")]
    pub ip: Option<Ip>,
}

/// A range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct IpNetwork {
    /// Its first.
    #[prost(message, optional, tag = "1")]
    pub ip: Option<IpAddress>,
    /// Bits that are fixed.
    #[prost(uint32, tag = "2")]
    pub prefix_len: u32,
}

/// An address and a port.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TcpAddress {
    /// The address.
    #[prost(message, optional, tag = "1")]
    pub ip: Option<IpAddress>,
    /// The port.
    #[prost(uint32, tag = "2")]
    pub port: u32,
}

impl From<IpAddr> for IpAddress {
    fn from(address: IpAddr) -> Self {
        let ip = match address {
            IpAddr::V4(v4) => Ip::V4(v4.to_bits()),
            IpAddr::V6(v6) => {
                let bits = v6.to_bits();
                Ip::V6(Ipv6 {
                    first: (bits >> 64) as u64,
                    last: bits as u64,
                })
            }
        };
        Self { ip: Some(ip) }
    }
}

impl From<SocketAddr> for TcpAddress {
    fn from(address: SocketAddr) -> Self {
        Self {
            ip: Some(address.ip().into()),
            port: address.port().into(),
        }
    }
}

impl TcpAddress {
    /// As we write it; none where a part is missing or the port is none.
    #[must_use]
    pub fn socket(&self) -> Option<SocketAddr> {
        let ip = match self.ip?.ip? {
            Ip::V4(bits) => IpAddr::V4(Ipv4Addr::from_bits(bits)),
            Ip::V6(v6) => {
                let bits = (u128::from(v6.first) << 64) | u128::from(v6.last);
                IpAddr::V6(Ipv6Addr::from_bits(bits))
            }
        };
        Some(SocketAddr::new(ip, u16::try_from(self.port).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_come_back_as_they_went() {
        for text in ["10.211.0.1:8080", "[fd00:210::2:3]:9080", "[::1]:1"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(TcpAddress::from(address).socket(), Some(address));
        }
        let beyond = TcpAddress {
            port: 65_536,
            ..TcpAddress::from(SocketAddr::from(([1, 2, 3, 4], 5)))
        };
        assert_eq!(
            (beyond.socket(), TcpAddress::default().socket()),
            (None, None)
        );
    }
}
