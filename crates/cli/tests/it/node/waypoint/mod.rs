//! Waypoints in networks of their own. Node proxies bring calls to them, and requests obey policies that aim at the service,
//! by caller and request.

pub(crate) mod hostile;
mod keys;
mod on_demand;
mod policies;
mod rules;
mod telemetry;

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use rustix::process::Signal;

use crate::mesh::wait_until;
use crate::up::Up;
use crate::up::netns::{ask_inside, enters_namespaces, inside, start_with};

/// A service behind a waypoint: its client may read `/open`, and all else is denied.
const SHOP: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gate, namespace: shop}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: shop, labels: {istio.io/use-waypoint: gate}}
spec:
  clusterIP: 10.96.0.77
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: grpc, port: 81, targetPort: 8080}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: readers, namespace: shop}
spec:
  targetRefs: [{group: "", kind: Service, name: server}]
  rules:
  - from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]
    to: [{operation: {paths: ["/open*"]}}]
"#;

const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 77);

/// A pod of this name and account, whose application answers with its name at this port.
fn pod(name: &str, app: &str, account: &str) -> String {
    format!(
        r#"---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}}
spec:
  serviceAccountName: {account}
  containers: [{{name: app, command: ["$(VOILE)", echo, --listen, "0.0.0.0:8080", --name, {name}]}}]
"#
    )
}

fn account(name: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: shop}}\n"
    )
}

fn shop(folder: &Path) {
    let text = [
        SHOP.to_owned(),
        account("server"),
        account("client"),
        account("other"),
        pod("first", "server", "server"),
        pod("client", "client", "client"),
        pod("other", "other", "other"),
    ];
    fs::write(folder.join("shop.yaml"), text.concat()).expect("written");
}

/// The application of a pod.
fn application(up: &Up, name: &str) -> u32 {
    let family = up.family();
    let its = format!("--name {name}");
    let line = family.iter().find(|line| line.trim_end().ends_with(&its));
    let line = line.unwrap_or_else(|| panic!("{name} runs: {family:#?}"));
    let pid = line.split(' ').next().and_then(|pid| pid.parse().ok());
    pid.expect("a number")
}

/// The mesh with a node proxy; none where this machine cannot, or we cannot look into its networks.
fn up(fill: impl FnOnce(&Path)) -> Option<Up> {
    if !enters_namespaces() {
        return None;
    }
    let (up, _) = start_with(fill, None, &["--dataplane", "node"])?;
    Some(up)
}

/// The waypoint's process.
fn gate(up: &Up) -> Option<u32> {
    let family = up.family();
    let line = family
        .iter()
        .find(|line| line.contains("--role waypoint"))?;
    line.split(' ').next()?.parse().ok()
}

/// A page of the waypoint's.
fn page(up: &Up, path: &str) -> String {
    let port = if path == "/metrics" { 15020 } else { 15000 };
    let answer = gate(up).and_then(|pid| ask_inside(pid, ([127, 0, 0, 1], port).into(), path));
    answer.map(|(_, page)| page).unwrap_or_default()
}

fn status(up: &Up, from: &str, to: impl Into<SocketAddr>, path: &str) -> Option<u16> {
    let answer = ask_inside(application(up, from), to.into(), path);
    answer.map(|(status, _)| status)
}

fn ends(mut up: Up) {
    up.signal(Signal::TERM);
    assert!(up.wait().success());
    assert!(up.left_behind().is_empty());
}

#[test]
fn requests_to_a_service_obey_what_its_waypoint_is_told_by_path_and_caller() {
    let Some(up) = up(shop) else {
        return;
    };
    let ask = |name: &str, path: &str| status(&up, name, (VIP, 80), path);
    wait_until("the client reads what is open", || {
        ask("client", "/open/book") == Some(200)
    });
    assert_eq!(ask("client", "/shut"), Some(403));
    assert_eq!(ask("other", "/open/book"), Some(403));
    wait_until("the waypoint counts who called whom", || {
        page(&up, "/metrics").lines().any(|line| {
            line.starts_with("istio_requests_total{")
                && line.contains("reporter=\"waypoint\"")
                && line.contains("source_workload=\"client-0\"")
                && line.contains("source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"")
                && line.contains("destination_workload=\"first-0\"")
                && line
                    .contains("destination_principal=\"spiffe://cluster.local/ns/shop/sa/server\"")
                && line.contains("response_code=\"200\"")
        })
    });
    wait_until("and whom it refused", || {
        page(&up, "/metrics").lines().any(|line| {
            line.starts_with("istio_requests_total{")
                && line.contains("reporter=\"waypoint\"")
                && line.contains("source_workload=\"other-0\"")
                && line.contains("destination_service_name=\"server\"")
                && line.contains("response_code=\"403\"")
        })
    });
    // A policy applies to later requests, and only to its target.
    up.edit("shop.yaml", "paths: [\"/open*\"]", "paths: [\"/shut*\"]");
    wait_until("the policy says otherwise", || {
        ask("client", "/open/book") == Some(403) && ask("client", "/shut") == Some(200)
    });
    ends(up);
}

/// Number of calls that each server answers, of the calls on one connection.
fn spread(up: &Up, calls: usize) -> BTreeMap<String, usize> {
    inside(application(up, "client"), move || {
        let (sender, found) = std::sync::mpsc::channel();
        crate::traffic::http2::play(|| async move {
            let mut caller = crate::traffic::http2::connect((VIP, 81).into()).await;
            let mut seen = BTreeMap::new();
            for _ in 0..calls {
                let request = http::Request::get("http://server:81/open/book").body(());
                let request = request.expect("a request");
                let (answer, _) = caller.send_request(request, true).expect("sent");
                let answer = answer.await.expect("an answer");
                let name = answer.headers().get("x-voile-echo").expect("its name");
                *seen
                    .entry(name.to_str().expect("text").to_owned())
                    .or_default() += 1;
                caller = caller.ready().await.expect("room");
            }
            sender.send(seen).expect("somebody waits");
        });
        found.recv().expect("counted")
    })
}

#[test]
fn calls_of_one_long_connection_are_spread_over_all_that_stand_behind_a_waypoint() {
    let two = |folder: &Path| {
        shop(folder);
        let turns = r#"---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: turns, namespace: shop}
spec: {host: server, trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}}
"#;
        let second = pod("second", "server", "server") + turns;
        fs::write(folder.join("second.yaml"), second).expect("written");
    };
    let Some(up) = up(two) else {
        return;
    };
    wait_until("the client reads what is open", || {
        status(&up, "client", (VIP, 80), "/open/book") == Some(200)
    });
    const CALLS: usize = 60;
    let seen = spread(&up, CALLS);
    let half = |name: &str| (name.to_owned(), CALLS / 2);
    assert_eq!(seen, BTreeMap::from([half("first"), half("second")]));
    ends(up);
}

