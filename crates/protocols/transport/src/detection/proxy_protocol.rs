//! The header by which a load balancer names its client (the PROXY protocol, versions 1 and 2), read and written. The
//! parser is pure and takes no byte beyond the header, so that the next reader gets the rest.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::detect::TLS_HANDSHAKE_RECORD;

/// Longest header of version 1, in bytes, its line end included (section 2.1).
const MAX_V1_BYTES: usize = 107;
/// Longest header of version 2 that is read, in bytes: the addresses take 36, and balancers add some hundred.
pub const MAX_PROXY_HEADER_BYTES: usize = 4096;
/// Bytes of version 2 before the addresses.
const V2_FIXED_BYTES: usize = 16;

const V1_SIGNATURE: &[u8] = b"PROXY ";
const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// The field of version 2 in which ztunnel names the caller's identity.
const IDENTITY: u8 = 0xd0;

/// A whole header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Length of the header in bytes.
    pub length: usize,
    /// Client of the balancer; `None` where the balancer speaks for itself or does not know.
    pub source: Option<SocketAddr>,
}

/// Why there is no header (yet).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeaderError {
    /// More bytes are needed, all of which belong to it.
    NeedMore,
    /// It is none.
    Malformed(&'static str),
}

impl fmt::Display for ProxyHeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NeedMore => "the PROXY header is not complete",
            Self::Malformed(reason) => reason,
        })
    }
}

impl std::error::Error for ProxyHeaderError {}

use ProxyHeaderError::{Malformed, NeedMore};

/// Reads the header that `bytes` begin with.
///
/// # Errors
/// It is not complete, or they begin with something else.
pub fn parse(bytes: &[u8]) -> Result<ProxyHeader, ProxyHeaderError> {
    if begins(bytes, V2_SIGNATURE) {
        return version_2(bytes);
    }
    if begins(bytes, V1_SIGNATURE) {
        return version_1(bytes);
    }
    Err(Malformed("no PROXY header"))
}

/// The header, of version 2, of a connection that `source` made to `destination`, with the identity that was proven.
#[must_use]
pub fn header(source: SocketAddr, destination: SocketAddr, identity: &str) -> Vec<u8> {
    let length = length(identity.len());
    let addition = [&[IDENTITY][..], &length, identity.as_bytes()].concat();
    block(Some((source, destination)), &addition)
}

/// An identity is some hundred bytes: a certificate has no room for more.
fn length(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes()
}

/// Returns true if one is a prefix of the other.
fn begins(bytes: &[u8], signature: &[u8]) -> bool {
    let length = bytes.len().min(signature.len());
    bytes[..length] == signature[..length]
}

fn version_1(bytes: &[u8]) -> Result<ProxyHeader, ProxyHeaderError> {
    let within = &bytes[..bytes.len().min(MAX_V1_BYTES)];
    let Some(end) = within.windows(2).position(|pair| pair == b"\r\n") else {
        return Err(match within.len() < MAX_V1_BYTES {
            true => NeedMore,
            false => Malformed("PROXY line longer than 107 bytes"),
        });
    };
    let line = std::str::from_utf8(&within[V1_SIGNATURE.len()..end]);
    let line = line.map_err(|_| Malformed("PROXY line that is not ASCII"))?;
    let length = end + 2;
    let mut words = line.split(' ');
    let family = words.next().unwrap_or_default();
    if family == "UNKNOWN" {
        // The rest of the header is skipped.
        let source = None;
        return Ok(ProxyHeader { length, source });
    }
    let mut word = || {
        words
            .next()
            .ok_or(Malformed("PROXY line without its addresses"))
    };
    let (from, to, port, to_port) = (word()?, word()?, word()?, word()?);
    if words.next().is_some() {
        return Err(Malformed("PROXY line with extra fields"));
    }
    let address = |text: &str| -> Result<IpAddr, ProxyHeaderError> {
        let wrong = Malformed("PROXY line with an invalid address");
        match family {
            "TCP4" => text.parse::<Ipv4Addr>().map(IpAddr::V4).map_err(|_| wrong),
            "TCP6" => text.parse::<Ipv6Addr>().map(IpAddr::V6).map_err(|_| wrong),
            _ => Err(Malformed("PROXY line of an unknown family")),
        }
    };
    let (from, _) = (address(from)?, address(to)?);
    let (port, _) = (decimal(port)?, decimal(to_port)?);
    Ok(ProxyHeader {
        length,
        source: Some(SocketAddr::new(from, port)),
    })
}

