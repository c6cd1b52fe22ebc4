//! Resources as written: every field with its location, and nothing checked yet. One `read` per type reads it from the
//! tree. One function per kind in `check` makes the checked type of it, or reports the errors.

pub(crate) mod controller;
pub(crate) mod endpoints;
pub(crate) mod header;
pub(crate) mod kubernetes;
pub(crate) mod networking;
pub(crate) mod pod;
pub(crate) mod probe;

use std::sync::Arc;

use crate::decode::{Fields, SpannedValue};

/// Text with its place.
pub(crate) type Text = SpannedValue<Arc<str>>;
/// A mapping of text to text.
pub(crate) type TextMap = Vec<(Text, Text)>;

/// Istio's `selector.matchLabels` or `workloadSelector.labels`.
#[derive(Debug)]
pub(crate) struct Selector {
    pub(crate) labels: TextMap,
}

impl Selector {
    /// Reads `field: {labels_field: {…}}`; there but empty is not the same as not there.
    pub(crate) fn read(
        fields: &mut Fields<'_>,
        field: &'static str,
        labels_field: &'static str,
    ) -> Option<Self> {
        let mut selector = fields.inner(field)?;
        let labels = selector.text_map(labels_field);
        selector.finish();
        Some(Self { labels })
    }
}
