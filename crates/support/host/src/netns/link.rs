//! The wires of a mesh: a bridge in the mesh's namespace, and for each pod a veth pair whose far end is the pod's `eth0`.

use std::fmt::Display;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use super::Namespace;
use super::netlink::{
    CHANGE, CREATE, Message, NEW_ADDRESS, NEW_LINK, NEW_ROUTE, NEW_RULE, Netlink, SET_NEIGHBOURS,
    attribute,
};

/// The loopback device is always the first.
const LOOPBACK: u32 = 1;
/// The bridge, in the mesh's namespace; and `eth0`, in a pod's. No other program makes devices there.
const SECOND: u32 = 2;
const UP: u32 = 1;
const V4_BITS: u8 = 32;
const V6_BITS: u8 = 128;

// Attributes: see `linux/if_link.h`, `linux/if_addr.h`, `linux/rtnetlink.h`, `linux/veth.h`, `linux/neighbour.h`.
const LINK_NAME: u16 = 3;
const LINK_MASTER: u16 = 10;
const LINK_INFO: u16 = 18;
const LINK_NAMESPACE: u16 = 28;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;
const BRIDGE_MULTICAST_SNOOPING: u16 = 23;
const ADDRESS: u16 = 1;
const LOCAL_ADDRESS: u16 = 2;
const ADDRESS_FLAGS: u16 = 8;
/// No duplicate address detection: the addresses are ours, and the first packet must not wait a second for it.
const NO_DETECTION: u32 = 2;
const ROUTE_GATEWAY: u16 = 5;
const ROUTE_DEVICE: u16 = 4;
const MAIN_TABLE: u8 = 254;
const BY_BOOT: u8 = 3;
const UNICAST: u8 = 1;
/// A route that ends here.
const LOCAL: u8 = 2;
const HOST_SCOPE: u8 = 254;
/// The routing table of packets that are turned back: Istio's number.
const TURNED_BACK: u8 = 133;
const RULE_PRIORITY: u16 = 6;
const RULE_MARK: u16 = 10;
const RULE_TO_TABLE: u8 = 1;
const NEIGHBOURS_NAME: u16 = 1;
const NEIGHBOURS_SETTINGS: u16 = 6;
const OF_DEVICE: u16 = 1;
const ASK_AGAIN_AFTER: u16 = 5;
const ASK_TIMES: u16 = 11;
/// Interval of the three neighbour requests for an address, in milliseconds. On a bridge inside one kernel the answer
/// takes microseconds. A caller of an unused address should not wait for the usual 3 s.
const PATIENCE_MS: u64 = 100;
const QUESTIONS: u32 = 3;

/// The bridge's link address, administered locally. Without one it would be the lowest of the ports' and change when
/// a pod comes or goes. Every other pod would then send packets for the gateway to a dead link address, until it asks
/// again.
const BRIDGE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// An address and the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefixed {
    /// The address.
    pub address: IpAddr,
    /// Bits of the network.
    pub prefix: u8,
}

/// The bridge that joins the pods, in the namespace in which it was made.
#[derive(Debug)]
pub struct Bridge {
    netlink: Netlink,
    next: AtomicU32,
    v6: bool,
}

impl Bridge {
    /// Makes it in the calling thread's namespace, which must be new, with these addresses; brings up loopback too.
    ///
    /// # Errors
    /// Says which step the kernel refused.
    pub fn create(addresses: &[Prefixed]) -> io::Result<Self> {
        let netlink = Netlink::open().map_err(doing("open netlink"))?;
        let v6 = has_v6();
        settle_v6(v6);
        up(&netlink, LOOPBACK).map_err(doing("bring up lo"))?;
        let mut data = Vec::new();
        // Ten pods need no multicast book-keeping, and its timers would wake an idle machine.
        attribute(&mut data, BRIDGE_MULTICAST_SNOOPING, &[0]);
        let bridge = Message::new(NEW_LINK, CREATE, &link(SECOND, 0))
            .text(LINK_NAME, "mesh0")
            .bytes(ADDRESS, &BRIDGE_MAC)
            .nested(LINK_INFO, &info("bridge", &data));
        netlink.request(bridge).map_err(doing("make a bridge"))?;
        for address in addresses.iter().filter(|a| v6 || a.address.is_ipv4()) {
            add_address(&netlink, SECOND, *address)
                .map_err(doing(format!("give the bridge {}", address.address)))?;
        }
        up(&netlink, SECOND).map_err(doing("bring up the bridge"))?;
        hurry(&netlink, SECOND, v6).map_err(doing("set the neighbour timeouts of the bridge"))?;
        // Forwarding answers calls to addresses that are nowhere with "unreachable" at once, instead of silence.
        set("/proc/sys/net/ipv4/ip_forward", "1").map_err(doing("enable forwarding"))?;
        if v6 {
            set("/proc/sys/net/ipv6/conf/all/forwarding", "1")
                .map_err(doing("enable forwarding"))?;
        }
        Ok(Self {
            netlink,
            next: AtomicU32::new(SECOND + 1),
            v6,
        })
    }

