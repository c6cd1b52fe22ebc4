//! Selection of the HealthCheck that a proxy runs.

use voile_model::WorkloadKey;

use crate::good;

#[test]
fn gateways_ask_by_the_nearest_health_check_and_others_where_they_are_selected() {
    let check = |name: &str, namespace: &str, more: &str| {
        format!(
            "---\napiVersion: voile.dev/v1\nkind: HealthCheck\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{host: a.test, tcp: {{}}{more}}}\n"
        )
    };
    let web = ", selector: {matchLabels: {app: web}}";
    let pod = |name: &str, namespace: &str, template: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}, sidecar.istio.io/inject: \"true\"}}, \
             annotations: {{inject.istio.io/templates: {template}}}}}\nspec: {{containers: [{{name: istio-proxy, image: auto}}]}}\nstatus: {{phase: Running, podIP: 10.0.0.1}}\n"
        )
    };
    let text = [
        check("all", "shop", ""),
        check("port", "shop", ", port: 80"),
        check("web", "shop", web),
        check("mesh", "istio-system", ""),
        check("webs", "istio-system", web),
        check("own", "bank", ""),
        check("other", "bank", web),
        pod("web", "shop", "sidecar"),
        pod("db", "shop", "sidecar"),
        pod("edge", "bank", "gateway"),
        pod("door", "shop", "waypoint"),
    ];
    let mesh = good(&text.concat());
    for (workload, expected) in [
        ("shop/web", &["shop/web", "istio-system/webs"][..]),
        ("shop/db", &[]),
        ("shop/door", &[]),
        (
            "bank/edge",
            &[
                "bank/own",
                "shop/port of shop",
                "shop/all of shop",
                "istio-system/mesh",
            ],
        ),
    ] {
        let key: WorkloadKey = workload.parse().unwrap();
        let asked = mesh.health_checks_for(&mesh.workloads[&key]).into_iter();
        let names = asked.map(|one| {
            let root = &mesh.config.root_namespace;
            match one.callees(&key.namespace, root) {
                None => one.name.to_string(),
                Some(namespace) => format!("{} of {namespace}", one.name),
            }
        });
        assert_eq!(names.collect::<Vec<_>>(), expected, "{workload}");
    }
}
