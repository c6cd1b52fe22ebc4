//! Resources for node proxies (ztunnel) beyond workloads and services, and the decision which callers are node proxies.
//! AuthorizationPolicies and PeerAuthentications become Istio's `Authorization` for connections. The module also decides whose
//! certificates a node proxy may ask for. Decision 0022.

mod authorization;
mod node_proxies;
mod peer;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use prost::Message as _;
use voile_model::mesh::authorization::PolicyTarget;
use voile_model::mesh::workload::sidecar_takes_tunnels;
use voile_model::mesh::{AuthorizationPolicy, Mesh, PeerAuthentication, Workload};
use voile_model::{Namespace, Port, ResourceName, WorkloadKey};
use voile_policy::authorization::{Policy, TrustDomains};
use voile_policy::connections::{
    CallerFacts, ConnectionPolicies, ConnectionPolicy, PolicyScope, PolicySubject, lower,
};
use voile_proto::workload::{Address, TunnelProtocol, Workload as Told, address};
use voile_xds::server::Resource;
use voile_xds::wire::{decode_connection_policy, encode_connection_policy};

use crate::resources::resource;
use crate::shards::Shards;
pub(crate) use node_proxies::AmbientWorkloads;
pub use node_proxies::NodeAccount;

/// A policy as node proxies obey it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodePolicy {
    pub(crate) namespace: Namespace,
    /// It is every namespace's business: it is of the root namespace.
    pub(crate) global: bool,
    pub(crate) resource: Arc<Resource>,
    /// Parts that a node proxy cannot enforce, and their replacement.
    pub(crate) problems: Arc<[String]>,
}

/// The policy as node proxies are to keep it; `None` where it asks nothing of them.
pub(crate) fn policy(mesh: &Mesh, policy: &AuthorizationPolicy) -> Option<NodePolicy> {
    let scope = scope(mesh, policy)?;
    // The model has seen to its values already.
    let mut read = Policy::of(policy).ok()?;
    trust_domains(mesh).apply(&mut read);
    let (lowered, unseen) = lower(&read, scope);
    let mut problems = authorization::problems(&read, &unseen);
    let concerned = || {
        let root = &mesh.config.root_namespace;
        let obeys = |workload: &Arc<Workload>| {
            let (namespace, labels) = (&workload.key.namespace, &workload.labels);
            workload.ambient && policy.selects(root, namespace, labels)
        };
        // Only the root namespace's reach beyond their own: thousands of others do not look at the whole of a large mesh each.
        match policy.name.namespace == *root {
            true => mesh.workloads.values().any(obeys),
            false => mesh.workloads_in(&policy.name.namespace).any(obeys),
        }
    };
    if !problems.is_empty() && !concerned() {
        problems.clear();
    }
    for problem in &mut problems {
        *problem = format!(
            "{}: AuthorizationPolicy {}: {problem}",
            policy.source, policy.name
        );
    }
    Some(packed(mesh, &policy.name, &lowered, problems))
}

/// The PeerAuthentications as node proxies are to keep them.
pub(crate) fn peer_policies(mesh: &Mesh) -> Vec<NodePolicy> {
    let all = peer::policies(mesh).into_iter();
    all.map(|(name, policy)| packed(mesh, &name, &policy, Vec::new()))
        .collect()
}

/// Returns true if the policy of this name was made of this PeerAuthentication.
pub(crate) fn is_made_of(mesh: &Mesh, name: &str, policy: &PeerAuthentication) -> bool {
    peer::is_made_of(mesh, name, policy)
}

/// Adds to an ambient workload's Address the policies that hold for it by name. Those of its whole namespace, or of all, hold
/// without.
pub(crate) fn name_policies(mesh: &Mesh, workload: &Workload, message: &mut Told) {
    if !workload.ambient {
        return;
    }
    let selecting = mesh.authorization_for(workload).into_iter();
    let mut names: Vec<String> = selecting
        .filter(|policy| matches!(policy.target, PolicyTarget::Workloads(_)))
        .map(|policy| policy.name.to_string())
        .collect();
    names.extend(peer::name_for(mesh, workload));
    message.authorization_policies = names;
}

/// Returns true if the node proxy of a workload refuses plaintext to a port, by the translated PeerAuthentications that the
/// workload names.
pub(crate) fn refuses_plaintext(policies: &Shards<NodePolicy>, told: &Told, port: Port) -> bool {
    let (mut converted, mut named) = (ConnectionPolicies::default(), Vec::new());
    let names = told.authorization_policies.iter();
    for name in names.filter(|name| peer::is_converted(name)) {
        if let Some(policy) = policies.get(name) {
            let policy = decode_connection_policy(&policy.resource.body);
            // A policy that cannot be read admits no connection.
            let policy = policy.unwrap_or_else(|(closed, _)| closed);
            named.push(name.as_str().into());
            converted.set(name.as_str().into(), policy);
        }
    }
    let subject = PolicySubject {
        namespace: &told.namespace,
        named: &named,
    };
    let anyone = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let caller = CallerFacts {
        identity: None,
        source: anyone,
        destination: SocketAddr::new(anyone, port.get()),
    };
    converted.authorize(&subject, &caller).is_err()
}

