//! Scenarios of ztunnel's own tests in namespaces that no other file of ours covers: its end, its pages, the keys that it
//! holds, and a service with pods on several nodes. docs/reference/node.md has the whole list.

use std::sync::Arc;
use std::time::SystemTime;

use http::Method;
use voile_identity::{Authority, CertificateStore, Identity, Keys, TrustDomain};

use super::hostile::{answered, in_the_world, speak};
use super::*;

/// A word there and back.
fn speaks(stream: &mut TcpStream) -> bool {
    let mut heard = [0; 6];
    let said = stream.write_all(b"hello\n");
    said.is_ok() && stream.read_exact(&mut heard).is_ok() && heard == *b"hello\n"
}

/// One node with a client and a server, whose proxy gives what is open so long at its end.
fn one_node(drain: &str) -> Option<(Mesh, Node, Pod, Pod)> {
    let mut mesh = mesh(&(resources(&[("first", FIRST)]) + ZTUNNEL))?;
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let pods = [(&client, "client"), (&first, "server")];
    let words = ["--drain-timeout", drain];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &words);
    Some((mesh, node, client, first))
}

fn is_refused(from: &Pod, to: (Ipv4Addr, u16)) -> bool {
    let called = from.inside.run(|| TcpStream::connect(to));
    matches!(called, Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// Asks its proxy by its page to end.
fn quit(mesh: &Mesh) {
    let ask = || {
        let mut page = TcpStream::connect(local(15000)).expect("its page");
        let words = b"POST /quitquitquit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
        page.write_all(words).expect("said");
        page.read_exact(&mut [0; 12]).expect("answered");
    };
    mesh.world.run(ask).expect("entered");
}

#[test]
fn a_node_proxy_that_ends_takes_nothing_new_and_lets_what_is_open_finish() {
    for by_page in [false, true] {
        let Some((mut mesh, node, client, _first)) = one_node("60s") else {
            return;
        };
        let (_, mut open) = answers(&client.inside, (VIP, 80)).expect("the server");
        let mut process = mesh.processes.pop().expect("it was started");
        match by_page {
            false => process.terminate(),
            true => quit(&mesh),
        }
        wait_until("nobody new is taken", || is_refused(&client, (VIP, 80)));
        assert!(!node.is_ready(&mesh));
        assert!(speaks(&mut open), "what was open goes on");
        assert!(process.is_running());
        drop(open);
        assert!(process.wait().success(), "{}", process.log());
    }
}

#[test]
fn what_is_open_when_its_time_is_over_or_it_is_said_again_is_reset() {
    for (drain, again) in [("1s", false), ("60s", true)] {
        let Some((mut mesh, _node, client, _first)) = one_node(drain) else {
            return;
        };
        let (_, mut open) = answers(&client.inside, (VIP, 80)).expect("the server");
        let mut process = mesh.processes.pop().expect("it was started");
        process.terminate();
        if again {
            wait_until("it drains", || process.log().contains("draining"));
            process.terminate();
        }
        let limit = open.set_read_timeout(Some(Duration::from_secs(20)));
        limit.expect("open");
        let cut = open.read(&mut [0; 16]).expect_err("it is cut");
        assert_eq!(cut.kind(), std::io::ErrorKind::ConnectionReset);
        assert!(process.wait().success(), "{}", process.log());
    }
}

#[test]
fn a_second_node_proxy_on_the_same_addresses_says_so_and_the_first_serves_on() {
    let Some((mesh, node, client, _first)) = one_node("1s") else {
        return;
    };
    let mut second = Node::launch(&mesh, &mesh.world, ("ztunnel-one", 0), &[]);
    assert_eq!(second.wait().code(), Some(1));
    let said = second.log();
    assert!(
        said.contains("cannot listen on 127.0.0.1:15000 (admin)"),
        "{said}"
    );
    // With pages of its own it gets no pod: no two proxies share a port.
    let elsewhere = ("ztunnel-one", 200);
    let mut third = Node::launch(&mesh, &mesh.world, elsewhere, &["--log-level", "debug"]);
    assert_eq!(name(&client.inside, (VIP, 80)).as_deref(), Some("first"));
    assert!(node.is_ready(&mesh));
    third.kill();
}

#[test]
fn pods_of_a_service_on_both_nodes_are_called_and_counted_by_their_service() {
    let servers = [("first", FIRST), ("second", SECOND)];
    let labels = "  labels:\n    app: server\n";
    let placed = format!("{labels}    istio-locality: eu.a\n");
    let Some(mut mesh) = mesh(&on_two_nodes(&servers).replace(labels, &placed)) else {
        return;
    };
    let client = pod(&mesh, "client", CLIENT);
    let (first, second) = (pod(&mesh, "first", FIRST), pod(&mesh, "second", SECOND));
    serve(&first, FIRST);
    serve(&second, SECOND);
    let here = [(&client, "client"), (&second, "server")];
    let one = Node::start(&mut mesh, "ztunnel-one", 0, &here, &[]);
    let there = [(&first, "server")];
    let two = Node::start(&mut mesh, "ztunnel-two", 100, &there, &[]);
    let mut heard = std::collections::BTreeSet::new();
    wait_until("both are called", || {
        heard.extend(name(&client.inside, (VIP, 80)));
        heard.len() == 2
    });
    let counted = |node: &Node, reporter: &str, pod: &str| {
        let words = [
            "istio_tcp_connections_opened_total{".to_owned(),
            format!("reporter=\"{reporter}\""),
            format!("destination_workload=\"{pod}\""),
            "destination_service=\"server.shop.svc.cluster.local\"".to_owned(),
            "destination_service_namespace=\"shop\"".to_owned(),
            "connection_security_policy=\"mutual_tls\"".to_owned(),
            "source_region=\"unknown\",source_zone=\"unknown\"".to_owned(),
            "destination_region=\"eu\",destination_zone=\"a\"".to_owned(),
        ];
        let page = node.metrics(&mesh);
        page.lines()
            .any(|line| words.iter().all(|word| line.contains(word)))
    };
    for pod in ["first", "second"] {
        wait_until("the caller's side counts it", || {
            counted(&one, "source", pod)
        });
    }
    wait_until("a tunnel led to the other node", || {
        two.counter(&mesh, "istio_tcp_connections_opened_total{") > 0
    });
}

#[test]
fn an_identitys_keys_are_asked_for_once_and_let_go_with_its_last_pod() {
    let servers = [("first", FIRST), ("second", SECOND)];
    let Some(mut mesh) = mesh(&(resources(&servers) + ZTUNNEL)) else {
        return;
    };
    let (first, second) = (pod(&mesh, "first", FIRST), pod(&mesh, "second", SECOND));
    let pods = [(&first, "server"), (&second, "server")];
    let words = ["--drain-timeout", "0s"];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &words);
    let issued = || {
        let log = mesh.processes[0].log();
        let ours = |line: &&str| {
            line.contains("certificate issued")
                && line.contains("spiffe://cluster.local/ns/shop/sa/server")
        };
        log.lines().filter(ours).count()
    };
    wait_until("it is certified", || issued() == 1);
    node.agent.remove("second");
    node.agent.add(&second, "server");
    node.agent.remove("first");
    serve(&second, SECOND);
    let direct = (SECOND, APPLICATION);
    assert_eq!(name(&mesh.world, direct).as_deref(), Some("second"));
    assert_eq!(issued(), 1, "one of its pods was always there");
    wait_until("whoever comes after the last has new keys", || {
        node.agent.remove("second");
        node.agent.add(&second, "server");
        issued() > 1
    });
}

/// A certificate by the mesh's own root for `old.local/ns/shop/sa/client`, and the mesh's trust for it.
fn of_an_old_name(mesh: &Mesh) -> Arc<CertificateStore> {
    let domain = |name: &str| TrustDomain::new(name).expect("a trust domain");
    let (own, now) = (domain("cluster.local"), SystemTime::now());
    let state = mesh.folder.path().join("state");
    let authority = Authority::open(&state, &own, now).expect("the mesh's root");
    let keys = Keys::generate().expect("keys");
    let request = keys.request(None).expect("a request");
    let identity = Identity {
        trust_domain: domain("old.local"),
        namespace: voile_model::Namespace::new("shop").expect("a namespace"),
        service_account: "client".into(),
    };
    let issued = authority.issue(&request, &identity, None, now);
    let chain = issued.expect("issued").chain;
    let store = Arc::new(CertificateStore::new());
    let certificate = keys.certify(&chain).expect("the chain fits");
    store.publish(certificate).expect("published");
    store.trust().set_aliases(&[own]);
    store
}

#[test]
fn a_certificate_of_another_trust_domain_opens_no_tunnel_and_one_of_an_alias_does_under_policy() {
    const ALIAS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  \
        mesh: |\n    trustDomainAliases: [old.local]\n";
    for is_alias in [false, true] {
        let Some(mut mesh) = mesh(&(resources(&[("first", FIRST)]) + ZTUNNEL)) else {
            return;
        };
        mesh.write("alias.yaml", ALIAS);
        let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
        serve(&first, FIRST);
        let pods = [(&client, "client"), (&first, "server")];
        let words: &[&str] = match is_alias {
            true => &["--trust-domain-alias", "other.local,old.local"],
            false => &[],
        };
        let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, words);
        assert_eq!(name(&client.inside, (VIP, 80)).as_deref(), Some("first"));
        let store = of_an_old_name(&mesh);
        let tunnel = || {
            in_the_world(&mesh, || async {
                let mut caller = speak(&store, FIRST).await;
                let answer = answered(&mut caller, Method::CONNECT, "10.244.0.3:8080").await;
                answer.ok().map(|status| status.as_u16())
            })
        };
        assert_eq!(tunnel(), is_alias.then_some(200));
        if !is_alias {
            wait_until("it is noted", || node.log(&mesh).contains("old.local"));
            continue;
        }
        // A policy that names the client by its own trust domain means this one, too.
        mesh.write("deny.yaml", DENIED);
        wait_until("the policy holds for its other name", || {
            tunnel() == Some(401)
        });
    }
}

