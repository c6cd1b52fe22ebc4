//! The redirect rules as text: every kind of rule, for both tools and both families.

use voile_host::netns::rules::{
    NodeCapture, PodCapture, PortRedirect, PortScope, Range, Rules, SidecarMatch, VirtualAddress,
    restore, script,
};

fn range(text: &str) -> Range {
    let (address, prefix) = text.split_once('/').expect("ADDRESS/BITS");
    Range {
        address: address.parse().expect("an address"),
        prefix: prefix.parse().expect("bits"),
    }
}

/// Returns the lines that are rules, without their common parts.
fn rules_of(text: &str) -> Vec<&str> {
    text.lines()
        .map(str::trim)
        .filter(|line| {
            ["return", "redirect", "dnat", "RETURN", "REDIRECT", "DNAT"]
                .iter()
                .any(|word| line.contains(word))
        })
        .collect()
}

fn captured(capture: PodCapture) -> Rules {
    Rules {
        capture: Some(capture),
        services: vec![],
        ..Rules::default()
    }
}

#[test]
fn everything_is_captured_but_what_is_marked_local_or_the_sidecars_own() {
    let rules = captured(PodCapture {
        dns: Some(15053),
        control: vec!["10.244.0.1:15012".parse().expect("an address")],
        ..PodCapture::default()
    });
    let expected = "table ip voile\ndelete table ip voile\ntable ip voile {\n\
        \tchain output {\n\
        \t\ttype nat hook output priority -100; policy accept;\n\
        \t\tmeta mark 0x53a return\n\
        \t\tmeta mark 0x539 oifname \"lo\" ip daddr != 127.0.0.0/8 meta l4proto tcp redirect to :15006\n\
        \t\tmeta mark 0x539 return\n\
        \t\tip daddr 127.0.0.0/8 return\n\
        \t\tip daddr 10.244.0.1 tcp dport 15012 return\n\
        \t\tudp dport 53 redirect to :15053\n\
        \t\ttcp dport 53 redirect to :15053\n\
        \t\tmeta l4proto tcp redirect to :15001\n\
        \t}\n\
        \tchain prerouting {\n\
        \t\ttype nat hook prerouting priority -100; policy accept;\n\
        \t\tiifname \"lo\" return\n\
        \t\ttcp dport 15008 return\n\
        \t\ttcp dport 15020 return\n\
        \t\ttcp dport 15021 return\n\
        \t\ttcp dport 15090 return\n\
        \t\tmeta l4proto tcp redirect to :15006\n\
        \t}\n}\n";
    assert_eq!(script(&rules, false), expected);
    let both = script(&rules, true);
    let v6 = both.strip_prefix(expected).expect("IPv4 first");
    assert_eq!(
        rules_of(v6)[..4],
        [
            "meta mark 0x53a return",
            "meta mark 0x539 oifname \"lo\" ip6 daddr != ::1 meta l4proto tcp redirect to :15006",
            "meta mark 0x539 return",
            "ip6 daddr ::1 return",
        ]
    );
    assert!(!v6.contains("15012"), "the control plane is called by IPv4");
}

#[test]
fn a_sidecar_without_marks_is_recognised_by_its_user_and_source_address() {
    let rules = captured(PodCapture {
        sidecar: SidecarMatch::User(1337),
        ..PodCapture::default()
    });
    let text = script(&rules, true);
    let (v4, v6) = text.split_once("table ip6").expect("both");
    assert_eq!(
        rules_of(v4)[..5],
        [
            "ip saddr 127.0.0.6 oifname \"lo\" return",
            "meta skuid 1337 oifname \"lo\" ip daddr != 127.0.0.0/8 meta l4proto tcp redirect to :15006",
            "meta skuid 1337 return",
            "ip daddr 127.0.0.0/8 return",
            "meta l4proto tcp redirect to :15001",
        ]
    );
    assert_eq!(
        rules_of(v6)[..3],
        [
            "ip6 saddr ::6 oifname \"lo\" return",
            "meta skuid 1337 oifname \"lo\" ip6 daddr != ::1 meta l4proto tcp redirect to :15006",
            "meta skuid 1337 return",
        ]
    );
    assert!(!text.contains("meta mark"), "{text}");
    assert_eq!(
        rules_of(&restore(&rules, false))[..3],
        [
            "-A OUTPUT -s 127.0.0.6/32 -o lo -j RETURN",
            "-A OUTPUT -m owner --uid-owner 1337 -o lo ! -d 127.0.0.0/8 -p tcp -j REDIRECT --to-ports 15006",
            "-A OUTPUT -m owner --uid-owner 1337 -j RETURN",
        ]
    );
}

