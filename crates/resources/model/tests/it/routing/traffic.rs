//! Outlier detection and locality preference in rules and services.

use voile_model::Port;
use voile_model::mesh::RuleClient;
use voile_model::mesh::traffic::SuccessRate;

use crate::good;

#[test]
fn success_rates_are_compared_wherever_a_rule_puts_somebody_out_and_else_nowhere() {
    let rule = |annotations: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: a, annotations: {{{annotations}}}}}\n\
             spec:\n  host: a\n  trafficPolicy:\n    outlierDetection: {{}}\n    portLevelSettings:\n\
             \x20   - {{port: {{number: 81}}, outlierDetection: {{interval: 1s}}}}\n    - {{port: {{number: 82}}, loadBalancer: {{simple: RANDOM}}}}\n\
             \x20 subsets:\n  - {{name: v1, labels: {{version: v1}}}}\n\
             \x20 - {{name: v2, labels: {{version: v2}}, trafficPolicy: {{outlierDetection: {{maxEjectionPercent: 50}}}}}}\n"
        )
    };
    let usual = SuccessRate::default();
    let rows = [
        ("", None),
        ("voile.dev/enforcing_success_rate: \"100\"", Some(usual)),
        (
            "voile.dev/success_rate_minimum_hosts: \"2\", voile.dev/success_rate_request_volume: \"3\"",
            Some(SuccessRate {
                minimum_hosts: 2,
                request_volume: 3,
                ..usual
            }),
        ),
        (
            "voile.dev/success_rate_stdev_factor: \"1300\", voile.dev/enforcing_success_rate: \"7\"",
            Some(SuccessRate {
                stdev_factor: 1_300,
                enforcing_percent: 7,
                ..usual
            }),
        ),
    ];
    for (annotations, expected) in rows {
        let mesh = good(&rule(annotations));
        let rule = &mesh.destination_rules[0];
        let said = |port, subset| {
            let traffic = rule.traffic(Port::new(port).unwrap(), subset);
            traffic.outliers.map(|outliers| outliers.success_rate)
        };
        for (port, subset) in [(80, None), (81, None), (80, Some("v1")), (80, Some("v2"))] {
            assert_eq!(said(port, subset), Some(expected), "{port} {subset:?}");
        }
        assert_eq!(said(82, None), None, "nobody is put out there");
    }
    assert_eq!(
        (
            usual.minimum_hosts,
            usual.request_volume,
            usual.stdev_factor
        ),
        (5, 100, 1_900),
        "Envoy's"
    );
}

#[test]
fn a_service_prefers_who_is_near_unless_a_rule_says_something_of_localities() {
    let service = |name: &str, annotation: &str, field: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop, annotations: {{{annotation}}}}}\n\
             spec: {{{field} ports: [{{port: 80, name: http}}]}}\n"
        )
    };
    let rule = |name: &str, policy: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{host: {name}, trafficPolicy: {{{policy}}}, subsets: [{{name: v1, labels: {{version: v1}}}}]}}\n"
        )
    };
    let annotated = "networking.istio.io/traffic-distribution: PREFERSAMENODE";
    let text = [
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\n\
         data: {mesh: \"localityLbSetting: {failoverPriority: [team]}\"}\n"
            .to_owned(),
        service("close", "", "trafficDistribution: PreferClose,"),
        service("zone", annotated, "trafficDistribution: PreferSameZone,"),
        service("node", "", "trafficDistribution: PreferSameNode,"),
        service("annotated", annotated, ""),
        service("silent", "", ""),
        service("ruled", "", "trafficDistribution: PreferClose,"),
        rule("ruled", "loadBalancer: {simple: RANDOM}, outlierDetection: {}"),
        service("overruled", "", "trafficDistribution: PreferClose,"),
        rule("overruled", "loadBalancer: {localityLbSetting: {enabled: false}}"),
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: far, annotations: {{{annotated}}}}}\n\
             spec: {{hosts: [far.example], resolution: DNS, ports: [{{number: 80, name: http, protocol: HTTP}}]}}\n"
        ),
    ]
    .concat();
    let mesh = good(&text);
    let zone =
        "topology.istio.io/network topology.kubernetes.io/region topology.kubernetes.io/zone";
    let node = format!("{zone} topology.istio.io/subzone kubernetes.io/hostname");
    for (name, always, expected) in [
        ("close", true, zone),
        ("zone", true, zone),
        ("node", true, &node),
        ("annotated", true, &node),
        ("far", true, &node),
        ("ruled", true, zone),
        ("overruled", false, ""),
        ("silent", false, "team"),
    ] {
        let mut services = mesh.services.values();
        let service = services.find(|one| &*one.name == name).unwrap();
        let rule = mesh.destination_rule(service, RuleClient::default());
        for subset in [None, Some("v1")] {
            let rule = rule.map(|rule| &**rule);
            let said = mesh.traffic_by(service, rule, Port::new(80).unwrap(), subset);
            assert!(!always || said.ranks_localities(), "{name}");
            let locality = said.balancer.locality.unwrap();
            assert_eq!(locality.always, always, "{name}");
            assert_eq!(locality.priority.join(" "), expected, "{name}");
        }
    }
}

