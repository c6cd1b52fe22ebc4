//! Node proxies that subscribe to the whole mesh, as a ztunnel does. A new workload is called by its own identity, though its
//! address was called while it was unused. Addresses outside the mesh are called without a question. Removed workloads are
//! forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Option of a node proxy that subscribes to the whole mesh.
pub(super) const ALL: [&str; 2] = ["--subscribe", "all"];
/// Address of a server outside the mesh.
const FAR: Ipv4Addr = Ipv4Addr::new(10, 244, 200, 1);

/// One more pod of the service, on node `two`.
fn another(name: &str, address: Ipv4Addr) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: shop\n  labels:\n    app: server\n\
         spec:\n  serviceAccountName: server\n  nodeName: two\n  containers:\n  - name: app\nstatus:\n  \
         phase: Running\n  podIP: {address}\n"
    )
}

fn stranger(mesh: &Mesh) -> Pod {
    let far = mesh.pod_with("far", FAR, Rules::default());
    serve(&far, FAR);
    far
}

/// Checks of node proxies that hold for every control plane. `words` turns resources into a form that the control plane reads.
pub(super) fn who_comes_later_is_known(mut mesh: Mesh, words: impl Fn(&str) -> String) {
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let one = Node::start(&mut mesh, "ztunnel-one", 0, &[(&client, "client")], &ALL);
    let two = Node::start(&mut mesh, "ztunnel-two", 100, &[(&first, "server")], &ALL);
    carries(&mesh, (&client, &one), &two);
    let _far = stranger(&mesh);
    let outside = name(&client.inside, (FAR, APPLICATION));
    assert_eq!(outside.as_deref(), Some("far"), "who is outside");

    // Plaintext is refused since `carries`: a server that answers was called with both identities.
    let second = pod(&mesh, "second", SECOND);
    serve(&second, SECOND);
    let to = SocketAddr::from((SECOND, APPLICATION));
    assert_eq!(name(&client.inside, to), None, "nobody serves it yet");
    mesh.write("second.yaml", &words(&another("second", SECOND)));
    two.agent.add(&second, "server");
    wait_until("who came later is called in its own name", || {
        name(&client.inside, to).as_deref() == Some("second")
    });
    wait_until("it is counted so", || {
        two.metrics(&mesh).lines().any(|line| {
            line.starts_with("istio_tcp_connections_opened_total{")
                && line.contains("reporter=\"destination\"")
                && line.contains("source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"")
                && line.contains("destination_workload=\"second\"")
                && line.contains("connection_security_policy=\"mutual_tls\"")
        })
    });
    wait_until("its service leads to it", || {
        name(&client.inside, (VIP, 80)).as_deref() == Some("second")
    });
    mesh.remove("second.yaml");
    two.agent.remove("second");
    wait_until("and no more when it is gone", || {
        (0..8).all(|_| name(&client.inside, (VIP, 80)).as_deref() == Some("first"))
    });
}

#[test]
fn who_comes_later_is_called_in_its_own_name_where_all_is_told() {
    let Some(mesh) = mesh(&on_two_nodes(&[("first", FIRST)])) else {
        return;
    };
    who_comes_later_is_known(mesh, str::to_owned);
}

/// Number of workloads that a node proxy knows.
fn known(mesh: &Mesh, node: &Node) -> usize {
    let page = || get(local(15000 + node.higher), "/config_dump");
    let answer = mesh.world.run(page).expect("entered").expect("a page");
    let page: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    page["workloads"].as_array().expect("a list").len()
}

#[test]
fn who_went_while_the_control_plane_was_away_is_forgotten_and_outside_is_called_all_the_same() {
    let both = on_two_nodes(&[("first", FIRST), ("second", SECOND)]);
    let Some(mut mesh) = mesh(&both) else {
        return;
    };
    let client = pod(&mesh, "client", CLIENT);
    let _far = stranger(&mesh);
    let one = Node::start(&mut mesh, "ztunnel-one", 0, &[(&client, "client")], &ALL);
    let all = known(&mesh, &one);
    // Nothing changes by a method that only reads.
    for (path, status) in [
        ("/quitquitquit", 405),
        ("/logging?level=debug", 405),
        ("/logging", 200),
        ("/none", 404),
    ] {
        let answer = mesh.world.run(|| get(local(15000 + one.higher), path));
        assert_eq!(
            answer.expect("entered").expect("a page").status,
            status,
            "{path}"
        );
    }
    let control = mesh.processes.remove(0);
    assert_eq!(control.name(), "control");
    drop(control);
    wait_until("it is noticed that nobody answers", || {
        one.log(&mesh)
            .contains("the current configuration stays in force")
    });
    assert_eq!(known(&mesh, &one), all, "what is held stays in force");
    let outside = name(&client.inside, (FAR, APPLICATION));
    assert_eq!(outside.as_deref(), Some("far"), "nobody need be asked");

    mesh.write("mesh.yaml", &on_two_nodes(&[("first", FIRST)]));
    mesh.start_control(&NODE_ACCOUNT);
    wait_until("who went is forgotten", || known(&mesh, &one) == all - 1);
    mesh.write("third.yaml", &another("third", SECOND));
    wait_until("who comes is known", || known(&mesh, &one) == all);
}

#[test]
fn a_new_pod_of_the_node_is_waited_for_until_the_control_plane_knows_it() {
    let Some(mut mesh) = mesh(&on_two_nodes(&[("first", FIRST)])) else {
        return;
    };
    let (client, second) = (pod(&mesh, "client", CLIENT), pod(&mesh, "second", SECOND));
    let _far = stranger(&mesh);
    let one = Node::start(&mut mesh, "ztunnel-one", 0, &[(&client, "client")], &ALL);
    one.agent.add(&second, "client");
    let to = SocketAddr::from((FAR, APPLICATION));
    let (inside, known) = (second.inside.clone(), Arc::<AtomicBool>::default());
    let calls = std::thread::spawn({
        let known = Arc::clone(&known);
        // A client that timed out calls again.
        move || while !known.load(Ordering::Relaxed) && name(&inside, to).is_none() {}
    });
    wait_until("it calls", || one.counter(&mesh, "voile_connections") == 1);
    let words = another("second", SECOND);
    let words = words.replace("nodeName: two", "nodeName: one");
    let words = words.replace("serviceAccountName: server", "serviceAccountName: client");
    mesh.write("second.yaml", &words);
    wait_until("it is known, and calls", || {
        name(&second.inside, to).as_deref() == Some("far")
    });
    known.store(true, Ordering::Relaxed);
    calls.join().expect("called");
    let log = one.log(&mesh);
    let hasty = log.contains("the control plane does not know this pod");
    assert!(
        !hasty,
        "nobody was refused before it was asked for long: {log}"
    );
}
