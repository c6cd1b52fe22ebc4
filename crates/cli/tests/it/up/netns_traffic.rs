//! Routes and DestinationRules in `voile up --isolation netns`: real captured clients (curl, in a pod's own network), exact
//! answers. All tests share one mesh, since they try the traffic and not the start.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Instant;

use crate::mesh::{series, wait_until};
use crate::up::netns::{ask_inside, enters_namespaces, inside, sidecars, start};

/// The services' addresses: what a DNS of the cluster would say.
const BOOKS: &str = "10.96.77.1";
const NEAR: &str = "10.96.77.2";
const CARTS: &str = "10.96.77.3";

/// Address of the service for copies.
const SHADOW: &str = "10.96.77.4";

fn service(name: &str, address: &str, app: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: lab}}\n\
         spec: {{clusterIP: {address}, selector: {{app: {app}}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}\n---\n"
    )
}

fn pod(name: &str, app: &str, zone: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: lab\n\
         \x20 labels: {{app: {app}, version: {name}, topology.kubernetes.io/region: eu, topology.kubernetes.io/zone: {zone}}}\n\
         spec:\n  containers: [{{name: app, command: [\"$(VOILE)\", echo, --listen, \"0.0.0.0:8080\", --name, {name}]}}]\n---\n"
    )
}

const RULES: &str = r#"
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: books, namespace: lab}
spec:
  host: books
  subsets: [{name: one, labels: {version: one}}, {name: two, labels: {version: two}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: near, namespace: lab}
spec:
  host: near
  trafficPolicy: {outlierDetection: {consecutive5xxErrors: 1, baseEjectionTime: 1h, maxEjectionPercent: 100}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: carts, namespace: lab}
spec:
  host: carts
  trafficPolicy: {loadBalancer: {consistentHash: {httpCookie: {name: cart, path: /, ttl: 1h}}}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: books, namespace: lab}
spec:
  hosts: [books]
  http:
  - match: [{uri: {prefix: /teapot}}]
    fault: {abort: {httpStatus: 418, percentage: {value: 100}}}
    route: [{destination: {host: books}}]
  - match: [{uri: {prefix: /slow}}]
    fault: {delay: {fixedDelay: 700ms, percentage: {value: 100}}}
    route: [{destination: {host: books, subset: one}}]
  - match: [{uri: {prefix: /mirrored}}]
    route: [{destination: {host: books, subset: one}}]
    mirror: {host: shadow}
  - match: [{headers: {x-tester: {exact: "yes"}}}]
    route: [{destination: {host: books, subset: two}}]
  - match: [{uri: {prefix: /half}}]
    route: [{destination: {host: books, subset: one}, weight: 50}, {destination: {host: books, subset: two}, weight: 50}]
  - route: [{destination: {host: books, subset: one}, weight: 100}, {destination: {host: books, subset: two}, weight: 0}]
"#;

/// A pod whose application is curl.
struct Client {
    pid: u32,
}

impl Client {
    /// Counts answers by pod and status: `one 200`. curl asks once for each number of a range in the URL.
    fn asks(&self, url: &str, more: &[&str]) -> BTreeMap<String, usize> {
        let format = "%header{x-voile-echo} %{http_code}\n";
        let mut command = Command::new("curl");
        command.args(["-s", "--max-time", "30", "-o", "/dev/null", "-w", format]);
        command.args(more).arg(format!("http://{url}"));
        let output = inside(self.pid, move || command.output().expect("curl is there"));
        let mut seen = BTreeMap::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            *seen.entry(line.trim().to_owned()).or_default() += 1;
        }
        seen
    }
}

fn only(what: &str, times: usize) -> BTreeMap<String, usize> {
    [(what.to_owned(), times)].into()
}

#[test]
fn routes_mirrors_faults_zones_and_sessions_hold_for_captured_clients_in_namespaces() {
    let fill = |folder: &std::path::Path| {
        let text = [
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: lab, labels: {istio-injection: enabled}}\n---\n".to_owned(),
            service("books", BOOKS, "server"),
            service("near", NEAR, "server"),
            service("carts", CARTS, "server"),
            service("shadow", SHADOW, "shadow"),
            pod("one", "server", "eu-a"),
            pod("two", "server", "eu-b"),
            pod("shadow", "shadow", "eu-a"),
            pod("client", "client", "eu-a"),
            RULES.to_owned(),
        ];
        std::fs::write(folder.join("lab.yaml"), text.concat()).expect("written");
    };
    let Some((up, _)) = start(fill, None) else {
        return;
    };
    if !enters_namespaces() {
        return;
    }
    let all = sidecars(&up);
    let pid = |pod: &str| {
        all.iter()
            .find(|(name, _)| name.contains(pod))
            .expect("a sidecar")
            .1
    };
    let client = Client { pid: pid("client") };
    wait_until("the mesh to answer", || {
        client.asks(&format!("{BOOKS}/"), &[]) == only("one 200", 1)
    });
    canary(&client);
    faults(&client);
    mirrors(&client, pid("shadow"));
    sessions(&client);
    zones(&client);
    drop(up);
}

fn canary(client: &Client) {
    assert_eq!(
        client.asks(&format!("{BOOKS}/x?[1-50]"), &[]),
        only("one 200", 50),
        "a weight of 0"
    );
    let tester = ["-H", "x-tester: yes"];
    assert_eq!(
        client.asks(&format!("{BOOKS}/x?[1-20]"), &tester),
        only("two 200", 20)
    );
    let half = client.asks(&format!("{BOOKS}/half?[1-200]"), &[]);
    assert_eq!(half.values().sum::<usize>(), 200, "{half:?}");
    // Six deviations of a fair coin.
    for pod in ["one 200", "two 200"] {
        assert!((58..=142).contains(half.get(pod).unwrap_or(&0)), "{half:?}");
    }
}

fn faults(client: &Client) {
    // No pod answers, so that none says its name.
    assert_eq!(
        client.asks(&format!("{BOOKS}/teapot?[1-5]"), &[]),
        only("418", 5)
    );
    let begun = Instant::now();
    assert_eq!(
        client.asks(&format!("{BOOKS}/slow"), &[]),
        only("one 200", 1)
    );
    assert!(begun.elapsed().as_millis() >= 700, "{:?}", begun.elapsed());
}

fn mirrors(client: &Client, shadow: u32) {
    assert_eq!(
        client.asks(&format!("{BOOKS}/mirrored?[1-30]"), &[]),
        only("one 200", 30)
    );
    let metrics = SocketAddr::from((Ipv4Addr::LOCALHOST, 15020));
    wait_until("each copy to be counted once", || {
        let page = ask_inside(shadow, metrics, "/metrics").expect("metrics").1;
        // Nobody else calls there.
        let labels = ["reporter=\"destination\""];
        let counted = series(&page, "istio_requests_total", &labels);
        assert!(counted.is_none_or(|count| count <= 30.0), "{counted:?}");
        counted == Some(30.0)
    });
}

fn sessions(client: &Client) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut homes = BTreeMap::<String, usize>::new();
    for number in 0..20 {
        let jar = folder
            .path()
            .join(number.to_string())
            .to_string_lossy()
            .into_owned();
        let first = client.asks(&format!("{CARTS}/"), &["-c", &jar]);
        let home = first.keys().next().expect("an answer").clone();
        if number < 3 {
            let again = client.asks(&format!("{CARTS}/?[1-10]"), &["-b", &jar]);
            assert_eq!(again, only(&home, 10));
        }
        *homes.entry(home).or_default() += 1;
    }
    assert_eq!(homes.len(), 2, "sessions are spread: {homes:?}");
}

fn zones(client: &Client) {
    assert_eq!(
        client.asks(&format!("{NEAR}/?[1-30]"), &[]),
        only("one 200", 30),
        "its own zone"
    );
    // One bad answer puts it out, and there is nobody else in that zone.
    assert_eq!(
        client.asks(&format!("{NEAR}/?status=500"), &[]),
        only("one 500", 1)
    );
    assert_eq!(
        client.asks(&format!("{NEAR}/?[1-30]"), &[]),
        only("two 200", 30)
    );
}
