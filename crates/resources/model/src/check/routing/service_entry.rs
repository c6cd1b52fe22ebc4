//! Check of ServiceEntry: Istio's rules on which resolution goes with which hosts, addresses and endpoints.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::check::kubernetes::distribution;
use crate::check::values::{self, Meta};
use crate::check::{CheckedResource, networking};
use crate::codes;
use crate::decode::{FieldPath, Fields, Report, SpannedValue, Text, TextMap};
use crate::mesh::network::GLOBAL;
use crate::mesh::waypoint::WaypointChoice;
use crate::mesh::{
    AddressRange, EndpointAddress, Location, MeshService, Protocol, Resolution,
    ServiceEntryEndpoint, ServiceOrigin, ServicePort, TargetPort, Transport,
};
use crate::names::{Hostname, Labels, ResourceName, ServiceKey, is_mesh_name};
use crate::text::clip;

/// Most declared port names among which a near miss is looked for.
const MAX_SUGGESTED_PORTS: usize = 16;

/// The fields of a `spec` that must agree with each other.
struct EntryFields {
    at: FieldPath,
    hosts: Vec<Text>,
    resolution: Option<Text>,
    /// Endpoints as far as they can be used, and the names of their ports.
    endpoints: Vec<(Option<ServiceEntryEndpoint>, Vec<Text>)>,
    selector: Option<Labels>,
}

