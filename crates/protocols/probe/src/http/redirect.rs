//! Target of a redirect (RFC 3986, section 5), as far as it concerns the one host that is probed. The kubelet
//! compares names of hosts as they are written, and neither ports nor schemes.

/// Target of a request to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RedirectTarget {
    pub(super) tls: bool,
    pub(super) port: u16,
    /// Path and query, fit for a request line.
    pub(super) target: String,
    /// The redirect named the host in full, so the request's `Host` is that.
    pub(super) named: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum RedirectOutcome {
    Here(RedirectTarget),
    Elsewhere,
}

/// Reads a `Location` that an answer of `from` had.
pub(super) fn leads(
    from: &RedirectTarget,
    host: &str,
    location: &str,
) -> Result<RedirectOutcome, &'static str> {
    const UNREADABLE: &str = "the redirect has an invalid URL";
    if location.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(UNREADABLE);
    }
    let location = location.split('#').next().unwrap_or_default();
    let scheme = location
        .split_once(':')
        .filter(|(scheme, _)| is_scheme(scheme));
    let rest = scheme.map_or(location, |(_, rest)| rest);
    let Some(full) = rest.strip_prefix("//") else {
        return Ok(match scheme {
            Some(_) => RedirectOutcome::Elsewhere, // no host at all, such as `mailto:`
            None => RedirectOutcome::Here(RedirectTarget {
                target: resolve(&from.target, rest),
                named: false,
                ..from.clone()
            }),
        });
    };
    let end = full.find(['/', '?']).unwrap_or(full.len());
    let (authority, target) = full.split_at(end);
    let (name, port) = split_authority(authority).ok_or(UNREADABLE)?;
    if name != host {
        return Ok(RedirectOutcome::Elsewhere);
    }
    let tls = match scheme {
        None => from.tls,
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("http") => false,
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => true,
        Some(_) => return Err("the redirect has a scheme other than http and https"),
    };
    let usual = if tls { 443 } else { 80 };
    Ok(RedirectOutcome::Here(RedirectTarget {
        tls,
        port: port.unwrap_or(usual),
        target: resolve("/", target),
        named: scheme.is_some(),
    }))
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Name and port; an IPv6 address without its brackets.
fn split_authority(authority: &str) -> Option<(&str, Option<u16>)> {
    let authority = authority.rsplit('@').next().unwrap_or_default();
    let (name, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    match port.strip_prefix(':') {
        None if port.is_empty() => Some((name, None)),
        None => None,
        Some("") => Some((name, None)),
        Some(port) => Some((name, Some(port.parse().ok()?))),
    }
}

/// Resolves `reference` against `base` to a path and query; bytes that a request line cannot carry are encoded.
fn resolve(base: &str, reference: &str) -> String {
    let (base_path, _) = split_query(base);
    let (path, query) = split_query(reference);
    let path = match path {
        "" if reference.is_empty() && base != "/" => return base.to_owned(),
        "" => base_path.to_owned(),
        path if path.starts_with('/') => without_dots(path),
        path => {
            let folder = base_path.rfind('/').map_or("/", |end| &base_path[..=end]);
            without_dots(&format!("{folder}{path}"))
        }
    };
    let mut target = String::new();
    for byte in path.bytes().chain(query.bytes()) {
        match byte.is_ascii_graphic() {
            true => target.push(byte.into()),
            false => target.push_str(&format!("%{byte:02X}")),
        }
    }
    target
}

/// The query has its question mark.
fn split_query(target: &str) -> (&str, &str) {
    target.split_at(target.find('?').unwrap_or(target.len()))
}

/// `.` and `..` are steps.
fn without_dots(path: &str) -> String {
    let mut steps = Vec::new();
    for step in path.split('/').skip(1) {
        match step {
            "." => {}
            ".." => {
                steps.pop();
            }
            step => steps.push(step),
        }
    }
    // A path that ends in a step means the folder.
    if path.ends_with("/.") || path.ends_with("/..") {
        steps.push("");
    }
    format!("/{}", steps.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_of_the_host_says_what_is_elsewhere() {
        let from = RedirectTarget {
            tls: false,
            port: 8080,
            target: "/a/b?c=d".to_owned(),
            named: false,
        };
        for (location, expected) in [
            ("/further", "http 8080 /further"),
            ("further", "http 8080 /a/further"),
            ("./../../x/", "http 8080 /x/"),
            ("/a/../b/.", "http 8080 /b/"),
            ("?e", "http 8080 /a/b?e"),
            ("#top", "http 8080 /a/b?c=d"),
            ("/x y/\u{e4}", "http 8080 /x%20y/%C3%A4"),
            ("//10.0.0.1", "http 80 /"),
            ("//10.0.0.1:9/x", "http 9 /x"),
            ("http://10.0.0.1:8080/x", "http 8080 /x named"),
            ("HTTPS://10.0.0.1/x?y#z", "https 443 /x?y named"),
            ("https://u@10.0.0.1:8443?y", "https 8443 /?y named"),
            ("//elsewhere.test/", "elsewhere"),
            ("//[::1]/", "elsewhere"),
            ("http://10.0.0.1.test/", "elsewhere"),
            ("ftp://elsewhere.test/", "elsewhere"),
            ("mailto:a@b.test", "elsewhere"),
            ("http:/further", "elsewhere"),
            ("a/b:c", "http 8080 /a/a/b:c"),
            (
                "ftp://10.0.0.1/",
                "the redirect has a scheme other than http and https",
            ),
            ("http://10.0.0.1:99999/", "the redirect has an invalid URL"),
            ("http://[::1/", "the redirect has an invalid URL"),
            ("/a\tb", "the redirect has an invalid URL"),
        ] {
            let found = match leads(&from, "10.0.0.1", location) {
                Ok(RedirectOutcome::Elsewhere) => "elsewhere".to_owned(),
                Ok(RedirectOutcome::Here(place)) => {
                    let scheme = if place.tls { "https" } else { "http" };
                    let named = if place.named { " named" } else { "" };
                    format!("{scheme} {} {}{named}", place.port, place.target)
                }
                Err(why) => why.to_owned(),
            };
            assert_eq!(found, expected, "{location}");
        }
    }

    #[test]
    fn a_host_by_ipv6_has_brackets_in_a_url() {
        let from = RedirectTarget {
            tls: true,
            port: 1,
            target: "/".to_owned(),
            named: false,
        };
        let found = leads(&from, "fd00::2", "https://[fd00::2]:2/x");
        let place = RedirectTarget {
            port: 2,
            target: "/x".to_owned(),
            named: true,
            ..from
        };
        assert_eq!(found, Ok(RedirectOutcome::Here(place)));
    }

    #[test]
    fn whatever_a_redirect_says_the_next_request_is_one_request_to_the_same_host() {
        let from = RedirectTarget {
            tls: false,
            port: 8080,
            target: "/a/b?c=d".to_owned(),
            named: false,
        };
        let bases = [
            "/further/../than?that#this",
            "https://user@10.0.0.1:8443/x/y?z",
            "//[::1]:80/",
            "?e",
        ];
        for base in bases {
            for at in 0..base.len() {
                for value in 0..=255 {
                    let mut changed = base.as_bytes().to_vec();
                    changed[at] = value;
                    for cut in [changed.len(), at] {
                        let location = String::from_utf8_lossy(&changed[..cut]);
                        let Ok(RedirectOutcome::Here(place)) = leads(&from, "10.0.0.1", &location)
                        else {
                            continue;
                        };
                        let fit = place.target.bytes().all(|byte| byte.is_ascii_graphic());
                        let rooted = place.target.starts_with('/');
                        assert!(fit && rooted, "{location:?}: {place:?}");
                        assert!(!place.target.contains('#'), "{location:?}: {place:?}");
                    }
                }
            }
        }
    }
}
