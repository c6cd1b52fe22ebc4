//! ServicePolicy: which one holds for a client, and entries that appear twice.

use voile_model::Labels;
use voile_proto::proxy;
use voile_xds::wire::{ServicePolicy, WireType};

#[test]
fn a_port_or_a_subset_that_appears_twice_is_refused() {
    let port = proxy::PortPolicy {
        port: 80,
        ..proxy::PortPolicy::default()
    };
    let subset = proxy::Subset {
        name: "v1".to_owned(),
        ..proxy::Subset::default()
    };
    let ports = proxy::ServicePolicy {
        ports: vec![port; 2],
        ..proxy::ServicePolicy::default()
    };
    let subsets = proxy::ServicePolicy {
        subsets: vec![subset; 2],
        ..proxy::ServicePolicy::default()
    };
    for (message, wanted) in [
        (ports, "ports[1].port: port `80` appears twice"),
        (subsets, "subsets[1].name: name `v1` appears twice"),
    ] {
        let error = ServicePolicy::from_wire(message).expect_err(wanted);
        assert_eq!(error.to_string(), wanted);
    }
}

#[test]
fn a_policy_tells_clients_apart_by_labels_and_not_twice() {
    let client = |policy| proxy::ClientPolicy {
        labels: Vec::new(),
        policy,
    };
    let with = |all| proxy::ServicePolicy {
        for_clients: all,
        ..proxy::ServicePolicy::default()
    };
    let own = proxy::ServicePolicy {
        plaintext: true,
        ..proxy::ServicePolicy::default()
    };
    let good = ServicePolicy::from_wire(with(vec![client(Some(own.clone()))])).expect("a policy");
    assert!(good.for_client(&Labels::NONE).plaintext && !good.plaintext);
    let twice = with(vec![client(Some(own))]);
    for (message, reason) in [
        (with(vec![client(None)]), "for_clients[0].policy"),
        (
            with(vec![client(Some(twice))]),
            "nested for_clients are not allowed",
        ),
    ] {
        let error = ServicePolicy::from_wire(message).expect_err(reason);
        assert!(error.to_string().contains(reason), "{error}");
    }
}
