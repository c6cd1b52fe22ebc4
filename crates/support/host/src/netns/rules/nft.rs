//! The rules as nftables' text: one table that replaces an earlier one as a whole.

use std::fmt::Write;
use std::net::IpAddr;

use super::{
    AddressFamily, FirewallRule, If, Range, RuleVerdict, Rules, marking, output, prerouting,
    untracked,
};

/// Returns the input of `nft -f -`, for IPv4 and, with `v6`, for IPv6.
#[must_use]
pub fn script(rules: &Rules, v6: bool) -> String {
    let mut text = String::new();
    let families: &[_] = &[(AddressFamily::V4, "ip"), (AddressFamily::V6, "ip6")];
    for &(family, name) in &families[..=usize::from(v6)] {
        let (out, incoming) = (output(rules, family), prerouting(rules, family));
        // Naming it first makes the deletion valid where there was none.
        let _ = write!(
            text,
            "table {name} voile\ndelete table {name} voile\ntable {name} voile {{\n"
        );
        let early = untracked(rules);
        if !early.is_empty() {
            chain(
                &mut text,
                "untracked",
                "filter hook output priority -300",
                name,
                &early,
            );
        }
        if let Some([incoming, outgoing]) = marking(rules) {
            let (before, route) = (
                "filter hook prerouting priority -150",
                "route hook output priority -150",
            );
            chain(&mut text, "marked_in", before, name, &incoming);
            chain(&mut text, "marked_out", route, name, &outgoing);
        }
        chain(
            &mut text,
            "output",
            "nat hook output priority -100",
            name,
            &out,
        );
        chain(
            &mut text,
            "prerouting",
            "nat hook prerouting priority -100",
            name,
            &incoming,
        );
        text.push_str("}\n");
    }
    text
}

fn chain(text: &mut String, name: &str, kind: &str, family: &str, rules: &[FirewallRule]) {
    let _ = write!(text, "\tchain {name} {{\n\t\ttype {kind}; policy accept;\n");
    for FirewallRule(conditions, then) in rules {
        text.push_str("\t\t");
        for condition in conditions {
            text.push_str(&self::condition(condition, family));
            text.push(' ');
        }
        let _ = match then {
            RuleVerdict::Leave => writeln!(text, "return"),
            RuleVerdict::Forget => writeln!(text, "notrack"),
            RuleVerdict::MarkPacket(mark) => writeln!(text, "meta mark set {mark:#x}"),
            RuleVerdict::MarkConnection(mark) => writeln!(text, "ct mark set {mark:#x}"),
            RuleVerdict::Redirect(port) => writeln!(text, "redirect to :{port}"),
            RuleVerdict::Send(target) => writeln!(text, "dnat to {target}"),
        };
    }
    text.push_str("\t}\n");
}

fn condition(condition: &If, family: &str) -> String {
    match condition {
        If::Mark(mark) => format!("meta mark {mark:#x}"),
        If::ConnectionMark(mark) => format!("ct mark {mark:#x}"),
        If::User(user) => format!("meta skuid {user}"),
        If::From(address) => format!("{family} saddr {address}"),
        If::ToLoopbackDevice => "oifname \"lo\"".to_owned(),
        If::FromLoopbackDevice => "iifname \"lo\"".to_owned(),
        If::To(range) => format!("{family} daddr {}", one(range)),
        If::NotTo(range) => format!("{family} daddr != {}", one(range)),
        If::Tcp => "meta l4proto tcp".to_owned(),
        If::TcpPort(port) => format!("tcp dport {port}"),
        If::UdpPort(port) => format!("udp dport {port}"),
        If::OneOf(count) => format!("numgen random mod {count} == 0"),
    }
}

/// nft refuses a prefix that is the whole address in some versions; an address says the same.
fn one(range: &Range) -> String {
    let whole = match range.address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    };
    if range.prefix == whole {
        range.address.to_string()
    } else {
        range.to_string()
    }
}
