//! Parses resources that are not yet in force, as far as analysis needs them. Misspelt fields are errors already, so
//! that the resources are correct when they come into force. Another diagnostic says that they are not in force.

pub(in crate::check) mod istio_gateway;

use std::collections::BTreeSet;

use crate::check::values::Meta;
use crate::decode::{Fields, Report};
use crate::mesh::routing_intent::{Gateway, RoutingIntent, RoutingIntents};

/// Reads Istio's Gateway. Analysis also sees a Gateway with fields that are not yet in force.
pub(in crate::check) fn gateway(
    meta: Meta,
    fields: &mut Fields<'_>,
    intents: &mut Vec<RoutingIntent>,
    report: &Report,
) -> Option<Gateway> {
    let read = istio_gateway::of_istio(meta, fields, report)?;
    intents.push(RoutingIntent::Gateway(read.clone().into()));
    Some(read)
}

/// Puts them together; the second of one name is left out.
pub(in crate::check) fn collect(all: Vec<RoutingIntent>) -> RoutingIntents {
    let mut intents = RoutingIntents::default();
    let mut seen = BTreeSet::new();
    for one in all {
        // A second one is found among those that are in force, or bad by name.
        let (kind, name) = match &one {
            RoutingIntent::VirtualService(one) => ("VirtualService", &one.name),
            RoutingIntent::Gateway(one) => ("Gateway", &one.name),
            RoutingIntent::Destination(one) => ("DestinationRule", &one.name),
        };
        if seen.insert((kind, name.clone())) {
            intents.add(one);
        }
    }
    intents
}
