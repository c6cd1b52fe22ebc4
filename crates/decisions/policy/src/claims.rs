//! The claims of a token: a JSON object in two pieces of memory, one of texts and one of nodes, so that a token that is seen once and
//! forgotten costs two allocations and not one for each name and value.
//!
//! ```text
//! {"aud":["a","b"],"n":1}   texts  audabn
//!                           nodes  Object(ends 7) Name(aud) List(ends 5) Text(a) Text(b) Name(n) Whole(1)
//! ```

mod strict_json;

use std::fmt;

use serde_json::{Map, Number, Value};
use smallvec::SmallVec;

/// An object of more members than these keeps its names sorted too, and is searched by halves.
const SEARCHED_IN_ORDER: usize = 16;

/// The claims of a token, or the members of another JSON object that strangers wrote.
#[derive(Clone, Default)]
pub struct Claims {
    texts: String,
    /// The first node is the object itself; the contents of a list or an object follow it. Empty for claims without a
    /// token.
    nodes: Vec<ClaimNode>,
    /// The nodes of the names of large objects, sorted by name within each object.
    sorted: Vec<u32>,
}

/// Byte range of a text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

#[derive(Debug, Clone, Copy)]
enum ClaimNode {
    Null,
    Bool(bool),
    Whole(u64),
    Negative(i64),
    Fraction(f64),
    Text(Span),
    /// Of an object's member, whose value follows.
    Name(Span),
    /// A list. Its values end before `end`.
    List {
        end: u32,
    },
    /// An object. Its members end before `end`. The sorted names of a large object begin at `sorted`.
    Object {
        end: u32,
        members: u32,
        sorted: u32,
    },
}

/// A value.
#[derive(Debug, Clone, Copy)]
pub enum Claim<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number that is not negative.
    Whole(u64),
    /// A negative whole number.
    Negative(i64),
    /// Any other number.
    Fraction(f64),
    /// A text.
    Text(&'a str),
    /// A list.
    List(List<'a>),
    /// An object.
    Object(Object<'a>),
}

/// A list of values.
#[derive(Debug, Clone, Copy)]
pub struct List<'a> {
    claims: &'a Claims,
    at: usize,
    end: usize,
}

/// Names and values.
#[derive(Debug, Clone, Copy)]
pub struct Object<'a> {
    claims: &'a Claims,
    at: usize,
}

