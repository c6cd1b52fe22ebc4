//! Balancing by zone: order of the endpoints, other callers, and the shares of both.

use prost::Message;
use voile_model::Labels;
use voile_model::mesh::traffic::{Algorithm, LocalitySetting, PortTraffic};
use voile_proto::{proxy, type_url, workload};
use voile_traffic::balance::Zones;
use voile_xds::wire::address_bytes;

use super::traffic::{obey, said, somewhere, standing, web};
use super::{SHOP, configure, put, service};
use crate::plan::{EndpointPlan, EndpointRank, ServicePlan};
use crate::registry::Registry;
use crate::registry::locality::{EndpointRanking, LocalitySettings};
use crate::registry::zones::Callers;

fn by_zone(least: u32) -> LocalitySetting {
    LocalitySetting {
        always: true,
        zone_aware: Some(least),
        ..LocalitySetting::default()
    }
}

fn hashing(setting: LocalitySetting) -> PortTraffic {
    let mut said = said(setting, false);
    said.balancer.algorithm = Algorithm::RingHash(1_024);
    said
}

#[test]
fn our_region_comes_first_whatever_its_zones_and_labels_come_before_regions() {
    let labels: Labels = [("version", "v2")].into_iter().collect();
    let all = [
        ("eu/a/1", "v1"),
        ("eu/a/2", "v1"),
        ("eu/b/1", "v2"),
        ("us/a/1", "v2"),
        ("asia", "v1"),
    ];
    let failover = || LocalitySetting {
        failover: vec![("eu".into(), "us".into())],
        ..by_zone(6)
    };
    let version = || LocalitySetting {
        priority: vec!["version".into()],
        ..by_zone(6)
    };
    let both = LocalitySetting {
        failover: failover().failover,
        ..version()
    };
    let off = LocalitySetting {
        enabled: false,
        always: false,
        zone_aware: None,
        ..failover()
    };
    for (own, said, expected) in [
        ("eu/a/1", said(by_zone(6), false), [0, 0, 0, 1, 1]),
        ("eu/a/1", said(by_zone(6), true), [0, 0, 0, 1, 1]),
        ("eu/c", said(failover(), false), [0, 0, 0, 1, 2]),
        ("eu/c", hashing(failover()), [0, 0, 0, 1, 2]),
        ("us/a/1", said(failover(), false), [1, 1, 1, 0, 1]),
        ("eu/a/1", said(version(), false), [3, 3, 0, 1, 4]),
        ("eu/a/1", said(both, false), [3, 3, 0, 1, 5]),
        ("eu/a/1", said(off, true), [0; 5]),
        // Our own locality is unknown.
        ("", said(failover(), false), [0; 5]),
        ("", said(version(), false), [1, 1, 0, 0, 1]),
    ] {
        let words = LocalitySettings::of(Some(&said));
        let ranking = EndpointRanking::new(standing(own, &labels), (Some(&said), false), &words);
        let found = all.map(|(locality, version)| {
            let rank = ranking.rank(&somewhere(locality, version));
            rank.expect("a place").priority
        });
        assert_eq!(found, expected, "{own} {said:?}");
    }
}

/// Weights and zones of the endpoints for a workload in `eu/a`. A `-` marks an unavailable endpoint.
fn settled(
    said: &PortTraffic,
    endpoints: &[&str],
    callers: &Callers,
) -> (Vec<u32>, Option<Box<Zones>>) {
    let (labels, words) = (Labels::NONE, LocalitySettings::of(Some(said)));
    let ranking = EndpointRanking::new(standing("eu/a/1", &labels), (Some(said), false), &words);
    let localities: Vec<_> = endpoints
        .iter()
        .map(|place| place.trim_start_matches('-').into())
        .collect();
    let plan = |place: &&str| EndpointPlan {
        name: None,
        address: "10.0.0.1:80".parse().expect("an address"),
        expected: None,
        weight: 1,
        available: !place.starts_with('-'),
        origination: None,
        rank: ranking
            .rank(&somewhere(place.trim_start_matches('-'), "v1"))
            .expect("a rank"),
        peer: Default::default(),
    };
    let mut endpoints: Vec<_> = endpoints.iter().map(plan).collect();
    let zones = ranking.settle(&mut endpoints, &localities, || callers);
    let part = |rank: EndpointRank| match rank.locality_weight {
        0 => 9,
        _ => rank.locality,
    };
    (endpoints.iter().map(|one| part(one.rank)).collect(), zones)
}

