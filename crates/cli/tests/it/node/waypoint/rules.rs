//! DestinationRules at a waypoint, which obeys them as the client: subsets, load balancing, outlier detection, connection limits,
//! and the callers that a rule is for.

use std::collections::BTreeSet;
use std::io::BufReader;
use std::sync::{Arc, Condvar, Mutex};

use crate::mesh::{application, series};
use crate::node::waypoint::hostile::{BEHIND, GATE, WEB, start_gate};
use crate::node::waypoint::policies::{asked, status};
use crate::node::*;

/// Gate that requests to `/hold` wait for.
#[derive(Default)]
struct Held {
    waiting: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Held {
    fn hold(&self) {
        let mut waiting = self.waiting.lock().expect("whole");
        waiting.0 += 1;
        self.changed.notify_all();
        let released = self.changed.wait_while(waiting, |(_, released)| !*released);
        drop(released.expect("whole"));
    }

    fn wait_for_one(&self) {
        let waiting = self.waiting.lock().expect("whole");
        let nobody = |state: &mut (usize, bool)| state.0 == 0;
        let patience = Duration::from_secs(20);
        let waited = self.changed.wait_timeout_while(waiting, patience, nobody);
        let (waiting, end) = waited.expect("whole");
        drop(waiting);
        assert!(!end.timed_out(), "a request is held");
    }

    fn release(&self) {
        self.waiting.lock().expect("whole").1 = true;
        self.changed.notify_all();
    }
}

/// An application at 8081 that answers with its pod's name; what is asked for `/sick` of the second one is answered 500.
fn speak(pod: &Pod, address: Ipv4Addr, held: &Arc<Held>) {
    let listener = listen(&pod.inside, (address, 8081));
    let (name, held) = (pod.name, Arc::clone(held));
    application::serve(listener, move |stream| {
        let mut reader = BufReader::new(stream);
        while let Some((head, _)) = application::read_request(&mut reader) {
            if head.starts_with("GET /hold ") {
                held.hold();
            }
            let sick = name == "second" && head.starts_with("GET /sick ");
            let status = if sick { "500 Sick" } else { "200 OK" };
            let length = name.len();
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{name}");
            if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
}

/// Two servers, told apart by `version`, behind a waypoint.
struct Behind {
    mesh: Mesh,
    _node: Node,
    client: Pod,
    gate: Pod,
    held: Arc<Held>,
}

fn started() -> Option<Behind> {
    let servers = [("first", FIRST), ("second", SECOND)];
    let mut text = resources(&servers) + ZTUNNEL + &waypoint_pod("gate", GATE) + BEHIND;
    for (name, _) in servers {
        let plain = format!("name: {name}\n  namespace: shop\n  labels:\n    app: server\n");
        let versioned = format!("{plain}    version: {name}\n");
        assert!(text.contains(&plain), "{text}");
        text = text.replace(&plain, &versioned);
    }
    let mut mesh = mesh(&text)?;
    let client = pod(&mesh, "client", CLIENT);
    let (first, second) = (pod(&mesh, "first", FIRST), pod(&mesh, "second", SECOND));
    let gate = mesh.pod_with("gate", GATE, Rules::default());
    let held = Arc::new(Held::default());
    for (pod, address) in [(&first, FIRST), (&second, SECOND)] {
        serve(pod, address);
        speak(pod, address, &held);
    }
    let pods = [(&client, "client"), (&first, "server"), (&second, "server")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &[]);
    start_gate(&mut mesh, &gate, "shop/gate");
    wait_until("the service is called through the waypoint", || {
        status(&client.inside, WEB, "/", "") == 200
    });
    Some(Behind {
        mesh,
        _node: node,
        client,
        gate,
        held,
    })
}

impl Behind {
    /// Name of the server that answers, or else the status.
    fn ask(&self, path: &str, lines: &str) -> Result<String, u16> {
        let answer = asked(&self.client.inside, WEB, path, lines).ok_or(0_u16)?;
        match answer.status {
            200 => Ok(String::from_utf8_lossy(&answer.body).into_owned()),
            other => Err(other),
        }
    }

    /// Results of so many requests: the servers that answered, or statuses.
    fn answering(&self, requests: usize, lines: &str) -> BTreeSet<Result<String, u16>> {
        (0..requests).map(|_| self.ask("/", lines)).collect()
    }

    fn metric(&self, name: &str) -> f64 {
        let page = self.gate.inside.run(|| get(local(15020), "/metrics"));
        let page = page.expect("entered").expect("metrics");
        series(&String::from_utf8_lossy(&page.body), name, &[]).unwrap_or(0.0)
    }
}

/// A rule for the service, of `NAMESPACE/NAME`.
fn rule(name: &str, spec: &str) -> String {
    let (namespace, name) = name.split_once('/').expect("a namespace");
    format!(
        "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{host: web.shop.svc.cluster.local, {spec}}}\n"
    )
}

/// A part of that name, of the servers of a version.
fn part(version: &str) -> String {
    format!("subsets: [{{name: part, labels: {{version: {version}}}}}]")
}

/// All requests to the part.
const TO_THE_PART: &str = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\n\
    spec: {hosts: [web], http: [{route: [{destination: {host: web, subset: part}}]}]}\n";

#[test]
fn a_waypoint_obeys_the_rule_that_is_for_it_and_a_part_that_no_rule_of_its_has_is_not_there() {
    let Some(behind) = started() else {
        return;
    };
    let named = |name: &str| Ok(name.to_owned());
    let with = |version: &str, more: &str| format!("{}, {more}", part(version));
    behind.mesh.write("route.yaml", TO_THE_PART);
    let itself = "workloadSelector: {matchLabels: {gateway.networking.k8s.io/gateway-name: gate}}";
    // Each answer is another than the one before.
    for (what, rules, expected) in [
        ("nobody says what the part is", String::new(), Err(503)),
        (
            "a rule of the service's",
            rule("shop/all", &part("first")),
            named("first"),
        ),
        (
            "the part is another",
            rule("shop/all", &part("second")),
            named("second"),
        ),
        (
            "a rule for others",
            rule("shop/all", &with("first", "exportTo: [bank]")),
            Err(503),
        ),
        (
            "the root's, for this namespace",
            rule("istio-system/root", &with("first", "exportTo: [shop]")),
            named("first"),
        ),
        (
            "a nearer one before the root's",
            rule("istio-system/root", &part("first")) + &rule("shop/all", &part("second")),
            named("second"),
        ),
        (
            "a client's own, and we are another",
            rule("bank/own", &part("first")),
            Err(503),
        ),
        (
            "one that selects the waypoint before one for all",
            rule("shop/all", &part("second")) + &rule("shop/gate", &with("first", itself)),
            named("first"),
        ),
        (
            "one that selects who calls, who is not the client that obeys",
            rule("shop/all", &part("second"))
                + &rule(
                    "shop/client",
                    &with("first", "workloadSelector: {matchLabels: {app: client}}"),
                ),
            named("second"),
        ),
        (
            "a part of nobody's",
            rule("shop/all", &part("third")),
            Err(503),
        ),
    ] {
        behind.mesh.write("rules.yaml", &rules);
        wait_until(what, || behind.ask("/", "") == expected);
        assert_eq!(
            behind.answering(8, ""),
            BTreeSet::from([expected]),
            "{what}"
        );
    }
}

#[test]
fn requests_of_one_header_stay_with_one_server_behind_a_waypoint() {
    let Some(behind) = started() else {
        return;
    };
    let policy = "trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: x-user}}}";
    behind.mesh.write("rules.yaml", &rule("shop/all", policy));
    let users: Vec<String> = (0..12).map(|user| format!("x-user: {user}\r\n")).collect();
    let each = || users.iter().map(|user| behind.answering(6, user));
    wait_until("each user has a server", || {
        each().all(|servers| servers.len() == 1 && servers.iter().all(Result::is_ok))
    });
    let all: BTreeSet<_> = each().flatten().collect();
    assert_eq!(all.len(), 2, "and both have users: {all:?}");
}

#[test]
fn a_server_that_answers_badly_through_a_waypoint_is_put_out() {
    let Some(behind) = started() else {
        return;
    };
    let policy = |detection: &str| {
        let turns = "loadBalancer: {simple: ROUND_ROBIN}";
        rule(
            "shop/all",
            &format!("trafficPolicy: {{{turns}{detection}}}"),
        )
    };
    behind.mesh.write("rules.yaml", &policy(""));
    wait_until("both are asked in turn", || {
        let all: Vec<_> = (0..4).map(|_| behind.ask("/sick", "")).collect();
        all.iter().filter(|one| **one == Err(500)).count() == 2
    });
    let detection = ", outlierDetection: {consecutive5xxErrors: 2, interval: 1s, baseEjectionTime: 3600s, maxEjectionPercent: 100}";
    behind.mesh.write("rules.yaml", &policy(detection));
    wait_until("the second is out", || {
        let all: BTreeSet<_> = (0..8).map(|_| behind.ask("/sick", "")).collect();
        all == BTreeSet::from([Ok("first".to_owned())])
    });
    assert!(behind.metric("voile_outliers_ejected_total") >= 1.0);
    let first = BTreeSet::from([Ok("first".to_owned())]);
    assert_eq!(behind.answering(20, ""), first, "for whatever is asked");
    behind.mesh.write("rules.yaml", &policy(""));
    wait_until("nobody looks any more", || {
        behind.answering(8, "").len() == 2
    });
}

#[test]
fn no_more_goes_through_a_waypoint_than_a_connection_pool_lets_and_what_is_too_much_is_refused() {
    let Some(behind) = started() else {
        return;
    };
    let inside = &behind.client.inside;
    let policy = "trafficPolicy: {portLevelSettings: [\
        {port: {number: 80}, connectionPool: {http: {http2MaxRequests: 1}}}, \
        {port: {number: 90}, connectionPool: {tcp: {maxConnections: 1}}}]}";
    behind.mesh.write("rules.yaml", &rule("shop/all", policy));
    let tcp = SocketAddr::from((WEB, 90));
    wait_until("one connection is let through", || {
        let one = answers(inside, tcp);
        one.is_some() && answers(inside, tcp).is_none()
    });
    std::thread::scope(|scope| {
        let holding = scope.spawn(|| status(inside, WEB, "/hold", ""));
        behind.held.wait_for_one();
        for _ in 0..4 {
            assert_eq!(behind.ask("/", ""), Err(503), "one is under way");
        }
        behind.held.release();
        assert_eq!(holding.join().expect("asked"), 200);
    });
    let whole = behind.ask("/", "");
    assert!(whole.is_ok(), "there is room again: {whole:?}");
    // Without the rule nothing is too much.
    behind.mesh.write("rules.yaml", "");
    wait_until("two connections are let through", || {
        let one = answers(inside, tcp);
        one.is_some() && answers(inside, tcp).is_some()
    });
}
