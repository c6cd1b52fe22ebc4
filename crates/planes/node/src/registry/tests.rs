//! Effects of responses on the registry.

use super::*;
use voile_policy::connections::{CallerFacts, PolicySubject};
use voile_proto::authorization as policy;
use voile_proto::discovery::{DeltaDiscoveryResponse, Node, Resource};
use voile_xds::client::Subscriptions;

/// A control plane in a word: applies one response to the registry by way of the discovery client's own code.
pub(crate) struct Said {
    pub(crate) registry: Registry,
    wanted: Subscriptions,
}

impl Said {
    /// Asked for these names.
    pub(crate) fn asked(names: &[&str]) -> Self {
        Self::of(Registry::default(), names)
    }

    /// Asked for everything.
    pub(crate) fn told_all() -> Self {
        Self::of(Registry::subscribed_to(Subscription::All), &["*"])
    }

    fn of(registry: Registry, names: &[&str]) -> Self {
        let mut wanted = Subscriptions::new(Node::default());
        let names = names.iter().map(|name| Arc::from(*name));
        wanted.change(type_url::ADDRESS, names, []);
        wanted.change(type_url::AUTHORIZATION, ["*".into()], []);
        wanted.open();
        Self { registry, wanted }
    }

    fn response(&mut self, url: &str, added: Vec<Resource>, removed: &[&str]) -> Vec<Rejection> {
        let update = self.wanted.receive(DeltaDiscoveryResponse {
            type_url: url.to_owned(),
            resources: added,
            removed_resources: removed.iter().map(|name| (*name).to_owned()).collect(),
            ..DeltaDiscoveryResponse::default()
        });
        let rejections = self.registry.apply(&update);
        self.wanted.finish(update, rejections.clone());
        rejections
    }

    /// These are there now, under these names and aliases, and those gone.
    pub(crate) fn addresses(
        &mut self,
        added: Vec<(&str, &[&str], proto::address::Type)>,
        removed: &[&str],
    ) -> Vec<Rejection> {
        let added = added.into_iter().map(|(name, aliases, body)| {
            let mut resource = address(name, body);
            resource.aliases = aliases.iter().map(|name| (*name).to_owned()).collect();
            resource
        });
        self.response(type_url::ADDRESS, added.collect(), removed)
    }

    pub(crate) fn policies(
        &mut self,
        added: &[(&str, policy::Authorization)],
        removed: &[&str],
    ) -> Vec<Rejection> {
        let one = |(name, message): &(&str, policy::Authorization)| {
            resource(name, type_url::AUTHORIZATION, message.encode_to_vec())
        };
        let added = added.iter().map(one).collect();
        self.response(type_url::AUTHORIZATION, added, removed)
    }
}

fn address(name: &str, body: proto::address::Type) -> Resource {
    let message = proto::Address { r#type: Some(body) };
    resource(name, type_url::ADDRESS, message.encode_to_vec())
}

/// Returns a response with these workloads for a subscription to everything.
pub(crate) fn told(workloads: Vec<proto::Workload>) -> Update {
    let mut wanted = Subscriptions::new(Node::default());
    wanted.change(type_url::ADDRESS, ["*".into()], []);
    let all = workloads.into_iter();
    let all = all.map(|one| address(&one.uid.clone(), proto::address::Type::Workload(one)));
    wanted.receive(DeltaDiscoveryResponse {
        type_url: type_url::ADDRESS.to_owned(),
        resources: all.collect(),
        ..DeltaDiscoveryResponse::default()
    })
}

fn resource(name: &str, url: &str, value: Vec<u8>) -> Resource {
    Resource {
        name: name.to_owned(),
        version: "1".to_owned(),
        resource: Some(prost_types::Any {
            type_url: url.to_owned(),
            value,
        }),
        ..Resource::default()
    }
}

/// A workload behind `shop/web.shop.svc.cluster.local`, port 80 to 8080, by HBONE.
pub(crate) fn workload(name: &str, last: u8) -> proto::Workload {
    let ports = vec![proto::Port {
        service_port: 80,
        target_port: 8080,
        ..proto::Port::default()
    }];
    let services = [(
        "shop/web.shop.svc.cluster.local".to_owned(),
        proto::PortList { ports },
    )];
    proto::Workload {
        uid: format!("Kubernetes//Pod/shop/{name}"),
        name: name.to_owned(),
        namespace: "shop".to_owned(),
        addresses: vec![vec![10, 244, 0, last]],
        service_account: "server".to_owned(),
        tunnel_protocol: proto::TunnelProtocol::Hbone.into(),
        services: services.into(),
        ..proto::Workload::default()
    }
}

/// That service, at 10.96.0.10.
pub(crate) fn service() -> proto::Service {
    proto::Service {
        name: "web".to_owned(),
        namespace: "shop".to_owned(),
        hostname: "web.shop.svc.cluster.local".to_owned(),
        addresses: vec![proto::NetworkAddress {
            address: vec![10, 96, 0, 10],
            ..proto::NetworkAddress::default()
        }],
        ports: vec![proto::Port {
            service_port: 80,
            target_port: 8080,
            ..proto::Port::default()
        }],
        ..proto::Service::default()
    }
}

const VIP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 10));

