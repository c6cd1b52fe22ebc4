//! PeerAuthentications as Istio's `Authorization`: a node proxy refuses plaintext by a DENY policy for whoever has no identity.
//! One static policy for workloads that are STRICT as a whole, and one for each PeerAuthentication whose ports differ.

use std::collections::BTreeSet;

use voile_model::mesh::authorization::Matches;
use voile_model::mesh::{Mesh, MutualTlsMode, PeerAuthentication, Workload};
use voile_model::{Labels, Namespace, ResourceName};
use voile_policy::authorization::Text;
use voile_policy::connections::{
    CallerClause, CallerMatch, CallerRule, ConnectionAction, ConnectionPolicy, PolicyScope,
};
use voile_policy::{Mode, inherited, selecting};

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

/// All such policies.
pub(super) fn policies(mesh: &Mesh) -> Vec<(ResourceName, ConnectionPolicy)> {
    let root = &mesh.config.root_namespace;
    let mut all = Vec::new();
    if !mesh.peer_authentications.is_empty() {
        let name = ResourceName::new(root.clone(), STATIC_STRICT);
        all.push((name, refusing(vec![nobody()])));
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
        let (any_of, none_of) = match found.strict {
            true => (Vec::new(), ports),
            false => (ports, Vec::new()),
        };
        let among = CallerMatch {
            destination_ports: Matches { any_of, none_of },
            ..CallerMatch::default()
        };
        let name = format!("{CONVERTED}{}", policy.name.name);
        let name = ResourceName::new(namespace.clone(), name);
        all.push((name, refusing(vec![nobody(), among])));
    }
    all
}

/// Returns true if the policy of this name was made of PeerAuthentications.
pub(super) fn is_converted(name: &str) -> bool {
    let name = name.split_once('/').map_or(name, |(_, name)| name);
    name == STATIC_STRICT || name.starts_with(CONVERTED)
}

/// Refuses connections that all of these match.
fn refusing(all: Vec<CallerMatch>) -> ConnectionPolicy {
    let all = all.into_iter();
    let clauses = all.map(|one| CallerClause { matches: vec![one] });
    let rule = CallerRule {
        clauses: clauses.collect(),
    };
    ConnectionPolicy {
        scope: PolicyScope::Named,
        action: ConnectionAction::Deny,
        dry_run: false,
        rules: vec![rule],
    }
}

/// Matches a peer without an identity.
fn nobody() -> CallerMatch {
    CallerMatch {
        principals: Matches {
            any_of: Vec::new(),
            none_of: vec![Text::Present],
        },
        ..CallerMatch::default()
    }
}
