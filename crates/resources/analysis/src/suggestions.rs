//! Help for references to what does not exist: the name that was probably meant, and what to do if it was not.

use voile_model::{
    Hostname, Labels, Mesh, Namespace, ResourceName, did_you_mean, nearest_host, nearest_name,
};

use crate::services::shown;

/// For a host that no service has.
pub(crate) fn for_host(mesh: &Mesh, host: &Hostname, otherwise: &str) -> String {
    let mut known = mesh.services.keys().map(|key| key.hostname.as_str());
    // A known host lacks something else, such as a port.
    let meant = match known.clone().any(|known| known == host.as_str()) {
        true => None,
        false => nearest_host(host.as_str(), &mut known),
    };
    did_you_mean(meant, otherwise)
}

/// A missing host, for [`voile_model::Diagnostic::lacks`].
pub(crate) fn missing_host(host: &Hostname) -> String {
    let mut labels = host.as_str().split('.');
    match (labels.next(), labels.next(), labels.next()) {
        (Some(name), Some(namespace), Some("svc")) => format!("Service {namespace}/{name}"),
        _ => format!("host {host}"),
    }
}

/// Missing workloads, for the same.
pub(crate) fn missing_workloads(namespace: &Namespace, selector: &Labels) -> String {
    format!("workloads {namespace} {}", shown(selector))
}

/// For a resource that is not declared, of those of its kind.
pub(crate) fn for_name<'a>(
    name: &ResourceName,
    known: impl IntoIterator<Item = &'a ResourceName>,
    otherwise: &str,
) -> String {
    let known = known.into_iter();
    let known = known.map(|one| (one.namespace.as_str(), &*one.name));
    let meant = nearest_name((name.namespace.as_str(), &name.name), known);
    did_you_mean(
        meant.map(|(namespace, name)| format!("{namespace}/{name}")),
        otherwise,
    )
}
