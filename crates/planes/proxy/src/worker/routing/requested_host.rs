//! Which host a client means, as services are asked for. Only for finding a service; the engines judge requests themselves.

/// Longest DNS name in presentation form.
const MAX_NAME: usize = 253;

/// Host of an authority, without its port.
pub(crate) fn host_of(authority: &str) -> Option<String> {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => host,
        Some(_) => return None,
        None => authority,
    };
    host_name(host)
}

/// A name as services are asked for: lower case, without the root's dot. Addresses are no names.
pub(crate) fn host_name(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let named = !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(good);
    (named && text.parse::<std::net::IpAddr>().is_err()).then(|| text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_without_port_and_root_and_never_an_address() {
        let cases: [(&str, Option<&str>); 12] = [
            ("a.test", Some("a.test")),
            ("A.Test.:8080", Some("a.test")),
            ("a_b.test:", Some("a_b.test")),
            ("192.0.2.1", None),
            ("192.0.2.1:80", None),
            ("[2001:db8::1]:80", None),
            ("2001:db8::1", None),
            ("a b", None),
            ("a:b", None),
            ("user@a.test", None),
            (":80", None),
            ("", None),
        ];
        for (authority, expected) in cases {
            assert_eq!(host_of(authority).as_deref(), expected, "{authority:?}");
        }
        assert_eq!(host_name(&"a".repeat(MAX_NAME + 1)), None);
    }
}
