//! Routes come into force as a closed set: table of arriving resources, in order, and the destinations
//! afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use voile_proto::{proxy, type_url, workload};

use voile_model::{Labels, Port};

use super::{SHOP, at, mesh, own_policy, put, service};
use crate::registry::Registry;
use crate::registry::routes::HeldRoutes;
use crate::worker::tests::cost::footprint::{held, take_most};

/// Captured, and a service that `mesh` has.
const WEB: &str = "10.96.0.1:80";

fn routes(registry: &mut Registry, to: &[(&str, &str, u32)]) {
    let destination = |(service, subset, weight): &(&str, &str, u32)| proxy::RouteDestination {
        service: match *service {
            "" => String::new(),
            name => format!("{SHOP}/{name}.test"),
        },
        subset: (*subset).to_owned(),
        weight: *weight,
        missing: if service.is_empty() {
            "it".to_owned()
        } else {
            String::new()
        },
        ..proxy::RouteDestination::default()
    };
    let body = proxy::Routes {
        connections: Vec::new(),
        routes: vec![proxy::Route {
            destinations: to.iter().map(destination).collect(),
            ..proxy::Route::default()
        }],
    };
    put_routes(registry, &body.encode_to_vec()).expect("routes");
}

/// As a response brings them.
fn put_routes(registry: &mut Registry, body: &[u8]) -> Result<(), String> {
    let name: Arc<str> = format!("{SHOP}/web.test").into();
    let kind = type_url::SERVICE_ROUTES;
    let added = registry.add(kind, &name, &"1".into(), body);
    registry.absent.remove(&(kind, name));
    added
}

fn subsets(registry: &mut Registry, service: &str, of: &[(&str, &str)]) {
    put_policy(registry, service, &parts(of));
}

fn put_policy(registry: &mut Registry, service: &str, policy: &proxy::ServicePolicy) {
    let name = format!("{SHOP}/{service}.test");
    let body = policy.encode_to_vec();
    put(registry, type_url::SERVICE_POLICY, &name, &body);
}

/// A policy with these parts: (name, version).
fn parts(of: &[(&str, &str)]) -> proxy::ServicePolicy {
    let subset = |(name, version): &(&str, &str)| proxy::Subset {
        name: (*name).to_owned(),
        labels: vec![proxy::Label {
            name: "version".to_owned(),
            value: (*version).to_owned(),
        }],
        ports: Vec::new(),
    };
    proxy::ServicePolicy {
        ports: vec![proxy::PortPolicy {
            port: 80,
            protocol: proxy::Protocol::Http.into(),
            ..proxy::PortPolicy::default()
        }],
        subsets: of.iter().map(subset).collect(),
        ..proxy::ServicePolicy::default()
    }
}

fn pod(registry: &mut Registry, uid: &str, address: &str, version: &str) {
    let port = workload::Port {
        service_port: 80,
        target_port: 8080,
        app_protocol: 0,
    };
    let ports = workload::PortList { ports: vec![port] };
    let body = workload::Address {
        r#type: Some(workload::address::Type::Workload(workload::Workload {
            uid: uid.to_owned(),
            namespace: SHOP.to_owned(),
            canonical_name: "web".to_owned(),
            canonical_revision: version.to_owned(),
            addresses: vec![super::address_bytes(address.parse().expect("an address"))],
            services: [(format!("{SHOP}/web.test"), ports)].into(),
            ..workload::Workload::default()
        })),
    };
    put(registry, type_url::ADDRESS, uid, &body.encode_to_vec());
    own_policy(registry, uid, false, false);
}

/// Destinations of the routes: each target's endpoints, or the missing one; `wait` while there is no answer.
fn led(registry: &Registry) -> String {
    let Some(plan) = registry.destination(&at(WEB.parse().expect("an address"))) else {
        return "wait".to_owned();
    };
    let Some(routes) = &plan.services[0].routes else {
        return "itself".to_owned();
    };
    let target = |target: &Result<crate::plan::ServicePlan, Arc<str>>| match target {
        Err(missing) => format!("!{missing}"),
        Ok(plan) => {
            let endpoints = plan.endpoints.iter();
            let all: Vec<_> = endpoints.map(|one| one.address.ip().to_string()).collect();
            all.join("+")
        }
    };
    let all: Vec<String> = routes.targets.iter().map(target).collect();
    all.join(" ")
}

fn web() -> Registry {
    let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
    for uid in ["one", "two", "spared", "waypointed", "open"] {
        registry.remove_workload(&uid.into());
    }
    pod(&mut registry, "a", "10.1.0.1", "v1");
    pod(&mut registry, "b", "10.1.0.2", "v2");
    pod(&mut registry, "c", "10.1.0.3", "v2");
    registry
}

