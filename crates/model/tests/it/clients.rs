//! Which DestinationRule which client obeys: by its namespace and its labels.

use voile_model::mesh::{Client, Mesh};
use voile_model::{Labels, Namespace, Port};

use crate::{check_text, good, render};

const SERVICE: &str = "
{apiVersion: v1, kind: Service, metadata: {name: a, namespace: shop}, spec: {ports: [{port: 80, name: http}]}}
";

/// A rule for the one service, or for `host`: (namespace/name, host, what else its spec says).
fn rule(name: &str, host: &str, more: &str) -> String {
    let (namespace, name) = name.split_once('/').expect("a namespace");
    format!(
        "---\n{{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {{name: {name}, namespace: {namespace}}}, \
         spec: {{host: '{host}', subsets: [{{name: {name}, labels: {{version: v1}}}}]{more}}}}}\n"
    )
}

const EXACT: &str = "a.shop.svc.cluster.local";
const WIDE: &str = "*.shop.svc.cluster.local";

/// The rule that a client obeys: `namespace`, or `namespace app=LABEL`, or `-` for one that nobody names.
fn obeyed(mesh: &Mesh, client: &str) -> String {
    let service = mesh.services.values().next().unwrap();
    let (namespace, label) = client.split_once(" app=").unwrap_or((client, ""));
    let namespace = Namespace::new(namespace);
    let labels = Labels::from_iter([("app", label), ("tier", "front")]);
    let client = Client {
        namespace: namespace.as_ref(),
        labels: Some(&labels).filter(|_| !label.is_empty()),
    };
    let rule = mesh.destination_rule(service, client);
    // What is said of the clients of a namespace, of which nobody knows the labels, fits what each obeys.
    for subset in rule.into_iter().flat_map(|rule| rule.subsets.keys()) {
        let within = Client::within(namespace.as_ref());
        assert!(mesh.has_subset(service, subset, within), "{subset}");
        let all = mesh.destination_rules_of(service);
        assert!(all.iter().any(|one| one.subsets.contains_key(subset)));
    }
    rule.map_or_else(|| "none".to_owned(), |rule| rule.name.to_string())
}

#[test]
fn a_client_obeys_the_rule_of_its_own_namespace_then_of_the_services_then_of_the_root() {
    let only = |namespaces: &str| format!(", exportTo: [{namespaces}]");
    let selecting = |app: &str| format!(", workloadSelector: {{matchLabels: {{app: {app}}}}}");
    let own = rule("bank/own", EXACT, "");
    let public = rule("shop/public", EXACT, "");
    let root = rule("istio-system/root", WIDE, "");
    let cases: &[(&str, &[&str], &[(&str, &str)])] = &[
        (
            "clients' own",
            &[&own, &public, &root],
            &[
                ("bank", "bank/own"),
                ("shop", "shop/public"),
                ("-", "shop/public"),
                ("istio-system", "shop/public"),
            ],
        ),
        (
            "nothing of the service's",
            &[&own, &root],
            &[
                ("bank", "bank/own"),
                ("shop", "istio-system/root"),
                ("-", "istio-system/root"),
            ],
        ),
        (
            "nobody else's",
            &[&own],
            &[("bank", "bank/own"), ("shop", "none"), ("-", "none")],
        ),
        (
            "kept from its own namespace",
            &[&rule("bank/own", EXACT, &only("far")), &public],
            &[("bank", "shop/public"), ("far", "shop/public")],
        ),
        (
            "exported to some",
            &[&rule("shop/some", EXACT, &only("bank, far")), &root],
            &[
                ("bank", "shop/some"),
                ("far", "shop/some"),
                ("shop", "istio-system/root"),
                ("-", "istio-system/root"),
            ],
        ),
        (
            "what is not exported hides nothing",
            &[
                &rule("shop/some", EXACT, &only("bank")),
                &rule("shop/wide", WIDE, ""),
            ],
            &[
                ("bank", "shop/some"),
                ("shop", "shop/wide"),
                ("-", "shop/wide"),
            ],
        ),
        (
            "some before all, whichever is older",
            &[&public, &rule("shop/some", EXACT, &only("bank"))],
            &[("bank", "shop/some"), ("shop", "shop/public")],
        ),
        (
            "only its own namespace",
            &[&rule("shop/own", EXACT, &only("'.'"))],
            &[("shop", "shop/own"), ("bank", "none"), ("-", "none")],
        ),
        (
            "nobody",
            &[&rule("shop/none", EXACT, &only("'~'"))],
            &[("shop", "none"), ("bank", "none"), ("-", "none")],
        ),
        (
            "everybody",
            &[&rule("shop/all", EXACT, &only("'*'"))],
            &[("shop", "shop/all"), ("-", "shop/all")],
        ),
        (
            "the root's own clients",
            &[
                &rule("istio-system/own", WIDE, &only("'.'")),
                &public,
                &root,
            ],
            &[
                ("istio-system", "istio-system/own"),
                ("shop", "shop/public"),
                ("bank", "shop/public"),
            ],
        ),
        (
            "selected",
            &[
                &public,
                &rule("shop/web", EXACT, &selecting("web")),
                &rule("shop/job", EXACT, &selecting("job")),
            ],
            &[
                ("shop app=web", "shop/web"),
                ("shop app=job", "shop/job"),
                ("shop app=other", "shop/public"),
                ("shop", "shop/public"),
                ("bank app=web", "shop/public"),
                ("-", "shop/public"),
            ],
        ),
        (
            "selected by two",
            &[
                &rule("bank/web", EXACT, &selecting("web")),
                &rule(
                    "bank/front",
                    EXACT,
                    ", workloadSelector: {matchLabels: {tier: front}}",
                ),
                &public,
            ],
            &[
                ("bank app=web", "bank/web"),
                ("bank app=job", "bank/front"),
                ("bank", "shop/public"),
                ("shop app=web", "shop/public"),
            ],
        ),
        (
            "selected before named, whichever is older",
            &[
                &rule("shop/own", EXACT, &only("'.'")),
                &rule("shop/web", EXACT, &selecting("web")),
            ],
            &[("shop app=web", "shop/web"), ("shop", "shop/own")],
        ),
        (
            "the closer host before who is selected",
            &[&rule("shop/wide", WIDE, &selecting("web")), &public],
            &[("shop app=web", "shop/public")],
        ),
        (
            "a selector without labels",
            &[&rule("shop/own", EXACT, ", workloadSelector: {}"), &root],
            &[
                ("shop app=web", "shop/own"),
                ("shop", "shop/own"),
                ("bank", "istio-system/root"),
            ],
        ),
    ];
    for (what, rules, expected) in cases {
        let mesh = good(&(SERVICE.to_owned() + &rules.concat()));
        for (client, name) in *expected {
            assert_eq!(obeyed(&mesh, client), *name, "{what}: {client}");
        }
    }
}

