//! `x-forwarded-client-cert` as an application sees it, behind a gateway and a sidecar; by curl and openssl. A field that the
//! client writes itself is trusted by neither proxy.

use std::process::Command;

use super::tls::{curl, https, path};
use super::{Edge, TO_SERVER, body, http_server, routes, say, servers};
use crate::mesh::certificates::Keys;
use crate::mesh::{application, exchange, wait_until};

const FORGED: &str =
    "x-forwarded-client-cert: Hash=forged;URI=spiffe://cluster.local/ns/shop/sa/admin";
/// Elements that the mesh's sidecars add for the gateway, and for the mesh's client.
const BY_SERVER: &str = "By=spiffe://cluster.local/ns/shop/sa/server;Hash=";
const OF_GATEWAY: &str = ";Subject=\"\";URI=spiffe://cluster.local/ns/shop/sa/gateway";
const OF_CLIENT: &str = ";Subject=\"\";URI=spiffe://cluster.local/ns/shop/sa/client";

fn mesh_config(edge: &Edge, text: &str) {
    let config = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    defaultConfig: {{{text}}}\n"
    );
    say(&edge.mesh, "mesh-config.yaml", &config);
}

/// The elements of the field that the application saw; those of Envoy's quoted values have no comma in these tests.
fn elements(seen: &str) -> Vec<String> {
    let lines = seen.lines().filter_map(|line| line.split_once(": "));
    let told = lines.filter(|(name, _)| name.eq_ignore_ascii_case("x-forwarded-client-cert"));
    let values = told.flat_map(|(_, value)| value.split(','));
    values.map(|one| one.trim().to_owned()).collect()
}

/// The certificate's hash, as openssl says it.
fn hash(keys: &Keys, name: &str) -> String {
    let ran = Command::new("openssl")
        .args(["x509", "-noout", "-fingerprint", "-sha256", "-in"])
        .arg(keys.path(&format!("{name}.crt")))
        .output()
        .expect("openssl");
    let text = String::from_utf8_lossy(&ran.stdout).replace(':', "");
    let (_, print) = text.trim_end().rsplit_once('=').expect("a fingerprint");
    print.to_lowercase()
}

struct Scene {
    edge: Edge,
    keys: Keys,
}

impl Scene {
    fn start(annotations: &str) -> Self {
        let keys = Keys::new();
        keys.own("server", "*.example");
        keys.own("clients", "clients");
        keys.client("known", "clients");
        let beside = keys.secret("shop", "server-cacert", &[("ca.crt", "clients.crt")]);
        let list = [
            https("must.example", "mode: MUTUAL, credentialName: server"),
            https(
                "may.example",
                "mode: OPTIONAL_MUTUAL, credentialName: server",
            ),
            http_server("\"*\""),
        ];
        let all = keys.pair("server") + &beside + &servers(&list.join(", "));
        let edge = Edge::start(annotations, &(all + &routes("\"*\"", TO_SERVER)));
        application::reflect(edge.mesh.http_app());
        wait_until("a route", || edge.status("a.example", "/") == 200);
        Self { edge, keys }
    }

    /// Elements that the application sees for a request with these arguments.
    fn told(&self, host: &str, known: bool, more: &[&str]) -> Vec<String> {
        let [crt, key] = ["crt", "key"].map(|kind| self.keys.path(&format!("known.{kind}")));
        let shown = ["--cert", path(&crt), "--key", path(&key)];
        let shown = if known { &shown[..] } else { &[] };
        let arguments = [&["-k"], shown, more].concat();
        let (status, seen) = curl(&self.edge, host, &arguments).expect("an answer");
        assert!(status.starts_with("200"), "{status}");
        elements(&seen)
    }

    fn in_plaintext(&self) -> Vec<String> {
        let answer = self
            .edge
            .ask("GET", "a.example", "/", &format!("{FORGED}\r\n"));
        elements(&body(&answer))
    }
}