/// The address of a pod, as the node proxy was told.
fn address(up: &Up, pod: &str) -> Ipv4Addr {
    let log = up.log("node-proxy");
    let served = format!("a pod is served uid=shop/{pod}-0/");
    let line = log.lines().find(|line| line.contains(&served));
    let (_, addresses) = line
        .and_then(|line| line.split_once("addresses=["))
        .expect("told");
    let first = addresses.split([',', ']']).next().expect("one");
    first.parse().expect("an address")
}

/// Puts a whole namespace behind a waypoint, except resources with a label of their own.
fn namespace(folder: &Path) {
    shop(folder);
    let path = folder.join("shop.yaml");
    let text = fs::read_to_string(&path).expect("read");
    let text = text
        .replace(
            "{istio-injection: enabled}",
            "{istio-injection: enabled, istio.io/use-waypoint: gate}",
        )
        .replace(
            "labels: {istio.io/use-waypoint: gate}}\nspec:\n  clusterIP",
            "labels: {}}\nspec:\n  clusterIP",
        )
        .replace(
            "{name: gate, namespace: shop}",
            "{name: gate, namespace: shop, labels: {istio.io/waypoint-for: all}}",
        )
        .replace(
            "[{group: \"\", kind: Service, name: server}]",
            "[{group: gateway.networking.k8s.io, kind: Gateway, name: gate}]",
        );
    let past = r#"---
apiVersion: v1
kind: Service
metadata: {name: past, namespace: shop, labels: {istio.io/use-waypoint: none}}
spec: {clusterIP: 10.96.0.78, selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8080}]}
"#;
    fs::write(path, text + past).expect("written");
}

#[test]
fn a_waypoint_stands_before_a_namespace_before_its_pods_and_not_before_what_says_none() {
    const PAST: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 78);
    let Some(up) = up(namespace) else {
        return;
    };
    let first = address(&up, "first");
    let ask = |to: (Ipv4Addr, u16), path: &str| status(&up, "client", to, path);
    wait_until("the service stands behind its namespace's waypoint", || {
        ask((VIP, 80), "/open") == Some(200) && ask((VIP, 80), "/shut") == Some(403)
    });
    assert_eq!(ask((PAST, 80), "/shut"), Some(200), "it has none");
    assert_eq!(
        ask((first, 8080), "/shut"),
        Some(403),
        "a pod's own address"
    );
    assert_eq!(ask((first, 8080), "/open"), Some(200));
    up.edit(
        "shop.yaml",
        "istio.io/waypoint-for: all",
        "istio.io/waypoint-for: service",
    );
    wait_until("pods' own addresses are no more its business", || {
        ask((first, 8080), "/shut") == Some(200)
    });
    assert_eq!(ask((VIP, 80), "/shut"), Some(403));
    // A service whose waypoint does not exist is not called past it.
    up.edit(
        "shop.yaml",
        "istio.io/use-waypoint: gate",
        "istio.io/use-waypoint: gone",
    );
    // The waypoint that is one no longer may have heard of it first, and refuse by itself.
    let why =
        "is behind the waypoint shop/gone.shop.svc.cluster.local, which has no usable endpoint";
    wait_until("nobody is called past a waypoint that is not there", || {
        ask((VIP, 80), "/open").is_none() && up.log("node-proxy").contains(why)
    });
    assert_eq!(ask((PAST, 80), "/open"), Some(200));
    ends(up);
}

#[test]
fn a_waypoint_that_is_replaced_loses_no_request_and_one_that_dies_comes_back() {
    let Some(up) = up(shop) else {
        return;
    };
    let ask = || status(&up, "client", (VIP, 80), "/open");
    wait_until("the client reads what is open", || ask() == Some(200));
    let before = gate(&up).expect("it runs");
    up.signal(Signal::USR2);
    wait_until("another process has taken over", || {
        assert_eq!(ask(), Some(200), "while it is replaced");
        let gone = !Path::new(&format!("/proc/{before}")).exists();
        gone && gate(&up).is_some()
    });
    let now = gate(&up).expect("it runs");
    let pid = rustix::process::Pid::from_raw(i32::try_from(now).expect("a pid"));
    rustix::process::kill_process(pid.expect("a pid"), Signal::KILL).expect("killed");
    wait_until("it is started again", || {
        gate(&up).is_some_and(|pid| pid != now) && ask() == Some(200)
    });
    ends(up);
}
