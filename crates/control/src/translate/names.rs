//! Which service a host name means to one caller: `*/hostname`, as DNS asks. Exact names come first, then the short forms
//! of Kubernetes Services (a resolver's search list is not always there), then wildcard hosts, the longest first.

use std::collections::HashMap;
use std::sync::Arc;

use voile_model::mesh::{Mesh, Service, ServiceOrigin, Visibility};
use voile_model::{Hostname, Namespace};

/// One service of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    namespace: Namespace,
    visibility: Visibility,
    kubernetes: bool,
    resource: Arc<str>,
}

/// Services by host name. Of one host's services the asker's own comes first, then a Kubernetes Service, then by namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Names {
    by_host: HashMap<Hostname, Vec<Candidate>>,
    /// Kubernetes Services without the cluster's domain (`reviews.shop.svc`): what short forms lead to.
    by_short: HashMap<String, Hostname>,
}

impl Names {
    pub(crate) fn new(mesh: &Mesh) -> Self {
        let mut names = Self::default();
        for service in mesh.services.values() {
            names.add(service);
        }
        for candidates in names.by_host.values_mut() {
            candidates
                .sort_by_key(|candidate| (!candidate.kubernetes, candidate.namespace.clone()));
        }
        names
    }

    fn add(&mut self, service: &Service) {
        let host = &service.key.hostname;
        let kubernetes = service.origin == ServiceOrigin::Kubernetes;
        self.by_host
            .entry(host.clone())
            .or_default()
            .push(Candidate {
                namespace: service.key.namespace.clone(),
                visibility: service.visibility.clone(),
                kubernetes,
                resource: service.key.to_string().into(),
            });
        if kubernetes {
            let short = format!("{}.{}.svc", service.name, service.key.namespace);
            self.by_short.insert(short, host.clone());
        }
    }

    /// The resource that `host` means to a caller in `namespace`; a caller of no namespace sees what is public.
    pub(crate) fn find(&self, namespace: Option<&Namespace>, host: &str) -> Option<&Arc<str>> {
        let host = Hostname::new(host).filter(|host| !host.is_wildcard())?;
        self.visible(namespace, &host)
            .or_else(|| self.short(namespace, host.as_str()))
            .or_else(|| self.wildcard(namespace, host.as_str()))
    }

    fn visible(&self, namespace: Option<&Namespace>, host: &Hostname) -> Option<&Arc<str>> {
        let sees = |candidate: &&Candidate| match namespace {
            Some(namespace) => candidate.visibility.includes(namespace),
            None => candidate.visibility == Visibility::Public,
        };
        let candidates = self.by_host.get(host)?;
        let own = candidates
            .iter()
            .filter(sees)
            .find(|candidate| Some(&candidate.namespace) == namespace);
        own.or_else(|| candidates.iter().find(sees))
            .map(|candidate| &candidate.resource)
    }

    /// `reviews` in the caller's namespace, `reviews.shop`, `reviews.shop.svc`.
    fn short(&self, namespace: Option<&Namespace>, host: &str) -> Option<&Arc<str>> {
        let full = match host.split('.').count() {
            1 => format!("{host}.{}.svc", namespace?),
            2 => format!("{host}.svc"),
            _ => host.to_owned(),
        };
        self.visible(namespace, self.by_short.get(&full)?)
    }

    fn wildcard(&self, namespace: Option<&Namespace>, host: &str) -> Option<&Arc<str>> {
        let ends = host.match_indices('.').map(|(at, _)| &host[at..]);
        ends.chain([""]).find_map(|end| {
            let pattern = Hostname::new(&format!("*{end}"))?;
            self.visible(namespace, &pattern)
        })
    }
}

#[cfg(test)]
mod tests {
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
        let names = Names::new(&mesh);
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
