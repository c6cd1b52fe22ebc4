//! Which route a connection takes, of which nothing is known but the name that its client asks for in TLS and the address that it
//! called. As with Envoy's filter chains the closest wins and not the first: the narrowest range of addresses, then the closest
//! name; the first only of those that are alike.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::AuthorityTable;

/// Name that stands for every name, and for none.
const ANY: &str = "*";

/// One alternative of a route: all of it must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConnectionMatch {
    /// Server names of TLS, of which the client must send one, in lower case. A name may begin with `*.`; `*` also
    /// matches a client that sends none. Empty: the connection need not be TLS.
    pub server_names: Vec<String>,
    /// Ranges of which one must have the address that was called, each with the length of its prefix; none is any address.
    pub subnets: Vec<(IpAddr, u8)>,
}

/// Routes by number, in the order in which they were given.
#[derive(Debug, Clone, Default)]
pub struct ConnectionTable {
    /// By name: its own entries and those of the names around it, the closest first.
    by_name: AuthorityTable<Vec<ConnectionRoute>>,
    /// For TLS with other names, and none.
    any_name: Vec<ConnectionRoute>,
    /// For connections without TLS.
    nameless: Vec<ConnectionRoute>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ConnectionRoute {
    subnet: Option<(IpAddr, u8)>,
    /// Closeness of its name: its length, and more if it is no pattern.
    closeness: usize,
    route: usize,
}

impl ConnectionRoute {
    fn takes(&self, called: IpAddr) -> bool {
        self.subnet.is_none_or(|subnet| contains(subnet, called))
    }

    /// Returns the sort key; the smallest comes first.
    fn rank(&self) -> (Reverse<u8>, Reverse<usize>, usize) {
        let prefix = self.subnet.map_or(0, |(_, prefix)| prefix + 1);
        (Reverse(prefix), Reverse(self.closeness), self.route)
    }
}

impl ConnectionTable {
    /// A table of routes, each with its alternatives; a route without any takes everything.
    #[must_use]
    pub fn new(routes: &[Vec<ConnectionMatch>]) -> Self {
        let everything = [ConnectionMatch::default()];
        let mut table = Self::default();
        let mut named: Vec<(&str, ConnectionRoute)> = Vec::new();
        for (route, alternatives) in routes.iter().enumerate() {
            let alternatives = match alternatives.as_slice() {
                [] => &everything[..],
                some => some,
            };
            for one in alternatives {
                let subnets = match one.subnets.as_slice() {
                    [] => vec![None],
                    some => some.iter().copied().map(Some).collect(),
                };
                for subnet in subnets {
                    let entry = |closeness| ConnectionRoute {
                        subnet,
                        closeness,
                        route,
                    };
                    if one.server_names.is_empty() {
                        table.nameless.push(entry(0));
                        table.any_name.push(entry(0));
                    }
                    for name in &one.server_names {
                        match name.as_str() {
                            ANY => table.any_name.push(entry(1)),
                            name => named.push((name, entry(closeness(name)))),
                        }
                    }
                }
            }
        }
        let names: BTreeSet<&str> = named.iter().map(|(name, _)| *name).collect();
        for name in names {
            let around = named.iter().filter(|(other, _)| covers(other, name));
            let around = around.map(|(_, entry)| entry.clone());
            let mut entries: Vec<ConnectionRoute> =
                around.chain(table.any_name.iter().cloned()).collect();
            entries.sort_by_key(ConnectionRoute::rank);
            table.by_name.insert(name, entries);
        }
        table.any_name.sort_by_key(ConnectionRoute::rank);
        table.nameless.sort_by_key(ConnectionRoute::rank);
        table
    }

    /// The number of the route that takes a connection to an address. `asked` is the name that its client asks for, empty where a
    /// client of TLS asks for none, and `None` where it speaks something else.
    #[must_use]
    pub fn choose(&self, asked: Option<&str>, called: IpAddr) -> Option<usize> {
        let entries = match asked {
            None => &self.nameless,
            Some(name) => self.by_name.get(name.as_bytes()).unwrap_or(&self.any_name),
        };
        let found = entries.iter().find(|entry| entry.takes(called))?;
        Some(found.route)
    }

