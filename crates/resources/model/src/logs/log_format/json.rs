//! JSON formats: objects, lists and values, in the order they were written. JSON is YAML, so the one parser reads both.

use std::fmt::Write as _;
use std::sync::Arc;

use super::{FormatError, LinePiece, MAX_FORMAT_BYTES, pieces, shown};
use crate::yaml::{self, SourcePosition, Value, YamlNode};

/// Longest key, in characters as JSON text has them. YAML allows 1,024 (YAML 1.2.2 section 7.4.2), and proxies read a format's text again.
const MAX_KEY: usize = 1000;

/// A JSON value whose texts are formats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonNode {
    /// `{…}`.
    Object(Vec<(Arc<str>, JsonNode)>),
    /// `[…]`.
    List(Vec<JsonNode>),
    /// A text with commands. One that is a single command of a number becomes a number.
    Text {
        /// The pieces.
        pieces: Vec<LinePiece>,
        /// As written.
        source: Arc<str>,
    },
    /// A number, `true`, `false` or `null`, as it stands.
    Verbatim(Arc<str>),
}

pub(super) fn parse(format: &str) -> Result<JsonNode, FormatError> {
    if format.len() > MAX_FORMAT_BYTES {
        let message = format!("the format has more than {MAX_FORMAT_BYTES} bytes");
        return Err(FormatError::new(message, ""));
    }
    let origin = SourcePosition { line: 1, column: 1 };
    match yaml::parse_document(format, origin) {
        Ok(Some(node)) => of_node(&node),
        Ok(None) => Err(no_object()),
        Err(error) => Err(FormatError::new(
            format!("the format is not JSON: {}", error.message),
            error.help,
        )),
    }
}

/// The format that a mapping is.
pub(super) fn of_node(node: &YamlNode) -> Result<JsonNode, FormatError> {
    match &node.value {
        Value::Map(_) => value(node),
        Value::Scalar(_) | Value::List(_) => Err(no_object()),
    }
}

fn no_object() -> FormatError {
    let help = r#"write one such as {"code": "%RESPONSE_CODE%"}"#;
    FormatError::new("a JSON format is an object", help)
}

fn value(node: &YamlNode) -> Result<JsonNode, FormatError> {
    Ok(match &node.value {
        Value::Map(entries) => {
            let field =
                |(name, node): &(yaml::MappingKey, YamlNode)| Ok((key(name)?, value(node)?));
            JsonNode::Object(
                entries
                    .iter()
                    .map(field)
                    .collect::<Result<_, FormatError>>()?,
            )
        }
        Value::List(items) => JsonNode::List(
            items
                .iter()
                .map(value)
                .collect::<Result<_, FormatError>>()?,
        ),
        Value::Scalar(scalar) if scalar.is_null() => JsonNode::Verbatim("null".into()),
        Value::Scalar(scalar) if scalar.other_type().is_some() => {
            let text = scalar.text.to_ascii_lowercase();
            if !is_number(&text) && !matches!(&*text, "true" | "false") {
                let message = format!("`{}` is no value of JSON", shown(&scalar.text));
                return Err(FormatError::new(message, "put text in quotes"));
            }
            JsonNode::Verbatim(text.into())
        }
        Value::Scalar(scalar) => JsonNode::Text {
            pieces: pieces(&scalar.text)?,
            source: scalar.text.clone(),
        },
    })
}

fn key(key: &yaml::MappingKey) -> Result<Arc<str>, FormatError> {
    let mut written = String::new();
    quote(&key.text, &mut written);
    if written.chars().count() > MAX_KEY {
        let message = format!(
            "the key `{}` has more than {MAX_KEY} characters",
            shown(&key.text)
        );
        return Err(FormatError::new(message, ""));
    }
    Ok(key.text.clone())
}

/// A number of JSON (RFC 8259 section 6) that a double can hold: YAML and Rust know more, such as `.5`, `5.` and `007`.
fn is_number(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let whole = whole.strip_prefix('-').unwrap_or(whole);
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let leads_with_zero = whole.len() > 1 && whole.starts_with('0');
    [whole, fraction, exponent].into_iter().all(digits)
        && !leads_with_zero
        && text.parse::<f64>().is_ok_and(f64::is_finite)
}

impl JsonNode {
    /// As JSON text.
    pub(super) fn to_text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Object(fields) => {
                out.push('{');
                for (index, (key, node)) in fields.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    quote(key, out);
                    out.push(':');
                    node.write(out);
                }
                out.push('}');
            }
            Self::List(items) => {
                out.push('[');
                for (index, node) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    node.write(out);
                }
                out.push(']');
            }
            Self::Text { source, .. } => quote(source, out),
            Self::Verbatim(text) => out.push_str(text),
        }
    }
}

/// A JSON string.
fn quote(text: &str, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
}