impl Claims {
    /// The claim of this name.
    pub fn get(&self, name: &str) -> Option<Claim<'_>> {
        self.object().get(name)
    }

    /// All claims in the order in which they were written.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Claim<'_>)> {
        self.object().iter()
    }

    /// The claims as an object.
    pub fn object(&self) -> Object<'_> {
        Object {
            claims: self,
            at: 0,
        }
    }

    /// The same as a tree.
    pub fn to_map(&self) -> Map<String, Value> {
        self.object().to_map()
    }

    pub(crate) fn text(&self, span: Span) -> &str {
        &self.texts[span.start as usize..span.end as usize]
    }

    /// The range of this claim's text; valid as long as the claims live.
    pub(crate) fn span(&self, name: &str) -> Option<Span> {
        match self.nodes[self.object().find(name)?] {
            ClaimNode::Text(span) => Some(span),
            _ => None,
        }
    }

    /// About how many bytes it takes beside itself.
    pub(crate) fn memory(&self) -> usize {
        self.texts.capacity()
            + self.nodes.capacity() * size_of::<ClaimNode>()
            + self.sorted.capacity() * size_of::<u32>()
    }

    /// Makes a list of a text delimited by blanks. One of nothing but blanks stays a text.
    pub(crate) fn split(&mut self, name: &str) {
        let Some(at) = self.object().find(name) else {
            return;
        };
        let ClaimNode::Text(span) = self.nodes[at] else {
            return;
        };
        let mut words: SmallVec<[ClaimNode; 8]> = SmallVec::new();
        let mut start = span.start;
        for word in self.text(span).split(' ') {
            let end = start + word.len() as u32;
            if !word.is_empty() {
                words.push(ClaimNode::Text(Span { start, end }));
            }
            start = end + 1;
        }
        if words.is_empty() {
            return;
        }
        let (first, more) = (at as u32 + 1, words.len() as u32);
        for node in &mut self.nodes {
            match node {
                ClaimNode::List { end } | ClaimNode::Object { end, .. } if *end >= first => {
                    *end += more;
                }
                _ => {}
            }
        }
        for name in &mut self.sorted {
            *name += if *name >= first { more } else { 0 };
        }
        self.nodes[at] = ClaimNode::List { end: first + more };
        self.nodes.splice(first as usize..first as usize, words);
    }

    fn value(&self, at: usize) -> Claim<'_> {
        match self.nodes[at] {
            ClaimNode::Null => Claim::Null,
            ClaimNode::Bool(value) => Claim::Bool(value),
            ClaimNode::Whole(number) => Claim::Whole(number),
            ClaimNode::Negative(number) => Claim::Negative(number),
            ClaimNode::Fraction(number) => Claim::Fraction(number),
            ClaimNode::Text(span) | ClaimNode::Name(span) => Claim::Text(self.text(span)),
            ClaimNode::List { end } => Claim::List(List {
                claims: self,
                at: at + 1,
                end: end as usize,
            }),
            ClaimNode::Object { .. } => Claim::Object(Object { claims: self, at }),
        }
    }

    /// The index of the node after a value.
    fn after(&self, at: usize) -> usize {
        match self.nodes[at] {
            ClaimNode::List { end } | ClaimNode::Object { end, .. } => end as usize,
            _ => at + 1,
        }
    }

    fn name(&self, at: usize) -> &str {
        match self.nodes[at] {
            ClaimNode::Name(span) => self.text(span),
            _ => "",
        }
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_map().fmt(f)
    }
}

impl PartialEq for Claims {
    fn eq(&self, other: &Self) -> bool {
        self.to_map() == other.to_map()
    }
}

impl<'a> Claim<'a> {
    /// The text, if it is one.
    pub fn as_str(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The member of this name, if it is an object.
    pub fn get(self, name: &str) -> Option<Claim<'a>> {
        match self {
            Self::Object(object) => object.get(name),
            _ => None,
        }
    }

    /// The same as a tree.
    pub fn to_value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => value.into(),
            Self::Whole(number) => number.into(),
            Self::Negative(number) => number.into(),
            // Parsed numbers are finite.
            Self::Fraction(number) => Number::from_f64(number).map_or(Value::Null, Value::Number),
            Self::Text(text) => text.into(),
            Self::List(list) => list.iter().map(Self::to_value).collect(),
            Self::Object(object) => Value::Object(object.to_map()),
        }
    }
}

impl<'a> List<'a> {
    /// Its values in order.
    pub fn iter(self) -> impl Iterator<Item = Claim<'a>> {
        let mut at = self.at;
        std::iter::from_fn(move || {
            (at < self.end).then(|| {
                let value = self.claims.value(at);
                at = self.claims.after(at);
                value
            })
        })
    }
}

