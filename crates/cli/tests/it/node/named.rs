//! Endpoints that are known by a name (ServiceEntries with resolution DNS): looked up from inside the pod that calls them, kept
//! for a while, and called as the control plane says they are. A ztunnel in place of our node proxy does the same.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, UdpSocket};

use super::names::{ASKS, RESOLVER, answered};
use super::*;
use crate::mesh::resolver::Resolver;
use crate::ztunnel::node::shared;
use crate::ztunnel::program;

/// Servers that only the resolver knows.
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 20);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 21);
const THIRD: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 22);
/// Address that one of the entries has in its YAML.
const WRITTEN: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 96, 0, 77), 80);

/// An entry whose hosts are resolved, called at port 80 and at 8080 of the found address.
fn entry(name: &str, more: &str) -> String {
    format!(
        "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{hosts: [{name}.example.com], location: MESH_EXTERNAL, resolution: DNS,\n  \
         ports: [{{number: 80, name: tcp, targetPort: {APPLICATION}}}]{more}}}\n"
    )
}

fn entries() -> String {
    [
        entry("shared", ", addresses: [10.96.0.77]"),
        entry(
            "half",
            ", endpoints: [{address: lost.elsewhere.test}, {address: one.elsewhere.test}]",
        ),
        entry("lost", ""),
        entry("inside", ""),
    ]
    .concat()
}

/// A mesh with these entries, its two pods, three strangers, and the resolver in the world.
fn town(make: fn(&Mesh, &'static str, Ipv4Addr) -> Pod) -> Option<(Mesh, [Pod; 2], Resolver)> {
    let mesh = mesh(&(resources(&[("first", FIRST)]) + ZTUNNEL + &entries()))?;
    for (stranger, address) in [("near", NEAR), ("other", OTHER), ("third", THIRD)] {
        serve(&mesh.pod_with(stranger, address, Rules::default()), address);
    }
    let pods = [make(&mesh, "client", CLIENT), make(&mesh, "first", FIRST)];
    serve(&pods[1], FIRST);
    let socket = mesh.world.run(|| UdpSocket::bind(RESOLVER));
    let socket = socket.expect("entered").expect("a socket");
    let resolver = Resolver::start_on(socket, zone(&[NEAR, OTHER]));
    Some((mesh, pods, resolver))
}

/// The resolver's records, with `shared` at these addresses.
fn zone(shared: &[Ipv4Addr]) -> BTreeMap<&'static str, Vec<Ipv4Addr>> {
    BTreeMap::from([
        ("shared.example.com", shared.to_vec()),
        ("one.elsewhere.test", vec![NEAR]),
        ("inside.example.com", vec![FIRST]),
    ])
}

fn start(mesh: &mut Mesh, [client, first]: &[Pod; 2]) -> Node {
    let pods = [(client, "client"), (first, "server")];
    Node::start(mesh, "ztunnel-one", 0, &pods, &ASKS)
}

/// Address that the mesh gave to an entry, as its pods resolve it.
fn address_of(client: &Pod, entry: &str) -> (Ipv4Addr, u16) {
    let said = answered(client, &format!("{entry}.example.com"), "A");
    let given = said.strip_prefix("NOERROR ");
    let address = given.and_then(|text| text.parse().ok());
    (address.unwrap_or_else(|| panic!("{entry}: {said}")), 80)
}

/// Both of those that the name leads to are called by the one client.
fn is_spread(client: &Pod) {
    let mut heard = BTreeSet::new();
    wait_until("each address of the name is called", || {
        heard.extend(name(&client.inside, WRITTEN));
        heard.len() == 2
    });
    assert_eq!(
        heard,
        BTreeSet::from(["near".to_owned(), "other".to_owned()])
    );
}