    /// Returns true if the choice depends on the TLS server name.
    #[must_use]
    pub fn asks_for_names(&self) -> bool {
        !self.by_name.is_empty() || self.any_name.iter().any(|entry| entry.closeness > 0)
    }
}

fn closeness(name: &str) -> usize {
    // A pattern of any length is less close than the name itself.
    let exact = if name.starts_with(ANY) { 0 } else { 1 << 16 };
    name.len() + exact
}

fn covers(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix(ANY) {
        Some(suffix) => pattern == name || name.strip_prefix(ANY).unwrap_or(name).ends_with(suffix),
        None => pattern == name,
    }
}

fn contains((network, prefix): (IpAddr, u8), address: IpAddr) -> bool {
    let same = |ours: u128, theirs: u128, bits: u8| {
        let free = u32::from(bits.saturating_sub(prefix));
        // If all bits are free, both results are None.
        ours.checked_shr(free) == theirs.checked_shr(free)
    };
    match (network, address.to_canonical()) {
        (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
            same(ours.to_bits().into(), theirs.to_bits().into(), 32)
        }
        (IpAddr::V6(ours), IpAddr::V6(theirs)) => same(ours.to_bits(), theirs.to_bits(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> (IpAddr, u8) {
        let (address, prefix) = text.split_once('/').expect("a prefix");
        (
            address.parse().expect("an address"),
            prefix.parse().expect("a length"),
        )
    }

    fn alternative(names: &[&str], subnets: &[&str]) -> ConnectionMatch {
        ConnectionMatch {
            server_names: names.iter().map(ToString::to_string).collect(),
            subnets: subnets.iter().map(|text| range(text)).collect(),
        }
    }

    #[test]
    fn the_narrowest_range_wins_then_the_closest_name_then_the_first() {
        let table = ConnectionTable::new(&[
            vec![alternative(&["*.example.com"], &[])],
            vec![alternative(&["a.example.com", "b.example.com"], &[])],
            vec![alternative(&["*.deep.example.com"], &[])],
            vec![alternative(
                &["a.example.com"],
                &["10.1.0.0/16", "fd00::/8"],
            )],
            vec![alternative(&["*"], &["192.0.2.0/24"])],
            vec![alternative(&[], &["10.0.0.0/8"])],
            vec![alternative(&["b.example.com"], &[])],
            vec![alternative(&[], &["10.2.3.4/32"])],
        ]);
        assert!(table.asks_for_names());
        for (asked, called, expected) in [
            (Some("a.example.com"), "203.0.113.1", Some(1)),
            (Some("A.Example.Com"), "203.0.113.1", Some(1)),
            (Some("b.example.com"), "203.0.113.1", Some(1)),
            (Some("c.example.com"), "203.0.113.1", Some(0)),
            (Some("x.deep.example.com"), "203.0.113.1", Some(2)),
            (Some("example.com"), "203.0.113.1", None),
            (Some("notexample.com"), "203.0.113.1", None),
            (Some("a.example.com"), "10.1.9.9", Some(3)),
            (Some("a.example.com"), "::ffff:10.1.9.9", Some(3)),
            (Some("a.example.com"), "fd12::1", Some(3)),
            // The range counts before the name.
            (Some("c.example.com"), "10.9.9.9", Some(5)),
            (Some("a.example.com"), "10.2.3.4", Some(7)),
            (Some("other.test"), "192.0.2.7", Some(4)),
            (Some(""), "192.0.2.7", Some(4)),
            (Some(""), "203.0.113.1", None),
            (None, "192.0.2.7", None),
            (None, "10.2.3.4", Some(7)),
            (None, "10.2.3.5", Some(5)),
            (None, "203.0.113.1", None),
        ] {
            let called: IpAddr = called.parse().expect("an address");
            assert_eq!(table.choose(asked, called), expected, "{asked:?} {called}");
        }
    }

    #[test]
    fn a_route_without_a_match_takes_everything_that_others_leave() {
        let table = ConnectionTable::new(&[Vec::new(), vec![alternative(&["a.test"], &[])]]);
        let called = IpAddr::from([203, 0, 113, 1]);
        assert_eq!(table.choose(None, called), Some(0));
        assert_eq!(table.choose(Some("b.test"), called), Some(0));
        assert_eq!(table.choose(Some("a.test"), called), Some(1));
        assert!(!ConnectionTable::new(&[Vec::new()]).asks_for_names());
        assert_eq!(ConnectionTable::default().choose(None, called), None);
        let all = ConnectionTable::new(&[vec![alternative(&[], &["0.0.0.0/0"])]]);
        assert_eq!(all.choose(None, called), Some(0));
        assert_eq!(all.choose(None, "fd00::1".parse().expect("v6")), None);
    }
}
