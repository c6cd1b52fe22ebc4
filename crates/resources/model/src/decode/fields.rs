//! The fields of one mapping. Reading a field marks it as known; `finish` reports all other fields.

use std::sync::Arc;
use std::time::Duration;

use super::report::FieldPath;
use super::{Cursor, IntegerOrText, SpannedValue, Text, TextMap};
use crate::codes;
use crate::text::{clip, suggest};
use crate::yaml::{MappingKey, Value, YamlNode};

/// A mapping that is being read.
pub struct Fields<'a> {
    cursor: Cursor<'a>,
    entries: &'a [(MappingKey, YamlNode)],
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(cursor: Cursor<'a>, entries: &'a [(MappingKey, YamlNode)]) -> Self {
        Self {
            cursor,
            entries,
            known: Vec::new(),
        }
    }

    /// Location of the mapping.
    pub fn at(&self) -> &FieldPath {
        &self.cursor.at
    }

    /// The report that collects its problems.
    pub fn report(&self) -> &'a super::Report {
        self.cursor.report
    }

    /// A field; null counts as not there.
    pub fn get(&mut self, name: &'static str) -> Option<Cursor<'a>> {
        self.known.push(name);
        let protobuf = self.cursor.report.is_protobuf();
        let mut found = self
            .entries
            .iter()
            .filter(|(key, node)| spells(&key.text, name, protobuf) && !node.is_null());
        let (_, node) = found.next()?;
        if let Some((second, _)) = found.next() {
            let at = FieldPath {
                place: second.place,
                path: self.path(&clip(&second.text)),
            };
            let message = format!("`{}` sets `{name}` a second time", clip(&second.text));
            let report = self.cursor.report;
            report.error(codes::DUPLICATE_KEY, &at, message, "keep one");
        }
        Some(Cursor {
            node,
            at: FieldPath {
                place: node.place,
                path: self.path(name),
            },
            report: self.cursor.report,
        })
    }

    /// Returns true if a field exists and is not null. The call does not mark the field as known.
    pub(crate) fn has(&self, name: &str) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|(key, node)| &*key.text == name && !node.is_null())
    }

    /// The text of a field, if its value is text. The call does not mark the field as known.
    pub(crate) fn plain(&self, name: &str) -> Option<&'a str> {
        let (_, node) = self.entries.iter().find(|(key, _)| &*key.text == name)?;
        match &node.value {
            Value::Scalar(scalar) if scalar.other_type().is_none() => Some(&scalar.text),
            _ => None,
        }
    }

    fn path(&self, name: &str) -> Arc<str> {
        match &*self.cursor.at.path {
            "" => name.into(),
            parent => format!("{parent}.{name}").into(),
        }
    }

    /// A field of text.
    pub fn text(&mut self, name: &'static str) -> Option<Text> {
        self.get(name)?.text()
    }

    /// A field that is a whole number.
    pub fn integer(&mut self, name: &'static str) -> Option<SpannedValue<i64>> {
        self.get(name)?.integer()
    }

    /// A field that is a number.
    pub fn number(&mut self, name: &'static str) -> Option<SpannedValue<f64>> {
        self.get(name)?.number()
    }

    /// A field that is a number or text.
    pub fn integer_or_text(&mut self, name: &'static str) -> Option<SpannedValue<IntegerOrText>> {
        self.get(name)?.integer_or_text()
    }

    /// A boolean field.
    pub fn boolean(&mut self, name: &'static str) -> Option<SpannedValue<bool>> {
        self.get(name)?.boolean()
    }

    /// A field that is a list of text.
    pub fn texts(&mut self, name: &'static str) -> Vec<Text> {
        self.get(name)
            .map(|cursor| cursor.texts())
            .unwrap_or_default()
    }

    /// A field that is a mapping of text to text.
    pub fn text_map(&mut self, name: &'static str) -> TextMap {
        self.get(name)
            .map(|cursor| cursor.text_map())
            .unwrap_or_default()
    }

    /// A field that is a list, each element read by `read`.
    pub fn list<T>(
        &mut self,
        name: &'static str,
        read: impl Fn(&Cursor<'a>) -> Option<T>,
    ) -> Vec<T> {
        let items = self
            .get(name)
            .map(|cursor| cursor.items())
            .unwrap_or_default();
        items.iter().filter_map(read).collect()
    }

    /// A field that is a mapping of its own.
    pub fn inner(&mut self, name: &'static str) -> Option<Fields<'a>> {
        self.get(name)?.fields()
    }

    /// The same; without any fields where there is none.
    pub(crate) fn inner_or_empty(&mut self, name: &'static str) -> Fields<'a> {
        let parent = self.cursor.clone();
        let at = FieldPath {
            place: parent.at.place,
            path: self.path(name),
        };
        let empty = || Fields::new(Cursor { at, ..parent }, &[]);
        self.inner(name).unwrap_or_else(empty)
    }

    /// A field that is a mapping, read by `read`. Fields that `read` leaves are errors.
    pub fn mapping<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Fields<'a>) -> T,
    ) -> Option<T> {
        self.get(name)?.mapping(read)
    }

    /// A field that is a list of mappings, each read by `read`. Fields that `read` leaves are errors.
    pub fn mappings<T>(
        &mut self,
        name: &'static str,
        read: impl FnMut(&mut Fields<'a>) -> Option<T>,
    ) -> Vec<T> {
        let list = self.get(name);
        list.map(|list| list.mappings(read)).unwrap_or_default()
    }

    /// A field of text, without its place.
    pub fn value(&mut self, name: &'static str) -> Option<Arc<str>> {
        Some(self.text(name)?.value)
    }

    /// A field that is a list of text, without its places.
    pub fn values(&mut self, name: &'static str) -> Vec<Arc<str>> {
        let texts = self.texts(name).into_iter();
        texts.map(|text| text.value).collect()
    }

    /// A boolean field; a missing one is false.
    pub fn flag(&mut self, name: &'static str) -> bool {
        self.boolean(name).is_some_and(|flag| flag.value)
    }

    /// A boolean field, without its place.
    pub fn optional_flag(&mut self, name: &'static str) -> Option<bool> {
        Some(self.boolean(name)?.value)
    }

    /// A field that is a duration with its unit.
    pub fn duration(&mut self, name: &'static str) -> Option<Duration> {
        let text = self.text(name)?;
        self.report().duration(&text)
    }

    /// A field that is one of the words allowed.
    pub fn one_of<T: Copy>(
        &mut self,
        name: &'static str,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        let text = self.text(name)?;
        self.report().one_of(&text, words)
    }

    /// Fields that are known and mean nothing to us.
    pub fn ignore(&mut self, names: &[&'static str]) {
        self.known.extend(names);
    }

    /// Fields that are known and would mean something: an error when they are there.
    pub fn not_yet(&mut self, names: &[&'static str]) {
        for name in names {
            if let Some(cursor) = self.get(name) {
                let message = format!("`{name}` is not yet supported, and would not be in force");
                self.cursor.report.error(
                    codes::NOT_YET,
                    &cursor.at,
                    message,
                    "remove it, or wait for a later version",
                );
            }
        }
    }

    /// Known fields without effect, each with Voile's behaviour. A warning reports each field that is present. All
    /// other fields of the resource are in force.
    pub fn without_effect(&mut self, fields: &[(&'static str, &str)]) {
        for (name, instead) in fields {
            if let Some(cursor) = self.get(name) {
                self.cursor.report.warning(
                    codes::NOT_OBEYED,
                    &cursor.at,
                    format!("`{name}` is not yet supported and has no effect: {instead}"),
                    "remove it; everything else of this resource is in force",
                );
            }
        }
    }

    /// Returns true if the document is an object of an API server.
    pub(crate) fn is_object(&self) -> bool {
        self.cursor.at.place.line == 0
    }

    /// A known field that no proxy obeys. A warning reports a value other than Voile's behaviour, with the consequence.
    /// All other fields of the resource are in force.
    pub fn not_obeyed(
        &mut self,
        name: &'static str,
        so_anyway: &[&str],
        instead: &str,
        help: &str,
    ) {
        let said = self.get(name).and_then(|cursor| cursor.raw());
        if let Some(said) = said.filter(|said| !so_anyway.contains(&&*said.value)) {
            let message = format!("`{name}: {}` has no effect: {instead}", clip(&said.value));
            let report = self.cursor.report;
            report.warning(codes::NOT_OBEYED, &said.at, message, help);
        }
    }

    /// Reports unread fields.
    pub fn finish(self) {
        #[cfg(test)]
        {
            let read = (self.cursor.at.path.clone(), self.known.clone());
            self.cursor.report.mappings.borrow_mut().push(read);
        }
        let protobuf = self.cursor.report.is_protobuf();
        for (key, _) in self.entries {
            let mut known = self.known.iter();
            if !known.any(|name| spells(&key.text, name, protobuf)) {
                let at = FieldPath {
                    place: key.place,
                    path: self.path(&clip(&key.text)),
                };
                let help = suggest(&key.text, self.known.iter().copied());
                self.cursor.report.error(
                    codes::UNKNOWN_FIELD,
                    &at,
                    format!("unknown field `{}`", clip(&key.text)),
                    help,
                );
            }
        }
    }
}

/// Returns true if a key is the field `name`. Protocol buffers also accept a field's name in their own definition:
/// `jwks_uri` is `jwksUri`.
fn spells(key: &str, name: &str, protobuf: bool) -> bool {
    if !protobuf || key == name || !key.contains('_') {
        return key == name;
    }
    let mut wanted = name.chars();
    let mut words = key.split('_');
    let first = words.next().unwrap_or_default();
    let mut same = !first.is_empty() && first.chars().all(|one| wanted.next() == Some(one));
    for word in words {
        let mut letters = word.chars();
        let begins = letters.next().map(|one| one.to_ascii_uppercase());
        same = same && begins.is_some() && wanted.next() == begins;
        same = same && letters.all(|one| wanted.next() == Some(one));
    }
    same && wanted.next().is_none()
}