fn pod(last: u8) -> IpAddr {
    [10, 244, 0, last].into()
}

#[test]
fn an_answer_by_any_name_is_an_answer_and_so_is_nobody() {
    use proto::address::Type;
    let mut said = Said::asked(&["/10.96.0.10", "/10.244.0.9", "/10.244.0.3"]);
    assert!(!said.registry.view().knows(VIP));
    said.addresses(
        vec![
            (KEY, &["/10.96.0.10"], Type::Service(service())),
            (ONE, &["/10.244.0.3"], Type::Workload(workload("one", 3))),
            // Additional resources that ztunnels get.
            ("/10.244.0.3", &[], Type::Workload(workload("one", 3))),
        ],
        &["/10.244.0.9"],
    );
    let view = said.registry.view();
    assert!(view.knows(VIP) && view.knows(pod(3)) && view.knows(pod(9)) && !view.knows(pod(8)));
    let [served] = view.services(VIP) else {
        panic!("one service, once");
    };
    assert_eq!(
        view.behind(&served.service.key).len(),
        1,
        "one workload, once"
    );
    assert!(view.workload(pod(9)).is_none());
    // One workload is added, another removed.
    said.addresses(
        vec![(
            "Kubernetes//Pod/shop/two",
            &["/10.244.0.9"],
            Type::Workload(workload("two", 9)),
        )],
        &[ONE, "/10.244.0.3"],
    );
    let view = said.registry.view();
    assert!(view.workload(pod(9)).is_some() && view.workload(pod(3)).is_none());
    assert!(view.knows(pod(3)), "nobody is there: that is known too");
    let names = view.behind(&served.service.key).iter();
    let names: Vec<_> = names.map(|one| one.workload.name.to_string()).collect();
    assert_eq!(names, ["two"]);
}

#[test]
fn a_range_is_known_by_the_address_that_was_asked_for() {
    let mut said = Said::asked(&["/10.96.7.7"]);
    let mut wide = service();
    wide.addresses[0].length = Some(16);
    wide.addresses[0].address = vec![10, 96, 0, 0];
    let body = proto::address::Type::Service(wide);
    said.addresses(vec![(KEY, &["/10.96.7.7"], body)], &[]);
    let view = said.registry.view();
    assert_eq!(view.services([10, 96, 7, 7].into()).len(), 1);
    assert!(!view.knows([10, 96, 7, 8].into()));
}

#[test]
fn another_networks_addresses_are_not_ours() {
    let mut said = Said::asked(&["/10.244.0.3"]);
    let mut far = workload("far", 3);
    far.network = "elsewhere".to_owned();
    let body = proto::address::Type::Workload(far);
    said.addresses(vec![("Kubernetes//Pod/shop/far", &[], body)], &[]);
    assert!(said.registry.view().workload(pod(3)).is_none());
}

#[test]
fn who_stands_where_another_network_is_entered_is_asked_once_and_may_be_nobody() {
    let mut said = Said::asked(&["east/192.0.2.9"]);
    let entrance = NetworkEntrance {
        network: "east".into(),
        at: ([192, 0, 2, 9], 15008).into(),
    };
    assert!(!said.registry.view().knows_entrance(&entrance));
    let wish = said.registry.ask_entrance(&entrance);
    assert_eq!(wish.subscribe.as_deref(), Some("east/192.0.2.9"));
    assert_eq!(
        said.registry.ask_entrance(&entrance),
        DiscoveryRequest::default()
    );
    said.addresses(Vec::new(), &["east/192.0.2.9"]);
    let view = said.registry.view();
    assert!(
        view.knows_entrance(&entrance),
        "nobody is there: that is known"
    );
    assert!(view.keeper(&entrance).is_none());
    let mut keeper = workload("keeper", 9);
    keeper.network = "east".to_owned();
    keeper.addresses = vec![vec![192, 0, 2, 9]];
    let body = proto::address::Type::Workload(keeper);
    said.addresses(vec![("keeper", &["east/192.0.2.9"], body)], &[]);
    let view = said.registry.view();
    assert!(view.keeper(&entrance).is_some());
    assert!(view.workload([192, 0, 2, 9].into()).is_none());
}

