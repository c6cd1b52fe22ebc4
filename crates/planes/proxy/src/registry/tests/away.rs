//! Endpoints on other networks: reached through gateways, with the expected identities, after all near endpoints.

use voile_model::mesh::traffic::{Authorities, ClientTls, TlsOrigin};
use voile_proto::workload::gateway_address::Destination;
use voile_xds::wire::{
    OutboundService, RemoteGateway, Subset, encode_network_gateways, parse_service_key,
};

use super::*;
use crate::plan::EndpointPlan;

/// Address of the service `web`, and its workloads' address on the other network.
const VIP: &str = "10.96.0.1:80";
const THERE: &str = "10.0.0.77";

/// A gateway of the other network, as the control plane tells of it.
fn gateway(last: u8, account: &str) -> workload::Workload {
    workload::Workload {
        namespace: "edge".to_owned(),
        addresses: vec![vec![192, 0, 2, last]],
        service_account: account.to_owned(),
        tunnel_protocol: workload::TunnelProtocol::Hbone.into(),
        ..workload::Workload::default()
    }
}

/// A workload of `web` there, and so changed.
fn far(registry: &mut Registry, uid: &str, change: impl FnOnce(&mut workload::Workload)) {
    let entrance = workload::NetworkAddress {
        network: "east".to_owned(),
        address: vec![192, 0, 2, 9],
        length: None,
    };
    let ports = workload::PortList {
        ports: vec![workload::Port {
            service_port: 80,
            target_port: 8080,
            app_protocol: 0,
        }],
    };
    let gateways = [gateway(9, "gate"), gateway(8, "other")];
    let mut message = workload::Workload {
        uid: uid.to_owned(),
        name: uid.to_owned(),
        namespace: SHOP.to_owned(),
        addresses: vec![address_bytes(THERE.parse().expect("an address"))],
        network: "east".to_owned(),
        network_gateway: Some(workload::GatewayAddress {
            destination: Some(Destination::Address(entrance)),
            hbone_mtls_port: 15008,
        }),
        service_account: uid.to_owned(),
        tunnel_protocol: workload::TunnelProtocol::Hbone.into(),
        services: [(format!("{SHOP}/web.test"), ports)].into(),
        extensions: encode_network_gateways(gateways.into_iter()).collect(),
        ..workload::Workload::default()
    };
    change(&mut message);
    let body = workload::Address {
        r#type: Some(workload::address::Type::Workload(message)),
    };
    put(registry, type_url::ADDRESS, uid, &body.encode_to_vec());
}

/// Endpoints of `web`.
fn endpoints(registry: &Registry) -> Vec<EndpointPlan> {
    let plan = registry.destination(&at(VIP.parse().expect("an address")));
    let mut plan = plan.expect("known");
    std::mem::take(&mut plan.services[0].endpoints)
}

/// Endpoints on other networks: expected identities, gateways, targets.
fn led(registry: &Registry) -> Vec<String> {
    let all = endpoints(registry);
    let shown = all.iter().filter(|one| one.available).filter_map(|one| {
        let Some(Origination::Far(far)) = one.origination.as_ref().map(|SharedPart(one)| &**one)
        else {
            return None;
        };
        let account = |identity: &voile_identity::Identity| identity.service_account.to_string();
        let expected = one.expected.iter().flatten().map(account);
        let gate = |gate: &RemoteGateway| format!("{} as {}", gate.at, account(&gate.identity));
        let gates: Vec<String> = far.gates.iter().map(gate).collect();
        let expected: Vec<String> = expected.collect();
        Some(format!(
            "{} by {} for {}",
            expected.join("+"),
            gates.join(", "),
            far.called
        ))
    });
    shown.collect()
}

const BY_BOTH: &str = "by 192.0.2.9:15008 as gate, 192.0.2.8:15008 as other for web.test:80";

