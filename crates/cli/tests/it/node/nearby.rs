//! `trafficDistribution` without a sidecar to obey it: a node proxy prefers endpoints near the calling pod, a waypoint those near
//! itself.

use std::collections::BTreeSet;

use super::*;
use crate::node::waypoint::hostile::{GATE, start_gate};

/// Pods of the shop, where they are.
fn placed(text: &str, places: &[(&str, &str)]) -> String {
    let place = |text: String, (pod, place): &(&str, &str)| {
        let head = format!("name: {pod}\n  namespace: shop\n  labels:\n");
        assert!(text.contains(&head), "{pod} is there");
        text.replacen(&head, &format!("{head}    istio-locality: {place}\n"), 1)
    };
    places.iter().fold(text.to_owned(), place)
}

/// The same for a service that prefers near endpoints.
fn close(text: &str) -> String {
    let spec = "  clusterIP: ";
    text.replacen(
        spec,
        &format!("  trafficDistribution: PreferClose\n{spec}"),
        1,
    )
}

/// The same with a pod that is not ready.
fn unready(text: &str, pod: &str) -> String {
    let (before, after) = text.split_once(&format!("name: {pod}\n")).expect("the pod");
    let after = after.replacen("phase: Running", "phase: Pending", 1);
    format!("{before}name: {pod}\n{after}")
}

/// Waits until so many connections in a row come to these, and to each of them.
fn only(client: &Pod, expected: &[&str]) {
    wait_until(&format!("those of {expected:?}"), || {
        let called = (0..24).map(|_| name(&client.inside, (VIP, 80)));
        let called: BTreeSet<Option<String>> = called.collect();
        let expected = expected.iter().map(|name| Some((*name).to_owned()));
        called == expected.collect()
    });
}

#[test]
fn a_node_proxy_calls_who_is_near_its_pod_as_long_as_anybody_is_there() {
    let text = resources(&[("first", FIRST), ("second", SECOND)]) + ZTUNNEL;
    let places = [("client", "eu.a"), ("first", "eu.b"), ("second", "eu.a")];
    let text = placed(&text, &places);
    let Some(mut mesh) = mesh(&text) else {
        return;
    };
    let client = pod(&mesh, "client", CLIENT);
    let (first, second) = (pod(&mesh, "first", FIRST), pod(&mesh, "second", SECOND));
    serve(&first, FIRST);
    serve(&second, SECOND);
    let pods = [(&client, "client"), (&first, "server"), (&second, "server")];
    let _node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    only(&client, &["first", "second"]);
    mesh.write("mesh.yaml", &close(&text));
    only(&client, &["second"]);
    mesh.write("mesh.yaml", &unready(&close(&text), "second"));
    only(&client, &["first"]);
    mesh.write("mesh.yaml", &close(&text));
    only(&client, &["second"]);
    mesh.write("mesh.yaml", &text);
    only(&client, &["first", "second"]);
}

#[test]
fn a_waypoint_calls_who_is_near_itself_wherever_its_client_is() {
    let behind = "  name: server\n  namespace: shop\nspec:\n  clusterIP";
    let labelled = behind.replace("shop\n", "shop\n  labels: {istio.io/use-waypoint: gate}\n");
    let text = resources(&[("first", FIRST), ("second", SECOND)]).replacen(behind, &labelled, 1);
    let gate = waypoint_pod("gate", GATE).replacen(
        "labels: {gateway",
        "labels: {istio-locality: eu.a, gateway",
        1,
    );
    let text = text + ZTUNNEL + &gate;
    let places = [("client", "eu.b"), ("first", "eu.b"), ("second", "eu.a")];
    let text = placed(&text, &places);
    assert!(text.contains("use-waypoint: gate") && text.contains("istio-locality: eu.a, gateway"));
    let Some(mut mesh) = mesh(&text) else {
        return;
    };
    let client = pod(&mesh, "client", CLIENT);
    let (first, second) = (pod(&mesh, "first", FIRST), pod(&mesh, "second", SECOND));
    let gate = mesh.pod_with("gate", GATE, Rules::default());
    serve(&first, FIRST);
    serve(&second, SECOND);
    let pods = [(&client, "client"), (&first, "server"), (&second, "server")];
    let _node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    start_gate(&mut mesh, &gate, "shop/gate");
    only(&client, &["first", "second"]);
    mesh.write("mesh.yaml", &close(&text));
    only(&client, &["second"]);
    mesh.write("mesh.yaml", &unready(&close(&text), "second"));
    only(&client, &["first"]);
}

