//! Release of unused state: it is released as a whole. State that is used at that moment stays, and is
//! subscribed to again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use prost::Message;
use tokio::sync::mpsc;
use voile_proto::discovery::{DeltaDiscoveryResponse, Node, Resource};
use voile_proto::{proxy, type_url, workload};
use voile_xds::client::Subscriptions;
use voile_xds::wire::address_bytes;

use super::{PATIENCE, Stage, play, play_for};
use crate::plan::{CapturedDestination, Settings};
use crate::registry::{Registry, address_name};
use crate::worker::FromWorker;
use crate::worker::listeners::captured_listeners::CapturedListeners;
use crate::worker::peers::{PeerEntry, Peers};
use crate::worker::tests::cost::footprint::held;

/// Services used once.
const SERVICES: u32 = 10_000;

/// Share of the memory that may remain, as one part in so many: runtimes and tables keep some for the next
/// time.
const LEFT: i64 = 50;

/// Least memory in bytes that a proxy held for each destination in use; otherwise the test would not show that
/// anything is freed.
const EACH: i64 = 1024;

/// The address of a service.
fn address(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0a60_0000 + number).into()
}

fn at(number: u32) -> CapturedDestination {
    CapturedDestination {
        to: SocketAddr::new(address(number), 80),
        host: None,
    }
}

fn name(number: u32) -> Arc<str> {
    format!("shop/s{number}.test").into()
}

fn uid(number: u32) -> Arc<str> {
    format!("Kubernetes//Pod/shop/s{number}").into()
}

fn resource(kind: &str, name: &str, aliases: Vec<String>, body: Vec<u8>) -> Resource {
    Resource {
        name: name.to_owned(),
        aliases,
        version: "1".to_owned(),
        resource: Some(prost_types::Any {
            type_url: kind.to_owned(),
            value: body,
        }),
        ttl: None,
    }
}

