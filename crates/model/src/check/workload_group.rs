//! Checks of WorkloadGroup: who may join by itself, and what it is then.

use super::networking::described;
use super::probe;
use super::values::{self, Meta};
use crate::codes;
use crate::decode::{Fields, Report};
use crate::mesh::WorkloadGroup;
use crate::names::Labels;
use crate::written::networking as written;

/// Longest name of a group, in bytes: those of its members have an address behind it, and 253 bytes in all.
const MAX_NAME_BYTES: usize = 200;

pub(super) fn workload_group(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<WorkloadGroup> {
    let written = report.required(written::WorkloadGroup::read(fields), &meta.at, "spec")?;
    if meta.name.name.len() > MAX_NAME_BYTES {
        report.error(
            codes::BAD_VALUE,
            &meta.at,
            format!("a WorkloadGroup's name of {} bytes", meta.name.name.len()),
            format!("at most {MAX_NAME_BYTES}: its members are called by it and their addresses"),
        );
    }
    let template = report.required(written.template.as_ref(), &written.at, "template")?;
    if let Some(address) = &template.address {
        report.error(
            codes::CONTRADICTION,
            &address.at,
            "a template has no address: each member brings its own",
            "remove it, or write a WorkloadEntry",
        );
    }
    let described = described(template, report);
    let said = values::labels(&written.labels, report);
    // Istio's order: what `metadata` says is stronger than the template.
    let labels: Labels = described
        .labels
        .iter()
        .chain(said.iter())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let annotations = written.annotations.iter();
    Some(WorkloadGroup {
        labels,
        annotations: annotations
            .map(|(key, value)| (key.value.clone(), value.value.clone()))
            .collect(),
        ports: described.ports,
        network: described.network,
        locality: described.locality,
        weight: described.weight,
        service_account: described
            .service_account
            .unwrap_or_else(|| "default".into()),
        probe: match &written.probe {
            None => None,
            Some(written) => Some(probe::of_member(written, report)?),
        },
        name: meta.name,
        source: meta.source,
    })
}
