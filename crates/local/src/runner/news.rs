//! Whether the news has reached everybody: "ready" is said only when every sidecar knows every pod that it may call, so that
//! the first request of who reads it finds its way.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::Value;
use voile_host::ready::http_get;
use voile_model::ResourceName;

use super::Runner;
use crate::application::ADMIN_PORT;
use crate::expand::{PodPlan, stands_behind};

impl Runner {
    /// The first sidecar that does not yet know a pod it may call, in words.
    pub(super) fn uninformed(&self) -> Option<String> {
        if self.ground.network().is_some() {
            // A sidecar that captures asks when it is called; nobody has to learn beforehand.
            return None;
        }
        let ready = self.ready();
        let sidecars = self.plan.pods.iter().filter(|pod| pod.sidecar.is_some());
        sidecars.into_iter().find_map(|pod| {
            let known = known_workloads(pod);
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
}

fn sidecar_name(pod: &ResourceName) -> String {
    format!("the sidecar of {pod}")
}

/// `namespace/name` of the workloads that the pod's sidecar would send requests to; none when it does not answer.
fn known_workloads(pod: &PodPlan) -> BTreeSet<String> {
    let admin = SocketAddr::from((pod.address, ADMIN_PORT));
    let Ok((200, dump)) = http_get(admin, "/config_dump") else {
        return BTreeSet::new();
    };
    let dump: Value = serde_json::from_slice(&dump).unwrap_or_default();
    let workloads = dump["workloads"].as_array().into_iter().flatten();
    workloads
        .filter(|workload| workload["healthy"] == true)
        .filter_map(|workload| {
            Some(format!(
                "{}/{}",
                workload["namespace"].as_str()?,
                workload["name"].as_str()?
            ))
        })
        .collect()
}
