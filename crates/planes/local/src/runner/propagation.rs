//! Checks that the news of pods has reached all proxies. `voile up` says "ready" only when every sidecar knows every
//! pod that it may call, so that the user's first request finds its way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use serde_json::Value;
use voile_host::ready::http_get;
use voile_model::ResourceName;
use voile_model::mesh::MeshService;

use super::Runner;
use crate::addresses::PodIsolation;
use crate::application::ADMIN_PORT;
use crate::expand::{PodPlan, stands_behind};
use crate::process::Process;

impl Runner {
    /// Returns a proxy or control plane that does not yet know a ready pod, in words.
    pub(super) fn uninformed(&self) -> Option<String> {
        match self.ground.layout() {
            PodIsolation::Loopback(_) => self.uninformed_beforehand(),
            PodIsolation::Namespaces => self.uninformed_on_demand(),
        }
    }

    /// On loopback every sidecar is told beforehand of every pod that it may call.
    fn uninformed_beforehand(&self) -> Option<String> {
        let ready = self.ready();
        let runs = |name| self.pods.get(name).is_some_and(|pod| !pod.is_over());
        let sidecars = self.plan.pods.iter();
        let sidecars = sidecars.filter(|pod| pod.sidecar.is_some() && runs(&pod.name));
        sidecars.into_iter().find_map(|pod| {
            let known = SeenWorkloads::ask((pod.address, ADMIN_PORT).into(), "/config_dump");
            let known = known.unwrap_or_default();
            let callable = self.plan.pods.iter().filter(|other| {
                let behind = |service| stands_behind(service, &other.name, &other.template.labels);
                ready.contains(&other.name) && pod.reach.iter().any(|service| behind(service))
            });
            let missing = callable
                .map(|other| &other.name)
                .find(|name| !known.takes_traffic(name))?;
            Some(format!("{} to receive {missing}", sidecar_name(&pod.name)))
        })
    }

    /// A capturing sidecar and the node proxy subscribe when they are called. A proxy that subscribed early must have
    /// received the news; a later one asks a control plane that has it. A proxy that does not answer counts as
    /// uninformed.
    fn uninformed_on_demand(&self) -> Option<String> {
        if let Some(pod) = self.unknown_to_control() {
            return Some(format!("control to learn of {pod}"));
        }
        let ready = self.ready();
        let ready: Vec<(&ResourceName, Vec<String>)> = self
            .plan
            .pods
            .iter()
            .filter(|pod| ready.contains(&pod.name))
            .map(|pod| (&pod.name, self.behind(pod)))
            .collect();
        self.askable().find_map(|(name, known)| {
            let news = |(pod, behind): &&(&ResourceName, Vec<String>)| {
                known.as_ref().is_none_or(|known| known.misses(pod, behind))
            };
            let (pod, _) = ready.iter().find(news)?;
            Some(format!("{name} to learn of {pod}"))
        })
    }

    /// Returns a pod whose last change some control plane has not read.
    pub(super) fn unknown_to_control(&self) -> Option<ResourceName> {
        if self.ground.layout() != PodIsolation::Namespaces {
            return None;
        }
        let (ready, controls) = (
            self.ready(),
            self.ground.control_planes(self.options.control_planes),
        );
        controls.iter().find_map(|place| {
            let known =
                SeenWorkloads::ask(place.monitoring, "/debug/workloads").unwrap_or_default();
            let news = |pod: &&ResourceName| !known.takes_traffic(pod);
            let going = self.going.iter().map(|pod| &pod.name);
            let mut going = going.filter(|pod| known.takes_traffic(pod));
            ready.iter().find(news).or_else(|| going.next()).cloned()
        })
    }

    /// Returns a proxy that may still send requests to an ending pod, in words.
    pub(super) fn unaware(&self) -> Option<String> {
        let leaving: Vec<_> = self.leaving.iter().map(|one| &one.pod.plan.name).collect();
        self.askable().find_map(|(name, known)| {
            // A proxy that does not answer calls no pod, or answers before long.
            let known = known?;
            let pod = leaving.iter().find(|pod| known.takes_traffic(pod))?;
            Some(format!("{name} to forget {pod}"))
        })
    }

