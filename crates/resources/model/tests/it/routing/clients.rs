//! Which DestinationRule which client obeys: by its namespace and its labels.

use voile_model::mesh::{Mesh, RuleClient};
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

/// The rule of a client: `namespace`, or `namespace app=LABEL`, or `-` for a client that no rule names.
fn obeyed(mesh: &Mesh, client: &str) -> String {
    let service = mesh.services.values().next().unwrap();
    let (namespace, label) = client.split_once(" app=").unwrap_or((client, ""));
    let namespace = Namespace::new(namespace);
    let labels = Labels::from_iter([("app", label), ("tier", "front")]);
    let client = RuleClient {
        namespace: namespace.as_ref(),
        labels: Some(&labels).filter(|_| !label.is_empty()),
    };
    let rule = mesh.destination_rule(service, client);
    // A client without labels has each subset that some client of its namespace has.
    for subset in rule.into_iter().flat_map(|rule| rule.subsets.keys()) {
        let within = RuleClient::within(namespace.as_ref());
        assert!(mesh.has_subset(service, subset, within), "{subset}");
        let all = mesh.destination_rules_of(service);
        assert!(all.iter().any(|one| one.subsets.contains_key(subset)));
    }
    rule.map_or_else(|| "none".to_owned(), |rule| rule.name.to_string())
}

/// Asserts the rule of each client, given these rules: `CLIENT: RULE` by lines.
fn obey(what: &str, rules: &[&str], expected: &str) {
    let mesh = good(&(SERVICE.to_owned() + &rules.concat()));
    for line in expected.lines() {
        let (client, name) = line.trim().split_once(": ").expect("a client");
        assert_eq!(obeyed(&mesh, client), name, "{what}: {client}");
    }
}

fn only(namespaces: &str) -> String {
    format!(", exportTo: [{namespaces}]")
}

fn selecting(label: &str) -> String {
    format!(", workloadSelector: {{matchLabels: {{{label}}}}}")
}

#[test]
fn a_client_obeys_the_rule_of_its_own_namespace_then_of_the_services_then_of_the_root() {
    let own = &*rule("bank/own", EXACT, "");
    let public = &*rule("shop/public", EXACT, "");
    let root = &*rule("istio-system/root", WIDE, "");
    let all = "bank: bank/own\nshop: shop/public\n-: shop/public\nistio-system: shop/public";
    obey("clients' own", &[own, public, root], all);
    let without = "bank: bank/own\nshop: istio-system/root\n-: istio-system/root";
    obey("nothing of the service's", &[own, root], without);
    let alone = "bank: bank/own\nshop: none\n-: none";
    obey("nobody else's", &[own], alone);
    let private = rule("istio-system/own", WIDE, &only("'.'"));
    let expected = "istio-system: istio-system/own\nshop: shop/public\nbank: shop/public";
    obey("the root's own", &[&private, public, root], expected);
}

#[test]
fn a_rule_is_for_the_namespaces_to_which_it_is_exported_and_hides_nothing_from_others() {
    let public = &*rule("shop/public", EXACT, "");
    let root = &*rule("istio-system/root", WIDE, "");
    let some = &*rule("shop/some", EXACT, &only("bank"));
    let kept = rule("bank/own", EXACT, &only("far"));
    let expected = "bank: shop/public\nfar: shop/public";
    obey("kept from its own", &[&kept, public], expected);
    let two = rule("shop/some", EXACT, &only("bank, far"));
    let expected = "bank: shop/some\nfar: shop/some\nshop: istio-system/root\n-: istio-system/root";
    obey("exported to some", &[&two, root], expected);
    let wide = rule("shop/wide", WIDE, "");
    let expected = "bank: shop/some\nshop: shop/wide\n-: shop/wide";
    obey("hides nothing", &[some, &wide], expected);
    let expected = "bank: shop/some\nshop: shop/public";
    obey(
        "some before all, whichever is older",
        &[public, some],
        expected,
    );
    for (word, expected) in [
        ("'.'", "shop: shop/own\nbank: none\n-: none"),
        ("'~'", "shop: none\nbank: none\n-: none"),
        ("'*'", "shop: shop/own\nbank: shop/own\n-: shop/own"),
    ] {
        let rule = rule("shop/own", EXACT, &only(word));
        obey(word, &[&rule], expected);
    }
}

#[test]
fn a_rule_is_for_the_workloads_of_its_namespace_that_it_selects() {
    let public = &*rule("shop/public", EXACT, "");
    let web = &*rule("shop/web", EXACT, &selecting("app: web"));
    let job = &*rule("shop/job", EXACT, &selecting("app: job"));
    let expected = "shop app=web: shop/web\nshop app=job: shop/job\nshop app=other: shop/public\n\
                    shop: shop/public\nbank app=web: shop/public\n-: shop/public";
    obey("selected", &[public, web, job], expected);
    let first = rule("bank/web", EXACT, &selecting("app: web"));
    let second = rule("bank/front", EXACT, &selecting("tier: front"));
    let expected = "bank app=web: bank/web\nbank app=job: bank/front\nbank: shop/public\nshop app=web: shop/public";
    obey("selected by two", &[&first, &second, public], expected);
    let named = rule("shop/own", EXACT, &only("'.'"));
    let expected = "shop app=web: shop/web\nshop: shop/own";
    obey("selected before named", &[&named, web], expected);
    let wide = rule("shop/wide", WIDE, &selecting("app: web"));
    let expected = "shop app=web: shop/public";
    obey("the closer host first", &[&wide, public], expected);
    let empty = rule("shop/own", EXACT, ", workloadSelector: {}");
    let expected = "shop app=web: shop/own\nshop: shop/own\nbank: none";
    obey("a selector without labels", &[&empty], expected);
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
        let client = RuleClient {
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
        "mesh.yaml:8:78: error[V0113]: DestinationRule shop/three is not in force for clients of namespace far: shop/one in mesh.yaml:4:78 is older and is also exported to it (field spec.exportTo)\n\
         \x20 help: export the rules for one host to different namespaces, or all to the same namespaces, which merges them\n"
    );
    assert_eq!(obeyed(&mesh, "far"), "shop/one");
    assert_eq!(obeyed(&mesh, "near"), "shop/three");
}
