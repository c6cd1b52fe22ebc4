//! Expressions of users: matched against the whole of a text, in time linear in it, and bounded in size. They mean what RE2
//! makes of them, since that is what Istio's and Gateway API's users write for; `syntax` refuses what would differ.

use std::fmt;
use std::sync::Arc;

use regex_automata::nfa::thompson::WhichCaptures;
use regex_automata::{Anchored, Input, meta};
use regex_syntax::hir::literal::Extractor;
use regex_syntax::hir::{Hir, Look};

use super::syntax;

/// Longest expression, in bytes: far beyond what a person reads.
pub const MAX_PATTERN: usize = 4_096;

/// Largest compiled expression, in bytes. About what Istio's bound of 32,768 RE2 instructions comes to.
pub const MAX_PROGRAM: usize = 1 << 20;

/// What one expression may remember of its way through texts, in bytes; filled only as texts ask for it.
const CACHE: usize = 256 << 10;

/// Expressions that are asked at once; more would make what is remembered of them fall out of its cache.
pub(super) const MAX_SET: usize = 1_024;

/// What a set may remember.
const SET_CACHE: usize = 8 << 20;

/// An expression that describes whole texts.
///
/// Each thread should have a clone of its own: what is compiled is shared, what a search remembers is not, and a search
/// on somebody else's clone takes a lock.
#[derive(Clone)]
pub struct Regex {
    written: Arc<str>,
    hir: Arc<Hir>,
    compiled: meta::Regex,
}

/// Why an expression is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{pattern}`: {what}")]
pub struct RegexError {
    pattern: String,
    what: String,
}

impl RegexError {
    pub(super) fn new(pattern: &str, what: impl Into<String>) -> Self {
        const SHOWN: usize = 120;
        let mut pattern: String = pattern.chars().take(SHOWN + 1).collect();
        if pattern.chars().count() > SHOWN {
            pattern.pop();
            pattern.push('…');
        }
        let what = what.into();
        Self { pattern, what }
    }
}

impl Regex {
    /// Reads an expression.
    pub fn new(pattern: &str) -> Result<Self, RegexError> {
        Self::of(pattern, pattern)
    }

    /// Reads a path template; see [`super::PathMatch::template`].
    pub(super) fn template(written: &str) -> Result<Self, RegexError> {
        Self::of(written, &syntax::of_template(written)?)
    }

    fn of(written: &str, pattern: &str) -> Result<Self, RegexError> {
        let hir = syntax::parse(pattern)?;
        let whole = [Hir::look(Look::Start), hir, Hir::look(Look::End)];
        let hir = Arc::new(Hir::concat(whole.into()));
        let compiled = meta::Builder::new()
            .configure(config(WhichCaptures::Implicit, MAX_PROGRAM, CACHE))
            .build_from_hir(&hir)
            .map_err(|error| too_large(written, &error))?;
        let written = written.into();
        Ok(Self {
            written,
            hir,
            compiled,
        })
    }

    /// Whether the whole text is what it describes.
    #[must_use]
    pub fn is_match(&self, text: &[u8]) -> bool {
        let input = Input::new(text).anchored(Anchored::Yes).earliest(true);
        self.compiled.search_half(&input).is_some()
    }

    /// The expression as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// What every text it describes begins with.
    pub(super) fn beginning(&self) -> Vec<u8> {
        let literals = Extractor::new().extract(&self.hir);
        literals.longest_common_prefix().unwrap_or_default().into()
    }
}

impl PartialEq for Regex {
    fn eq(&self, other: &Self) -> bool {
        self.hir == other.hir
    }
}

impl Eq for Regex {}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Regex({})", self.written)
    }
}

/// Expressions in order of precedence, asked at once.
#[derive(Debug, Clone)]
pub(super) struct RegexSet(meta::Regex);

impl RegexSet {
    /// `None` when together they are too large; each alone is not.
    pub(super) fn new(of: &[Regex]) -> Option<Self> {
        let all: Vec<&Hir> = of.iter().map(|regex| &*regex.hir).collect();
        let config = config(WhichCaptures::Implicit, MAX_PROGRAM * 16, SET_CACHE);
        let built = meta::Builder::new()
            .configure(config)
            .build_many_from_hir(&all);
        built.ok().map(Self)
    }

    /// The first that describes the whole text. They all begin and end with the text, so that the engine's preference for
    /// what was named first is ours.
    pub(super) fn first(&self, text: &[u8]) -> Option<usize> {
        let input = Input::new(text).anchored(Anchored::Yes);
        let found = self.0.search_half(&input)?;
        Some(found.pattern().as_usize())
    }
}

pub(super) fn config(captures: WhichCaptures, size: usize, cache: usize) -> meta::Config {
    meta::Config::new()
        .which_captures(captures)
        .utf8_empty(false)
        .nfa_size_limit(Some(size))
        .hybrid_cache_capacity(cache)
}

pub(super) fn too_large(pattern: &str, error: &meta::BuildError) -> RegexError {
    let what = match error.size_limit() {
        Some(_) => format!("compiled it is larger than {MAX_PROGRAM} bytes"),
        None => error.to_string(),
    };
    RegexError::new(pattern, what)
}

#[cfg(test)]
mod tests {
    use super::{MAX_PATTERN, Regex, RegexSet};

