//! A cursor over the node tree that makes each kind's decoder short: it knows the path of the field it stands on,
//! reports wrong types at their place, and remembers which keys were asked for, so that all others are unknown fields.

mod fields;
mod report;

use std::sync::Arc;

pub use fields::Fields;
pub(crate) use report::is_within;
pub use report::{FieldPath, Report, SpannedValue};

use crate::codes;
use crate::text::clip;
use crate::yaml::{ResolvedScalar, Scalar, Value, YamlNode};

/// Text with its place.
pub(crate) type Text = SpannedValue<Arc<str>>;
/// A mapping of text to text.
pub(crate) type TextMap = Vec<(Text, Text)>;

/// A node and the way to it.
#[derive(Clone)]
pub struct Cursor<'a> {
    pub(crate) node: &'a YamlNode,
    pub(crate) at: FieldPath,
    pub(crate) report: &'a Report,
}

/// The form of a node, for readers that accept several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeForm {
    /// Text, a number, a boolean or nothing.
    Scalar,
    /// A list.
    List,
    /// A mapping.
    Map,
}

impl<'a> Cursor<'a> {
    /// Which form it has.
    pub fn form(&self) -> NodeForm {
        match &self.node.value {
            Value::Scalar(_) => NodeForm::Scalar,
            Value::List(_) => NodeForm::List,
            Value::Map(_) => NodeForm::Map,
        }
    }

    /// Its location.
    pub fn at(&self) -> &FieldPath {
        &self.at
    }

