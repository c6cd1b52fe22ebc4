//! The hosts file: names set by hand, before any server is asked.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses by name, in the file's order.
#[derive(Debug, Default)]
pub(crate) struct Hosts(HashMap<String, Vec<IpAddr>>);

impl Hosts {
    pub(crate) fn parse(text: &str) -> Self {
        let mut hosts: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else {
                continue;
            };
            for name in words {
                let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
                let addresses = hosts.entry(name).or_default();
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        Self(hosts)
    }

    /// Returns the addresses that the file gives for a name. `localhost` and names below it are this machine even if
    /// the file lacks them (RFC 6761).
    pub(crate) fn get(&self, name: &str) -> Option<Vec<IpAddr>> {
        if let Some(found) = self.0.get(name) {
            return Some(found.clone());
        }
        let local = name == "localhost" || name.ends_with(".localhost");
        local.then(|| vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_everybody_reads_them() {
        let hosts = Hosts::parse(
            "# comment\n10.0.0.1 a A.example.com. # b\n10.0.0.2\ta\n\n10.0.0.1 a\n::1 six\nnonsense x\nfe80::1%lo0 scoped\n",
        );
        let shown = |name: &str| format!("{:?}", hosts.get(name).unwrap_or_default());
        assert_eq!(shown("a"), "[10.0.0.1, 10.0.0.2]");
        assert_eq!(shown("a.example.com"), "[10.0.0.1]");
        assert_eq!(shown("six"), "[::1]");
        for nobody in ["b", "x", "scoped", ""] {
            assert_eq!(hosts.get(nobody), None, "{nobody}");
        }
        assert_eq!(shown("localhost"), "[127.0.0.1, ::1]");
        assert_eq!(shown("db.localhost"), "[127.0.0.1, ::1]");
    }
}
