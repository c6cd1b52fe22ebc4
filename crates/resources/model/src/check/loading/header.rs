//! Reads the common fields of every resource: apiVersion, kind and metadata. They are checked once the kind is known.

use std::sync::Arc;

use crate::decode::{FieldPath, Fields, Text, TextMap};

/// apiVersion, kind, metadata.
#[derive(Debug)]
pub(in crate::check) struct Header {
    pub(in crate::check) at: FieldPath,
    pub(in crate::check) api_version: Option<Text>,
    pub(in crate::check) kind: Option<Text>,
    pub(in crate::check) metadata: Metadata,
}

/// `metadata`, also of Pod templates.
#[derive(Debug, Default)]
pub(in crate::check) struct Metadata {
    pub(in crate::check) at: Option<FieldPath>,
    pub(in crate::check) name: Option<Text>,
    pub(in crate::check) namespace: Option<Text>,
    /// A namespace may be meant that cannot be read.
    pub(in crate::check) namespace_unread: bool,
    pub(in crate::check) labels: TextMap,
    pub(in crate::check) annotations: TextMap,
    pub(in crate::check) created: Option<Text>,
    /// Kind and name of each of `ownerReferences` that has both.
    pub(in crate::check) owners: Vec<(Arc<str>, Arc<str>)>,
    /// An API server gave it a `uid`: it exists in a cluster.
    pub(in crate::check) live: bool,
    /// It has a `deletionTimestamp`: it is being removed.
    pub(in crate::check) removed: bool,
}

impl Header {
    /// Reads it from the top of a document.
    pub(in crate::check) fn read(fields: &mut Fields<'_>) -> Self {
        Self {
            at: fields.at().clone(),
            api_version: fields.text("apiVersion"),
            kind: fields.text("kind"),
            metadata: Metadata::read(fields),
        }
    }
}

impl Metadata {
    /// Reads `metadata` of a mapping.
    pub(in crate::check) fn read(parent: &mut Fields<'_>) -> Self {
        let Some(cursor) = parent.get("metadata") else {
            return Self::default();
        };
        let Some(mut fields) = cursor.fields() else {
            return Self {
                namespace_unread: true,
                ..Self::default()
            };
        };
        let namespace = fields.text("namespace");
        let metadata = Self {
            at: Some(fields.at().clone()),
            name: fields.text("name"),
            namespace_unread: namespace.is_none() && fields.get("namespace").is_some(),
            namespace,
            labels: fields.text_map("labels"),
            annotations: fields.text_map("annotations"),
            created: fields.text("creationTimestamp"),
            live: fields.text("uid").is_some(),
            removed: fields.text("deletionTimestamp").is_some(),
            owners: fields.mappings("ownerReferences", |owner| {
                let (kind, name) = (owner.value("kind"), owner.value("name"));
                // One owner of a kind that we know is the controller in practice.
                owner.boolean("controller");
                owner.ignore(&["apiVersion", "uid", "blockOwnerDeletion"]);
                Some((kind?, name?))
            }),
        };
        fields.ignore(&[
            "resourceVersion",
            "generation",
            "generateName",
            "selfLink",
            "managedFields",
            "finalizers",
            "deletionGracePeriodSeconds",
        ]);
        fields.finish();
        metadata
    }
}