#[test]
fn tls_to_backends_holds_for_every_client_and_leaves_each_its_own_rule() {
    let pool = |limit: u32| {
        format!(", trafficPolicy: {{connectionPool: {{tcp: {{maxConnections: {limit}}}}}}}")
    };
    let select = |limit: u32| pool(limit) + ", workloadSelector: {matchLabels: {app: web}}";
    let policy = "---\n{apiVersion: gateway.networking.k8s.io/v1, kind: BackendTLSPolicy, metadata: {name: a, namespace: shop}, \
                  spec: {targetRefs: [{group: '', kind: Service, name: a}], validation: {hostname: a.example, wellKnownCACertificates: System}}}\n";
    let rules = [
        rule("shop/web", EXACT, &select(1)),
        rule("bank/own", WIDE, &pool(2)),
        rule("shop/far", WIDE, &(pool(3) + ", exportTo: [far]")),
        rule("istio-system/near", WIDE, &(pool(4) + ", exportTo: [near]")),
    ];
    let mesh = good(&(SERVICE.to_owned() + &rules.concat() + policy));
    let service = mesh.services.values().next().unwrap();
    let web = Labels::from_iter([("app", "web")]);
    for (namespace, labels, limit) in [
        ("shop", Some(&web), Some(1)),
        ("shop", None, None),
        ("bank", None, Some(2)),
        ("bank", Some(&web), Some(2)),
        ("far", None, Some(3)),
        ("near", None, Some(4)),
        ("elsewhere", None, None),
        ("-", None, None),
    ] {
        let of = Namespace::new(namespace);
        let client = Client {
            namespace: of.as_ref(),
            labels,
        };
        let rule = mesh.destination_rule(service, client).expect(namespace);
        let said = rule.traffic(Port::new(80).unwrap(), None);
        assert_eq!(said.pool.max_connections, limit, "{namespace}");
        assert!(said.tls.is_some(), "{namespace}");
    }
}

#[test]
fn rules_for_one_host_that_name_the_same_clients_are_one_or_wrong() {
    let only = |namespaces: &str| format!(", exportTo: [{namespaces}]");
    let rules = [
        rule("shop/one", EXACT, &only("bank, far")),
        rule("shop/two", EXACT, &only("far, bank, far")),
        rule("shop/three", EXACT, &only("near, far")),
        rule("shop/all", EXACT, ""),
    ];
    let (mesh, problems) = check_text(&(SERVICE.to_owned() + &rules.concat()));
    let names = |name: &str| {
        let rules = &mesh.destination_rules;
        let rule = rules.iter().find(|rule| &*rule.name.name == name);
        rule.map(|rule| {
            rule.merged
                .iter()
                .map(|(name, _)| name.to_string())
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(names("one"), Some(vec!["shop/two".to_owned()]));
    assert_eq!(names("two"), None);
    assert_eq!(names("all"), Some(Vec::new()));
    assert_eq!(
        render(&problems),
        "mesh.yaml:8:78: error[V0113]: DestinationRule shop/three is not in force for clients of namespace far: shop/one in mesh.yaml:4:78 is older and is exported to it, too (field spec.exportTo)\n\
         \x20 help: export each of the rules for one host to other namespaces, or all to the same: those are one rule\n"
    );
    assert_eq!(obeyed(&mesh, "far"), "shop/one");
    assert_eq!(obeyed(&mesh, "near"), "shop/three");
}
