//! Finds tokens in headers, query parameters and cookies. One pass over the request's own names finds them all, so that
//! a thousand rules with different places cost as much as one.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use memchr::memmem;
use smallvec::SmallVec;
use voile_model::mesh::TokenRule;

use super::limits::MAX_TOKENS;
use super::outcome::TokenErrorReason;
use crate::authorization::Headers;

/// The parts of a request that can hold a token.
#[derive(Clone, Copy)]
pub struct TokenRequest<'a> {
    /// The method.
    pub method: &'a [u8],
    /// The path with its query.
    pub path: &'a [u8],
    /// The headers as they came.
    pub headers: &'a dyn Headers,
}

/// A place that some rule names. In the order in which a rule's places are looked at, last first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum TokenLocation {
    /// The header of this name in lower case, after this text.
    Header(Arc<str>, Arc<str>),
    /// The parameter.
    Param(Arc<str>),
    /// The cookie.
    Cookie(Arc<str>),
}

impl TokenLocation {
    /// The places of a rule.
    pub(super) fn of(rule: &TokenRule) -> impl Iterator<Item = Self> {
        let headers = rule.from_headers.iter();
        let headers = headers.map(|one| Self::Header(one.name.clone(), one.prefix.clone()));
        let params = rule.from_params.iter().cloned().map(Self::Param);
        let cookies = rule.from_cookies.iter().cloned().map(Self::Cookie);
        let (name, prefix) = TokenRule::DEFAULT_HEADER;
        let usual = [
            Self::Header(name.into(), prefix.into()),
            Self::Param(TokenRule::DEFAULT_PARAM.into()),
        ];
        let usual = usual.into_iter().filter(|_| rule.in_default_places());
        headers.chain(params).chain(cookies).chain(usual)
    }
}

/// All places of all rules.
pub(super) struct TokenLocations {
    all: Vec<TokenLocation>,
    /// The first rule that looks at each.
    first: Vec<u32>,
    headers: HashMap<Arc<str>, SmallVec<[u16; 2]>>,
    /// A bit for each length of a header's name; the last for all longer ones.
    lengths: u64,
    params: HashMap<Arc<str>, u16>,
    cookies: HashMap<Arc<str>, u16>,
}

/// A token where it was found.
pub(super) struct FoundToken<'a> {
    pub(super) place: u16,
    pub(super) text: Cow<'a, [u8]>,
}

/// The tokens of a request, in the order of their places.
pub(super) type AllFound<'a> = SmallVec<[FoundToken<'a>; 2]>;

const COOKIE: &[u8] = b"cookie";
/// The only header for tokens whose lines form one value, as in Envoy.
const AUTHORIZATION: &[u8] = b"authorization";

fn length_bit(length: usize) -> u64 {
    1 << length.min(63)
}

impl TokenLocations {
    /// `all` must be in order, each once.
    pub(super) fn new(all: Vec<TokenLocation>) -> Self {
        let mut places = Self {
            first: vec![u32::MAX; all.len()],
            headers: HashMap::new(),
            lengths: 0,
            params: HashMap::new(),
            cookies: HashMap::new(),
            all,
        };
        for (number, place) in (0..=u16::MAX).zip(&places.all) {
            match place {
                TokenLocation::Header(name, _) => {
                    places.lengths |= length_bit(name.len());
                    places.headers.entry(name.clone()).or_default().push(number);
                }
                TokenLocation::Param(name) => drop(places.params.insert(name.clone(), number)),
                TokenLocation::Cookie(name) => drop(places.cookies.insert(name.clone(), number)),
            }
        }
        if !places.cookies.is_empty() {
            places.lengths |= length_bit(COOKIE.len());
        }
        places
    }

    pub(super) fn number(&self, place: &TokenLocation) -> Option<u16> {
        let found = self.all.binary_search(place).ok()?;
        u16::try_from(found).ok()
    }

    pub(super) fn get(&self, number: u16) -> &TokenLocation {
        &self.all[usize::from(number)]
    }

    pub(super) fn reads_param(&self, name: &[u8]) -> bool {
        std::str::from_utf8(name).is_ok_and(|name| self.params.contains_key(name))
    }

    /// Rules come in order.
    pub(super) fn seen_by(&mut self, place: u16, rule: u32) {
        let first = &mut self.first[usize::from(place)];
        *first = rule.min(*first);
    }

    /// The first rule that looks at a place.
    pub(super) fn first(&self, place: u16) -> u32 {
        self.first[usize::from(place)]
    }

