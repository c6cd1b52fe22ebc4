//! Subscriptions beside an Address: one round trip if the control plane knows the question, two if it does not.

use std::sync::Arc;

use voile_proto::discovery::{DeltaDiscoveryResponse, Node, Resource};
use voile_xds::client::Subscriptions;

use super::*;

const QUESTION: &str = "/10.96.0.1";
const WEB_NAME: &str = "shop/web.test";
const BOTH: [&str; 2] = [type_url::SERVICE_ROUTES, type_url::SERVICE_POLICY];

/// A proxy that has called the address of a service: its registry and subscriptions.
struct Caller {
    registry: Registry,
    subscriptions: Subscriptions,
    target: CapturedDestination,
}

impl Caller {
    fn new() -> Self {
        let mut caller = Self {
            registry: Registry::default(),
            subscriptions: Subscriptions::new(Node::default()),
            target: at("10.96.0.1:80".parse().expect("an address")),
        };
        configure(&mut caller.registry, proxy::OutboundPolicy::AllowAny);
        caller.subscriptions.open();
        let registry = &mut caller.registry;
        assert!(registry.begin_along(&caller.target, &QUESTION.into()));
        assert!(!registry.begin_along(&caller.target, &QUESTION.into()));
        for kind in [
            type_url::ADDRESS,
            type_url::SERVICE_ROUTES,
            type_url::SERVICE_POLICY,
        ] {
            caller.ask(kind, QUESTION);
        }
        caller
    }

    fn ask(&mut self, kind: &str, name: &str) {
        self.subscriptions.change(kind, [name.into()], []);
    }

    /// Applies a response of this version: the service's resource, if any, and the removed names.
    fn hear(&mut self, kind: &str, version: &str, body: Option<Vec<u8>>, removed: &[&str]) {
        let told = body.map(|value| Resource {
            name: WEB_NAME.to_owned(),
            aliases: vec![QUESTION.to_owned()],
            version: "1".to_owned(),
            resource: Some(prost_types::Any {
                type_url: kind.to_owned(),
                value,
            }),
            ..Resource::default()
        });
        let update = self.subscriptions.receive(DeltaDiscoveryResponse {
            type_url: kind.to_owned(),
            system_version_info: version.to_owned(),
            resources: told.into_iter().collect(),
            removed_resources: removed.iter().map(ToString::to_string).collect(),
            nonce: "1".to_owned(),
        });
        let rejections = self.registry.apply(&update);
        assert_eq!(rejections, []);
        self.subscriptions.finish(update, rejections);
    }

    /// Receives the service and its policy, in this version.
    fn hear_who(&mut self, version: &str) {
        let service = service_body("web", "10.96.0.1", 80, false);
        self.hear(type_url::ADDRESS, version, Some(service), &[]);
        let policy = proxy::ServicePolicy::default().encode_to_vec();
        self.hear(type_url::SERVICE_POLICY, version, Some(policy), &[]);
    }

    fn is_known(&self) -> bool {
        self.registry.destination(&self.target).is_some()
    }

    /// The types of which the question is over.
    fn over(&mut self) -> Vec<&'static str> {
        let targets = [(&self.target, Arc::from(QUESTION))];
        let over = self.registry.told_along(targets.into_iter());
        let over = over
            .into_iter()
            .inspect(|(_, name)| assert_eq!(**name, *QUESTION));
        over.map(|(kind, _)| kind).collect()
    }
}

#[test]
fn that_nothing_is_routed_is_known_with_who_is_called_and_asked_by_name_from_then_on() {
    let mut caller = Caller::new();
    caller.hear_who("one");
    assert!(!caller.is_known(), "its routes are to be known");
    caller.hear(type_url::SERVICE_ROUTES, "one", None, &[QUESTION, WEB_NAME]);
    assert!(caller.is_known());
    assert_eq!(caller.over(), [type_url::SERVICE_POLICY]);
    assert_eq!(caller.over(), [""; 0], "until its own name is answered");
    caller.ask(type_url::SERVICE_ROUTES, WEB_NAME);
    assert!(caller.is_known());
    caller.hear(type_url::SERVICE_ROUTES, "two", None, &[WEB_NAME]);
    assert_eq!(caller.over(), [type_url::SERVICE_ROUTES]);
    assert_eq!(caller.over(), [""; 0]);
    assert!(caller.is_known());
    // No trace of the question itself remains.
    let left = &caller.registry.absent;
    let kept = (type_url::SERVICE_ROUTES, WEB_NAME.into());
    assert_eq!(left.iter().collect::<Vec<_>>(), [&kept]);
}

#[test]
fn routes_come_before_who_is_routed_as_well_as_after() {
    let mut caller = Caller::new();
    caller.hear(type_url::SERVICE_ROUTES, "one", None, &[QUESTION, WEB_NAME]);
    assert!(!caller.is_known());
    caller.hear_who("one");
    assert!(caller.is_known());
    let mut caller = Caller::new();
    let routes = proxy::Routes::default().encode_to_vec();
    caller.hear(type_url::SERVICE_ROUTES, "one", Some(routes), &[]);
    caller.hear_who("one");
    assert!(caller.is_known());
    assert_eq!(caller.over(), BOTH, "all came");
}

#[test]
fn what_was_not_said_of_the_service_at_that_moment_is_waited_for_by_name() {
    let cases: &[(&str, &str, &[&str])] = &[
        // A control plane that does not know such questions says the same of each.
        ("one", "one", &[QUESTION]),
        // A subscription that ended removes its resource.
        ("one", "one", &[WEB_NAME]),
        // The address belonged to another service at that version.
        ("one", "two", &[QUESTION, WEB_NAME]),
        ("one", "one", &[QUESTION, "shop/other.test"]),
        // Without a version the answers may be of different moments.
        ("", "", &[QUESTION, WEB_NAME]),
    ];
    for (who, routes, removed) in cases {
        let mut caller = Caller::new();
        caller.hear_who(who);
        caller.hear(type_url::SERVICE_ROUTES, routes, None, removed);
        assert!(!caller.is_known(), "{who} {routes} {removed:?}");
        assert_eq!(caller.over(), [type_url::SERVICE_POLICY]);
        caller.ask(type_url::SERVICE_ROUTES, WEB_NAME);
        assert!(!caller.is_known());
        caller.hear(type_url::SERVICE_ROUTES, "three", None, &[WEB_NAME]);
        assert!(caller.is_known(), "{who} {routes} {removed:?}");
    }
}

#[test]
fn what_was_said_along_counts_no_more_when_its_name_is_let_go() {
    let mut caller = Caller::new();
    caller.hear_who("one");
    caller.hear(type_url::SERVICE_ROUTES, "one", None, &[QUESTION, WEB_NAME]);
    assert!(caller.is_known());
    caller.registry.forget_routes(&WEB_NAME.into());
    assert!(!caller.is_known());
    // No target uses the address any more.
    assert_eq!(caller.registry.told_along(std::iter::empty()).len(), 2);
}

#[test]
fn an_address_of_nobody_is_known_as_soon_as_that_is_said() {
    let mut caller = Caller::new();
    caller.hear(type_url::ADDRESS, "one", None, &[QUESTION]);
    assert!(caller.is_known());
    assert_eq!(caller.over(), BOTH);
    // The rest of the answer may come later.
    caller.hear(type_url::SERVICE_ROUTES, "one", None, &[QUESTION]);
    let left = &caller.registry.absent;
    assert_eq!(left.len(), 1, "{left:?}");
}
