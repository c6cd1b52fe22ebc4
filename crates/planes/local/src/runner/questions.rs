//! Answers to commands that ask by the control socket.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

use super::{Dataplane, Runner};
use crate::application::ADMIN_PORT;
use crate::control_socket::{ControlSocket, PageAddress, RunQuestion};
use crate::node;
use crate::pod_run::PodRun;
use crate::process::Process;

impl Runner {
    pub(super) fn answer_questions(&self) {
        let questions = self.socket.iter().flat_map(ControlSocket::questions);
        // Who asked may have gone.
        questions.for_each(|question| match question {
            RunQuestion::State(to) => drop(to.send(self.state_page())),
            RunQuestion::Proxy(name, to) => drop(to.send(self.page_address(&name))),
        });
    }

    /// The state of the run, for programs.
    fn state_page(&self) -> Value {
        let view = self.view();
        let workloads = view.rows.iter().map(|row| {
            json!({
                "name": row.name, "ready": row.ready, "wanted": row.wanted, "refused": row.refused,
                "identity": row.identity, "restarts": row.restarts,
            })
        });
        let published = view.reach.iter();
        let published = published.map(|(service, url)| json!({ "service": service, "url": url }));
        let pods = self.pods.values().filter(|pod| !pod.is_over());
        let pods = pods.map(|pod| {
            let name = &pod.plan.name;
            json!({
                "namespace": name.namespace.as_str(), "name": &*name.name,
                "workload": pod.plan.workload(), "proxy": has_proxy(pod),
            })
        });
        let node = self.node.iter().map(|_| {
            json!({
                "namespace": node::NAMESPACE, "name": node::NAME, "workload": node::NAME,
                "proxy": true,
            })
        });
        json!({
            "folder": view.folder,
            "version": env!("CARGO_PKG_VERSION"),
            "ready": self.was_ready,
            "waiting_for": self.waiting_for,
            "uptime_seconds": view.uptime.as_secs(),
            "isolation": if self.ground.network().is_some() { "netns" } else { "loopback" },
            "by_node": self.options.dataplane == Dataplane::Node,
            "control_planes": self.controls.len(),
            "services": view.services,
            "published": published.collect::<Vec<_>>(),
            "workloads": workloads.collect::<Vec<_>>(),
            "pods": pods.chain(node).collect::<Vec<_>>(),
            "problems": view.troubles,
            "events": view.events,
        })
    }

    fn page_address(&self, name: &str) -> Option<PageAddress> {
        let localhost = SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT));
        if self.node.is_some() && name == node::NODE_PROXY {
            return Some(PageAddress {
                address: localhost,
                namespace: None,
            });
        }
        let mut pods = self.pods.iter();
        let (_, pod) = pods.find(|(own, _)| own.to_string() == name)?;
        let namespace = pod.namespace().cloned();
        let address = match namespace {
            Some(_) => localhost,
            None => (pod.plan.address, ADMIN_PORT).into(),
        };
        has_proxy(pod).then_some(PageAddress { address, namespace })
    }
}

fn has_proxy(pod: &PodRun) -> bool {
    pod.sidecar.as_ref().is_some_and(Process::is_running) && !pod.is_over()
}
