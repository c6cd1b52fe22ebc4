//! Changes to a request with a verified token. The token is removed unless the rule forwards it; headers that only
//! tokens may set are added.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::outcome::Verified;
use super::places::{TokenLocation, pairs, params};
use super::rules::Rules;

/// Changes to a request with a good token. They apply before any other code sees the request, authorization included.
/// Names are in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenEdits<'a> {
    /// Headers of which every line goes; those of `Rules::owned_headers` go besides.
    pub remove: SmallVec<[&'a str; 2]>,
    /// Parameters that go from the query (`without_params`).
    pub params: SmallVec<[&'a str; 1]>,
    /// Cookies that go (`without_cookies`).
    pub cookies: SmallVec<[&'a str; 1]>,
    /// Headers that come, after all that goes has gone.
    pub add: SmallVec<[(&'a str, &'a str); 4]>,
}

impl Verified {
    /// The changes to the request.
    pub fn edits<'a>(&'a self, rules: &'a Rules) -> TokenEdits<'a> {
        let mut edits = TokenEdits::default();
        for one in self.others.iter().chain([self]) {
            one.add_edits(rules, &mut edits);
        }
        edits
    }

    fn add_edits<'a>(&'a self, rules: &'a Rules, edits: &mut TokenEdits<'a>) {
        let Some(rule) = rules.rules.get(self.rule) else {
            return;
        };
        if !rule.forward {
            for number in &self.places {
                match rules.places.get(*number) {
                    TokenLocation::Header(name, _) => edits.remove.push(name),
                    TokenLocation::Param(name) => edits.params.push(name),
                    TokenLocation::Cookie(name) => edits.cookies.push(name),
                }
            }
        }
        if let Some(name) = &rule.payload_header {
            edits.add.push((name, self.token.payload()));
        }
        for (output, value) in rule.outputs.iter().zip(&self.token.outputs) {
            if let Some(value) = value {
                edits.add.push((&output.header, value));
            }
        }
    }
}

/// The path without some parameters of its query; the rest stays byte for byte.
pub fn without_params<'a>(path: &'a [u8], names: &[&str]) -> Cow<'a, [u8]> {
    let goes = |name: &[u8]| names.iter().any(|one| one.as_bytes() == name);
    if !params(path).any(|(name, _)| goes(&name)) {
        return Cow::Borrowed(path);
    }
    let start = path.iter().position(|byte| *byte == b'?');
    let (bare, query) = path.split_at(start.unwrap_or(path.len()));
    let mut out = bare.to_vec();
    for pair in query[1..].split(|byte| *byte == b'&') {
        // The name of one pair is found as it was found in the whole query.
        let whole = [&b"?"[..], pair].concat();
        if params(&whole).any(|(name, _)| goes(&name)) {
            continue;
        }
        out.push(if out.len() == bare.len() { b'?' } else { b'&' });
        out.extend_from_slice(pair);
    }
    Cow::Owned(out)
}

/// A path for people to read: the values of the parameters that `hides` names are `-`.
pub fn masked_params(path: &[u8], hides: impl Fn(&[u8]) -> bool) -> Cow<'_, [u8]> {
    if !params(path).any(|(name, value)| !value.is_empty() && hides(&name)) {
        return Cow::Borrowed(path);
    }
    let start = path.iter().position(|byte| *byte == b'?');
    let (bare, query) = path.split_at(start.map_or(path.len(), |at| at + 1));
    let mut out = bare.to_vec();
    for (at, pair) in query.split(|byte| *byte == b'&').enumerate() {
        if at > 0 {
            out.push(b'&');
        }
        // The name of one pair is found as it was found in the whole query.
        let whole = [&b"?"[..], pair].concat();
        let hidden = params(&whole).any(|(name, value)| !value.is_empty() && hides(&name));
        match pair.iter().position(|byte| *byte == b'=') {
            Some(equals) if hidden => {
                out.extend_from_slice(&pair[..=equals]);
                out.push(b'-');
            }
            _ => out.extend_from_slice(pair),
        }
    }
    Cow::Owned(out)
}

/// A line of `Cookie` that has lost some; empty when nothing is left, and the line goes.
pub fn without_cookies<'a>(line: &'a [u8], names: &[&str]) -> Cow<'a, [u8]> {
    let goes = |name: &[u8]| names.iter().any(|one| one.as_bytes() == name);
    if !pairs(line).any(|(name, _)| goes(name)) {
        return Cow::Borrowed(line);
    }
    let stays = |pair: &&[u8]| !pairs(pair).any(|(name, _)| goes(name));
    let kept = line.split(|byte| *byte == b';').filter(stays);
    let kept: Vec<&[u8]> = kept
        .map(<[u8]>::trim_ascii)
        .filter(|pair| !pair.is_empty())
        .collect();
    Cow::Owned(kept.join(&b"; "[..]))
}

#[cfg(test)]
mod tests {
    use super::{masked_params, without_cookies, without_params};

    #[test]
    fn values_of_the_named_are_hidden() {
        for (path, wanted) in [
            ("/x", "/x"),
            ("/x?", "/x?"),
            ("/x?t", "/x?t"),
            ("/x?t=", "/x?t="),
            ("/x?a=1", "/x?a=1"),
            ("/x?t=1", "/x?t=-"),
            (
                "/t=1?a=%20+1&t=2=3&&tt=1&%74=4&T=5",
                "/t=1?a=%20+1&t=-&&tt=1&%74=-&T=5",
            ),
        ] {
            let found = masked_params(path.as_bytes(), |name| name == b"t");
            assert_eq!(String::from_utf8_lossy(&found), wanted, "{path}");
        }
    }

    #[test]
    fn only_the_named_go() {
        for (path, wanted) in [
            ("/x", "/x"),
            ("/x?", "/x?"),
            ("/x?a=1", "/x?a=1"),
            ("/x?t=1", "/x"),
            ("/x?t", "/x"),
            ("/x?a=%20+1&t=2&b&&c=&t=3", "/x?a=%20+1&b&&c="),
            ("/x?%74=2&a=t", "/x?a=t"),
            ("/t=1?tt=1&T=2", "/t=1?tt=1&T=2"),
            ("/x?a?t=1", "/x?a?t=1"),
        ] {
            let found = without_params(path.as_bytes(), &["t"]);
            assert_eq!(String::from_utf8_lossy(&found), wanted, "{path}");
        }
        for (line, wanted) in [
            ("a=1; d=2", "a=1; d=2"),
            ("c=2", ""),
            ("a=1;c=2;  b=\"3\"", "a=1; b=\"3\""),
            ("c=1; c=2; a", "a"),
            ("cc=1; C=2", "cc=1; C=2"),
        ] {
            let found = without_cookies(line.as_bytes(), &["c"]);
            assert_eq!(String::from_utf8_lossy(&found), wanted, "{line}");
        }
    }
}
