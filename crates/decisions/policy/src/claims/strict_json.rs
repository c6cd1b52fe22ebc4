//! Reading JSON objects of strangers: a name written twice is an error (which of the two counts is what attacks are made of), and
//! depth and number of values are bounded.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{ClaimNode, Claims, SEARCHED_IN_ORDER, Span};
use crate::tokens::{MAX_CLAIM_VALUES, MAX_DEPTH};

/// Nodes that an ordinary token's claims are made of.
const NODES: usize = 40;

impl Claims {
    /// The object that these bytes are, with nothing after it; none if they are not, or go beyond the limits.
    pub fn read(json: &[u8]) -> Option<Self> {
        // Looked through once, and not text by text.
        let text = std::str::from_utf8(json).ok()?;
        let mut reader = serde_json::Deserializer::from_str(text);
        let mut claims = Self {
            texts: String::with_capacity(text.len()),
            nodes: Vec::with_capacity(NODES),
            sorted: Vec::new(),
        };
        claims.add(&mut reader)?;
        reader.end().ok()?;
        Some(claims)
    }

    /// The same of a tree; none beyond the limits.
    pub fn of(object: &Map<String, Value>) -> Option<Self> {
        let mut claims = Self {
            texts: String::new(),
            nodes: Vec::new(),
            sorted: Vec::new(),
        };
        claims.add(object)?;
        Some(claims)
    }

    fn add<'de>(&mut self, reader: impl Deserializer<'de>) -> Option<()> {
        let mut left = MAX_CLAIM_VALUES;
        let strict = Strict {
            claims: self,
            depth: MAX_DEPTH,
            left: &mut left,
        };
        strict.deserialize(reader).ok()?;
        matches!(self.nodes.first(), Some(ClaimNode::Object { .. })).then_some(())
    }

    fn push_text(&mut self, text: &str) -> Span {
        let start = self.texts.len() as u32;
        self.texts.push_str(text);
        let end = self.texts.len() as u32;
        Span { start, end }
    }

    /// Ends an object that began at this node; none if a name is in it twice.
    fn close_object(&mut self, at: usize, members: usize) -> Option<()> {
        let sorted = self.sorted.len();
        self.nodes[at] = ClaimNode::Object {
            end: self.nodes.len() as u32,
            members: members as u32,
            sorted: sorted as u32,
        };
        let object = super::Object { claims: self, at };
        if members <= SEARCHED_IN_ORDER {
            let mut names = object.names();
            let unique = |name| object.find(self.name(name)) == Some(name + 1);
            return names.all(unique).then_some(());
        }
        let mut names: Vec<u32> = object.names().map(|at| at as u32).collect();
        names.sort_unstable_by_key(|at| self.name(*at as usize));
        let mut pairs = names.array_windows();
        if pairs.any(|[one, next]| self.name(*one as usize) == self.name(*next as usize)) {
            return None;
        }
        self.sorted.append(&mut names);
        Some(())
    }
}

struct Strict<'c> {
    claims: &'c mut Claims,
    /// Levels of nesting that are still allowed.
    depth: usize,
    /// Values that are still allowed.
    left: &'c mut usize,
}

impl Strict<'_> {
    fn node<E>(self, node: ClaimNode) -> Result<(), E> {
        self.claims.nodes.push(node);
        Ok(())
    }

    /// Opens a list or an object: its index, and the reader of its contents.
    fn inside<E: Error>(&mut self) -> Result<(usize, Strict<'_>), E> {
        let depth = self.depth.checked_sub(1);
        let depth = depth.ok_or_else(|| E::custom("too deep"))?;
        let at = self.claims.nodes.len();
        self.claims.nodes.push(ClaimNode::Null);
        let inner = Strict {
            claims: self.claims,
            depth,
            left: self.left,
        };
        Ok((at, inner))
    }

    fn again(&mut self) -> Strict<'_> {
        Strict {
            claims: self.claims,
            depth: self.depth,
            left: self.left,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        let left = self.left.checked_sub(1);
        *self.left = left.ok_or_else(|| D::Error::custom("too many values"))?;
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.node(ClaimNode::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.node(ClaimNode::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.node(match u64::try_from(value) {
            Ok(whole) => ClaimNode::Whole(whole),
            Err(_) => ClaimNode::Negative(value),
        })
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.node(ClaimNode::Whole(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        match value.is_finite() {
            true => self.node(ClaimNode::Fraction(value)),
            false => Err(E::custom("not a number")),
        }
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        let span = self.claims.push_text(value);
        self.node(ClaimNode::Text(span))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        let (at, mut inner) = self.inside()?;
        while items.next_element_seed(inner.again())?.is_some() {}
        let end = inner.claims.nodes.len() as u32;
        inner.claims.nodes[at] = ClaimNode::List { end };
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        let (at, mut inner) = self.inside()?;
        let mut members = 0;
        while entries.next_key_seed(Name(inner.claims))?.is_some() {
            entries.next_value_seed(inner.again())?;
            members += 1;
        }
        let closed = inner.claims.close_object(at, members);
        closed.ok_or_else(|| A::Error::custom("a name is written twice"))
    }
}

/// The name of a member.
struct Name<'c>(&'c mut Claims);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<(), E> {
        let span = self.0.push_text(name);
        self.0.nodes.push(ClaimNode::Name(span));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Claims;

    #[test]
    fn strictly_one_object_is_read() {
        for good in [
            "{}",
            " {\"a\":1} ",
            r#"{"a":{"b":1},"c":{"b":1}}"#,
            r#"{"a":[1,-1,1.5,true,null,"x"]}"#,
        ] {
            assert!(Claims::read(good.as_bytes()).is_some(), "{good}");
        }
        for bad in [
            "",
            "[]",
            "1",
            "{}x",
            "{} {}",
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"x":[{"b":1,"b":1}]}"#,
            r#"{"a":1,}"#,
            r#"{"a":1e999}"#,
            r#"{"a":NaN}"#,
            r#"{"a":"\ud800"}"#,
            r#"{'a':1}"#,
        ] {
            assert!(Claims::read(bad.as_bytes()).is_none(), "{bad}");
        }
        assert!(Claims::read(b"{\"a\":\"\xff\"}").is_none(), "not UTF-8");
    }

    #[test]
    fn bombs_are_refused() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(Claims::read(nested(99).as_bytes()).is_some());
        assert!(Claims::read(nested(100).as_bytes()).is_none());
        let wide = |count: usize| format!("{{\"a\":[{}]}}", vec!["1"; count].join(","));
        assert!(Claims::read(wide(8_190).as_bytes()).is_some());
        assert!(Claims::read(wide(8_191).as_bytes()).is_none());
    }
}