    /// Returns true if IPv6 can be used here.
    pub fn has_v6(&self) -> bool {
        self.v6
    }

    /// Makes a namespace for a pod and wires it up: `eth0` with these addresses, everything else by these gateways.
    ///
    /// # Errors
    /// Says which step the kernel refused.
    pub fn add_pod(&self, addresses: &[Prefixed], gateways: &[IpAddr]) -> io::Result<Namespace> {
        let namespace = Namespace::create().map_err(doing("make a network namespace"))?;
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let peer = {
            let descriptor = namespace.as_fd().as_raw_fd().cast_unsigned();
            let mut peer = link(SECOND, 0);
            attribute(&mut peer, LINK_NAME, b"eth0\0");
            attribute(&mut peer, LINK_NAMESPACE, &descriptor.to_ne_bytes());
            peer
        };
        let mut data = Vec::new();
        attribute(&mut data, VETH_PEER, &peer);
        let pair = Message::new(NEW_LINK, CREATE, &link(index, UP))
            .text(LINK_NAME, &format!("pod{index}"))
            .number(LINK_MASTER, SECOND)
            .nested(LINK_INFO, &info("veth", &data));
        self.netlink
            .request(pair)
            .map_err(doing("make a veth pair"))?;
        let wanted = |ip: &IpAddr| self.v6 || ip.is_ipv4();
        namespace.run(|| {
            let netlink = Netlink::open().map_err(doing("open netlink"))?;
            settle_v6(self.v6);
            up(&netlink, LOOPBACK).map_err(doing("bring up lo"))?;
            for address in addresses.iter().filter(|a| wanted(&a.address)) {
                add_address(&netlink, SECOND, *address)
                    .map_err(doing(format!("give a pod {}", address.address)))?;
            }
            up(&netlink, SECOND).map_err(doing("bring up eth0"))?;
            hurry(&netlink, SECOND, self.v6)
                .map_err(doing("set the neighbour timeouts of eth0"))?;
            for gateway in gateways.iter().filter(|ip| wanted(ip)) {
                add_default_route(&netlink, *gateway).map_err(doing("add the default route"))?;
            }
            // As in containers, low ports and ping need no privilege. If setting that fails, they do as elsewhere.
            let _ = set("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
            let _ = set("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
            io::Result::Ok(())
        })??;
        Ok(namespace)
    }
}

/// `ifinfomsg`: the new state of a device.
fn link(index: u32, flags: u32) -> Vec<u8> {
    let mut bytes = vec![0; 4]; // family, padding, type
    bytes.extend_from_slice(&index.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes()); // which of them change
    bytes
}

fn info(kind: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    attribute(&mut bytes, INFO_KIND, kind.as_bytes());
    attribute(&mut bytes, INFO_DATA, data);
    bytes
}

fn up(netlink: &Netlink, index: u32) -> io::Result<()> {
    netlink.request(Message::new(NEW_LINK, CHANGE, &link(index, UP)))
}

/// Makes a device learn soon that an address is unused. By netlink, since the files in /proc are hidden in user
/// namespaces.
fn hurry(netlink: &Netlink, index: u32, v6: bool) -> io::Result<()> {
    let tables = [
        (libc::AF_INET, "arp_cache"),
        (libc::AF_INET6, "ndisc_cache"),
    ];
    for (family, name) in &tables[..=usize::from(v6)] {
        let mut settings = Vec::new();
        attribute(&mut settings, OF_DEVICE, &index.to_ne_bytes());
        attribute(&mut settings, ASK_AGAIN_AFTER, &PATIENCE_MS.to_ne_bytes());
        attribute(&mut settings, ASK_TIMES, &QUESTIONS.to_ne_bytes());
        let set = Message::new(SET_NEIGHBOURS, CHANGE, &[low_byte(*family), 0, 0, 0])
            .text(NEIGHBOURS_NAME, name)
            .nested(NEIGHBOURS_SETTINGS, &settings);
        netlink.request(set)?;
    }
    Ok(())
}

fn add_address(netlink: &Netlink, index: u32, given: Prefixed) -> io::Result<()> {
    let octets = octets(given.address);
    let mut fixed = vec![family(given.address), given.prefix, 0, 0];
    fixed.extend_from_slice(&index.to_ne_bytes());
    netlink.request(
        Message::new(NEW_ADDRESS, CREATE, &fixed)
            .bytes(LOCAL_ADDRESS, &octets)
            .bytes(ADDRESS, &octets)
            .number(ADDRESS_FLAGS, NO_DETECTION),
    )
}

fn add_default_route(netlink: &Netlink, gateway: IpAddr) -> io::Result<()> {
    let mut fixed = vec![family(gateway), 0, 0, 0, MAIN_TABLE, BY_BOOT, 0, UNICAST];
    fixed.extend_from_slice(&[0; 4]);
    netlink.request(
        Message::new(NEW_ROUTE, CREATE, &fixed)
            .bytes(ROUTE_GATEWAY, &octets(gateway))
            .number(ROUTE_DEVICE, SECOND),
    )
}

/// In the calling thread's namespace: a connection accepted from marked packets marks its answers likewise.
///
/// # Errors
/// The kernel's refusal, or `/proc/sys` is read-only, as in most containers.
pub fn mark_answers() -> io::Result<()> {
    set("/proc/sys/net/ipv4/tcp_fwmark_accept", "1")
}

/// In the calling thread's namespace: packets with `mark` stay inside, whatever their destination. So a proxy may call in
/// a client's name, and gets the answers if they are marked.
///
/// # Errors
/// Says what the kernel lacks or refused.
pub fn turn_back(mark: u32, v6: bool) -> io::Result<()> {
    let netlink = Netlink::open().map_err(doing("open netlink"))?;
    let families = [libc::AF_INET, libc::AF_INET6].map(low_byte);
    for family in &families[..=usize::from(v6)] {
        let fixed = [
            *family,
            0,
            0,
            0,
            TURNED_BACK,
            0,
            0,
            RULE_TO_TABLE,
            0,
            0,
            0,
            0,
        ];
        let rule = Message::new(NEW_RULE, CREATE, &fixed)
            .number(RULE_PRIORITY, TURNED_BACK.into())
            .number(RULE_MARK, mark);
        unless_there(netlink.request(rule))
            .map_err(doing("route by mark (CONFIG_IP_MULTIPLE_TABLES)"))?;
        let mut fixed = vec![*family, 0, 0, 0, TURNED_BACK, BY_BOOT, HOST_SCOPE, LOCAL];
        fixed.extend_from_slice(&[0; 4]);
        let route = Message::new(NEW_ROUTE, CREATE, &fixed).number(ROUTE_DEVICE, LOOPBACK);
        unless_there(netlink.request(route)).map_err(doing("add a local route for all"))?;
    }
    Ok(())
}

/// In the calling thread's namespace: the loopback device has this address, besides others.
///
/// # Errors
/// The kernel's refusal.
pub fn add_to_loopback(address: IpAddr) -> io::Result<()> {
    let netlink = Netlink::open().map_err(doing("open netlink"))?;
    unless_there(add_address(&netlink, LOOPBACK, address.into()))
}

/// Accepts that the object exists already.
fn unless_there(made: io::Result<()>) -> io::Result<()> {
    made.or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
    })
}

