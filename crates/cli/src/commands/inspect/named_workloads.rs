//! Services and workloads of a mesh by the names that kubectl and istioctl use: `svc/web.shop`, `deploy/web`, `pod/web-1`.

use std::sync::Arc;

use voile_analysis::explain;
use voile_kubernetes::pods::{PodOwner, PodReference};
use voile_model::mesh::MeshService;
use voile_model::mesh::workload::WorkloadType;
use voile_model::{Identity, Labels, Mesh, Namespace, nearest_host, nearest_name};

/// A service that a person names, and the workloads of it that are meant; none for all.
pub(crate) struct CalledService<'a> {
    pub(crate) service: &'a Arc<MeshService>,
    workloads: Option<Vec<String>>,
}

impl CalledService<'_> {
    /// Keeps the answers of the workloads that are meant. A waypoint answers for all of them.
    pub(crate) fn keep_meant<T>(&self, answers: &mut Vec<T>, workload: impl Fn(&T) -> &String) {
        let Some(meant) = &self.workloads else {
            return;
        };
        if answers.iter().any(|one| meant.contains(workload(one))) {
            answers.retain(|one| meant.contains(workload(one)));
        }
    }
}

/// Kinds whose name may be the workload of a metric.
const METRICS_OWNERS: [PodOwner; 4] = [
    PodOwner::Deployment,
    PodOwner::StatefulSet,
    PodOwner::DaemonSet,
    PodOwner::Pod,
];

/// A Pod, or a controller of Pods.
struct NamedWorkload<'a> {
    /// As in the answers of `explain`.
    name: String,
    namespace: &'a Namespace,
    labels: &'a Labels,
    service_account: &'a Arc<str>,
}

/// The service that a name means: a service's own name, or `KIND/NAME[.NAMESPACE]` of a Service, a Pod or a controller.
pub(crate) fn service_called<'a>(
    mesh: &'a Mesh,
    text: &str,
    own: &Namespace,
) -> Result<CalledService<'a>, String> {
    let unknown = || {
        let hint = similar_service(mesh, text, own);
        let hint = hint.map(|name| format!("; did you mean {name}?"));
        format!("there is no service `{text}`{}", hint.unwrap_or_default())
    };
    let reference: Option<PodReference> = text.parse().ok();
    let Some((owner, reference)) = reference.and_then(|one| Some((one.owner?, one))) else {
        let service = explain::service_called(mesh, text, own).ok_or_else(unknown)?;
        return Ok(CalledService {
            service,
            workloads: None,
        });
    };
    if owner == PodOwner::Service {
        let namespace = reference.namespace.as_deref().unwrap_or(own.as_str());
        let name = format!("{namespace}/{}", reference.name);
        let service = explain::service_called(mesh, &name, own).ok_or_else(unknown)?;
        return Ok(CalledService {
            service,
            workloads: None,
        });
    }
    let named = workloads(mesh, &reference, own);
    let first = named
        .first()
        .ok_or_else(|| format!("there is no workload `{text}`"))?;
    let mut services = services_that_select(mesh, first);
    let service = services
        .next()
        .ok_or_else(|| format!("no service selects `{text}`"))?;
    if let Some(other) = services.next() {
        return Err(format!(
            "several services select `{text}`: name one, such as svc/{} or svc/{}",
            service.name, other.name
        ));
    }
    Ok(CalledService {
        service,
        workloads: Some(named.iter().map(|one| one.name.clone()).collect()),
    })
}

/// The services of a workload as the proxies' metrics name it, `NAMESPACE/NAME`, or of a host.
pub(crate) fn services_of<'a>(mesh: &'a Mesh, name: &str) -> Vec<CalledService<'a>> {
    let Some((namespace, workload)) = name.split_once('/') else {
        let hosts = mesh.services.values();
        let called = hosts.filter(|service| service.key.hostname.as_str() == name);
        let called = called.map(|service| CalledService {
            service,
            workloads: None,
        });
        return called.collect();
    };
    // `voile up` numbers the pod of a Pod, too.
    let unnumbered = workload
        .strip_suffix("-0")
        .map(|name| (PodOwner::Pod, name));
    let owners = METRICS_OWNERS.map(|owner| (owner, workload));
    let mut named = owners.into_iter().chain(unnumbered).map(|(owner, name)| {
        let reference = PodReference {
            owner: Some(owner),
            namespace: None,
            name: name.to_owned(),
        };
        let namespace = Namespace::new(namespace);
        namespace.map_or_else(Vec::new, |own| workloads(mesh, &reference, &own))
    });
    let Some(named) = named.find(|named| !named.is_empty()) else {
        return Vec::new();
    };
    let called = services_that_select(mesh, &named[0]).map(|service| CalledService {
        service,
        workloads: Some(named.iter().map(|one| one.name.clone()).collect()),
    });
    called.collect()
}

