//! Redirect rules of a pod: connections that go through its sidecar. The rules are pure data and text; only [`apply`]
//! touches the kernel, by `nft` or, without it, by `iptables-restore` and `ip6tables-restore`.
//!
//! ```text
//! application ──OUTPUT──▶ 15001 sidecar ──mark 0x539──▶ the world
//! the world ──PREROUTING──▶ 15006 sidecar ──mark 0x53a──▶ application
//! ```
//! The sidecar marks its own sockets, so nothing loops. A sidecar that may not mark is recognised by its user, and its
//! connections to the application by their source address ([`SidecarMatch`]). Rules live in the pod's namespace and die
//! with it.

mod apply;
mod iptables;
mod nft;
mod probes;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use apply::{Tool, ToolError, apply, apply_here};
pub use iptables::restore;
pub use nft::script;
pub use probes::{PROBE_SOURCE_V4, PROBE_SOURCE_V6, ProbeRules};

/// Mark of a sidecar's packets for its application (1337, a well-known number).
pub const MARK_OUTWARD: u32 = 0x539;
/// Mark of a sidecar's packets to its own application.
pub const MARK_INWARD: u32 = 0x53a;
/// Mark of connections, and of their answers, that a node proxy opens in a client's name (Istio's number).
pub const MARK_ANSWER: u32 = 0x111;
/// Port at which other proxies call a node proxy. It is never captured.
const HBONE_PORT: u16 = 15008;
/// A sidecar's own ports, which are called, not captured: HBONE, metrics, readiness, Envoy's metrics.
pub const OWN_PORTS: [u16; 4] = [15008, 15020, 15021, 15090];
const DNS_PORT: u16 = 53;
/// Source address of a sidecar's IPv4 connections to its own application under [`SidecarMatch::User`].
pub const SOURCE_INWARD_V4: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
/// The same of IPv6; the device `lo` must have it.
pub const SOURCE_INWARD_V6: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6);

/// How the rules recognise a sidecar's own connections, which they leave alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SidecarMatch {
    /// By the marks of its packets.
    #[default]
    Marks,
    /// By the user that it runs as. Connections to its application come from [`SOURCE_INWARD_V4`] or
    /// [`SOURCE_INWARD_V6`].
    User(u32),
}

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// First address.
    pub address: IpAddr,
    /// Bits that are fixed.
    pub prefix: u8,
}

impl Range {
    /// A single address.
    #[must_use]
    pub fn one(address: IpAddr) -> Self {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        Self { address, prefix }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Everything, or some of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortScope<T> {
    /// Everything but these.
    AllBut(Vec<T>),
    /// These alone.
    Only(Vec<T>),
}

impl<T> Default for PortScope<T> {
    fn default() -> Self {
        Self::AllBut(Vec::new())
    }
}

/// Captured traffic of a pod with a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCapture {
    /// Port for outbound connections.
    pub outbound: u16,
    /// Port for inbound connections.
    pub inbound: u16,
    /// The control planes: the sidecar's own calls there are not its application's, and are left alone.
    pub control: Vec<SocketAddr>,
    /// Port for DNS queries.
    pub dns: Option<u16>,
    /// Inbound ports.
    pub inbound_ports: PortScope<u16>,
    /// Outbound destinations.
    pub outbound_ranges: PortScope<Range>,
    /// Outbound destinations that are left alone though a list in `outbound_ranges` has them.
    pub excluded_outbound_ranges: Vec<Range>,
    /// Outbound ports that are captured wherever they lead, though `outbound_ranges` leaves them out.
    pub outbound_ports: Vec<u16>,
    /// Outbound ports that are left alone.
    pub excluded_outbound_ports: Vec<u16>,
    /// The application is called from its client's own address, and its answers come back to the sidecar. Needs
    /// [`SidecarMatch::Marks`].
    pub keeps_source: bool,
    /// How the sidecar's own connections are recognised.
    pub sidecar: SidecarMatch,
}

impl Default for PodCapture {
    /// Everything, on Istio's ports, without DNS.
    fn default() -> Self {
        Self {
            outbound: 15001,
            inbound: 15006,
            control: Vec::new(),
            dns: None,
            inbound_ports: PortScope::default(),
            outbound_ranges: PortScope::default(),
            excluded_outbound_ranges: Vec::new(),
            outbound_ports: Vec::new(),
            excluded_outbound_ports: Vec::new(),
            keeps_source: false,
            sidecar: SidecarMatch::Marks,
        }
    }
}

/// Captured traffic of a pod that a node proxy serves, as by Istio's CNI agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCapture {
    /// Port for outbound connections.
    pub outbound: u16,
    /// Port for inbound connections that are no tunnel.
    pub inbound: u16,
    /// Port for DNS queries.
    pub dns: Option<u16>,
    /// Applications may be called from their clients' own addresses, and their answers come back to the node proxy.
    pub keeps_source: bool,
    /// Connections from [`PROBE_SOURCE_V4`] and [`PROBE_SOURCE_V6`], a kubelet's, go past the node proxy.
    pub exempts_probes: bool,
}

