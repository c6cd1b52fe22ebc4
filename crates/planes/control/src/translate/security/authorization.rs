//! Which AuthorizationPolicies hold for a workload, by name and version: the policies themselves travel once, whoever obeys
//! them, and a proxy obeys a configuration only with the policies that were in force beside it.

use std::collections::BTreeSet;
use std::sync::Arc;

use voile_model::mesh::authorization::AuthorizationAction;
use voile_model::mesh::{
    AuthorizationPolicy, ExtAuthzProvider, ExtAuthzTransport, Mesh, Provider, Workload,
};
use voile_proto::type_url;
use voile_xds::server::Resource;
use voile_xds::wire::{Authorizer, PolicyReference, ProxyConfiguration};

use crate::effective_policies::Names;
use crate::shards::Shards;
use crate::snapshot::MeshSnapshot;

/// The policies of a workload.
pub(in crate::translate) fn references(
    mesh: &Mesh,
    workload: &Workload,
    snapshot: &MeshSnapshot,
) -> Vec<PolicyReference> {
    let policies = mesh.authorization_for(workload).into_iter();
    policies.map(|policy| reference(policy, snapshot)).collect()
}

/// A policy in the version that is in force beside a configuration.
pub(in crate::translate) fn reference(
    policy: &AuthorizationPolicy,
    snapshot: &MeshSnapshot,
) -> PolicyReference {
    let name: Arc<str> = policy.name.to_string().into();
    let resource = snapshot.authorization.get(&name);
    PolicyReference {
        version: resource.map_or_else(|| "".into(), |resource| resource.version.clone()),
        name,
    }
}

/// Authorizers of a workload's CUSTOM policies. An authorizer that cannot be called is left out and reported: the proxy then
/// denies the requests that need it.
pub(in crate::translate) fn authorizers(
    mesh: &Mesh,
    workload: &Workload,
    problems: &mut Vec<String>,
) -> Vec<Authorizer> {
    let policies = match mesh.waypoint_run_by(workload) {
        Some(waypoint) => mesh.authorization_through(waypoint),
        None => mesh.authorization_for(workload),
    };
    let policies = policies.into_iter();
    let names: BTreeSet<_> = policies
        .filter(|policy| !policy.dry_run)
        .filter_map(|policy| match &policy.action {
            AuthorizationAction::Custom(provider) => Some(provider.name.clone()),
            AuthorizationAction::Allow | AuthorizationAction::Deny | AuthorizationAction::Audit => {
                None
            }
        })
        .collect();
    let mut found = Vec::new();
    for name in names {
        // Analysis says, with its place, that there is no such provider.
        let Some(Provider::ExtAuthz(provider)) = mesh.config.provider(&name) else {
            continue;
        };
        match authorizer(mesh, &name, &provider) {
            Ok(made) => found.push(made),
            Err(problem) => problems.push(format!(
                "provider `{name}`: {problem}; requests that CUSTOM policies match are denied"
            )),
        }
    }
    found
}

fn authorizer(
    mesh: &Mesh,
    name: &Arc<str>,
    provider: &ExtAuthzProvider,
) -> Result<Authorizer, String> {
    let service = crate::translate::telemetry::provider_service(mesh, &provider.service)?;
    Ok(Authorizer {
        name: name.clone(),
        service: service.key.clone(),
        port: provider.service.port,
        timeout: provider.timeout,
        fail_open: provider.fail_open,
        status_on_error: provider.status_on_error,
        body: provider.body,
        http: match &provider.transport {
            ExtAuthzTransport::Grpc => None,
            ExtAuthzTransport::Http(http) => Some(http.clone()),
        },
    })
}

/// The policies and keys that a configuration names, as whoever gets it may ask for them.
pub(in crate::translate) fn names(
    configuration: &ProxyConfiguration,
    snapshot: &MeshSnapshot,
) -> Names {
    let waypoint = configuration.waypoint.iter();
    let destinations = waypoint.flat_map(|waypoint| &waypoint.destinations);
    let policies = configuration.authorization_policies.iter();
    let policies = policies.chain(
        destinations
            .clone()
            .flat_map(|one| &one.authorization_policies),
    );
    let tokens = configuration.request_authentications.iter();
    let tokens = tokens.chain(destinations.flat_map(|one| &one.request_authentications));
    let name = |reference: &PolicyReference| reference.name.clone();
    let key_sets = configuration.key_sets.iter().cloned();
    [
        kept(
            type_url::AUTHORIZATION_POLICY,
            &snapshot.authorization,
            policies.map(name),
        ),
        kept(
            type_url::REQUEST_AUTHENTICATION,
            &snapshot.tokens,
            tokens.map(name),
        ),
        kept(type_url::KEY_SET, &snapshot.key_sets, key_sets),
    ]
    .into()
}

/// Names of one type, each as the snapshot holds it already.
fn kept(
    kind: &'static str,
    all: &Shards<Arc<Resource>>,
    names: impl Iterator<Item = Arc<str>>,
) -> (&'static str, BTreeSet<Arc<str>>) {
    let known = names.filter_map(|name| Some(Arc::clone(&all.get(&name)?.name)));
    (kind, known.collect())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::sync::Arc;

    use voile_model::SourceFile;

    use crate::translate::translate;

    const WORKLOADS: usize = 50;

    #[test]
    fn a_policy_is_held_once_whoever_obeys_it() {
        let mut text = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: many, namespace: shop}\nspec: {rules: ["
            .to_owned();
        for rule in 0..1_000 {
            // Writing into a String cannot fail.
            let _ = write!(text, "{{to: [{{operation: {{paths: [/api/{rule}]}}}}]}}, ");
        }
        text += "]}\n";
        for workload in 0..WORKLOADS {
            let _ = write!(
                text,
                "---\napiVersion: v1\nkind: Pod\n\
                 metadata: {{name: w{workload}, namespace: shop, labels: {{sidecar.istio.io/inject: \"true\"}}}}\n\
                 spec: {{serviceAccountName: a{}, containers: [{{name: app, image: none}}]}}\nstatus: {{podIP: 127.1.0.{}}}\n",
                workload % 5,
                workload + 1
            );
        }
        let (mesh, problems) = voile_model::check(&[SourceFile::new("all.yaml", text)], None);
        let wrong = problems.iter().find(|problem| problem.is_error());
        assert!(wrong.is_none(), "{wrong:?}");
        let (snapshot, _) = translate(&mesh, None);
        let policy = snapshot.authorization.get("shop/many").expect("a policy");
        assert_eq!(snapshot.configurations.len(), WORKLOADS);
        for private in snapshot.configurations.values() {
            let own = private.resource.body.len();
            assert!(own * 10 < policy.body.len(), "{own} bytes: {private:?}");
            let names = private.obeys.values().flatten();
            let mut shared = names.filter(|name| Arc::ptr_eq(name, &policy.name));
            assert!(shared.next().is_some(), "{private:?}");
        }
    }
}
