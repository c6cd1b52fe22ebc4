//! JSON objects of strangers: a name written twice is an error (which of the two counts is what attacks are made of), and depth and
//! number of values are bounded.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::limits::{MAX_CLAIM_VALUES, MAX_DEPTH};

/// The object that these bytes are, with nothing after it.
pub(super) fn object(bytes: &[u8]) -> Option<Map<String, Value>> {
    // Looked through once, and not text by text.
    let mut reader = serde_json::Deserializer::from_str(std::str::from_utf8(bytes).ok()?);
    let left = Cell::new(MAX_CLAIM_VALUES);
    let strict = Strict {
        depth: MAX_DEPTH,
        left: &left,
    };
    let value = strict.deserialize(&mut reader).ok()?;
    reader.end().ok()?;
    match value {
        Value::Object(object) => Some(object),
        _ => None,
    }
}

#[derive(Clone, Copy)]
struct Strict<'a> {
    /// How much deeper it may go.
    depth: usize,
    /// How many values may still come.
    left: &'a Cell<usize>,
}

impl Strict<'_> {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        let depth = self.depth.checked_sub(1);
        depth
            .map(|depth| Self { depth, ..self })
            .ok_or_else(|| E::custom("too deep"))
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        let left = self.left.get().checked_sub(1);
        self.left
            .set(left.ok_or_else(|| D::Error::custom("too many values"))?);
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("not a number"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut list = Vec::new();
        while let Some(value) = items.next_element_seed(inner)? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut object = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(inner)?;
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom("a name is written twice"));
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::object;

    #[test]
    fn strictly_one_object_is_read() {
        for good in [
            "{}",
            " {\"a\":1} ",
            r#"{"a":{"b":1},"c":{"b":1}}"#,
            r#"{"a":[1,-1,1.5,true,null,"x"]}"#,
        ] {
            assert!(object(good.as_bytes()).is_some(), "{good}");
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
            assert!(object(bad.as_bytes()).is_none(), "{bad}");
        }
        assert!(object(b"{\"a\":\"\xff\"}").is_none(), "not UTF-8");
    }

    #[test]
    fn bombs_are_refused() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(object(nested(99).as_bytes()).is_some());
        assert!(object(nested(100).as_bytes()).is_none());
        let wide = |count: usize| format!("{{\"a\":[{}]}}", vec!["1"; count].join(","));
        assert!(object(wide(8_190).as_bytes()).is_some());
        assert!(object(wide(8_191).as_bytes()).is_none());
    }
}