    /// Returns each running proxy, and its known workloads and services if it answers.
    fn askable(&self) -> impl Iterator<Item = (String, Option<SeenWorkloads>)> {
        let sidecars = self.pods.iter().filter_map(|(name, pod)| {
            let runs = pod.sidecar.as_ref().is_some_and(Process::is_running) && !pod.is_over();
            let address = pod.plan.address;
            let ask = |address| SeenWorkloads::ask((address, ADMIN_PORT).into(), "/config_dump");
            runs.then(|| {
                let known = match pod.namespace() {
                    Some(inside) => inside.run(|| ask(Ipv4Addr::LOCALHOST)).ok().flatten(),
                    None => ask(address),
                };
                (sidecar_name(name), known)
            })
        });
        let node = self.node.iter().map(|_| {
            let admin = (Ipv4Addr::LOCALHOST, ADMIN_PORT).into();
            (
                "the node proxy".to_owned(),
                SeenWorkloads::ask(admin, "/config_dump"),
            )
        });
        sidecars.chain(node)
    }

    /// The services that a pod stands behind, as proxies name them.
    fn behind(&self, pod: &PodPlan) -> Vec<String> {
        let services = self.mesh.services.values();
        let behind =
            |service: &&Arc<MeshService>| stands_behind(service, &pod.name, &pod.template.labels);
        let named = services
            .filter(behind)
            .map(|service| service.key.to_string());
        named.collect()
    }
}

fn sidecar_name(pod: &ResourceName) -> String {
    format!("the sidecar of {pod}")
}

/// Workloads and services that a proxy or control plane knows.
#[derive(Debug, Default)]
struct SeenWorkloads {
    /// By `namespace/name`: whether it takes traffic, and behind which services it stands.
    workloads: BTreeMap<String, (bool, BTreeSet<String>)>,
    services: BTreeSet<String>,
}

impl SeenWorkloads {
    /// Reads a page; `None` without an answer.
    fn ask(address: SocketAddr, path: &str) -> Option<Self> {
        let Ok((200, page)) = http_get(address, path) else {
            return None;
        };
        Some(Self::read(&serde_json::from_slice(&page).ok()?))
    }

    fn read(page: &Value) -> Self {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let workload = |one: &Value| {
            let name = format!("{}/{}", text(&one["namespace"]), text(&one["name"]));
            let services = list(&one["services"]).iter().map(text).collect();
            (name, (one["healthy"] == true, services))
        };
        let services = list(&page["services"]);
        Self {
            workloads: list(&page["workloads"]).iter().map(workload).collect(),
            services: services.iter().map(|one| text(&one["resource"])).collect(),
        }
    }

    fn takes_traffic(&self, pod: &ResourceName) -> bool {
        let known = self.workloads.get(&pod.to_string());
        known.is_some_and(|(healthy, _)| *healthy)
    }

    /// Returns true if the proxy lacks news of a ready pod behind these services. It either knows the pod as not
    /// ready; or it calls one of the services and does not know the pod.
    fn misses(&self, pod: &ResourceName, behind: &[String]) -> bool {
        let known = self.workloads.get(&pod.to_string());
        known.map_or_else(
            || behind.iter().any(|service| self.calls(service)),
            |(healthy, _)| !healthy,
        )
    }

    fn calls(&self, service: &str) -> bool {
        let stands = |(_, behind): &(bool, BTreeSet<String>)| behind.contains(service);
        self.services.contains(service) && self.workloads.values().any(stands)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use voile_model::Namespace;

    use super::*;

    #[test]
    fn who_has_asked_for_a_service_misses_its_new_pod_and_who_has_not_misses_nobody() {
        let web = "shop/web.shop.svc.cluster.local";
        let page = |services: &[&str], pods: &[(&str, bool)]| {
            let services = services.iter().map(|name| json!({"resource": name}));
            let pods = pods.iter().map(|(name, healthy)| {
                json!({"namespace": "shop", "name": name, "healthy": healthy, "services": [web]})
            });
            let (services, pods): (Vec<_>, Vec<_>) = (services.collect(), pods.collect());
            SeenWorkloads::read(&json!({"services": services, "workloads": pods}))
        };
        for (services, pods, misses, why) in [
            (&[][..], &[][..], false, "it never called"),
            (
                &[web],
                &[("web-0", true)],
                true,
                "it knows the old one alone",
            ),
            (
                &[web],
                &[("web-0", true), ("web-1", false)],
                true,
                "it does not take traffic yet",
            ),
            (
                &[web],
                &[("web-0", true), ("web-1", true)],
                false,
                "it knows",
            ),
            (
                &[web],
                &[],
                false,
                "a waypoint stands before it: pods are not its business",
            ),
            (
                &[],
                &[("web-0", true)],
                false,
                "it called one pod by its address",
            ),
        ] {
            let known = page(services, pods);
            let pod =
                ResourceName::new(Namespace::new("shop").expect("a name"), "web-1".to_owned());
            assert_eq!(known.misses(&pod, &[web.to_owned()]), misses, "{why}");
            let ready = pods.contains(&("web-1", true));
            assert_eq!(known.takes_traffic(&pod), ready, "{why}");
        }
    }
}
