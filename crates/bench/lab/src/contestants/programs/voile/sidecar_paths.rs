//! Paths of a mesh that a control plane configures for any sidecars: the called address, the hops of a request, and the stage for
//! the lab's own servers.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::numbered_resources::host;
use super::{CLIENT_ADDRESS, DIRECT_VIRTUAL, PORTS, RunningVoile, SERVER_VIRTUAL};
use crate::contestants::captured::{Calls, CapturedPods};
use crate::contestants::contestant::{CellRoute, IdentityProbe};
use crate::machine::instance::{CLIENT, Hop, SERVER};
use crate::network::{INBOUND, OUTBOUND};
use crate::plan::RequestPath;
use crate::shared_processes::Lab;

impl RunningVoile {
    /// Path of the requests; none if they cannot be carried.
    pub(super) fn route(&self, lab: &Lab<'_>, way: &RequestPath) -> Option<CellRoute> {
        let services = &self.ports.services;
        let port = |ends: &str| {
            let protocol = way.ports();
            let (name, _) = PORTS
                .iter()
                .find(|(name, carries)| name.ends_with(ends) && *carries == protocol)?;
            services.get(name).copied()
        };
        if let Some(captured) = &self.captured {
            let mutual = port(if way.tls { "MUTUAL_PORT" } else { "PLAIN_PORT" })?;
            let direct = port("DIRECT_PORT")?;
            let calls = Calls {
                service: (SERVER_VIRTUAL, mutual).into(),
                direct: (DIRECT_VIRTUAL, direct).into(),
                pod_port: mutual,
                echo_port: mutual,
                direct_port: lab.server_hop(&way.protocol).address.port(),
                client_listener: OUTBOUND,
                server_listener: INBOUND,
            };
            let mut route = captured.route(way, &calls)?;
            let port = [mutual, direct][usize::from(way.mode == "clientonly")];
            route.host = Some(format!("{}:{port}", host(&way.mode, true)));
            return Some(route);
        }
        let (client, server) = (self.ports.client, self.ports.server);
        let hop = |to, on: IpAddr, port, tls| Hop {
            to,
            address: SocketAddr::new(on, port),
            tls,
            spot: None,
        };
        let (port, mut hops) = match (way.mode.as_str(), way.tls) {
            ("clientonly", false) => {
                let port = port("DIRECT_PORT")?;
                let hops = vec![hop(CLIENT, client, port, false)];
                (port, hops)
            }
            ("serveronly", false) => {
                let port = port("PLAIN_PORT")?;
                let hops = vec![hop(SERVER, server, port, false)];
                (port, hops)
            }
            ("both", tls) => {
                let port = port(if tls { "MUTUAL_PORT" } else { "PLAIN_PORT" })?;
                let hops = vec![
                    hop(CLIENT, client, port, false),
                    hop(SERVER, server, port, tls),
                ];
                (port, hops)
            }
            _ => return None,
        };
        hops.push(lab.server_hop(&way.protocol));
        let mut route = CellRoute::through(hops);
        route.host = Some(format!("{}:{port}", host(&way.mode, false)));
        Some(route)
    }

    /// Stage for the lab's own servers in the path; `folder` is the mesh's.
    pub(super) fn stage(
        &self,
        folder: &Path,
        way: &RequestPath,
    ) -> Result<Option<IdentityProbe>, String> {
        let name = if way.protocol == "tcp" {
            "TCP_STAGE_PORT"
        } else {
            "STAGE_PORT"
        };
        let port = self.ports.services[name];
        let networks = self.captured.as_ref().map(CapturedPods::networks);
        let networks = networks.map(|(client, server)| (client, Some(server)));
        let called = if networks.is_some() {
            SERVER_VIRTUAL
        } else {
            CLIENT_ADDRESS
        };
        Ok(
            IdentityProbe::leaves(folder)?.map(|(right, wrong)| IdentityProbe {
                entry: SocketAddr::new(called, port),
                host: Some(format!("{}:{port}", host("both", self.ports.captured))),
                server: SocketAddr::new(self.ports.server, port),
                right,
                wrong,
                networks,
                speaks: IdentityProbe::SPEAKS,
                opening: None,
            }),
        )
    }
}
