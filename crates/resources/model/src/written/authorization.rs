//! `security.istio.io`: AuthorizationPolicy.

use super::{Selector, Text};
use crate::decode::{Cursor, FieldPath, Fields, NodeForm};

/// `spec` of an AuthorizationPolicy.
#[derive(Debug, Default)]
pub(crate) struct AuthorizationPolicy {
    pub(crate) at: Option<FieldPath>,
    pub(crate) target: WrittenTarget,
    pub(crate) action: Option<Text>,
    pub(crate) provider: Option<Provider>,
    pub(crate) rules: Option<Vec<WrittenRule>>,
}

/// The target of a policy.
#[derive(Debug, Default)]
pub(crate) struct WrittenTarget {
    pub(crate) selector: Option<Selector>,
    /// `targetRef` and `targetRefs`, and whether either is there.
    pub(crate) references: Option<Vec<Reference>>,
}

impl WrittenTarget {
    /// Reads `selector`, `targetRef` and `targetRefs` of a `spec`.
    pub(crate) fn read(spec: &mut Fields<'_>) -> Self {
        let mut references = None;
        if let Some(one) = spec.get("targetRef") {
            references = Some(Reference::read(&one).into_iter().collect());
        }
        if let Some(list) = spec.get("targetRefs") {
            let read = list.items();
            references
                .get_or_insert_with(Vec::new)
                .extend(read.iter().filter_map(Reference::read));
        }
        Self {
            selector: Selector::read(spec, "selector", "matchLabels"),
            references,
        }
    }
}

/// One of `targetRefs`.
#[derive(Debug)]
pub(crate) struct Reference {
    pub(crate) at: FieldPath,
    pub(crate) group: Option<Text>,
    pub(crate) kind: Option<Text>,
    pub(crate) name: Option<Text>,
    pub(crate) namespace: Option<Text>,
}

/// `provider`.
#[derive(Debug)]
pub(crate) struct Provider {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
}

/// One of `rules`.
#[derive(Debug)]
pub(crate) struct WrittenRule {
    pub(crate) at: FieldPath,
    pub(crate) from: OptionalPart<From>,
    pub(crate) to: OptionalPart<WrittenTo>,
    pub(crate) when: Vec<WrittenWhen>,
}

/// `from` or `to`: a missing list differs from an empty one.
#[derive(Debug)]
pub(crate) struct OptionalPart<T> {
    /// Its location, if it is an empty list.
    pub(crate) at: Option<FieldPath>,
    /// None stands for an entry that cannot be read.
    pub(crate) entries: Vec<Option<T>>,
}

/// Both lists of a field.
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) values: Vec<Text>,
    pub(crate) not_values: Vec<Text>,
    /// True if one of `values` is no text.
    pub(crate) unread: bool,
}

impl Values {
    fn read(fields: &mut Fields<'_>, name: &'static str, not_name: &'static str) -> Self {
        let values = fields.list(name, |cursor| Some(cursor.text()));
        Self {
            unread: values.iter().any(Option::is_none),
            values: values.into_iter().flatten().collect(),
            not_values: fields.texts(not_name),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty() && self.not_values.is_empty()
    }
}

/// `from[].source`.
#[derive(Debug)]
pub(crate) struct From {
    pub(crate) at: FieldPath,
    pub(crate) principals: Values,
    pub(crate) request_principals: Values,
    pub(crate) namespaces: Values,
    pub(crate) service_accounts: Values,
    pub(crate) trust_domains: Values,
    pub(crate) ip_blocks: Values,
    pub(crate) remote_ip_blocks: Values,
}

/// `to[].operation`.
#[derive(Debug)]
pub(crate) struct WrittenTo {
    pub(crate) at: FieldPath,
    pub(crate) hosts: Values,
    pub(crate) ports: Values,
    pub(crate) methods: Values,
    pub(crate) paths: Values,
}

/// One of `when`.
#[derive(Debug)]
pub(crate) struct WrittenWhen {
    pub(crate) at: FieldPath,
    pub(crate) key: Option<Text>,
    pub(crate) values: Values,
}

impl AuthorizationPolicy {
    /// Reads `spec`.
    pub(crate) fn read(document: &mut Fields<'_>) -> Self {
        document.ignore(&["status"]);
        let Some(mut spec) = document.inner("spec") else {
            return Self::default();
        };
        let policy = Self {
            at: Some(spec.at().clone()),
            target: WrittenTarget::read(&mut spec),
            action: spec.text("action"),
            provider: spec.inner("provider").map(|mut provider| {
                let read = Provider {
                    at: provider.at().clone(),
                    name: provider.text("name"),
                };
                provider.finish();
                read
            }),
            rules: spec.get("rules").map(|rules| {
                let read = rules.items();
                read.iter().map(WrittenRule::read).collect()
            }),
        };
        spec.finish();
        policy
    }
}

impl Reference {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let read = Self {
            at: cursor.at().clone(),
            group: fields.text("group"),
            kind: fields.text("kind"),
            name: fields.text("name"),
            namespace: fields.text("namespace"),
        };
        fields.finish();
        Some(read)
    }
}