#[test]
fn what_cannot_be_used_is_named_and_what_was_there_stays() {
    use proto::address::Type;
    let mut said = Said::asked(&["/10.244.0.3"]);
    said.addresses(
        vec![("w", &["/10.244.0.3"], Type::Workload(workload("one", 3)))],
        &[],
    );
    let mut bad = workload("one", 3);
    bad.tunnel_protocol = 9;
    let rejections = said.addresses(vec![("w", &["/10.244.0.3"], Type::Workload(bad))], &[]);
    assert_eq!(&*rejections[0].name, "w");
    assert!(said.registry.view().workload(pod(3)).is_some());
    let mut bad = service();
    bad.load_balancing = Some(proto::LoadBalancing {
        routing_preference: vec![99],
        ..proto::LoadBalancing::default()
    });
    let rejections = said.addresses(vec![("s", &[], Type::Service(bad))], &[]);
    assert!(
        rejections[0].reason.contains("routing_preference"),
        "{rejections:?}"
    );
}

#[test]
fn a_policy_that_cannot_be_read_closes_or_stays_what_it_was() {
    let allow = policy::Authorization {
        namespace: "shop".to_owned(),
        scope: policy::Scope::Namespace.into(),
        rules: vec![policy::Rule::default()],
        ..policy::Authorization::default()
    };
    let bad = policy::Authorization {
        action: 9,
        ..allow.clone()
    };
    let judge = |registry: &Registry| {
        let subject = PolicySubject {
            namespace: "shop",
            named: &[],
        };
        let caller = CallerFacts {
            identity: None,
            source: pod(2),
            destination: (pod(3), 80).into(),
        };
        registry
            .view()
            .policies
            .authorize(&subject, &caller)
            .is_ok()
    };
    let mut said = Said::asked(&[]);
    assert!(!said.registry.view().is_told);
    assert_eq!(said.policies(&[("shop/a", bad.clone())], &[]).len(), 1);
    assert!(said.registry.view().is_told);
    assert!(!judge(&said.registry), "never good: closed");
    said.policies(&[("shop/a", allow)], &[]);
    assert!(judge(&said.registry));
    assert_eq!(said.policies(&[("shop/a", bad)], &[]).len(), 1);
    assert!(judge(&said.registry), "the good one goes on");
    said.policies(&[], &["shop/a"]);
    assert_eq!(said.registry.view().policies.len(), 0);
}

#[test]
fn the_address_asked_for_first_makes_room_but_our_own_stay() {
    let mut registry = Registry::default();
    let address = |n: usize| IpAddr::from([10, 0, (n / 256) as u8, (n % 256) as u8]);
    assert_eq!(
        registry.own(pod(3)).subscribe.as_deref(),
        Some("/10.244.0.3")
    );
    assert_eq!(
        registry.ask(pod(3)),
        DiscoveryRequest::default(),
        "it is followed already"
    );
    for n in 0..MAX_FOLLOWED {
        let wish = registry.ask(address(n));
        assert!(
            wish.subscribe.is_some() && wish.unsubscribe.is_none(),
            "{n}"
        );
    }
    assert_eq!(registry.ask(address(5)), DiscoveryRequest::default());
    let wish = registry.ask(pod(9));
    assert_eq!(wish.unsubscribe.as_deref(), Some("/10.0.0.0"));
    assert_eq!(
        registry.disown(pod(3)).unsubscribe.as_deref(),
        Some("/10.244.0.3")
    );
}

