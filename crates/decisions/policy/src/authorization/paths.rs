//! Normalises a path before policies match it, in Istio's four modes, as stock Envoy does (the table below was observed
//! with Envoy 1.40). The proxy forwards the path that the policies matched. Normalising twice changes nothing: a path
//! that a second pass would change (`/%%341`, which becomes `/%41`) is refused. This is stricter than Envoy.

use std::borrow::Cow;

/// MeshConfig's `pathNormalization`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PathNormalization {
    /// As it came.
    None,
    /// RFC 3986: dot segments, backslashes, unreserved bytes that are escaped. The default.
    #[default]
    Base,
    /// That, and a row of slashes is one.
    MergeSlashes,
    /// That, after `%2F` and `%5C` have become slashes.
    DecodeAndMergeSlashes,
}

/// Why a path is refused (as status 400).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It has an escaped zero byte.
    #[error("the path has an escaped zero byte")]
    Zero,
    /// The path would change again if another program normalised it.
    #[error("the path changes each time it is normalised (multiple escaping)")]
    Unstable,
}

impl PathNormalization {
    /// The mode by its name in MeshConfig.
    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "NONE" => Self::None,
            "BASE" | "DEFAULT" => Self::Base,
            "MERGE_SLASHES" => Self::MergeSlashes,
            "DECODE_AND_MERGE_SLASHES" => Self::DecodeAndMergeSlashes,
            _ => return None,
        })
    }

    /// Normalises the path in this mode; its query stays unchanged. A target that is no path (`*`, an authority) stays
    /// unchanged.
    pub fn normalize(self, target: &[u8]) -> Result<Cow<'_, [u8]>, PathError> {
        if self == Self::None || target.first() != Some(&b'/') || !self.may_change(target) {
            return Ok(Cow::Borrowed(target));
        }
        let query = target.iter().position(|byte| *byte == b'?');
        let (path, query) = target.split_at(query.unwrap_or(target.len()));
        let mut once = self.path(path)?;
        if self.path(&once)? != once {
            return Err(PathError::Unstable);
        }
        if once == path {
            return Ok(Cow::Borrowed(target));
        }
        once.extend_from_slice(query);
        Ok(Cow::Owned(once))
    }

    /// Returns true if the target may need normalisation. Most paths do not.
    fn may_change(self, target: &[u8]) -> bool {
        let mut before = 0;
        for byte in target {
            let changes = match *byte {
                b'?' => return false,
                b'.' | b'/' => before == b'/',
                b'%' | b'\\' => true,
                byte => is_escaped(byte),
            };
            if changes {
                return true;
            }
            before = *byte;
        }
        false
    }

    fn path(self, path: &[u8]) -> Result<Vec<u8>, PathError> {
        let decode = self == Self::DecodeAndMergeSlashes;
        let decoded = match decode {
            true => Cow::Owned(decode_slashes(path)),
            false => Cow::Borrowed(path),
        };
        let normal = dot_segments(&decoded)?;
        Ok(match self {
            Self::None | Self::Base => normal,
            Self::MergeSlashes | Self::DecodeAndMergeSlashes => merge_slashes(&normal),
        })
    }
}

/// Bytes that a path may not hold unescaped.
fn is_escaped(byte: u8) -> bool {
    matches!(byte, 0..=b' ' | b'"' | b'#' | b'<' | b'>' | b'^' | b'`' | b'{' | b'|' | b'}' | 0x7f..)
}

/// The byte that an escape at the beginning stands for.
fn escaped(bytes: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = bytes else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()
}

