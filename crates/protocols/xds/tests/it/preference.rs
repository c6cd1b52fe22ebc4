//! Endpoint preference of a service, in Istio's words.

use voile_model::SourceFile;
use voile_proto::workload;
use voile_xds::wire::{Service, encode_service};

#[test]
fn node_proxies_are_told_whom_a_service_prefers() {
    use workload::load_balancing::{Mode, Scope};
    let told = |spec: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\nspec: {{ports: [{{name: http, port: 80}}]{spec}}}\n"
        );
        let (mesh, _) = voile_model::check(&[SourceFile::new("mesh.yaml", text)], None);
        let service = mesh.services.values().next().unwrap();
        let message = encode_service(service);
        let checked = Service::check(&message).unwrap();
        assert!(!checked.passthrough, "{spec}");
        let balancing = message.load_balancing?;
        let scopes = balancing.routing_preference.iter();
        let scopes: Vec<Scope> = scopes
            .map(|scope| Scope::try_from(*scope).unwrap())
            .collect();
        Some((balancing.mode(), scopes))
    };
    use Scope::{Network, Node, Region, Subzone, Zone};
    let zone = vec![Network, Region, Zone];
    let node = vec![Network, Region, Zone, Subzone, Node];
    for (spec, expected) in [
        ("", None),
        (
            ", trafficDistribution: PreferClose",
            Some((Mode::Failover, zone)),
        ),
        (
            ", trafficDistribution: PreferSameNode",
            Some((Mode::Failover, node.clone())),
        ),
        (
            ", trafficDistribution: PreferSameNode, clusterIP: None",
            Some((Mode::Failover, node)),
        ),
    ] {
        assert_eq!(told(spec), expected, "{spec}");
    }
}