#[test]
fn of_many_services_that_are_meant_by_name_the_first_makes_room_unless_it_is_a_waypoint() {
    let mut registry = Registry::default();
    let key = |n: usize| {
        let name = format!("shop/web-{n}.shop.svc.cluster.local");
        parse_service_key(&name).expect("a name")
    };
    for n in 0..MAX_MEANT {
        let wish = registry.ask_service(&key(n));
        assert_eq!(wish.subscribe, Some(key(n).to_string()));
        assert_eq!(wish.unsubscribe, None, "{n}");
    }
    assert_eq!(registry.ask_service(&key(3)), DiscoveryRequest::default());
    registry.missing.extend([key(0), key(1)]);
    let _ = registry.ask_waypoint(&WaypointAddress::Service(key(1)));
    let wish = registry.ask_service(&key(MAX_MEANT));
    assert_eq!(wish.unsubscribe, Some(key(0).to_string()));
    let wish = registry.ask_service(&key(MAX_MEANT + 1));
    assert_eq!(
        wish.unsubscribe, None,
        "who is a waypoint is followed as one"
    );
    assert_eq!(registry.missing, [key(1)].into());
    assert_eq!(registry.meant.len(), MAX_MEANT);
}

#[test]
fn a_search_in_vain_makes_no_new_view_and_whatever_else_comes_does() {
    let search = "*shop/web.example.com";
    let mut said = Said::asked(&[search, "/10.0.0.9"]);
    let _ = said.registry.search(&search.into());
    for (gone, quiet) in [
        (&[search][..], true),
        (&["/10.0.0.9"], false),
        (&[search, "/10.0.0.9"], false),
    ] {
        let update = said.wanted.receive(DeltaDiscoveryResponse {
            type_url: type_url::ADDRESS.to_owned(),
            removed_resources: gone.iter().map(|name| (*name).to_owned()).collect(),
            ..DeltaDiscoveryResponse::default()
        });
        assert_eq!(said.registry.is_of_searches(&update), quiet, "{gone:?}");
        said.wanted.finish(update, Vec::new());
    }
}

