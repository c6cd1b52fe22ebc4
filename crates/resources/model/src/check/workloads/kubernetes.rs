//! Checks of Service, IPAddress, Secret, Namespace and ServiceAccount.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;

use crate::check::GivenAddress;
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{FieldPath, Fields, IntegerOrText, Report, SpannedValue};
use crate::mesh::network::GLOBAL;
use crate::mesh::waypoint::WaypointChoice;
use crate::mesh::{
    Location, MeshService, NamespaceResource, Protocol, Resolution, Secret, ServiceAccount,
    ServiceOrigin, ServicePort, TargetPort, TrafficDistribution, Transport, Visibility,
};
use crate::names::{CLUSTER_DOMAIN, Hostname, Namespace, Port, ResourceName, ServiceKey};
use crate::text::clip;
use crate::written::{Text, TextMap, kubernetes as written};

pub(in crate::check) fn namespace(
    (meta, annotations): (Meta, &TextMap),
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<NamespaceResource> {
    fields.ignore(&["spec", "status"]);
    let Some(name) = Namespace::new(&meta.name.name) else {
        let message = format!("`{}` is not allowed for a namespace", meta.name.name);
        report.error(
            codes::BAD_VALUE,
            &meta.at,
            message,
            "lower-case letters, digits and inner `-`, at most 63",
        );
        return None;
    };
    let mut all = annotations.iter();
    if let Some((_, said)) = all.find(|(key, _)| &*key.value == DISTRIBUTION) {
        let said_so = clip(&said.value);
        let message = format!("`{DISTRIBUTION}: {said_so}` has no effect on a Namespace");
        let help = "write `trafficDistribution` in its Services";
        report.warning(codes::NOT_OBEYED, &said.at, message, help);
    }
    Some(NamespaceResource {
        name,
        labels: meta.labels,
        source: meta.source,
    })
}

pub(in crate::check) fn service_account(meta: Meta, fields: &mut Fields<'_>) -> ServiceAccount {
    fields.ignore(&[
        "automountServiceAccountToken",
        "imagePullSecrets",
        "secrets",
    ]);
    ServiceAccount {
        name: meta.name,
        source: meta.source,
    }
}

/// An address that a cluster gave to a Service. Addresses of other resources (a Gateway) are ignored.
pub(in crate::check) fn ip_address(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<GivenAddress> {
    let parent = written::ParentRef::read(fields);
    let at = parent.at.as_ref().unwrap_or(&meta.at);
    let Ok(address) = meta.name.name.parse::<IpAddr>() else {
        report.error(
            codes::BAD_VALUE,
            &meta.at,
            format!("`{}` is not an IP address", meta.name.name),
            "the name of an IPAddress is the address",
        );
        return None;
    };
    let resource = report.required(parent.resource.as_ref(), at, "resource")?;
    let core = parent
        .group
        .as_ref()
        .is_none_or(|group| group.value.is_empty());
    if !(core && &*resource.value == "services") {
        report.error(
            codes::NOT_YET,
            &resource.at,
            "only addresses of Services are supported yet",
            "write resource: services, and no group",
        );
        return None;
    }
    let name = report.required(parent.name.as_ref(), at, "name")?;
    let namespace = match &parent.namespace {
        Some(namespace) => values::namespace(namespace, report)?,
        None => Namespace::default_namespace(),
    };
    Some(GivenAddress {
        address,
        service: ResourceName::new(namespace, name.value.clone()),
    })
}

pub(in crate::check) fn secret(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<Secret> {
    let written = written::Secret::read(fields);
    let mut data: BTreeMap<Arc<str>, Arc<[u8]>> = BTreeMap::new();
    for (key, value) in &written.data {
        let packed: String = value.value.split_ascii_whitespace().collect();
        match base64::engine::general_purpose::STANDARD.decode(packed) {
            Ok(bytes) => drop(data.insert(key.value.clone(), bytes.into())),
            // Never the value itself: it is a secret.
            Err(_) => report.error(
                codes::BAD_VALUE,
                &value.at,
                "not base64",
                "plain text goes into `stringData`",
            ),
        }
    }
    for (key, value) in &written.string_data {
        data.insert(key.value.clone(), value.value.as_bytes().into());
    }
    let kind = written
        .kind
        .map_or_else(|| "Opaque".into(), |kind| kind.value);
    Some(Secret {
        name: meta.name,
        kind,
        data,
        source: meta.source,
    })
}

#[derive(Clone, Copy, PartialEq)]
enum ServiceKind {
    ClusterIp,
    /// A ClusterIp that is reached from outside too.
    Published,
    ExternalName,
}

fn is_headless(written: &written::WrittenService) -> bool {
    written
        .cluster_ip
        .as_ref()
        .is_some_and(|ip| &*ip.value == "None")
}

fn kind_and_resolution(
    written: &written::WrittenService,
    spec: &FieldPath,
    report: &Report,
) -> Option<(ServiceKind, Resolution)> {
    let kinds = [
        ("ClusterIP", ServiceKind::ClusterIp),
        ("NodePort", ServiceKind::Published),
        ("LoadBalancer", ServiceKind::Published),
        ("ExternalName", ServiceKind::ExternalName),
    ];
    let kind = written
        .kind
        .as_ref()
        .map_or(Some(ServiceKind::ClusterIp), |kind| {
            report.one_of(kind, &kinds)
        });
    let resolution = match kind {
        Some(ServiceKind::ExternalName) => {
            let name = report.required(written.external_name.as_ref(), spec, "externalName")?;
            Resolution::Alias(values::hostname(name, report)?)
        }
        _ if is_headless(written) => Resolution::Passthrough,
        _ => {
            if written.ports.is_empty() {
                report.required(None::<()>, spec, "ports");
            }
            Resolution::Static
        }
    };
    Some((kind.unwrap_or(ServiceKind::ClusterIp), resolution))
}

pub(in crate::check) fn service(
    (meta, annotations): (Meta, &TextMap),
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<MeshService> {
    let written = written::WrittenService::read(fields);
    let spec = FieldPath {
        place: meta.at.place,
        path: values::join(&meta.at.path, "spec"),
    };
    let (kind, resolution) = kind_and_resolution(&written, &spec, report)?;
    let host = format!(
        "{}.{}.svc.{CLUSTER_DOMAIN}",
        meta.name.name, meta.name.namespace
    );
    let Some(hostname) = Hostname::new(&host) else {
        report.error(
            codes::BAD_VALUE,
            &meta.at,
            format!("`{host}` is not a host name"),
            "a Service's name is one DNS label",
        );
        return None;
    };
    let visibility = export_to(&meta, report);
    Some(MeshService {
        waypoint: WaypointChoice::of(&meta.labels),
        key: ServiceKey::new(meta.name.namespace, hostname),
        name: meta.name.name,
        source: meta.source,
        origin: ServiceOrigin::Kubernetes,
        addresses: cluster_ips(&written, report),
        address_ranges: Vec::new(),
        ports: service_ports(&written.ports, report),
        selector: written
            .selector
            .as_ref()
            .map(|labels| values::labels(labels, report))
            .filter(|labels| !labels.is_empty()),
        location: if kind == ServiceKind::ExternalName {
            Location::MeshExternal
        } else {
            Location::MeshInternal
        },
        resolution,
        headless: is_headless(&written),
        endpoints: Vec::new(),
        subject_alt_names: Vec::new(),
        visibility,
        published: kind == ServiceKind::Published,
        global: meta.labels.get(GLOBAL) == Some("true"),
        distribution: distribution(written.distribution.as_ref(), annotations, report),
    })
}

/// Annotation with the meaning of `trafficDistribution`, on Services (which now have that field) and ServiceEntries.
const DISTRIBUTION: &str = "networking.istio.io/traffic-distribution";

/// The preference of near endpoints. The field precedes the annotation. The annotation's case does not matter, as in
/// Istio.
pub(in crate::check) fn distribution(
    field: Option<&Text>,
    annotations: &TextMap,
    report: &Report,
) -> Option<TrafficDistribution> {
    const WORDS: [(&str, TrafficDistribution); 3] = [
        ("PreferClose", TrafficDistribution::SameZone),
        ("PreferSameZone", TrafficDistribution::SameZone),
        ("PreferSameNode", TrafficDistribution::SameNode),
    ];
    let said = field.and_then(|text| report.one_of(text, &WORDS));
    let mut all = annotations.iter();
    let annotated = all.find(|(key, _)| &*key.value == DISTRIBUTION);
    let annotated = annotated.and_then(|(_, text)| {
        let mut words = WORDS.iter();
        let word = words.find(|(word, _)| word.eq_ignore_ascii_case(&text.value));
        word.map_or_else(|| report.one_of(text, &WORDS), |(_, said)| Some(*said))
    });
    said.or(annotated)
}

/// Annotation of a Service with the namespaces it is exported to.
pub(in crate::check) const EXPORT_TO: &str = "networking.istio.io/exportTo";

/// The visibility from that annotation: namespaces joined by commas.
fn export_to(meta: &Meta, report: &Report) -> Visibility {
    let Some(list) = meta.annotations.get(EXPORT_TO) else {
        return Visibility::Public;
    };
    let at = FieldPath {
        place: meta.at.place,
        path: values::join(&meta.at.path, "metadata.annotations"),
    };
    let words = list.split(',').map(|word| SpannedValue {
        value: word.trim().into(),
        at: at.clone(),
    });
    values::visibility(&words.collect::<Vec<_>>(), &meta.name.namespace, report)
}

fn cluster_ips(written: &written::WrittenService, report: &Report) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for text in written.cluster_ip.iter().chain(&written.cluster_ips) {
        if matches!(&*text.value, "None" | "") {
            continue;
        }
        if let Some(address) = values::unicast_ip(text, report)
            && !addresses.contains(&address)
        {
            addresses.push(address);
        }
    }
    addresses
}

fn service_ports(written: &[written::ServicePort], report: &Report) -> Vec<ServicePort> {
    let ports: Vec<ServicePort> = written
        .iter()
        .filter_map(|port| service_port(port, written.len() > 1, report))
        .collect();
    let named = written.iter().filter_map(|port| port.name.as_ref());
    values::unique(
        "port name",
        named.map(|name| (name.value.clone(), &name.at)),
        report,
    );
    let numbered = written
        .iter()
        .filter_map(|port| port.port.as_ref().map(|number| (port, number)));
    let key = |port: &written::ServicePort, number: i64| {
        format!(
            "{number}/{}",
            port.protocol
                .as_ref()
                .map_or("TCP", |protocol| &protocol.value)
        )
    };
    values::unique(
        "port",
        numbered.map(|(port, number)| (key(port, number.value), &number.at)),
        report,
    );
    ports
}

fn service_port(
    port: &written::ServicePort,
    name_needed: bool,
    report: &Report,
) -> Option<ServicePort> {
    let number = report
        .required(port.port.as_ref(), &port.at, "port")
        .and_then(|number| report.port(number));
    if name_needed {
        report.required(port.name.as_ref(), &port.at, "name");
    }
    let name = port
        .name
        .as_ref()
        .and_then(|name| values::port_name(name, report))
        .unwrap_or_else(|| "".into());
    let transports = [
        ("TCP", Some(Transport::Tcp)),
        ("UDP", Some(Transport::Udp)),
        ("SCTP", None),
    ];
    let transport = port
        .protocol
        .as_ref()
        .map_or(Some(Some(Transport::Tcp)), |text| {
            report.one_of(text, &transports)
        });
    let Some(transport) = transport? else {
        report.error(
            codes::NOT_YET,
            &port.at,
            "SCTP is not yet supported",
            "use TCP or UDP",
        );
        return None;
    };
    let number = number?;
    let target = match &port.target_port {
        None => TargetPort::Number(number),
        Some(target) => match &target.value {
            IntegerOrText::Integer(value) => {
                let spanned = SpannedValue {
                    value: *value,
                    at: target.at.clone(),
                };
                TargetPort::Number(report.port(&spanned)?)
            }
            IntegerOrText::Text(text) => {
                let spanned = SpannedValue {
                    value: text.clone(),
                    at: target.at.clone(),
                };
                TargetPort::Named(values::port_name(&spanned, report)?)
            }
        },
    };
    let node_port = match &port.node_port {
        // Kubernetes writes 0 for "choose one".
        Some(number) if number.value != 0 => Some(report.port(number)?),
        _ => None,
    };
    let app_protocol = port.app_protocol.as_ref().map(|text| &*text.value);
    let protocol = if transport == Transport::Udp {
        Protocol::Udp
    } else {
        protocol(app_protocol, &name, number)
    };
    Some(ServicePort {
        name,
        number,
        protocol,
        transport,
        target,
        node_port,
        source: report.source(&port.at),
    })
}

/// The protocol of a port: `appProtocol`, else the port name's prefix, else detected, except on ports whose servers
/// speak first.
fn protocol(app_protocol: Option<&str>, name: &str, number: Port) -> Protocol {
    let by_name = || {
        // Before `grpc`, whose prefix it shares.
        let word = if name == "grpc-web" || name.starts_with("grpc-web-") {
            "grpc-web"
        } else {
            name.split('-').next().unwrap_or("")
        };
        values::protocol_word(word).filter(|protocol| *protocol != Protocol::Udp)
    };
    let said = match app_protocol {
        Some(word) => values::protocol_word(word),
        None => by_name(),
    };
    said.unwrap_or_else(|| Protocol::undeclared(number))
}