#[test]
fn scopes_become_rules_in_istios_order() {
    let rules = captured(PodCapture {
        inbound_ports: PortScope::AllBut(vec![22]),
        outbound_ranges: PortScope::AllBut(vec![range("10.0.0.0/8"), range("fd00::/8")]),
        outbound_ports: vec![443],
        excluded_outbound_ports: vec![3306],
        ..PodCapture::default()
    });
    let text = script(&rules, true);
    let tail = |text: &str, from: usize| rules_of(text)[from..].join("\n");
    assert!(tail(&text, 4).starts_with(
        "tcp dport 3306 return\nip daddr 10.0.0.0/8 return\ntcp dport 443 redirect to :15001\nmeta l4proto tcp redirect to :15001\n"
    ), "{text}");
    assert!(text.contains(
        "tcp dport 15090 return\n\t\ttcp dport 22 return\n\t\tmeta l4proto tcp redirect to :15006"
    ));
    let (v4, v6) = text.split_once("table ip6").expect("both");
    assert!(
        !v4.contains("fd00")
            && v6.contains("ip6 daddr fd00::/8 return")
            && !v6.contains("10.0.0.0")
    );

    let alone = captured(PodCapture {
        inbound_ports: PortScope::Only(vec![8080]),
        outbound_ranges: PortScope::Only(vec![range("10.96.0.0/16"), range("192.0.2.7/32")]),
        ..PodCapture::default()
    });
    let carved = captured(PodCapture {
        outbound_ranges: PortScope::Only(vec![range("10.96.0.0/16")]),
        excluded_outbound_ranges: vec![range("10.96.7.0/24"), range("fd00::/8")],
        ..PodCapture::default()
    });
    assert!(tail(&script(&carved, false), 4).starts_with(
        "ip daddr 10.96.7.0/24 return\nip daddr 10.96.0.0/16 meta l4proto tcp redirect to :15001\n"
    ));
    assert!(tail(&script(&alone, false), 4).starts_with(
        "ip daddr 10.96.0.0/16 meta l4proto tcp redirect to :15001\nip daddr 192.0.2.7 meta l4proto tcp redirect to :15001\niifname"
    ));
    assert!(tail(&script(&alone, false), 11).ends_with("tcp dport 8080 redirect to :15006"));
    let nothing = captured(PodCapture {
        inbound_ports: PortScope::Only(vec![]),
        outbound_ranges: PortScope::Only(vec![]),
        ..PodCapture::default()
    });
    assert!(!script(&nothing, true).contains("redirect to :15001"));
    assert_eq!(
        script(&nothing, true).matches("15006").count(),
        2,
        "only calls to oneself"
    );
}

#[test]
fn iptables_says_the_same() {
    let rules = captured(PodCapture {
        dns: Some(15053),
        inbound_ports: PortScope::AllBut(vec![22]),
        outbound_ranges: PortScope::AllBut(vec![range("10.0.0.0/8"), range("fd00::/8")]),
        ..PodCapture::default()
    });
    let text = restore(&rules, false);
    assert!(text.starts_with("*nat\n:PREROUTING ACCEPT [0:0]\n") && text.ends_with("COMMIT\n"));
    assert_eq!(
        rules_of(&text),
        [
            "-A OUTPUT -m mark --mark 0x53a -j RETURN",
            "-A OUTPUT -m mark --mark 0x539 -o lo ! -d 127.0.0.0/8 -p tcp -j REDIRECT --to-ports 15006",
            "-A OUTPUT -m mark --mark 0x539 -j RETURN",
            "-A OUTPUT -d 127.0.0.0/8 -j RETURN",
            "-A OUTPUT -p udp --dport 53 -j REDIRECT --to-ports 15053",
            "-A OUTPUT -p tcp --dport 53 -j REDIRECT --to-ports 15053",
            "-A OUTPUT -d 10.0.0.0/8 -j RETURN",
            "-A OUTPUT -p tcp -j REDIRECT --to-ports 15001",
            "-A PREROUTING -i lo -j RETURN",
            "-A PREROUTING -p tcp --dport 15008 -j RETURN",
            "-A PREROUTING -p tcp --dport 15020 -j RETURN",
            "-A PREROUTING -p tcp --dport 15021 -j RETURN",
            "-A PREROUTING -p tcp --dport 15090 -j RETURN",
            "-A PREROUTING -p tcp --dport 22 -j RETURN",
            "-A PREROUTING -p tcp -j REDIRECT --to-ports 15006",
        ]
    );
    assert!(restore(&rules, true).contains("-A OUTPUT -d fd00::/8 -j RETURN"));
}