#[test]
fn routes_wait_for_every_service_and_subset_that_they_name() {
    let mut registry = web();
    assert_eq!(led(&registry), "itself");
    let name: Arc<str> = format!("{SHOP}/web.test").into();
    registry
        .absent
        .remove(&(type_url::SERVICE_ROUTES, name.clone()));
    assert_eq!(led(&registry), "wait", "nobody said whether there are any");
    routes(
        &mut registry,
        &[("web", "v1", 1), ("web", "v2", 1), ("other", "", 1)],
    );
    assert_eq!(led(&registry), "wait");
    subsets(&mut registry, "web", &[("v1", "v1")]);
    assert_eq!(led(&registry), "wait");
    subsets(&mut registry, "web", &[("v1", "v1"), ("v2", "v2")]);
    assert_eq!(led(&registry), "wait");
    let wanted = registry.led_to([&name]);
    assert_eq!(wanted.len(), 2, "{wanted:?}");
    service(&mut registry, "other", "10.96.0.9", 80, false);
    assert_eq!(led(&registry), "wait", "how it is spoken to is part of it");
    subsets(&mut registry, "other", &[]);
    assert_eq!(
        led(&registry),
        "10.1.0.1 10.1.0.2+10.1.0.3 10.0.0.5+10.0.0.5"
            .replace("10.0.0.5+10.0.0.5", &others(&registry))
    );
    // An endpoint comes: the same table leads to it.
    let compiled = |registry: &Registry| {
        let plan = registry.destination(&at(WEB.parse().expect("an address")));
        let routes = plan.expect("a plan").services[0].routes.clone();
        routes.expect("routes").compiled
    };
    let before = compiled(&registry);
    pod(&mut registry, "d", "10.1.0.4", "v1");
    assert!(
        led(&registry).starts_with("10.1.0.1+10.1.0.4 10.1.0.2"),
        "{}",
        led(&registry)
    );
    assert!(Arc::ptr_eq(&before, &compiled(&registry)));
    registry.remove(type_url::SERVICE_ROUTES, &name);
    registry.absent.insert((type_url::SERVICE_ROUTES, name));
    assert_eq!(led(&registry), "itself");
}

/// Workloads of `mesh` that are behind `other`.
fn others(registry: &Registry) -> String {
    let key = voile_xds::wire::parse_service_key("shop/other.test").expect("a key");
    let uids = registry.members.get(&key);
    let all = uids.filter_map(|uid| registry.workloads.get(uid));
    let all: Vec<_> = all
        .map(|held| held.value.addresses[0].to_string())
        .collect();
    all.join("+")
}

/// Our own workload has this label.
fn labelled(registry: &mut Registry, app: &str) {
    let configuration = proxy::ProxyConfiguration {
        workload_uid: "own".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        outbound_policy: proxy::OutboundPolicy::AllowAny.into(),
        labels: vec![label("app", app)],
        ..proxy::ProxyConfiguration::default()
    };
    let body = configuration.encode_to_vec();
    put(registry, type_url::PROXY_CONFIGURATION, "shop/own", &body);
}

fn label(name: &str, value: &str) -> proxy::Label {
    proxy::Label {
        name: name.to_owned(),
        value: value.to_owned(),
    }
}

#[test]
fn of_a_policy_that_tells_clients_apart_the_first_for_our_labels_is_obeyed() {
    let mut registry = web();
    labelled(&mut registry, "web");
    let of = |labels: Vec<proxy::Label>, all: &[(&str, &str)]| proxy::ClientPolicy {
        labels,
        policy: Some(parts(all)),
    };
    let told = proxy::ServicePolicy {
        for_clients: vec![
            of(
                vec![label("app", "job"), label("tier", "back")],
                &[("one", "v9")],
            ),
            of(vec![label("app", "job")], &[("one", "v1")]),
            of(Vec::new(), &[("one", "v2"), ("two", "v1")]),
        ],
        ..parts(&[("one", "v9")])
    };
    routes(&mut registry, &[("web", "one", 1)]);
    put_policy(&mut registry, "web", &told);
    assert_eq!(led(&registry), "10.1.0.2+10.1.0.3");
    labelled(&mut registry, "job");
    assert_eq!(led(&registry), "10.1.0.1", "other labels choose anew");
    // Subsets for other clients are not waited for.
    routes(&mut registry, &[("web", "two", 1)]);
    assert_eq!(led(&registry), "!shop/web.test has no subset two");
    labelled(&mut registry, "web");
    assert_eq!(led(&registry), "10.1.0.1");
    // Policies without client labels also end the earlier distinction.
    subsets(&mut registry, "web", &[("two", "v2")]);
    labelled(&mut registry, "job");
    assert_eq!(led(&registry), "10.1.0.2+10.1.0.3");
    // A removed policy does not come back with other labels.
    put_policy(&mut registry, "web", &told);
    let name: Arc<str> = format!("{SHOP}/web.test").into();
    registry.remove(type_url::SERVICE_POLICY, &name);
    labelled(&mut registry, "web");
    assert!(!registry.policies.contains_key(&name));
}

