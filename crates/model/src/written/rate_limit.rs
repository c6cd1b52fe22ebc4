//! `voile.dev`: RateLimit.

use super::{Selector, Text};
use crate::decode::{At, Cursor, Fields, Spanned};

/// `spec` of a RateLimit.
#[derive(Debug)]
pub(crate) struct RateLimit<M> {
    pub(crate) at: At,
    pub(crate) selector: Option<Selector>,
    pub(crate) rules: Vec<Rule<M>>,
}

/// One of `rules`; `M` is a match as VirtualServices have it.
#[derive(Debug)]
pub(crate) struct Rule<M> {
    pub(crate) at: At,
    pub(crate) name: Option<Text>,
    pub(crate) matches: Vec<M>,
    /// None where the field is missing.
    pub(crate) limits: Option<Vec<Limit>>,
}

/// One of `rules[].limits`.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) at: At,
    pub(crate) requests: Option<Spanned<i64>>,
    pub(crate) per: Option<Text>,
    pub(crate) burst: Option<Spanned<i64>>,
    pub(crate) by: By,
    pub(crate) keys: Option<Spanned<i64>>,
}

/// `by`.
#[derive(Debug, Default)]
pub(crate) struct By {
    pub(crate) identity: Option<Spanned<bool>>,
    pub(crate) address: Option<Spanned<bool>>,
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
            selector: Selector::read(&mut spec, "selector", "matchLabels"),
            rules: spec.list("rules", |cursor| Rule::read(cursor, &matching)),
        };
        spec.not_yet(&["targetRefs"]);
        spec.finish();
        Some(read)
    }
}

impl<M> Rule<M> {
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
            by: fields.inner("by").map(By::read).unwrap_or_default(),
            keys: fields.integer("keys"),
        };
        fields.finish();
        Some(limit)
    }
}

impl By {
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
