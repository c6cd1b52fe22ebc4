//! Selection of our own port for a caller that knows only the service's name.

use super::*;

/// Our own workload, before which these services stand, each with its port 80 at another port of ours.
fn own_behind(registry: &mut Registry, services: &[(&str, u32)]) {
    let ports = |port: u32| workload::PortList {
        ports: vec![workload::Port {
            service_port: 80,
            target_port: port,
            app_protocol: 0,
        }],
    };
    let services = services.iter();
    let body = workload::Address {
        r#type: Some(workload::address::Type::Workload(workload::Workload {
            uid: "own".to_owned(),
            name: "own".to_owned(),
            namespace: SHOP.to_owned(),
            addresses: vec![vec![10, 0, 0, 9]],
            service_account: "own".to_owned(),
            tunnel_protocol: workload::TunnelProtocol::LegacyIstioMtls.into(),
            services: services
                .map(|(name, port)| ((*name).to_owned(), ports(*port)))
                .collect(),
            ..workload::Workload::default()
        })),
    };
    put(registry, type_url::ADDRESS, "own", &body.encode_to_vec());
}

#[test]
fn a_services_name_and_port_mean_the_port_that_we_serve_it_at() {
    let mut registry = Registry {
        capturing: true,
        ..Registry::default()
    };
    let configuration = proxy::ProxyConfiguration {
        workload_uid: "own".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        capture: Some(proxy::Capture {
            mutual_tls: proxy::MutualTls::Permissive.into(),
            ..proxy::Capture::default()
        }),
        ..proxy::ProxyConfiguration::default()
    };
    let body = configuration.encode_to_vec();
    put(
        &mut registry,
        type_url::PROXY_CONFIGURATION,
        "shop/own",
        &body,
    );
    let meant = |registry: &Registry, host: &str, port: u16| {
        let held = registry.configuration.as_ref().expect("told");
        let plan = registry.capture(&held.value).expect("redirected");
        plan.named.get(host)?.get(&port).copied()
    };
    assert_eq!(
        meant(&registry, "web.test", 80),
        None,
        "nothing is known of us"
    );
    // A host in two namespaces means the one of our own namespace, whatever the other's name.
    own_behind(
        &mut registry,
        &[
            ("shop/web.test", 8080),
            ("attic/both.test", 9001),
            ("shop/both.test", 9000),
            ("attic/theirs.test", 9002),
            ("zoo/theirs.test", 9003),
        ],
    );
    for (host, port, expected) in [
        ("web.test", 80, Some(8080)),
        ("web.test", 8080, None),
        ("both.test", 80, Some(9000)),
        ("theirs.test", 80, Some(9002)),
        ("other.test", 80, None),
    ] {
        assert_eq!(meant(&registry, host, port), expected, "{host}:{port}");
    }
    own_behind(&mut registry, &[]);
    assert_eq!(meant(&registry, "web.test", 80), None, "behind it no more");
}