#[test]
fn routes_that_name_what_is_not_there_wait_for_it_where_others_serve_and_not_for_ever() {
    let now = Instant::now();
    let mut registry = web();
    subsets(&mut registry, "web", &[("v1", "v1"), ("v2", "v2")]);
    // Without earlier routes, requests go to the service itself.
    routes(&mut registry, &[("web", "v1", 1), ("", "", 1)]);
    let until = registry.look_at_held_back(now).expect("a time");
    assert_eq!(led(&registry), "itself");
    routes(&mut registry, &[("web", "v1", 1)]);
    assert_eq!(registry.look_at_held_back(now), None);
    assert_eq!(led(&registry), "10.1.0.1");
    // A subset is gone that those in force lead to: it stays for as long.
    routes(&mut registry, &[("", "", 1)]);
    subsets(&mut registry, "web", &[("v2", "v2")]);
    assert_eq!(registry.look_at_held_back(now), Some(until));
    assert_eq!(led(&registry), "10.1.0.1");
    // Another edit does not restart the time.
    routes(&mut registry, &[("", "", 2)]);
    let later = now + Duration::from_secs(1);
    assert_eq!(registry.look_at_held_back(later), Some(until));
    assert_eq!(registry.look_at_held_back(until), None);
    assert_eq!(led(&registry), "!it");
    // No service has all its destinations: new routes come into force at once.
    routes(&mut registry, &[("", "", 1), ("web", "v2", 1)]);
    assert_eq!(registry.look_at_held_back(until), None);
    assert_eq!(led(&registry), "!it 10.1.0.2+10.1.0.3");
}

#[test]
fn routes_that_cannot_be_read_leave_those_before_and_where_none_were_refuse() {
    let mut registry = web();
    subsets(&mut registry, "web", &[("v1", "v1")]);
    let expression = proxy::Routes {
        connections: Vec::new(),
        routes: vec![proxy::Route {
            matches: vec![proxy::RequestMatch {
                uri: Some(proxy::TextMatch {
                    text: Some(proxy::text_match::Text::Regex("(".to_owned())),
                }),
                ..proxy::RequestMatch::default()
            }],
            destinations: vec![proxy::RouteDestination {
                missing: "x".to_owned(),
                weight: 1,
                ..proxy::RouteDestination::default()
            }],
            ..proxy::Route::default()
        }],
    };
    let refused = put_routes(&mut registry, &expression.encode_to_vec());
    assert!(refused.expect_err("an expression").contains("routes[0]"));
    assert_eq!(led(&registry), "!the routes of the service are invalid");
    routes(&mut registry, &[("web", "v1", 1)]);
    assert!(put_routes(&mut registry, b"\xff").is_err());
    assert_eq!(led(&registry), "10.1.0.1");
}

#[test]
fn weights_converge() {
    let mut registry = web();
    subsets(&mut registry, "web", &[("v1", "v1"), ("v2", "v2")]);
    routes(
        &mut registry,
        &[("web", "v1", 90), ("web", "v2", 10), ("web", "v1", 0)],
    );
    let plan = registry.destination(&at(WEB.parse().expect("an address")));
    let routes = plan.expect("a plan").services[0]
        .routes
        .clone()
        .expect("routes");
    let (rule, mut counts) = (&routes.compiled.rules[0], [0u32; 2]);
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..100_000 {
        let (_, target) = rule.share(|| random.u64(..)).expect("a share");
        counts[target] += 1;
    }
    assert!((9_500..10_500).contains(&counts[1]), "{counts:?}");
    for extreme in [0, u64::MAX] {
        let (_, target) = rule.share(|| extreme).expect("a share");
        assert!(target < 2);
    }
}

fn to_web() -> proxy::RouteDestination {
    proxy::RouteDestination {
        service: format!("{SHOP}/web.test"),
        weight: 1,
        ..proxy::RouteDestination::default()
    }
}

