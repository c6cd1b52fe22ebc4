//! Kubernetes' own kinds as written: every field with its location, and nothing checked yet. One `read` per type reads it from the
//! tree. One function per kind in `check` makes the checked type of it, or reports the errors.

pub(crate) mod controller;
pub(crate) mod endpoints;
pub(crate) mod header;
pub(crate) mod kubernetes;
pub(crate) mod pod;
pub(crate) mod probe;

use std::sync::Arc;

use crate::decode::SpannedValue;

/// Text with its place.
pub(crate) type Text = SpannedValue<Arc<str>>;
/// A mapping of text to text.
pub(crate) type TextMap = Vec<(Text, Text)>;