/// The proxy's own pod, which is called through tunnels.
fn itself() -> String {
    let more = "  namespace: istio-system\n  labels: {app: ztunnel}\n  annotations: {ambient.istio.io/redirection: enabled}\n";
    let pod = ZTUNNEL.replace("  namespace: istio-system\n", more);
    assert_ne!(pod, ZTUNNEL);
    pod
}

/// Keeps the shop's client from it.
const NO_SCRAPING: &str = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: no-scraping, namespace: istio-system}\n\
    spec:\n  selector: {matchLabels: {app: ztunnel}}\n  action: DENY\n  rules:\n  - from:\n    \
    - source: {principals: [cluster.local/ns/shop/sa/client]}\n";

/// The proxy's metrics page as a pod gets it; None if the pod cannot reach it.
fn scraped(from: &Pod) -> Option<String> {
    let page = from
        .inside
        .run(|| get(SocketAddr::from((WORLD, 15020)), "/metrics"));
    let answer = page.expect("entered").ok()?;
    String::from_utf8(answer.body).ok()
}

fn is_scraped(from: &Pod) -> bool {
    scraped(from).is_some_and(|page| page.contains("# TYPE"))
}

#[test]
fn its_own_metrics_are_scraped_through_a_tunnel_under_the_policies_of_its_own_pod() {
    let Some(mut mesh) = mesh(&(resources(&[("first", FIRST)]) + &itself())) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    let pods = [(&client, "client"), (&first, "server")];
    let path = mesh.folder.path().join("one.handover");
    let path = path.to_str().expect("text").to_owned();
    let words = ["--service-account", "ztunnel", "--handover", &*path];
    let mut node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &words);
    assert_eq!(node.counter(&mesh, "voile_node_pods"), 2, "not itself");
    wait_until("a pod scrapes it", || is_scraped(&client));
    let words_of = |page: &str, series: &str| {
        page.lines().any(|line| {
            line.starts_with(series)
                && line.contains("reporter=\"destination\"")
                && line.contains("source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"")
                && line.contains("destination_workload=\"ztunnel-one\"")
                && line.contains("connection_security_policy=\"mutual_tls\"")
        })
    };
    wait_until("it counts that itself", || {
        let page = node.metrics(&mesh);
        words_of(&page, "istio_tcp_connections_opened_total{")
            && words_of(&page, "istio_tcp_connections_closed_total{")
    });
    let told = node.log(&mesh).lines().any(|line| {
        line.contains("connection complete")
            && line.contains("direction=\"inbound\"")
            && line.contains("dst.addr=10.244.0.1:15008")
            && line.contains("dst.hbone_addr=10.244.0.1:15020")
            && line.contains("spiffe://cluster.local/ns/istio-system/sa/ztunnel")
    });
    assert!(told, "{}", node.log(&mesh));
    // Pods cannot reach other servers through the node proxy's network: here the control plane.
    assert_eq!(name(&client.inside, (WORLD, XDS)), None);
    wait_until("it says why", || {
        node.log(&mesh)
            .contains("the node proxy's own pod serves only metrics and readiness")
    });
    mesh.write("no-scraping.yaml", NO_SCRAPING);
    wait_until("its own policies hold", || !is_scraped(&client));
    assert!(is_scraped(&first), "for whom they are");

    let mut before = node.challenge(&mut mesh, &words);
    node.tell(&pods);
    wait_until("a new process serves in its place", || {
        before.log().contains(handover::HANDED)
    });
    assert!(before.wait().success(), "{}", before.log());
    assert!(is_scraped(&first));
    assert!(!is_scraped(&client));
}