impl WrittenRule {
    fn read(cursor: &Cursor<'_>) -> Self {
        let at = cursor.at().clone();
        let Some(mut fields) = cursor.fields() else {
            return Self {
                at,
                from: OptionalPart::missing(),
                to: OptionalPart::missing(),
                when: Vec::new(),
            };
        };
        let read = Self {
            at,
            from: OptionalPart::read(&mut fields, "from", From::read),
            to: OptionalPart::read(&mut fields, "to", WrittenTo::read),
            when: fields.list("when", WrittenWhen::read),
        };
        fields.finish();
        read
    }
}

impl<T> OptionalPart<T> {
    fn missing() -> Self {
        Self {
            at: None,
            entries: Vec::new(),
        }
    }

    fn read<'a>(
        fields: &mut Fields<'a>,
        name: &'static str,
        read: impl Fn(&Cursor<'a>) -> Option<T>,
    ) -> Self {
        let Some(cursor) = fields.get(name) else {
            return Self::missing();
        };
        let items = cursor.items();
        Self {
            at: (cursor.form() == NodeForm::List && items.is_empty()).then(|| cursor.at().clone()),
            entries: items.iter().map(read).collect(),
        }
    }
}

impl From {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let report = cursor.report();
        let source = report.required(fields.inner("source"), cursor.at(), "source");
        fields.finish();
        let mut source = source?;
        let read = Self {
            at: source.at().clone(),
            principals: Values::read(&mut source, "principals", "notPrincipals"),
            request_principals: Values::read(
                &mut source,
                "requestPrincipals",
                "notRequestPrincipals",
            ),
            namespaces: Values::read(&mut source, "namespaces", "notNamespaces"),
            service_accounts: Values::read(&mut source, "serviceAccounts", "notServiceAccounts"),
            trust_domains: Values::read(&mut source, "trustDomains", "notTrustDomains"),
            ip_blocks: Values::read(&mut source, "ipBlocks", "notIpBlocks"),
            remote_ip_blocks: Values::read(&mut source, "remoteIpBlocks", "notRemoteIpBlocks"),
        };
        source.finish();
        Some(read)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let all = [
            &self.principals,
            &self.request_principals,
            &self.namespaces,
            &self.service_accounts,
            &self.trust_domains,
            &self.ip_blocks,
            &self.remote_ip_blocks,
        ];
        all.into_iter().all(Values::is_empty)
    }
}

impl WrittenTo {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let report = cursor.report();
        let operation = report.required(fields.inner("operation"), cursor.at(), "operation");
        fields.finish();
        let mut operation = operation?;
        let read = Self {
            at: operation.at().clone(),
            hosts: Values::read(&mut operation, "hosts", "notHosts"),
            ports: Values::read(&mut operation, "ports", "notPorts"),
            methods: Values::read(&mut operation, "methods", "notMethods"),
            paths: Values::read(&mut operation, "paths", "notPaths"),
        };
        operation.finish();
        Some(read)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let all = [&self.hosts, &self.ports, &self.methods, &self.paths];
        all.into_iter().all(Values::is_empty)
    }
}

impl WrittenWhen {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let read = Self {
            at: cursor.at().clone(),
            key: fields.text("key"),
            values: Values::read(&mut fields, "values", "notValues"),
        };
        fields.finish();
        Some(read)
    }
}