#[test]
fn zones_are_told_apart_where_that_makes_a_difference() {
    let callers = Callers::from([("a", 3), ("b", 1), ("d", 2)]);
    let zones = |callers: &[u32], elsewhere, least| {
        Some(Box::new(Zones {
            priority: 0,
            callers: callers.into(),
            elsewhere,
            least,
        }))
    };
    let both = ["eu/a/1", "eu/b/1", "eu/a/2", "us/a/1"];
    let sharing = |least| said(by_zone(least), false);
    type Row<'r> = (PortTraffic, &'r [&'r str], Vec<u32>, Option<Box<Zones>>);
    let table: [Row<'_>; 6] = [
        (sharing(3), &both, vec![0, 1, 0, 9], zones(&[3, 1], 2, 3)),
        // Our own zone is the first, even without endpoints.
        (
            sharing(1),
            &["eu/d", "eu/b", "eu/c"],
            vec![3, 1, 2],
            zones(&[3, 1, 0, 2], 0, 1),
        ),
        (sharing(4), &both, vec![9; 4], None),
        (hashing(by_zone(1)), &both, vec![9; 4], None),
        (sharing(2), &["eu/a", "-eu/b", "eu/a"], vec![9; 3], None),
        (
            sharing(2),
            &["-eu/a", "-eu/b", "us/a", "us/b"],
            vec![9; 4],
            None,
        ),
    ];
    for (said, endpoints, parts, expected) in table {
        let found = settled(&said, endpoints, &callers);
        assert_eq!(found, (parts, expected), "{endpoints:?} {said:?}");
    }
    for unknown in [
        Callers::default(),
        Callers::from([("b", 3)]),
        Callers::from([("a", 3)]),
    ] {
        let found = settled(&sharing(1), &both, &unknown);
        assert_eq!(found, (vec![9; 4], None), "{unknown:?}");
    }
}

/// A workload that stands behind services.
fn placed(registry: &mut Registry, uid: &str, services: &[&str], place: &str, kind: Kind) {
    let (region, zone) = place.split_once('/').expect("a region and a zone");
    let ports = workload::PortList {
        ports: vec![workload::Port {
            service_port: 80,
            target_port: 8080,
            app_protocol: 0,
        }],
    };
    let services = services.iter();
    let services = services.map(|name| (format!("{SHOP}/{name}.test"), ports.clone()));
    let last: u8 = uid.bytes().fold(1, u8::wrapping_add);
    let mut message = workload::Workload {
        uid: uid.to_owned(),
        name: uid.to_owned(),
        namespace: SHOP.to_owned(),
        workload_name: "client".to_owned(),
        canonical_name: "client".to_owned(),
        canonical_revision: "v1".to_owned(),
        addresses: vec![address_bytes([10, 1, 0, last].into())],
        services: services.collect(),
        locality: Some(workload::Locality {
            region: region.to_owned(),
            zone: zone.to_owned(),
            subzone: String::new(),
        }),
        ..workload::Workload::default()
    };
    kind(&mut message);
    let body = workload::Address {
        r#type: Some(workload::address::Type::Workload(message)),
    };
    put(registry, type_url::ADDRESS, uid, &body.encode_to_vec());
    registry.forget_callers(type_url::ADDRESS);
}

/// Change of a workload from the usual.
type Kind = fn(&mut workload::Workload);

/// Its Pods are of another template than others'.
fn of_template(message: &mut workload::Workload) {
    let label = proxy::Label {
        name: "pod-template-hash".to_owned(),
        value: "new".to_owned(),
    };
    let labels = proxy::WorkloadLabels {
        others: vec![label],
        ..proxy::WorkloadLabels::default()
    };
    message.extensions.push(workload::Extension {
        name: "voile.labels".to_owned(),
        config: Some(prost_types::Any {
            type_url: String::new(),
            value: labels.encode_to_vec(),
        }),
    });
}

/// A service `web` in two zones, called by us, a replica of `client`.
fn called() -> Registry {
    let mut registry = Registry::default();
    configure(&mut registry, proxy::OutboundPolicy::AllowAny);
    service(&mut registry, "web", "10.96.0.1", 80, false);
    service(&mut registry, "client", "10.96.0.2", 80, false);
    placed(&mut registry, "own", &["client", "later"], "eu/a", |_| {});
    for (uid, place) in [("w1", "eu/a"), ("w2", "eu/b"), ("w3", "us/a")] {
        placed(&mut registry, uid, &["web"], place, |_| {});
    }
    registry
}

fn zone_aware(least: u32) -> proxy::TrafficPolicy {
    proxy::TrafficPolicy {
        load_balancer: Some(proxy::LoadBalancer {
            locality: Some(proxy::LocalitySetting {
                always: true,
                zone_aware: least,
                ..proxy::LocalitySetting::default()
            }),
            ..proxy::LoadBalancer::default()
        }),
        ..proxy::TrafficPolicy::default()
    }
}

fn callers_of(plan: &ServicePlan) -> Option<Vec<u32>> {
    let zones = plan.traffic.balance.zones.as_ref();
    zones.map(|zones| zones.callers.to_vec())
}

#[test]
fn callers_are_asked_for_where_zones_share_and_only_there() {
    let mut registry = called();
    obey(&mut registry, proxy::TrafficPolicy::default());
    assert_eq!(registry.callers_wanted(), None);
    assert_eq!(registry.callers_shown(), None);
    obey(&mut registry, zone_aware(1));
    let wanted = format!("{SHOP}/client.test");
    assert_eq!(registry.callers_wanted().as_deref(), Some(&*wanted));
    // A part of the service is as good a reason.
    let part = proxy::ServicePolicy {
        subsets: vec![proxy::Subset {
            name: "v1".to_owned(),
            ports: vec![proxy::SubsetPort {
                port: 80,
                traffic: Some(zone_aware(1)),
                ..proxy::SubsetPort::default()
            }],
            ..proxy::Subset::default()
        }],
        ..proxy::ServicePolicy::default()
    };
    let name = format!("{SHOP}/web.test");
    let put_policy = |registry: &mut Registry, body: &proxy::ServicePolicy| {
        let body = body.encode_to_vec();
        put(registry, type_url::SERVICE_POLICY, &name, &body);
    };
    put_policy(&mut registry, &part);
    assert_eq!(registry.callers_wanted().as_deref(), Some(&*wanted));
    put_policy(&mut registry, &proxy::ServicePolicy::default());
    assert_eq!(registry.callers_wanted(), None);
    put_policy(&mut registry, &part);
    registry.remove_policy(&name.into());
    assert_eq!(registry.callers_wanted(), None);
}

#[test]
fn those_who_call_are_our_replicas_in_our_region_that_are_well() {
    let mut registry = called();
    obey(&mut registry, zone_aware(1));
    assert_eq!(callers_of(&web(&registry)), None, "we alone are known");
    let others: [(&str, &str, Kind); 8] = [
        ("c1", "eu/a", |_| {}),
        ("c2", "eu/b", |_| {}),
        ("far", "us/b", |_| {}),
        ("new", "eu/b", of_template),
        ("other", "eu/b", |one| {
            one.workload_name = "other".to_owned();
        }),
        ("sick", "eu/b", |one| {
            one.status = workload::WorkloadStatus::Unhealthy.into();
        }),
        ("job", "eu/b", |one| {
            one.workload_type = workload::WorkloadType::Job.into();
        }),
        ("elsewhere", "eu/b", |one| {
            "bank".clone_into(&mut one.namespace);
        }),
    ];
    for (uid, place, kind) in others {
        placed(&mut registry, uid, &["client"], place, kind);
    }
    assert_eq!(callers_of(&web(&registry)), Some(vec![2, 1]));
    let shown = registry.callers_shown().map(Callers::by_zone);
    let shown: Vec<_> = shown.into_iter().flatten().collect();
    assert_eq!(shown, [("a", 2), ("b", 1)]);
    // Workloads without an owner are alike by their canonical names.
    for (uid, place) in [("own", "eu/a"), ("c2", "eu/b"), ("far", "us/b")] {
        placed(&mut registry, uid, &["client"], place, |one| {
            one.workload_type = workload::WorkloadType::Pod.into();
            one.workload_name.clone_from(&one.uid);
        });
    }
    assert_eq!(callers_of(&web(&registry)), Some(vec![1, 1]));
    placed(&mut registry, "c2", &["client"], "eu/b", |one| {
        one.workload_type = workload::WorkloadType::Pod.into();
        "v2".clone_into(&mut one.canonical_revision);
    });
    assert_eq!(callers_of(&web(&registry)), None);
}

#[test]
fn who_comes_or_goes_changes_the_shares_of_what_is_zone_aware_and_nothing_else() {
    let mut registry = called();
    obey(&mut registry, zone_aware(1));
    placed(&mut registry, "c2", &["client"], "eu/b", |_| {});
    let first = web(&registry);
    assert_eq!(callers_of(&first), Some(vec![1, 1]));
    placed(&mut registry, "c3", &["client"], "eu/b", |_| {});
    let second = web(&registry);
    assert_eq!(callers_of(&second), Some(vec![1, 2]));
    assert_eq!(
        first.endpoints, second.endpoints,
        "each stands where it stood"
    );
    obey(&mut registry, proxy::TrafficPolicy::default());
    let plain = web(&registry);
    placed(&mut registry, "c4", &["client"], "eu/b", |_| {});
    assert_eq!(web(&registry), plain);
    // Without our service the callers are unknown.
    obey(&mut registry, zone_aware(1));
    assert_eq!(callers_of(&web(&registry)), Some(vec![1, 3]));
    registry.forget_service(&format!("{SHOP}/client.test").into());
    assert_eq!(callers_of(&web(&registry)), None);
}
