//! Inbound capture: the settings of redirected connections to a sidecar's workload, and the port that a port name stands for.

use std::collections::HashMap;
use std::sync::Arc;

use voile_model::Port;
use voile_xds::wire::{CapturedPort, ProxyConfiguration};

use super::Registry;
use crate::plan::{CapturePlan, CapturedPortPlan};

impl Registry {
    pub(super) fn capture(&self, configuration: &ProxyConfiguration) -> Option<CapturePlan> {
        let said = configuration.capture.as_ref().filter(|_| self.capturing)?;
        let port = |(number, port): (&Port, &CapturedPort)| {
            let service = port
                .service
                .as_ref()
                .map(|(key, _)| self.service_labels(key));
            let plan = CapturedPortPlan {
                protocol: port.protocol,
                mutual_tls: port.mutual_tls,
                endpoint: port.endpoint,
                service,
            };
            (number.get(), plan)
        };
        Some(CapturePlan {
            mutual_tls: said.mutual_tls,
            ports: said.ports.iter().map(port).collect(),
            named: self.named_ports(&configuration.workload_uid),
        })
    }

    /// Ports of a workload by the services that it is behind. If several services share a host, the one in its own namespace
    /// counts, else the first by name.
    fn named_ports(&self, uid: &str) -> HashMap<Arc<str>, HashMap<u16, u16>> {
        let Some(own) = self.workloads.get(uid).map(|held| &held.value) else {
            return HashMap::new();
        };
        let mut named = HashMap::<Arc<str>, HashMap<u16, u16>>::new();
        let mut all: Vec<_> = own.services.iter().collect();
        all.sort_by_key(|(key, _)| key.namespace != own.namespace);
        for (key, ports) in all {
            let of_host = named.entry(key.hostname.as_str().into()).or_default();
            for (number, port) in ports {
                of_host.entry(number.get()).or_insert(port.get());
            }
        }
        named
    }
}
