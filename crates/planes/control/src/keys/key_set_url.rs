//! Rules for URLs of keys: the URLs that are understood, the redirects that are followed, and the addresses that are blocked. An
//! author of a RequestAuthentication makes the control plane send a GET to a chosen address; this module bounds that. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use voile_model::mesh::AddressRange;
use voile_model::ranges::masked;

use super::fetch::FetchContext;

/// The longest URL that is asked for, in bytes: a longer one is nobody's, and would fill logs.
const MAX_URL_BYTES: usize = 2048;

/// A URL, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeySetUrl {
    pub(super) tls: bool,
    /// A name or an address, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Path and query.
    pub(super) target: String,
}

impl KeySetUrl {
    /// Reads an absolute URL.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        if url.len() > MAX_URL_BYTES {
            return Err(format!("the URL is longer than {MAX_URL_BYTES} bytes"));
        }
        let url = url.split('#').next().unwrap_or_default();
        let parsed: http::Uri = url.parse().map_err(|_| "it is not a URL".to_owned())?;
        let tls = match parsed.scheme_str() {
            Some(scheme) if scheme.eq_ignore_ascii_case("https") => true,
            Some(scheme) if scheme.eq_ignore_ascii_case("http") => false,
            _ => return Err("it begins with neither https:// nor http://".to_owned()),
        };
        let authority = parsed.authority().ok_or("it has no host")?;
        if authority.as_str().contains('@') {
            return Err("it has a user name, which is not supported".to_owned());
        }
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        if host.is_empty() {
            return Err("it has no host".to_owned());
        }
        let usual = if tls { 443 } else { 80 };
        // `host:` without a number means the usual one.
        let named = authority.as_str().len() > authority.host().len() + 1;
        let port = match authority.port_u16() {
            Some(port) => port,
            None if named => return Err("its port is not a number from 1 to 65535".to_owned()),
            None => usual,
        };
        let target = parsed
            .path_and_query()
            .map_or("/", |target| target.as_str());
        Ok(Self {
            tls,
            host: host.to_ascii_lowercase(),
            port,
            target: match target.starts_with('/') {
                true => target.to_owned(),
                false => format!("/{target}"),
            },
        })
    }

    /// URL that a `Location` header leads to from this URL.
    pub(super) fn redirected(&self, location: &str) -> Result<Self, String> {
        let next = match location {
            _ if location.contains("://") => Self::parse(location)?,
            _ if location.starts_with("//") => {
                let scheme = if self.tls { "https:" } else { "http:" };
                Self::parse(&format!("{scheme}{location}"))?
            }
            _ => {
                let path = self.target.split('?').next().unwrap_or_default();
                let target = match location {
                    _ if location.starts_with('/') => location.to_owned(),
                    _ if location.starts_with('?') => format!("{path}{location}"),
                    _ => {
                        let folder = path.rfind('/').map_or("/", |end| &path[..=end]);
                        format!("{folder}{location}")
                    }
                };
                Self::parse(&format!("{}{target}", self.root()))?
            }
        };
        if self.tls && !next.tls {
            return Err(format!("it leaves https for {next}"));
        }
        Ok(next)
    }

    /// `Host`.
    pub(super) fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    fn root(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.authority())
    }
}

impl std::fmt::Display for KeySetUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.root(), self.target)
    }
}

/// Why nobody is asked at an address; `None` where it may be.
pub(super) fn forbidden(address: IpAddr, outside: &FetchContext) -> Option<&'static str> {
    let address = plain(address);
    let within = |range: &AddressRange| {
        range.address.is_ipv4() == address.is_ipv4()
            && masked(address, range.prefix) == masked(range.address, range.prefix)
    };
    if outside.blocked.iter().any(within) {
        return Some("`--jwks-block` forbids the address");
    }
    if address.is_loopback() && !outside.loopback {
        return Some("it is a loopback address; `--jwks-loopback allow` permits it");
    }
    let never = CLOUD_METADATA.contains(&address)
        || match address {
            IpAddr::V4(v4) => {
                // "This network" (RFC 1122 section 3.2.1.3): a kernel may take any of it for the machine itself.
                v4.octets()[0] == 0 || v4.is_multicast() || v4.is_broadcast() || v4.is_link_local()
            }
            IpAddr::V6(v6) => {
                v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local()
            }
        };
    never.then_some("link-local, multicast, unspecified and cloud metadata addresses are never called (clouds issue credentials there)")
}

