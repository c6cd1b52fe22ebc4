//! The proxy's own listening sockets: bound first, or taken over from the process before it.

use std::io;
use std::net::Ipv6Addr;
use std::net::SocketAddr;

use voile_process::{DnsSockets, PageSockets, RunError};
use voile_transport as transport;
use voile_transport::CaptureExemption;
use voile_transport::handover::{self as succession, InheritedSockets, Predecessor};

use crate::control::network::dns;
use crate::control::network::sockets::ListenerDirection;
use crate::control::{CapturePorts, ProxyOptions};

/// The proxy's own listening sockets, bound first: a user who starts two proxies on one address sees the
/// error at once.
pub(super) struct OwnSockets {
    pub(super) pages: PageSockets,
    pub(super) captured: Vec<(ListenerDirection, SocketAddr, std::net::TcpListener)>,
    pub(super) dns: Option<DnsSockets>,
    /// The other listening sockets of the process before us.
    pub(super) inherited: InheritedSockets,
    pub(super) predecessor: Option<Predecessor>,
}

impl OwnSockets {
    pub(super) fn bind(options: &ProxyOptions) -> Result<Self, RunError> {
        let (predecessor, mut inherited) = match &options.process.handover {
            Some(path) => succession::take_over(path, &options.workload)?,
            None => (None, InheritedSockets::default()),
        };
        let captured = match options.capture {
            None => Vec::new(),
            Some(capture) => bind_captured(capture, &mut inherited)?,
        };
        let dns = match options.dns {
            None => None,
            Some(at) => Some(dns::bind(at, options.capture.is_some(), &mut inherited)?),
        };
        Ok(Self {
            pages: PageSockets::bind(&options.process, &mut inherited, str::to_owned)?,
            dns,
            captured,
            inherited,
            predecessor,
        })
    }

    pub(super) fn capture_ports(&self) -> Vec<u16> {
        let mut ports: Vec<u16> = self.captured.iter().map(|(_, at, _)| at.port()).collect();
        ports.dedup();
        ports
    }
}

/// The sockets to which the kernel redirects, for both families where the machine has both.
fn bind_captured(
    capture: CapturePorts,
    inherited: &mut InheritedSockets,
) -> Result<Vec<(ListenerDirection, SocketAddr, std::net::TcpListener)>, RunError> {
    if capture.exemption == CaptureExemption::Marks {
        transport::may_mark().map_err(|error| {
            RunError::Option(format!(
                "--capture redirect: cannot mark sockets ({error}); it needs CAP_NET_ADMIN in its network namespace. \
                 `--capture redirect-by-user` needs no capability"
            ))
        })?;
    }
    if capture.keeps_source {
        transport::may_be_transparent().map_err(|error| {
            RunError::Option(format!(
                "--capture tproxy: cannot call from a client's address ({error}); it needs CAP_NET_ADMIN in its network namespace and a kernel with IP_TRANSPARENT"
            ))
        })?;
    }
    let all = [
        (
            ListenerDirection::CapturedOutbound,
            capture.outbound,
            "captured outbound",
        ),
        (
            ListenerDirection::CapturedInbound,
            capture.inbound,
            "captured inbound",
        ),
        (ListenerDirection::Tunnels, capture.tunnels, "HBONE tunnels"),
    ];
    let mut bound = Vec::new();
    for (direction, address, purpose) in all {
        let failed = |address, error| RunError::Bind {
            address,
            purpose,
            error,
        };
        let socket = inherited
            .bind(direction.role(), address)
            .map_err(|error| failed(address, error))?;
        let address = socket.local_addr()?;
        bound.push((direction, address, socket));
        if address.is_ipv4() && address.ip().is_unspecified() {
            let sixth = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
            match inherited.bind(direction.role(), sixth) {
                Ok(socket) => bound.push((direction, sixth, socket)),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    return Err(failed(sixth, error));
                }
                // A machine without IPv6 redirects none.
                Err(error) => tracing::debug!(%sixth, %error, "IPv6 connections are not captured"),
            }
        }
    }
    Ok(bound)
}
