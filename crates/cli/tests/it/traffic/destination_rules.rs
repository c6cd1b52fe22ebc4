//! DestinationRules through a control plane and sidecars with mutual TLS. The application's view shows the protocol
//! between them: names of fields are in lower case after HTTP/2.

use std::net::SocketAddr;

use crate::mesh::{
    Client, HTTP_PORT, Mesh, Process, application, exchange, get, local, put, wait_until,
};

const UPGRADE: &str = "  trafficPolicy:\n    connectionPool: {http: {h2UpgradePolicy: UPGRADE}}\n";

fn rule(policy: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: server, namespace: shop}}\n\
         spec:\n  host: server\n{policy}"
    )
}

/// Returns true if a request crosses HTTP/2 on its way.
fn crosses_http2(mesh: &Mesh) -> bool {
    crosses_from(mesh.http()).expect("an answer of the application")
}

/// The same of a client's whose sidecar listens there; the status where the application does not answer.
fn crosses_from(sidecar: SocketAddr) -> Result<bool, u16> {
    let request = b"GET / HTTP/1.1\r\nHost: server.shop.svc.cluster.local\r\nX-Case: 1\r\nConnection: close\r\n\r\n";
    let answer = exchange(sidecar, request).expect("an answer");
    if answer.status != 200 {
        return Err(answer.status);
    }
    let head = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(head.to_lowercase().contains("x-case: 1"), "{head}");
    Ok(head.contains("x-case: 1"))
}

#[test]
fn a_rule_decides_between_the_mesh_and_its_ports_what_http1_travels_as() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    assert!(!crosses_http2(&mesh), "as in Istio, unless somebody asks");
    let port = |number: u16, pool: &str| {
        format!("{UPGRADE}    portLevelSettings:\n    - port: {{number: {number}}}\n{pool}")
    };
    let keep = "      connectionPool: {http: {h2UpgradePolicy: DO_NOT_UPGRADE}}\n";
    let as_client = UPGRADE.replace("UPGRADE}", "UPGRADE, useClientProtocol: true}");
    let only_port = port(8080, &keep.replace("DO_NOT_UPGRADE", "UPGRADE"));
    let only_port = only_port.replacen("UPGRADE", "DO_NOT_UPGRADE", 1);
    // Each row changes the result of the row before, so that its effect can be seen.
    for (what, rule, expected) in [
        ("the whole service", rule(UPGRADE), true),
        ("a port against it", rule(&port(8080, keep)), false),
        ("another port", rule(&port(9000, keep)), true),
        ("a port that says nothing", rule(&port(8080, "")), false),
        ("a port alone", rule(&only_port), true),
        ("what the client speaks", rule(&as_client), false),
        ("the service again", rule(UPGRADE), true),
        ("nothing", String::new(), false),
    ] {
        put(&mesh.config().join("rule.yaml"), &rule);
        wait_until(what, || crosses_http2(&mesh) == expected);
    }
    let everywhere = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\n\
                      data:\n  mesh: |\n    h2UpgradePolicy: UPGRADE\n";
    put(&mesh.config().join("istio.yaml"), everywhere);
    wait_until("the mesh", || crosses_http2(&mesh));
    let against = rule(&UPGRADE.replace("UPGRADE}", "DO_NOT_UPGRADE}"));
    put(&mesh.config().join("rule.yaml"), &against);
    wait_until("a rule against the mesh", || !crosses_http2(&mesh));
}

/// One more client: its pod, its sidecar's address for the service, and its resources.
fn one_more(mesh: &Mesh, pod: (&str, &str), app: &str, last: u8) -> (SocketAddr, String) {
    let (namespace, name) = pod;
    let (own, sidecar) = (
        mesh.address(last, 0).ip(),
        mesh.address(last + 100, HTTP_PORT),
    );
    let text = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}, labels: {{istio-injection: enabled}}}}\n\
         ---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{app: {app}, pod: {name}}}}}\n\
         spec: {{serviceAccountName: {name}, containers: [{{name: app}}]}}\nstatus: {{phase: Running, podIP: {own}}}\n\
         ---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{workloadSelector: {{labels: {{pod: {name}}}}}, egress: [{{port: {{number: {HTTP_PORT}, protocol: HTTP, name: http}}, \
         bind: {}, captureMode: NONE, hosts: [shop/server.shop.svc.cluster.local]}}]}}\n",
        sidecar.ip()
    );
    // The mesh's own file has the namespace.
    let text = match namespace {
        "shop" => text.split_once("---\n").expect("documents").1.to_owned(),
        _ => text,
    };
    (sidecar, text)
}

