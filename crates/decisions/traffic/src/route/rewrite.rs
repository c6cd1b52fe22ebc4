//! Path rewrites of a route: another path, another prefix, or a substitution by an expression. The query stays as it
//! is.

use std::fmt;
use std::sync::Arc;

use regex_automata::meta;
use regex_automata::nfa::thompson::WhichCaptures;

use super::regex::{MAX_PROGRAM, RegexError, config, too_large};
use super::syntax;

/// Rewrite of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathRewrite {
    /// This: Gateway API's ReplaceFullPath, Istio's `redirect.uri`.
    Full(String),
    /// Replaces the bytes that matched: Istio's `rewrite.uri` and `prefixRewrite`. After an exact path or an
    /// expression, replaces the whole path.
    Prefix(String),
    /// Replaces the segments that matched: Gateway API's ReplacePrefixMatch. One slash is between it and the rest,
    /// and one at the beginning, however it is written.
    Segments(String),
    /// Every match of an expression gives way to a text: Istio's `uriRegexRewrite`.
    Regex(RegexRewrite),
}

impl PathRewrite {
    /// Writes the path that a path becomes, of which a route matched the first `matched` bytes (all, if none are said:
    /// [`super::Chosen::matched`]). `false`, and nothing of use is written, when that would not be a path.
    #[must_use]
    pub fn apply(&self, path: &[u8], matched: Option<usize>, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        let rest = &path[matched.unwrap_or(path.len()).min(path.len())..];
        match self {
            Self::Full(full) => out.extend_from_slice(full.as_bytes()),
            Self::Prefix(prefix) => {
                out.extend_from_slice(prefix.as_bytes());
                out.extend_from_slice(rest);
            }
            Self::Segments(prefix) => {
                out.extend_from_slice(prefix.trim_end_matches('/').as_bytes());
                // Some were matched by `/`, after which the rest begins without one.
                if !rest.starts_with(b"/") && (!rest.is_empty() || out.len() == begin) {
                    out.push(b'/');
                }
                out.extend_from_slice(rest);
            }
            Self::Regex(rewrite) => rewrite.apply(path, out),
        }
        out.get(begin) == Some(&b'/')
    }
}

/// An expression and its substitution, in RE2's words: `\0` is the whole match, `\1` to `\9` are its groups.
#[derive(Clone)]
pub struct RegexRewrite {
    pattern: Arc<str>,
    substitution: Arc<str>,
    compiled: meta::Regex,
    parts: Arc<[RewritePiece]>,
}

/// A piece of a substitution.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RewritePiece {
    Text(String),
    Group(usize),
}

impl RegexRewrite {
    /// Reads both.
    pub fn new(pattern: &str, substitution: &str) -> Result<Self, RegexError> {
        let hir = syntax::parse(pattern)?;
        let compiled = meta::Builder::new()
            .configure(config(WhichCaptures::All, MAX_PROGRAM, MAX_PROGRAM))
            .build_from_hir(&hir)
            .map_err(|error| too_large(pattern, &error))?;
        let parts = parts(substitution, compiled.captures_len())
            .map_err(|what| RegexError::new(substitution, what))?;
        Ok(Self {
            pattern: pattern.into(),
            substitution: substitution.into(),
            compiled,
            parts: parts.into(),
        })
    }

    /// The expression, as it is written.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Returns the substitution, as it is written.
    #[must_use]
    pub fn substitution(&self) -> &str {
        &self.substitution
    }

    fn apply(&self, path: &[u8], out: &mut Vec<u8>) {
        let mut copied = 0;
        for found in self.compiled.captures_iter(path) {
            let Some(whole) = found.get_group(0) else {
                continue;
            };
            out.extend_from_slice(&path[copied..whole.start]);
            copied = whole.end;
            for part in &*self.parts {
                match part {
                    RewritePiece::Text(text) => out.extend_from_slice(text.as_bytes()),
                    RewritePiece::Group(number) => {
                        let group = found.get_group(*number);
                        out.extend_from_slice(group.map_or(&[], |group| &path[group.range()]));
                    }
                }
            }
        }
        out.extend_from_slice(&path[copied..]);
    }
}

impl PartialEq for RegexRewrite {
    fn eq(&self, other: &Self) -> bool {
        (&self.pattern, &self.substitution) == (&other.pattern, &other.substitution)
    }
}

impl Eq for RegexRewrite {}

impl fmt::Debug for RegexRewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegexRewrite({} → {})", self.pattern, self.substitution)
    }
}

