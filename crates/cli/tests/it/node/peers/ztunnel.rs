//! A real ztunnel on the other node: its pods and those of our node proxy call each other through tunnels, under one control
//! plane and its authority. The program is taken from `ZTUNNEL` or the PATH.

use crate::node::*;
use crate::ztunnel::node::shared;
use crate::ztunnel::program;

#[test]
fn pods_of_a_node_proxy_and_of_a_ztunnel_call_each_other_in_mutual_tls() {
    let Some(program) = program() else {
        return;
    };
    let servers = [("first", FIRST), ("second", SECOND)];
    let Some(mut mesh) = mesh(&on_two_nodes(&servers)) else {
        return;
    };
    mesh.write("strict.yaml", STRICT);
    let ours = [pod(&mesh, "client", CLIENT), pod(&mesh, "second", SECOND)];
    let theirs = mesh.pod("first", FIRST);
    serve(&ours[1], SECOND);
    serve(&theirs, FIRST);
    let pods = [(&ours[0], "client"), (&ours[1], "server")];
    let node = Node::start(&mut mesh, "ztunnel-one", 100, &pods, &[]);
    let mut agent = shared(&mut mesh, &program, "ztunnel-two", "two");
    agent.greet();
    agent.add(&theirs, "server");
    agent.complete();
    let direct = |address| SocketAddr::from((address, APPLICATION));
    wait_until("ours call theirs", || {
        name(&ours[0].inside, direct(FIRST)).as_deref() == Some("first")
    });
    wait_until("theirs call ours", || {
        name(&theirs.inside, direct(SECOND)).as_deref() == Some("second")
    });
    assert!(node.counter(&mesh, "voile_node_pooled_tunnels") > 0);
    wait_until("ours count theirs by its identity", || {
        node.metrics(&mesh).lines().any(|line| {
            line.contains("reporter=\"destination\"")
                && line.contains("source_principal=\"spiffe://cluster.local/ns/shop/sa/server\"")
                && line.contains("destination_workload=\"second\"")
                && line.contains("connection_security_policy=\"mutual_tls\"")
        })
    });
    wait_until("theirs tells of ours by its identity", || {
        let mut all = mesh.processes.iter();
        let ztunnel = all.find(|process| process.name() == "ztunnel-two");
        let log = ztunnel.expect("it was started").log();
        log.contains("spiffe://cluster.local/ns/shop/sa/client")
    });
    assert_eq!(name(&mesh.world, direct(SECOND)), None, "plaintext to ours");
    // Our pods' policies are asked about theirs.
    let policy = DENIED.replace("sa/client", "sa/server");
    let (_, mut open) = answers(&theirs.inside, direct(SECOND)).expect("it may");
    mesh.write("deny.yaml", &policy);
    open.set_read_timeout(Some(Duration::from_secs(20)))
        .expect("open");
    assert!(
        !matches!(open.read(&mut [0; 16]), Ok(1..)),
        "the open one is cut"
    );
    assert_eq!(name(&theirs.inside, direct(SECOND)), None);
}