/// Bytes that a proxy may hold for a route. Hosts with many routes have many alike: a prefix, a destination. Each worker holds
/// only a rule of its own.
const BYTES_A_ROUTE: i64 = 1_000;
/// Further bytes for a route during a read: the heap grows by that, and memory between used pieces hardly goes back.
const BYTES_A_ROUTE_WHILE_READ: i64 = 400;

#[test]
fn what_many_routes_hold_is_a_few_hundred_bytes_each_and_reading_them_takes_less_than_that() {
    let many: i64 = 10_000;
    let route = |number: i64| proxy::Route {
        matches: vec![proxy::RequestMatch {
            uri: Some(proxy::TextMatch {
                text: Some(proxy::text_match::Text::Prefix(format!(
                    "/service-{number:05}/items"
                ))),
            }),
            ..proxy::RequestMatch::default()
        }],
        destinations: vec![to_web()],
        ..proxy::Route::default()
    };
    let said = proxy::Routes {
        connections: Vec::new(),
        routes: (0..many).map(route).collect(),
    };
    let body = said.encode_to_vec();
    drop(said);
    let before = held();
    take_most();
    let routes = HeldRoutes::decode("1".into(), &body).expect("routes");
    let compiled = routes.compiled(Port::new(80).expect("a port"), &Labels::default());
    assert!(!compiled.remembers, "workers share the table");
    let each = (held() - before) / many;
    let moment = (take_most() - held()) / many;
    println!("{each} bytes a route, and {moment} for a moment");
    assert!(each <= BYTES_A_ROUTE, "{each} bytes a route");
    assert!(
        moment <= BYTES_A_ROUTE_WHILE_READ,
        "{moment} bytes a route, while they are read"
    );
}

/// Match of one field against a text.
fn asks(field: &str, text: proxy::text_match::Text) -> proxy::RequestMatch {
    let text = Some(proxy::TextMatch { text: Some(text) });
    let named = vec![proxy::NamedMatch {
        name: "x".to_owned(),
        text: text.clone(),
    }];
    let mut one = proxy::RequestMatch::default();
    match field {
        "uri" => one.uri = text,
        "scheme" => one.scheme = text,
        "method" => one.method = text,
        "authority" => one.authority = text,
        "headers" => one.headers = named,
        "without_headers" => one.without_headers = named,
        _ => one.query = named,
    }
    one
}

#[test]
fn workers_share_a_table_unless_it_has_an_expression_which_remembers_its_way() {
    use proxy::text_match::Text::{Prefix, Regex};
    let fields = ["uri", "scheme", "method", "authority"];
    let fields = fields
        .into_iter()
        .chain(["headers", "without_headers", "query"]);
    for field in fields {
        for (text, remembers) in [
            (Prefix("/a".to_owned()), false),
            (Regex("/a.*".to_owned()), true),
        ] {
            let plain = proxy::RequestMatch::default();
            let said = proxy::Routes {
                routes: vec![proxy::Route {
                    matches: vec![plain, asks(field, text)],
                    destinations: vec![to_web()],
                    ..proxy::Route::default()
                }],
                ..proxy::Routes::default()
            };
            let routes = HeldRoutes::decode("1".into(), &said.encode_to_vec()).expect("routes");
            let compiled = routes.compiled(Port::new(80).expect("a port"), &Labels::default());
            assert_eq!(compiled.remembers, remembers, "{field}");
        }
    }
}

#[test]
fn a_table_is_kept_over_a_new_version_of_the_same_words_alone() {
    let routes = |version: &str, prefix: &str| {
        let said = proxy::Routes {
            routes: vec![proxy::Route {
                matches: vec![proxy::RequestMatch {
                    uri: Some(proxy::TextMatch {
                        text: Some(proxy::text_match::Text::Prefix(prefix.to_owned())),
                    }),
                    ..proxy::RequestMatch::default()
                }],
                destinations: vec![to_web()],
                ..proxy::Route::default()
            }],
            ..proxy::Routes::default()
        };
        HeldRoutes::decode(version.into(), &said.encode_to_vec()).expect("routes")
    };
    let compiled = |held: &HeldRoutes| {
        let port = Port::new(80).expect("a port");
        held.compiled(port, &Labels::default())
    };
    let first = routes("1", "/a");
    let table = compiled(&first);
    for (prefix, kept) in [("/a", true), ("/b", false)] {
        let mut next = routes("2", prefix);
        next.follow(&first);
        assert_eq!(Arc::ptr_eq(&table, &compiled(&next)), kept, "{prefix}");
    }
}