/// Reads a substitution for an expression with so many groups, the whole match counted.
fn parts(substitution: &str, groups: usize) -> Result<Vec<RewritePiece>, String> {
    let (mut parts, mut text) = (Vec::new(), String::new());
    let mut letters = substitution.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('\\') => text.push('\\'),
                Some(digit @ '0'..='9') => {
                    let number = digit as usize - '0' as usize;
                    if number >= groups {
                        return Err(format!(
                            "\\{number}: the expression has {} groups",
                            groups - 1
                        ));
                    }
                    if !text.is_empty() {
                        parts.push(RewritePiece::Text(std::mem::take(&mut text)));
                    }
                    parts.push(RewritePiece::Group(number));
                }
                _ => {
                    return Err(
                        r"a backslash must be followed by a digit or a backslash".to_owned()
                    );
                }
            },
            letter if letter.is_control() || letter == ' ' => {
                return Err("a path must not have spaces or control characters".to_owned());
            }
            letter => text.push(letter),
        }
    }
    if !text.is_empty() {
        parts.push(RewritePiece::Text(text));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::{PathRewrite, RegexRewrite};

    fn rewritten(rewrite: &PathRewrite, path: &str, matched: Option<usize>) -> Option<String> {
        let mut out = b"kept".to_vec();
        let good = rewrite.apply(path.as_bytes(), matched, &mut out);
        let path = String::from_utf8(out.split_off(4)).expect("text");
        good.then_some(path)
    }

    #[test]
    fn segments_are_replaced_as_gateway_api_tabulates_it() {
        // path | prefix as it is matched, without its last slash | replacement | becomes
        let table = [
            ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
            ("/foo", "/foo", "/xyz", "/xyz"),
            ("/foo/", "/foo", "/xyz", "/xyz/"),
            ("/foo/bar", "/foo", "", "/bar"),
            ("/foo/", "/foo", "", "/"),
            ("/foo", "/foo", "", "/"),
            ("/foo/", "/foo", "/", "/"),
            ("/foo", "/foo", "/", "/"),
            ("/foo/bar", "", "/xyz", "/xyz/foo/bar"),
            ("/", "", "/xyz", "/xyz/"),
            ("/foo", "/", "/xyz", "/xyz/foo"),
            ("/foo", "/", "/", "/foo"),
        ];
        for (path, prefix, replacement, wanted) in table {
            let rewrite = PathRewrite::Segments(replacement.to_owned());
            assert_eq!(
                rewritten(&rewrite, path, Some(prefix.len())).as_deref(),
                Some(wanted),
                "{path} {prefix} {replacement}"
            );
        }
    }

    #[test]
    fn bytes_are_replaced_as_istio_does() {
        let table = [
            ("/foo/bar", Some(4), "/xyz", Some("/xyz/bar")),
            ("/foobar", Some(4), "/xyz", Some("/xyzbar")),
            ("/foo/bar", Some(5), "/", Some("/bar")),
            ("/foo", Some(1), "/v2/", Some("/v2/foo")),
            ("/foo/bar", None, "/xyz", Some("/xyz")),
            ("/foo/bar", Some(4), "", Some("/bar")),
            ("/foo", Some(4), "", None),
            ("/foo", Some(1), "x", None),
        ];
        for (path, matched, replacement, wanted) in table {
            let rewrite = PathRewrite::Prefix(replacement.to_owned());
            assert_eq!(
                rewritten(&rewrite, path, matched).as_deref(),
                wanted,
                "{path} {replacement}"
            );
        }
        let full = PathRewrite::Full("/all".to_owned());
        assert_eq!(rewritten(&full, "/foo", Some(1)).as_deref(), Some("/all"));
    }

    #[test]
    fn expressions_rewrite_every_match_with_their_groups() {
        let table = [
            (
                "/items/([0-9]+)/(\\w+)",
                r"/\2/\1",
                "/items/7/parts",
                "/parts/7",
            ),
            ("^/v1", "/v2", "/v1/v1", "/v2/v1"),
            ("a", "b", "/a/a", "/b/b"),
            ("x*", "-", "/ax", "-/-a-"),
            (r"/a", r"\0\\", "/a", r"/a\"),
            ("(a)|(b)", r"[\1\2]", "/ab", "/[a][b]"),
            ("nothing", "", "/a", "/a"),
        ];
        for (pattern, substitution, path, wanted) in table {
            let rewrite = RegexRewrite::new(pattern, substitution).expect("good");
            let mut out = Vec::new();
            rewrite.apply(path.as_bytes(), &mut out);
            assert_eq!(
                String::from_utf8_lossy(&out),
                wanted,
                "{pattern} {substitution} {path}"
            );
        }
        for (pattern, substitution, why) in [
            ("(a)", r"\2", "has 1 groups"),
            ("a", r"\n", "a backslash"),
            ("a", "\\", "a backslash"),
            ("a", "b c", "must not have spaces"),
            ("(", "", "unclosed"),
        ] {
            let error = RegexRewrite::new(pattern, substitution).expect_err(substitution);
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