/// A port without signs, zeros in front or anything else.
fn decimal(text: &str) -> Result<u16, ProxyHeaderError> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = plain && (text == "0" || !text.starts_with('0'));
    let port = canonical.then(|| text.parse().ok()).flatten();
    port.ok_or(Malformed("PROXY line with an invalid port"))
}

fn version_2(bytes: &[u8]) -> Result<ProxyHeader, ProxyHeaderError> {
    let Some((fixed, rest)) = bytes.split_at_checked(V2_FIXED_BYTES) else {
        return Err(NeedMore);
    };
    let (command, family) = (fixed[12], fixed[13]);
    let announced = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let length = V2_FIXED_BYTES + announced;
    if command >> 4 != 2 {
        return Err(Malformed("PROXY header of an unknown version"));
    }
    if command & 0xf > 1 {
        return Err(Malformed("PROXY header with an unknown command"));
    }
    if length > MAX_PROXY_HEADER_BYTES {
        return Err(Malformed("PROXY header too large"));
    }
    let Some(addresses) = rest.get(..announced) else {
        return Err(NeedMore);
    };
    // LOCAL: the balancer's own, as when it asks whether we are alive.
    if command & 0xf == 0 {
        let source = None;
        return Ok(ProxyHeader { length, source });
    }
    let short = Malformed("PROXY header shorter than its addresses");
    let source = match family {
        // Unspecified: it could say, and does not.
        0x00 => None,
        0x11 => {
            let [a, b, c, d, _, _, _, _, high, low, _, _] = addresses.first_chunk().ok_or(short)?;
            let address = Ipv4Addr::new(*a, *b, *c, *d).into();
            Some(SocketAddr::new(address, u16::from_be_bytes([*high, *low])))
        }
        0x21 => {
            let block: &[u8; 36] = addresses.first_chunk().ok_or(short)?;
            let mut address = [0; 16];
            address.copy_from_slice(&block[..16]);
            let port = u16::from_be_bytes([block[32], block[33]]);
            Some(SocketAddr::new(Ipv6Addr::from(address).into(), port))
        }
        _ => return Err(Malformed("PROXY header of something other than TCP")),
    };
    Ok(ProxyHeader { length, source })
}

/// A version that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// A line of text.
    V1,
    /// Bytes.
    V2,
}

/// Returns the header of a connection made for a client: the client's address and its destination. Without them the
/// writer speaks for itself, or does not know. Addresses of two families are both written as IPv6.
#[must_use]
pub fn introduction(version: Version, ends: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    match version {
        Version::V1 => line(ends).into_bytes(),
        Version::V2 => block(ends, &[]),
    }
}

/// Addresses of one family.
enum AddressPair {
    V4([Ipv4Addr; 2]),
    V6([Ipv6Addr; 2]),
}

impl AddressPair {
    fn of(from: IpAddr, to: IpAddr) -> Self {
        let mapped = |address: IpAddr| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        match (from.to_canonical(), to.to_canonical()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Self::V4([from, to]),
            (from, to) => Self::V6([mapped(from), mapped(to)]),
        }
    }
}

fn line(ends: Option<(SocketAddr, SocketAddr)>) -> String {
    let Some((from, to)) = ends else {
        return "PROXY UNKNOWN\r\n".to_owned();
    };
    let ports = format!("{} {}\r\n", from.port(), to.port());
    match AddressPair::of(from.ip(), to.ip()) {
        AddressPair::V4([from, to]) => format!("PROXY TCP4 {from} {to} {ports}"),
        AddressPair::V6([from, to]) => format!("PROXY TCP6 {from} {to} {ports}"),
    }
}

fn block(ends: Option<(SocketAddr, SocketAddr)>, addition: &[u8]) -> Vec<u8> {
    const LOCAL: u8 = 0x20;
    const PROXY: u8 = 0x21;
    let (command, family, addresses) = match ends {
        None => (LOCAL, 0, Vec::new()),
        Some((from, to)) => {
            let ports = [from.port(), to.port()].map(u16::to_be_bytes);
            let (family, both) = match AddressPair::of(from.ip(), to.ip()) {
                AddressPair::V4(both) => (0x11, both.map(|one| one.octets()).concat()),
                AddressPair::V6(both) => (0x21, both.map(|one| one.octets()).concat()),
            };
            (PROXY, family, [&both, ports.as_flattened()].concat())
        }
    };
    let length = length(addresses.len() + addition.len());
    [
        V2_SIGNATURE,
        &[command, family],
        &length,
        &addresses,
        addition,
    ]
    .concat()
}

