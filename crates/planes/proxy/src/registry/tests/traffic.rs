//! Traffic settings of DestinationRules: locality, and the state that workers share as long as a plan uses
//! it.

use std::time::Duration;

use prost::Message;
use voile_model::Labels;
use voile_model::mesh::TrafficDistribution::{SameNode, SameZone};
use voile_model::mesh::network::NETWORK;
use voile_model::mesh::traffic::{
    Distribute, LoadBalancer, LocalitySetting, OutlierDetection, PortTraffic,
};
use voile_proto::{proxy, type_url, workload};
use voile_traffic::{RetryBudget, UpstreamOutcome};
use voile_xds::wire::{RemoteWorkload, WireWorkload};

use super::{SHOP, at, mesh, put};
use crate::plan::{EndpointPlan, EndpointRank, ServicePlan, SharedPart};
use crate::registry::Registry;
use crate::registry::locality::{EndpointRanking, LocalitySettings, OwnLocality};
use crate::registry::zones::Callers;

pub(super) fn somewhere(locality: &str, version: &str) -> WireWorkload {
    let mut parts = locality.split('/').map(str::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    let message = workload::Workload {
        uid: locality.to_owned(),
        namespace: SHOP.to_owned(),
        canonical_name: "web".to_owned(),
        canonical_revision: version.to_owned(),
        locality: Some(workload::Locality {
            region: next(),
            zone: next(),
            subzone: next(),
        }),
        ..workload::Workload::default()
    };
    WireWorkload::check(&message).expect("a workload")
}

pub(super) fn standing<'a>(locality: &'a str, labels: &'a Labels) -> OwnLocality<'a> {
    OwnLocality {
        locality,
        node: "",
        labels,
    }
}

pub(super) fn said(locality: impl Into<Option<LocalitySetting>>, ejects: bool) -> PortTraffic {
    PortTraffic {
        balancer: LoadBalancer {
            locality: locality.into(),
            ..LoadBalancer::default()
        },
        outliers: ejects.then(OutlierDetection::default),
        ..PortTraffic::default()
    }
}

#[test]
fn the_nearest_come_first_where_endpoints_are_asked_whether_they_are_well() {
    let (said, labels) = (said(None, false), Labels::NONE);
    let words = LocalitySettings::of(Some(&said));
    for (asked, expected) in [(false, [0, 0, 0]), (true, [0, 1, 3])] {
        let ranking =
            EndpointRanking::new(standing("eu/a/1", &labels), (Some(&said), asked), &words);
        let rank = |locality| ranking.rank(&somewhere(locality, "v1")).expect("a rank");
        let ranks = ["eu/a/1", "eu/a/2", "us/a/1"].map(|locality| rank(locality).priority);
        assert_eq!(ranks, expected, "{asked}");
    }
}

#[test]
fn the_nearest_come_first_where_somebody_is_put_out() {
    let own = "eu/a/1";
    let labels: Labels = [("version", "v2"), ("team", "x")].into_iter().collect();
    let all = [
        ("eu/a/1", "v1"),
        ("eu/a/2", "v1"),
        ("eu/b/1", "v2"),
        ("us/a/1", "v2"),
        ("asia", "v1"),
    ];
    let usual = LocalitySetting::default;
    let failover = || LocalitySetting {
        failover: vec![("eu".into(), "us".into())],
        ..usual()
    };
    let priority = |labels: &[&str]| LocalitySetting {
        priority: labels.iter().map(|label| (*label).into()).collect(),
        ..usual()
    };
    let off = LocalitySetting {
        enabled: false,
        ..failover()
    };
    for (own, said, expected) in [
        (own, said(usual(), true), [0, 1, 2, 3, 3]),
        (own, said(None, true), [0, 1, 2, 3, 3]),
        (own, said(None, false), [0; 5]),
        (own, said(usual(), false), [0; 5]),
        (own, said(failover(), true), [0, 1, 2, 3, 4]),
        (own, said(off, true), [0; 5]),
        ("", said(failover(), true), [0; 5]),
        (own, said(priority(&["version"]), true), [1, 1, 0, 0, 1]),
        ("", said(priority(&["version"]), true), [1, 1, 0, 0, 1]),
        (
            own,
            said(
                priority(&["topology.kubernetes.io/region", "version=v1"]),
                true,
            ),
            [0, 0, 1, 2, 2],
        ),
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

#[test]
fn a_service_that_prefers_who_is_near_does_so_though_nobody_is_put_out() {
    let workload = |place: &str, node: &str, network: &str| {
        let mut workload = somewhere("anywhere", "v1");
        workload.locality = place.into();
        workload.node = node.into();
        workload.away = (!network.is_empty()).then(|| {
            Box::new(RemoteWorkload {
                network: network.into(),
                gateway: None,
                keepers: Vec::new(),
            })
        });
        workload
    };
    let all = [
        workload("eu/a/1", "n1", ""),
        workload("eu/a/1", "n2", ""),
        workload("eu/a/2", "n1", ""),
        workload("eu/b/1", "n3", ""),
        workload("us/a/1", "n4", ""),
        workload("eu/a/1", "n1", "east"),
        workload("", "n1", ""),
    ];
    // Our own network's name is on our label only, and makes no endpoint far.
    let labels: Labels = [(NETWORK, "west")].into_iter().collect();
    let own = OwnLocality {
        locality: "eu/a/1",
        node: "n1",
        labels: &labels,
    };
    let here = |locality, node| OwnLocality {
        locality,
        node,
        ..own
    };
    for (own, distribution, expected) in [
        (own, SameZone, [0, 0, 0, 1, 2, 3, 2]),
        (own, SameNode, [0, 1, 2, 3, 4, 5, 4]),
        (here("eu/a/1", ""), SameNode, [1, 1, 2, 3, 4, 5, 4]),
        (here("", "n1"), SameNode, [4, 4, 4, 4, 4, 5, 0]),
        (here("", ""), SameZone, [0; 7]),
    ] {
        let said = said(distribution.setting(), false);
        let words = LocalitySettings::of(Some(&said));
        let ranking = EndpointRanking::new(own, (Some(&said), false), &words);
        let rank = |workload| ranking.rank(workload).expect("a place").priority;
        let found = all.each_ref().map(rank);
        assert_eq!(found, expected, "{} {distribution:?}", own.locality);
    }
}

#[test]
fn localities_divide_their_share_by_what_their_endpoints_weigh() {
    let setting = LocalitySetting {
        distribute: vec![
            Distribute {
                from: "us/*".into(),
                to: vec![("us".into(), 100)],
            },
            Distribute {
                from: "eu/a/*".into(),
                to: vec![
                    ("eu/a/*".into(), 60),
                    ("eu".into(), 30),
                    ("asia".into(), 10),
                ],
            },
        ],
        ..LocalitySetting::default()
    };
    let (said, labels) = (said(setting, false), Labels::NONE);
    let words = LocalitySettings::of(Some(&said));
    let ranking = EndpointRanking::new(standing("eu/a/1", &labels), (Some(&said), false), &words);
    let plan = EndpointPlan {
        name: None,
        address: "10.0.0.1:80".parse().expect("an address"),
        expected: None,
        weight: 1,
        available: true,
        origination: None,
        rank: EndpointRank::default(),
        peer: Default::default(),
    };
    let (mut endpoints, mut localities) = (Vec::new(), Vec::new());
    for (locality, weight) in [
        ("eu/a/1", 1),
        ("eu/a/2", 2),
        ("eu/b/1", 5),
        ("us/a", 1),
        ("asia", 7),
    ] {
        let Some(rank) = ranking.rank(&somewhere(locality, "v1")) else {
            assert_eq!(locality, "us/a", "it has no share");
            continue;
        };
        let plan = EndpointPlan {
            rank,
            weight,
            ..plan.clone()
        };
        endpoints.push(plan);
        localities.push(locality.into());
    }
    let nobody = Callers::default();
    let zones = ranking.settle(&mut endpoints, &localities, || &nobody);
    assert_eq!(zones, None);
    let weights: Vec<u32> = endpoints
        .iter()
        .map(|one| one.rank.locality_weight)
        .collect();
    assert_eq!(weights, [2_000, 4_000, 3_000, 1_000]);
    let mut numbers: Vec<u32> = endpoints.iter().map(|one| one.rank.locality).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 4, "each is a part of its own");
}

pub(super) fn obey(registry: &mut Registry, policy: proxy::TrafficPolicy) {
    let body = proxy::ServicePolicy {
        ports: vec![proxy::PortPolicy {
            port: 80,
            protocol: proxy::Protocol::Http.into(),
            traffic: Some(policy),
            ..proxy::PortPolicy::default()
        }],
        ..proxy::ServicePolicy::default()
    };
    let name = format!("{SHOP}/web.test");
    put(
        registry,
        type_url::SERVICE_POLICY,
        &name,
        &body.encode_to_vec(),
    );
}

pub(super) fn web(registry: &Registry) -> ServicePlan {
    let plan = registry.destination(&at("10.96.0.1:80".parse().expect("an address")));
    plan.expect("a plan").services.remove(0)
}

#[test]
fn what_workers_share_is_one_thing_and_carries_on_when_endpoints_go() {
    let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
    let policy = |max_requests, percent| proxy::TrafficPolicy {
        outlier_detection: Some(proxy::OutlierDetection {
            consecutive_5xx: 1,
            interval_ms: 1_000,
            base_ejection_ms: 60_000,
            max_ejection_percent: percent,
            ..proxy::OutlierDetection::default()
        }),
        connection_pool: Some(proxy::ConnectionPool {
            max_requests,
            ..proxy::ConnectionPool::default()
        }),
        ..proxy::TrafficPolicy::default()
    };
    obey(&mut registry, policy(5, 100));
    let first = web(&registry);
    assert_eq!(web(&registry).traffic, first.traffic, "asked again");
    let watch = |plan: &ServicePlan| plan.traffic.watch.clone().expect("a watch");
    let SharedPart(before) = watch(&first);
    let now = Duration::from_secs(5);
    let last = (first.endpoints.len() - 1) as u32;
    let put_out = before.report(last, UpstreamOutcome::Answered(500), now);
    assert_eq!(put_out[0].place, last as usize);
    let sick = first.endpoints[last as usize].address;
    registry.remove_workload(&"one".into());
    let second = web(&registry);
    assert!(second.endpoints.len() < first.endpoints.len());
    let SharedPart(after) = watch(&second);
    let place = second.endpoints.iter().position(|one| one.address == sick);
    assert!(after.is_out(place.expect("it is there") as u32, now));
    assert_eq!(after.out(now), Some(1));
    assert_eq!(
        second.traffic.breaker, first.traffic.breaker,
        "what is under way still counts"
    );
    assert_eq!(
        registry.health.out(now),
        [("outbound|80||web.test".to_owned(), 1)]
    );
    // A changed limit makes another breaker.
    obey(&mut registry, policy(6, 100));
    let third = web(&registry);
    assert_ne!(third.traffic.breaker, first.traffic.breaker);
    assert_eq!(third.traffic.watch, second.traffic.watch);
    drop((first, second, third, before, after));
    assert_eq!(registry.health.out(now), [], "nobody calls there any more");
    assert_eq!(watch(&web(&registry)).0.out(now), Some(0));
}

#[test]
fn a_retry_budget_keeps_fractions_of_a_percent() {
    let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
    for percent_thousandths in [500, 12_500] {
        let budget = proxy::RetryBudget {
            percent_thousandths,
            min: 1,
        };
        let policy = proxy::TrafficPolicy {
            retry_budget: Some(budget),
            ..proxy::TrafficPolicy::default()
        };
        obey(&mut registry, policy);
        let expected = RetryBudget {
            percent_thousandths,
            min: 1,
        };
        assert_eq!(web(&registry).retry_budget, expected);
    }
}

#[test]
fn a_connection_that_is_one_clients_alone_is_not_kept_for_long() {
    let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
    let idle = |registry: &mut Registry, version, http_idle_ms| {
        let policy = proxy::TrafficPolicy {
            proxy_protocol: version,
            connection_pool: Some(proxy::ConnectionPool {
                http_idle_ms,
                ..proxy::ConnectionPool::default()
            }),
            ..proxy::TrafficPolicy::default()
        };
        obey(registry, policy);
        let traffic = web(registry).traffic;
        assert_eq!(traffic.introduces.is_some(), version > 0);
        traffic.upstream.idle()
    };
    let seconds = |count| Some(Duration::from_secs(count));
    for (version, said, expected) in [
        (0, 0, None),
        (0, 60_000, seconds(60)),
        (1, 0, seconds(5)),
        (2, 60_000, seconds(5)),
        (2, 2_000, seconds(2)),
    ] {
        let found = idle(&mut registry, version, said);
        assert_eq!(found, expected, "{version} {said}");
    }
}