#[test]
fn those_of_another_network_are_one_endpoint_through_its_gateways_after_everybody_near() {
    let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
    let near = endpoints(&registry);
    far(&mut registry, "far-1", |_| {});
    far(&mut registry, "far-2", |one| one.capacity = Some(4));
    assert_eq!(led(&registry), [format!("far-1+far-2 {BY_BOTH}")]);
    let all = endpoints(&registry);
    let (last, others) = all.split_last().expect("the far one");
    assert_eq!(others, near);
    assert!(others.iter().all(|one| one.rank < last.rank));
    assert_eq!((last.weight, last.is_far()), (5, true));
    assert!(
        !last.is_sidecar(),
        "what is asked of sidecars is not asked there"
    );
    // An unchanged endpoint stays the same, so that its connections stay.
    assert_eq!(endpoints(&registry), all);
    // A gateway does not know subsets, and may lead to any workload.
    let wanted = OutboundService {
        key: parse_service_key(&format!("{SHOP}/web.test")).expect("a name"),
        port: voile_model::Port::new(80).expect("a port"),
        authorities: Vec::new(),
    };
    let everybody = Subset {
        name: "all".into(),
        labels: voile_model::Labels::default(),
        ports: Default::default(),
    };
    let part = registry.part(&wanted, &"all".into(), &everybody);
    assert_eq!(part.endpoints.len(), near.len());
    // An unhealthy workload adds no weight; its gateway may still lead to it.
    let ill: i32 = workload::WorkloadStatus::Unhealthy.into();
    far(&mut registry, "far-2", |one| one.status = ill);
    assert_eq!(led(&registry), [format!("far-1+far-2 {BY_BOTH}")]);
    far(&mut registry, "far-1", |one| one.status = ill);
    assert!(led(&registry).is_empty());
    // On our own network the address belongs to no workload.
    nobody(&mut registry, THERE);
    let direct = registry.destination(&at(format!("{THERE}:8080").parse().expect("an address")));
    assert_eq!(
        shown(direct.as_ref()),
        format!("Auto PassthroughCluster {THERE}:8080=~")
    );
    for uid in ["far-1", "far-2"] {
        registry.remove(type_url::ADDRESS, &uid.into());
    }
    assert_eq!(endpoints(&registry), near);
}

#[test]
fn whoever_may_answer_for_the_service_may_answer_from_there() {
    let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
    far(&mut registry, "far-1", |_| {});
    let web = registry.services.get_mut(&*format!("{SHOP}/web.test"));
    let own = ["far-1", "else"].into_iter();
    let own = own.map(|account| format!("spiffe://cluster.local/ns/{SHOP}/sa/{account}").into());
    web.expect("there").value.subject_alt_names = own.collect();
    assert_eq!(led(&registry), [format!("far-1+else {BY_BOTH}")]);
}

#[test]
fn nobody_of_another_network_is_called_by_a_guess() {
    type Change = fn(&mut workload::Workload);
    let cases: [(&str, Change); 6] = [
        ("nobody says who its gateways must be", |one| {
            one.extensions.clear();
        }),
        ("what is said of them cannot be read", |one| {
            for extension in &mut one.extensions {
                extension.config.as_mut().expect("there").value = vec![0xff];
            }
        }),
        ("they take no tunnels", |one| {
            let mut plain = gateway(9, "gate");
            plain.set_tunnel_protocol(workload::TunnelProtocol::None);
            one.extensions = encode_network_gateways([plain].into_iter()).collect();
        }),
        ("it takes none", |one| {
            one.set_tunnel_protocol(workload::TunnelProtocol::None);
        }),
        ("another port", |one| {
            let ports = one.services.values_mut().next().expect("one");
            ports.ports[0].service_port = 81;
        }),
        ("another service", |one| {
            let ports = one.services.pop_first().expect("one").1;
            one.services.insert(format!("{SHOP}/left.test"), ports);
        }),
    ];
    let near = endpoints(&mesh(proxy::OutboundPolicy::AllowAny));
    for (what, change) in cases {
        let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
        far(&mut registry, "far-1", change);
        assert_eq!(endpoints(&registry), near, "{what}");
    }
    // Without a gateway its network is as ours.
    let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
    far(&mut registry, "far-1", |one| one.network_gateway = None);
    assert_eq!(endpoints(&registry).len(), near.len() + 1);
    assert!(led(&registry).is_empty());
}

#[test]
fn a_rule_that_wants_something_else_than_the_meshs_mutual_tls_leads_to_nobody_there() {
    let originated = TlsOrigin {
        revocations: None,
        mutual: false,
        authorities: Authorities::System,
        credential: None,
        granted: None,
        certificate: None,
        server_name: None,
        subject_alt_names: Vec::new(),
        unverified: false,
    };
    for (tls, count) in [
        (ClientTls::Mutual(None), 1),
        (ClientTls::Mutual(Some("web.test".into())), 1),
        (ClientTls::Disable, 0),
        (ClientTls::Originate(originated.into()), 0),
    ] {
        let mut registry = mesh(proxy::OutboundPolicy::AllowAny);
        far(&mut registry, "far-1", |_| {});
        let web = registry.policies.get_mut(&*format!("{SHOP}/web.test"));
        let ports = &mut web.expect("there").value.ports;
        let port = ports.values_mut().next().expect("one");
        port.traffic.tls = Some(tls.clone());
        assert_eq!(led(&registry).len(), count, "{tls:?}");
    }
}