    /// The report that collects its problems.
    pub fn report(&self) -> &'a Report {
        self.report
    }

    /// As what was typed, be it text or a number; for values that are read either way (`1 KB`, `1024`).
    pub fn raw(&self) -> Option<SpannedValue<Arc<str>>> {
        match self.scalar() {
            Some(scalar) if !scalar.is_null() => Some(self.spanned(scalar.text.clone())),
            Some(_) | None => self.wrong_type("text or a number", ""),
        }
    }

    fn wrong_type<T>(&self, wanted: &str, help: &str) -> Option<T> {
        let found = self.node.type_name();
        self.report.error(
            codes::WRONG_TYPE,
            &self.at,
            format!("{wanted} is expected here, not {found}"),
            help,
        );
        None
    }

    fn spanned<T>(&self, value: T) -> SpannedValue<T> {
        SpannedValue {
            value,
            at: self.at.clone(),
        }
    }

    fn scalar(&self) -> Option<&'a Scalar> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(scalar),
            Value::List(_) | Value::Map(_) => None,
        }
    }

    /// As a mapping.
    pub fn fields(&self) -> Option<Fields<'a>> {
        match &self.node.value {
            Value::Map(entries) => Some(Fields::new(self.clone(), entries)),
            Value::Scalar(_) | Value::List(_) => self.wrong_type("a mapping", ""),
        }
    }

    /// As a mapping that is read by `read`. Fields that `read` leaves are errors.
    pub fn mapping<T>(&self, read: impl FnOnce(&mut Fields<'a>) -> T) -> Option<T> {
        let mut fields = self.fields()?;
        let value = read(&mut fields);
        fields.finish();
        Some(value)
    }

    /// As a list of mappings, each read by `read`.
    pub fn mappings<T>(&self, mut read: impl FnMut(&mut Fields<'a>) -> Option<T>) -> Vec<T> {
        let items = self.items().into_iter();
        let read = |item: Cursor<'a>| item.mapping(&mut read).flatten();
        items.filter_map(read).collect()
    }

    /// As a list; elements that are null are errors.
    pub fn items(&self) -> Vec<Cursor<'a>> {
        let Value::List(items) = &self.node.value else {
            let help = if matches!(self.node.value, Value::Map(_)) {
                "begin each element with `- `"
            } else {
                ""
            };
            return self
                .wrong_type::<Vec<_>>("a list", help)
                .unwrap_or_default();
        };
        items
            .iter()
            .enumerate()
            .map(|(index, node)| self.element(index, node))
            .collect()
    }

    fn element(&self, index: usize, node: &'a YamlNode) -> Cursor<'a> {
        let path: Arc<str> = format!("{}[{index}]", self.at.path).into();
        Cursor {
            node,
            at: FieldPath {
                place: node.place,
                path,
            },
            report: self.report,
        }
    }

    /// As text. Plain scalars that Kubernetes would take for something else need quotes.
    pub fn text(&self) -> Option<SpannedValue<Arc<str>>> {
        match self.scalar() {
            Some(scalar) if scalar.other_type().is_none() => {
                Some(self.spanned(scalar.text.clone()))
            }
            Some(scalar) if !scalar.is_null() => self.wrong_type(
                "text",
                &format!("put it in quotes: \"{}\"", clip(&scalar.text)),
            ),
            Some(_) | None => self.wrong_type("text", ""),
        }
    }

    /// As a whole number.
    pub fn integer(&self) -> Option<SpannedValue<i64>> {
        match self.resolved() {
            ResolvedScalar::Integer(number) => Some(self.spanned(number)),
            ResolvedScalar::Float(number) if is_whole(number) => Some(self.spanned(number as i64)),
            ResolvedScalar::Text if self.quotes(|text| text.parse::<i64>().is_ok()) => {
                self.wrong_type("a number", "remove the quotes")
            }
            _ => self.wrong_type("a whole number", ""),
        }
    }

    /// As a number, whole or not.
    pub fn number(&self) -> Option<SpannedValue<f64>> {
        match self.resolved() {
            ResolvedScalar::Integer(number) => Some(self.spanned(number as f64)),
            ResolvedScalar::Float(number) if number.is_finite() => Some(self.spanned(number)),
            ResolvedScalar::Text if self.quotes(|text| text.parse::<f64>().is_ok()) => {
                self.wrong_type("a number", "remove the quotes")
            }
            _ => self.wrong_type("a number", ""),
        }
    }

    /// As a boolean.
    pub fn boolean(&self) -> Option<SpannedValue<bool>> {
        match self.resolved() {
            ResolvedScalar::Boolean(word) => Some(self.spanned(word)),
            ResolvedScalar::Text if self.quotes(|text| matches!(text, "true" | "false")) => {
                self.wrong_type("true or false", "remove the quotes")
            }
            _ if self.scalar().is_some_and(|scalar| scalar.plain) => {
                self.wrong_type("true or false", "write true or false")
            }
            _ => self.wrong_type("true or false", ""),
        }
    }

    /// A list or a mapping counts as text here, so that the reader of a scalar finds a list or a mapping and reports
    /// it.
    fn resolved(&self) -> ResolvedScalar {
        self.scalar().map_or(ResolvedScalar::Text, Scalar::resolve)
    }

    /// Returns true if it is quoted text that satisfies `is`.
    fn quotes(&self, is: impl Fn(&str) -> bool) -> bool {
        self.scalar()
            .is_some_and(|scalar| !scalar.plain && is(&scalar.text))
    }

    /// As a number or text (Kubernetes' IntOrString).
    pub fn integer_or_text(&self) -> Option<SpannedValue<IntegerOrText>> {
        if let ResolvedScalar::Integer(number) = self.resolved() {
            return Some(self.spanned(IntegerOrText::Integer(number)));
        }
        self.text()
            .map(|text| self.spanned(IntegerOrText::Text(text.value)))
    }

    /// As a mapping of text to text.
    pub fn text_map(&self) -> TextMap {
        self.entries()
            .into_iter()
            .filter_map(|(key, value)| {
                // Kubernetes' decoder leaves the text of a null empty; that of protocol buffers refuses it.
                let empty = value.node.is_null() && !self.report.is_protobuf();
                let value = match empty {
                    true => SpannedValue {
                        value: "".into(),
                        at: value.at,
                    },
                    false => value.text()?,
                };
                Some((key, value))
            })
            .collect()
    }

    /// As a mapping whose keys are not fields.
    pub fn entries(&self) -> Vec<(SpannedValue<Arc<str>>, Cursor<'a>)> {
        let Value::Map(entries) = &self.node.value else {
            return self
                .wrong_type::<Vec<_>>("a mapping", "")
                .unwrap_or_default();
        };
        let entry = |(key, node): &'a (crate::yaml::MappingKey, YamlNode)| {
            let path: Arc<str> = format!("{}[{}]", self.at.path, clip(&key.text)).into();
            let name = SpannedValue {
                value: key.text.clone(),
                at: FieldPath {
                    place: key.place,
                    path: path.clone(),
                },
            };
            (
                name,
                Cursor {
                    node,
                    at: FieldPath {
                        place: node.place,
                        path,
                    },
                    report: self.report,
                },
            )
        };
        entries.iter().map(entry).collect()
    }

    /// As a list of text.
    pub fn texts(&self) -> Vec<SpannedValue<Arc<str>>> {
        self.items().iter().filter_map(Cursor::text).collect()
    }
}

/// A number without a fraction that is exactly itself as an integer.
fn is_whole(number: f64) -> bool {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53: beyond it not every integer is a double
    number.fract() == 0.0 && number.abs() <= EXACT
}

/// Kubernetes' IntOrString.
#[derive(Debug, Clone, PartialEq)]
pub enum IntegerOrText {
    /// A plain whole number.
    Integer(i64),
    /// Anything else.
    Text(Arc<str>),
}