impl Default for NodeCapture {
    fn default() -> Self {
        Self {
            outbound: 15001,
            inbound: 15006,
            dns: Some(15053),
            keeps_source: true,
            exempts_probes: false,
        }
    }
}

/// A service's virtual address for a pod without a sidecar, and its endpoints.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VirtualAddress {
    /// Virtual address that clients call.
    pub address: IpAddr,
    /// The port they call.
    pub port: u16,
    /// Endpoints; those of the other family are ignored.
    pub targets: Vec<SocketAddr>,
}

/// A port that is turned to another of the same pod: for proxies that have a listener for each destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRedirect {
    /// The port that is called.
    pub port: u16,
    /// Port that takes the connection.
    pub to: u16,
}

/// All rules of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// With a sidecar.
    pub capture: Option<PodCapture>,
    /// With a node proxy.
    pub node: Option<NodeCapture>,
    /// Without one: the part that kube-proxy has elsewhere.
    pub services: Vec<VirtualAddress>,
    /// Ports that are turned when they are called from inside the pod, wherever that call was to lead.
    pub turned_out: Vec<PortRedirect>,
    /// Ports that are turned when the pod is called from outside.
    pub turned_in: Vec<PortRedirect>,
    /// In the mesh's own namespace: the redirection of connections that leave the mesh.
    pub way_out: Option<WayOut>,
}

/// Connections that leave a mesh by its bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WayOut {
    /// The port on the bridge that takes it.
    pub port: u16,
    /// The mesh's own addresses, which lead nowhere else.
    pub within: Vec<Range>,
}

/// One family's view of the rules, in the order in which the kernel asks; both texts are made from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressFamily {
    V4,
    V6,
}

