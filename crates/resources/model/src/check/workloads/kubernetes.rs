//! Reads and checks Service, IPAddress, Secret, Namespace and ServiceAccount.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;

use crate::check::GivenAddress;
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{FieldPath, Fields, IntegerOrText, Report, SpannedValue, Text, TextMap};
use crate::mesh::network::GLOBAL;
use crate::mesh::waypoint::WaypointChoice;
use crate::mesh::{
    Location, MeshService, NamespaceResource, Protocol, Resolution, Secret, ServiceAccount,
    ServiceOrigin, ServicePort, TargetPort, TrafficDistribution, Transport, Visibility,
};
use crate::names::{CLUSTER_DOMAIN, Hostname, Namespace, Port, ResourceName, ServiceKey};
use crate::text::clip;

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
    let mut spec = fields.inner_or_empty("spec");
    let parent = spec.mapping("parentRef", |parent| {
        let words = ["group", "resource", "namespace", "name"].map(|name| parent.text(name));
        (parent.at().clone(), words)
    });
    spec.finish();
    let (at, words) = parent.unwrap_or_else(|| (meta.at.clone(), Default::default()));
    let [group, resource, namespace, name] = words;
    let Ok(address) = meta.name.name.parse::<IpAddr>() else {
        report.error(
            codes::BAD_VALUE,
            &meta.at,
            format!("`{}` is not an IP address", meta.name.name),
            "the name of an IPAddress is the address",
        );
        return None;
    };
    let resource = report.required(resource, &at, "resource")?;
    let core = group.is_none_or(|group| group.value.is_empty());
    if !(core && &*resource.value == "services") {
        report.error(
            codes::NOT_YET,
            &resource.at,
            "only addresses of Services are supported yet",
            "write resource: services, and no group",
        );
        return None;
    }
    let name = report.required(name, &at, "name")?;
    let namespace = match &namespace {
        Some(namespace) => values::namespace(namespace, report)?,
        None => Namespace::default_namespace(),
    };
    Some(GivenAddress {
        address,
        service: ResourceName::new(namespace, name.value),
    })
}