fn services_that_select<'a>(
    mesh: &'a Mesh,
    workload: &NamedWorkload<'a>,
) -> impl Iterator<Item = &'a Arc<MeshService>> {
    let (namespace, labels) = (workload.namespace, workload.labels);
    mesh.services.values().filter(move |service| {
        let selector = service.selector.as_ref().filter(|one| !one.is_empty());
        service.key.namespace == *namespace
            && selector.is_some_and(|selector| selector.selects(labels))
    })
}

/// The service that a misspelt name means, as `NAMESPACE/NAME` or a host.
fn similar_service(mesh: &Mesh, text: &str, own: &Namespace) -> Option<String> {
    let text = text.strip_prefix("svc/").unwrap_or(text);
    let (namespace, name) = match (text.split_once('/'), text.split_once('.')) {
        (Some((namespace, name)), _) | (None, Some((name, namespace))) => (namespace, name),
        (None, None) => (own.as_str(), text),
    };
    let known = mesh.services.values();
    let known = known.map(|one| (one.key.namespace.as_str(), &*one.name));
    let meant = nearest_name((namespace, name), known);
    let meant = meant.map(|(namespace, name)| format!("{namespace}/{name}"));
    let hosts = mesh.services.keys().map(|key| key.hostname.as_str());
    meant.or_else(|| nearest_host(text, hosts).map(str::to_owned))
}

/// The identity of a Pod or of a controller's Pods; none if the text is no such name.
pub(crate) fn identity_of(
    mesh: &Mesh,
    text: &str,
    own: &Namespace,
) -> Option<Result<Identity, String>> {
    let reference: PodReference = text.parse().ok()?;
    reference
        .owner
        .filter(|owner| *owner != PodOwner::Service)?;
    let named = workloads(mesh, &reference, own);
    let Some(first) = named.first() else {
        return Some(Err(format!("there is no workload `{text}`")));
    };
    let (domain, namespace) = (&mesh.config.trust_domain, first.namespace);
    let whole = format!(
        "spiffe://{domain}/ns/{namespace}/sa/{}",
        first.service_account
    );
    Some(whole.parse().map_err(|error| format!("{text}: {error}")))
}

/// Pods by their own names or their owner's, and controllers that files declare.
fn workloads<'a>(
    mesh: &'a Mesh,
    reference: &PodReference,
    own: &Namespace,
) -> Vec<NamedWorkload<'a>> {
    let namespace = reference.namespace.as_deref().unwrap_or(own.as_str());
    let owner = reference.owner.unwrap_or(PodOwner::Pod);
    let owned = |kind: WorkloadType, name: &str| {
        let is_deployment = kind == WorkloadType::Deployment;
        name == reference.name && is_deployment == (owner == PodOwner::Deployment)
    };
    let pods = mesh.pods.values().filter(|pod| {
        let meant = match owner {
            PodOwner::Pod => *pod.name.name == *reference.name,
            _ => pod
                .owner
                .as_ref()
                .is_some_and(|(kind, name)| owned(*kind, name)),
        };
        pod.name.namespace.as_str() == namespace && meant
    });
    let pods = pods.map(|pod| ("Pod".to_owned(), &pod.name, &pod.template));
    let kind = owner.to_string();
    let controllers = mesh.deployments.values().filter(move |controller| {
        let name = &controller.name;
        let same = name.namespace.as_str() == namespace && *name.name == *reference.name;
        same && controller.kind.to_string() == kind
    });
    let controllers = controllers.map(|one| (one.kind.to_string(), &one.name, &one.template));
    let named = pods.chain(controllers);
    named
        .map(|(kind, name, template)| NamedWorkload {
            name: format!("{kind} {name}"),
            namespace: &name.namespace,
            labels: &template.labels,
            service_account: &template.service_account,
        })
        .collect()
}
