//! The tree: scalars, lists and mappings with places.

use std::sync::Arc;

/// Line and column in a file, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// A value with its place.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) value: Value,
}

/// What a node is.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// Text, and whether it was plain (then it may also be a number, a boolean or null).
#[derive(Debug, Clone)]
pub(crate) struct Scalar {
    pub(crate) text: Arc<str>,
    pub(crate) plain: bool,
    /// For literal blocks (`|`): where the first character of the content is, so that YAML inside can be placed.
    pub(crate) content: Option<Place>,
}

/// Key of a mapping.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) place: Place,
    pub(crate) text: Arc<str>,
}

impl Scalar {
    /// Whether it says nothing.
    pub(crate) fn is_null(&self) -> bool {
        self.plain && matches!(&*self.text, "" | "~" | "null" | "Null" | "NULL")
    }

    /// What Kubernetes would take a plain scalar for, when that is not text. YAML 1.1's words for booleans are among them,
    /// since Kubernetes reads YAML 1.1: taking `no` for text here would make a folder mean two things.
    pub(crate) fn other_type(&self) -> Option<&'static str> {
        if !self.plain {
            return None;
        }
        match &*self.text.to_ascii_lowercase() {
            "true" | "false" | "yes" | "no" | "on" | "off" => Some("a boolean"),
            "" | "~" | "null" => Some("null"),
            ".inf" | "-.inf" | "+.inf" | ".nan" => Some("a number"),
            text => is_number(text).then_some("a number"),
        }
    }
}

fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let radix = |prefix: &str, of: u32| {
        digits
            .strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_digit(of)))
    };
    let starts = digits.starts_with(|c: char| c.is_ascii_digit())
        || digits
            .strip_prefix('.')
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    radix("0x", 16) || radix("0o", 8) || radix("0b", 2) || (starts && digits.parse::<f64>().is_ok())
}

impl Node {
    /// Whether it says nothing.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.is_null())
    }

    /// What it is, in people's words.
    pub(crate) fn type_name(&self) -> &'static str {
        match &self.value {
            Value::Scalar(scalar) => scalar.other_type().unwrap_or("text"),
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }

    /// Value of a key, when it is a mapping that has it.
    pub(crate) fn get(&self, name: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries
                .iter()
                .find(|(key, _)| &*key.text == name)
                .map(|(_, node)| node),
            Value::Scalar(_) | Value::List(_) => None,
        }
    }
}