pub(in crate::check) fn secret(meta: Meta, fields: &mut Fields<'_>, report: &Report) -> Secret {
    let kind = fields.value("type");
    let mut data: BTreeMap<Arc<str>, Arc<[u8]>> = BTreeMap::new();
    for (key, value) in fields.text_map("data") {
        let packed: String = value.value.split_ascii_whitespace().collect();
        match base64::engine::general_purpose::STANDARD.decode(packed) {
            Ok(bytes) => drop(data.insert(key.value, bytes.into())),
            // Never the value itself: it is a secret.
            Err(_) => report.error(
                codes::BAD_VALUE,
                &value.at,
                "not base64",
                "plain text goes into `stringData`",
            ),
        }
    }
    for (key, value) in fields.text_map("stringData") {
        data.insert(key.value, value.value.as_bytes().into());
    }
    fields.ignore(&["immutable"]);
    Secret {
        name: meta.name,
        kind: kind.unwrap_or_else(|| "Opaque".into()),
        data,
        source: meta.source,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum ServiceKind {
    ClusterIp,
    /// A ClusterIp that is reached from outside too.
    Published,
    ExternalName,
}

const SERVICE_KINDS: [(&str, ServiceKind); 4] = [
    ("ClusterIP", ServiceKind::ClusterIp),
    ("NodePort", ServiceKind::Published),
    ("LoadBalancer", ServiceKind::Published),
    ("ExternalName", ServiceKind::ExternalName),
];

/// Fields of a Service that guide kube-proxy and that Voile ignores: the values that match Voile's behaviour, and the
/// alternatives.
const NOT_OBEYED: [(&str, &[&str], &str, &str); 3] = [
    (
        "internalTrafficPolicy",
        &["Cluster"],
        "endpoints of other nodes are called, too",
        "`trafficDistribution: PreferSameNode` prefers endpoints on the same node",
    ),
    (
        "publishNotReadyAddresses",
        &["false"],
        "endpoints that are not ready are not called",
        "remove it",
    ),
    (
        "sessionAffinity",
        &["None"],
        "requests of one client go to any endpoint",
        "use loadBalancer.consistentHash.useSourceIp of a DestinationRule",
    ),
];

/// Fields of a Service that mean nothing here.
const IGNORED: [&str; 10] = [
    "allocateLoadBalancerNodePorts",
    "externalIPs",
    "externalTrafficPolicy",
    "healthCheckNodePort",
    "ipFamilies",
    "ipFamilyPolicy",
    "loadBalancerClass",
    "loadBalancerIP",
    "loadBalancerSourceRanges",
    "sessionAffinityConfig",
];

pub(in crate::check) fn service(
    (meta, annotations): (Meta, &TextMap),
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<MeshService> {
    fields.ignore(&["status"]);
    let mut spec = fields.inner_or_empty("spec");
    let at = FieldPath {
        place: meta.at.place,
        path: spec.at().path.clone(),
    };
    let kind = spec.one_of("type", &SERVICE_KINDS);
    let kind = kind.unwrap_or(ServiceKind::ClusterIp);
    let mut ips: Vec<Text> = spec.text("clusterIP").into_iter().collect();
    let headless = ips.first().is_some_and(|ip| &*ip.value == "None");
    ips.extend(spec.texts("clusterIPs"));
    ips.retain(|ip| !matches!(&*ip.value, "None" | ""));
    let external_name = spec.text("externalName");
    let selector = spec.get("selector");
    let selector = selector.map(|labels| values::labels(&labels.text_map(), report));
    let (ports, has_ports) = service_ports(&mut spec);
    let distribution = distribution(
        spec.text("trafficDistribution").as_ref(),
        annotations,
        report,
    );
    spec.ignore(&IGNORED);
    for (name, so_anyway, instead, help) in NOT_OBEYED {
        spec.not_obeyed(name, so_anyway, instead, help);
    }
    spec.finish();
    let resolution = match kind {
        ServiceKind::ExternalName => {
            let name = report.required(external_name, &at, "externalName")?;
            Resolution::Alias(values::hostname(&name, report)?)
        }
        _ if headless => Resolution::Passthrough,
        _ => {
            report.required(has_ports.then_some(()), &at, "ports");
            Resolution::Static
        }
    };
    let hostname = service_host(&meta, report)?;
    let visibility = export_to(&meta, report);
    Some(MeshService {
        waypoint: WaypointChoice::of(&meta.labels),
        key: ServiceKey::new(meta.name.namespace, hostname),
        name: meta.name.name,
        source: meta.source,
        origin: ServiceOrigin::Kubernetes,
        addresses: values::unicast_ips(&ips, report),
        address_ranges: Vec::new(),
        ports,
        selector: selector.filter(|labels| !labels.is_empty()),
        location: match kind {
            ServiceKind::ExternalName => Location::MeshExternal,
            ServiceKind::ClusterIp | ServiceKind::Published => Location::MeshInternal,
        },
        resolution,
        headless,
        endpoints: Vec::new(),
        subject_alt_names: Vec::new(),
        visibility,
        published: kind == ServiceKind::Published,
        global: meta.labels.get(GLOBAL) == Some("true"),
        distribution,
    })
}

/// The host name of a Service.
fn service_host(meta: &Meta, report: &Report) -> Option<Hostname> {
    let host = format!(
        "{}.{}.svc.{CLUSTER_DOMAIN}",
        meta.name.name, meta.name.namespace
    );
    let hostname = Hostname::new(&host);
    if hostname.is_none() {
        let message = format!("`{host}` is not a host name");
        let help = "a Service's name is one DNS label";
        report.error(codes::BAD_VALUE, &meta.at, message, help);
    }
    hostname
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

/// Reads `ports`, and whether there are any.
fn service_ports(spec: &mut Fields<'_>) -> (Vec<ServicePort>, bool) {
    let report = spec.report();
    let list = spec.get("ports").map(|list| list.items());
    let list: Vec<Fields<'_>> = list
        .into_iter()
        .flatten()
        .filter_map(|port| port.fields())
        .collect();
    let several = list.len() > 1;
    let has_ports = !list.is_empty();
    let (mut names, mut numbers) = (Vec::new(), Vec::new());
    let mut ports = Vec::new();
    for mut port in list {
        let name = port.text("name");
        let number = report.required(port.integer("port"), port.at(), "port");
        if several {
            report.required(name.as_ref(), port.at(), "name");
        }
        let protocol = port.plain("protocol").unwrap_or("TCP");
        let key = |number: &SpannedValue<i64>| {
            (format!("{}/{protocol}", number.value), number.at.clone())
        };
        numbers.extend(number.as_ref().map(key));
        names.extend(name.clone());
        ports.extend(service_port(name, number, &mut port));
        port.finish();
    }
    values::unique_names("port name", &names, report);
    let numbers = numbers.iter().map(|(key, at)| (key.clone(), at));
    values::unique("port", numbers, report);
    (ports, has_ports)
}

/// Reads a port but for its name and number.
fn service_port(
    name: Option<Text>,
    number: Option<SpannedValue<i64>>,
    fields: &mut Fields<'_>,
) -> Option<ServicePort> {
    let report = fields.report();
    let number = number.and_then(|number| report.port(&number));
    let name = name.and_then(|name| values::port_name(&name, report));
    let name = name.unwrap_or_else(|| "".into());
    let target = fields.integer_or_text("targetPort");
    let transport = values::transport(fields);
    let app_protocol = fields.value("appProtocol");
    // Kubernetes writes 0 for "choose one".
    let node_port = fields.integer("nodePort").filter(|port| port.value != 0);
    let node_port = node_port.and_then(|port| report.port(&port));
    let (number, transport) = (number?, transport?);
    let target = match target {
        None => Some(TargetPort::Number(number)),
        Some(SpannedValue { value, at }) => match value {
            IntegerOrText::Integer(value) => {
                let number = report.port(&SpannedValue { value, at });
                number.map(TargetPort::Number)
            }
            IntegerOrText::Text(value) => {
                let name = values::port_name(&SpannedValue { value, at }, report);
                name.map(TargetPort::Named)
            }
        },
    };
    let protocol = match transport {
        Transport::Udp => Protocol::Udp,
        Transport::Tcp => protocol(app_protocol.as_deref(), &name, number),
    };
    Some(ServicePort {
        name,
        number,
        protocol,
        transport,
        target: target?,
        node_port,
        source: report.source(fields.at()),
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
