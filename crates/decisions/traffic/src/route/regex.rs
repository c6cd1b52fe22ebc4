//! Users' expressions: matched against the whole of a text, in time linear in it, and bounded in size. They mean the
//! same as in RE2, for which Istio's and Gateway API's users write; `syntax` refuses expressions that would differ.

use std::fmt;
use std::sync::Arc;

use regex_automata::dfa::{Automaton as _, StartKind, dense, sparse};
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::{Anchored, Input, meta};
use regex_syntax::hir::literal::Extractor;
use regex_syntax::hir::{Hir, HirKind, Look};

use super::syntax;

/// Longest expression, in bytes: far longer than a person reads.
pub const MAX_PATTERN: usize = 4_096;

/// Largest compiled expression, in bytes. About Istio's bound of 32,768 RE2 instructions.
pub const MAX_PROGRAM: usize = 1 << 20;

/// Cache of one expression's automaton, in bytes; filled only as texts need it.
const CACHE: usize = 256 << 10;

/// Largest size, in bytes, at which an expression is compiled to all states of a search. The search then only follows
/// them: it caches nothing, and reads adjacent memory. One expression of thousands is not in the processor's cache
/// when it is used.
const SMALL: usize = 16 << 10;
/// States of the expression itself from which trying that is no use.
const MANY_STATES: usize = 512;

/// Expressions that are matched at once; the state of more would not fit its cache.
pub(super) const MAX_SET: usize = 1_024;

/// Cache of a set's automaton, in bytes.
const SET_CACHE: usize = 8 << 20;

/// An expression that describes whole texts.
///
/// Each thread should have a clone of its own. The compiled form is shared, the cache of a large search is not; a
/// search on another thread's clone takes a lock.
#[derive(Clone)]
pub struct Regex {
    written: Arc<str>,
    hir: Arc<Hir>,
    compiled: CompiledRegex,
}

#[derive(Clone)]
enum CompiledRegex {
    Small(Arc<Small>),
    Large(meta::Regex),
}

/// A text, and an automaton for the rest.
struct Small {
    beginning: Box<[u8]>,
    rest: sparse::DFA<Vec<u8>>,
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
        let parsed = syntax::parse(pattern)?;
        let small = Small::new(&parsed);
        let whole = [Hir::look(Look::Start), parsed, Hir::look(Look::End)];
        let hir = Arc::new(Hir::concat(whole.into()));
        let compiled = match small {
            Some(small) => CompiledRegex::Small(Arc::new(small)),
            None => {
                let large = meta::Builder::new()
                    .configure(config(WhichCaptures::Implicit, MAX_PROGRAM, CACHE))
                    .build_from_hir(&hir);
                CompiledRegex::Large(large.map_err(|error| too_large(written, &error))?)
            }
        };
        let written = written.into();
        Ok(Self {
            written,
            hir,
            compiled,
        })
    }

    /// Returns true if the expression matches the whole text.
    #[must_use]
    pub fn is_match(&self, text: &[u8]) -> bool {
        match &self.compiled {
            CompiledRegex::Small(small) => small.is_match(text),
            CompiledRegex::Large(large) => {
                let input = Input::new(text).anchored(Anchored::Yes).earliest(true);
                large.search_half(&input).is_some()
            }
        }
    }

    /// The expression as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.written
    }

    /// Returns the common prefix of all texts that match.
    pub(super) fn beginning(&self) -> Vec<u8> {
        let literals = Extractor::new().extract(&self.hir);
        literals.longest_common_prefix().unwrap_or_default().into()
    }
}

