//! Answers that the control plane must refuse.

use voile_control::{Control, ControlOptions};
use voile_proto::discovery::Node;
use voile_proto::type_url::{
    ADDRESS, AUTHORIZATION_POLICY, KEY_SET, PROXY_CONFIGURATION, REQUEST_AUTHENTICATION,
    SERVICE_POLICY,
};
use voile_xds::client::{ClientConfig, Credential};

use crate::harness::{Client, Mesh, SHOP};

#[tokio::test]
async fn a_token_that_is_not_ours_is_refused() {
    let mesh = Mesh::start(SHOP).await;
    let other = Mesh::start(SHOP).await;
    for credential in [
        other.token("client", None),
        Credential::Token("nonsense".to_owned()),
        Credential::Anonymous,
    ] {
        let client = mesh.client(credential);
        client.ask(ADDRESS, &["*"]);
        client.until_error("Unauthenticated").await;
        assert_eq!(client.told.borrow().updates, 0);
    }
}

/// A browser that a name leads to the monitoring address (DNS rebinding) reads nothing of the mesh. Scrapers and probes go on to use names.
#[tokio::test]
async fn pages_about_the_mesh_are_not_read_by_a_name_that_leads_here() {
    let mesh = Mesh::start(SHOP).await;
    for path in [
        "/debug/status",
        "/debug/workloads",
        "/debug/config?proxy=1",
        "/debug/events",
        "/help",
        "/nothing",
    ] {
        let answer = mesh.get_by(path, "rebound.example:15014").await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{path}: {answer}");
    }
    for (path, host) in [
        ("/metrics", "istiod.istio-system.svc:15014"),
        ("/ready", "istiod.istio-system.svc:15014"),
        ("/debug/status", "127.0.0.1:15014"),
        ("/debug/status", "localhost:15014"),
        ("/debug/status", "[::1]:15014"),
    ] {
        let answer = mesh.get_by(path, host).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 "),
            "{host}{path}: {answer}"
        );
    }
}

#[tokio::test]
async fn a_control_plane_of_another_mesh_is_not_trusted() {
    let mesh = Mesh::start(SHOP).await;
    let other = Mesh::start(SHOP).await;
    let config = ClientConfig {
        addresses: vec![format!("https://{}", mesh.addresses.tls)],
        root_certificate: Some(other.folder.path().join("state/root-cert.pem")),
        node: Node::default(),
    };
    let client = Client::start(config, mesh.token("client", None), |_| None);
    client.ask(ADDRESS, &["*"]);
    client.until_error("cannot connect").await;
}

#[tokio::test]
async fn a_configuration_is_given_to_its_owner_only() {
    let mesh = Mesh::start(SHOP).await;
    for (account, pod, given) in [
        ("client", Some("client-1"), true),
        ("client", None, true),
        ("client", Some("client-2"), false),
        ("echo", None, false),
        ("echo", Some("client-1"), false),
    ] {
        let mut client = mesh.client(mesh.token(account, pod));
        client.ask(PROXY_CONFIGURATION, &["shop/client-1"]);
        let told = client.until(|told| told.updates == 1).await;
        assert_eq!(told.held.len(), usize::from(given), "{account} {pod:?}");
        assert_eq!(told.removed.len(), usize::from(!given), "{account} {pod:?}");
    }
}

/// Two policies, for one workload each.
const POLICIES: &str = r#"
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: for-echo, namespace: shop}
spec: {selector: {matchLabels: {app: echo}}, rules: [{}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: for-all, namespace: shop}
spec: {rules: [{}]}
"#;

#[tokio::test]
async fn a_policy_is_given_to_those_who_obey_it_only() {
    let mesh = Mesh::start(&format!("{SHOP}\n---\n{POLICIES}")).await;
    for (account, pod, name, given) in [
        ("echo", None, "shop/for-echo", true),
        ("echo", None, "shop/for-all", true),
        ("client", None, "shop/for-all", true),
        ("client", Some("client-1"), "shop/for-all", true),
        ("client", None, "shop/for-echo", false),
        ("client", Some("client-1"), "shop/for-echo", false),
        ("client", None, "shop/nobodys", false),
        ("stranger", None, "shop/for-all", false),
    ] {
        let mut client = mesh.client(mesh.token(account, pod));
        client.ask(AUTHORIZATION_POLICY, &[name]);
        let told = client.until(|told| told.updates == 1).await;
        assert_eq!(told.held.len(), usize::from(given), "{account} {name}");
        assert_eq!(told.removed.len(), usize::from(!given), "{account} {name}");
    }
}

/// A RequestAuthentication for one workload, and the name of its keys.
const TOKENS: &str = r#"
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: for-echo, namespace: shop}
spec:
  selector: {matchLabels: {app: echo}}
  jwtRules:
  - issuer: https://a.example
    jwks: '{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}'
"#;