/// From now on nothing that comes to this port of the pod arrives.
fn drop_packets(pod: &Pod, port: u16) {
    let rule = format!(
        "add table inet gone; add chain inet gone input {{ type filter hook input priority 0; }}; \
         add rule inet gone input tcp dport {port} drop"
    );
    let dropped = pod.inside.run(|| {
        let by_nft = std::process::Command::new("nft").arg(&rule).status();
        if matches!(by_nft, Ok(status) if status.success()) {
            return true;
        }
        let port = port.to_string();
        let by_iptables = std::process::Command::new("iptables")
            .args(["-A", "INPUT", "-p", "tcp", "--dport", &port, "-j", "DROP"])
            .status();
        matches!(by_iptables, Ok(status) if status.success())
    });
    assert!(
        dropped.expect("entered"),
        "neither nft nor iptables does it"
    );
}

#[test]
fn a_proxy_to_which_no_packet_comes_through_is_told_from_one_that_refuses() {
    let Some(mut mesh) = mesh(&on_two_nodes(&[("first", FIRST)])) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let one = Node::start(&mut mesh, "ztunnel-one", 0, &[(&client, "client")], &[]);
    let _two = Node::start(&mut mesh, "ztunnel-two", 100, &[(&first, "server")], &[]);
    drop_packets(&first, 15008);
    assert_eq!(name(&client.inside, (VIP, 80)), None);
    wait_until("it is said in the log", || {
        one.log(&mesh).lines().any(|line| {
            line.contains("connection complete")
                && line.contains("response_flags=\"NETWORK_POLICY\"")
                && line.contains("NetworkPolicy")
                && line.contains("15008")
        })
    });
    wait_until("and counted", || {
        let page = one.metrics(&mesh);
        page.lines().any(|line| {
            line.starts_with("istio_tcp_connections_closed_total{")
                && line.contains("response_flags=\"NETWORK_POLICY\"")
        })
    });
}
