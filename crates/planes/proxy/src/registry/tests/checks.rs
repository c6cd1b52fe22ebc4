//! HealthChecks in plans: the check of a destination, and health records that survive edits.

use std::sync::Arc;

use prost::Message;
use voile_model::Port;
use voile_proto::{proxy, type_url};
use voile_traffic::EndpointHealth;
use voile_xds::wire::{OutboundService, Subset, SubsetPort, parse_service_key};

use super::{SHOP, at, mesh, put};
use crate::health::{Checks, Watch};
use crate::plan::{ServicePlan, SharedPart};
use crate::registry::Registry;

/// A HealthCheck of the service's host; `path` is asked.
fn check(name: &str, path: &str) -> proxy::HealthCheck {
    proxy::HealthCheck {
        name: name.to_owned(),
        host: "web.test".to_owned(),
        http: Some(proxy::HttpCheck {
            path: path.to_owned(),
            host: String::new(),
            expected: vec![proxy::StatusRange {
                start: 200,
                end: 201,
            }],
        }),
        interval_ms: 1_000,
        timeout_ms: 1_000,
        healthy_threshold: 1,
        unhealthy_threshold: 1,
        ..proxy::HealthCheck::default()
    }
}

fn ask(registry: &mut Registry, checks: Vec<proxy::HealthCheck>) {
    let configuration = proxy::ProxyConfiguration {
        workload_uid: "own".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        outbound_policy: proxy::OutboundPolicy::AllowAny.into(),
        health_checks: checks,
        ..proxy::ProxyConfiguration::default()
    };
    let body = configuration.encode_to_vec();
    put(registry, type_url::PROXY_CONFIGURATION, "shop/own", &body);
}

fn web(registry: &Registry) -> ServicePlan {
    let plan = registry.destination(&at("10.96.0.1:80".parse().expect("an address")));
    plan.expect("a plan").services.remove(0)
}

fn watch(plan: &ServicePlan) -> Arc<Watch> {
    let SharedPart(watch) = plan.traffic.watch.as_ref().expect("a watch");
    Arc::clone(watch)
}

fn checks(watch: &Watch) -> &Checks {
    watch.checks.as_ref().expect("checks")
}

/// Health of the endpoint at this address.
fn stands(plan: &ServicePlan, address: &str) -> EndpointHealth {
    let mut all = plan.endpoints.iter();
    let place = all.position(|one| one.address.to_string() == address);
    let place = place.expect("it is there");
    checks(&watch(plan)).records[place].standing()
}

fn hears(plan: &ServicePlan, address: &str, good: bool) {
    let mut all = plan.endpoints.iter();
    let place = all.position(|one| one.address.to_string() == address);
    let answer = if good { Ok(()) } else { Err("no".into()) };
    checks(&watch(plan)).heard(place.expect("it is there"), &answer);
}

#[test]
fn the_first_that_is_for_the_host_the_port_and_the_namespace_holds() {
    let host = |host: &str, check: proxy::HealthCheck| proxy::HealthCheck {
        host: host.to_owned(),
        ..check
    };
    let port = |port: u32, check: proxy::HealthCheck| proxy::HealthCheck { port, ..check };
    let of = |namespace: &str, check: proxy::HealthCheck| proxy::HealthCheck {
        namespace: namespace.to_owned(),
        ..check
    };
    let (a, b) = (|| check("a", "/"), || check("b", "/"));
    for (said, holds) in [
        (vec![], None),
        (vec![a(), b()], Some("a")),
        (vec![host("left.test", a()), b()], Some("b")),
        (vec![port(81, a()), b()], Some("b")),
        (vec![port(80, a()), b()], Some("a")),
        (vec![of("bank", a()), b()], Some("b")),
        (vec![of(SHOP, a()), b()], Some("a")),
        (vec![of("bank", a())], None),
    ] {
        let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
        ask(&mut registry, said.clone());
        let plan = web(&registry);
        let held = plan.traffic.watch.as_ref();
        let name = held.map(|SharedPart(watch)| &*checks(watch).said.name);
        assert_eq!(name, holds, "{said:?}");
    }
}

