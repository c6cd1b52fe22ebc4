//! Header fields that a node proxy adds to a CONNECT request: Istio's baggage of the calling workload. Pure.

use std::fmt::Display;
use std::net::SocketAddr;

use voile_hbone::TunnelCaller;
use voile_http2::Fields;
use voile_xds::wire::WorkloadType;

use crate::registry::{Resident, ServedService};

/// A CONNECT to `to`, for `client` of the workload `source`, which meant `service`; `random` names the trace.
pub(crate) fn connect(
    head: &mut Fields,
    to: impl Display,
    client: SocketAddr,
    (source, service): (&Resident, Option<&ServedService>),
    random: impl FnMut() -> u64,
) {
    let labels = &source.workload.labels;
    let kind = match labels.workload_type {
        WorkloadType::Deployment => "k8s.deployment.name",
        WorkloadType::CronJob => "k8s.cronjob.name",
        WorkloadType::Pod => "k8s.pod.name",
        WorkloadType::Job => "k8s.job.name",
    };
    let mut place = source.workload.locality.split('/');
    let (region, zone) = (place.next(), place.next());
    let baggage = [
        ("k8s.cluster.name", &*labels.cluster),
        ("k8s.namespace.name", &*labels.namespace),
        (kind, &*labels.workload_name),
        ("service.name", &*labels.canonical_name),
        ("service.version", &*labels.canonical_revision),
        ("cloud.region", region.unwrap_or_default()),
        ("cloud.availability_zone", zone.unwrap_or_default()),
    ];
    let host = service.map(|served| served.service.key.hostname.to_string());
    let caller = TunnelCaller {
        client: Some(client),
        baggage: &baggage,
        host: host.as_deref(),
    };
    voile_hbone::connect(head, to, &caller, random);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::tests::{Said, workload};
    use voile_proto::workload::address::Type;

    #[test]
    fn a_connect_says_who_calls_in_istios_words() {
        let mut said = Said::asked(&[]);
        let mut source = workload("client-1", 2);
        source.workload_name = "client".to_owned();
        source.canonical_name = "client".to_owned();
        source.canonical_revision = "v1".to_owned();
        source.cluster_id = "Kubernetes".to_owned();
        source.locality = Some(voile_proto::workload::Locality {
            region: "r".to_owned(),
            zone: "bad,zone".to_owned(),
            ..Default::default()
        });
        said.addresses(vec![("c", &[], Type::Workload(source))], &[]);
        let view = said.registry.view();
        let source = view.workload([10, 244, 0, 2].into()).expect("the client");
        let mut head = Fields::new();
        let to: SocketAddr = ([10, 244, 0, 3], 8080).into();
        let client = ([10, 244, 0, 2], 4000).into();
        connect(&mut head, to, client, (source, None), || 10);
        assert_eq!(
            (head.method(), head.authority()),
            ("CONNECT", Some("10.244.0.3:8080"))
        );
        let text = |name| String::from_utf8_lossy(head.get(name).expect("there")).into_owned();
        assert_eq!(
            text("baggage"),
            "k8s.cluster.name=Kubernetes,k8s.namespace.name=shop,k8s.deployment.name=client,service.name=client,\
             service.version=v1,cloud.region=r"
        );
        assert_eq!(text("forwarded"), "for=\"10.244.0.2:4000\"");
        assert_eq!(
            text("traceparent"),
            "00-000000000000000a000000000000000a-000000000000000a-00"
        );
    }
}
