//! Reads what is not in force yet as far as analysis needs it. What is misspelt is an error now, so that it is right on the day
//! when it comes into force; that it is not in force is said beside, whatever it says.

mod destination;
mod gateway;

use super::values::{self, Meta};
use crate::codes;
use crate::decode::{Fields, Report};
use crate::diagnostic::Diagnostic;
use crate::mesh::intent::{Intent, Intents};
use crate::written::header::Header;

pub(super) use destination::destination;

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
    let of_gateway_api = header
        .api_version
        .as_ref()
        .is_some_and(|version| version.value.starts_with(GATEWAY_API));
    let route = ROUTES.into_iter().find(|route| *route == kind);
    if !matches!(kind, "Gateway" | "ReferenceGrant") && route.is_none() {
        return None;
    }
    let meta: Meta = values::meta(header, true, report)?;
    match (kind, route) {
        ("Gateway", _) if of_gateway_api => {
            let read = gateway::of_gateway_api(meta, &mut fields, report)?;
            Some(Intent::Gateway(read.into()))
        }
        ("Gateway", _) => {
            let read = gateway::of_istio(meta, &mut fields, report)?;
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
            Intent::Gateway(one) => ("Gateway", &one.name, &one.source),
            Intent::Route(one) => (one.kind, &one.name, &one.source),
            Intent::Grant(one) => ("ReferenceGrant", &one.name, &one.source),
            // A second one of these is found among those that are in force, or bad by name.
            Intent::VirtualService(one) => ("VirtualService", &one.name, &one.source),
            Intent::Destination(one) => ("DestinationRule", &one.name, &one.source),
        };
        match seen.entry((kind, name.clone())) {
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(source.clone());
                intents.add(one);
            }
            std::collections::btree_map::Entry::Occupied(first)
                if !matches!(kind, "DestinationRule" | "VirtualService") =>
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
