//! Rules in a node's own network: connections of the node's processes to pods of the node proxy get a source address that no
//! pod has. The rules of those pods know a kubelet's probes by it, as with Istio.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{AddressFamily, Tool, ToolError, apply};
use crate::netns::Namespace;

/// Source address of a kubelet's IPv4 connections (Istio's).
pub const PROBE_SOURCE_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 7, 127);
/// The same of IPv6.
pub const PROBE_SOURCE_V6: Ipv6Addr = Ipv6Addr::new(
    0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff,
);

/// The pods whose node rewrites the source of its own connections to them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProbeRules {
    /// Addresses of the pods.
    pub pods: Vec<IpAddr>,
}

impl ProbeRules {
    /// Replaces the rules of an earlier call in `node`, the network of the node. Needs `nft`.
    ///
    /// # Errors
    /// The tool is missing or refuses.
    pub fn apply(&self, node: &Namespace) -> Result<(), ToolError> {
        let nft = Tool::all().into_iter().find_map(|tool| match tool {
            Tool::Nft(program) => Some(program),
            Tool::Iptables(..) => None,
        });
        let nft = nft.ok_or(ToolError::Missing)?;
        apply::feed(&nft, &["-f", "-"], Some(node), &self.script())
    }

    /// The input of `nft`. A socket's user is known only for connections of the node's own processes: those that are
    /// forwarded keep their source. The chain comes before those of kube-proxy, because a connection is rewritten once.
    fn script(&self) -> String {
        let mut text = String::new();
        for (family, name) in [(AddressFamily::V4, "ip"), (AddressFamily::V6, "ip6")] {
            let of_family = |one: &&IpAddr| AddressFamily::of(one) == family;
            let pods: Vec<_> = self.pods.iter().filter(of_family).collect();
            let _ = write!(
                text,
                "table {name} voile-probes\ndelete table {name} voile-probes\n"
            );
            if pods.is_empty() {
                continue;
            }
            let pods: Vec<_> = pods.iter().map(ToString::to_string).collect();
            let _ = write!(
                text,
                "table {name} voile-probes {{\n\tchain postrouting {{\n\t\ttype nat hook postrouting priority 90; policy accept;\n\t\t\
                 meta l4proto tcp meta skuid 0-4294967294 {name} daddr {{ {} }} snat to {}\n\t}}\n}}\n",
                pods.join(", "),
                family.probe_source(),
            );
        }
        text
    }
}
