//! The Secrets by which a gateway makes TLS towards servers: those that DestinationRules of the services name to which it leads, of the
//! gateway's own namespace, and the one that its Gateway shows to backends. Nobody else is told of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use voile_model::ResourceName;
use voile_model::mesh::traffic::{ClientTls, TlsOrigin};
use voile_model::mesh::{DestinationRule, Mesh, PolicyLevel, RuleClient, Workload};
use voile_xds::wire::Credential;

use super::{believed, certificate};

pub(super) fn for_servers(
    mesh: &Mesh,
    workload: &Workload,
    problems: &mut Vec<String>,
) -> Vec<Credential> {
    let client = &workload.key.namespace;
    let services = mesh.led_to_from_outside(client, &workload.labels);
    let rules = services
        .iter()
        .filter_map(|service| mesh.destination_rule(service, RuleClient::of(workload)));
    let origins = rules.flat_map(|rule| origins(rule));
    let named: BTreeSet<(Arc<str>, bool, Option<ResourceName>)> = origins
        .filter_map(|origin| {
            let granted = origin.granted.clone();
            Some((origin.credential.clone()?, origin.mutual, granted))
        })
        .collect();
    let mut all: Vec<Credential> = Vec::new();
    for (name, mutual, granted) in named {
        let id = granted.unwrap_or_else(|| ResourceName::new(client.clone(), name.clone()));
        let (pair, believed) = (certificate(mesh, &id), believed(mesh, &id));
        let lists = believed.as_ref().map(|one| one.revocations.clone());
        let lists = lists.unwrap_or_else(|| Ok(Vec::new()));
        let missing = match &pair {
            _ if lists.is_err() => lists.as_ref().err().cloned(),
            Err(missing) if mutual => Some(missing.clone()),
            // It may hold nothing but authorities.
            Err(missing) if believed.is_none() => Some(missing.clone()),
            _ => None,
        };
        if let Some(missing) = &missing {
            problems.push(format!(
                "{} cannot originate TLS with the credential {name}: {missing}",
                workload.key
            ));
        }
        let (certificates, private_key) = pair.unwrap_or_default();
        // Of two that ask for one of them, whoever shows a certificate says what is missing.
        all.retain(|one| one.name != name);
        all.push(Credential {
            name,
            missing: missing.unwrap_or_default(),
            certificates,
            private_key,
            authorities: believed.map(|one| one.authorities).unwrap_or_default(),
            revocations: lists.unwrap_or_default(),
        });
    }
    all
}

fn origins(rule: &DestinationRule) -> impl Iterator<Item = &TlsOrigin> {
    let parts = rule.subsets.values().map(|subset| &subset.policy);
    let policies = std::iter::once(&rule.policy).chain(parts);
    let levels = policies.flat_map(|policy| {
        let whole: std::iter::Once<&PolicyLevel> = std::iter::once(&policy.whole);
        whole.chain(policy.ports.values())
    });
    levels.filter_map(|level| match &level.tls {
        Some(ClientTls::Originate(origin)) => Some(&**origin),
        _ => None,
    })
}