impl<'a> Object<'a> {
    /// The member of this name.
    pub fn get(self, name: &str) -> Option<Claim<'a>> {
        self.find(name).map(|at| self.claims.value(at))
    }

    /// Its members in the order in which they were written.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, Claim<'a>)> {
        let claims = self.claims;
        self.names()
            .map(|at| (claims.name(at), claims.value(at + 1)))
    }

    /// The number of members.
    pub fn len(self) -> usize {
        self.shape().1
    }

    /// Returns true if the object has no members.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The same as a tree.
    pub fn to_map(self) -> Map<String, Value> {
        let members = self.iter();
        members
            .map(|(name, value)| (name.to_owned(), value.to_value()))
            .collect()
    }

    /// The end of the object, its number of members, and the start of a large object's sorted names.
    fn shape(self) -> (usize, usize, usize) {
        match self.claims.nodes.get(self.at) {
            Some(ClaimNode::Object {
                end,
                members,
                sorted,
            }) => (*end as usize, *members as usize, *sorted as usize),
            _ => (self.at + 1, 0, 0),
        }
    }

    /// The nodes of its names.
    fn names(self) -> impl Iterator<Item = usize> {
        let (end, ..) = self.shape();
        let mut at = self.at + 1;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let name = at;
                at = self.claims.after(name + 1);
                name
            })
        })
    }

    /// The node of the value of this name.
    fn find(self, name: &str) -> Option<usize> {
        let (_, members, sorted) = self.shape();
        let named = match members <= SEARCHED_IN_ORDER {
            true => self.names().find(|at| self.claims.name(*at) == name)?,
            false => {
                let names = &self.claims.sorted[sorted..sorted + members];
                let found = names.binary_search_by(|at| self.claims.name(*at as usize).cmp(name));
                names[found.ok()?] as usize
            }
        };
        Some(named + 1)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Claims;

    fn read(value: &Value) -> Claims {
        Claims::read(value.to_string().as_bytes()).expect("an object")
    }

    /// Of so many members, with others around.
    fn many(members: usize) -> Value {
        let inner: serde_json::Map<_, _> = (0..members)
            .map(|at| (format!("{:03}", at * 7 % 1000), json!({ "at": at })))
            .collect();
        json!({ "before": [1, {}, []], "inner": inner, "scope": " a  b ", "after": { "x": [[2], "y"] } })
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let all = json!({
            "": "", "null": null, "yes": true, "no": false, "whole": u64::MAX, "negative": i64::MIN, "fraction": 1.5,
            "text": "a\"b\\c\u{e9}\n", "list": [1, "x", [], {}, [[["deep"]]]], "object": { "a": { "b": [{ "c": -1 }] } },
        });
        assert_eq!(Value::Object(read(&all).to_map()), all);
        for members in [0, 1, 15, 16, 17, 18, 500] {
            let all = many(members);
            assert_eq!(Value::Object(read(&all).to_map()), all, "{members} members");
        }
    }

    #[test]
    fn every_name_is_found_and_no_other() {
        for members in [0, 1, 15, 16, 17, 18, 500] {
            let all = many(members);
            let claims = read(&all);
            let inner = claims.get("inner").expect("it is there");
            for (name, value) in all["inner"].as_object().expect("a test's own value") {
                let found = inner.get(name).expect("it is there");
                assert_eq!(found.to_value(), *value, "{name} of {members}");
            }
            for name in ["", "00", "1000", "at", "inner", "\u{e9}"] {
                assert!(inner.get(name).is_none(), "{name} of {members}");
            }
            assert!(claims.get("x").is_none(), "a name further inside");
            assert!(claims.get("y").is_none(), "a value");
        }
    }

    #[test]
    fn a_text_is_split_into_words_and_all_else_stays() {
        for members in [0, 3, 17, 40] {
            let mut all = many(members);
            for (at, words) in [json!(["a", "b"]), json!(["c"]), json!("  "), json!("")]
                .into_iter()
                .enumerate()
            {
                all["scope"] = [" a  b ", "c", "  ", ""][at].into();
                for place in 0..30 {
                    all[format!("more{place}")] = json!({ "place": [place] });
                    let mut claims = read(&all);
                    claims.split("scope");
                    claims.split("before");
                    claims.split("nowhere");
                    let mut wanted = all.clone();
                    wanted["scope"] = words.clone();
                    assert_eq!(Value::Object(claims.to_map()), wanted);
                    for (name, value) in wanted.as_object().expect("a test's own value") {
                        let found = claims.get(name).expect("it is there");
                        assert_eq!(found.to_value(), *value, "{name}");
                    }
                }
            }
        }
    }
}
