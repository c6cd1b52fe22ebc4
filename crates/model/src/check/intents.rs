//! Reads what is not in force yet as far as analysis needs it. What is misspelt is an error now, so that it is right on the day
//! when it comes into force; that it is not in force is said beside, whatever it says.

mod destination;
mod gateway;
mod istio_gateway;

use super::values::{self, Meta};
use crate::codes;
use crate::decode::{Fields, Report};
use crate::diagnostic::Diagnostic;
use crate::mesh::intent::{Gateway, Intent, Intents};
use crate::written::header::Header;

pub(super) use destination::destination;

/// Whether a resource is of Gateway API, by what its `apiVersion` says.
pub(super) fn is_of_gateway_api(header: &Header) -> bool {
    let version = header.api_version.as_ref();
    version.is_some_and(|version| version.value.starts_with(GATEWAY_API))
}

/// Istio's Gateway. Analysis looks at one that asks for what is not in force yet, too.
pub(super) fn gateway(
    meta: Meta,
    fields: &mut Fields<'_>,
    intents: &mut Vec<Intent>,
    report: &Report,
) -> Option<Gateway> {
    let read = istio_gateway::of_istio(meta, fields, report)?;
    intents.push(Intent::Gateway(read.clone().into()));
    Some(read)
}

/// Kinds that are read here.
const ROUTES: [&str; 5] = ["HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"];
/// Group of Gateway API's kinds.
const GATEWAY_API: &str = "gateway.networking.k8s.io/";

/// Reads a resource of a kind that is not in force; none when nothing is known of the kind, or it has no usable name.
pub(super) fn read(
    kind: &str,
    header: &Header,
    mut fields: Fields<'_>,
    report: &Report,
) -> Option<Intent> {
    let route = ROUTES.into_iter().find(|route| *route == kind);
    if !matches!(kind, "Gateway" | "ReferenceGrant") && route.is_none() {
        return None;
    }
    let meta: Meta = values::meta(header, true, report)?;
    match (kind, route) {
        ("Gateway", _) => {
            let read = gateway::of_gateway_api(meta, &mut fields, report)?;
            Some(Intent::Gateway(read.into()))
        }
        ("ReferenceGrant", _) => Some(Intent::Grant(gateway::grant(meta, &mut fields)?.into())),
        (_, Some(kind)) => {
            let read = gateway::attached(kind, meta, &mut fields, report)?;
            Some(Intent::Route(read.into()))
        }
        _ => None,
    }
}

/// Puts them together; the second of one name is left out.
pub(super) fn collect(all: Vec<Intent>, diagnostics: &mut Vec<Diagnostic>) -> Intents {
    let mut intents = Intents::default();
    let mut seen = std::collections::BTreeMap::new();
    for one in all {
        let (kind, name, source) = match &one {
            Intent::Gateway(one) if one.gateway_api => {
                ("Gateway (Gateway API)", &one.name, &one.source)
            }
            Intent::Route(one) => (one.kind, &one.name, &one.source),
            Intent::Grant(one) => ("ReferenceGrant", &one.name, &one.source),
            // A second one of these is found among those that are in force, or bad by name.
            Intent::VirtualService(one) => ("VirtualService", &one.name, &one.source),
            Intent::Gateway(one) => ("Gateway", &one.name, &one.source),
            Intent::Destination(one) => ("DestinationRule", &one.name, &one.source),
        };
        match seen.entry((kind, name.clone())) {
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(source.clone());
                intents.add(one);
            }
            std::collections::btree_map::Entry::Occupied(first)
                if !matches!(kind, "DestinationRule" | "Gateway" | "VirtualService") =>
            {
                let message = format!(
                    "{kind} {name} is declared a second time; the first is in {}",
                    first.get()
                );
                diagnostics.push(
                    Diagnostic::error(codes::DECLARED_TWICE, source.clone(), message)
                        .help("remove one of the two, or give it another name"),
                );
            }
            std::collections::btree_map::Entry::Occupied(_) => {}
        }
    }
    intents
}