    /// Every token of a request.
    pub(super) fn find<'a>(
        &self,
        request: &TokenRequest<'a>,
    ) -> Result<AllFound<'a>, TokenErrorReason> {
        let mut found = AllFound::new();
        let mut lines: SmallVec<[(&[u16], &'a [u8]); 4]> = SmallVec::new();
        let mut joined: SmallVec<[&'a [u8]; 2]> = SmallVec::new();
        let mut cookies: SmallVec<[&'a [u8]; 2]> = SmallVec::new();
        request.headers.each(&mut |name, value| {
            if self.lengths & length_bit(name.len()) == 0 {
                return;
            }
            let mut lower: SmallVec<[u8; 32]> = SmallVec::from_slice(name);
            lower.make_ascii_lowercase();
            if *lower == *COOKIE && !self.cookies.is_empty() {
                cookies.push(value);
            }
            let numbers = std::str::from_utf8(&lower).map(|name| self.headers.get(name));
            if let Ok(Some(numbers)) = numbers {
                lines.push((numbers, value));
                if *lower == *AUTHORIZATION {
                    joined.push(value);
                }
            }
        });
        // Several lines of it are one value with commas, in which hardly anything is a good token.
        let joined = (joined.len() > 1).then(|| joined.join(&b','));
        for (numbers, value) in &lines {
            for number in *numbers {
                let TokenLocation::Header(name, prefix) = self.get(*number) else {
                    continue;
                };
                let is_joined = joined.as_ref().filter(|_| name.as_bytes() == AUTHORIZATION);
                match is_joined {
                    Some(_) if found.iter().any(|known| known.place == *number) => {}
                    Some(whole) => {
                        let text = after(prefix.as_bytes(), whole);
                        let text = text.map(|text| Cow::Owned(text.to_vec()));
                        push(&mut found, *number, text)?;
                    }
                    None => {
                        let text = after(prefix.as_bytes(), value).map(Cow::Borrowed);
                        push(&mut found, *number, text)?;
                    }
                }
            }
        }
        if !self.params.is_empty() {
            self.in_query(request.path, &mut found)?;
        }
        for line in cookies {
            self.in_cookies(line, &mut found)?;
        }
        found.sort_by_key(|one| one.place);
        Ok(found)
    }

    fn in_query<'a>(
        &self,
        path: &'a [u8],
        found: &mut AllFound<'a>,
    ) -> Result<(), TokenErrorReason> {
        for (name, value) in params(path) {
            let number = std::str::from_utf8(&name).map(|name| self.params.get(name));
            if let Ok(Some(number)) = number {
                push(found, *number, Some(decoded(value)))?;
            }
        }
        Ok(())
    }

    fn in_cookies<'a>(
        &self,
        line: &'a [u8],
        found: &mut AllFound<'a>,
    ) -> Result<(), TokenErrorReason> {
        for (name, value) in pairs(line) {
            let number = std::str::from_utf8(name).map(|name| self.cookies.get(name));
            if let Ok(Some(number)) = number {
                push(found, *number, Some(Cow::Borrowed(unquoted(value))))?;
            }
        }
        Ok(())
    }
}

fn push<'a>(
    found: &mut AllFound<'a>,
    place: u16,
    text: Option<Cow<'a, [u8]>>,
) -> Result<(), TokenErrorReason> {
    let Some(text) = text else { return Ok(()) };
    if found.len() == MAX_TOKENS {
        return Err(TokenErrorReason::TooMany);
    }
    found.push(FoundToken { place, text });
    Ok(())
}

/// The token of a header's value: the text after the prefix, which may stand anywhere, without leading bytes that no
/// token begins with. If nothing is left, the whole value is returned, so that it is refused. `None` without the
/// prefix.
fn after<'a>(prefix: &[u8], value: &'a [u8]) -> Option<&'a [u8]> {
    if prefix.is_empty() {
        return Some(value);
    }
    let start = match value.starts_with(prefix) {
        true => 0,
        false => memmem::find(value, prefix)?,
    };
    let rest = &value[start + prefix.len()..];
    let of_token = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    Some(match rest.iter().position(of_token) {
        Some(first) => &rest[first..],
        None => value,
    })
}

/// The query's parameters: names decoded, values as they came.
pub(super) fn params(path: &[u8]) -> impl Iterator<Item = (Cow<'_, [u8]>, &[u8])> {
    let start = memchr::memchr(b'?', path).map_or(path.len(), |at| at + 1);
    path[start..]
        .split(|byte| *byte == b'&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let equals = memchr::memchr(b'=', pair);
            let (name, value) = match equals {
                Some(at) => (&pair[..at], &pair[at + 1..]),
                None => (pair, &pair[pair.len()..]),
            };
            (decoded(name), value)
        })
}

/// The cookies of a line.
pub(super) fn pairs(line: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    line.split(|byte| *byte == b';').filter_map(|pair| {
        let pair = pair.trim_ascii();
        let at = memchr::memchr(b'=', pair)?;
        Some((&pair[..at], &pair[at + 1..]))
    })
}

fn unquoted(value: &[u8]) -> &[u8] {
    let inner = value.strip_prefix(b"\"");
    let inner = inner.and_then(|rest| rest.strip_suffix(b"\""));
    inner.unwrap_or(value)
}

/// Decodes percent-encoding; invalid encodings stay unchanged.
fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'%', text).is_none() {
        return Cow::Borrowed(text);
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let byte = match rest {
            [b'%', high, low, ..] => digit(*high).zip(digit(*low)),
            _ => None,
        };
        match byte.and_then(|(high, low)| u8::try_from(high << 4 | low).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &rest[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    Cow::Owned(out)
}
