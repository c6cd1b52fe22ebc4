//! Conditions of a route, one by one. The index must agree with them; explanations show them, too.

use std::borrow::Cow;

use super::regex::{Regex, RegexError};

/// View of a request for the route table. Nothing of it is copied.
pub trait RouteInput {
    /// `GET`; case counts.
    fn method(&self) -> &[u8];
    /// `http` or `https`.
    fn scheme(&self) -> &[u8];
    /// Host and port as the client named them.
    fn authority(&self) -> &[u8];
    /// The path without query and fragment.
    fn path(&self) -> &[u8];
    /// The text after the first `?`; empty without one.
    fn query(&self) -> &[u8];
    /// The values of a header, joined by a comma where there are several; `name` is lower case. By either of its names
    /// ([`is_authority`](super::is_authority)) the authority is one, as in Envoy.
    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>>;
    /// Returns true if the verified token has a claim at this path for which `is` holds. In a list, one value is
    /// enough. A value that is no text (the list itself, too) is given as None. A request without a verified token
    /// has no claims.
    fn claim(&self, path: &[String], is: &dyn Fn(Option<&[u8]>) -> bool) -> bool {
        let _ = (path, is);
        false
    }
}

/// Condition on a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextMatch {
    /// This, byte by byte.
    Exact(String),
    /// Begins so.
    Prefix(String),
    /// Ends so.
    Suffix(String),
    /// The whole of it is described by an expression.
    Regex(Regex),
}

impl TextMatch {
    /// Returns true if the text matches.
    #[must_use]
    pub fn matches(&self, text: &[u8]) -> bool {
        match self {
            Self::Exact(wanted) => wanted.as_bytes() == text,
            Self::Prefix(wanted) => text.starts_with(wanted.as_bytes()),
            Self::Suffix(wanted) => text.ends_with(wanted.as_bytes()),
            Self::Regex(wanted) => wanted.is_match(text),
        }
    }
}

/// Condition on a header or a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueMatch {
    /// There, with any value.
    Present,
    /// Not there.
    Absent,
    /// There, with such a value.
    Is(TextMatch),
}

/// A condition on one header or query parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldMatch {
    /// A header's name in lower case; a parameter's as written.
    pub name: String,
    /// Condition on its value.
    pub value: ValueMatch,
}

impl FieldMatch {
    /// A condition on the value of this name.
    #[must_use]
    pub fn new(name: &str, value: ValueMatch) -> Self {
        let name = name.to_owned();
        Self { name, value }
    }

    fn holds(&self, found: Option<&[u8]>) -> bool {
        match (&self.value, found) {
            (ValueMatch::Present, found) => found.is_some(),
            (ValueMatch::Absent, found) => found.is_none(),
            (ValueMatch::Is(text), Some(found)) => text.matches(found),
            (ValueMatch::Is(_), None) => false,
        }
    }

    pub(super) fn holds_of_header(&self, request: &(impl RouteInput + ?Sized)) -> bool {
        self.holds(request.header(&self.name).as_deref())
    }

    /// Of `withoutHeaders`: a header that is missing counts as empty there, as Istio has Envoy read it.
    pub(super) fn excludes(&self, request: &(impl RouteInput + ?Sized)) -> bool {
        let found = request.header(&self.name);
        match &self.value {
            ValueMatch::Is(text) => text.matches(found.as_deref().unwrap_or_default()),
            ValueMatch::Present | ValueMatch::Absent => self.holds(found.as_deref()),
        }
    }

    pub(super) fn holds_of_parameter(&self, request: &(impl RouteInput + ?Sized)) -> bool {
        self.holds(query_parameter(request.query(), self.name.as_bytes()))
    }
}

/// A condition on a claim of a request's verified token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimMatch {
    /// The claim, and names within it.
    pub path: Vec<String>,
    /// Condition on its value, or on one of the values of a list.
    pub value: ValueMatch,
    /// It must not be so.
    pub without: bool,
}

impl ClaimMatch {
    pub(super) fn holds(&self, request: &(impl RouteInput + ?Sized)) -> bool {
        let has = |is: &dyn Fn(Option<&[u8]>) -> bool| request.claim(&self.path, is);
        let found = match &self.value {
            ValueMatch::Present => has(&|_| true),
            ValueMatch::Absent => !has(&|_| true),
            ValueMatch::Is(text) => has(&|one| one.is_some_and(|one| text.matches(one))),
        };
        found != self.without
    }
}

