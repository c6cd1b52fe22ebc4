//! All that a call to a service needs comes in one turn: its Address, the workloads behind it with their identities, its routes,
//! and its policy. The client sends no message in between: an answer that waits for one would not come.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Streaming};
use voile_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use voile_proto::type_url::{ADDRESS, SERVICE_POLICY, SERVICE_ROUTES};
use voile_xds::client::Credential;
use voile_xds::generated::ads::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use voile_xds::wire::{Address, ServicePolicy};

use crate::harness::{Mesh, SECOND_ECHO, SHOP};

/// Far beyond what a loaded machine needs, and less than a caller may be silent.
const DEADLINE: Duration = Duration::from_secs(20);
const SERVICE: &str = "shop/echo.shop.svc.cluster.local";
/// As our proxies ask: types in the order of their names.
const ASKED: [&str; 3] = [ADDRESS, SERVICE_ROUTES, SERVICE_POLICY];
const ROUTES: &str = "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: echo, namespace: shop}\n\
     spec: {hosts: [echo], http: [{timeout: 1s, route: [{destination: {host: echo}}]}]}\n";

/// A proxy on the plaintext port, with a token.
struct Proxy {
    says: mpsc::UnboundedSender<DeltaDiscoveryRequest>,
    hears: Streaming<DeltaDiscoveryResponse>,
}

impl Proxy {
    async fn start(mesh: &Mesh) -> Self {
        let address = format!("http://{}", mesh.addresses.plaintext.unwrap());
        let mut client = AggregatedDiscoveryServiceClient::connect(address)
            .await
            .unwrap();
        let (says, requests) = mpsc::unbounded_channel();
        let mut request = Request::new(UnboundedReceiverStream::new(requests));
        let Credential::Token(token) = mesh.token("client", Some("client-1")) else {
            panic!("a token");
        };
        let token = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", token);
        let hears = client.delta_aggregated_resources(request).await.unwrap();
        Self {
            says,
            hears: hears.into_inner(),
        }
    }

    fn ask(&self, name: &str) {
        for type_url in ASKED {
            let request = DeltaDiscoveryRequest {
                type_url: type_url.to_owned(),
                resource_names_subscribe: vec![name.to_owned()],
                ..DeltaDiscoveryRequest::default()
            };
            self.says.send(request).unwrap();
        }
    }

    /// An answer about each type, by type; whether each is acknowledged before the next.
    async fn hear(&mut self, acknowledges: bool) -> BTreeMap<String, DeltaDiscoveryResponse> {
        let mut heard = BTreeMap::new();
        while heard.len() < ASKED.len() {
            let told = tokio::time::timeout(DEADLINE, self.hears.message()).await;
            let told = told.unwrap_or_else(|_| panic!("no more than {:?}", heard.keys()));
            let told = told.unwrap().unwrap();
            if acknowledges {
                let answer = DeltaDiscoveryRequest {
                    type_url: told.type_url.clone(),
                    response_nonce: told.nonce.clone(),
                    ..DeltaDiscoveryRequest::default()
                };
                self.says.send(answer).unwrap();
            }
            heard.insert(told.type_url.clone(), told);
        }
        heard
    }
}

#[tokio::test]
async fn all_it_takes_to_call_a_service_comes_without_a_word_in_between() {
    let mesh = Mesh::start(&format!("{SHOP}---{SECOND_ECHO}{ROUTES}")).await;
    let mut proxy = Proxy::start(&mesh).await;
    // Something else is known before, as to any proxy that has begun.
    proxy.ask("shop/nobody.shop.svc.cluster.local");
    proxy.hear(true).await;
    proxy.ask(SERVICE);
    let heard = proxy.hear(false).await;
    let bodies = |of: &str| {
        let told = heard[of].resources.iter();
        told.map(|one| one.resource.clone().unwrap().value)
            .collect::<Vec<_>>()
    };
    let mut behind = Vec::new();
    for body in bodies(ADDRESS) {
        match Address::decode(&body).unwrap() {
            Address::Service(service) => assert_eq!(service.ports.len(), 1),
            Address::Workload(workload) => behind.push(workload.identity.unwrap().to_string()),
        }
    }
    assert_eq!(behind, ["spiffe://cluster.local/ns/shop/sa/echo"; 2]);
    assert_eq!(bodies(SERVICE_ROUTES).len(), 1);
    let policies = bodies(SERVICE_POLICY);
    assert_eq!(policies.len(), 1);
    ServicePolicy::decode(&policies[0]).unwrap();
}

