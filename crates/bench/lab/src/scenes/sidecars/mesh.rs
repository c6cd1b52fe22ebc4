//! Folder of a mesh of many sidecars: pods with an address each, services over them, and for every pod a Sidecar with its
//! listeners. One listener leads callers to the one server behind all pods; the others are for the services that the pod uses.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

/// Namespace of all resources.
pub(super) const NAMESPACE: &str = "many";
/// Service account of all pods: one token is enough for all.
pub(super) const ACCOUNT: &str = "many/app";
/// Pods behind a service.
const PODS_EACH: u32 = 2;
/// Addresses of a mesh are 127.S.1.1 to 127.S.250.250.
const RANK: u32 = 250;
pub(super) const MAX_PODS: u32 = RANK * RANK;

/// The mesh in numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeshSize {
    pub(super) sidecars: u32,
    pub(super) used: u32,
    /// S of 127.S.0.0/16.
    pub(super) block: u8,
    /// Port of all services, which is that of every sidecar's listener for its application.
    pub(super) service: u16,
    /// Port of all pods.
    pub(super) pod: u16,
    /// The server behind all pods.
    pub(super) echo: u16,
}

/// Services of a mesh of so many sidecars: half as many, and never fewer than each uses.
pub(super) fn services(sidecars: u32, used: u32) -> u32 {
    (sidecars / PODS_EACH).max(used).max(1)
}

impl MeshSize {
    pub(super) fn services(&self) -> u32 {
        services(self.sidecars, self.used)
    }

    /// The address of a pod.
    pub(super) fn address(&self, pod: u32) -> IpAddr {
        let octet = |number: u32| 1 + u8::try_from(number % RANK).unwrap_or(0);
        Ipv4Addr::new(127, self.block, octet(pod / RANK), octet(pod)).into()
    }

    /// The name of a pod.
    pub(super) fn pod(&self, pod: u32) -> String {
        format!("p{pod:05}")
    }

    /// The host of a service.
    pub(super) fn host(&self, service: u32) -> String {
        format!("s{service:05}.{NAMESPACE}.svc.cluster.local")
    }

    /// The services that a pod uses: the first, which all use, and others spread evenly.
    fn used(&self, pod: u32) -> Vec<u32> {
        let (all, own) = (self.services(), self.used.max(1) - 1);
        let rest = all.saturating_sub(1).max(1);
        let others = (0..own.min(all - 1)).map(|at| 1 + (pod * own + at) % rest);
        std::iter::once(0).chain(others).collect()
    }

    /// Pods behind a service.
    pub(super) fn behind(&self, service: u32) -> impl Iterator<Item = u32> {
        (service..self.sidecars).step_by(self.services() as usize)
    }

    fn pod_text(&self, pod: u32) -> String {
        let (name, address) = (self.pod(pod), self.address(pod));
        let app = format!("s{:05}", pod % self.services());
        let hosts: Vec<String> = self
            .used(pod)
            .into_iter()
            .map(|service| format!("{NAMESPACE}/{}", self.host(service)))
            .collect();
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {NAMESPACE}, labels: {{app: {app}, pod: {name}}}}}\n\
             spec: {{serviceAccountName: app, containers: [{{name: app, image: none}}]}}\nstatus: {{phase: Running, podIP: {address}}}\n\
             ---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\nspec:\n\
             \x20 workloadSelector: {{labels: {{pod: {name}}}}}\n\
             \x20 ingress:\n  - port: {{number: {}, protocol: HTTP, name: http}}\n    captureMode: NONE\n    defaultEndpoint: 127.0.0.1:{}\n\
             \x20 egress:\n  - port: {{number: {}, protocol: HTTP, name: http}}\n    bind: {address}\n    captureMode: NONE\n    hosts: [{}]\n",
            self.pod,
            self.echo,
            self.service,
            hosts.join(", ")
        )
    }

    fn service_text(&self, service: u32) -> String {
        let name = format!("s{service:05}");
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\n\
             spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: {}, targetPort: {}}}]}}\n",
            self.service, self.pod
        )
    }

    /// Writes the folder.
    pub(super) fn write(&self, folder: &Path) -> Result<(), String> {
        let (pods, services) = (folder.join("pods"), folder.join("services"));
        for made in [&pods, &services] {
            fs::create_dir_all(made).map_err(|e| format!("{}: {e}", made.display()))?;
        }
        let write = |path: std::path::PathBuf, text: &str| {
            fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
        };
        let first = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}, labels: {{istio-injection: enabled}}}}\n\
             ---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: app, namespace: {NAMESPACE}}}\n\
             ---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: all, namespace: {NAMESPACE}}}\n\
             spec: {{mtls: {{mode: STRICT}}}}\n"
        );
        write(folder.join("mesh.yaml"), &first)?;
        for service in 0..self.services() {
            write(
                services.join(format!("{service:05}.yaml")),
                &self.service_text(service),
            )?;
        }
        for pod in 0..self.sidecars {
            write(pods.join(format!("{pod:05}.yaml")), &self.pod_text(pod))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_pod_has_an_address_of_its_own_and_every_service_is_used_and_stood_behind() {
        let layout = MeshSize {
            sidecars: 2_000,
            used: 10,
            block: 90,
            service: 8000,
            pod: 8080,
            echo: 9000,
        };
        let pods = 0..layout.sidecars;
        let addresses: BTreeSet<IpAddr> = pods.clone().map(|pod| layout.address(pod)).collect();
        assert_eq!(addresses.len(), 2_000);
        assert_eq!(layout.services(), 1_000);
        let mut used = BTreeSet::new();
        for pod in pods {
            let own = layout.used(pod);
            let distinct: BTreeSet<u32> = own.iter().copied().collect();
            assert_eq!((distinct.len(), own[0]), (10, 0), "pod {pod} uses {own:?}");
            used.extend(distinct);
        }
        assert_eq!(used, (0..1_000).collect());
        assert_eq!(layout.behind(7).collect::<Vec<_>>(), [7, 1_007]);
        // The last address there is.
        assert_eq!(layout.address(MAX_PODS - 1).to_string(), "127.90.250.250");
        let few = MeshSize {
            sidecars: 3,
            ..layout
        };
        assert_eq!((few.services(), few.used(2).len()), (10, 10));
    }
}