pub(in crate::check) fn service_entry(
    (meta, annotations): (Meta, &TextMap),
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<CheckedResource> {
    const LOCATIONS: [(&str, Location); 2] = [
        ("MESH_EXTERNAL", Location::MeshExternal),
        ("MESH_INTERNAL", Location::MeshInternal),
    ];
    fields.ignore(&["status"]);
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let hosts = spec.texts("hosts");
    let (addresses, address_ranges) = addresses(&spec.texts("addresses"), report);
    let ports = spec.mappings("ports", |fields| Some(service_port(fields)));
    let location = spec.one_of("location", &LOCATIONS);
    let written = EntryFields {
        at: spec.at().clone(),
        hosts,
        resolution: spec.text("resolution"),
        endpoints: spec.mappings("endpoints", |fields| Some(networking::endpoint(fields))),
        selector: values::selector_labels(&mut spec, "workloadSelector", "labels"),
    };
    let hosts = self::hosts(&written, report);
    let ports = self::ports(ports, &written, report);
    let export_to = spec.texts("exportTo");
    let subject_alt_names = spec.values("subjectAltNames");
    spec.finish();
    let visibility = values::visibility(&export_to, &meta.name.namespace, report);
    let distribution = distribution(None, annotations, report);
    let resolution = resolution(written.resolution.as_ref(), report)?;
    fits(&written, &hosts, &resolution, report);
    let selector = written.selector.filter(|labels| !labels.is_empty());
    let endpoints = written.endpoints.into_iter();
    let model = MeshService {
        waypoint: WaypointChoice::of(&meta.labels),
        key: ServiceKey::new(meta.name.namespace.clone(), hosts.first()?.clone()),
        name: meta.name.name.clone(),
        source: meta.source,
        origin: ServiceOrigin::ServiceEntry,
        addresses,
        address_ranges,
        ports,
        selector: selector.filter(|_| resolution != Resolution::Passthrough),
        location: location.unwrap_or(Location::MeshExternal),
        resolution,
        headless: false,
        endpoints: endpoints.filter_map(|(endpoint, _)| endpoint).collect(),
        subject_alt_names,
        visibility,
        published: false,
        global: meta.labels.get(GLOBAL) == Some("true"),
        distribution,
    };
    Some(one_a_host(&meta.name, &model, hosts))
}

/// A service for each host, and the workloads that they share.
fn one_a_host(name: &ResourceName, model: &MeshService, hosts: Vec<Hostname>) -> CheckedResource {
    let workload = |endpoint: &ServiceEntryEndpoint| {
        networking::endpoint_workload(name, endpoint).map(Arc::new)
    };
    let workloads = model.endpoints.iter().filter_map(workload).collect();
    let service = |host| {
        let key = ServiceKey::new(name.namespace.clone(), host);
        Arc::new(MeshService {
            key,
            ..model.clone()
        })
    };
    CheckedResource::Services(hosts.into_iter().map(service).collect(), workloads)
}

fn hosts(written: &EntryFields, report: &Report) -> Vec<Hostname> {
    let all = written.hosts.iter();
    if written.hosts.is_empty() {
        report.required(None::<()>, &written.at, "hosts");
    }
    let named = all.clone().map(|host| (host.value.clone(), &host.at));
    values::unique("host", named, report);
    all.filter_map(|host| values::hostname(host, report))
        .collect()
}

fn resolution(text: Option<&Text>, report: &Report) -> Option<Resolution> {
    let words = [
        ("NONE", 0),
        ("STATIC", 1),
        ("DNS", 2),
        ("DNS_ROUND_ROBIN", 3),
        ("DYNAMIC_DNS", 4),
    ];
    let number = text.map_or(Some(0), |text| report.one_of(text, &words))?;
    Some(match number {
        1 => Resolution::Static,
        2 => Resolution::Dns,
        3 => Resolution::DnsRoundRobin,
        4 => Resolution::DynamicDns,
        _ => Resolution::Passthrough,
    })
}

/// Checks that hosts, endpoints, selector and resolution fit together.
fn fits(written: &EntryFields, hosts: &[Hostname], resolution: &Resolution, report: &Report) {
    let at = written
        .resolution
        .as_ref()
        .map_or(&written.at, |text| &text.at);
    let clash = |message: &str, help: &str| report.error(codes::CONTRADICTION, at, message, help);
    let wildcard = hosts.iter().any(Hostname::is_wildcard);
    let endpoints = written.endpoints.iter();
    let mut endpoints = endpoints.filter_map(|(endpoint, _)| endpoint.as_ref());
    let selector = written.selector.as_ref();
    if written.selector.is_some() && !written.endpoints.is_empty() {
        clash(
            "`endpoints` and `workloadSelector` exclude each other",
            "keep one",
        );
    }
    match resolution {
        Resolution::Passthrough if !written.endpoints.is_empty() => {
            clash(
                "resolution NONE excludes `endpoints`",
                "use STATIC for addresses or DNS for host names",
            );
        }
        Resolution::Passthrough if selector.is_some_and(|labels| !labels.is_empty()) => {
            let message = "`workloadSelector` has no effect: with resolution NONE connections go where the client sent them";
            report.warning(codes::NOT_OBEYED, at, message, "use STATIC, or remove it");
        }
        Resolution::Static
            if endpoints.any(|one| matches!(one.address, EndpointAddress::Dns(_))) =>
        {
            clash(
                "resolution STATIC requires endpoints with IP addresses",
                "use DNS for host names",
            );
        }
        Resolution::Dns | Resolution::DnsRoundRobin => {
            if wildcard && written.endpoints.is_empty() {
                clash(
                    "DNS cannot resolve a wildcard host",
                    "add `endpoints`, or use NONE or DYNAMIC_DNS",
                );
            }
            if *resolution == Resolution::DnsRoundRobin && endpoints.count() > 1 {
                clash(
                    "resolution DNS_ROUND_ROBIN has at most one endpoint",
                    "use DNS",
                );
            }
        }
        Resolution::DynamicDns
            if !wildcard || !written.endpoints.is_empty() || written.selector.is_some() =>
        {
            clash(
                "resolution DYNAMIC_DNS is for wildcard hosts without endpoints",
                "use DNS",
            );
        }
        Resolution::DynamicDns => leads_out(written, report),
        _ => {}
    }
}

/// Hosts that clients name and the world's DNS is asked for are the world's: not any at all, and none of the mesh.
fn leads_out(written: &EntryFields, report: &Report) {
    for host in &written.hosts {
        let Some(name) = Hostname::new(&host.value) else {
            continue;
        };
        let suffix = name.as_str().trim_start_matches('*');
        let why = match suffix {
            "" => "would resolve every name that a client sends",
            // `*.local` covers the mesh's names, too.
            _ if is_mesh_name(&format!("a.b{suffix}")) || CLUSTER_SERVICES.ends_with(suffix) => {
                "belongs to the mesh, whose names external DNS does not resolve"
            }
            _ => continue,
        };
        let message = format!("with resolution DYNAMIC_DNS the host `{name}` {why}");
        let help = "write a public domain, such as *.example.com";
        report.error(codes::CONTRADICTION, &host.at, message, help);
    }
}

/// Suffix of all Services' names.
const CLUSTER_SERVICES: &str = ".svc.cluster.local";

/// A port, and its name and number as written.
struct EntryPort {
    name: Option<Text>,
    number: Option<SpannedValue<i64>>,
    port: Option<ServicePort>,
}

fn ports(ports: Vec<EntryPort>, written: &EntryFields, report: &Report) -> Vec<ServicePort> {
    if ports.is_empty() {
        let message = "a ServiceEntry without `ports` has no effect";
        report.warning(codes::NO_MEANING, &written.at, message, "add its ports");
    }
    let names = ports.iter().filter_map(|port| port.name.as_ref());
    let placed = names.clone().map(|name| (name.value.clone(), &name.at));
    values::unique("port name", placed, report);
    let numbers = ports.iter().filter_map(|port| port.number.as_ref());
    let placed = numbers.map(|number| (number.value, &number.at));
    values::unique("port", placed, report);
    let declared: BTreeSet<&str> = names.map(|name| &*name.value).collect();
    for name in written.endpoints.iter().flat_map(|(_, names)| names) {
        if !declared.contains(&*name.value) {
            let message = format!(
                "no port of the ServiceEntry has the name `{}`",
                clip(&name.value)
            );
            // Few, so that a hostile entry cannot make the search for near misses long.
            let few = declared.iter().take(MAX_SUGGESTED_PORTS).copied();
            let help = crate::text::suggest(&name.value, few);
            report.error(codes::CONTRADICTION, &name.at, message, help);
        }
    }
    ports.into_iter().filter_map(|port| port.port).collect()
}

fn service_port(fields: &mut Fields<'_>) -> EntryPort {
    let number = fields.integer("number");
    let protocol = fields.text("protocol");
    let name = fields.text("name");
    let port = checked_port(number.as_ref(), protocol.as_ref(), name.as_ref(), fields);
    EntryPort { name, number, port }
}

fn checked_port(
    number: Option<&SpannedValue<i64>>,
    protocol: Option<&Text>,
    name: Option<&Text>,
    fields: &mut Fields<'_>,
) -> Option<ServicePort> {
    let report = fields.report();
    let number = report
        .required(number, fields.at(), "number")
        .and_then(|number| report.port(number));
    let name = report
        .required(name, fields.at(), "name")
        .and_then(|name| values::port_name(name, report));
    let target = fields.integer("targetPort");
    let target = target.map(|number| report.port(&number));
    let protocol = values::istio_protocol(protocol, report);
    let number = number?;
    Some(ServicePort {
        name: name?,
        number,
        protocol,
        transport: if protocol == Protocol::Udp {
            Transport::Udp
        } else {
            Transport::Tcp
        },
        target: TargetPort::Number(target.unwrap_or(Some(number))?),
        node_port: None,
        source: report.source(fields.at()),
    })
}

fn addresses(written: &[Text], report: &Report) -> (Vec<IpAddr>, Vec<AddressRange>) {
    let (mut addresses, mut ranges) = (Vec::new(), Vec::new());
    for text in written {
        let range = report.parsed(
            text,
            "an address",
            AddressRange::parse,
            "write an IP address or a range such as 10.0.0.0/8",
        );
        match range {
            Some(one) if one.is_single() => addresses.push(one.address),
            more => ranges.extend(more),
        }
    }
    (addresses, ranges)
}
