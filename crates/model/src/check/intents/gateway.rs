//! Gateways of both APIs and what attaches to them. Of Gateway API only what points at something is read: its schema is the
//! cluster's to check.

use std::sync::Arc;

use super::super::values::{self, Meta};
use crate::decode::{Cursor, Fields, Report, Spanned};
use crate::mesh::intent::{
    Admission, AttachedRoute, Backend, Gateway, Grant, Parent, Server, ServerHost,
};
use crate::names::{Hostname, Labels, Namespace, Port, ResourceName};
use crate::written::Text;

/// Fields of a server's `tls` that mean nothing to analysis.
const OTHER_TLS: &[&str] = &[
    "httpsRedirect",
    "serverCertificate",
    "privateKey",
    "caCertificates",
    "caCrl",
    "subjectAltNames",
    "caCertCredentialName",
    "tlsCertificates",
    "verifyCertificateSpki",
    "verifyCertificateHash",
    "minProtocolVersion",
    "maxProtocolVersion",
    "cipherSuites",
];
/// Protocols whose servers need to know what to do with TLS.
const ENCRYPTED: [&str; 2] = ["HTTPS", "TLS"];

pub(super) fn of_istio(meta: Meta, fields: &mut Fields<'_>, report: &Report) -> Option<Gateway> {
    fields.ignore(&["status"]);
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let selector = spec
        .get("selector")
        .map(|at| values::labels(&at.text_map(), report));
    let own = meta.name.namespace.clone();
    let servers = spec.list("servers", |cursor| server(cursor, &own, report));
    spec.finish();
    Some(Gateway {
        selector: Some(selector.unwrap_or_default()),
        gateway_api: false,
        servers,
        name: meta.name,
        source: meta.source,
    })
}

fn server(cursor: &Cursor<'_>, own: &Namespace, report: &Report) -> Option<Server> {
    let mut fields = cursor.fields()?;
    let at = fields.at().clone();
    let port = report
        .required(fields.inner("port"), &at, "port")
        .map(|mut port| {
            let at = port.at().clone();
            let number = report.required(port.integer("number"), &at, "number");
            let protocol = report.required(port.text("protocol"), &at, "protocol");
            let name = port.text("name");
            port.ignore(&["targetPort"]);
            port.finish();
            (number, protocol, name)
        });
    let hosts = fields.texts("hosts");
    if hosts.is_empty() {
        report.required(None::<()>, &at, "hosts");
    }
    let hosts = hosts
        .iter()
        .filter_map(|text| server_host(text, own, report));
    let hosts = hosts.collect();
    let mut credentials = Vec::new();
    let tls = fields.inner("tls");
    let encrypted = tls.is_some();
    if let Some(mut tls) = tls {
        let one = tls.text("credentialName");
        let more = tls.texts("credentialNames");
        for text in one.into_iter().chain(more) {
            credentials.push((None, text.value, report.source(&text.at)));
        }
        tls.ignore(&["mode"]);
        tls.ignore(OTHER_TLS);
        tls.finish();
    }
    let name = fields.text("name").map(|name| name.value);
    fields.ignore(&["bind", "defaultEndpoint"]);
    fields.finish();
    let (number, protocol, port_name) = port?;
    let protocol: Arc<str> = protocol?.value.to_ascii_uppercase().into();
    if ENCRYPTED.contains(&&*protocol) && !encrypted {
        report.required(None::<()>, &at, "tls");
    }
    let name = name.or_else(|| port_name.map(|name| name.value));
    Some(Server {
        source: report.source(&at),
        name: name.unwrap_or_else(|| "".into()),
        port: report.port(&number?)?,
        protocol,
        hosts,
        credentials,
        admission: Admission::All,
    })
}

/// `HOST` or `NAMESPACE/HOST`.
fn server_host(text: &Text, own: &Namespace, report: &Report) -> Option<ServerHost> {
    let (namespace, host) = match text.value.split_once('/') {
        None => (None, &*text.value),
        Some(("*", host)) => (None, host),
        Some((".", host)) => (Some(own.clone()), host),
        Some((namespace, host)) => {
            let read = |_: &str| Namespace::new(namespace);
            let help = "write HOST, NAMESPACE/HOST, ./HOST or */HOST";
            (Some(report.parsed(text, "a host", read, help)?), host)
        }
    };
    let help = "a host name, *.HOST or *";
    let host = report.parsed(text, "a host", |_| Hostname::new(host), help)?;
    Some(ServerHost { namespace, host })
}

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