    #[test]
    fn expressions_mean_what_re2_makes_of_them() {
        // pattern, matches, does not match
        let table: &[(&str, &[&str], &[&str])] = &[
            ("/a.*", &["/a", "/abc", "/a/b"], &["", "b/a", "/b", "/a\nb"]),
            ("a|bc", &["a", "bc"], &["abc", "ab", "bca"]),
            ("^/v[0-9]+$", &["/v1", "/v12"], &["/v", "/v1/"]),
            (r"\d\w\s", &["1a "], &["١a ", "1é ", "1a\u{b}"]),
            (r"[\d-]+", &["1-2"], &["١"]),
            (r"\D", &["é", "x"], &["1", ""]),
            (r"\bx\b", &["x"], &["xx"]),
            ("(?i)/Ab", &["/ab", "/AB"], &["/a"]),
            ("a{2,3}?", &["aa", "aaa"], &["a", "aaaa"]),
            ("[[:alpha:]_]+", &["a_"], &["1"]),
            ("(?:a)(?P<n>b)", &["ab"], &["b"]),
            (".", &["é", "x"], &["", "xy"]),
            (r"\pL+", &["é"], &["1"]),
            ("", &[""], &["a"]),
            ("(?s)a.b", &["a\nb"], &["ab"]),
        ];
        for (pattern, matching, others) in table {
            let regex = Regex::new(pattern).expect("good");
            for (texts, wanted) in [(matching, true), (others, false)] {
                for text in *texts {
                    assert_eq!(regex.is_match(text.as_bytes()), wanted, "{pattern} {text}");
                }
            }
        }
    }

    #[test]
    fn what_re2_has_not_or_reads_otherwise_is_refused_by_name() {
        let long = "a".repeat(MAX_PATTERN + 1);
        let table = [
            ("(", "unclosed group"),
            ("*", "repetition operator missing"),
            (r"(a)\1", "backreferences"),
            ("(?=a)", "look-around"),
            ("[a&&b]", "`&&`, `--` and `~~`"),
            ("[a[b]]", "a class in a class"),
            ("(?x) a # b", "flag `x`"),
            (r"(?-u:\w)", "flag `u`"),
            (r"\<a", "word boundaries are"),
            ("(((a{100}){100}){100}){10}", "larger than"),
            (&long, "longer than 4096 bytes"),
        ];
        for (pattern, why) in table {
            let error = Regex::new(pattern).expect_err(pattern).to_string();
            assert!(error.contains(why), "{pattern}: {error}");
            assert!(error.len() < 400, "{error}");
        }
    }

    #[test]
    fn templates_match_what_envoy_matches() {
        // The first five rows were seen of a stock Envoy.
        let table: &[(&str, &str, &str)] = &[
            (
                "/foo/{*}",
                "/foo/bar /foo/b%2Fr",
                "/foo/ /foo/bar/baz /foo /Foo/bar",
            ),
            ("/foo/{**}", "/foo/ /foo/a/b /foo//", "/foo"),
            ("/foo/{**}/", "/foo/bar/ /foo//", "/foo/ /foo/bar"),
            (
                "/{**}/path/template",
                "//path/template /a/b/path/template",
                "/path/template",
            ),
            (
                "/foo/{*}/bar/{**}",
                "/foo/x/bar/ /foo/x/bar/y/z",
                "/foo/x/bar /foo//bar/x",
            ),
            ("/{*}", "/a", "/ /a/ /a/b"),
            ("/{**}", "/ /a /a/b// /a*b=c", "/a[b /a{b"),
            ("/a.b/{*}", "/a.b/c", "/axb/c"),
        ];
        for (template, matching, others) in table {
            let regex = Regex::template(template).expect("good");
            for (paths, wanted) in [(matching, true), (others, false)] {
                for path in paths.split_whitespace() {
                    assert_eq!(regex.is_match(path.as_bytes()), wanted, "{template} {path}");
                }
            }
        }
        for refused in [
            "foo/{*}",
            "/{**}/{*}",
            "/a{*}",
            "/{a}",
            "/{",
            "//{*}",
            "/{*}/ü",
        ] {
            assert!(Regex::template(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn every_match_begins_as_said() {
        let table = [
            ("/api/v1/.*", "/api/v1/"),
            ("^/api/(a|b)$", "/api/"),
            ("/item-[0-9]+", "/item-"),
            (".*", ""),
            ("(?i)/a", "/"),
            ("(/a|/b)x", "/"),
            ("(/a)?", ""),
            ("/a{2,}", "/aa"),
        ];
        for (pattern, beginning) in table {
            let found = Regex::new(pattern).expect("good").beginning();
            let found = String::from_utf8_lossy(&found).into_owned();
            // A shorter one is right as well, only slower.
            assert!(beginning.starts_with(&found), "{pattern}: {found}");
            assert_eq!(found.is_empty(), beginning.is_empty(), "{pattern}: {found}");
        }
    }

    #[test]
    fn of_a_set_the_first_in_order_is_found() {
        let patterns = ["/a/b", "/a/.*", "/.*", "/a/b.*"];
        let set: Vec<Regex> = patterns.map(|p| Regex::new(p).expect("good")).into();
        let set = RegexSet::new(&set).expect("small");
        for (text, wanted) in [
            ("/a/b", Some(0)),
            ("/a/bc", Some(1)),
            ("/a/", Some(1)),
            ("/b", Some(2)),
            ("b", None),
        ] {
            assert_eq!(set.first(text.as_bytes()), wanted, "{text}");
        }
    }
}
