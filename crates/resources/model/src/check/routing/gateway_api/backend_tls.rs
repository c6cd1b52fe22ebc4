//! Check of BackendTLSPolicy. An invalid policy keeps its target Services; clients then cannot call these Services.

use std::sync::Arc;

use crate::check::routing::gateway_api::fields::{at_most, reference};
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{Cursor, Fields, Report};
use crate::mesh::gateway_api::{BackendAuthorities, BackendTls, Reference};
use crate::names::Namespace;

/// Bounds of the API's schema.
const MAX_TARGETS: usize = 16;
const MAX_REFERENCES: usize = 8;
const MAX_NAMES: usize = 5;
/// The authorities of the machine that a proxy runs on.
const SYSTEM: &str = "System";

pub(super) fn policy(meta: Meta, fields: &mut Fields<'_>, report: &Report) -> Option<BackendTls> {
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let own = meta.name.namespace.clone();
    let at = spec.at().clone();
    let targets = spec.list("targetRefs", |cursor| target(cursor, &own, report));
    if targets.is_empty() {
        report.required(None::<()>, &at, "targetRefs");
    }
    at_most(targets.len(), MAX_TARGETS, "targetRefs", &at, report);
    let validation = report.required(spec.inner("validation"), &at, "validation");
    spec.not_yet(&["options"]);
    spec.finish();
    let mut policy = BackendTls {
        targets,
        authorities: BackendAuthorities::Held(Vec::new()),
        hostname: None,
        subject_alt_names: Vec::new(),
        name: meta.name,
        source: meta.source,
        created: meta.created,
    };
    if let Some(validation) = validation {
        self::validation(validation, &own, &mut policy, report);
    }
    Some(policy)
}

fn target(
    cursor: &Cursor<'_>,
    own: &Namespace,
    report: &Report,
) -> Option<(Reference, Option<Arc<str>>)> {
    let mut fields = cursor.fields()?;
    let to = local(&mut fields, own, report);
    let section = fields.text("sectionName").map(|text| text.value);
    fields.finish();
    Some((to?, section))
}

/// A reference within the policy's own namespace; group and kind must be written.
fn local(fields: &mut Fields<'_>, own: &Namespace, report: &Report) -> Option<Reference> {
    if let Some(cursor) = fields.get("namespace") {
        let message = "a BackendTLSPolicy can target only its own namespace";
        let help = "remove `namespace`, and write the policy where the Service is";
        report.error(codes::CONTRADICTION, cursor.at(), message, help);
    }
    let at = fields.at().clone();
    let to = reference(fields, ("", ""), own, report)?;
    if to.kind.is_empty() {
        report.required(None::<()>, &at, "kind");
    }
    Some(Reference {
        name: crate::names::ResourceName::new(own.clone(), to.name.name.clone()),
        ..to
    })
}

fn validation(mut fields: Fields<'_>, own: &Namespace, policy: &mut BackendTls, report: &Report) {
    let at = fields.at().clone();
    let references = fields.list("caCertificateRefs", |cursor| {
        let mut fields = cursor.fields()?;
        let to = local(&mut fields, own, report);
        fields.finish();
        to
    });
    at_most(
        references.len(),
        MAX_REFERENCES,
        "caCertificateRefs",
        &at,
        report,
    );
    let known = fields.text("wellKnownCACertificates");
    let known = known.filter(|text| !text.value.is_empty());
    match (&known, references.is_empty()) {
        (Some(text), false) => {
            let message = "the certificate authorities are set twice";
            let help = "keep `caCertificateRefs` or `wellKnownCACertificates`";
            report.error(codes::CONTRADICTION, &text.at, message, help);
        }
        (None, true) => drop(report.required(None::<()>, &at, "caCertificateRefs")),
        _ => {}
    }
    policy.authorities = match known {
        Some(text) if &*text.value == SYSTEM => BackendAuthorities::System,
        Some(text) => BackendAuthorities::Unknown(text.value, report.source(&text.at)),
        None => BackendAuthorities::Held(references),
    };
    let hostname = report.required(fields.text("hostname"), &at, "hostname");
    let name = hostname.and_then(|text| {
        let host = values::hostname(&text, report)?;
        if host.is_wildcard() {
            let help = "write the host name in the backends' certificate";
            report.bad(&text, ": it is no single host name", help);
            return None;
        }
        Some(host.as_str().into())
    });
    policy.hostname = name;
    let names = fields.list("subjectAltNames", |cursor| alternative(cursor, report));
    at_most(names.len(), MAX_NAMES, "subjectAltNames", &at, report);
    policy.subject_alt_names = names;
    fields.finish();
}

/// One of `subjectAltNames`.
fn alternative(cursor: &Cursor<'_>, report: &Report) -> Option<Arc<str>> {
    let mut fields = cursor.fields()?;
    let kind = report.required(fields.text("type"), cursor.at(), "type");
    let hostname = fields.text("hostname");
    let uri = fields.text("uri");
    fields.finish();
    let words = [("Hostname", false), ("URI", true)];
    let is_uri = report.one_of(&kind?, &words)?;
    let (said, other, name) = match is_uri {
        true => (uri, hostname, "uri"),
        false => (hostname, uri, "hostname"),
    };
    if let Some(text) = other {
        let message = "this field contradicts `type`";
        let help = format!("keep `{name}`");
        report.error(codes::CONTRADICTION, &text.at, message, help);
    }
    let text = report.required(said, cursor.at(), name)?;
    if values::is_uri(&text.value) != is_uri || !values::is_certificate_name(&text.value) {
        let help = "a host name without a `*`, or a URI with its scheme";
        report.bad(&text, " as a name of a certificate", help);
    }
    Some(text.value)
}
