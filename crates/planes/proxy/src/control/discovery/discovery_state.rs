//! Registry and sockets, behind the lock that the threads of discovery and DNS share.

use voile_proto::type_url;
use voile_xds::client::{Rejection, Update};

use crate::control::network::sockets::{ListenerDirection, Sockets};
use crate::registry::Registry;

/// State that the discovery stream's handler changes. Locked only on the control thread, and never held over a
/// wait.
#[derive(Default)]
pub(in crate::control) struct DiscoveryState {
    pub(in crate::control) registry: Registry,
    pub(in crate::control) sockets: Sockets,
}

impl DiscoveryState {
    /// Applies a response and returns the rejections. A taken port rejects the configuration by name, yet the other
    /// listeners serve.
    pub(in crate::control) fn apply(&mut self, update: &Update) -> Vec<Rejection> {
        let mut rejections = self.registry.apply(update);
        if *update.type_url == *type_url::PROXY_CONFIGURATION
            && let Some(held) = &self.registry.configuration
        {
            let configuration = &held.value;
            let inbound = self
                .registry
                .inbound_wanted(configuration)
                .map(|l| (ListenerDirection::Inbound, l.bind, l.name.clone()));
            let outbound = configuration
                .outbound
                .iter()
                .map(|l| (ListenerDirection::Outbound, l.bind, l.name.clone()));
            let outside = self.registry.gateway.binds();
            let outside = outside.chain(self.registry.tunnels());
            let outside = outside.map(|(bind, name)| (ListenerDirection::Gateway, bind, name));
            let datagrams = self.registry.gateway.http3_binds();
            let datagrams =
                datagrams.map(|(bind, name)| (ListenerDirection::Datagrams, bind, name));
            let wanted = inbound.chain(outbound).chain(outside).chain(datagrams);
            let mut refusals = self.sockets.want(wanted);
            for trouble in self.registry.gateway.troubles() {
                tracing::error!(trouble, "cannot use a certificate");
                refusals.push(trouble);
            }
            if let (false, Some(resource)) = (refusals.is_empty(), update.added.first()) {
                rejections.push(Rejection {
                    name: resource.name.clone(),
                    reason: refusals.join("; "),
                });
            }
        }
        rejections
    }
}