/// A second Pod of the waypoint, in another zone.
const GATE_TWO: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 17);
const BY_ZONE: &str = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: server, namespace: shop}\n\
    spec: {host: server, trafficPolicy: {loadBalancer: {simple: RANDOM, zoneAwareLbSetting: {minClusterSize: 2}}}}\n";

/// Number of connections that this Pod of a waypoint opened to that workload.
fn led(gate: &Pod, to: &str) -> u64 {
    let page = || get(local(15020), "/metrics");
    let answer = gate.inside.run(page).expect("entered").expect("metrics");
    let page = String::from_utf8(answer.body).expect("text");
    let to = format!("destination_workload=\"{to}\"");
    let lines = page.lines().filter(|line| {
        line.starts_with("istio_tcp_connections_opened_total{") && line.contains(&to)
    });
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum::<f64>() as u64
}

#[test]
fn each_pod_of_a_waypoint_keeps_to_its_zone_where_its_fellows_take_the_others() {
    let behind = "  name: server\n  namespace: shop\nspec:\n  clusterIP";
    let labelled = behind.replace("shop\n", "shop\n  labels: {istio.io/use-waypoint: gate}\n");
    let text = resources(&[("first", FIRST), ("second", SECOND)]).replacen(behind, &labelled, 1);
    let at = |text: String, place: &str| {
        let labels = format!("labels: {{app: gate, istio-locality: {place}, gateway");
        text.replacen("labels: {gateway", &labels, 1)
    };
    let two = gate_pod("shop", "gate-two", GATE_TWO);
    let two = two.replace("gateway-name: gate-two", "gateway-name: gate");
    let gates = at(waypoint_pod("gate", GATE), "eu.a") + &at(two, "eu.b");
    let places = [("first", "eu.a"), ("second", "eu.b")];
    let text = placed(&(text + ZTUNNEL + &gates), &places);
    let Some(mut mesh) = mesh(&text) else {
        return;
    };
    let client = pod(&mesh, "client", CLIENT);
    let (first, second) = (pod(&mesh, "first", FIRST), pod(&mesh, "second", SECOND));
    let one = mesh.pod_with("gate", GATE, Rules::default());
    let two = mesh.pod_with("gate-two", GATE_TWO, Rules::default());
    serve(&first, FIRST);
    serve(&second, SECOND);
    let pods = [(&client, "client"), (&first, "server"), (&second, "server")];
    let _node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    start_gate(&mut mesh, &one, "shop/gate");
    start_gate(&mut mesh, &two, "shop/gate-two");
    let crossed = || led(&one, "second") + led(&two, "first");
    let stayed = || led(&one, "first") + led(&two, "second");
    let call = || name(&client.inside, (VIP, 80));
    wait_until("zones do not matter", || {
        call();
        crossed() > 0 && stayed() > 0 && led(&one, "first") > 0 && led(&two, "first") > 0
    });
    mesh.write("zones.yaml", BY_ZONE);
    wait_until("each keeps to its zone", || {
        let (before, kept) = (crossed(), stayed());
        let called: Vec<_> = (0..24).map(|_| call()).collect();
        let all = called.iter().all(Option::is_some);
        all && crossed() == before && stayed() >= kept + 24
    });
}
