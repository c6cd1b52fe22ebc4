//! Names of Kubernetes Services, told apart by how they look from those that DNS elsewhere may know.

use super::CLUSTER_DOMAIN;

/// Returns true if only the mesh can know this name. If the mesh does not know it, another resolver would give a wrong
/// answer, or would learn the called name.
#[must_use]
pub fn is_mesh_name(host: &str) -> bool {
    !host.contains('.') || host.ends_with(".svc") || is_service_name(host)
}

/// Returns true if the name is below `svc` of the cluster's domain. A name there that the mesh does not know does not
/// exist.
#[must_use]
pub fn is_service_name(host: &str) -> bool {
    host.strip_suffix(CLUSTER_DOMAIN)
        .is_some_and(|rest| rest == "svc." || rest.ends_with(".svc."))
}

/// `web-0.db.shop.svc.cluster.local` → `web-0` and the service below which it is.
#[must_use]
pub fn pod_of_service(host: &str) -> Option<(&str, &str)> {
    let (pod, service) = host.split_once('.')?;
    is_service_name(service).then_some((pod, service))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_only_the_mesh_can_know_are_told_apart() {
        for (host, mesh, service) in [
            ("reviews", true, false),
            ("reviews.shop", false, false),
            ("reviews.shop.svc", true, false),
            ("reviews.shop.svc.cluster.local", true, true),
            ("svc.cluster.local", true, true),
            ("a.b.c.d.svc.cluster.local", true, true),
            ("10-0-0-1.shop.pod.cluster.local", false, false),
            ("cluster.local", false, false),
            ("xsvc.cluster.local", false, false),
            ("reviews.shop.svc.cluster.locals", false, false),
            ("example.com", false, false),
        ] {
            assert_eq!(
                (is_mesh_name(host), is_service_name(host)),
                (mesh, service),
                "{host}"
            );
        }
        assert_eq!(
            pod_of_service("web-0.db.shop.svc.cluster.local"),
            Some(("web-0", "db.shop.svc.cluster.local"))
        );
        assert_eq!(pod_of_service("web-0.example.com"), None);
    }
}