#[test]
fn an_endpoint_that_is_a_name_is_called_where_the_pods_resolver_says_and_as_long_as_it_says_nothing_else()
 {
    let Some((mut mesh, pods, resolver)) = town(pod) else {
        return;
    };
    let node = start(&mut mesh, &pods);
    let client = &pods[0];
    assert_eq!(address_of(client, "shared"), WRITTEN);
    is_spread(client);
    const CALLS: u64 = 20;
    for _ in 0..CALLS {
        assert!(name(&client.inside, WRITTEN).is_some());
    }
    let lookups = node.counter(&mesh, "istio_on_demand_dns_total");
    assert!((1..CALLS).contains(&lookups), "{lookups} lookups");
    let askers: Vec<IpAddr> = resolver.askers().into_iter().collect();
    assert_eq!(askers, [CLIENT], "asked from inside the pod that calls");
    let counted = node.metrics(&mesh).lines().any(|line| {
        line.starts_with("istio_tcp_connections_opened_total{")
            && line.contains("reporter=\"source\"")
            && line.contains("source_workload=\"client\"")
            && line.contains("destination_service=\"shared.example.com\"")
            && line.contains("connection_security_policy=\"unknown\"")
    });
    assert!(counted, "{}", node.metrics(&mesh));

    resolver.set(Some(zone(&[THIRD])));
    wait_until("it is called where it moved", || {
        name(&client.inside, WRITTEN).as_deref() == Some("third")
    });
    // The resolver fails: the proxy keeps the last address.
    resolver.set(None);
    wait_until("it cannot be looked up anew", || {
        let called = name(&client.inside, WRITTEN);
        assert_eq!(called.as_deref(), Some("third"));
        node.counter(&mesh, "voile_on_demand_dns_names{state=\"stale\"}") == 1
    });
}

#[test]
fn a_name_that_leads_nowhere_is_not_called_and_one_that_leads_into_the_mesh_is_called_as_a_stranger()
 {
    let Some((mut mesh, pods, _resolver)) = town(pod) else {
        return;
    };
    let node = start(&mut mesh, &pods);
    let client = &pods[0];
    let lost = address_of(client, "lost");
    assert_eq!(name(&client.inside, lost), None);
    wait_until("it says why", || {
        node.log(&mesh).contains(
            "endpoint lost.example.com of service shop/lost.example.com cannot be resolved: no such name",
        )
    });
    // Of two names one leads nowhere: that is not every second call's misfortune.
    let half = address_of(client, "half");
    for turn in 0..12 {
        let called = name(&client.inside, half);
        assert_eq!(called.as_deref(), Some("near"), "call {turn}");
    }
    // The control plane says that it takes no tunnels, so it is called in plaintext; whose pod it is decides who may.
    let inside = address_of(client, "inside");
    assert_eq!(name(&client.inside, inside).as_deref(), Some("first"));
    mesh.write("strict.yaml", STRICT);
    wait_until("plaintext is refused there", || {
        name(&client.inside, inside).is_none()
    });
    let service = name(&client.inside, (VIP, 80));
    assert_eq!(service.as_deref(), Some("first"), "and tunnels are not");
}

/// The same ztunnel with this file as its resolv.conf.
fn asking(mesh: &Mesh, ztunnel: &std::path::Path) -> PathBuf {
    let folder = mesh.folder.path();
    let (file, script) = (folder.join("resolv.conf"), folder.join("ztunnel"));
    std::fs::write(&file, format!("nameserver {WORLD}\n")).expect("a file");
    let text = format!(
        "#!/bin/sh\nexec unshare --mount --propagation private sh -c \
         'mount --bind {} /etc/resolv.conf && exec {} \"$@\"' sh \"$@\"\n",
        file.display(),
        ztunnel.display()
    );
    std::fs::write(&script, text).expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("it may run");
    script
}

#[test]
fn a_ztunnel_calls_it_there_too() {
    let Some(program) = program() else {
        return;
    };
    let Some((mut mesh, [client, first], _resolver)) = town(Mesh::pod) else {
        return;
    };
    let program = asking(&mesh, &program);
    let mut agent = shared(&mut mesh, &program, "ztunnel-one", "one");
    agent.greet();
    agent.add(&client, "client");
    agent.add(&first, "server");
    agent.complete();
    wait_until("the ztunnel knows it", || {
        name(&client.inside, WRITTEN).is_some()
    });
    is_spread(&client);
}
