//! Tests of real namespaces: wired up, captured, reachable, isolated, and gone when no process holds them.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use voile_host::netns::Namespace;
use voile_host::netns::link::{Bridge, Prefixed};
use voile_host::netns::rules::{PodCapture, Rules, Tool, VirtualAddress, apply};
use voile_testkit::prerequisites::{Prerequisite, require, skip};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, 1);
const PATIENCE: Duration = Duration::from_secs(5);

fn v4(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, 0, last)
}

fn v6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, last)
}

/// A mesh's namespace and its bridge; `None`, and the test is skipped, where the kernel does not allow it.
fn mesh() -> Option<(Namespace, Bridge)> {
    let namespace = require(Prerequisite::Netns, Namespace::create())?;
    let addresses = [Prefixed::v4(GATEWAY, 16), Prefixed::v6(GATEWAY_V6, 64)];
    let bridge = namespace
        .run(|| Bridge::create(&addresses))
        .expect("entered")
        .expect("a bridge");
    if !bridge.has_v6() {
        skip(Prerequisite::Ipv6, "connections are of IPv4 alone");
    }
    Some((namespace, bridge))
}

fn pod(bridge: &Bridge, last: u8) -> Namespace {
    let addresses = [
        Prefixed::v4(v4(last), 16),
        Prefixed::v6(v6(last.into()), 64),
    ];
    bridge
        .add_pod(&addresses, &[GATEWAY.into(), GATEWAY_V6.into()])
        .expect("a pod")
}

/// Listens inside and answers every connection with `text`.
fn answer(inside: &Namespace, at: SocketAddr, text: &'static str) {
    let listener = inside
        .run(|| TcpListener::bind(at))
        .expect("entered")
        .unwrap_or_else(|error| panic!("{at}: {error}"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = (&stream).write_all(text.as_bytes());
        }
    });
}

fn ask(inside: &Namespace, at: (IpAddr, u16)) -> std::io::Result<String> {
    inside
        .run(|| {
            let mut stream = TcpStream::connect_timeout(&at.into(), PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        })
        .expect("entered")
}

#[test]
fn pods_reach_each_other_and_the_gateway_in_both_families_and_nothing_else() {
    let Some((mesh, bridge)) = mesh() else {
        return;
    };
    let (one, two) = (pod(&bridge, 2), pod(&bridge, 3));
    answer(&two, (v4(3), 80).into(), "two");
    answer(&mesh, (GATEWAY, 15012).into(), "control");
    assert_eq!(ask(&one, (v4(3).into(), 80)).expect("an answer"), "two");
    assert_eq!(
        ask(&one, (GATEWAY.into(), 15012)).expect("an answer"),
        "control"
    );
    if bridge.has_v6() {
        answer(&two, (v6(3), 80).into(), "two by v6");
        assert_eq!(
            ask(&one, (v6(3).into(), 80)).expect("an answer"),
            "two by v6"
        );
    }
    // Nowhere is said at once, not by silence.
    let outside = ask(&one, (Ipv4Addr::new(192, 0, 2, 1).into(), 80)).expect_err("no way out");
    assert_ne!(outside.kind(), std::io::ErrorKind::TimedOut, "{outside}");
}

#[test]
fn pods_that_come_later_do_not_cut_off_those_that_are_there() {
    let Some((mesh, bridge)) = mesh() else {
        return;
    };
    let first = pod(&bridge, 2);
    answer(&mesh, (GATEWAY, 15012).into(), "control");
    let others: Vec<Namespace> = (3..20)
        .map(|last| {
            let called = ask(&first, (GATEWAY.into(), 15012));
            assert_eq!(called.expect("an answer"), "control", "before pod {last}");
            pod(&bridge, last)
        })
        .collect();
    let called = ask(&first, (GATEWAY.into(), 15012));
    assert_eq!(called.expect("an answer"), "control");
    drop(others);
}

/// Each tool that this machine has, with a mesh for it.
fn with_each_tool(task: impl Fn(&Tool, &Bridge)) {
    let tools = Tool::all();
    if tools.is_empty() {
        skip(
            Prerequisite::Nft,
            "there is neither nft nor iptables-restore",
        );
    }
    for tool in tools {
        let Some((_mesh, bridge)) = mesh() else {
            return;
        };
        eprintln!("by {}", tool.name());
        task(&tool, &bridge);
    }
}

#[test]
fn a_captured_pod_is_redirected_both_ways_but_for_what_is_excluded() {
    with_each_tool(captured_pod);
}

fn captured_pod(tool: &Tool, bridge: &Bridge) {
    let (one, two) = (pod(bridge, 2), pod(bridge, 3));
    let capture = PodCapture {
        excluded_outbound_ports: vec![81],
        ..PodCapture::default()
    };
    let rules = Rules {
        capture: Some(capture),
        services: vec![],
        ..Rules::default()
    };
    apply(tool, &one, &rules, bridge.has_v6()).expect("rules");
    // Twice, since they are replaced as a whole.
    apply(tool, &one, &rules, bridge.has_v6()).expect("rules again");
    for at in [
        SocketAddr::from(([0, 0, 0, 0], 15001)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, 15006)),
    ] {
        let text = if at.port() == 15001 {
            "outbound"
        } else {
            "inbound"
        };
        answer(&one, at, text);
    }
    answer(&one, ([0, 0, 0, 0], 15020).into(), "metrics");
    answer(&one, ([127, 0, 0, 1], 9000).into(), "own loopback");
    answer(&two, ([0, 0, 0, 0], 80).into(), "two");
    answer(&two, ([0, 0, 0, 0], 81).into(), "two, not captured");
    for (from, to, port, expected) in [
        (&one, v4(3), 80, "outbound"),
        (&one, Ipv4Addr::new(10, 96, 0, 1), 9080, "outbound"),
        (&one, v4(3), 81, "two, not captured"),
        (&one, Ipv4Addr::LOCALHOST, 9000, "own loopback"),
        (&two, v4(2), 9000, "inbound"),
        (&two, v4(2), 15020, "metrics"),
    ] {
        let heard = ask(from, (to.into(), port)).unwrap_or_else(|e| panic!("{to}:{port}: {e}"));
        assert_eq!(heard, expected, "{to}:{port}");
    }
    if bridge.has_v6() {
        assert_eq!(
            ask(&two, (v6(2).into(), 7777)).expect("an answer"),
            "inbound"
        );
    }
}