const VIP: &str = "10.96.0.7";
/// Two services of another namespace, one of which nobody else sees.
const BANK: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: open, namespace: bank}\n\
     spec: {clusterIP: 10.96.0.8, ports: [{name: http, port: 80}]}\n---\n\
     apiVersion: v1\nkind: Service\nmetadata: {name: vault, namespace: bank, annotations: {networking.istio.io/exportTo: \".\"}}\n\
     spec: {clusterIP: 10.96.0.9, ports: [{name: http, port: 80}]}\n---\n\
     apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: vault, namespace: bank}\n\
     spec: {hosts: [vault], exportTo: [\".\"], http: [{timeout: 1s, route: [{destination: {host: vault}}]}]}\n";

/// By type: names of what there is, those told by another name first named so (`name=asked`), and names of what there is not.
fn names(heard: &BTreeMap<String, DeltaDiscoveryResponse>, asked: &str) -> [String; 3] {
    ASKED.map(|of| {
        let told = heard[of].resources.iter().map(|one| {
            match one.aliases.iter().any(|alias| alias == asked) {
                true => format!("{}=", one.name),
                false => one.name.clone(),
            }
        });
        let absent = heard[of].removed_resources.iter();
        let absent = absent.map(|name| format!("-{name}"));
        told.chain(absent).collect::<Vec<_>>().join(" ")
    })
}

#[tokio::test]
async fn all_it_takes_to_call_an_address_or_a_host_comes_without_a_word_in_between() {
    let shop = SHOP.replacen("spec:\n", &format!("spec:\n  clusterIP: {VIP}\n"), 1);
    let mesh = Mesh::start(&format!("{shop}---{SECOND_ECHO}{ROUTES}---\n{BANK}")).await;
    let pod = |number| format!("Kubernetes//Pod/shop/echo-{number}");
    let (one, two) = (pod(1), pod(2));
    let service = format!("{one} {two} {SERVICE}=");
    let routed = format!("{SERVICE}=");
    let open = "bank/open.bank.svc.cluster.local";
    let unrouted = |asked: &str| format!("-{asked} -{open}");
    let nobody = |asked: &str| [0; 3].map(|_| format!("-{asked}"));
    let by_vip = format!("/{VIP}");
    let cases = [
        (&*by_vip, [service.clone(), routed.clone(), routed.clone()]),
        ("*/echo", [service, routed.clone(), routed]),
        (
            "/127.1.0.5",
            [
                format!("{two}="),
                "-/127.1.0.5".to_owned(),
                format!("{two}="),
            ],
        ),
        (
            "/10.96.0.8",
            [
                format!("{open}="),
                unrouted("/10.96.0.8"),
                format!("{open}="),
            ],
        ),
        (
            "*/open.bank",
            [
                format!("{open}="),
                unrouted("*/open.bank"),
                format!("{open}="),
            ],
        ),
        // Nobody has it, and nobody whom the caller may know of.
        ("/198.51.100.7", nobody("/198.51.100.7")),
        ("*/nobody", nobody("*/nobody")),
        ("/10.96.0.9", nobody("/10.96.0.9")),
        ("*/vault.bank", nobody("*/vault.bank")),
    ];
    for asked_before in [false, true] {
        for (asked, expected) in &cases {
            let mut proxy = Proxy::start(&mesh).await;
            if asked_before {
                proxy.ask("shop/nobody.shop.svc.cluster.local");
                proxy.hear(true).await;
            }
            proxy.ask(asked);
            let heard = proxy.hear(false).await;
            assert_eq!(names(&heard, asked), *expected, "{asked}");
            let versions = ASKED.map(|of| heard[of].system_version_info.clone());
            assert!(versions.iter().all(|one| *one == versions[0]), "one moment");
            assert_ne!(versions[0], "");
        }
    }
}
