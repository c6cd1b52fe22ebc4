//! Node proxies with a real istiod: its own discovery, over its own wire. `istiod/istiod.go` says how it is built (`ISTIOD`, else
//! `istiod-peer` on the path); without it tests are skipped. Certificates come from `voile control`, which reads
//! the same folder with the same pods.

use voile_testkit::prerequisites::{Prerequisite, peer};

use crate::node::everything::who_comes_later_is_known;
use crate::node::*;
use crate::ztunnel::node::shared;

/// Port of istiod, in the world.
const ISTIOD: u16 = 15112;

/// A mesh of these resources whose proxies ask istiod.
fn told_by_istiod(text: &str) -> Option<Mesh> {
    let program = peer(Prerequisite::Istiod, "ISTIOD", "istiod-peer")?;
    let mut mesh = mesh(&on_kubernetes(text))?;
    let folder = mesh.folder.path();
    let start = || {
        Process::start_other("istiod", &program, |istiod| {
            istiod.args(["-test.run", "TestIstiod", "-test.timeout", "0"]);
            istiod.env("PILOT_ENABLE_AMBIENT", "true");
            istiod.env("LISTEN", SocketAddr::from((WORLD, ISTIOD)).to_string());
            istiod.env("CERTIFICATES", SocketAddr::from((WORLD, XDS)).to_string());
            istiod.env("STATE", folder.join("state"));
            istiod.env("RESOURCES", folder.join("config"));
        })
    };
    let istiod = mesh.world.run(start).expect("entered");
    wait_until("istiod listens", || {
        let connected = mesh.world.run(|| TcpStream::connect((WORLD, ISTIOD)));
        matches!(connected, Ok(Ok(_)))
    });
    mesh.processes.push(istiod);
    mesh.asked = ISTIOD;
    Some(mesh)
}

/// Adds the status and annotations that a kubelet and Istio's CNI agent write, since istiod needs
/// them.
fn on_kubernetes(text: &str) -> String {
    let redirected =
        "  annotations:\n    ambient.istio.io/redirection: enabled\n  labels:\n    app:";
    let ready = "phase: Running\n  conditions:\n  - type: Ready\n    status: \"True\"\n";
    text.replace("  labels:\n    app:", redirected)
        .replace("phase: Running\n", ready)
}

fn istiods_log(mesh: &Mesh) -> String {
    let mut all = mesh.processes.iter();
    let istiod = all.find(|process| process.name() == "istiod");
    istiod.expect("it was started").log()
}

#[test]
fn a_real_istiod_tells_node_proxies_who_is_where_and_who_may() {
    let Some(mut mesh) = told_by_istiod(&on_two_nodes(&[("first", FIRST)])) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let one = Node::start(&mut mesh, "ztunnel-one", 0, &[(&client, "client")], &[]);
    let two = Node::start(&mut mesh, "ztunnel-two", 100, &[(&first, "server")], &[]);
    carries(&mesh, (&client, &one), &two);
    assert!(one.counter(&mesh, "voile_node_pooled_tunnels") > 0);
    let log = istiods_log(&mesh);
    assert!(log.contains("ztunnel-one"), "it was asked: {log}");
    assert!(!log.contains("NACK") && !log.contains("ACK ERROR"), "{log}");
}

#[test]
fn a_real_istiod_tells_who_asks_for_all_of_pods_that_come_later() {
    let Some(mesh) = told_by_istiod(&on_two_nodes(&[("first", FIRST)])) else {
        return;
    };
    who_comes_later_is_known(mesh, on_kubernetes);
}

#[test]
fn a_real_istiod_tells_a_ztunnel_and_a_node_proxy_the_same() {
    let Some(ztunnel) = crate::ztunnel::program() else {
        return;
    };
    let Some(mut mesh) = told_by_istiod(&on_two_nodes(&[("first", FIRST)])) else {
        return;
    };
    let (client, first) = (mesh.pod("client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let mut theirs = shared(&mut mesh, &ztunnel, "ztunnel-one", "one");
    theirs.greet();
    theirs.add(&client, "client");
    theirs.complete();
    let two = Node::start(&mut mesh, "ztunnel-two", 100, &[(&first, "server")], &[]);
    wait_until("a ztunnel's pod calls one of ours", || {
        name(&client.inside, (VIP, 80)).as_deref() == Some("first")
    });
    wait_until("it is told of both identities", || {
        is_told(&two.log(&mesh), "inbound")
    });
    mesh.write("deny.yaml", DENIED);
    wait_until("the policy holds", || {
        name(&client.inside, (VIP, 80)).is_none()
    });
    mesh.remove("deny.yaml");
    wait_until("the policy is gone", || {
        name(&client.inside, (VIP, 80)).as_deref() == Some("first")
    });
}
