//! The tree: scalars, lists and mappings with places.

use std::sync::Arc;

/// Line and column in a file, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SourcePosition {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// A value with its place.
#[derive(Debug, Clone)]
pub(crate) struct YamlNode {
    pub(crate) place: SourcePosition,
    pub(crate) value: Value,
}

/// The value of a node.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<YamlNode>),
    Map(Vec<(MappingKey, YamlNode)>),
}

/// Text, and whether it was plain (then it may also be a number, a boolean or null).
#[derive(Debug, Clone)]
pub(crate) struct Scalar {
    pub(crate) text: Arc<str>,
    pub(crate) plain: bool,
    /// For literal blocks (`|`): where the first character of the content is, so that YAML inside can be placed.
    pub(crate) content: Option<SourcePosition>,
}

/// Key of a mapping.
#[derive(Debug, Clone)]
pub(crate) struct MappingKey {
    pub(crate) place: SourcePosition,
    pub(crate) text: Arc<str>,
}

/// A scalar as Kubernetes resolves it. Its decoder reads plain scalars by YAML 1.1 as Go's yaml.v2 does: `yes` and `y`
/// are booleans, `010` is eight, `1_000` is a thousand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ResolvedScalar {
    Text,
    Null,
    Boolean(bool),
    Integer(i64),
    /// Any other number.
    Float(f64),
}

impl Scalar {
    /// Returns true if the scalar is null.
    pub(crate) fn is_null(&self) -> bool {
        self.resolve() == ResolvedScalar::Null
    }

    /// See `Resolved`.
    pub(crate) fn resolve(&self) -> ResolvedScalar {
        if !self.plain {
            return ResolvedScalar::Text;
        }
        match &*self.text {
            "" | "~" | "null" | "Null" | "NULL" => ResolvedScalar::Null,
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
                ResolvedScalar::Boolean(true)
            }
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off"
            | "OFF" => ResolvedScalar::Boolean(false),
            ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
                ResolvedScalar::Float(f64::INFINITY)
            }
            "-.inf" | "-.Inf" | "-.INF" => ResolvedScalar::Float(f64::NEG_INFINITY),
            ".nan" | ".NaN" | ".NAN" => ResolvedScalar::Float(f64::NAN),
            text => number(text),
        }
    }

    /// Its type in people's words, if it is not text. Taking `no` for text here would give a folder two meanings.
    pub(crate) fn other_type(&self) -> Option<&'static str> {
        match self.resolve() {
            ResolvedScalar::Text => None,
            ResolvedScalar::Null => Some("null"),
            ResolvedScalar::Boolean(_) => Some("a boolean"),
            ResolvedScalar::Integer(_) | ResolvedScalar::Float(_) => Some("a number"),
        }
    }
}

/// A number, or text.
fn number(text: &str) -> ResolvedScalar {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return ResolvedScalar::Text;
    }
    let text = text.replace('_', "");
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(&text)),
    };
    let radix = |prefixes: [&str; 2], base: u32| {
        let rest = prefixes.iter().find_map(|one| digits.strip_prefix(one))?;
        let is_digits = !rest.is_empty() && rest.chars().all(|c| c.is_digit(base));
        is_digits.then(|| i64::from_str_radix(&format!("{sign}{rest}"), base).ok())?
    };
    let octal = || {
        let leads = digits.len() > 1 && digits.starts_with('0');
        let is_octal = leads && digits.bytes().all(|b| matches!(b, b'0'..=b'7'));
        is_octal.then(|| i64::from_str_radix(&format!("{sign}{digits}"), 8).ok())?
    };
    let decimal = || {
        let is_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let leads = digits.len() > 1 && digits.starts_with('0');
        (is_digits && !leads).then(|| format!("{sign}{digits}").parse().ok())?
    };
    let integer = radix(["0x", "0X"], 16)
        .or_else(|| radix(["0o", "0O"], 8))
        .or_else(|| radix(["0b", "0B"], 2))
        .or_else(octal)
        .or_else(decimal);
    match integer {
        Some(number) => ResolvedScalar::Integer(number),
        None if is_float(digits) => match format!("{sign}{digits}").parse::<f64>() {
            Ok(number) if number.is_finite() => ResolvedScalar::Float(number),
            Ok(_) | Err(_) => ResolvedScalar::Text,
        },
        None => ResolvedScalar::Text,
    }
}

/// Digits with at most one point, then perhaps an exponent.
fn is_float(digits: &str) -> bool {
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (digits, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let exponent = exponent.is_none_or(|text| {
        let text = text.strip_prefix(['+', '-']).unwrap_or(text);
        !text.is_empty() && all_digits(text)
    });
    let some = !whole.is_empty() || !fraction.is_empty();
    some && all_digits(whole) && all_digits(fraction) && exponent
}

impl YamlNode {
    /// Returns true if the node is null.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.is_null())
    }

    /// Its type, in people's words.
    pub(crate) fn type_name(&self) -> &'static str {
        match &self.value {
            Value::Scalar(scalar) => scalar.other_type().unwrap_or("text"),
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }

    /// Value of a key, when it is a mapping that has it.
    pub(crate) fn get(&self, name: &str) -> Option<&YamlNode> {
        match &self.value {
            Value::Map(entries) => entries
                .iter()
                .find(|(key, _)| &*key.text == name)
                .map(|(_, node)| node),
            Value::Scalar(_) | Value::List(_) => None,
        }
    }
}
