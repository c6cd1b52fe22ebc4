//! Which host the first bytes of a plaintext HTTP/1 connection name, and what counts as a name. Only for finding a service;
//! the engine judges the request itself.

/// Longest DNS name in presentation form.
const MAX_NAME: usize = 253;

/// The host that the first `Host` line names. Bytes after the head are not looked at.
pub(crate) fn host_in(head: &[u8]) -> Option<String> {
    let mut lines = head.split(|byte| *byte == b'\n').skip(1);
    let mut value = None;
    for line in lines.by_ref() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return None;
        }
        if let Some((name, rest)) = line.split_at_checked(5)
            && name.eq_ignore_ascii_case(b"host:")
        {
            value = Some(rest);
            break;
        }
    }
    // A line that is not all here may be any name's beginning.
    let value = value.filter(|_| lines.next().is_some())?;
    let authority = std::str::from_utf8(value).ok()?.trim_matches([' ', '\t']);
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
    fn the_host_is_read_from_whole_lines_of_the_head_only() {
        let cases: [(&str, Option<&str>); 14] = [
            ("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", Some("a.test")),
            (
                "GET / HTTP/1.1\r\nhOST:A.Test.:8080\r\nX: y\r\n\r\n",
                Some("a.test"),
            ),
            ("GET / HTTP/1.1\nHost: a.test\n\n", Some("a.test")),
            (
                "GET / HTTP/1.1\r\nX: Host: b.test\r\nHost: a.test\r\n\r\n",
                Some("a.test"),
            ),
            (
                "GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n",
                Some("a.test"),
            ),
            ("GET / HTTP/1.1\r\nHost: a.te", None),
            ("GET / HTTP/1.0\r\n\r\nHost: a.test\r\n", None),
            ("GET / HTTP/1.1\r\nHost: 192.0.2.1:80\r\n\r\n", None),
            ("GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n\r\n", None),
            ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", None),
            ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", None),
            ("GET / HTTP/1.1\r\nHost:\r\n\r\n", None),
            ("Host: a.test\r\n\r\n", None),
            ("", None),
        ];
        for (head, expected) in cases {
            assert_eq!(host_in(head.as_bytes()).as_deref(), expected, "{head:?}");
        }
        assert_eq!(host_name(&"a".repeat(MAX_NAME + 1)), None);
    }
}