/// Takes the header from the beginning of a connection, and not a byte more; returns the client. A connection that
/// begins with TLS needs none: mutual TLS proves the peer's identity, and other TLS counts by its source address.
///
/// # Errors
/// When there is no header, or not within `limit`, or the socket fails.
pub async fn read_proxy_header(
    tcp: &mut TcpStream,
    limit: Duration,
) -> io::Result<Option<SocketAddr>> {
    let reading = async {
        let mut header = Vec::new();
        loop {
            let begun = header.len();
            let mut more = [0; 256];
            let count = tcp.peek(&mut more).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if begun == 0 && more[0] == TLS_HANDSHAKE_RECORD {
                return Ok(None);
            }
            header.extend_from_slice(&more[..count]);
            let parsed = parse(&header);
            let take = match parsed {
                Ok(header) => header.length - begun,
                Err(NeedMore) => count,
                Err(Malformed(reason)) => return Err(io::Error::other(reason)),
            };
            tcp.read_exact(&mut more[..take]).await?;
            if let Ok(header) = parsed {
                return Ok(header.source);
            }
        }
    };
    let read = tokio::time::timeout(limit, reading);
    read.await.map_err(|_| io::ErrorKind::TimedOut)?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
        [V2_SIGNATURE, &[command, family], &length, rest].concat()
    }

    fn ipv4() -> Vec<u8> {
        vec![192, 0, 2, 1, 198, 51, 100, 2, 0x30, 0x39, 0, 80]
    }

    fn ipv6(address: &str) -> Vec<u8> {
        let address: Ipv6Addr = address.parse().expect("an address");
        let mut block = address.octets().to_vec();
        block.extend_from_slice(&[0; 16]);
        block.extend_from_slice(&[0x30, 0x39, 0, 80]);
        block
    }

    #[test]
    fn whole_headers_say_who_connects() {
        let table: [(Vec<u8>, Option<&str>); 10] = [
            (
                b"PROXY TCP4 192.0.2.1 198.51.100.2 12345 80\r\n".to_vec(),
                Some("192.0.2.1:12345"),
            ),
            (
                b"PROXY TCP6 2001:db8::1 2001:db8::2 12345 80\r\n".to_vec(),
                Some("[2001:db8::1]:12345"),
            ),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ffff::1 whatever 1 2\r\n".to_vec(), None),
            (v2(0x21, 0x11, &ipv4()), Some("192.0.2.1:12345")),
            (
                v2(0x21, 0x21, &ipv6("2001:db8::1")),
                Some("[2001:db8::1]:12345"),
            ),
            // Extra fields of a balancer are skipped.
            (
                v2(0x21, 0x11, &[ipv4(), vec![4, 0, 1, 0]].concat()),
                Some("192.0.2.1:12345"),
            ),
            (v2(0x20, 0x00, &[]), None),
            (v2(0x20, 0x11, &ipv4()), None),
            (v2(0x21, 0x00, &[1, 2, 3]), None),
        ];
        for (bytes, source) in table {
            let source = source.map(|text| text.parse().expect("an address"));
            let length = bytes.len();
            let followed = [&bytes[..], b"GET / HTTP/1.1"].concat();
            let wanted = Ok(ProxyHeader { length, source });
            assert_eq!(parse(&followed), wanted, "{bytes:?}");
            for cut in 1..length {
                assert_eq!(parse(&bytes[..cut]), Err(NeedMore), "{:?}", &bytes[..cut]);
            }
        }
    }

    #[test]
    fn a_header_of_ours_says_from_where_to_where_and_who() {
        let [source, destination]: [SocketAddr; 2] =
            ["192.0.2.1:12345", "198.51.100.2:80"].map(|text| text.parse().expect("an address"));
        let identity = [0xd0, 0, 11].iter().chain(b"spiffe://a/");
        let rest: Vec<u8> = ipv4().into_iter().chain(identity.copied()).collect();
        let made = header(source, destination, "spiffe://a/");
        assert_eq!(made, v2(0x21, 0x11, &rest));
        for (source, destination) in [
            (source, destination),
            (source, "[2001:db8::1]:80".parse().expect("an address")),
            ("[2001:db8::1]:9".parse().expect("an address"), destination),
        ] {
            let made = header(source, destination, "spiffe://a/");
            let read = parse(&made).expect("a header");
            let said = read.source.expect("an address");
            let said = SocketAddr::new(said.ip().to_canonical(), said.port());
            assert_eq!((read.length, said), (made.len(), source));
        }
    }

    #[test]
    fn what_is_written_is_what_the_protocol_says_and_is_read_back() {
        let at = |text: &str| -> SocketAddr { text.parse().expect("an address") };
        let (v4, other4) = (at("192.0.2.1:12345"), at("198.51.100.2:80"));
        let (v6, other6) = (at("[2001:db8::1]:12345"), at("[2001:db8::2]:80"));
        let mapped = at("[::ffff:192.0.2.1]:12345");
        type Row = (
            Option<(SocketAddr, SocketAddr)>,
            &'static str,
            Option<SocketAddr>,
        );
        let table: [Row; 5] = [
            (None, "PROXY UNKNOWN\r\n", None),
            (
                Some((v4, other4)),
                "PROXY TCP4 192.0.2.1 198.51.100.2 12345 80\r\n",
                Some(v4),
            ),
            (
                Some((v6, other6)),
                "PROXY TCP6 2001:db8::1 2001:db8::2 12345 80\r\n",
                Some(v6),
            ),
            // Addresses of different families are both written as IPv6; a mapped address alone is written as IPv4.
            (
                Some((v4, other6)),
                "PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 12345 80\r\n",
                Some(mapped),
            ),
            (
                Some((mapped, other4)),
                "PROXY TCP4 192.0.2.1 198.51.100.2 12345 80\r\n",
                Some(v4),
            ),
        ];
        for (ends, text, source) in table {
            let first = introduction(Version::V1, ends);
            assert_eq!(String::from_utf8_lossy(&first), text);
            for written in [first, introduction(Version::V2, ends)] {
                let length = written.len();
                assert_eq!(parse(&written), Ok(ProxyHeader { length, source }));
            }
        }
        let expected = v2(0x21, 0x11, &ipv4());
        assert_eq!(introduction(Version::V2, Some((v4, other4))), expected);
        assert_eq!(introduction(Version::V2, None), v2(0x20, 0, &[]));
    }

    #[tokio::test(start_paused = true)]
    async fn who_drips_his_header_is_heard_no_longer_than_the_limit() {
        use tokio::io::AsyncWriteExt;
        use tokio::net::TcpListener;

        const LIMIT: Duration = Duration::from_secs(10);
        for (pause, expected) in [(1, Err(io::ErrorKind::TimedOut)), (0, Ok(None))] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
            let at = listener.local_addr().expect("an address");
            let mut client = TcpStream::connect(at).await.expect("a connection");
            let (mut server, _) = listener.accept().await.expect("a connection");
            let drips = async {
                for byte in b"PROXY UNKNOWN\r\n" {
                    client.write_all(&[*byte]).await.expect("sent");
                    tokio::time::sleep(Duration::from_secs(pause)).await;
                }
                std::future::pending::<()>().await;
            };
            let heard = tokio::select! {
                heard = read_proxy_header(&mut server, LIMIT) => heard,
                () = drips => unreachable!("it never ends"),
            };
            assert_eq!(heard.map_err(|error| error.kind()), expected, "{pause}");
        }
    }

    #[test]
    fn nothing_else_is_taken_for_a_header() {
        let long = [b"PROXY TCP6 ".as_slice(), &[b'a'; 120], b"\r\n"].concat();
        let mut huge = v2(0x21, 0x11, &ipv4());
        huge[14] = 0xff;
        let table: Vec<Vec<u8>> = vec![
            b"GET / HTTP/1.1\r\n".to_vec(),
            b"PROXYTCP4".to_vec(),
            b"PROXY TCP4 192.0.2.1 198.51.100.2 12345\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 198.51.100.2 12345 80 1\r\n".to_vec(),
            b"PROXY TCP4  192.0.2.1 198.51.100.2 12345 80\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.256 198.51.100.2 12345 80\r\n".to_vec(),
            b"PROXY TCP4 ::1 ::1 12345 80\r\n".to_vec(),
            b"PROXY TCP6 192.0.2.1 198.51.100.2 12345 80\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 198.51.100.2 99999 80\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 198.51.100.2 +1 80\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 198.51.100.2 012 80\r\n".to_vec(),
            b"PROXY UDP4 192.0.2.1 198.51.100.2 1 80\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.\xff 198.51.100.2 1 80\r\n".to_vec(),
            b"PROXY\tTCP4 192.0.2.1 198.51.100.2 1 80\r\n".to_vec(),
            b"proxy TCP4 192.0.2.1 198.51.100.2 1 80\r\n".to_vec(),
            long,
            huge,
            v2(0x11, 0x11, &ipv4()),
            v2(0x22, 0x11, &ipv4()),
            v2(0x21, 0x12, &ipv4()),
            v2(0x21, 0x31, &[0; 216]),
            v2(0x21, 0x11, &ipv4()[..11]),
            v2(0x21, 0x21, &ipv6("::1")[..35]),
            b"\r\n\r\n\0\r\nQUIT\r".to_vec(),
        ];
        for bytes in table {
            assert!(matches!(parse(&bytes), Err(Malformed(_))), "{bytes:?}");
        }
    }
}