/// The first value of a query's parameter, as it stands there: Envoy decodes nothing either. A name without `=` is empty.
#[must_use]
pub fn query_parameter<'q>(query: &'q [u8], name: &[u8]) -> Option<&'q [u8]> {
    let mut rest = query;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'&');
        let (pair, next) = match end {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None => (rest, &[][..]),
        };
        if let Some(after) = pair.strip_prefix(name) {
            match after {
                [] => return Some(after),
                [b'=', value @ ..] => return Some(value),
                _ => {}
            }
        }
        rest = next;
    }
    None
}

/// Condition on a path; always without its query.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PathMatch {
    /// Anything.
    #[default]
    Any,
    /// This.
    Exact(String),
    /// Begins with these bytes, wherever they end: Istio's prefix. `/foo` is one of `/foobar`.
    Prefix(String),
    /// Begins with these segments: Gateway API's prefix. `/foo` and `/foo/` are prefixes of `/foo` and `/foo/x`, not of
    /// `/foobar`.
    Segments(String),
    /// An expression matches the whole path. Case counts, whatever [`Match::ignore_case`] says, as in Istio.
    Regex(Regex),
}

impl PathMatch {
    /// A path with `{*}` (one segment that is not empty) and `{**}` (any bytes, slashes included), as Envoy's URI
    /// templates have them: both stand only for bytes that a path may hold unescaped.
    pub fn template(written: &str) -> Result<Self, RegexError> {
        Regex::template(written).map(Self::Regex)
    }

    fn matches(&self, path: &[u8], ignore_case: bool) -> bool {
        let begins = |wanted: &str| {
            path.get(..wanted.len()).is_some_and(|begin| {
                if ignore_case {
                    begin.eq_ignore_ascii_case(wanted.as_bytes())
                } else {
                    begin == wanted.as_bytes()
                }
            })
        };
        match self {
            Self::Any => true,
            Self::Exact(wanted) => wanted.len() == path.len() && begins(wanted),
            Self::Prefix(wanted) => begins(wanted),
            Self::Segments(wanted) => {
                let wanted = without_slash(wanted);
                begins(wanted) && ends_segment(path, wanted.len())
            }
            Self::Regex(wanted) => wanted.is_match(path),
        }
    }
}

/// A prefix of segments as it is compared: its last slash says nothing.
pub(super) fn without_slash(prefix: &str) -> &str {
    prefix.strip_suffix('/').unwrap_or(prefix)
}

/// Returns true if a segment of the path ends here.
pub(super) fn ends_segment(path: &[u8], at: usize) -> bool {
    matches!(path.get(at), None | Some(b'/'))
}

/// Conditions that must all hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Match {
    /// On the path.
    pub path: PathMatch,
    /// True to ignore the case of the path's letters (ASCII), unless it is an expression.
    pub ignore_case: bool,
    /// On the scheme.
    pub scheme: Option<TextMatch>,
    /// On the method.
    pub method: Option<TextMatch>,
    /// On the authority.
    pub authority: Option<TextMatch>,
    /// On headers, all of which must hold.
    pub headers: Vec<FieldMatch>,
    /// On headers, none of which may hold.
    pub without_headers: Vec<FieldMatch>,
    /// On query parameters, all of which must hold.
    pub query: Vec<FieldMatch>,
    /// On the verified token, all of which must hold.
    pub claims: Vec<ClaimMatch>,
}

impl Match {
    /// Returns true if a request matches.
    #[must_use]
    pub fn matches(&self, request: &(impl RouteInput + ?Sized)) -> bool {
        let holds = |wanted: &Option<TextMatch>, text: &[u8]| {
            wanted.as_ref().is_none_or(|wanted| wanted.matches(text))
        };
        self.path.matches(request.path(), self.ignore_case)
            && holds(&self.scheme, request.scheme())
            && holds(&self.method, request.method())
            && holds(&self.authority, request.authority())
            && self
                .headers
                .iter()
                .all(|field| field.holds_of_header(request))
            && !self
                .without_headers
                .iter()
                .any(|field| field.excludes(request))
            && self
                .query
                .iter()
                .all(|field| field.holds_of_parameter(request))
            && self.claims.iter().all(|claim| claim.holds(request))
    }
}
