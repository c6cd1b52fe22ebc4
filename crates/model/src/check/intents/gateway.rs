//! Gateway API's Gateways and what attaches to them. Only what points at something is read: its schema is the cluster's to check.

use std::sync::Arc;

use super::super::values::{self, Meta};
use crate::decode::{Cursor, Fields, Report, Spanned};
use crate::mesh::intent::{
    Admission, AttachedRoute, Backend, Gateway, Grant, Parent, Server, ServerHost,
};
use crate::names::{Hostname, Labels, Namespace, Port, ResourceName};

pub(super) fn of_gateway_api(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<Gateway> {
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let own = &meta.name.namespace;
    let servers = spec.list("listeners", |cursor| listener(cursor, own, report));
    Some(Gateway {
        selector: None,
        gateway_api: true,
        servers,
        name: meta.name,
        source: meta.source,
        created: meta.created,
    })
}

fn listener(cursor: &Cursor<'_>, own: &Namespace, report: &Report) -> Option<Server> {
    let mut fields = cursor.fields()?;
    let at = fields.at().clone();
    let name = report.required(fields.text("name"), &at, "name");
    let number = report.required(fields.integer("port"), &at, "port");
    let protocol = report.required(fields.text("protocol"), &at, "protocol");
    let hostname = match fields.text("hostname") {
        Some(text) => values::hostname(&text, report)?,
        None => Hostname::new("*")?,
    };
    let mut credentials = Vec::new();
    if let Some(mut tls) = fields.inner("tls") {
        credentials = tls.list("certificateRefs", |cursor| {
            let mut reference = cursor.fields()?;
            let kind = reference.text("kind");
            let namespace = reference.text("namespace");
            let name = reference.text("name")?;
            if kind.is_some_and(|kind| &*kind.value != "Secret") {
                return None;
            }
            let namespace = namespace.and_then(|text| values::namespace(&text, report));
            let namespace = namespace.unwrap_or_else(|| own.clone());
            Some((Some(namespace), name.value, report.source(&name.at)))
        });
    }
    Some(Server {
        source: report.source(&at),
        name: name?.value,
        port: report.port(&number?)?,
        protocol: protocol?.value.to_ascii_uppercase().into(),
        bind: None,
        tls: None,
        hosts: vec![ServerHost {
            namespace: None,
            host: hostname,
        }],
        credentials,
        admission: admission(&mut fields, report),
    })
}

/// `allowedRoutes.namespaces`; without it, routes of the gateway's own namespace.
fn admission(listener: &mut Fields<'_>, report: &Report) -> Admission {
    let namespaces = listener
        .inner("allowedRoutes")
        .and_then(|mut allowed| allowed.inner("namespaces"));
    let Some(mut namespaces) = namespaces else {
        return Admission::Same;
    };
    let from = namespaces.text("from");
    match from.as_ref().map(|from| &*from.value) {
        None | Some("Same") => Admission::Same,
        Some("All") => Admission::All,
        Some("Selector") => {
            let Some(mut selector) = namespaces.inner("selector") else {
                return Admission::Unknown;
            };
            if selector.get("matchExpressions").is_some() {
                return Admission::Unknown;
            }
            let labels: Labels = values::labels(&selector.text_map("matchLabels"), report);
            Admission::Selected(labels)
        }
        Some(_) => Admission::Unknown,
    }
}

pub(super) fn attached(
    kind: &'static str,
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<AttachedRoute> {
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let own = &meta.name.namespace;
    let hostnames = spec.texts("hostnames");
    let hostnames = hostnames
        .iter()
        .filter_map(|text| values::hostname(text, report))
        .collect();
    let parents = spec.list("parentRefs", |cursor| {
        let mut fields = cursor.fields()?;
        let points = Points::read(&mut fields, "Gateway", own, report)?;
        Some(Parent {
            source: report.source(cursor.at()),
            kind: points.kind,
            name: points.name,
            section: fields.text("sectionName").map(|text| text.value),
            port: points.port,
        })
    });
    let rules = spec.list("rules", |cursor| rule(cursor, own, report));
    Some(AttachedRoute {
        kind,
        hostnames,
        parents,
        backends: rules.into_iter().flatten().collect(),
        name: meta.name,
        source: meta.source,
    })
}

/// Everything that one of `rules` sends traffic to.
fn rule(cursor: &Cursor<'_>, own: &Namespace, report: &Report) -> Option<Vec<Backend>> {
    let mut fields = cursor.fields()?;
    let mut all = fields.list("backendRefs", |cursor| backend(cursor, own, report));
    let mirrors = fields.list("filters", |cursor| {
        let mut mirror = cursor.fields()?.inner("requestMirror")?;
        backend(&mirror.get("backendRef")?, own, report)
    });
    all.extend(mirrors);
    Some(all)
}

fn backend(cursor: &Cursor<'_>, own: &Namespace, report: &Report) -> Option<Backend> {
    let mut fields = cursor.fields()?;
    let points = Points::read(&mut fields, "Service", own, report)?;
    Some(Backend {
        source: report.source(cursor.at()),
        kind: points.kind,
        name: points.name,
        port: points.port,
    })
}

/// What a reference points at.
struct Points {
    kind: Arc<str>,
    name: ResourceName,
    port: Option<Port>,
}

impl Points {
    fn read(
        fields: &mut Fields<'_>,
        usual: &str,
        own: &Namespace,
        report: &Report,
    ) -> Option<Self> {
        let kind = fields
            .text("kind")
            .map_or_else(|| usual.into(), |text| text.value);
        let namespace = match fields.text("namespace") {
            Some(text) => values::namespace(&text, report)?,
            None => own.clone(),
        };
        let at = fields.at().clone();
        let name = report.required(fields.text("name"), &at, "name")?;
        let port: Option<Spanned<i64>> = fields.integer("port");
        Some(Self {
            kind,
            name: ResourceName::new(namespace, name.value),
            port: port.and_then(|number| report.port(&number)),
        })
    }
}

pub(super) fn grant(meta: Meta, fields: &mut Fields<'_>) -> Option<Grant> {
    let mut spec = fields.inner("spec")?;
    let from = spec.list("from", |cursor| {
        let mut fields = cursor.fields()?;
        let namespace = fields.text("namespace")?.value;
        Some((fields.text("kind")?.value, namespace))
    });
    let to = spec.list("to", |cursor| {
        let mut fields = cursor.fields()?;
        let name = fields.text("name").map(|name| name.value);
        Some((fields.text("kind")?.value, name))
    });
    Some(Grant {
        from,
        to,
        name: meta.name,
        source: meta.source,
    })
}