/// The service and one workload behind it, in istiod's words: without aliases.
fn first_answer() -> Vec<(&'static str, &'static [&'static str], proto::address::Type)> {
    use proto::address::Type;
    vec![
        (KEY, &[], Type::Service(service())),
        (ONE, &[], Type::Workload(workload("one", 3))),
    ]
}

const KEY: &str = "shop/web.shop.svc.cluster.local";
const ONE: &str = "Kubernetes//Pod/shop/one";

#[test]
fn who_is_told_all_knows_without_a_question_and_nothing_before_all_was_told() {
    let mut said = Said::told_all();
    let key = |name: &str| parse_service_key(name).expect("a name");
    let entrance = NetworkEntrance {
        network: "east".into(),
        at: ([192, 0, 2, 9], 15008).into(),
    };
    said.policies(&[], &[]);
    let view = said.registry.view();
    assert!(view.is_told && view.awaits_all() && !view.is_whole());
    for address in [VIP, pod(3), pod(9)] {
        assert!(!view.knows(address), "{address}: nothing was said of it");
    }
    assert!(!view.knows_service(&key("shop/other.shop.svc.cluster.local")));
    assert!(!view.knows_entrance(&entrance));

    said.addresses(first_answer(), &[]);
    let view = said.registry.view();
    assert!(view.is_whole() && !view.awaits_all());
    assert_eq!(view.services(VIP).len(), 1);
    assert!(view.workload(pod(3)).is_some());
    assert_eq!(view.behind(&key(KEY)).len(), 1);
    assert!(view.knows(pod(9)) && !view.names(pod(9)), "nobody is there");
    assert!(view.knows_service(&key("shop/other.shop.svc.cluster.local")));
    assert!(view.knows_entrance(&entrance));

    // A workload that was not requested is added, and removed.
    let body = proto::address::Type::Workload(workload("two", 9));
    said.addresses(vec![("Kubernetes//Pod/shop/two", &[], body)], &[]);
    let view = said.registry.view();
    assert!(view.workload(pod(9)).is_some());
    assert_eq!(view.behind(&key(KEY)).len(), 2);
    said.addresses(Vec::new(), &["Kubernetes//Pod/shop/two"]);
    let view = said.registry.view();
    assert!(view.knows(pod(9)) && !view.names(pod(9)));
    assert_eq!(view.behind(&key(KEY)).len(), 1);
}

#[test]
fn that_a_mesh_is_empty_is_an_answer_too() {
    let mut said = Said::told_all();
    let update = said.wanted.receive(DeltaDiscoveryResponse {
        type_url: type_url::ADDRESS.to_owned(),
        ..DeltaDiscoveryResponse::default()
    });
    assert!(
        !said.registry.is_of_searches(&update),
        "a view speaks of it"
    );
    said.registry.apply(&update);
    assert!(said.registry.view().knows(pod(9)));
}

#[test]
fn whom_strangers_call_is_not_remembered_where_all_is_told() {
    let mut said = Said::told_all();
    said.addresses(first_answer(), &[]);
    let registry = &mut said.registry;
    let key = parse_service_key(KEY).expect("a name");
    for n in 0..2 * MAX_FOLLOWED {
        let address = IpAddr::from([10, 9, (n / 256) as u8, (n % 256) as u8]);
        assert_eq!(registry.ask(address), DiscoveryRequest::default());
    }
    assert_eq!(registry.own(pod(3)), DiscoveryRequest::default());
    assert_eq!(registry.disown(pod(3)), DiscoveryRequest::default());
    assert_eq!(registry.ask_service(&key), DiscoveryRequest::default());
    let waypoint = WaypointAddress::Service(key);
    assert_eq!(
        registry.ask_waypoint(&waypoint),
        DiscoveryRequest::default()
    );
    let kept = (registry.asked.len(), registry.own.len());
    assert_eq!(kept, (0, 0));
    assert!(registry.meant.is_empty() && registry.named.is_empty());
}

#[test]
fn what_went_while_nobody_told_us_is_forgotten_by_the_next_stream() {
    use proto::address::Type;
    let mut said = Said::told_all();
    said.addresses(first_answer(), &[]);
    said.wanted.closed();
    assert!(said.registry.view().workload(pod(3)).is_some(), "in force");
    let requests = said.wanted.open();
    let asked = requests
        .iter()
        .find(|one| one.type_url == type_url::ADDRESS);
    let asked = asked.expect("addresses are asked for again");
    assert_eq!(asked.resource_names_subscribe, ["*"]);
    let held = &asked.initial_resource_versions;
    let declared = |name: &str| held.contains_key(name);
    assert!(
        held.len() == 2 && declared(KEY) && declared(ONE),
        "{held:?}"
    );
    let two = Type::Workload(workload("two", 9));
    said.addresses(vec![("Kubernetes//Pod/shop/two", &[], two)], &[ONE]);
    let view = said.registry.view();
    assert!(view.knows(pod(3)) && !view.names(pod(3)));
    assert!(view.workload(pod(9)).is_some());
    assert_eq!(view.services(VIP).len(), 1, "what was not spoken of stays");
}

#[test]
fn who_cannot_be_understood_is_nobody_to_be_called_in_plaintext() {
    use proto::address::Type;
    let mut said = Said::told_all();
    said.addresses(first_answer(), &[]);
    let mut bad = workload("two", 9);
    bad.tunnel_protocol = 9;
    let two = "Kubernetes//Pod/shop/two";
    assert_eq!(
        said.addresses(vec![(two, &[], Type::Workload(bad.clone()))], &[])
            .len(),
        1
    );
    assert!(!said.registry.view().knows(pod(9)), "somebody is there");
    assert!(said.registry.view().knows(pod(8)));
    said.addresses(vec![(two, &[], Type::Workload(workload("two", 9)))], &[]);
    assert!(said.registry.view().workload(pod(9)).is_some());
    // The last good version stays in force.
    said.addresses(vec![(two, &[], Type::Workload(bad.clone()))], &[]);
    assert!(said.registry.view().workload(pod(9)).is_some());
    said.addresses(Vec::new(), &[two]);
    assert!(
        said.registry.view().knows(pod(9)),
        "nobody is there any more"
    );
    let mut bad = service();
    bad.addresses[0].address = vec![10, 96, 0, 11];
    bad.hostname = "no..name".to_owned();
    assert_eq!(
        said.addresses(vec![("s", &[], Type::Service(bad))], &[])
            .len(),
        1
    );
    assert!(!said.registry.view().knows([10, 96, 0, 11].into()));
}

#[test]
fn who_has_its_nodes_address_is_called_as_its_service_and_not_by_that_address() {
    use proto::address::Type;
    let mut said = Said::told_all();
    let mut hosted = workload("hosted", 7);
    hosted.network_mode = proto::NetworkMode::HostNetwork.into();
    let uid = hosted.uid.clone();
    said.addresses(vec![(&*uid, &[], Type::Workload(hosted))], &[]);
    let view = said.registry.view();
    assert!(view.knows(pod(7)) && view.workload(pod(7)).is_none());
    let key = parse_service_key(KEY).expect("a name");
    assert_eq!(view.behind(&key).len(), 1);
}

#[test]
fn the_narrowest_range_counts_where_nobody_has_the_address_alone() {
    use proto::address::Type;
    let ranged = |name: &str, address: [u8; 4], length| {
        let mut one = service();
        one.name = name.to_owned();
        one.hostname = format!("{name}.example.com");
        one.addresses[0].address = address.to_vec();
        one.addresses[0].length = Some(length);
        Type::Service(one)
    };
    let mut said = Said::told_all();
    said.addresses(
        vec![
            ("shop/wide", &[], ranged("wide", [10, 96, 0, 0], 16)),
            ("shop/narrow", &[], ranged("narrow", [10, 96, 7, 0], 24)),
            ("shop/alone", &[], ranged("alone", [10, 96, 7, 7], 32)),
        ],
        &[],
    );
    let view = said.registry.view();
    for (address, expected) in [
        ([10, 96, 1, 1], "wide"),
        ([10, 96, 7, 1], "narrow"),
        ([10, 96, 7, 7], "alone"),
        ([10, 97, 7, 7], "nobody"),
    ] {
        let found = view.services(address.into()).first();
        let found = found.map_or("nobody", |served| &served.service.name);
        assert_eq!(found, expected, "{address:?}");
    }
}

#[test]
fn names_mean_to_a_namespace_what_it_may_see_where_all_is_told() {
    use proto::address::Type;
    let of = |namespace: &str, host: &str| {
        let mut one = service();
        one.namespace = namespace.to_owned();
        one.hostname = host.to_owned();
        one
    };
    let mut private = of("blog", "secret.example.com");
    private.visibility = proto::service::Visibility::Namespace.into();
    let mut canonical = of("zoo", "twice.example.com");
    canonical.canonical = true;
    let all = [
        service(),
        private,
        canonical,
        of("aaa", "twice.example.com"),
        of("aaa", "*.wild.test"),
    ];
    let keys: Vec<String> = all
        .iter()
        .map(|one| format!("{}/{}", one.namespace, one.hostname))
        .collect();
    let added = keys.iter().zip(all);
    let added = added.map(|(key, one)| (&**key, &[][..], Type::Service(one)));
    let mut said = Said::told_all();
    let rejections = said.addresses(added.collect(), &[]);
    assert!(rejections.is_empty(), "{rejections:?}");
    let view = said.registry.view();
    for (asker, host, expected) in [
        ("shop", "web", KEY),
        ("blog", "web", "nobody"),
        ("blog", "web.shop", KEY),
        ("blog", "web.shop.svc.cluster.local", KEY),
        ("blog", "secret.example.com", "blog/secret.example.com"),
        ("shop", "secret.example.com", "nobody"),
        ("shop", "twice.example.com", "zoo/twice.example.com"),
        ("aaa", "twice.example.com", "aaa/twice.example.com"),
        ("shop", "a.wild.test", "aaa/*.wild.test"),
        ("shop", "web.elsewhere.test", "nobody"),
    ] {
        let namespace = voile_model::Namespace::new(asker).expect("a namespace");
        let found = view.named(&namespace, host);
        let found = found.map(|served| served.service.key.to_string());
        assert_eq!(
            found.as_deref().unwrap_or("nobody"),
            expected,
            "{asker}: {host}"
        );
    }
}

#[test]
fn what_is_as_it_was_is_shared_with_the_view_before() {
    let mut said = Said::told_all();
    said.addresses(first_answer(), &[]);
    let before = said.registry.view();
    said.policies(&[], &[]);
    let told = said.registry.view();
    assert!(Arc::ptr_eq(&before.catalogue, &told.catalogue));
    assert!(Arc::ptr_eq(&before.population, &told.population));
    let body = proto::address::Type::Workload(workload("two", 9));
    said.addresses(vec![("Kubernetes//Pod/shop/two", &[], body)], &[]);
    let moved = said.registry.view();
    assert!(Arc::ptr_eq(&told.catalogue, &moved.catalogue));
    assert!(!Arc::ptr_eq(&told.population, &moved.population));
    said.addresses(Vec::new(), &[KEY]);
    let gone = said.registry.view();
    assert!(!Arc::ptr_eq(&moved.catalogue, &gone.catalogue));
    assert!(Arc::ptr_eq(&moved.population, &gone.population));
}