#[test]
fn what_is_called_in_a_clients_name_is_not_taken_for_the_clients_own_connection() {
    let rules = captured(PodCapture {
        keeps_source: true,
        ..PodCapture::default()
    });
    let chain = "\tchain untracked {\n\t\ttype filter hook output priority -300; policy accept;\n\t\tmeta mark 0x53a notrack\n\t}\n";
    assert_eq!(script(&rules, true).matches(chain).count(), 2);
    let raw = "*raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -m mark --mark 0x53a -j CT --notrack\nCOMMIT\n*nat\n";
    for v6 in [false, true] {
        assert!(restore(&rules, v6).starts_with(raw));
    }
    let plain = captured(PodCapture::default());
    assert!(!script(&plain, true).contains("untracked"));
    assert!(!restore(&plain, true).contains("*raw"));
}

#[test]
fn a_virtual_address_is_shared_by_its_targets_of_the_same_family() {
    let target = |text: &str| text.parse().expect("an address");
    let service = VirtualAddress {
        address: "10.96.0.7".parse().expect("an address"),
        port: 80,
        targets: vec![
            target("10.244.0.2:8080"),
            target("[fd00::2]:8080"),
            target("10.244.0.3:8081"),
            target("10.244.0.4:8080"),
        ],
    };
    let rules = Rules {
        capture: None,
        services: vec![service],
        ..Rules::default()
    };
    assert_eq!(
        rules_of(&script(&rules, true)),
        [
            "ip daddr 10.96.0.7 tcp dport 80 numgen random mod 3 == 0 dnat to 10.244.0.2:8080",
            "ip daddr 10.96.0.7 tcp dport 80 numgen random mod 2 == 0 dnat to 10.244.0.3:8081",
            "ip daddr 10.96.0.7 tcp dport 80 dnat to 10.244.0.4:8080",
        ]
    );
    assert_eq!(
        rules_of(&restore(&rules, false))[0],
        "-A OUTPUT -d 10.96.0.7/32 -p tcp --dport 80 -m statistic --mode random --probability 0.33333333 -j DNAT --to-destination 10.244.0.2:8080"
    );
}

#[test]
fn ports_are_turned_to_listeners_of_their_own_on_either_side() {
    let turn = |port| PortRedirect {
        port,
        to: port + 1000,
    };
    let out = Rules {
        turned_out: vec![turn(8100), turn(8101)],
        ..Rules::default()
    };
    assert_eq!(
        rules_of(&script(&out, false)),
        [
            "ip daddr != 127.0.0.0/8 tcp dport 8100 redirect to :9100",
            "ip daddr != 127.0.0.0/8 tcp dport 8101 redirect to :9101",
        ]
    );
    let inward = Rules {
        turned_in: vec![turn(8102)],
        ..Rules::default()
    };
    assert_eq!(
        rules_of(&script(&inward, false)),
        ["iifname \"lo\" return", "tcp dport 8102 redirect to :9102"]
    );
    assert_eq!(rules_of(&script(&Rules::default(), false)), [""; 0]);
}

#[test]
fn a_node_proxys_pod_has_the_rules_of_istios_agent() {
    let rules = |keeps_source| Rules {
        node: Some(NodeCapture {
            keeps_source,
            ..NodeCapture::default()
        }),
        ..Rules::default()
    };
    let nat = [
        "meta mark 0x539 return",
        "meta mark 0x111 return",
        "oifname \"lo\" return",
        "udp dport 53 redirect to :15053",
        "tcp dport 53 redirect to :15053",
        "meta l4proto tcp redirect to :15001",
        "iifname \"lo\" return",
        "tcp dport 15008 return",
        "meta l4proto tcp redirect to :15006",
    ];
    let text = script(&rules(false), false);
    assert_eq!(rules_of(&text), nat);
    assert!(!text.contains("mark set"), "{text}");
    let text = script(&rules(true), false);
    assert_eq!(rules_of(&text), nat);
    let marks = "\tchain marked_in {\n\t\ttype filter hook prerouting priority -150; policy accept;\n\
        \t\tiifname \"lo\" meta mark 0x539 ct mark set 0x111\n\t}\n\
        \tchain marked_out {\n\t\ttype route hook output priority -150; policy accept;\n\
        \t\tct mark 0x111 meta mark set 0x111\n\t}\n";
    assert!(text.contains(marks), "{text}");
    let text = restore(&rules(true), false);
    let marks = "*mangle\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n\
        -A PREROUTING -i lo -m mark --mark 0x539 -j CONNMARK --set-mark 0x111\n\
        -A OUTPUT -m connmark --mark 0x111 -j MARK --set-mark 0x111\nCOMMIT\n";
    assert!(text.contains(marks), "{text}");
    assert!(
        text.contains("-A PREROUTING -p tcp -j REDIRECT --to-ports 15006"),
        "{text}"
    );
}
