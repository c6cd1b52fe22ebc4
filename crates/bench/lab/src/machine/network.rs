//! Networks of their own for client and server: namespaces joined by veth pairs on a bridge, where sidecars capture what
//! passes as they do in a mesh.
//!
//! ```text
//! fabric (the lab itself, control planes): bridge 10.210.0.1
//!    ├── client   load, nobody else                    ├── server   echo, nobody else
//!    └── of each contestant: client-N  load, sidecar   └── server-N echo, sidecar      (redirect rules in both)
//! ```
//! Nothing has to be removed: namespaces end with the last process and descriptor that holds them.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};
use voile_host::child::SupervisedChild;
use voile_host::isolation::{Privileges, ProcessIsolation};
use voile_host::netns::Namespace;
use voile_host::netns::link::{Bridge, Prefixed};
use voile_host::netns::rules::{Rules, Tool, apply};

use crate::machine::instance::Instance;

const PREFIX: u8 = 16;
/// The bridge: where control planes and the lab itself are.
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 210, 0, 1);
/// Ports of the echo server in each pod: HTTP of any version, and bytes.
pub(crate) const HTTP_PORT: u16 = 8080;
pub(crate) const TCP_PORT: u16 = 9080;
/// Ports at which sidecars take captured connections: Istio's ports.
pub(crate) const OUTBOUND: u16 = 15001;
pub(crate) const INBOUND: u16 = 15006;
/// Pods have the addresses 10.210.1.2 to 10.210.250.251, each once: remains of an earlier pod must not answer for a later one.
const PODS_PER_RANK: u16 = 250;
const MAX_PODS: u16 = PODS_PER_RANK * 250;

/// Services of an echo server, as the options that set their addresses.
pub(crate) const HTTP: &str = "--listen";
pub(crate) const TCP: &str = "--tcp";
pub(crate) const TCP_SINK: &str = "--tcp-sink";

/// Addresses of the servers that all contestants lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Echo {
    /// HTTP in all its versions.
    pub(crate) http: SocketAddr,
    /// Bytes back as they came.
    pub(crate) tcp: SocketAddr,
}

impl Echo {
    /// Before there is one.
    pub(crate) const NOWHERE: Self = Self {
        http: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        tcp: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    };
}

/// A pod: a namespace, and its address in the fabric.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) namespace: Namespace,
    pub(crate) address: IpAddr,
}

impl Pod {
    /// Place in which a sidecar starts in the pod.
    pub(crate) fn for_sidecar(&self) -> ProcessIsolation {
        ProcessIsolation::new(self.namespace.clone(), Privileges::Sidecar)
    }

    /// Place in which generator and server start in the pod.
    pub(crate) fn for_application(&self) -> ProcessIsolation {
        ProcessIsolation::new(self.namespace.clone(), Privileges::Application)
    }
}

/// The fabric and the pods that all contestants share.
pub(crate) struct Network {
    bridge: Bridge,
    tool: Tool,
    fabric: Namespace,
    pods: Cell<u16>,
    /// Service of the server's TCP port, as an option of `voile echo`.
    pub(crate) tcp: &'static str,
    /// Pod of the generator if no sidecar stands beside it.
    pub(crate) client: Pod,
    /// The server without a sidecar.
    pub(crate) server: Pod,
}

/// The lab's thread is in the fabric as long as this lives, and then back where it was.
pub(crate) struct FabricVisit {
    home: Namespace,
}

impl Drop for FabricVisit {
    fn drop(&mut self) {
        // The lab was in this namespace before, so it may enter it again.
        let _ = self.home.enter();
    }
}

impl Network {
    /// Makes the fabric and the two pods without sidecars.
    pub(crate) fn create(tcp: &'static str) -> Result<Self, String> {
        let refused = |e: std::io::Error| {
            format!(
                "isolation \"netns\" needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN): {e}; nothing was measured"
            )
        };
        let tool = Tool::find().map_err(|e| format!("isolation \"netns\": {e}"))?;
        let fabric = Namespace::create().map_err(refused)?;
        let bridge = fabric
            .run(|| Bridge::create(&[Prefixed::v4(GATEWAY, PREFIX)]))
            .and_then(|made| made)
            .map_err(refused)?;
        let pods = Cell::new(0);
        let client = add(&bridge, &pods)?;
        let server = add(&bridge, &pods)?;
        Ok(Self {
            bridge,
            tool,
            fabric,
            pods,
            tcp,
            client,
            server,
        })
    }

    /// Checks if a network can be made here. The error is the reason.
    pub(crate) fn possible() -> Result<(), String> {
        Self::create(TCP).map(drop)
    }

    /// Moves the calling thread into the fabric.
    pub(crate) fn visit(&self) -> Result<FabricVisit, String> {
        let failed = |e: std::io::Error| format!("cannot enter the lab's network namespace: {e}");
        let home = Namespace::current().map_err(failed)?;
        self.fabric.enter().map_err(failed)?;
        Ok(FabricVisit { home })
    }

    /// The addresses of the shared server; of several (one for each CPU set) that with this number.
    pub(crate) fn shared_echo(&self, number: usize) -> Result<Echo, String> {
        let above = u16::try_from(number).map_err(|e| e.to_string())?;
        let at = |port: u16| SocketAddr::new(self.server.address, port + above);
        Ok(Echo {
            http: at(HTTP_PORT),
            tcp: at(TCP_PORT),
        })
    }

    /// Place in which control planes start.
    pub(crate) fn for_control(&self) -> ProcessIsolation {
        ProcessIsolation::new(self.fabric.clone(), Privileges::Application)
    }

    /// Adds a pod with these redirection rules.
    pub(crate) fn add_pod(&self, rules: &Rules) -> Result<Pod, String> {
        let pod = add(&self.bridge, &self.pods)?;
        apply(&self.tool, &pod.namespace, rules, self.bridge.has_v6())
            .map_err(|e| format!("redirect rules: {e}"))?;
        Ok(pod)
    }
}

fn add(bridge: &Bridge, pods: &Cell<u16>) -> Result<Pod, String> {
    let number = pods.get();
    if number >= MAX_PODS {
        return Err(format!("an experiment has no more than {MAX_PODS} pods"));
    }
    pods.set(number + 1);
    let octet = |number: u16| u8::try_from(number).unwrap_or(u8::MAX);
    let (within, rank) = (1 + number % PODS_PER_RANK, 2 + number / PODS_PER_RANK);
    let address = Ipv4Addr::new(10, 210, octet(within), octet(rank));
    let namespace = bridge
        .add_pod(&[Prefixed::v4(address, PREFIX)], &[GATEWAY.into()])
        .map_err(|e| format!("a pod's network: {e}"))?;
    Ok(Pod {
        namespace,
        address: address.into(),
    })
}

/// The server of a pod as an instance, which is charged for its work.
pub(crate) fn server(child: &SupervisedChild) -> Instance {
    Instance::here(child.name().to_owned(), "server", vec![child.pid()])
}
