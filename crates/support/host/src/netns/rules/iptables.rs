//! The rules as iptables' text, for machines without `nft`: one for each family.

use std::fmt::Write;

use super::{
    AddressFamily, FirewallRule, If, Range, RuleVerdict, Rules, marking, output, prerouting,
    untracked,
};

/// Returns the input of `iptables-restore` (and, `v6`, of `ip6tables-restore`). The table is replaced as a whole.
#[must_use]
pub fn restore(rules: &Rules, v6: bool) -> String {
    let family = if v6 {
        AddressFamily::V6
    } else {
        AddressFamily::V4
    };
    let mut text = String::new();
    let early = untracked(rules);
    if !early.is_empty() {
        text.push_str("*raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n");
        chain(&mut text, "OUTPUT", early);
        text.push_str("COMMIT\n");
    }
    if let Some([incoming, outgoing]) = marking(rules) {
        text.push_str("*mangle\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n");
        chain(&mut text, "PREROUTING", incoming);
        chain(&mut text, "OUTPUT", outgoing);
        text.push_str("COMMIT\n");
    }
    text.push_str("*nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n");
    chain(&mut text, "OUTPUT", output(rules, family));
    chain(&mut text, "PREROUTING", prerouting(rules, family));
    text.push_str("COMMIT\n");
    text
}

fn chain(text: &mut String, chain: &str, rules: Vec<FirewallRule>) {
    for FirewallRule(conditions, then) in rules {
        let _ = write!(text, "-A {chain}");
        // A port needs its protocol before it; REDIRECT and DNAT need one too.
        for condition in &conditions {
            text.push(' ');
            text.push_str(&self::condition(condition));
        }
        let _ = match then {
            RuleVerdict::Leave => writeln!(text, " -j RETURN"),
            RuleVerdict::Forget => writeln!(text, " -j CT --notrack"),
            RuleVerdict::MarkPacket(mark) => writeln!(text, " -j MARK --set-mark {mark:#x}"),
            RuleVerdict::MarkConnection(mark) => {
                writeln!(text, " -j CONNMARK --set-mark {mark:#x}")
            }
            RuleVerdict::Redirect(port) => writeln!(text, " -j REDIRECT --to-ports {port}"),
            RuleVerdict::Send(target) => writeln!(text, " -j DNAT --to-destination {target}"),
        };
    }
}

fn condition(condition: &If) -> String {
    match condition {
        If::Mark(mark) => format!("-m mark --mark {mark:#x}"),
        If::ConnectionMark(mark) => format!("-m connmark --mark {mark:#x}"),
        If::User(user) => format!("-m owner --uid-owner {user}"),
        If::From(address) => format!("-s {}", Range::one(*address)),
        If::ToLoopbackDevice => "-o lo".to_owned(),
        If::FromLoopbackDevice => "-i lo".to_owned(),
        If::To(range) => format!("-d {range}"),
        If::NotTo(range) => format!("! -d {range}"),
        If::Tcp => "-p tcp".to_owned(),
        If::TcpPort(port) => format!("-p tcp --dport {port}"),
        If::UdpPort(port) => format!("-p udp --dport {port}"),
        If::OneOf(count) => format!(
            "-m statistic --mode random --probability {:.8}",
            1.0 / f64::from(u32::try_from(*count).unwrap_or(u32::MAX))
        ),
    }
}
