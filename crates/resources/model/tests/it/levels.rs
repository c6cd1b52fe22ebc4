//! Precedence of several settings for one subject: levels of a DestinationRule, and CRLs beside their authorities.

use voile_model::mesh::traffic::ProxyProtocol;
use voile_model::mesh::{RuleClient, believed};
use voile_model::{Mesh, Namespace, Port, ResourceName};

use crate::good;

const RULES: &str = "
apiVersion: v1
kind: Service
metadata: {name: a, namespace: shop}
spec: {ports: [{port: 80, name: http}, {port: 81, name: http-b}, {port: 82, name: http-c}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: everybody, namespace: istio-system}
spec:
  host: '*.local'
  trafficPolicy: {connectionPool: {http: {useClientProtocol: true}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: elsewhere, namespace: other}
spec: {host: a.shop.svc.cluster.local}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: narrow, namespace: shop}
spec:
  host: a
  trafficPolicy:
    proxyProtocol: {}
    connectionPool: {http: {h2UpgradePolicy: UPGRADE}}
    portLevelSettings:
    - {port: {number: 81}, connectionPool: {http: {h2UpgradePolicy: DO_NOT_UPGRADE}}}
    - {port: {number: 82}}
  subsets:
  - {name: silent, labels: {version: v1}}
  - name: v2
    labels: {version: v2}
    trafficPolicy:
      proxyProtocol: {version: V2}
      connectionPool: {http: {useClientProtocol: true}}
      portLevelSettings: [{port: {number: 80}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: wide, namespace: shop}
spec: {host: '*.shop.svc.cluster.local'}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: younger, namespace: shop, creationTimestamp: 2026-01-31T12:00:00Z}
spec: {host: a}
";

/// Takes a rule out.
fn without(mesh: &mut Mesh, name: &str) {
    let rest = mesh.destination_rules.iter();
    let rest = rest.filter(|rule| &*rule.name.name != name).cloned();
    mesh.destination_rules = rest.collect();
}

#[test]
fn a_destination_rule_is_the_narrowest_of_its_namespace_and_its_levels_replace_each_other() {
    let mut mesh = good(RULES);
    let service = mesh.services.values().next().unwrap().clone();
    // A rule with a creation time counts as older than one without; rules for one host are merged.
    let rule = mesh
        .destination_rule(&service, RuleClient::default())
        .unwrap()
        .clone();
    assert_eq!(&*rule.name.name, "younger");
    let merged: Vec<&str> = rule.merged.iter().map(|(one, _)| &*one.name).collect();
    assert_eq!(merged, ["narrow"]);
    let (upgrade, keep) = (Some(true), Some(false));
    for (port, subset, expected) in [
        (80, None, (upgrade, false)),
        (81, None, (keep, false)),
        (82, None, (None, false)),
        (83, None, (upgrade, false)),
        (80, Some("silent"), (upgrade, false)),
        (81, Some("silent"), (keep, false)),
        (80, Some("v2"), (None, false)),
        (81, Some("v2"), (None, true)),
        (82, Some("v2"), (None, true)),
        (80, Some("unknown"), (upgrade, false)),
    ] {
        let pool = rule.pool(Port::new(port).unwrap(), subset);
        let got = (pool.http2_upgrade, pool.use_client_protocol);
        assert_eq!(got, expected, "{port} {subset:?}");
        // Ports have no word on it, and keep what holds around them.
        let header = rule
            .traffic(Port::new(port).unwrap(), subset)
            .proxy_protocol;
        let version = match subset {
            Some("v2") => ProxyProtocol::V2,
            _ => ProxyProtocol::V1,
        };
        assert_eq!(header, Some(version), "{port} {subset:?}");
    }
    without(&mut mesh, "younger");
    let name = |mesh: &Mesh| {
        mesh.destination_rule(&service, RuleClient::default())
            .map(|rule| rule.name.to_string())
    };
    assert_eq!(name(&mesh).as_deref(), Some("shop/wide"));
    without(&mut mesh, "wide");
    assert_eq!(name(&mesh).as_deref(), Some("istio-system/everybody"));
    without(&mut mesh, "everybody");
    assert_eq!(name(&mesh), None, "of another namespace");
}

#[test]
fn lists_of_what_is_revoked_are_read_beside_their_authorities_and_empty_ones_are_none_at_all() {
    let empty = |key| Err(format!("`{key}` of the Secret shop/a-cacert is empty"));
    for (data, expected) in [
        ("ca.crt: x", Ok("")),
        ("ca.crt: x, ca.crl: list", Ok("list")),
        ("cacert: x, crl: list", Ok("list")),
        // Never read as "nothing is revoked".
        ("ca.crt: x, ca.crl: \"\"", empty("ca.crl")),
        ("cacert: x, crl: \"\"", empty("crl")),
    ] {
        let mesh = good(&format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: a-cacert, namespace: shop}}\nstringData: {{{data}}}\n"
        ));
        let id = ResourceName::new(Namespace::new("shop").unwrap(), "a");
        let believed = believed(&mesh, &id).unwrap();
        assert_eq!(believed.authorities, b"x", "{data}");
        let found = believed.revocations.map_err(|why| why.to_string());
        assert_eq!(
            found,
            expected.map(|list| list.as_bytes().to_vec()),
            "{data}"
        );
    }
}