/// Decodes `%2F` and `%5C`.
fn decode_slashes(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, after)) = rest.split_first() {
        match escaped(rest) {
            Some(byte @ (b'/' | b'\\')) => {
                out.push(byte);
                rest = &rest[3..];
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

/// Resolves `.` and `..`, unescapes unreserved bytes, escapes forbidden ones.
fn dot_segments(path: &[u8]) -> Result<Vec<u8>, PathError> {
    let mut out = Vec::with_capacity(path.len());
    let rest = &path[1..];
    let mut segments = rest.split(|byte| matches!(byte, b'/' | b'\\')).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match dots(segment) {
            Some(dots) => {
                if dots == 2 {
                    let parent = out.iter().rposition(|byte| *byte == b'/');
                    out.truncate(parent.unwrap_or(0));
                }
                if last {
                    out.push(b'/');
                }
            }
            None => {
                out.push(b'/');
                write_segment(segment, &mut out)?;
            }
        }
    }
    Ok(out)
}

/// The number of dots of a segment that consists of one or two dots, escaped or not.
fn dots(segment: &[u8]) -> Option<usize> {
    let mut rest = segment;
    let mut count = 0;
    while !rest.is_empty() {
        let length = match (rest[0], escaped(rest)) {
            (b'.', _) => 1,
            (_, Some(b'.')) => 3,
            _ => return None,
        };
        rest = &rest[length..];
        count += 1;
    }
    matches!(count, 1 | 2).then_some(count)
}

fn write_segment(segment: &[u8], out: &mut Vec<u8>) -> Result<(), PathError> {
    let mut rest = segment;
    while let Some((first, after)) = rest.split_first() {
        match escaped(rest) {
            Some(0) => return Err(PathError::Zero),
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                out.push(byte);
                rest = &rest[3..];
                continue;
            }
            _ if is_escaped(*first) => out.extend_from_slice(format!("%{first:02X}").as_bytes()),
            _ => out.push(*first),
        }
        rest = after;
    }
    Ok(())
}

/// A row of slashes is one, but a path of nothing else is two: as Envoy does it.
fn merge_slashes(path: &[u8]) -> Vec<u8> {
    if !path.windows(2).any(|two| two == b"//") {
        return path.to_vec();
    }
    let segments: Vec<&[u8]> = path
        .split(|byte| *byte == b'/')
        .filter(|segment| !segment.is_empty())
        .collect();
    let mut out = b"/".to_vec();
    out.extend_from_slice(&segments.join(&b'/'));
    if path.ends_with(b"/") {
        out.push(b'/');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{PathError, PathNormalization as Mode};

    const MODES: [Mode; 3] = [Mode::Base, Mode::MergeSlashes, Mode::DecodeAndMergeSlashes];

    /// path | BASE | MERGE_SLASHES | DECODE_AND_MERGE_SLASHES, as a stock Envoy 1.40 answered; `=` stands for "as before".
    const TABLE: &str = r#"
/a/../b             | /b                  | =         | =
/a/./b              | /a/b                | =         | =
/a/..               | /                   | =         | =
/a/.                | /a/                 | =         | =
/../..              | /                   | =         | =
/a//b               | /a//b               | /a/b      | =
//a                 | //a                 | /a        | =
/a/%2e%2e/b         | /b                  | =         | =
/a/%2E./b           | /b                  | =         | =
/a/.%2e             | /                   | =         | =
/%41%7e%7E%2d       | /A~~-               | =         | =
/a%2Fb              | /a%2Fb              | =         | /a/b
/a%5Cb              | /a%5Cb              | =         | /a/b
/a\b                | /a/b                | =         | =
/a%5c..%5cb         | /a%5c..%5cb         | =         | /b
/a%2f..%2fb         | /a%2f..%2fb         | =         | /b
/a%00b              | 400                 | =         | =
/a%zz               | /a%zz               | =         | =
/a%                 | /a%                 | =         | =
/a%2                | /a%2                | =         | =
/a"b<c>d`e{f}g|h^i  | /a%22b%3Cc%3Ed%60e%7Bf%7Dg%7Ch%5Ei | = | =
/a?x=/../y//z       | /a?x=/../y//z       | =         | =
/a//..//b           | /a//b               | /a/b      | =
/a/...              | /a/...              | =         | =
/a//b?c//d          | /a//b?c//d          | /a/b?c//d | =
/a%2f%2fb           | /a%2f%2fb           | =         | /a/b
/a%252fb            | /a%252fb            | =         | =
/a%252e%252e/b      | /a%252e%252e/b      | =         | =
/a;b/../c           | /c                  | =         | =
///                 | ///                 | //        | =
//..//a             | //a                 | /a        | =
/a%5c%2e%2e/b       | /a%5c../b           | =         | /b
/[x]                | /[x]                | =         | =
/*                  | /*                  | =         | =
/a%20b%c3%bc        | /a%20b%c3%bc        | =         | =
/a/..%2fb           | /a/..%2fb           | =         | /b
/a/b%2f..           | /a/b%2f..           | =         | /a/
/a%3fb              | /a%3fb              | =         | =
/%5c%5ca            | /%5c%5ca            | =         | /a
/a%2fb?c%2fd        | /a%2fb?c%2fd        | =         | /a/b?c%2fd
/./                 | /                   | =         | =
/a/.b/..c/          | /a/.b/..c/          | =         | =
"#;

    #[test]
    fn paths_are_spelt_as_envoy_spells_them() {
        for row in TABLE.trim().lines() {
            // A bar may be part of a path: cells are set apart by blanks around theirs.
            let mut cells = row.split(" |").map(str::trim);
            let path = cells.next().expect("a path");
            let mut before = "";
            for (mode, cell) in MODES.into_iter().zip(cells) {
                before = if cell == "=" { before } else { cell };
                let found = mode.normalize(path.as_bytes());
                match before {
                    "400" => assert_eq!(found, Err(PathError::Zero), "{path}"),
                    wanted => {
                        assert_eq!(found.as_deref(), Ok(wanted.as_bytes()), "{path} {mode:?}");
                    }
                }
            }
            let same = Mode::None.normalize(path.as_bytes());
            assert_eq!(same.as_deref(), Ok(path.as_bytes()));
        }
    }

    #[test]
    fn doing_it_twice_changes_nothing() {
        let pieces: [&[u8]; 16] = [
            b"/", b"/", b".", b"..", b"%2e", b"%2F", b"%5c", b"\\", b"a", b"%", b"%4", b"%41",
            b"25", b"%25", b"|", b"?",
        ];
        let mut number: u64 = 1;
        let mut refused = 0;
        for _ in 0..60_000 {
            let mut path = b"/".to_vec();
            for _ in 0..7 {
                number = number
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                path.extend_from_slice(pieces[(number >> 60) as usize]);
            }
            for mode in MODES {
                let Ok(once) = mode.normalize(&path) else {
                    refused += 1;
                    continue;
                };
                assert_eq!(
                    mode.normalize(&once),
                    Ok(once.clone()),
                    "{:?}",
                    path.escape_ascii().to_string()
                );
            }
        }
        assert!(refused < 40_000, "{refused}");
        assert_eq!(Mode::Base.normalize(b"/%%341"), Err(PathError::Unstable));
    }
}