fn family(ip: IpAddr) -> u8 {
    low_byte(match ip {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    })
}

fn low_byte(family: libc::c_int) -> u8 {
    family.cast_unsigned().to_le_bytes()[0]
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// An address alone, as a network of one.
impl From<IpAddr> for Prefixed {
    fn from(address: IpAddr) -> Self {
        let prefix = match address {
            IpAddr::V4(_) => V4_BITS,
            IpAddr::V6(_) => V6_BITS,
        };
        Self { address, prefix }
    }
}

impl Prefixed {
    /// An IPv4 address in its network.
    pub const fn v4(address: Ipv4Addr, prefix: u8) -> Self {
        Self {
            address: IpAddr::V4(address),
            prefix,
        }
    }

    /// An IPv6 address in its network.
    pub const fn v6(address: Ipv6Addr, prefix: u8) -> Self {
        Self {
            address: IpAddr::V6(address),
            prefix,
        }
    }
}

/// Returns true if the kernel has IPv6.
#[must_use]
pub fn has_v6() -> bool {
    fs::exists("/proc/sys/net/ipv6/conf/all").unwrap_or(false)
}

/// Skips the wait for routers that do not exist. If setting that fails, IPv6 is only slower to start.
fn settle_v6(v6: bool) {
    if v6 {
        for (setting, value) in [
            ("accept_ra", "0"),
            ("accept_dad", "0"),
            ("disable_ipv6", "0"),
        ] {
            for scope in ["all", "default"] {
                let _ = set(&format!("/proc/sys/net/ipv6/conf/{scope}/{setting}"), value);
            }
        }
    }
}

fn set(path: &str, value: &str) -> io::Result<()> {
    fs::write(path, value).map_err(doing(path))
}

fn doing(what: impl Display) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot {what}: {error}"))
}
