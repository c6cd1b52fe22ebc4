//! Paths with `{*}` (one segment that is not empty) and `{**}` (any bytes, slashes included), as Envoy's URI templates
//! match them: both stand only for the bytes that a path may hold unescaped.

use std::fmt;
use std::sync::Arc;

use super::pattern::excerpt;

/// A path template. Segments are the parts between slashes after the first slash; a final slash makes an empty last
/// segment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathTemplate {
    written: Arc<str>,
    /// Segments before `{**}`, or all of them; `None` is `{*}`.
    pub(super) before: Box<[Option<Arc<str>>]>,
    /// Segments after `{**}`, if there is one.
    pub(super) after: Option<Box<[Arc<str>]>>,
}

/// Why a path with braces is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("path `{path}`: {what}")]
pub struct TemplateError {
    path: String,
    what: &'static str,
}

const ONE: &str = "{*}";
const ANY: &str = "{**}";

/// Returns true if `{*}` and `{**}` match this byte.
pub(super) fn stands_for(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()+,;:@=*".contains(&byte)
}

/// Returns true if a literal segment may contain this byte.
fn is_literal(byte: u8) -> bool {
    stands_for(byte) && byte != b'*'
}

impl PathTemplate {
    /// Reads a path; `None` when it is an ordinary one.
    pub fn parse(path: &str) -> Result<Option<Self>, TemplateError> {
        let refuse = |what| {
            let path = excerpt(path);
            Err(TemplateError { path, what })
        };
        if !path.contains(['{', '}']) {
            return Ok(None);
        }
        let Some(rest) = path.strip_prefix('/') else {
            return refuse("a template begins with a slash");
        };
        let mut before = Vec::new();
        let mut after: Option<Vec<Arc<str>>> = None;
        let mut segments = rest.split('/').peekable();
        while let Some(segment) = segments.next() {
            let last = segments.peek().is_none();
            match (segment, &mut after) {
                (ONE | ANY, Some(_)) => return refuse("{**} is the last operator"),
                (ANY, None) => after = Some(Vec::new()),
                (ONE, None) => before.push(None),
                ("", _) if !last => return refuse("an empty segment"),
                (literal, _) if literal.contains(['{', '}']) => {
                    return refuse("braces mean {*} or {**} as a whole segment");
                }
                (literal, _) if !literal.bytes().all(is_literal) => {
                    return refuse("a template holds only unreserved bytes");
                }
                (literal, None) => before.push(Some(literal.into())),
                (literal, Some(after)) => after.push(literal.into()),
            }
        }
        Ok(Some(Self {
            written: path.into(),
            before: before.into(),
            after: after.map(Into::into),
        }))
    }

    /// Returns true if the path, without its query, matches the template.
    pub fn matches(&self, path: &[u8]) -> bool {
        let Some((b'/', rest)) = path.split_first() else {
            return false;
        };
        let segments: Vec<&[u8]> = rest.split(|byte| *byte == b'/').collect();
        if segments.len() < self.before.len() {
            return false;
        }
        let (first, rest) = segments.split_at(self.before.len());
        let one = |(wanted, segment): (&Option<Arc<str>>, &&[u8])| match wanted {
            Some(literal) => literal.as_bytes() == *segment,
            None => !segment.is_empty() && segment.iter().copied().all(stands_for),
        };
        if !self.before.iter().zip(first).all(one) {
            return false;
        }
        let Some(after) = &self.after else {
            return rest.is_empty();
        };
        // `{**}` takes at least one segment, which may be empty.
        let Some(taken) = rest
            .len()
            .checked_sub(after.len())
            .filter(|taken| *taken >= 1)
        else {
            return false;
        };
        let (taken, last) = rest.split_at(taken);
        let literal = |(wanted, segment): (&Arc<str>, &&[u8])| wanted.as_bytes() == *segment;
        taken
            .iter()
            .all(|segment| segment.iter().copied().all(stands_for))
            && after.iter().zip(last).all(literal)
    }
}

impl fmt::Display for PathTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::PathTemplate;

    /// template | matches | does not match. The first five rows were seen of a stock Envoy 1.40.
    const TABLE: &str = "
/foo/{*}              | /foo/bar /foo/b%2Fr            | /foo/ /foo/bar/baz /foo /Foo/bar
/foo/{**}             | /foo/ /foo/a/b /foo//           | /foo
/foo/{**}/            | /foo/bar/ /foo//               | /foo/ /foo/bar
/{**}/path/template   | //path/template /a/b/path/template | /path/template
/foo/{*}/bar/{**}     | /foo/x/bar/ /foo/x/bar/y/z     | /foo/x/bar /foo//bar/x
/{*}                  | /a                             | / /a/ /a/b
/{**}                 | / /a /a/b// /a*b=c              | /a[b /a{b
/a/{**}/b/c           | /a//b/c /a/x/y/b/c /a/b/c/b/c  | /a/b/c /a/x/c
/{*}/                 | /a/                            | /a //
";

    #[test]
    fn templates_match_what_envoy_matches() {
        for row in TABLE.trim().lines() {
            let mut cells = row.split('|').map(str::trim);
            let template = cells.next().expect("a template");
            let template = PathTemplate::parse(template)
                .expect("good")
                .expect("a template");
            for (paths, wanted) in cells.zip([true, false]) {
                for path in paths.split_whitespace() {
                    assert_eq!(
                        template.matches(path.as_bytes()),
                        wanted,
                        "{template} {path}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_envoy_or_istio_refuse_is_refused() {
        let refused = [
            "foo/{*}",
            "/{**}/{*}",
            "/{*}/{**}/{**}",
            "/a{*}",
            "/{*}b",
            "/{a}",
            "/{",
            "/}",
            "//{*}",
            "/{*}//",
            "/a//{*}",
            "/{*}/a*b",
            "/{*}/ü",
            "/{***}",
        ];
        for path in refused {
            assert!(PathTemplate::parse(path).is_err(), "{path}");
        }
        for path in ["/a", "/a*", "*b", "*", "/a//b", "/*/x"] {
            assert_eq!(PathTemplate::parse(path), Ok(None), "{path}");
        }
    }
}