/// Three clients of the one service: `client` and `job` of its namespace, and `teller` of another.
struct Clients {
    mesh: Mesh,
    /// Addresses of their sidecars' listeners.
    at: [SocketAddr; 3],
    /// The documents of `job`.
    job: String,
    _sidecars: [Process; 2],
}

impl Clients {
    fn start() -> Self {
        let mesh = Mesh::start("STRICT");
        application::reflect(mesh.http_app());
        let (job, documents) = one_more(&mesh, ("shop", "job"), "job", 11);
        let (teller, theirs) = one_more(&mesh, ("bank", "teller"), "job", 12);
        for (file, text) in [("job.yaml", &documents), ("teller.yaml", &theirs)] {
            std::fs::write(mesh.config().join(file), text).expect("a file");
        }
        let (first, ports) = mesh.start_beside("job", &Client::default());
        let (second, others) = mesh.start_beside("bank/teller", &Client::default());
        for port in [ports[2], others[2]] {
            wait_until("one more is ready", || {
                get(local(port), "/healthz/ready").is_ok_and(|answer| answer.status == 200)
            });
        }
        Self {
            at: [mesh.http(), job, teller],
            mesh,
            job: documents,
            _sidecars: [first, second],
        }
    }

    fn write(&self, file: &str, text: &str) {
        put(&self.mesh.config().join(file), text);
    }

    /// Reports for each client if its requests cross HTTP/2.
    fn each(&self) -> [Result<bool, u16>; 3] {
        self.at.map(crosses_from)
    }
}

const ASKED: &str = "trafficPolicy: {connectionPool: {http: {h2UpgradePolicy: UPGRADE}}}";
const SELECTED: &str = "workloadSelector: {matchLabels: {app: job}}";

/// A rule for the service, of `NAMESPACE/NAME`.
fn rule_of(name: &str, spec: &str) -> String {
    let (namespace, name) = name.split_once('/').expect("a namespace");
    format!(
        "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{host: server.shop.svc.cluster.local, {spec}}}\n"
    )
}

#[test]
fn each_client_obeys_the_rule_for_its_namespace_and_its_labels() {
    let clients = Clients::start();
    let keep = ASKED.replace("UPGRADE}", "DO_NOT_UPGRADE}");
    let with = |more: &str| format!("{ASKED}, {more}");
    let selected = with(SELECTED);
    // Each row changes the result of at least one client.
    for (what, rules, expected) in [
        ("all", rule_of("shop/all", ASKED), [true, true, true]),
        (
            "its own",
            rule_of("shop/all", &with("exportTo: [.]")),
            [true, true, false],
        ),
        (
            "another",
            rule_of("shop/all", &with("exportTo: [bank]")),
            [false, false, true],
        ),
        (
            "clients' own",
            rule_of("shop/all", ASKED) + &rule_of("bank/own", &keep),
            [true, true, false],
        ),
        (
            "selected",
            rule_of("shop/job", &selected),
            [false, true, false],
        ),
        (
            "selected elsewhere",
            rule_of("bank/job", &selected),
            [false, false, true],
        ),
        (
            "but for the selected",
            rule_of("shop/all", &keep) + &rule_of("shop/job", &selected),
            [false, true, false],
        ),
        (
            "the root's own",
            rule_of("istio-system/all", &with("exportTo: [shop]")),
            [true, true, false],
        ),
        (
            "nobody",
            rule_of("shop/all", &with("exportTo: [\"~\"]")),
            [false, false, false],
        ),
    ] {
        clients.write("rule.yaml", &rules);
        wait_until(what, || clients.each() == expected.map(Ok));
    }
}

#[test]
fn other_labels_are_other_rules_and_a_part_that_others_have_is_not_waited_for() {
    let clients = Clients::start();
    let selected = rule_of("shop/job", &format!("{ASKED}, {SELECTED}"));
    clients.write("rule.yaml", &selected);
    wait_until("selected", || {
        clients.each() == [Ok(false), Ok(true), Ok(false)]
    });
    clients.write("job.yaml", &clients.job.replace("app: job", "app: idle"));
    wait_until("selected no more", || clients.each() == [Ok(false); 3]);
    clients.write("job.yaml", &clients.job);
    // A subset that only some clients' rules have does not exist for the others. They get an error and do not
    // wait.
    let part = format!("{ASKED}, {SELECTED}, subsets: [{{name: one, labels: {{version: v1}}}}]");
    let route = "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: server, namespace: shop}\n\
                 spec: {hosts: [server], http: [{route: [{destination: {host: server, subset: one}}]}]}\n";
    clients.write("rule.yaml", &(rule_of("shop/job", &part) + route));
    wait_until("a part", || {
        clients.each() == [Err(503), Ok(true), Err(503)]
    });
}
