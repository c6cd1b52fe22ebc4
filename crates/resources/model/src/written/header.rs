//! Parses the common fields of every resource: apiVersion, kind and metadata.

use super::{Text, TextMap};
use crate::decode::{FieldPath, Fields};

/// apiVersion, kind, metadata.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) at: FieldPath,
    pub(crate) api_version: Option<Text>,
    pub(crate) kind: Option<Text>,
    pub(crate) metadata: Metadata,
}

/// `metadata`, also of Pod templates.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    pub(crate) at: Option<FieldPath>,
    pub(crate) name: Option<Text>,
    pub(crate) namespace: Option<Text>,
    /// A namespace may be meant that cannot be read.
    pub(crate) namespace_unread: bool,
    pub(crate) labels: TextMap,
    pub(crate) annotations: TextMap,
    pub(crate) created: Option<Text>,
    pub(crate) owners: Vec<Owner>,
    /// An API server gave it a `uid`: it exists in a cluster.
    pub(crate) live: bool,
    /// It has a `deletionTimestamp`: it is being removed.
    pub(crate) removed: bool,
}

/// One of `ownerReferences`.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) kind: Option<Text>,
    pub(crate) name: Option<Text>,
    pub(crate) controller: bool,
}

impl Header {
    /// Reads it from the top of a document.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Self {
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
    pub(crate) fn read(parent: &mut Fields<'_>) -> Self {
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
            owners: fields.list("ownerReferences", |cursor| {
                let mut owner = cursor.fields()?;
                let read = Owner {
                    kind: owner.text("kind"),
                    name: owner.text("name"),
                    controller: owner.boolean("controller").is_some_and(|c| c.value),
                };
                owner.ignore(&["apiVersion", "uid", "blockOwnerDeletion"]);
                owner.finish();
                Some(read)
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