/// Address of a workload with a sidecar, as a node proxy gets it. A node proxy cannot speak the sidecar's mutual TLS and rejects
/// an Address that says so. The Address therefore names the tunnel if the sidecar takes tunnels, and else none. The sidecar
/// decides which plaintext it takes.
pub(crate) fn plain(mesh: &Mesh, told: &Resource) -> Option<Resource> {
    let mut address = Address::decode(&*told.body).ok()?;
    let Some(address::Type::Workload(workload)) = &mut address.r#type else {
        return None;
    };
    if workload.tunnel_protocol() != TunnelProtocol::LegacyIstioMtls {
        return None;
    }
    let key = Namespace::new(&workload.namespace);
    let key = key.map(|namespace| WorkloadKey::new(namespace, workload.name.as_str()));
    let known = key.and_then(|key| mesh.workloads.get(&key));
    let takes = known.is_some_and(|known| sidecar_takes_tunnels(&known.labels));
    workload.set_tunnel_protocol(match takes {
        true => TunnelProtocol::Hbone,
        false => TunnelProtocol::None,
    });
    let (name, aliases) = (told.name.clone(), told.aliases.clone());
    Some(resource(name, aliases, address.encode_to_vec()))
}

fn scope(mesh: &Mesh, policy: &AuthorizationPolicy) -> Option<PolicyScope> {
    let namespace = &policy.name.namespace;
    match policy.target {
        PolicyTarget::Everything if *namespace == mesh.config.root_namespace => {
            Some(PolicyScope::Mesh)
        }
        PolicyTarget::Everything => Some(PolicyScope::Namespace(namespace.as_str().into())),
        PolicyTarget::Workloads(_) => Some(PolicyScope::Named),
        PolicyTarget::References(_) => None,
    }
}

fn trust_domains(mesh: &Mesh) -> TrustDomains {
    let config = &mesh.config;
    let aliases: Vec<String> = config
        .trust_domain_aliases
        .iter()
        .map(ToString::to_string)
        .collect();
    let aliases: Vec<&str> = aliases.iter().map(String::as_str).collect();
    TrustDomains::new(config.trust_domain.as_ref(), &aliases)
}

fn packed(
    mesh: &Mesh,
    name: &ResourceName,
    policy: &ConnectionPolicy,
    problems: Vec<String>,
) -> NodePolicy {
    let message = encode_connection_policy(name, policy);
    let resource_name = name.to_string().into();
    NodePolicy {
        global: name.namespace == mesh.config.root_namespace,
        namespace: name.namespace.clone(),
        resource: Arc::new(resource(resource_name, Vec::new(), message.encode_to_vec())),
        problems: problems.into(),
    }
}

#[cfg(test)]
mod tests {
    use voile_model::SourceFile;
    use voile_proto::workload::Workload;

    use super::*;

    #[test]
    fn node_proxies_are_told_of_tunnels_of_those_sidecars_alone_that_say_they_take_them() {
        let pod = |name: &str, last: u8, labels: &str| {
            format!(
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{{labels}}}}}\n\
                 spec: {{serviceAccountName: {name}, containers: [{{name: app, image: none}}]}}\n\
                 status: {{phase: Running, podIP: 127.1.0.{last}}}\n"
            )
        };
        let sided = "sidecar.istio.io/inject: \"true\"";
        let text = [
            pod(
                "says",
                2,
                &format!("{sided}, networking.istio.io/tunnel: http"),
            ),
            pod("silent", 3, sided),
            pod("ambient", 4, "istio.io/dataplane-mode: ambient"),
            pod("bare", 5, "networking.istio.io/tunnel: http"),
        ];
        let (mesh, problems) =
            voile_model::check(&[SourceFile::new("mesh.yaml", text.concat())], None);
        let wrong = problems.iter().any(voile_model::Diagnostic::is_error);
        assert!(!wrong, "{problems:?}");
        let (snapshot, _) = crate::translate::translate(&mesh, None);
        let mut told = Vec::new();
        for resource in snapshot.all_addresses.values() {
            let address = |resource: &Resource| match Address::decode(&*resource.body) {
                Ok(Address {
                    r#type: Some(address::Type::Workload(found)),
                }) => Some(found),
                _ => None,
            };
            let Some(found) = address(resource) else {
                continue;
            };
            let plain: Option<Workload> = plain(&mesh, resource).as_ref().and_then(address);
            let plain = plain.map(|plain| plain.tunnel_protocol().as_str_name());
            let (name, own) = (found.name.clone(), found.tunnel_protocol());
            told.push(format!("{name} {} {plain:?}", own.as_str_name()));
        }
        told.sort();
        assert_eq!(
            told,
            [
                "ambient HBONE None",
                "bare NONE None",
                "says LEGACY_ISTIO_MTLS Some(\"HBONE\")",
                "silent LEGACY_ISTIO_MTLS Some(\"NONE\")",
            ]
        );
    }
}
