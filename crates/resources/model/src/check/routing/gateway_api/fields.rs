//! Fields that several resources of the Gateway API have: references, ports, bounded lists.

use std::sync::Arc;

use crate::check::values;
use crate::codes;
use crate::decode::{FieldPath, Fields, Report, SpannedValue, Text};
use crate::mesh::gateway_api::{GROUP, Reference};
use crate::names::{Namespace, Port, ResourceName};
use crate::text::clip;

/// Reads a reference. `usual` is the default group and kind. The caller finishes the fields.
pub(super) fn reference(
    fields: &mut Fields<'_>,
    usual: (&str, &str),
    own: &Namespace,
    report: &Report,
) -> Option<Reference> {
    let at = fields.at().clone();
    let group = fields.text("group");
    let kind = fields.text("kind");
    let namespace = match fields.text("namespace") {
        Some(text) => values::namespace(&text, report)?,
        None => own.clone(),
    };
    let name = report.required(fields.text("name"), &at, "name")?;
    Some(Reference {
        source: report.source(&at),
        field: at.path.clone(),
        group: group.map_or_else(|| usual.0.into(), |text| text.value),
        kind: kind.map_or_else(|| usual.1.into(), |text| text.value),
        name: ResourceName::new(namespace, name.value),
    })
}

pub(super) fn port(fields: &mut Fields<'_>, report: &Report) -> Option<Port> {
    let number: SpannedValue<i64> = fields.integer("port")?;
    report.port(&number)
}

/// A list of the API has a longest length, above which a cluster refuses the resource.
pub(super) fn at_most(count: usize, most: usize, what: &str, at: &FieldPath, report: &Report) {
    if count > most {
        let message = format!("{count} {what} are too many");
        let help = format!("Gateway API has at most {most}");
        report.error(codes::BAD_VALUE, at, message, help);
    }
}

/// Reports a part of Gateway API that Voile does not support.
pub(super) fn not_done(what: &str, help: &str, at: &FieldPath, report: &Report) {
    let message = format!("{what} is not yet supported, and would not be in force");
    report.error(codes::NOT_YET, at, message, help);
}

pub(super) fn says_nothing(text: &Text, what: &str, report: &Report) -> Option<Arc<str>> {
    if text.value.is_empty() {
        report.bad(text, what, "write a text that is not empty");
        return None;
    }
    Some(clip(&text.value).into())
}

/// Default group and kind of references within the API.
pub(super) const GATEWAY: (&str, &str) = (GROUP, "Gateway");
/// Default group and kind of references to Kubernetes' own resources.
pub(super) const SERVICE: (&str, &str) = ("", "Service");
pub(super) const SECRET: (&str, &str) = ("", "Secret");