impl Small {
    /// `None` where a search can be in many states.
    fn new(hir: &Hir) -> Option<Self> {
        let parts = match hir.kind() {
            HirKind::Concat(parts) => parts.clone(),
            _ => vec![hir.clone()],
        };
        let (beginning, rest) = match parts.split_first() {
            Some((first, rest)) if let HirKind::Literal(literal) = first.kind() => {
                (literal.0.clone(), rest.to_vec())
            }
            _ => (Box::default(), parts),
        };
        let start = beginning.is_empty().then(|| Hir::look(Look::Start));
        let rest = start.into_iter().chain(rest).chain([Hir::look(Look::End)]);
        let program = thompson::Config::new()
            .utf8(false)
            .nfa_size_limit(Some(SMALL * 4))
            .which_captures(WhichCaptures::None);
        let program = thompson::Compiler::new()
            .configure(program)
            .build_from_hir(&Hir::concat(rest.collect()))
            .ok()
            .filter(|program| program.states().len() < MANY_STATES)?;
        let config = dense::Config::new()
            .start_kind(StartKind::Anchored)
            .accelerate(false)
            .dfa_size_limit(Some(SMALL * 4))
            .determinize_size_limit(Some(SMALL * 4));
        let all = dense::Builder::new()
            .configure(config)
            .build_from_nfa(&program);
        let rest = all.ok()?.to_sparse().ok()?;
        (rest.memory_usage() <= SMALL).then_some(Self { beginning, rest })
    }

    fn is_match(&self, text: &[u8]) -> bool {
        // The rest looks back at the beginning where it asks for the edge of a word.
        let input = Input::new(text)
            .range(self.beginning.len().min(text.len())..)
            .anchored(Anchored::Yes)
            .earliest(true);
        // It gives up on no byte, and begins where it is asked to.
        text.starts_with(&self.beginning) && matches!(self.rest.try_search_fwd(&input), Ok(Some(_)))
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

    /// Returns the first expression that matches the whole text. They all begin and end with the text, so the
    /// engine's preference for the first in the list is the right one.
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
    use fastrand::Rng;

    use super::*;

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

    /// The engine that keeps no states, for comparison.
    fn large(regex: &Regex) -> meta::Regex {
        let config = config(WhichCaptures::Implicit, MAX_PROGRAM, CACHE);
        let mut large = meta::Builder::new();
        let large = large.configure(config).build_from_hir(&regex.hir);
        large.expect("it is good")
    }

    /// An expression of a few parts that like to meet at their edges.
    fn drawn(random: &mut Rng, depth: u32) -> String {
        const PARTS: [&str; 16] = [
            "a", "b", "ab", "/", "é", "-", ".", "[a-b]", "[^a]", r"\b", r"\B", r"\w", "^", "$",
            r"\d", "(?i:A)",
        ];
        let part = |random: &mut Rng| match random.u32(..8) {
            0 if depth > 0 => format!("({})", drawn(random, depth - 1)),
            1 if depth > 0 => format!("({})*", drawn(random, depth - 1)),
            2 if depth > 0 => format!(
                "({}|{})",
                drawn(random, depth - 1),
                drawn(random, depth - 1)
            ),
            _ => random.choice(PARTS).expect("some").to_owned(),
        };
        (0..random.usize(1..4)).map(|_| part(random)).collect()
    }

    #[test]
    fn expressions_with_all_their_states_mean_what_those_without_mean() {
        let mut random = Rng::with_seed(11);
        let mut seen = [0, 0];
        for _ in 0..2_000 {
            let pattern = drawn(&mut random, 2);
            let regex = Regex::new(&pattern).expect("good");
            assert!(
                matches!(regex.compiled, CompiledRegex::Small(_)),
                "{pattern}"
            );
            let large = large(&regex);
            for _ in 0..20 {
                let letters = ["a", "b", "/", "é", "-", "7", "A", "\n"];
                let text: String = (0..random.usize(..6))
                    .filter_map(|_| random.choice(letters))
                    .collect();
                let found = regex.is_match(text.as_bytes());
                let input = Input::new(&text).anchored(Anchored::Yes);
                let wanted = large.search_half(&input).is_some();
                assert_eq!(found, wanted, "{pattern} {text:?}");
                seen[usize::from(found)] += 1;
            }
        }
        assert!(seen.iter().all(|seen| *seen > 1_000), "{seen:?}");
    }

    #[test]
    fn an_expression_of_many_states_is_none_the_worse() {
        let regex = Regex::new(r"/(\pL{1,4}-){3}x").expect("good");
        assert!(matches!(regex.compiled, CompiledRegex::Large(_)));
        assert!(regex.is_match("/aé-b-c-x".as_bytes()));
        assert!(!regex.is_match(b"/a-b-x"));
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
