//! Checks of WorkloadGroup: the condition for joining, and the resulting workload.

use crate::check::networking::described;
use crate::check::probe;
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{Fields, Report, TextMap};
use crate::mesh::{AddressRange, WorkloadGroup};
use crate::names::Labels;

/// Longest name of a group, in bytes: those of its members have an address behind it, and 253 bytes in all.
const MAX_NAME_BYTES: usize = 200;
/// Annotation of a WorkloadGroup with the addresses that its members may claim: addresses and CIDR ranges, separated by commas.
const MEMBER_ADDRESSES: &str = "voile.dev/member-addresses";
/// Ranges in one such annotation: an address is compared with each of them.
const MAX_RANGES: usize = 64;

/// Reads the addresses that members may claim besides those they connect from. A value that cannot be read allows nothing.
fn member_addresses(annotations: &TextMap, report: &Report) -> Vec<AddressRange> {
    let said = annotations.iter();
    let said = said.filter(|(key, _)| &*key.value == MEMBER_ADDRESSES);
    let read = |text: &str| {
        let ranges: Option<Vec<AddressRange>> = text
            .split(',')
            .map(|range| AddressRange::parse(range.trim()).filter(|range| range.prefix > 0))
            .collect();
        ranges.filter(|ranges| ranges.len() <= MAX_RANGES)
    };
    let help = format!(
        "addresses or CIDR ranges such as `10.20.0.0/16`, separated by commas, at most {MAX_RANGES}, none of them everything (`/0`)"
    );
    let ranges = said.filter_map(|(_, value)| report.parsed(value, MEMBER_ADDRESSES, read, &help));
    ranges.flatten().collect()
}

pub(in crate::check) fn read(
    meta: Meta,
    annotated: &TextMap,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<WorkloadGroup> {
    fields.ignore(&["status"]);
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    if meta.name.name.len() > MAX_NAME_BYTES {
        report.error(
            codes::BAD_VALUE,
            &meta.at,
            format!("a WorkloadGroup's name of {} bytes", meta.name.name.len()),
            format!("write at most {MAX_NAME_BYTES}: its members' names consist of it and their addresses"),
        );
    }
    let metadata = spec.mapping("metadata", |metadata| {
        let labels = values::labels(&metadata.text_map("labels"), report);
        (labels, metadata.text_map("annotations"))
    });
    let (said, annotations) = metadata.unwrap_or_default();
    let template = spec.mapping("template", |template| {
        let ports = template.get("ports");
        if let Some(address) = template.text("address") {
            report.warning(
                codes::NOT_OBEYED,
                &address.at,
                "the `address` of a template has no effect: each member has its own",
                "remove it, or write a WorkloadEntry",
            );
        }
        described(ports, template)
    });
    let template = report.required(template, spec.at(), "template");
    let probe = spec.mapping("probe", probe::of_member).flatten();
    spec.finish();
    let (described, _) = template?;
    // Istio's order: `metadata` precedes the template.
    let labels: Labels = described
        .labels
        .iter()
        .chain(said.iter())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    Some(WorkloadGroup {
        labels,
        annotations: annotations
            .into_iter()
            .map(|(key, value)| (key.value, value.value))
            .collect(),
        ports: described.ports,
        network: described.network,
        locality: described.locality,
        weight: described.weight,
        service_account: described
            .service_account
            .unwrap_or_else(|| "default".into()),
        member_addresses: member_addresses(annotated, report),
        probe,
        name: meta.name,
        source: meta.source,
    })
}
