//! PeerAuthentications as Istio's `Authorization`: a node proxy refuses plaintext by a DENY policy for whoever has no identity.
//! One static policy for workloads that are STRICT as a whole, and one for each PeerAuthentication whose ports differ.

use std::collections::BTreeSet;

use voile_model::mesh::{Mesh, MutualTlsMode, PeerAuthentication, Workload};
use voile_model::{Labels, Namespace, Port};
use voile_policy::{Mode, inherited, selecting};
use voile_proto::authorization as wire;
use voile_proto::authorization::string_match::MatchType;

/// Istio's name for the policy that refuses plaintext.
const STATIC_STRICT: &str = "istio_converted_static_strict";
/// And how it calls those that are made of one PeerAuthentication. No resource can have such a name.
const CONVERTED: &str = "converted_peer_authentication_";

/// A workload's mode, and the ports that have the other one.
struct WorkloadMtlsMode {
    strict: bool,
    except: BTreeSet<u16>,
}

impl WorkloadMtlsMode {
    fn of(mesh: &Mesh, namespace: &Namespace, policy: Option<&PeerAuthentication>) -> Self {
        let otherwise = || inherited(mesh, namespace, &Labels::default()).mode;
        let mode = policy.and_then(|policy| policy.mode);
        let strict = mode.map_or_else(otherwise, Mode::from) == Mode::Strict;
        let ports = policy.map(|policy| policy.port_modes.iter());
        let except = ports.into_iter().flatten();
        let except = except.filter(|(_, port)| {
            let mode = port.mode;
            mode.is_some_and(|mode| (mode == MutualTlsMode::Strict) != strict)
        });
        Self {
            strict,
            except: except.map(|(port, _)| port.get()).collect(),
        }
    }
}

/// Returns true if the policy of this name was made of that PeerAuthentication: the static policy is made of all that say
/// STRICT.
pub(super) fn is_made_of(mesh: &Mesh, name: &str, policy: &PeerAuthentication) -> bool {
    let own = &policy.name;
    name == format!("{}/{CONVERTED}{}", own.namespace, own.name)
        || (name == format!("{}/{STATIC_STRICT}", mesh.config.root_namespace)
            && policy.mode == Some(MutualTlsMode::Strict))
}

/// The policy that a workload must name, if it takes plaintext not everywhere.
pub(super) fn name_for(mesh: &Mesh, workload: &Workload) -> Option<String> {
    let namespace = &workload.key.namespace;
    let policy = selecting(mesh, namespace, &workload.labels);
    let found = WorkloadMtlsMode::of(mesh, namespace, policy.map(|policy| &**policy));
    match policy {
        Some(policy) if !found.except.is_empty() => {
            let name = &policy.name;
            Some(format!("{}/{CONVERTED}{}", name.namespace, name.name))
        }
        _ if found.strict => Some(format!("{}/{STATIC_STRICT}", mesh.config.root_namespace)),
        _ => None,
    }
}

/// All such policies, with whose they are and what of them cannot be kept.
pub(super) fn policies(mesh: &Mesh) -> Vec<(Namespace, wire::Authorization, Vec<String>)> {
    let root = &mesh.config.root_namespace;
    let mut all = Vec::new();
    if !mesh.peer_authentications.is_empty() {
        let message = refusing(root, STATIC_STRICT, vec![clause(nobody())]);
        all.push((root.clone(), message, Vec::new()));
    }
    for policy in &mesh.peer_authentications {
        let namespace = &policy.name.namespace;
        if policy.selector.is_none() || namespace == root {
            continue;
        }
        let found = WorkloadMtlsMode::of(mesh, namespace, Some(policy));
        if found.except.is_empty() {
            continue;
        }
        let ports: Vec<u32> = found.except.iter().map(|port| u32::from(*port)).collect();
        let among = match found.strict {
            true => wire::Match {
                not_destination_ports: ports,
                ..wire::Match::default()
            },
            false => wire::Match {
                destination_ports: ports,
                ..wire::Match::default()
            },
        };
        let name = format!("{CONVERTED}{}", policy.name.name);
        let message = refusing(namespace, &name, vec![clause(nobody()), clause(among)]);
        all.push((namespace.clone(), message, Vec::new()));
    }
    all
}

/// Returns true if a policy was made of a PeerAuthentication and refuses plaintext to a port.
pub(super) fn refuses(policy: &wire::Authorization, port: Port) -> bool {
    let number = u32::from(port.get());
    let concerns = |one: &wire::Match| {
        let among = one.destination_ports.is_empty() || one.destination_ports.contains(&number);
        among && !one.not_destination_ports.contains(&number)
    };
    let holds = |clause: &wire::Clause| clause.matches.iter().any(concerns);
    (policy.name == STATIC_STRICT || policy.name.starts_with(CONVERTED))
        && policy
            .rules
            .iter()
            .any(|rule| rule.clauses.iter().all(holds))
}

fn refusing(namespace: &Namespace, name: &str, clauses: Vec<wire::Clause>) -> wire::Authorization {
    wire::Authorization {
        name: name.to_owned(),
        namespace: namespace.to_string(),
        scope: wire::Scope::WorkloadSelector.into(),
        action: wire::Action::Deny.into(),
        rules: vec![wire::Rule { clauses }],
        dry_run: false,
    }
}

fn clause(one: wire::Match) -> wire::Clause {
    wire::Clause { matches: vec![one] }
}

/// Matches a peer without an identity.
fn nobody() -> wire::Match {
    wire::Match {
        not_principals: vec![wire::StringMatch {
            match_type: Some(MatchType::Presence(())),
        }],
        ..wire::Match::default()
    }
}
