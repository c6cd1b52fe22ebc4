//! Which service a request's authority means on a listener shared by several: one hash lookup, blind to case and
//! port, without allocating.

use std::collections::HashMap;

/// Longest authority looked up, in bytes: a DNS name of 253 and a port.
pub const MAX_AUTHORITY: usize = 260;

/// Table of service names, lower case and without port, to a value of the caller. A name may begin with `*.`: then it
/// stands for every name below, and the longest of several wins.
#[derive(Debug, Clone)]
pub struct AuthorityTable<T> {
    by_name: HashMap<Box<[u8]>, T>,
    /// Suffixes of wildcard names, dot included.
    by_suffix: HashMap<Box<[u8]>, T>,
}

impl<T> Default for AuthorityTable<T> {
    fn default() -> Self {
        Self {
            by_name: HashMap::new(),
            by_suffix: HashMap::new(),
        }
    }
}

impl<T> AuthorityTable<T> {
    /// Adds a name. The first value of a name stays; returns `false` if the name was there.
    pub fn insert(&mut self, name: &str, value: T) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let (names, name) = match name.strip_prefix('*').filter(|rest| rest.starts_with('.')) {
            Some(suffix) => (&mut self.by_suffix, suffix),
            None => (&mut self.by_name, &*name),
        };
        match names.entry(name.as_bytes().into()) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(value);
                true
            }
        }
    }

    /// Finds the value of an authority (`Host` header or `:authority`, with or without port).
    #[must_use]
    pub fn get(&self, authority: &[u8]) -> Option<&T> {
        let host = host(authority)?;
        let mut lower = [0; MAX_AUTHORITY];
        let lower = lower.get_mut(..host.len())?;
        lower.copy_from_slice(host);
        lower.make_ascii_lowercase();
        let lower = &*lower;
        if let Some(found) = self.by_name.get(lower) {
            return Some(found);
        }
        if self.by_suffix.is_empty() {
            return None;
        }
        let dots = lower.iter().enumerate().skip(1);
        dots.filter(|(_, byte)| **byte == b'.')
            .find_map(|(at, _)| self.by_suffix.get(&lower[at..]))
    }

    /// Returns the number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len() + self.by_suffix.len()
    }

    /// Returns true if the table has no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The authority without its port and without the root's dot. `None` when it cannot name anything.
fn host(authority: &[u8]) -> Option<&[u8]> {
    let host = if authority.first() == Some(&b'[') {
        let end = authority.iter().position(|byte| *byte == b']')?;
        port(&authority[end + 1..])?;
        &authority[..=end]
    } else {
        match authority.iter().position(|byte| *byte == b':') {
            Some(colon) => {
                port(&authority[colon..])?;
                &authority[..colon]
            }
            None => authority,
        }
    };
    let host = host.strip_suffix(b".").unwrap_or(host);
    (!host.is_empty()).then_some(host)
}

/// Nothing, or a colon and up to five digits.
fn port(rest: &[u8]) -> Option<()> {
    match rest {
        [] => Some(()),
        [b':', digits @ ..] if digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit) => {
            Some(())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_name_services_whatever_their_case_and_port() {
        let mut table = AuthorityTable::default();
        assert!(table.insert("reviews.shop.svc.cluster.local", 1));
        assert!(table.insert("reviews", 1));
        assert!(table.insert("[::1]", 2));
        assert!(!table.insert("REVIEWS.", 3), "the first claim holds");
        assert!(table.insert("*.example.com", 4));
        assert!(table.insert("*.deep.example.com", 5));
        assert!(table.insert("known.example.com", 6));
        let long = "a".repeat(MAX_AUTHORITY + 1);
        let cases: [(&str, Option<i32>); 24] = [
            ("a.example.com", Some(4)),
            ("A.Example.COM:443", Some(4)),
            ("a.b.example.com", Some(4)),
            ("known.example.com", Some(6)),
            ("a.deep.example.com", Some(5)),
            ("deep.example.com", Some(4)),
            ("example.com", None),
            (".example.com", None),
            ("aexample.com", None),
            ("reviews", Some(1)),
            ("Reviews", Some(1)),
            ("reviews:9080", Some(1)),
            ("reviews:", Some(1)),
            ("REVIEWS.shop.svc.cluster.LOCAL.:80", Some(1)),
            ("[::1]:80", Some(2)),
            ("[::1]", Some(2)),
            ("[::1]x", None),
            ("[::1", None),
            ("reviews:80:80", None),
            ("reviews:port", None),
            ("reviews:123456", None),
            ("", None),
            (".", None),
            (&long, None),
        ];
        for (authority, expected) in cases {
            assert_eq!(
                table.get(authority.as_bytes()).copied(),
                expected,
                "{authority}"
            );
        }
    }
}