#[test]
fn a_pod_without_a_sidecar_reaches_a_virtual_address_at_every_target() {
    with_each_tool(pod_without_sidecar);
}

fn pod_without_sidecar(tool: &Tool, bridge: &Bridge) {
    let (client, a, b) = (pod(bridge, 2), pod(bridge, 3), pod(bridge, 4));
    answer(&a, ([0, 0, 0, 0], 8080).into(), "a");
    answer(&b, ([0, 0, 0, 0], 8080).into(), "b");
    let address = Ipv4Addr::new(10, 96, 0, 7).into();
    let service = VirtualAddress {
        address,
        port: 80,
        targets: vec![(v4(3), 8080).into(), (v4(4), 8080).into()],
    };
    let rules = Rules {
        capture: None,
        services: vec![service],
        ..Rules::default()
    };
    apply(tool, &client, &rules, bridge.has_v6()).expect("rules");
    let mut heard = std::collections::BTreeSet::new();
    // Each connection falls on either with equal chance; a hundred on one side is not bad luck.
    for _ in 0..100 {
        heard.insert(ask(&client, (address, 80)).expect("an answer"));
        if heard.len() == 2 {
            return;
        }
    }
    panic!("only {heard:?} answered");
}

#[test]
fn who_calls_an_address_that_nobody_has_hears_of_it_soon() {
    let Some((mesh, bridge)) = mesh() else {
        return;
    };
    let caller = pod(&bridge, 2);
    // The kernel's own patience is 3 s.
    let patience = Duration::from_millis(2500);
    for (inside, who) in [(&caller, "a pod"), (&mesh, "the mesh")] {
        let mut nobody = vec![IpAddr::from(v4(99))];
        if bridge.has_v6() {
            nobody.push(v6(99).into());
        }
        for address in nobody {
            let call = || TcpStream::connect_timeout(&(address, 80).into(), patience);
            let error = inside.run(call).expect("entered").expect_err("nobody");
            assert_eq!(
                error.kind(),
                std::io::ErrorKind::HostUnreachable,
                "{who}, {address}"
            );
        }
    }
}
