//! Whether the news has reached everybody: "ready" is said only when every sidecar knows every pod that it may call, so that
//! the first request of who reads it finds its way.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use serde_json::Value;
use voile_host::ready::http_get;
use voile_model::ResourceName;

use super::Runner;
use crate::addresses::Layout;
use crate::application::ADMIN_PORT;
use crate::block::ControlPlace;
use crate::expand::stands_behind;

impl Runner {
    /// Who does not yet know a pod that is ready, in words.
    pub(super) fn uninformed(&self) -> Option<String> {
        match self.ground.layout() {
            Layout::Loopback(_) => self.uninformed_beforehand(),
            Layout::Namespaces => self.uninformed_on_demand(),
        }
    }

    /// On loopback every sidecar is told beforehand of every pod that it may call.
    fn uninformed_beforehand(&self) -> Option<String> {
        let ready = self.ready();
        let runs = |name| self.pods.get(name).is_some_and(|pod| !pod.is_over());
        let sidecars = self.plan.pods.iter();
        let sidecars = sidecars.filter(|pod| pod.sidecar.is_some() && runs(&pod.name));
        sidecars.into_iter().find_map(|pod| {
            let known = known_workloads(pod.address).healthy;
            let callable = self.plan.pods.iter().filter(|other| {
                let behind = |service| stands_behind(service, &other.name, &other.template.labels);
                ready.contains(&other.name) && pod.reach.iter().any(|service| behind(service))
            });
            let missing = callable
                .map(|other| &other.name)
                .find(|name| !known.contains(&name.to_string()))?;
            Some(format!("{} to learn of {missing}", sidecar_name(&pod.name)))
        })
    }

    /// A sidecar that captures asks when it is called: who asked early must have heard the news, who asks later asks a
    /// control plane that has.
    fn uninformed_on_demand(&self) -> Option<String> {
        let controls = self.ground.control_planes(self.options.control_planes);
        let unready = Some(self.going.len() as u64);
        let knows = |place: &ControlPlace| unready_workloads(place.monitoring) == unready;
        if !controls.iter().all(knows) {
            return Some("control to learn that all pods are ready".to_owned());
        }
        let ready: BTreeSet<_> = self.ready().iter().map(ToString::to_string).collect();
        self.pods.iter().find_map(|(name, pod)| {
            let asked = pod.sidecar.is_some() && !pod.is_over();
            let namespace = pod.namespace().filter(|_| asked)?;
            let known = namespace
                .run(|| known_workloads(Ipv4Addr::LOCALHOST))
                .ok()?;
            let stale = known
                .unhealthy
                .iter()
                .find(|other| ready.contains(*other))?;
            Some(format!("{} to learn of {stale}", sidecar_name(name)))
        })
    }
}

fn sidecar_name(pod: &ResourceName) -> String {
    format!("the sidecar of {pod}")
}

/// `namespace/name` of workloads.
#[derive(Debug, Default)]
struct Known {
    /// Those that a sidecar would send requests to.
    healthy: BTreeSet<String>,
    /// Those that it would not.
    unhealthy: BTreeSet<String>,
}

/// What the sidecar whose administration is at this address knows; nothing when it does not answer.
fn known_workloads(address: Ipv4Addr) -> Known {
    let admin = SocketAddr::from((address, ADMIN_PORT));
    let Ok((200, dump)) = http_get(admin, "/config_dump") else {
        return Known::default();
    };
    let dump: Value = serde_json::from_slice(&dump).unwrap_or_default();
    let mut known = Known::default();
    for workload in dump["workloads"].as_array().into_iter().flatten() {
        let (Some(namespace), Some(name)) =
            (workload["namespace"].as_str(), workload["name"].as_str())
        else {
            continue;
        };
        let name = format!("{namespace}/{name}");
        match workload["healthy"] == true {
            true => known.healthy.insert(name),
            false => known.unhealthy.insert(name),
        };
    }
    known
}

/// How many workloads the control plane believes to take no traffic.
fn unready_workloads(monitoring: SocketAddr) -> Option<u64> {
    let (_, status) = http_get(monitoring, "/debug/status").ok()?;
    let status: Value = serde_json::from_slice(&status).ok()?;
    status["unready_workloads"].as_u64()
}
