//! The heads of HBONE: what a CONNECT says of who calls whom, and what is read of it. Pure.

use std::net::SocketAddr;

use voile_http2::Fields;
use voile_xds::wire::WorkloadType;

use crate::registry::{Resident, Served};

/// What is told for people and metrics, never believed: `baggage` of the caller.
const BAGGAGE: &str = "baggage";

/// A CONNECT to `to`, for `client` of the workload `source`, which meant `service`; `random` names the trace.
pub(crate) fn connect(
    head: &mut Fields,
    to: SocketAddr,
    client: SocketAddr,
    (source, service): (&Resident, Option<&Served>),
    mut random: impl FnMut() -> u64,
) {
    head.push(":method", b"CONNECT");
    head.push(":authority", to.to_string().as_bytes());
    head.push(BAGGAGE, baggage(source).as_bytes());
    let mut forwarded = format!("for=\"{client}\"");
    if let Some(served) = service {
        forwarded += &format!(";host={}", served.service.key.hostname);
    }
    head.push("forwarded", forwarded.as_bytes());
    let trace = format!("00-{:016x}{:016x}-{:016x}-00", random(), random(), random());
    head.push("traceparent", trace.as_bytes());
}

fn baggage(source: &Resident) -> String {
    let labels = &source.workload.labels;
    let kind = match labels.workload_type {
        WorkloadType::Deployment => "k8s.deployment.name",
        WorkloadType::CronJob => "k8s.cronjob.name",
        WorkloadType::Pod => "k8s.pod.name",
        WorkloadType::Job => "k8s.job.name",
    };
    let mut place = source.workload.locality.split('/');
    let (region, zone) = (place.next(), place.next());
    let parts = [
        ("k8s.cluster.name", &*labels.cluster),
        ("k8s.namespace.name", &*labels.namespace),
        (kind, &*labels.workload_name),
        ("service.name", &*labels.canonical_name),
        ("service.version", &*labels.canonical_revision),
        ("cloud.region", region.unwrap_or_default()),
        ("cloud.availability_zone", zone.unwrap_or_default()),
    ];
    let plain = |value: &&str| {
        let allowed = |byte: &u8| byte.is_ascii_graphic() && !b",;\\\"=".contains(byte);
        !value.is_empty() && value.as_bytes().iter().all(allowed)
    };
    let parts = parts.iter().filter(|(_, value)| plain(value));
    let parts = parts.map(|(name, value)| format!("{name}={value}"));
    parts.collect::<Vec<_>>().join(",")
}

/// Why a request is no tunnel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoTunnel {
    /// Another method, or an extended CONNECT.
    #[error("not a CONNECT")]
    NotConnect,
    /// Neither `ADDRESS:PORT` nor anything else that is served here.
    #[error("`{0}` is no address with a port; tunnels to names are not served yet")]
    NoAddress(String),
    /// Another address than the one at which the connection came in.
    #[error("{0} is not the address of this workload")]
    Foreign(SocketAddr),
    /// One of our own ports.
    #[error("port {0} is the node proxy's own")]
    OwnPort(u16),
}

/// Whom a request wants to reach, at a workload that was called at `local`.
pub(crate) fn target(head: &Fields, local: SocketAddr) -> Result<SocketAddr, NoTunnel> {
    if head.method() != "CONNECT" || head.protocol().is_some() || head.is_cut() {
        return Err(NoTunnel::NotConnect);
    }
    let authority = head.authority().unwrap_or_default();
    let to: SocketAddr = authority.parse().map_err(|_| {
        let shown = authority.chars().take(300).collect();
        NoTunnel::NoAddress(shown)
    })?;
    if to.ip().to_canonical() != local.ip().to_canonical() {
        return Err(NoTunnel::Foreign(to));
    }
    if to.port() == 0 || crate::route::OWN_PORTS.contains(&to.port()) {
        return Err(NoTunnel::OwnPort(to.port()));
    }
    Ok(SocketAddr::new(to.ip().to_canonical(), to.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::tests::{Said, workload};
    use voile_proto::workload::address::Type;

    fn head(lines: &[(&str, &str)]) -> Fields {
        let mut head = Fields::new();
        for (name, value) in lines {
            head.push(name, value.as_bytes());
        }
        head
    }

    #[test]
    fn only_the_workloads_own_address_is_a_target() {
        let local: SocketAddr = ([10, 244, 0, 3], 15008).into();
        let connect = |authority: &str| head(&[(":method", "CONNECT"), (":authority", authority)]);
        let good = target(&connect("10.244.0.3:8080"), local).expect("ours");
        assert_eq!(good, ([10, 244, 0, 3], 8080).into());
        for authority in [
            "10.244.0.4:8080",
            "127.0.0.1:8080",
            "[::1]:8080",
            "10.244.0.3",
            "10.244.0.3:",
            "10.244.0.3:0",
            "10.244.0.3:15001",
            "10.244.0.3:15006",
            "10.244.0.3:15008",
            "10.244.0.3:99999",
            "web.shop.svc.cluster.local:80",
            "",
        ] {
            assert!(target(&connect(authority), local).is_err(), "{authority}");
        }
        let get = [(":method", "GET"), (":scheme", "https"), (":path", "/")];
        let get = head(&[&get[..], &[(":authority", "10.244.0.3:8080")]].concat());
        assert_eq!(target(&get, local), Err(NoTunnel::NotConnect));
        let websocket = [
            (":method", "CONNECT"),
            (":scheme", "https"),
            (":path", "/"),
            (":authority", "10.244.0.3:8080"),
            (":protocol", "websocket"),
        ];
        assert_eq!(target(&head(&websocket), local), Err(NoTunnel::NotConnect));
        let v6: SocketAddr = "[fd00::3]:15008".parse().expect("an address");
        assert!(target(&connect("[fd00::3]:80"), v6).is_ok());
    }

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
        let (to, client) = (
            ([10, 244, 0, 3], 8080).into(),
            ([10, 244, 0, 2], 4000).into(),
        );
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