/// Addresses of cloud metadata services besides the link-local 169.254.169.254: Amazon and Google over IPv6, then Alibaba, Oracle
/// and Azure.
const CLOUD_METADATA: [IpAddr; 5] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
];

/// The address that is meant by one that only carries another: IPv4-mapped, and NAT64's well-known prefix.
fn plain(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => match v6.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                let bits = (u32::from(high) << 16) | u32::from(low);
                IpAddr::V4(Ipv4Addr::from(bits))
            }
            _ => IpAddr::V6(v6),
        },
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_or_refused() {
        for (url, expected) in [
            ("https://a.example/keys", Ok("https://a.example/keys")),
            ("HTTPS://A.Example", Ok("https://a.example/")),
            ("http://a:8080/k?x=1#f", Ok("http://a:8080/k?x=1")),
            ("http://[::1]:80/k", Ok("http://[::1]/k")),
            ("https://a:443/", Ok("https://a/")),
            ("https://a?x", Ok("https://a/?x")),
            ("ftp://a/", Err("neither")),
            ("file:///etc/passwd", Err("not a URL")),
            ("/etc/passwd", Err("neither")),
            ("a.example/keys", Err("not a URL")),
            ("https://user:secret@a/", Err("user name")),
            ("https://a:99999/", Err("port")),
            ("https://a/\r\nx: y", Err("not a URL")),
            ("https:///x", Err("no")),
            ("", Err("not a URL")),
        ] {
            let found = KeySetUrl::parse(url).map(|place| place.to_string());
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{url}"),
                (Err(why), Err(part)) => assert!(why.contains(part), "{url}: {why}"),
                _ => panic!("{url}: {found:?}"),
            }
        }
        assert!(KeySetUrl::parse(&format!("https://a/{}", "x".repeat(3000))).is_err());
    }

    #[test]
    fn redirects_lead_anywhere_but_out_of_tls() {
        let from = KeySetUrl::parse("https://a.example:8443/one/two?x=1").expect("a URL");
        for (location, expected) in [
            ("/keys", Some("https://a.example:8443/keys")),
            ("keys", Some("https://a.example:8443/one/keys")),
            ("?y=2", Some("https://a.example:8443/one/two?y=2")),
            ("//b.example/k", Some("https://b.example/k")),
            ("https://b.example/k", Some("https://b.example/k")),
            ("http://a.example:8443/k", None),
            ("ftp://a.example/", None),
        ] {
            let found = from.redirected(location).map(|place| place.to_string());
            assert_eq!(found.as_deref().ok(), expected, "{location}: {found:?}");
        }
        let from = KeySetUrl::parse("http://a/x").expect("a URL");
        let up = from.redirected("https://a/x").map(|place| place.tls);
        assert_eq!(up, Ok(true));
    }

    #[test]
    fn some_addresses_are_never_asked() {
        let outside = |loopback| FetchContext {
            blocked: vec![AddressRange {
                address: IpAddr::from([10, 0, 0, 0]),
                prefix: 8,
            }],
            loopback,
            authorities: None,
        };
        for address in [
            "127.0.0.1",
            "127.8.9.1",
            "::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
        ] {
            let parsed = address.parse().expect("an address");
            assert!(forbidden(parsed, &outside(true)).is_none(), "{address}");
            let why = forbidden(parsed, &outside(false)).expect("refused unless it is allowed");
            assert!(why.contains("--jwks-loopback allow"), "{address}: {why}");
        }
        for (address, may) in [
            ("192.168.0.1", true),
            ("203.0.113.9", true),
            ("2001:db8::1", true),
            ("fd00::1", true),
            ("169.254.169.254", false),
            ("::ffff:169.254.169.254", false),
            ("64:ff9b::a9fe:a9fe", false),
            ("fe80::1", false),
            ("fd00:ec2::254", false),
            ("fd20:ce::254", false),
            ("100.100.100.200", false),
            ("168.63.129.16", false),
            ("0.0.0.0", false),
            ("0.1.2.3", false),
            ("::", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("ff02::1", false),
            ("10.1.2.3", false),
            ("::ffff:10.1.2.3", false),
        ] {
            let parsed = address.parse().expect("an address");
            for loopback in [false, true] {
                let found = forbidden(parsed, &outside(loopback));
                assert_eq!(found.is_none(), may, "{address}: {found:?}");
            }
        }
    }
}