#[test]
fn what_is_known_is_carried_on_until_something_else_is_asked() {
    let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
    ask(&mut registry, vec![check("a", "/")]);
    let first = web(&registry);
    assert_eq!(web(&registry).traffic, first.traffic, "asked again");
    hears(&first, "10.0.0.2:8080", false);
    let now = crate::clock::now();
    let takes_none = |plan: &ServicePlan| {
        let watch = watch(plan);
        let all = (0..).zip(&plan.endpoints);
        let out = all.filter(|(place, _)| watch.is_out(*place, now));
        out.map(|(_, one)| one.address.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(takes_none(&first), ["10.0.0.2:8080"]);
    // Endpoints go: others stay what they are, in other places.
    registry.remove_workload(&"one".into());
    let second = web(&registry);
    assert!(second.endpoints.len() < first.endpoints.len());
    assert_eq!(takes_none(&second), ["10.0.0.2:8080"]);
    drop(first);
    // It is asked more often.
    let often = proxy::HealthCheck {
        interval_ms: 500,
        timeout_ms: 500,
        panic_percent: 30,
        ..check("a", "/")
    };
    ask(&mut registry, vec![often]);
    let third = web(&registry);
    assert_ne!(third.traffic.watch, second.traffic.watch);
    assert_eq!(third.traffic.balance.spread.panic_percent, 30);
    assert_eq!(takes_none(&third), ["10.0.0.2:8080"]);
    // It is asked something else.
    ask(&mut registry, vec![check("a", "/other")]);
    let fourth = web(&registry);
    assert_eq!(stands(&fourth, "10.0.0.2:8080"), EndpointHealth::Unasked);
    assert_eq!(takes_none(&fourth), [""; 0]);
    let shown = registry.health.asked();
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0].cluster, "outbound|80||web.test");
    assert_eq!(shown[0].endpoints.len(), fourth.endpoints.len());
    assert_eq!((shown[0].good, shown[0].bad), (0, 1));
    drop((second, third, fourth));
    assert!(registry.health.asked().is_empty(), "nobody calls there");
}

#[test]
fn a_part_of_a_service_is_not_asked_for_itself() {
    let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
    ask(&mut registry, vec![check("a", "/")]);
    let whole = web(&registry);
    let wanted = OutboundService {
        key: parse_service_key(&format!("{SHOP}/web.test")).expect("a service"),
        port: Port::new(80).expect("a port"),
        authorities: Vec::new(),
    };
    let port = SubsetPort {
        port: wanted.port,
        http2_upgrade: false,
        client_protocol: false,
        traffic: Default::default(),
    };
    let subset = Subset {
        name: "v1".into(),
        labels: Default::default(),
        ports: [(wanted.port, port)].into(),
    };
    let part = registry.part(&wanted, &"v1".into(), &subset);
    assert_ne!(part.traffic.watch, whole.traffic.watch);
    hears(&whole, "10.0.0.1:8080", false);
    assert_eq!(stands(&part, "10.0.0.1:8080"), EndpointHealth::Unwell);
    // Both terms change, one after the other, and no record is lost in between.
    let slower = proxy::HealthCheck {
        interval_ms: 9_000,
        ..check("a", "/")
    };
    ask(&mut registry, vec![slower]);
    let again = registry.part(&wanted, &"v1".into(), &subset);
    assert_eq!(stands(&again, "10.0.0.1:8080"), EndpointHealth::Unwell);
    assert_eq!(
        stands(&web(&registry), "10.0.0.1:8080"),
        EndpointHealth::Unwell
    );
    let changes = watch(&again).changes();
    hears(&web(&registry), "10.0.0.1:8080", true);
    assert_ne!(
        watch(&again).changes(),
        changes,
        "its shares are reckoned anew"
    );
}
