//! Texts with stars in any place, which Istio allows in namespaces: each star stands for any bytes, none included.

/// Returns true if the text matches the pattern.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let mut pieces = pattern.split(|byte| *byte == b'*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut last = None;
    for piece in pieces {
        // Each piece but the last is matched at its first occurrence: this leaves the longest rest.
        if let Some(inner) = last.replace(piece)
            && !inner.is_empty()
        {
            let found = rest.windows(inner.len()).position(|part| part == inner);
            let Some(at) = found else {
                return false;
            };
            rest = &rest[at + inner.len()..];
        }
    }
    match last {
        Some(piece) => rest.ends_with(piece),
        None => rest.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_stand_for_anything() {
        let table: &[(&str, &[&str], &[&str])] = &[
            ("a", &["a"], &["", "aa", "b"]),
            ("a*", &["a", "ab"], &["", "ba"]),
            ("*a", &["a", "ba"], &["ab"]),
            ("a*b", &["ab", "acb", "abb"], &["a", "b", "aba"]),
            ("a*b*c", &["abc", "axbyc", "abcbc"], &["acb", "ac"]),
            ("*", &["", "x"], &[]),
            ("ab*ba", &["abba", "abxba"], &["aba"]),
            ("a**b", &["ab", "axb"], &["a"]),
        ];
        for (pattern, yes, no) in table {
            for text in *yes {
                assert!(
                    matches(pattern.as_bytes(), text.as_bytes()),
                    "{pattern} {text}"
                );
            }
            for text in *no {
                assert!(
                    !matches(pattern.as_bytes(), text.as_bytes()),
                    "{pattern} {text}"
                );
            }
        }
    }
}
