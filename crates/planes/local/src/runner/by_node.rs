//! The node proxy of a mesh that has one: its process, and its agent.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Instant;

use voile_host::isolation::{Privileges, ProcessIsolation};
use voile_host::netns;
use voile_identity::TokenSubject;
use voile_model::mesh::MeshConfig;
use voile_model::{Namespace, ResourceName};
use voile_zds::PodIdentity;

use super::Runner;
use crate::application::{ApplicationContext, node_proxy};
use crate::expand::PodPlan;
use crate::host_capabilities::HostCapabilities;
use crate::node::{self, NodeAgent, uid};
use crate::observer::ObservedProxy;
use crate::process::Process;
use crate::runner::options::{RunnerOptions, UpError};

/// See the module.
#[derive(Debug)]
pub(super) struct ByNode {
    agent: NodeAgent,
    pub(super) process: Process,
}

/// Subject of the node proxy's token.
pub(super) fn node_subject() -> TokenSubject {
    TokenSubject {
        namespace: node::NAMESPACE.to_owned(),
        service_account: node::NAME.to_owned(),
        pod: Some(node::NAME.to_owned()),
    }
}

impl ByNode {
    /// The agent listens at once; the proxy begins with the first tick.
    pub(super) fn start(
        around: &ApplicationContext<'_>,
        ground: &HostCapabilities,
        options: &RunnerOptions,
        (config, runtime): (&MeshConfig, &tokio::runtime::Handle),
    ) -> Result<Self, UpError> {
        let socket = around.run.path().join("zds");
        let control = ground.control_planes(options.control_planes);
        // Without root, the process has these privileges over the mesh's networks alone, and loses them by executing
        // a program.
        let place = ProcessIsolation::new(netns::Namespace::current()?, Privileges::NodeProxy);
        let recipe = node_proxy(around, config, &control, &socket).at(Some(place));
        Ok(Self {
            agent: NodeAgent::start(&socket, runtime)?,
            process: Process::new(recipe),
        })
    }
}

impl Runner {
    /// Keeps the proxy running and informed, and starts the applications of pods that it serves. Returns a message
    /// for the user.
    pub(super) fn look_after_node(&mut self, now: Instant) -> Option<String> {
        let node = self.node.as_mut()?;
        let said = node.process.tick(now);
        let mut pods = BTreeMap::new();
        // An ending pod is served until it is gone: its callers do not know yet.
        let leaving = self.leaving.iter_mut().map(|leaving| &mut leaving.pod);
        let all = self.pods.values_mut().chain(leaving);
        for pod in all.filter(|pod| pod.plan.is_ambient()) {
            let Some(inside) = pod.namespace().cloned() else {
                continue;
            };
            let name = &pod.plan.name;
            let Ok(uid) = uid(name, &inside) else {
                continue;
            };
            let who = PodIdentity {
                name: name.name.to_string(),
                namespace: name.namespace.to_string(),
                service_account: pod.plan.template.service_account.to_string(),
            };
            pod.wait_for_node(!node.agent.serves(&uid));
            pods.insert(uid, (who, inside));
        }
        node.agent.tell(pods);
        said
    }

    /// Returns the ending pods that the node proxy serves. A sidecar serves its pod even when the control plane no
    /// longer knows the pod. A node proxy cuts connections to a pod that the control plane does not know.
    pub(super) fn going(&self) -> Vec<PodPlan> {
        let comes_anew = |pod: &PodPlan| self.pods.contains_key(&pod.name);
        let leaving = self.leaving.iter().map(|leaving| &leaving.pod.plan);
        let served = leaving.filter(|pod| self.plan.by_node && pod.is_ambient());
        served.filter(|pod| !comes_anew(pod)).cloned().collect()
    }

    /// A new node proxy takes over from the running one.
    pub(super) fn replace_node(&mut self) {
        let replaced = self.node.as_mut().map(|node| node.process.replace());
        if let Some(Err(error)) = replaced {
            self.event(&format!("the node proxy stays: {error}"));
        }
    }

    /// The node proxy, for the observer: its traffic is that of the pods that it serves.
    pub(super) fn node_target(&self) -> Option<(ResourceName, ObservedProxy)> {
        let node = self.node.as_ref()?;
        let name = ResourceName::new(Namespace::new(node::NAMESPACE)?, node::NAME);
        let target = ObservedProxy {
            address: Ipv4Addr::LOCALHOST,
            namespace: None,
            sidecar: node.process.is_running(),
            endpoints: Vec::new(),
            generation: 0,
        };
        Some((name, target))
    }

    /// A pod that the node proxy does not serve yet.
    pub(super) fn unserved(&self) -> Option<String> {
        let node = self.node.as_ref()?;
        let waits = |pod: &&crate::pod_run::PodRun| {
            let inside = pod.namespace();
            let uid = inside.and_then(|inside| uid(&pod.plan.name, inside).ok());
            pod.plan.is_ambient() && !uid.is_some_and(|uid| node.agent.serves(&uid))
        };
        let pod = self.pods.values().find(waits)?;
        Some(format!("{} to be served by the node proxy", pod.plan.name))
    }
}