#[tokio::test]
async fn rules_about_tokens_and_their_keys_are_given_to_those_who_obey_them_only() {
    let mesh = Mesh::start(&format!("{SHOP}\n---\n{TOKENS}")).await;
    let mut owner = mesh.client(mesh.token("echo", None));
    owner.ask(REQUEST_AUTHENTICATION, &["shop/for-echo"]);
    let told = owner.until(|told| told.updates == 1).await;
    let rules = told.body(REQUEST_AUTHENTICATION, "shop/for-echo").unwrap();
    let rules = voile_xds::wire::decode_tokens("shop/for-echo", rules).unwrap();
    let keys = rules.key_sets[0].clone().unwrap();
    for (account, kind, name, given) in [
        ("echo", REQUEST_AUTHENTICATION, "shop/for-echo", true),
        ("client", REQUEST_AUTHENTICATION, "shop/for-echo", false),
        ("stranger", REQUEST_AUTHENTICATION, "shop/for-echo", false),
        ("echo", KEY_SET, &*keys, true),
        ("client", KEY_SET, &*keys, false),
        ("stranger", KEY_SET, &*keys, false),
    ] {
        let mut client = mesh.client(mesh.token(account, None));
        client.ask(kind, &[name]);
        let told = client.until(|told| told.updates == 1).await;
        assert_eq!(told.held.len(), usize::from(given), "{account} {name}");
        assert_eq!(told.removed.len(), usize::from(!given), "{account} {name}");
    }
}

#[tokio::test]
async fn the_plaintext_port_tells_nobody_anything_without_a_token() {
    let mesh = Mesh::start(SHOP).await;
    let config = ClientConfig {
        addresses: vec![format!("http://{}", mesh.addresses.plaintext.unwrap())],
        root_certificate: None,
        node: Node::default(),
    };
    let wrong = Credential::Token("nonsense".to_owned());
    for credential in [Credential::Anonymous, wrong] {
        let client = Client::start_with(config.clone(), credential);
        client.ask(ADDRESS, &["*"]);
        client.until_error("Unauthenticated").await;
        assert_eq!(client.told.borrow().updates, 0);
    }
    let mut client = Client::start_with(config, mesh.token("client", None));
    client.ask(ADDRESS, &["*"]);
    let told = client.until(|told| told.updates == 1).await;
    assert_eq!(told.held.len(), 3, "{:?}", told.held.keys());
}

#[tokio::test]
async fn an_address_in_use_or_open_to_the_network_is_an_error_that_says_so() {
    let mesh = Mesh::start(SHOP).await;
    let options = |plaintext: &str| {
        let folder = mesh.folder.path();
        let mut options = ControlOptions::new(vec![mesh.config()], folder.join("other-state"));
        options.listen = mesh.addresses.tls;
        options.plaintext = Some(plaintext.parse().unwrap());
        options
    };
    for (plaintext, wanted) in [
        ("127.0.0.1:0", "cannot listen on"),
        ("0.0.0.0:0", "--plaintext-beyond-loopback"),
    ] {
        let error = Control::start(options(plaintext), Box::new(|_| {})).await;
        let error = error.expect_err("must not start").to_string();
        assert!(error.contains(wanted), "{error}");
    }
    assert!(
        !mesh.folder.path().join("other-state").exists(),
        "nothing was written"
    );
}

/// With a service more, so that it shows that the rest of the edit gets through.
const UNENFORCED: &str = r"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated, namespace: shop}
spec: {podSelector: {}}
---
apiVersion: v1
kind: Service
metadata: {name: opened, namespace: shop}
spec: {ports: [{name: http, port: 81}]}
";

#[tokio::test]
async fn a_network_policy_is_told_of_and_stops_nothing() {
    let mut mesh = Mesh::start(SHOP).await;
    mesh.edit("policy.yaml", UNENFORCED);
    let seen = mesh.report(|seen| seen.text.contains("V0115")).await;
    assert!(seen.changed, "{}", seen.text);
    mesh.stop().await;
    mesh.restart().await;
    let mut client = mesh.client(mesh.token("client", None));
    client.ask(ADDRESS, &["*"]);
    client.until(|told| told.held.len() == 4).await;
    // Nor is there anything to hold on to for one that starts beside it.
    let fresh = Mesh::start(&format!("{SHOP}\n---\n{UNENFORCED}")).await;
    let mut client = fresh.client(fresh.token("client", None));
    client.ask(ADDRESS, &["*"]);
    client.until(|told| told.held.len() == 4).await;
}

#[tokio::test]
async fn garbage_and_silence_on_every_port_disturb_nobody() {
    use std::io::Write;
    let mesh = Mesh::start(SHOP).await;
    let ports = [
        mesh.addresses.tls,
        mesh.addresses.plaintext.unwrap(),
        mesh.addresses.monitoring,
    ];
    let mut open = Vec::new();
    for address in ports {
        for bytes in [
            &b""[..],
            b"\x16\x03\x01\xff\xff",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff",
            b"\0\0\0\0",
        ] {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(bytes).unwrap();
            open.push(stream);
        }
    }
    let mut client = mesh.client(mesh.token("client", None));
    client.ask(ADDRESS, &["*"]);
    client.until(|told| told.held.len() == 3).await;
    assert!(mesh.get("/ready").await.starts_with("HTTP/1.1 200"));
}