#[test]
fn zones_count_before_localities_at_each_level_and_a_service_before_the_mesh() {
    let config = |said: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata: {{mesh: \"{{{said}}}\"}}\n"
        )
    };
    let service = |name: &str, field: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{{field} ports: [{{port: 80, name: http}}]}}\n"
        )
    };
    let rule = |name: &str, balancer: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{host: {name}, trafficPolicy: {{loadBalancer: {{{balancer}}}}}}}\n"
        )
    };
    let services = [
        service("silent", ""),
        service("close", "trafficDistribution: PreferClose,"),
        service("zoned", "trafficDistribution: PreferClose,"),
        rule("zoned", "zoneAwareLbSetting: {minClusterSize: 3}"),
        service("unset", ""),
        rule("unset", "zoneAwareLbSetting: {}"),
        service("shut", "trafficDistribution: PreferClose,"),
        rule(
            "shut",
            "zoneAwareLbSetting: {enabled: false, minClusterSize: 3}",
        ),
        service("local", ""),
        rule("local", "localityLbSetting: {failoverPriority: [team]}"),
    ]
    .concat();
    // Of each its size, a word where it is ranked by labels alone, or nothing.
    let said = |text: &str| {
        let mesh = good(&(text.to_owned() + &services));
        let shown = |service: &std::sync::Arc<voile_model::mesh::MeshService>| {
            let rule = mesh.destination_rule(service, RuleClient::default());
            let rule = rule.map(|rule| &**rule);
            let said = mesh.traffic_by(service, rule, Port::new(80).unwrap(), None);
            let ranks = said.ranks_localities();
            let locality = said.balancer.locality.unwrap_or_default();
            assert!(ranks || locality.zone_aware.is_none(), "{locality:?}");
            let how = match (locality.zone_aware, &locality.priority[..]) {
                (Some(size), _) => size.to_string(),
                (None, []) => "-".to_owned(),
                (None, labels) => labels.len().to_string() + " labels",
            };
            format!("{} {how}", service.name)
        };
        mesh.services
            .values()
            .map(shown)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let rules = "close 3 labels, local 1 labels, shut -";
    let by_rules = format!("{rules}, silent -, unset 6, zoned 3");
    assert_eq!(said(&config("")), by_rules);
    let zones = "zoneAwareLbSetting: {minClusterSize: 9}";
    let by_zone = format!("{rules}, silent 9, unset 6, zoned 3");
    assert_eq!(said(&config(zones)), by_zone);
    let beside =
        format!("{zones}, localityLbSetting: {{enabled: false, failoverPriority: [a, b]}}");
    assert_eq!(said(&config(&beside)), by_zone);
    let off = "zoneAwareLbSetting: {enabled: false}, localityLbSetting: {enabled: false}";
    assert_eq!(said(&config(off)), by_rules);
}
