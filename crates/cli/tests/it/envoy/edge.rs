//! A stock Envoy as a gateway before sidecars of ours, told everything by our control plane: what comes by plaintext and by TLS, whose
//! certificates it shows and takes, what it refuses, and who it is to the sidecar behind it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use super::process::Envoy;
use super::stage::certify;
use crate::gateway::tls::{PORT, curl_at, https, path};
use crate::gateway::{NETWORKING, POD, TO_SERVER, http_server, pod, routes, say, servers};
use crate::mesh::certificates::Keys;
use crate::mesh::{
    Answer, HTTP_PORT, Mesh, Process, application, exchange, free_port, get, local, series,
    wait_until,
};

/// Workload that a stock Envoy stands for.
struct Place<'a> {
    workload: &'a str,
    account: &'a str,
    address: SocketAddr,
    more: &'a [&'a str],
}

/// Its bootstrap, with its certificates beside.
fn bootstrap(mesh: &Mesh, folder: &Path, admin: SocketAddr, place: &Place<'_>) -> PathBuf {
    let certificates = folder.join("certificates");
    certify(&certificates, &mesh.state(), place.account);
    let output = Process::output(|voile| {
        voile.args(["export", "envoy-bootstrap", "--workload", place.workload]);
        voile.args(["--address", &place.address.ip().to_string()]);
        voile.args([
            "--control",
            &mesh.control_url(),
            "--admin",
            &admin.to_string(),
        ]);
        voile
            .arg("--certificates")
            .arg(&certificates)
            .args(place.more);
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let file = folder.join("bootstrap.json");
    std::fs::write(&file, output.stdout).expect("written");
    file
}

/// Asks at a gateway in plaintext.
fn ask(at: SocketAddr, host: &str, path: &str, fields: &str) -> Option<Answer> {
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{fields}Connection: close\r\n\r\n");
    exchange(at, request.as_bytes()).ok()
}

fn status(at: SocketAddr, host: &str, path: &str) -> u16 {
    ask(at, host, path, "").map_or(0, |answer| answer.status)
}

fn text(answer: Option<Answer>) -> String {
    let body = answer.map(|answer| answer.body).unwrap_or_default();
    String::from_utf8_lossy(&body).to_lowercase()
}

/// Denies requests to the gateway for `/secret`, and requests with an identity of the mesh: from outside no
/// certificate gives one.
const POLICY: &str = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: edge, namespace: shop}\n\
     spec:\n  selector: {matchLabels: {istio: ingress}}\n  action: DENY\n  rules:\n\
     \x20 - to: [{operation: {paths: [\"/secret\"]}}]\n  - from: [{source: {principals: [\"*\"]}}]\n---\n";

/// A mesh with this before it, a gateway's Pod included.
fn stand(resources: &str) -> Mesh {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    say(&mesh, "gateway.yaml", &pod(&mesh, ""));
    say(&mesh, "edge.yaml", resources);
    mesh
}

/// Resources of the gateway. They can be written again with another certificate or host.
struct Documents {
    keys: Keys,
}

impl Documents {
    fn new() -> Self {
        let keys = Keys::new();
        keys.own("first", "a.example");
        keys.own("clients", "clients.example");
        keys.client("somebody", "clients");
        Self { keys }
    }

    /// With this certificate for `a.example`, and these hosts in plaintext.
    fn say(&self, certificate: &str, hosts: &str) -> String {
        let keys = &self.keys;
        let files = ["crt", "key"].map(|end| format!("{certificate}.{end}"));
        let own = keys.secret(
            "shop",
            "first",
            &[("tls.crt", &files[0]), ("tls.key", &files[1])],
        );
        let mutual = keys.secret(
            "shop",
            "second",
            &[
                ("tls.crt", "first.crt"),
                ("tls.key", "first.key"),
                ("ca.crt", "clients.crt"),
            ],
        );
        let all = servers(&format!(
            "{}, {}, {}, {}",
            http_server(hosts),
            format_args!(
                "{{port: {{number: {HTTP_PORT}, name: r, protocol: HTTP}}, hosts: [secure.example], tls: {{httpsRedirect: true}}}}"
            ),
            https("a.example", "mode: SIMPLE, credentialName: first"),
            https("b.example", "mode: MUTUAL, credentialName: second"),
        ));
        let ways = format!(
            "{{match: [{{uri: {{exact: /tea}}}}], directResponse: {{status: 418}}}}, {{match: [{{uri: {{prefix: /old}}}}], rewrite: {{uri: /new}}, \
             route: [{{destination: {{host: server, port: {{number: {HTTP_PORT}}}}}}}]}}, {TO_SERVER}"
        );
        let routed = routes("\"*\"", &ways);
        own + &mutual + POLICY + &all + &routed
    }
}

/// The gateway's Envoy, told everything by the control plane, and the folder that it needs.
fn begin(program: &Path, mesh: &Mesh, more: &[&str]) -> (tempfile::TempDir, Envoy) {
    let (folder, admin) = (tempfile::tempdir().expect("a folder"), local(free_port()));
    let place = Place {
        workload: "shop/gateway",
        account: "gateway",
        address: mesh.address(POD, 0),
        more,
    };
    let file = bootstrap(mesh, folder.path(), admin, &place);
    let envoy = Envoy::start(program, &file, admin);
    (folder, envoy)
}

fn lives(more: &[&str]) {
    let Some(program) = super::found() else {
        return;
    };
    let documents = Documents::new();
    let mesh = stand(&documents.say("first", "plain.example"));
    let (_folder, envoy) = begin(&program, &mesh, more);
    takes_plaintext(&mesh);
    takes_tls(&mesh, &documents.keys);
    changes(&mesh, &documents, &envoy);
    assert_eq!(envoy.counted("update_rejected"), 0, "{}", envoy.said());
    let page = get(mesh.monitoring(), "/debug/status").expect("the page");
    let page = String::from_utf8_lossy(&page.body).into_owned();
    assert!(
        !page.contains("PRIVATE KEY"),
        "keys are shown to nobody else"
    );
    assert!(
        page.contains("\"translation_limits\":{}") || !page.contains("shop/gateway\":["),
        "{page}"
    );
}

/// In plaintext, into the mesh: the sidecar, which is STRICT, knows who the gateway is.
fn takes_plaintext(mesh: &Mesh) {
    let plain = mesh.address(POD, HTTP_PORT);
    wait_until("a request gets through", || {
        status(plain, "plain.example", "/a") == 200
    });
    let seen = text(ask(
        plain,
        "plain.example:99",
        "/old/way",
        "x-forwarded-for: 10.9.9.9\r\nx-envoy-peer-metadata: me\r\nx-forwarded-client-cert: me\r\n",
    ));
    let by_gateway = [
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/gateway\"",
        "connection_security_policy=\"mutual_tls\"",
    ];
    let metrics = mesh.server_metrics();
    assert!(
        series(&metrics, "istio_requests_total", &by_gateway).is_some(),
        "{metrics}"
    );
    assert!(seen.starts_with("get /new/way "), "{seen}");
    assert!(
        !seen.contains("peer-metadata: me") && !seen.contains("client-cert: me"),
        "{seen}"
    );
    assert!(seen.contains("x-forwarded-for: 10.9.9.9,"), "{seen}");
    for (host, path, wanted) in [
        ("plain.example", "/tea", 418),
        ("plain.example", "/secret", 403),
        ("plain.example", "/x/../secret", 403),
        ("nobody.example", "/a", 404),
        ("secure.example", "/a", 301),
    ] {
        assert_eq!(status(plain, host, path), wanted, "{host}{path}");
    }
    let moved = ask(plain, "secure.example", "/a?b=c", "")
        .expect("an answer")
        .head;
    assert!(
        moved.contains("location: https://secure.example:443/a?b=c"),
        "{moved}"
    );
}

/// By TLS: each name its certificate and its hosts, and whose clients must show one.
fn takes_tls(mesh: &Mesh, keys: &Keys) {
    let tls = mesh.address(POD, PORT);
    let first = keys.path("first.crt");
    let believe = ["--cacert", path(&first), "-k"];
    let get_by = |host: &str, more: &[&str]| curl_at(tls, host, &[&believe[..2], more].concat());
    wait_until("TLS gets through", || {
        get_by("a.example", &[]).is_ok_and(|(status, _)| status == "200 2")
    });
    assert!(
        get_by("nobody.example", &["-k"]).is_err(),
        "a name that is nobody's"
    );
    let [certificate, key] = ["somebody.crt", "somebody.key"].map(|name| keys.path(name));
    let shown = ["-k", "--cert", path(&certificate), "--key", path(&key)];
    assert!(
        get_by("b.example", &["-k"]).is_err(),
        "nobody without a certificate"
    );
    wait_until("a client of theirs gets through", || {
        get_by("b.example", &shown).is_ok_and(|(status, _)| status == "200 2")
    });
}

/// A new certificate is shown without anything else being touched; a route that comes later holds as well.
fn changes(mesh: &Mesh, documents: &Documents, envoy: &Envoy) {
    let listeners = envoy.counted("listener_manager.lds.update_success");
    documents.keys.own("newer", "a.example");
    say(mesh, "edge.yaml", &documents.say("newer", "plain.example"));
    let newer = documents.keys.path("newer.crt");
    let tls = mesh.address(POD, PORT);
    wait_until("the new certificate is shown", || {
        curl_at(tls, "a.example", &["--cacert", path(&newer)])
            .is_ok_and(|(status, _)| status == "200 2")
    });
    assert_eq!(
        envoy.counted("listener_manager.lds.update_success"),
        listeners
    );
    say(
        mesh,
        "more.yaml",
        &format!(
            "{NETWORKING}VirtualService\nmetadata: {{name: late, namespace: shop}}\nspec: {{hosts: [late.example], gateways: [edge], http: [{{match: [{{uri: {{exact: /late}}}}], directResponse: {{status: 207}}}}]}}\n"
        ),
    );
    say(
        mesh,
        "edge.yaml",
        &documents.say("newer", "plain.example, late.example"),
    );
    let plain = mesh.address(POD, HTTP_PORT);
    wait_until("the late host answers", || {
        status(plain, "late.example", "/late") == 207
    });
}

#[test]
fn an_envoy_is_a_gateway_by_our_delta_ads() {
    lives(&["--gateway"]);
}

#[test]
fn an_envoy_is_a_gateway_by_our_state_of_the_world_ads() {
    lives(&["--gateway", "--state-of-the-world"]);
}

#[test]
fn nobody_is_told_of_a_gateway_who_is_not_it_or_does_not_say_so() {
    let Some(program) = super::found() else {
        return;
    };
    let keys = Keys::new();
    keys.own("first", "a.example");
    let all = servers(&https("a.example", "mode: SIMPLE, credentialName: first"));
    let mesh = stand(&(keys.pair("first") + &all + &routes("\"*\"", TO_SERVER)));
    let address = mesh.address(POD, 0);
    for (account, more, why) in [
        (
            "client",
            &["--gateway"][..],
            "it belongs to spiffe://cluster.local/ns/shop/sa/gateway",
        ),
        (
            "gateway",
            &[][..],
            "the workload is a gateway, but node.id begins with `sidecar`",
        ),
    ] {
        let (folder, admin) = (tempfile::tempdir().expect("a folder"), local(free_port()));
        let place = Place {
            workload: "shop/gateway",
            account,
            address,
            more,
        };
        let file = bootstrap(&mesh, folder.path(), admin, &place);
        let _envoy = Envoy::start_only(&program, &file, admin);
        wait_until("it is refused by name", || {
            let page = get(mesh.monitoring(), "/debug/status").expect("the page");
            String::from_utf8_lossy(&page.body).contains(why)
        });
        let told = get(admin, "/config_dump")
            .map(|page| page.body)
            .unwrap_or_default();
        let told = String::from_utf8_lossy(&told).into_owned();
        assert!(
            !told.contains("gateway_") && !told.contains("kubernetes://"),
            "{told}"
        );
    }
}

/// Servers of plaintext for some host and of TLS for `a.example`, with its certificate.
fn both(plain: &str) -> (Keys, String) {
    let keys = Keys::new();
    keys.own("first", "a.example");
    let all = servers(&format!(
        "{}, {}",
        http_server(plain),
        https("a.example", "mode: SIMPLE, credentialName: first"),
    ));
    let all = keys.pair("first") + &all;
    (keys, all)
}

#[test]
fn an_exported_gateway_has_all_in_one_file() {
    let Some(program) = super::found() else {
        return;
    };
    let (keys, all) = both("\"*\"");
    let mesh = stand(&(all + &routes("\"*\"", TO_SERVER)));
    let (folder, admin) = (tempfile::tempdir().expect("a folder"), local(free_port()));
    let certificates = folder.path().join("certificates");
    certify(&certificates, &mesh.state(), "gateway");
    let output = Process::output(|voile| {
        voile.args(["export", "envoy"]).arg(mesh.config());
        voile.args(["--workload", "shop/gateway", "--admin", &admin.to_string()]);
        voile.arg("--certificates").arg(&certificates);
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let file = folder.path().join("envoy.json");
    std::fs::write(&file, output.stdout).expect("written");
    let _envoy = Envoy::start(&program, &file, admin);
    let plain = mesh.address(POD, HTTP_PORT);
    wait_until("a request gets through", || {
        status(plain, "any.example", "/a") == 200
    });
    let first = keys.path("first.crt");
    let by_tls = curl_at(
        mesh.address(POD, PORT),
        "a.example",
        &["--cacert", path(&first)],
    );
    assert_eq!(by_tls.expect("an answer").0, "200 2");
}

/// A server that keeps how each connection begins, and knows HTTP/1.1 alone.
#[derive(Clone, Default)]
struct Beginnings(Arc<Mutex<Vec<String>>>);

impl Beginnings {
    fn of(listener: TcpListener) -> Self {
        let kept = Self::default();
        let keeping = kept.clone();
        application::serve(listener, move |mut stream| {
            let mut first = [0; 3];
            if stream.read_exact(&mut first).is_err() {
                return;
            }
            let word = String::from_utf8_lossy(&first).into_owned();
            let is_old = word == "GET";
            let mut words = keeping.0.lock().unwrap_or_else(PoisonError::into_inner);
            words.push(word);
            drop(words);
            if is_old {
                // A client that is gone reads nothing.
                let _ = stream.write_all(
                    b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
                );
            }
        });
        kept
    }

    /// Those since this was asked last, each once.
    fn take(&self) -> Vec<String> {
        let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut words = std::mem::take(&mut *words);
        words.dedup();
        words
    }
}

#[test]
fn http_reaches_a_port_of_no_declared_protocol_in_the_version_in_which_it_came() {
    let Some(program) = super::found() else {
        return;
    };
    let (keys, all) = both("raw.example");
    let to_raw = "{route: [{destination: {host: raw.test, port: {number: 81}}}]}";
    let mesh = stand(&(all + &routes("\"*\"", to_raw)));
    let application = mesh.tcp_app();
    let at = application.local_addr().expect("an address");
    say(
        &mesh,
        "raw.yaml",
        &format!(
            "{NETWORKING}ServiceEntry\nmetadata: {{name: raw, namespace: shop}}\nspec:\n  hosts: [raw.test]\n  resolution: STATIC\n  \
             ports: [{{number: 81, name: raw, targetPort: {}}}]\n  endpoints: [{{address: {}}}]\n",
            at.port(),
            at.ip()
        ),
    );
    let beginnings = Beginnings::of(application);
    let (_folder, envoy) = begin(&program, &mesh, &["--gateway"]);
    let plain = mesh.address(POD, HTTP_PORT);
    wait_until("HTTP/1.1 gets through", || {
        status(plain, "raw.example", "/a") == 200
    });
    assert_eq!(beginnings.take(), ["GET"]);
    let to = format!("raw.example:80:{}:{}", plain.ip(), plain.port());
    let asked = Command::new("curl")
        .args(["-s", "--max-time", "20", "--http2-prior-knowledge"])
        .args(["--connect-to", &to, "http://raw.example/a"])
        .output();
    asked.expect("curl");
    assert_eq!(beginnings.take(), ["PRI"], "{}", envoy.said());
    let first = keys.path("first.crt");
    for (version, begins) in [("--http1.1", "GET"), ("--http2", "PRI")] {
        let believe = ["--cacert", path(&first), version];
        let answer = curl_at(mesh.address(POD, PORT), "a.example", &believe);
        assert_eq!(beginnings.take(), [begins], "{version}: {answer:?}");
    }
    assert_eq!(envoy.counted("update_rejected"), 0, "{}", envoy.said());
}

/// The `x-forwarded-client-cert` elements that the application behind our sidecar sees: the gateway's own and the sidecar's. The
/// gateway reads its certificate from files. Waits until the setting is in force.
fn told_of_client(mesh: &Mesh, keys: &Keys) -> Vec<String> {
    let forward = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    defaultConfig: {proxyHeaders: {forwardedClientCert: APPEND_FORWARD}}\n";
    say(mesh, "mesh-config.yaml", forward);
    let [crt, key] = ["crt", "key"].map(|kind| keys.path(&format!("somebody.{kind}")));
    let forged = "x-forwarded-client-cert: Hash=forged";
    let arguments = [
        "-k",
        "-H",
        forged,
        "--cert",
        path(&crt),
        "--key",
        path(&key),
    ];
    let ask = || {
        let answer = curl_at(mesh.address(POD, PORT), "a.example", &arguments);
        let (status, seen) = answer.ok()?;
        let lines = seen.lines().filter_map(|line| line.split_once(": "));
        let mut told =
            lines.filter(|(name, _)| name.eq_ignore_ascii_case("x-forwarded-client-cert"));
        let value = told.next().filter(|_| status == "200 2")?.1;
        Some(value.split(',').map(ToOwned::to_owned).collect())
    };
    wait_until("the gateway's word", || ask().is_some());
    ask().expect("a word")
}

#[test]
fn an_envoy_with_files_tells_of_clients_what_our_gateway_tells_and_takes_new_files() {
    let Some(program) = super::found() else {
        return;
    };
    let keys = Keys::new();
    keys.own("first", "a.example");
    keys.own("second", "a.example");
    keys.own("clients", "clients.example");
    keys.client("somebody", "clients");
    let renew = |name: &str| {
        keys.put(&format!("{name}.crt"), "edge.crt");
        keys.put(&format!("{name}.key"), "edge.key");
    };
    renew("first");
    let [crt, key, clients] = ["edge.crt", "edge.key", "clients.crt"].map(|name| keys.path(name));
    let files = format!(
        "mode: MUTUAL, serverCertificate: {}, privateKey: {}, caCertificates: {}",
        path(&crt),
        path(&key),
        path(&clients)
    );
    let all = servers(&https("a.example", &files)) + &routes("\"*\"", TO_SERVER);
    let ours = crate::gateway::Edge::start("", &all);
    application::reflect(ours.mesh.http_app());
    let expected = told_of_client(&ours.mesh, &keys);
    drop(ours);
    let mesh = stand(&all);
    let (_folder, envoy) = begin(&program, &mesh, &["--gateway"]);
    let found = told_of_client(&mesh, &keys);
    assert_eq!(expected[0], found[0], "{found:?}");
    assert!(
        found[0].contains(";Subject=\"CN=somebody\";URI="),
        "{found:?}"
    );
    assert_eq!((expected.len(), found.len()), (2, 2), "{found:?}");
    renew("second");
    let [second, own, own_key] =
        ["second.crt", "somebody.crt", "somebody.key"].map(|name| keys.path(name));
    let shown = [
        "--cacert",
        path(&second),
        "--cert",
        path(&own),
        "--key",
        path(&own_key),
    ];
    wait_until("the second certificate", || {
        curl_at(mesh.address(POD, PORT), "a.example", &shown)
            .is_ok_and(|(status, _)| status == "200 2")
    });
    assert_eq!(envoy.counted("update_rejected"), 0, "{}", envoy.said());
}