/// A service of another namespace that is exported to `EXPORT`, with a workload.
const HIDDEN: &str = r#"
---
apiVersion: v1
kind: Service
metadata: {name: vault, namespace: bank, annotations: {networking.istio.io/exportTo: "EXPORT"}}
spec: {clusterIP: 10.96.9.9, selector: {app: vault}, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vault, namespace: bank}
spec: {address: 127.1.9.9, labels: {app: vault}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: far-vault, namespace: bank}
spec: {address: 127.1.9.8, network: far, labels: {app: vault}}
"#;
/// Sends every proxy's spans to that service.
const PROVIDER: &str = r#"
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |-
    extensionProviders: [{name: spans, opentelemetry: {service: vault.bank.svc.cluster.local, port: 80}}]
"#;
const VAULT: &str = "bank/vault.bank.svc.cluster.local";

#[tokio::test]
async fn a_service_that_is_not_exported_to_the_caller_is_nobody_by_address_name_search_and_policy()
{
    let questions = [
        (ADDRESS, "/10.96.9.9"),
        (ADDRESS, VAULT),
        (ADDRESS, "*/vault.bank"),
        (ADDRESS, "*/vault.bank.svc.cluster.local"),
        (SERVICE_POLICY, VAULT),
        (ADDRESS, "*"),
    ];
    for (export, seen) in [(".", false), ("shop", true), ("*", true)] {
        let mesh = Mesh::start(&format!("{SHOP}{}", HIDDEN.replace("EXPORT", export))).await;
        for (kind, name) in questions {
            let mut client = mesh.client(mesh.token("client", None));
            client.ask(kind, &[name]);
            let told = client.until(|told| told.updates > 0).await;
            let found = told.body(kind, VAULT).is_some();
            assert_eq!(found, seen, "{export}: {kind} {name}");
            // It is told that nothing has this name, and not left to wait.
            let absent = told.removed.iter().any(|gone| gone == name);
            assert_eq!(absent, !seen && name != "*", "{export}: {kind} {name}");
        }
        // Policy protects a workload that is called by its own address; its service's visibility does not.
        let mut client = mesh.client(mesh.token("client", None));
        client.ask(ADDRESS, &["/127.1.9.9"]);
        let told = client.until(|told| told.updates > 0).await;
        assert!(told.removed.is_empty(), "{export}");
    }
}

#[tokio::test]
async fn workloads_do_not_say_which_services_they_stand_behind_that_are_not_exported_to_the_caller()
{
    const HOST: &[u8] = b"vault.bank.svc.cluster.local";
    for (export, seen) in [(".", false), ("shop", true)] {
        let mesh = Mesh::start(&format!("{SHOP}{}", HIDDEN.replace("EXPORT", export))).await;
        // Requests, and the number of resources in the answer if the service is not exported.
        for (name, count) in [("/127.1.9.9", 1), ("far/127.1.9.8", 1), ("*", 3)] {
            let mut client = mesh.client(mesh.token("client", None));
            client.ask(ADDRESS, &[name]);
            let told = client.until(|told| told.updates > 0).await;
            let says = |body: &Vec<u8>| body.windows(HOST.len()).any(|part| part == HOST);
            assert_eq!(told.held.values().any(says), seen, "{export}: {name}");
            assert!(
                seen || told.held.len() == count,
                "{name}: {:?}",
                told.held.keys()
            );
        }
    }
}

#[tokio::test]
async fn what_is_no_longer_exported_is_taken_away_and_given_back_when_it_is() {
    let text = |export: &str| HIDDEN.replace("EXPORT", export);
    let mesh = Mesh::start(&format!("{SHOP}{}", text("*"))).await;
    let mut client = mesh.client(mesh.token("client", None));
    client.ask(ADDRESS, &[VAULT]);
    client.ask(SERVICE_POLICY, &[VAULT]);
    let both = |told: &crate::harness::Told| {
        (
            told.body(ADDRESS, VAULT).is_some(),
            told.body(SERVICE_POLICY, VAULT).is_some(),
        )
    };
    client.until(|told| both(told) == (true, true)).await;
    mesh.edit("mesh.yaml", &format!("{SHOP}{}", text(".")));
    client.until(|told| both(told) == (false, false)).await;
    mesh.edit("mesh.yaml", &format!("{SHOP}{}", text("shop")));
    client.until(|told| both(told) == (true, true)).await;
}

#[tokio::test]
async fn a_provider_of_the_mesh_is_told_by_name_to_whoever_is_sent_to_it() {
    let text = format!("{SHOP}{}{PROVIDER}", HIDDEN.replace("EXPORT", "."));
    let mesh = Mesh::start(&text).await;
    for (kind, name, seen) in [
        (ADDRESS, VAULT, true),
        (SERVICE_POLICY, VAULT, true),
        (ADDRESS, "*/vault.bank", false),
        (ADDRESS, "/10.96.9.9", false),
    ] {
        let mut client = mesh.client(mesh.token("client", None));
        client.ask(kind, &[name]);
        let told = client.until(|told| told.updates > 0).await;
        assert_eq!(told.body(kind, VAULT).is_some(), seen, "{kind} {name}");
    }
}
