//! Pushes to proxies: their contents and their time.

use voile_control::{Control, ControlOptions};
use voile_proto::type_url::{ADDRESS, PROXY_CONFIGURATION, SERVICE_POLICY};
use voile_xds::wire::{Address, MutualTls, ProxyConfiguration, ServicePolicy, Tunnel};

use crate::harness::{Mesh, SECOND_ECHO, SHOP};

const SERVICE: &str = "shop/echo.shop.svc.cluster.local";
const ECHO_1: &str = "Kubernetes//Pod/shop/echo-1";
const ECHO_2: &str = "Kubernetes//Pod/shop/echo-2";

#[tokio::test]
async fn a_proxy_fetches_its_configuration_and_the_services_it_calls() {
    let mesh = Mesh::start(SHOP).await;
    let mut client = mesh.client(mesh.token("client", Some("client-1")));
    client.ask(PROXY_CONFIGURATION, &["shop/client-1"]);
    client.ask(ADDRESS, &[SERVICE]);
    client.ask(SERVICE_POLICY, &[SERVICE]);
    let told = client.until(|told| told.held.len() == 4).await;

    let body = told.body(PROXY_CONFIGURATION, "shop/client-1").unwrap();
    let configuration = ProxyConfiguration::decode(body).unwrap();
    let outbound = &configuration.outbound[0];
    assert_eq!(outbound.bind, "127.1.0.4:80".parse().unwrap());
    assert_eq!(outbound.services[0].key.to_string(), SERVICE);
    let authorities: Vec<&str> = outbound.services[0]
        .authorities
        .iter()
        .map(|a| &**a)
        .collect();
    assert_eq!(
        authorities,
        [
            "echo.shop.svc.cluster.local",
            "echo.shop.svc",
            "echo.shop",
            "echo"
        ]
    );
    let address = Address::decode(told.body(ADDRESS, ECHO_1).unwrap()).unwrap();
    let Address::Workload(workload) = address else {
        panic!("{ECHO_1} is a workload");
    };
    assert_eq!(workload.tunnel, Tunnel::Mtls);
    assert_eq!(
        workload.identity.as_ref().unwrap().to_string(),
        "spiffe://cluster.local/ns/shop/sa/echo"
    );
    let endpoint = workload
        .endpoint(&outbound.services[0].key, outbound.services[0].port)
        .unwrap();
    assert_eq!(endpoint.port.get(), 8080);
    let policy = ServicePolicy::decode(told.body(SERVICE_POLICY, SERVICE).unwrap()).unwrap();
    assert!(
        policy.ports[&outbound.services[0].port]
            .plaintext_workloads
            .is_empty()
    );
    assert!(mesh.get("/ready").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn an_edit_arrives_as_the_difference() {
    let mesh = Mesh::start(SHOP).await;
    let mut client = mesh.client(mesh.token("client", None));
    client.ask(ADDRESS, &[SERVICE]);
    client
        .until(|told| told.names(ADDRESS) == [ECHO_1, SERVICE])
        .await;
    mesh.edit("more.yaml", SECOND_ECHO);
    let told = client.until(|told| told.names(ADDRESS).len() == 3).await;
    assert_eq!(told.arrived, 3, "only the new workload was sent");
    std::fs::remove_file(mesh.config().join("more.yaml")).unwrap();
    let told = client.until(|told| told.removed == [ECHO_2]).await;
    assert_eq!(told.names(ADDRESS), [ECHO_1, SERVICE]);
}

#[tokio::test]
async fn peer_authentication_reaches_both_sides() {
    let mesh = Mesh::start(SHOP).await;
    let mut server = mesh.client(mesh.token("echo", Some("echo-1")));
    server.ask(PROXY_CONFIGURATION, &["shop/echo-1"]);
    let mut client = mesh.client(mesh.token("client", None));
    client.ask(SERVICE_POLICY, &[SERVICE]);
    for (mode, wanted, plaintext) in [
        ("STRICT", MutualTls::Strict, 0),
        ("DISABLE", MutualTls::Disable, 1),
        ("PERMISSIVE", MutualTls::Permissive, 0),
    ] {
        let text = format!(
            "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: default, namespace: shop}}\nspec: {{mtls: {{mode: {mode}}}}}\n"
        );
        mesh.edit("authentication.yaml", &text);
        let in_force =
            |body: &[u8]| ProxyConfiguration::decode(body).unwrap().inbound[0].mutual_tls;
        server
            .until(|told| {
                told.body(PROXY_CONFIGURATION, "shop/echo-1").map(in_force) == Some(wanted)
            })
            .await;
        let refusing = |body: &[u8]| {
            let policy = ServicePolicy::decode(body).unwrap();
            policy
                .ports
                .values()
                .next()
                .unwrap()
                .plaintext_workloads
                .len()
        };
        client
            .until(|told| told.body(SERVICE_POLICY, SERVICE).map(refusing) == Some(plaintext))
            .await;
    }
}

#[tokio::test]
async fn a_broken_edit_is_reported_and_pushes_nothing_until_it_is_mended() {
    let mut mesh = Mesh::start(SHOP).await;
    let mut client = mesh.client(mesh.token("client", None));
    client.ask(ADDRESS, &[SERVICE]);
    client.until(|told| told.held.len() == 2).await;
    mesh.edit(
        "mesh.yaml",
        &SHOP.replace("port: 80, targetPort", "port: eighty, targetPort"),
    );
    let report = mesh.report(|seen| seen.text.contains("error")).await;
    assert!(report.text.contains("mesh.yaml:7:"), "{}", report.text);
    assert!(!report.changed, "what was good stays in force");
    mesh.edit(
        "mesh.yaml",
        &SHOP.replace("port: 80, targetPort", "port: 81, targetPort"),
    );
    let told = client.until(|told| told.arrived > 2).await;
    assert_eq!(
        told.removed,
        Vec::<String>::new(),
        "nothing was ever taken away"
    );
    let Ok(Address::Service(service)) = Address::decode(told.body(ADDRESS, SERVICE).unwrap())
    else {
        panic!("{SERVICE} is a service");
    };
    assert_eq!(service.ports[0].number.get(), 81);
}

#[tokio::test]
async fn a_folder_that_is_renamed_away_and_replaced_is_followed() {
    let mut mesh = Mesh::start(SHOP).await;
    let mut client = mesh.client(mesh.token("client", None));
    client.ask(ADDRESS, &[SERVICE]);
    client.until(|told| told.held.len() == 2).await;
    let (old, new) = (
        mesh.folder.path().join("old"),
        mesh.folder.path().join("new"),
    );
    std::fs::create_dir(&new).unwrap();
    std::fs::write(new.join("mesh.yaml"), SHOP).unwrap();
    std::fs::write(new.join("more.yaml"), SECOND_ECHO).unwrap();
    std::fs::rename(mesh.config(), old).unwrap();
    mesh.report(|seen| seen.text.contains("Folder")).await;
    std::fs::rename(new, mesh.config()).unwrap();
    client.until(|told| told.held.len() == 3).await;
    std::fs::remove_file(mesh.config().join("more.yaml")).unwrap();
    client.until(|told| told.held.len() == 2).await;
}

#[tokio::test]
async fn a_client_that_comes_back_is_sent_nothing_it_holds() {
    let mut mesh = Mesh::start(SHOP).await;
    let mut client = mesh.client(mesh.token("client", Some("client-1")));
    client.ask(ADDRESS, &[SERVICE]);
    client.ask(PROXY_CONFIGURATION, &["shop/client-1"]);
    let before = client.until(|told| told.held.len() == 3).await;
    mesh.stop().await;
    client.until_error("control plane").await;
    std::fs::write(mesh.config().join("more.yaml"), SECOND_ECHO).unwrap();
    mesh.restart().await;
    let told = client
        .until(|told| told.updates >= before.updates + 2)
        .await;
    assert_eq!(
        told.arrived,
        before.arrived + 1,
        "only what was made meanwhile"
    );
    assert!(told.removed.is_empty(), "{:?}", told.removed);
    assert_eq!(told.held.len(), 4);
}

#[tokio::test]
async fn a_refusal_is_recorded_by_name_and_the_rest_is_in_force() {
    let mesh = Mesh::start(SHOP).await;
    let reject = |name: &str| (name == ECHO_1).then(|| "no room".to_owned());
    let mut client = mesh.client_that_rejects(mesh.token("client", None), reject);
    client.ask(ADDRESS, &[SERVICE]);
    client.until(|told| told.names(ADDRESS) == [SERVICE]).await;
    // The answer travels after the update was applied.
    let mut page = String::new();
    for _ in 0..500 {
        page = mesh.get("/debug/status").await;
        if page.contains("no room") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(page.contains(&format!("{ECHO_1}: no room")), "{page}");
    assert!(
        page.contains("spiffe://cluster.local/ns/shop/sa/client"),
        "{page}"
    );
    assert!(
        mesh.get("/metrics")
            .await
            .contains("voile_control_nacks_total 1")
    );
}

#[tokio::test]
async fn a_folder_without_resources_is_legal_and_never_goes_unsaid() {
    let mut mesh = Mesh::start(SHOP).await;
    let said = |seen: &crate::harness::Seen| seen.changed && seen.text.contains("no resources");
    std::fs::remove_file(mesh.config().join("mesh.yaml")).unwrap();
    mesh.report(said).await;
    mesh.stop().await;
    mesh.restart().await;
    mesh.report(said).await;
}

#[tokio::test]
async fn a_restart_beside_a_broken_folder_keeps_what_was_good_before() {
    let mut mesh = Mesh::start(SHOP).await;
    let mut client = mesh.client(mesh.token("client", None));
    client.ask(PROXY_CONFIGURATION, &["shop/client-1"]);
    client.until(|told| told.updates > 0).await;
    mesh.stop().await;
    let cut = SHOP.find("kind: Sidecar").unwrap();
    std::fs::write(mesh.config().join("mesh.yaml"), &SHOP[..cut + 6]).unwrap();
    mesh.restart().await;
    mesh.report(|seen| {
        seen.text
            .contains("last good version of Sidecar shop/client")
    })
    .await;
    let mut late = mesh.client(mesh.token("client", None));
    late.ask(PROXY_CONFIGURATION, &["shop/client-1"]);
    late.until(|told| told.updates > 0).await;
    assert_eq!(
        late.told
            .borrow()
            .body(PROXY_CONFIGURATION, "shop/client-1"),
        client
            .told
            .borrow()
            .body(PROXY_CONFIGURATION, "shop/client-1")
    );
}

#[tokio::test]
async fn a_control_plane_that_starts_while_its_folder_is_away_serves_what_was_good() {
    let mut mesh = Mesh::start(SHOP).await;
    let mut client = mesh.client(mesh.token("client", None));
    client.ask(PROXY_CONFIGURATION, &["shop/client-1"]);
    let body = client
        .until(|told| told.updates > 0)
        .await
        .body(PROXY_CONFIGURATION, "shop/client-1")
        .map(<[u8]>::to_vec);
    assert!(body.is_some());
    mesh.stop().await;
    let away = mesh.folder.path().join("away");
    std::fs::rename(mesh.config(), &away).unwrap();
    // A start that could read nothing does not lose the kept state.
    for _ in 0..2 {
        mesh.restart().await;
        mesh.report(|seen| seen.text.contains("No such file")).await;
        assert!(mesh.get("/ready").await.starts_with("HTTP/1.1 200"));
        let mut late = mesh.client(mesh.token("client", None));
        late.ask(PROXY_CONFIGURATION, &["shop/client-1"]);
        late.ask(ADDRESS, &[SERVICE]);
        let told = late.until(|told| told.held.len() == 3).await;
        let same = told
            .body(PROXY_CONFIGURATION, "shop/client-1")
            .map(<[u8]>::to_vec);
        assert_eq!(same, body);
        assert_eq!(told.names(ADDRESS), [ECHO_1, SERVICE]);
        mesh.stop().await;
    }
    mesh.restart().await;
    let mut late = mesh.client(mesh.token("client", None));
    late.ask(ADDRESS, &[SERVICE]);
    late.until(|told| told.names(ADDRESS) == [ECHO_1, SERVICE])
        .await;
    std::fs::write(away.join("more.yaml"), SECOND_ECHO).unwrap();
    std::fs::rename(&away, mesh.config()).unwrap();
    late.until(|told| told.names(ADDRESS).len() == 3).await;
    // One that never held anything cannot begin so.
    let nothing = mesh.folder.path().join("nothing");
    let options = ControlOptions::new(vec![nothing.clone()], mesh.folder.path().join("new-state"));
    let refused = Control::start(options, Box::new(|_| ())).await;
    let why = refused.expect_err("nothing to serve").to_string();
    assert!(why.contains(nothing.to_str().unwrap()), "{why}");
}

#[tokio::test]
async fn an_edit_that_changes_no_meaning_sends_nothing() {
    let mut mesh = Mesh::start(SHOP).await;
    let mut client = mesh.client(mesh.token("client", Some("client-1")));
    client.ask(ADDRESS, &[SERVICE]);
    client.ask(PROXY_CONFIGURATION, &["shop/client-1"]);
    let before = client.until(|told| told.held.len() == 3).await;
    let version = mesh.report(|_| true).await.version;
    // A remark, other spaces, and the same in another order.
    let [kind, name] = [
        "kind: Service\n",
        "metadata: {name: echo, namespace: shop}\n",
    ];
    let turned = SHOP.replacen(&format!("{kind}{name}"), &format!("{name}{kind}"), 1);
    let remarked = format!("# a word\n{SHOP}");
    let spaced = SHOP.replace("port: 80, targetPort", "port:  80,  targetPort");
    for text in [&turned, &remarked, &spaced] {
        assert_ne!(text, SHOP);
        mesh.edit("mesh.yaml", text);
        let seen = mesh.next_report(|_| true).await;
        assert!(!seen.changed, "{}", seen.text);
        assert_eq!(seen.version, version);
    }
    // Any push from the edits above would have come before this one.
    mesh.edit("more.yaml", SECOND_ECHO);
    let told = client.until(|told| told.held.len() == 4).await;
    assert_eq!(told.arrived, before.arrived + 1, "only what is new");
    assert!(told.removed.is_empty(), "{:?}", told.removed);
}
