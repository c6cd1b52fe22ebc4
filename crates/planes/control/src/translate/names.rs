//! Which service a host name means to one caller: `*/hostname`, as DNS asks.

use std::sync::Arc;

use voile_model::mesh::{Mesh, ServiceOrigin};
use voile_model::names::{Candidate, Hosts};

/// The services of a mesh, each by the name of its resource. Of one host's services the asker's own comes first, then a
/// Kubernetes Service, then by namespace.
pub(crate) type Names = Hosts<Arc<str>>;

pub(super) fn of(mesh: &Mesh) -> Names {
    let candidates = mesh.services.values().map(|service| {
        let kubernetes = service.origin == ServiceOrigin::Kubernetes;
        Candidate {
            key: service.key.clone(),
            visibility: service.visibility.clone(),
            canonical: kubernetes,
            kubernetes: kubernetes.then(|| service.name.clone()),
            found: service.key.to_string().into(),
        }
    });
    candidates.collect()
}

#[cfg(test)]
mod tests {
    use voile_model::Namespace;

    use super::*;

    const MESH: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: blog}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: vault, namespace: bank, annotations: {networking.istio.io/exportTo: "."}}
spec: {ports: [{port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: squatter, namespace: aaa}
spec: {hosts: [reviews.shop.svc.cluster.local], ports: [{number: 80, name: http}], resolution: DNS}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: wild, namespace: aaa}
spec: {hosts: ["*.example.com", "api.example.com", "*.deep.example.com"], ports: [{number: 80, name: http}], resolution: STATIC}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: wild, namespace: shop}
spec: {hosts: ["*.example.com"], exportTo: ["."], ports: [{number: 80, name: http}], resolution: STATIC}
"#;

    #[test]
    fn a_host_means_the_nearest_service_that_the_asker_may_see() {
        let files = [voile_model::SourceFile::new("mesh.yaml", MESH)];
        let (mesh, problems) = voile_model::check(&files, None);
        assert!(
            !problems.iter().any(voile_model::Diagnostic::is_error),
            "{problems:?}"
        );
        let names = of(&mesh);
        for (asker, host, wanted) in [
            ("shop", "reviews", "shop/reviews.shop.svc.cluster.local"),
            ("blog", "reviews", "blog/reviews.blog.svc.cluster.local"),
            ("bank", "reviews", "nothing"),
            (
                "bank",
                "reviews.shop",
                "shop/reviews.shop.svc.cluster.local",
            ),
            (
                "bank",
                "reviews.shop.svc",
                "shop/reviews.shop.svc.cluster.local",
            ),
            (
                "bank",
                "REVIEWS.shop.svc.cluster.local.",
                "shop/reviews.shop.svc.cluster.local",
            ),
            // The namespace's own first, then Kubernetes' before whoever took its name.
            (
                "aaa",
                "reviews.shop.svc.cluster.local",
                "aaa/reviews.shop.svc.cluster.local",
            ),
            (
                "",
                "reviews.shop.svc.cluster.local",
                "shop/reviews.shop.svc.cluster.local",
            ),
            ("", "reviews", "nothing"),
            ("bank", "vault", "bank/vault.bank.svc.cluster.local"),
            ("shop", "vault.bank", "nothing"),
            ("shop", "vault.bank.svc.cluster.local", "nothing"),
            ("", "vault.bank", "nothing"),
            ("bank", "api.example.com", "aaa/api.example.com"),
            ("bank", "www.example.com", "aaa/*.example.com"),
            ("bank", "a.b.example.com", "aaa/*.example.com"),
            ("bank", "a.deep.example.com", "aaa/*.deep.example.com"),
            ("bank", "example.com", "nothing"),
            ("shop", "www.example.com", "shop/*.example.com"),
            // An exact name beats a nearer wildcard.
            ("shop", "api.example.com", "aaa/api.example.com"),
            ("shop", "*.example.com", "nothing"),
            ("shop", "", "nothing"),
            ("shop", "no_such..name", "nothing"),
        ] {
            let namespace = Namespace::new(asker);
            let found = names.find(namespace.as_ref(), host);
            assert_eq!(
                found.map_or("nothing", |name| name),
                wanted,
                "{asker} asks for {host}"
            );
        }
    }
}