#[test]
fn a_gateway_tells_of_its_clients_certificates_and_believes_no_client() {
    let scene = Scene::start("");
    let hash = hash(&scene.keys, "known");
    // Sidecars tell applications nothing unless they are to.
    assert_eq!(scene.told("must.example", true, &["-H", FORGED]), [""; 0]);
    mesh_config(
        &scene.edge,
        "proxyHeaders: {forwardedClientCert: APPEND_FORWARD}",
    );
    wait_until("sidecars to tell", || {
        !scene.told("must.example", true, &[]).is_empty()
    });
    for version in ["--http1.1", "--http2"] {
        let told = scene.told("must.example", true, &["-H", FORGED, version]);
        let [client, gateway] = told.as_slice() else {
            panic!("{told:?}");
        };
        assert!(
            client.starts_with(&format!("Hash={hash};Cert=\"-----BEGIN%20")),
            "{client}"
        );
        assert!(
            client.ends_with("-----%0A\";Subject=\"CN=known\";URI="),
            "{client}"
        );
        assert!(
            gateway.starts_with(BY_SERVER) && gateway.ends_with(OF_GATEWAY),
            "{gateway}"
        );
        let nobody = scene.told("may.example", false, &["-H", FORGED, version]);
        let [gateway] = nobody.as_slice() else {
            panic!("{nobody:?}");
        };
        assert!(
            gateway.starts_with(BY_SERVER) && gateway.ends_with(OF_GATEWAY),
            "{gateway}"
        );
    }
    assert_eq!(scene.told("may.example", true, &[]).len(), 2);
    assert_eq!(scene.in_plaintext().len(), 1);
    // A field from an application of the mesh is not trusted either; its sidecar's certificate is
    // reported.
    let request =
        format!("GET / HTTP/1.1\r\nHost: server\r\n{FORGED}\r\nConnection: close\r\n\r\n");
    let answer = exchange(scene.edge.mesh.http(), request.as_bytes()).expect("an answer");
    let told = elements(&body(&answer));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with(BY_SERVER) && told[0].ends_with(OF_CLIENT),
        "{told:?}"
    );
    // A sidecar that sets it believes no gateway.
    mesh_config(
        &scene.edge,
        "proxyHeaders: {forwardedClientCert: SANITIZE_SET}",
    );
    wait_until("sidecars to set", || {
        scene.told("must.example", true, &[]).len() == 1
    });
    // Those parts are written that are wished for, and no others.
    let parts = |said: &str| {
        let headers = "forwardedClientCert: SANITIZE_SET, setCurrentClientCertDetails";
        mesh_config(&scene.edge, &format!("proxyHeaders: {{{headers}: {said}}}"));
    };
    let told = |keys: [bool; 3]| {
        let told = scene.told("must.example", true, &[]).concat();
        [";Cert=", ";Subject=", ";URI="].map(|key| told.contains(key)) == keys
    };
    parts("{cert: true}");
    wait_until("the certificate", || told([true, false, false]));
    parts("{uri: true, subject: false}");
    wait_until("the identity", || told([false, false, true]));
}

#[test]
fn what_becomes_of_the_field_is_the_gateways_to_say() {
    let scene = Scene::start("");
    let headers = "proxyHeaders: {forwardedClientCert: APPEND_FORWARD}";
    let hash = format!("Hash={}", hash(&scene.keys, "known"));
    let own = hash.as_str();
    // Elements that the gateway wrote or passed on, for three clients: with a certificate, without one (which is allowed), and in
    // plaintext. All three send the field themselves.
    let forged: &[&str] = &["Hash=forged"];
    let none: &[&str] = &[];
    let table = [
        ("SANITIZE", none, none, none),
        ("FORWARD_ONLY", forged, none, none),
        ("APPEND_FORWARD", &["Hash=forged", own], none, none),
        ("SANITIZE_SET", &[own], none, none),
        ("ALWAYS_FORWARD_ONLY", forged, forged, forged),
    ];
    let begins = |told: Vec<String>| -> Vec<String> {
        let (last, rest) = told.split_last().expect("the sidecar's own");
        assert!(last.starts_with(BY_SERVER), "{last}");
        let key = |one: &String| one.split(';').next().unwrap_or_default().to_owned();
        rest.iter().map(key).collect()
    };
    for (mode, known, unknown, plain) in table {
        let topology = format!("gatewayTopology: {{forwardClientCertDetails: {mode}}}");
        mesh_config(&scene.edge, &format!("{headers}, {topology}"));
        let ask = |known| {
            let host = if known { "must.example" } else { "may.example" };
            let told = scene.told(host, known, &["-H", FORGED]);
            (!told.is_empty()).then(|| begins(told))
        };
        wait_until(mode, || ask(true).is_some_and(|told| told == known));
        assert_eq!(ask(false).expect("an element"), unknown, "{mode}");
        assert_eq!(begins(scene.in_plaintext()), plain, "{mode}");
    }
}