impl AddressFamily {
    fn of(address: &IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Returns the source address of connections from a sidecar to its application.
    fn source_inward(self) -> IpAddr {
        match self {
            Self::V4 => SOURCE_INWARD_V4.into(),
            Self::V6 => SOURCE_INWARD_V6.into(),
        }
    }

    /// Returns the source address of a kubelet's connections.
    fn probe_source(self) -> IpAddr {
        match self {
            Self::V4 => PROBE_SOURCE_V4.into(),
            Self::V6 => PROBE_SOURCE_V6.into(),
        }
    }

    /// Returns the loopback addresses.
    fn loopback(self) -> Range {
        match self {
            Self::V4 => Range {
                address: Ipv4Addr::new(127, 0, 0, 0).into(),
                prefix: 8,
            },
            Self::V6 => Range {
                address: Ipv6Addr::LOCALHOST.into(),
                prefix: 128,
            },
        }
    }
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
enum If {
    Mark(u32),
    /// The connection has the mark, whatever the packet's mark.
    ConnectionMark(u32),
    /// The packet's socket belongs to this user.
    User(u32),
    From(IpAddr),
    ToLoopbackDevice,
    FromLoopbackDevice,
    To(Range),
    NotTo(Range),
    Tcp,
    TcpPort(u16),
    UdpPort(u16),
    /// One of so many connections.
    OneOf(usize),
}

/// Action when all conditions hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleVerdict {
    Leave,
    /// Not followed by connection tracking.
    Forget,
    /// The packet's mark is set.
    MarkPacket(u32),
    /// Its connection's is.
    MarkConnection(u32),
    Redirect(u16),
    Send(SocketAddr),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FirewallRule(Vec<If>, RuleVerdict);

fn rule(conditions: impl Into<Vec<If>>, then: RuleVerdict) -> FirewallRule {
    FirewallRule(conditions.into(), then)
}

/// Rules for packets that leave the pod.
fn output(rules: &Rules, family: AddressFamily) -> Vec<FirewallRule> {
    let mut list = Vec::new();
    if let Some(capture) = &rules.capture {
        captured_output(capture, family, &mut list);
    }
    if let Some(node) = &rules.node {
        list.extend([
            rule([If::Mark(MARK_OUTWARD)], RuleVerdict::Leave),
            rule([If::Mark(MARK_ANSWER)], RuleVerdict::Leave),
            // A pod that calls itself needs no proxy between.
            rule([If::ToLoopbackDevice], RuleVerdict::Leave),
        ]);
        asked_names(node.dns, &mut list);
        list.push(rule([If::Tcp], RuleVerdict::Redirect(node.outbound)));
    }
    let outside = || If::NotTo(family.loopback());
    for turn in &rules.turned_out {
        let conditions = [outside(), If::TcpPort(turn.port)];
        list.push(rule(conditions, RuleVerdict::Redirect(turn.to)));
    }
    for service in rules
        .services
        .iter()
        .filter(|service| AddressFamily::of(&service.address) == family)
    {
        let ours = |target: &&SocketAddr| AddressFamily::of(&target.ip()) == family;
        let targets: Vec<_> = service.targets.iter().filter(ours).collect();
        let range = Range::one(service.address);
        for (n, target) in targets.iter().enumerate() {
            let mut conditions = vec![If::To(range), If::TcpPort(service.port)];
            let left = targets.len() - n;
            if left > 1 {
                conditions.push(If::OneOf(left));
            }
            list.push(rule(conditions, RuleVerdict::Send(**target)));
        }
    }
    list
}

/// Questions to name servers.
fn asked_names(dns: Option<u16>, list: &mut Vec<FirewallRule>) {
    if let Some(dns) = dns {
        list.push(rule([If::UdpPort(DNS_PORT)], RuleVerdict::Redirect(dns)));
        list.push(rule([If::TcpPort(DNS_PORT)], RuleVerdict::Redirect(dns)));
    }
}

fn captured_output(capture: &PodCapture, family: AddressFamily, list: &mut Vec<FirewallRule>) {
    let loopback = family.loopback();
    let (outward, inward) = match capture.sidecar {
        SidecarMatch::Marks => (If::Mark(MARK_OUTWARD), vec![If::Mark(MARK_INWARD)]),
        SidecarMatch::User(user) => {
            let source = If::From(family.source_inward());
            (If::User(user), vec![source, If::ToLoopbackDevice])
        }
    };
    let to_us = [
        outward.clone(),
        If::ToLoopbackDevice,
        If::NotTo(loopback),
        If::Tcp,
    ];
    list.extend([
        rule(inward, RuleVerdict::Leave),
        // A pod that calls itself by a service's address comes in like other clients.
        rule(to_us, RuleVerdict::Redirect(capture.inbound)),
        rule([outward], RuleVerdict::Leave),
        rule([If::To(loopback)], RuleVerdict::Leave),
    ]);
    let of_family = |to: &&SocketAddr| AddressFamily::of(&to.ip()) == family;
    for control in capture.control.iter().filter(of_family) {
        let conditions = [
            If::To(Range::one(control.ip())),
            If::TcpPort(control.port()),
        ];
        list.push(rule(conditions, RuleVerdict::Leave));
    }
    asked_names(capture.dns, list);
    for port in &capture.excluded_outbound_ports {
        list.push(rule([If::TcpPort(*port)], RuleVerdict::Leave));
    }
    let of_family = |ranges: &[Range]| -> Vec<Range> {
        ranges
            .iter()
            .filter(|r| AddressFamily::of(&r.address) == family)
            .copied()
            .collect()
    };
    let left_alone = match &capture.outbound_ranges {
        PortScope::AllBut(ranges) => ranges,
        PortScope::Only(_) => &capture.excluded_outbound_ranges,
    };
    for range in of_family(left_alone) {
        list.push(rule([If::To(range)], RuleVerdict::Leave));
    }
    for port in &capture.outbound_ports {
        list.push(rule(
            [If::TcpPort(*port)],
            RuleVerdict::Redirect(capture.outbound),
        ));
    }
    match &capture.outbound_ranges {
        PortScope::AllBut(_) => list.push(rule([If::Tcp], RuleVerdict::Redirect(capture.outbound))),
        PortScope::Only(ranges) => {
            for range in of_family(ranges) {
                list.push(rule(
                    [If::To(range), If::Tcp],
                    RuleVerdict::Redirect(capture.outbound),
                ));
            }
        }
    }
}

/// Rules before connection tracking. Packets between a sidecar and its application in a client's name have the
/// client's addresses. The kernel must not take them for the client's own connection.
fn untracked(rules: &Rules) -> Vec<FirewallRule> {
    let keeps = rules.capture.as_ref().is_some_and(|c| c.keeps_source);
    let forget = || rule([If::Mark(MARK_INWARD)], RuleVerdict::Forget);
    keeps.then(forget).into_iter().collect()
}

/// Rules that mark incoming and outgoing packets. A node proxy's packets inside the pod in a client's name mark their
/// connection. So the application's answers are marked, too, and a route keeps them inside.
fn marking(rules: &Rules) -> Option<[Vec<FirewallRule>; 2]> {
    rules.node.filter(|node| node.keeps_source)?;
    let incoming = rule(
        [If::FromLoopbackDevice, If::Mark(MARK_OUTWARD)],
        RuleVerdict::MarkConnection(MARK_ANSWER),
    );
    let outgoing = rule(
        [If::ConnectionMark(MARK_ANSWER)],
        RuleVerdict::MarkPacket(MARK_ANSWER),
    );
    Some([vec![incoming], vec![outgoing]])
}

/// Rules for packets that come to the pod.
fn prerouting(rules: &Rules, family: AddressFamily) -> Vec<FirewallRule> {
    if let Some(way_out) = &rules.way_out {
        let within = way_out
            .within
            .iter()
            .filter(|range| AddressFamily::of(&range.address) == family);
        let mut list = vec![rule([If::FromLoopbackDevice], RuleVerdict::Leave)];
        list.extend(within.map(|range| rule([If::To(*range)], RuleVerdict::Leave)));
        list.push(rule([If::Tcp], RuleVerdict::Redirect(way_out.port)));
        return list;
    }
    let mut list = vec![rule([If::FromLoopbackDevice], RuleVerdict::Leave)];
    if let Some(node) = &rules.node {
        if node.exempts_probes {
            list.push(rule([If::From(family.probe_source())], RuleVerdict::Leave));
        }
        list.push(rule([If::TcpPort(HBONE_PORT)], RuleVerdict::Leave));
        list.push(rule([If::Tcp], RuleVerdict::Redirect(node.inbound)));
        return list;
    }
    for turn in &rules.turned_in {
        list.push(rule(
            [If::TcpPort(turn.port)],
            RuleVerdict::Redirect(turn.to),
        ));
    }
    let Some(capture) = &rules.capture else {
        return if rules.turned_in.is_empty() {
            Vec::new()
        } else {
            list
        };
    };
    let leave = |port: &u16| rule([If::TcpPort(*port)], RuleVerdict::Leave);
    list.extend(OWN_PORTS.iter().map(leave));
    match &capture.inbound_ports {
        PortScope::AllBut(ports) => {
            list.extend(ports.iter().map(leave));
            list.push(rule([If::Tcp], RuleVerdict::Redirect(capture.inbound)));
        }
        PortScope::Only(ports) => list.extend(
            ports
                .iter()
                .map(|port| rule([If::TcpPort(*port)], RuleVerdict::Redirect(capture.inbound))),
        ),
    }
    list
}
