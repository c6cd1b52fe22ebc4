//! `voile.dev`: RateLimit.

use super::Text;
use super::authorization::WrittenTarget;
use super::config::provider::WrittenProviderService;
use crate::decode::{Cursor, FieldPath, Fields, SpannedValue};

/// `spec` of a RateLimit.
#[derive(Debug)]
pub(crate) struct RateLimit<M> {
    pub(crate) at: FieldPath,
    pub(crate) target: WrittenTarget,
    pub(crate) global: Option<Global>,
    pub(crate) rules: Vec<WrittenLimitRule<M>>,
}

/// `global`.
#[derive(Debug)]
pub(crate) struct Global {
    pub(crate) at: FieldPath,
    pub(crate) service: WrittenProviderService,
    pub(crate) domain: Option<Text>,
    pub(crate) timeout: Option<Text>,
    pub(crate) fail_open: Option<SpannedValue<bool>>,
}

/// One of `rules`; `M` is a match as VirtualServices have it.
#[derive(Debug)]
pub(crate) struct WrittenLimitRule<M> {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
    pub(crate) matches: Vec<M>,
    /// None where the field is missing.
    pub(crate) limits: Option<Vec<Limit>>,
    pub(crate) descriptors: Vec<Descriptor>,
    pub(crate) hits: Option<SpannedValue<i64>>,
}

/// One of `rules[].limits`.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) at: FieldPath,
    pub(crate) requests: Option<SpannedValue<i64>>,
    pub(crate) per: Option<Text>,
    pub(crate) burst: Option<SpannedValue<i64>>,
    pub(crate) by: WrittenBy,
    pub(crate) keys: Option<SpannedValue<i64>>,
}

/// One of `rules[].descriptors`.
#[derive(Debug)]
pub(crate) struct Descriptor {
    pub(crate) at: FieldPath,
    pub(crate) entries: Vec<WrittenLimitEntry>,
}

/// One of its `entries`.
#[derive(Debug)]
pub(crate) struct WrittenLimitEntry {
    pub(crate) at: FieldPath,
    pub(crate) key: Option<Text>,
    pub(crate) value: Option<Text>,
    pub(crate) header: Option<Text>,
    /// `identity`, `clientAddress`, `method`, `path`, in this order.
    pub(crate) flags: [Option<SpannedValue<bool>>; 4],
}

/// `by`.
#[derive(Debug, Default)]
pub(crate) struct WrittenBy {
    pub(crate) identity: Option<SpannedValue<bool>>,
    pub(crate) address: Option<SpannedValue<bool>>,
    pub(crate) headers: Vec<Text>,
}

impl<M> RateLimit<M> {
    /// Reads `spec`, its matches by `matching`.
    pub(crate) fn read(
        document: &mut Fields<'_>,
        matching: impl Fn(&Cursor<'_>) -> Option<M>,
    ) -> Option<Self> {
        document.ignore(&["status"]);
        let mut spec = document.inner("spec")?;
        let read = Self {
            at: spec.at().clone(),
            target: WrittenTarget::read(&mut spec),
            global: spec.inner("global").map(Global::read),
            rules: spec.list("rules", |cursor| WrittenLimitRule::read(cursor, &matching)),
        };
        spec.finish();
        Some(read)
    }
}

impl<M> WrittenLimitRule<M> {
    fn read(cursor: &Cursor<'_>, matching: impl Fn(&Cursor<'_>) -> Option<M>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let limits = fields.get("limits").map(|cursor| {
            let items = cursor.items();
            items.iter().filter_map(Limit::read).collect()
        });
        let rule = Self {
            at: cursor.at().clone(),
            name: fields.text("name"),
            matches: fields.list("match", matching),
            limits,
            descriptors: fields.list("descriptors", Descriptor::read),
            hits: fields.integer("hits"),
        };
        fields.finish();
        Some(rule)
    }
}

impl Limit {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let limit = Self {
            at: cursor.at().clone(),
            requests: fields.integer("requests"),
            per: fields.text("per"),
            burst: fields.integer("burst"),
            by: fields.inner("by").map(WrittenBy::read).unwrap_or_default(),
            keys: fields.integer("keys"),
        };
        fields.finish();
        Some(limit)
    }
}

impl Global {
    fn read(mut fields: Fields<'_>) -> Self {
        let global = Self {
            at: fields.at().clone(),
            service: WrittenProviderService::read(&mut fields),
            domain: fields.text("domain"),
            timeout: fields.text("timeout"),
            fail_open: fields.boolean("failOpen"),
        };
        fields.finish();
        global
    }
}

impl Descriptor {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let descriptor = Self {
            at: cursor.at().clone(),
            entries: fields.list("entries", WrittenLimitEntry::read),
        };
        fields.finish();
        Some(descriptor)
    }
}

impl WrittenLimitEntry {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let entry = Self {
            at: cursor.at().clone(),
            key: fields.text("key"),
            value: fields.text("value"),
            header: fields.text("header"),
            flags: ["identity", "clientAddress", "method", "path"].map(|name| fields.boolean(name)),
        };
        fields.finish();
        Some(entry)
    }
}

impl WrittenBy {
    fn read(mut fields: Fields<'_>) -> Self {
        let by = Self {
            identity: fields.boolean("identity"),
            address: fields.boolean("clientAddress"),
            headers: fields.texts("headers"),
        };
        fields.finish();
        by
    }
}
