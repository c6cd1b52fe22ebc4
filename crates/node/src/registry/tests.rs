//! What responses do to what is known.

use super::*;
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
        let mut wanted = Subscriptions::new(Node::default());
        let names = names.iter().map(|name| Arc::from(*name));
        wanted.change(type_url::ADDRESS, names, []);
        wanted.change(type_url::AUTHORIZATION, ["*".into()], []);
        wanted.open();
        Self {
            registry: Registry::default(),
            wanted,
        }
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
        let resource = |(name, aliases, body): (&str, &[&str], proto::address::Type)| {
            let message = proto::Address { r#type: Some(body) };
            let mut resource = resource(name, type_url::ADDRESS, message.encode_to_vec());
            resource.aliases = aliases.iter().map(|name| (*name).to_owned()).collect();
            resource
        };
        let added = added.into_iter().map(resource).collect();
        self.response(type_url::ADDRESS, added, removed)
    }

    fn policies(
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
    let key = "shop/web.shop.svc.cluster.local";
    said.addresses(
        vec![
            (key, &["/10.96.0.10"], Type::Service(service())),
            (
                "Kubernetes//Pod/shop/one",
                &["/10.244.0.3"],
                Type::Workload(workload("one", 3)),
            ),
            // What ztunnels are told besides.
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
    // Somebody moved in; and somebody left.
    said.addresses(
        vec![(
            "Kubernetes//Pod/shop/two",
            &["/10.244.0.9"],
            Type::Workload(workload("two", 9)),
        )],
        &["Kubernetes//Pod/shop/one", "/10.244.0.3"],
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
    let key = "shop/web.shop.svc.cluster.local";
    let body = proto::address::Type::Service(wide);
    said.addresses(vec![(key, &["/10.96.7.7"], body)], &[]);
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
    let entrance = Entrance {
        network: "east".into(),
        at: ([192, 0, 2, 9], 15008).into(),
    };
    assert!(!said.registry.view().knows_entrance(&entrance));
    let wish = said.registry.ask_entrance(&entrance);
    assert_eq!(wish.subscribe.as_deref(), Some("east/192.0.2.9"));
    assert_eq!(said.registry.ask_entrance(&entrance), Wish::default());
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
        let judged = crate::policy::Judged {
            namespace: "shop",
            named: &[],
        };
        let caller = crate::policy::Caller {
            identity: None,
            source: pod(2),
            destination: (pod(3), 80).into(),
        };
        registry.view().policies.judge(&judged, &caller).is_ok()
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
        Wish::default(),
        "it is followed already"
    );
    for n in 0..MAX_FOLLOWED {
        let wish = registry.ask(address(n));
        assert!(
            wish.subscribe.is_some() && wish.unsubscribe.is_none(),
            "{n}"
        );
    }
    assert_eq!(registry.ask(address(5)), Wish::default());
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
    assert_eq!(registry.ask_service(&key(3)), Wish::default());
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
