//! Default exports: each kind of resource without `exportTo` has the mesh's default for that kind.

use voile_model::mesh::Visibility;
use voile_model::{Mesh, Namespace};

use crate::good;

/// One of each kind that says nothing, in `shop`, and one that says something.
const RESOURCES: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: unsaid, namespace: shop}
spec: {selector: {app: a}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: said, namespace: shop, annotations: {networking.istio.io/exportTo: "*"}}
spec: {selector: {app: a}, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: unsaid, namespace: shop}
spec: {hosts: [unsaid.test], ports: [{number: 80, name: http}], resolution: NONE}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: said, namespace: shop}
spec: {hosts: [said.test], exportTo: ["*"], ports: [{number: 80, name: http}], resolution: NONE}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: unsaid, namespace: shop}
spec: {hosts: [unsaid], http: [{route: [{destination: {host: unsaid}}]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: said, namespace: shop}
spec: {hosts: [said], exportTo: ["*"], http: [{route: [{destination: {host: said}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: unsaid, namespace: shop}
spec: {host: unsaid}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: said, namespace: shop}
spec: {host: said, exportTo: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: selects, namespace: shop}
spec: {host: other, workloadSelector: {matchLabels: {app: a}}}
"#;

fn mesh(said: &str) -> Mesh {
    good(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    {said}\n---{RESOURCES}"
    ))
}

fn shown(visibility: &Visibility) -> String {
    match visibility {
        Visibility::Public => "*".to_owned(),
        Visibility::Namespaces(list) => {
            let names: Vec<&str> = list.iter().map(Namespace::as_str).collect();
            names.join(",")
        }
    }
}

/// Services, VirtualServices, DestinationRules: the host or name of each, and its visibility.
fn all(mesh: &Mesh) -> [String; 3] {
    let services = mesh.services.values();
    let services = services.map(|one| format!("{}={}", one.key.hostname, shown(&one.visibility)));
    let routes = mesh.virtual_services.iter();
    let routes = routes.map(|one| format!("{}={}", one.name.name, shown(&one.visibility)));
    let rules = mesh.destination_rules.iter();
    let rules = rules.map(|one| format!("{}={}", one.name.name, shown(&one.visibility)));
    [
        services.collect::<Vec<_>>(),
        routes.collect(),
        rules.collect(),
    ]
    .map(|all| all.join(" "))
}

#[test]
fn services_that_do_not_say_whom_they_are_exported_to_are_as_the_mesh_says() {
    let [services, routes, rules] = all(&mesh("defaultServiceExportTo: [\".\"]"));
    assert_eq!(
        services,
        "said.shop.svc.cluster.local=* said.test=* unsaid.shop.svc.cluster.local=shop unsaid.test=shop"
    );
    assert_eq!(routes, "unsaid=* said=*");
    assert_eq!(rules, "unsaid=* said=* selects=shop");
}

#[test]
fn virtual_services_that_do_not_say_whom_they_are_exported_to_are_as_the_mesh_says() {
    let [services, routes, rules] =
        all(&mesh("defaultVirtualServiceExportTo: [bank, \".\", bank]"));
    assert!(!services.contains("=shop") && services.contains("unsaid.test=*"));
    assert_eq!(routes, "unsaid=bank,shop said=*");
    assert_eq!(rules, "unsaid=* said=* selects=shop");
}

#[test]
fn destination_rules_that_do_not_say_whom_they_are_exported_to_are_as_the_mesh_says() {
    let [services, routes, rules] = all(&mesh("defaultDestinationRuleExportTo: [\"~\"]"));
    assert!(!services.contains("=shop") && services.contains("unsaid.test=*"));
    assert_eq!(routes, "unsaid=* said=*");
    // A rule with a selector of clients sets its own exports.
    assert_eq!(rules, "unsaid= said=* selects=shop");
}

#[test]
fn a_star_among_the_defaults_is_everybody() {
    let [services, ..] = all(&mesh("defaultServiceExportTo: [\".\", \"*\"]"));
    assert!(!services.contains("=shop"), "{services}");
}