/// A service with one workload, as a control plane tells them.
fn service(number: u32) -> Vec<Resource> {
    use workload::address::Type;
    let body = |of| workload::Address { r#type: Some(of) }.encode_to_vec();
    let port = workload::Port {
        service_port: 80,
        target_port: 8080,
        app_protocol: 0,
    };
    let service = workload::Service {
        name: format!("s{number}"),
        namespace: "shop".to_owned(),
        hostname: format!("s{number}.test"),
        addresses: vec![workload::NetworkAddress {
            address: address_bytes(address(number)),
            ..workload::NetworkAddress::default()
        }],
        ports: vec![port],
        ..workload::Service::default()
    };
    let ports = workload::PortList { ports: vec![port] };
    let workload = workload::Workload {
        uid: uid(number).to_string(),
        name: format!("s{number}"),
        namespace: "shop".to_owned(),
        addresses: vec![address_bytes(address(number + (1 << 16)))],
        services: [(name(number).to_string(), ports)].into(),
        ..workload::Workload::default()
    };
    let alias = vec![address_name(address(number))];
    vec![
        resource(
            type_url::ADDRESS,
            &name(number),
            alias,
            body(Type::Service(service)),
        ),
        resource(
            type_url::ADDRESS,
            &uid(number),
            Vec::new(),
            body(Type::Workload(workload)),
        ),
    ]
}

/// Registry of a proxy, and its subscriptions.
struct Held {
    registry: Registry,
    subscriptions: Subscriptions,
}

impl Held {
    fn new() -> Self {
        let mut held = Self {
            registry: Registry::default(),
            subscriptions: Subscriptions::new(Node::default()),
        };
        held.ask(type_url::PROXY_CONFIGURATION, "shop/own".into());
        held.subscriptions.open();
        let configuration = proxy::ProxyConfiguration {
            workload_uid: "own".to_owned(),
            trust_domain: "cluster.local".to_owned(),
            ..proxy::ProxyConfiguration::default()
        };
        let body = configuration.encode_to_vec();
        let own = resource(type_url::PROXY_CONFIGURATION, "shop/own", Vec::new(), body);
        held.hear(type_url::PROXY_CONFIGURATION, vec![own], &[]);
        held
    }

    fn ask(&mut self, kind: &str, name: Arc<str>) {
        self.subscriptions.change(kind, [name], []);
    }

    fn hear(&mut self, kind: &str, resources: Vec<Resource>, removed: &[Arc<str>]) {
        let update = self.subscriptions.receive(DeltaDiscoveryResponse {
            type_url: kind.to_owned(),
            resources,
            removed_resources: removed.iter().map(ToString::to_string).collect(),
            nonce: "1".to_owned(),
            ..DeltaDiscoveryResponse::default()
        });
        let rejections = self.registry.apply(&update);
        assert_eq!(rejections, []);
        self.subscriptions.finish(update, rejections);
    }

    /// A service is used for the first time.
    fn learn(&mut self, number: u32) {
        self.ask(type_url::ADDRESS, address_name(address(number)).into());
        self.hear(type_url::ADDRESS, service(number), &[]);
        for policy in self.registry.policies_wanted(&at(number)) {
            self.ask(type_url::SERVICE_POLICY, policy);
        }
        let body = proxy::ServicePolicy::default().encode_to_vec();
        let policy = resource(type_url::SERVICE_POLICY, &name(number), Vec::new(), body);
        self.hear(type_url::SERVICE_POLICY, vec![policy], &[]);
        // No routes exist. The control plane answers a repeated question again: the first answer may belong
        // to the released subscription.
        self.ask(type_url::SERVICE_ROUTES, name(number));
        for _ in 0..2 {
            self.hear(type_url::SERVICE_ROUTES, Vec::new(), &[name(number)]);
        }
    }

    /// All services are let go at once.
    fn let_go(&mut self) {
        let all = 0..SERVICES;
        let names: Vec<Arc<str>> = all.clone().map(name).collect();
        let asked = all
            .clone()
            .map(|number| address_name(address(number)).into());
        let asked: Vec<Arc<str>> = asked.collect();
        for name in &asked {
            self.registry.forget_name(name);
        }
        for name in &names {
            self.registry.forget_policy(name);
            self.registry.forget_routes(name);
        }
        self.subscriptions
            .change(type_url::SERVICE_ROUTES, [], names.clone());
        self.subscriptions.change(type_url::ADDRESS, [], asked);
        self.subscriptions
            .change(type_url::SERVICE_POLICY, [], names.clone());
        self.hear(type_url::SERVICE_POLICY, Vec::new(), &names);
        let gone: Vec<Arc<str>> = names.into_iter().chain(all.map(uid)).collect();
        self.hear(type_url::ADDRESS, Vec::new(), &gone);
    }
}

#[test]
fn of_ten_thousand_services_that_were_used_once_nothing_is_left() {
    // Some seconds of work; a busy machine may take its time.
    play_for(PATIENCE * 15, || async {
        let stage = Stage::new(Settings::default());
        let captured = Rc::new(CapturedListeners::default());
        let mut mesh = Held::new();
        let before = held();
        for number in 0..SERVICES {
            let (worker, waiting) = (Rc::clone(&stage.worker), Rc::clone(&captured));
            let call = tokio::task::spawn_local(async move {
                waiting.destination(&worker, at(number)).await.map(drop)
            });
            tokio::task::yield_now().await;
            mesh.learn(number);
            let plan = mesh.registry.destination(&at(number)).expect("it is known");
            captured.learn(&stage.worker, at(number), Some(&plan));
            assert_eq!(call.await.expect("it ends"), Ok(()));
        }
        let most = held() - before;
        assert!(most > EACH * i64::from(SERVICES), "{most}");
        assert_eq!(captured.used().len(), SERVICES as usize);
        assert_eq!(captured.used(), []);
        mesh.let_go();
        for number in 0..SERVICES {
            captured.learn(&stage.worker, at(number), None);
        }
        stage.worker.seat.ledger.forget_unused();
        // The tasks that kept the pools end at their next turn.
        for _ in 0..SERVICES {
            tokio::task::yield_now().await;
        }
        let left = held() - before;
        assert!(left * LEFT < most, "{left} of {most} bytes");
        // And is there again when it is used again.
        mesh.learn(7);
        assert!(mesh.registry.destination(&at(7)).is_some());
    });
}

#[test]
fn what_is_used_or_open_when_it_would_be_let_go_stays_and_is_asked_for_again() {
    play(|| async {
        let (control, mut heard) = mpsc::unbounded_channel();
        let stage = Stage::heard(Settings::default(), control);
        let captured = Rc::new(CapturedListeners::default());
        let mut mesh = Held::new();
        mesh.learn(1);
        let plan = mesh.registry.destination(&at(1)).expect("it is known");
        let (worker, waiting) = (Rc::clone(&stage.worker), Rc::clone(&captured));
        let call =
            tokio::task::spawn_local(async move { waiting.destination(&worker, at(1)).await.ok() });
        let asked = |heard: &mut mpsc::UnboundedReceiver<FromWorker>| matches!(heard.try_recv(), Ok(FromWorker::Destination(to)) if to == at(1));
        tokio::task::yield_now().await;
        assert!(asked(&mut heard));
        captured.learn(&stage.worker, at(1), Some(&plan));
        let open = call.await.expect("it ends").expect("it is known");
        // Open, whether or not anything was said on it since.
        for _ in 0..3 {
            assert_eq!(captured.used(), [at(1)]);
        }
        captured.learn(&stage.worker, at(1), None);
        assert!(asked(&mut heard), "it is open");
        drop(open);
        assert_eq!(captured.used(), [at(1)], "its end is a use");
        // Called between the question and the answer.
        let again = captured.destination(&stage.worker, at(1)).await;
        assert!(again.is_ok(), "without a question");
        drop(again);
        captured.learn(&stage.worker, at(1), None);
        assert!(asked(&mut heard), "it was called just now");
        assert_eq!(captured.used(), [at(1)]);
        assert_eq!(captured.used(), []);
        captured.learn(&stage.worker, at(1), None);
        assert!(!asked(&mut heard));
        // The next call asks the control plane.
        let (worker, waiting) = (Rc::clone(&stage.worker), Rc::clone(&captured));
        let call =
            tokio::task::spawn_local(
                async move { waiting.destination(&worker, at(1)).await.map(drop) },
            );
        tokio::task::yield_now().await;
        assert!(asked(&mut heard));
        captured.learn(&stage.worker, at(1), Some(&plan));
        assert_eq!(call.await.expect("it ends"), Ok(()));
    });
}

#[test]
fn a_policy_that_was_let_go_is_waited_for_when_its_service_is_used_again() {
    let mut mesh = Held::new();
    mesh.learn(1);
    mesh.registry.forget_name(&address_name(address(1)).into());
    mesh.registry.forget_policy(&name(1));
    let asked: Arc<str> = address_name(address(1)).into();
    mesh.subscriptions
        .change(type_url::ADDRESS, [], [asked.clone()]);
    mesh.subscriptions
        .change(type_url::SERVICE_POLICY, [], [name(1)]);
    // The next request comes before the server's word on what was let go.
    mesh.ask(type_url::ADDRESS, asked);
    mesh.ask(type_url::SERVICE_POLICY, name(1));
    mesh.hear(type_url::SERVICE_POLICY, Vec::new(), &[name(1)]);
    assert_eq!(mesh.registry.destination(&at(1)), None, "it waits");
    let body = proxy::ServicePolicy::default().encode_to_vec();
    let policy = resource(type_url::SERVICE_POLICY, &name(1), Vec::new(), body);
    mesh.hear(type_url::SERVICE_POLICY, vec![policy], &[]);
    assert!(mesh.registry.destination(&at(1)).is_some());
    // Or long after it.
    mesh.registry.forget_policy(&name(1));
    mesh.subscriptions
        .change(type_url::SERVICE_POLICY, [], [name(1)]);
    mesh.hear(type_url::SERVICE_POLICY, Vec::new(), &[name(1)]);
    mesh.ask(type_url::SERVICE_POLICY, name(1));
    assert_eq!(mesh.registry.destination(&at(1)), None, "it waits");
}

#[test]
fn strangers_that_call_no_more_are_forgotten_and_those_that_call_just_now_are_asked_for_again() {
    let (control, mut heard) = mpsc::unbounded_channel();
    let peers = Peers::new(control);
    let [idle, busy, waits] = [1, 2, 3].map(address);
    for address in [idle, busy, waits] {
        assert!(matches!(peers.get(address), PeerEntry::Asked));
    }
    peers.learn(idle, None);
    peers.learn(busy, None);
    let mut asked = || -> BTreeMap<IpAddr, usize> {
        let mut all = BTreeMap::new();
        while let Ok(FromWorker::Stranger(address)) = heard.try_recv() {
            *all.entry(address).or_default() += 1;
        }
        all
    };
    assert_eq!(asked().len(), 3);
    let used = || peers.used().into_iter().collect::<BTreeSet<_>>();
    assert_eq!(used(), BTreeSet::from([idle, busy, waits]));
    assert_eq!(used(), BTreeSet::from([waits]), "nobody has answered");
    assert!(matches!(peers.get(busy), PeerEntry::Stranger));
    peers.forget(&BTreeSet::from([idle, busy]));
    assert_eq!(asked(), BTreeMap::from([(busy, 1)]));
    assert!(matches!(peers.get(busy), PeerEntry::Stranger), "meanwhile");
    assert!(
        matches!(peers.get(idle), PeerEntry::Asked),
        "a new question"
    );
    assert_eq!(asked(), BTreeMap::from([(idle, 1)]));
}

#[test]
fn whoever_proves_to_be_somebody_else_than_who_is_at_its_address_is_a_stranger() {
    let (control, _heard) = mpsc::unbounded_channel();
    let peers = Peers::new(control);
    let at = |principal: &str| {
        peers.learn(
            address(1),
            Some(voile_telemetry::PeerLabels {
                workload: "gate".to_owned(),
                principal: principal.to_owned(),
                ..voile_telemetry::PeerLabels::default()
            }),
        );
    };
    let gate = "spiffe://cluster.local/ns/edge/sa/gate";
    for (known, shown, is_it) in [
        (gate, gate, true),
        (gate, "spiffe://old.domain/ns/edge/sa/gate", true),
        // In plaintext no caller proves an identity; some workloads have no known identity.
        (gate, "", true),
        ("", gate, true),
        (gate, "spiffe://cluster.local/ns/edge/sa/client", false),
        (gate, "spiffe://cluster.local/ns/shop/sa/gate", false),
        (gate, "gate", false),
    ] {
        at(known);
        let found = matches!(peers.caller(address(1), shown), PeerEntry::Workload(_));
        assert_eq!(found, is_it, "{shown} where {known} is");
    }
}
