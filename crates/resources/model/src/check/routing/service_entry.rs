//! Check of ServiceEntry: Istio's rules on which resolution goes with which hosts, addresses and endpoints.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::check::kubernetes::distribution;
use crate::check::values::{self, Meta};
use crate::check::{CheckedResource, networking};
use crate::codes;
use crate::decode::{Fields, Report};
use crate::mesh::network::GLOBAL;
use crate::mesh::waypoint::WaypointChoice;
use crate::mesh::{
    AddressRange, EndpointAddress, Location, MeshService, Protocol, Resolution,
    ServiceEntryEndpoint, ServiceOrigin, ServicePort, TargetPort, Transport,
};
use crate::names::{Hostname, ResourceName, ServiceKey, is_mesh_name};
use crate::text::clip;
use crate::written::{Text, TextMap, networking as written};

/// Most declared port names among which a near miss is looked for.
const MAX_SUGGESTED_PORTS: usize = 16;

pub(in crate::check) fn service_entry(
    (meta, annotations): (Meta, &TextMap),
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<CheckedResource> {
    let written = report.required(written::ServiceEntry::read(fields), &meta.at, "spec")?;
    must_have(&written, report);
    let locations = [
        ("MESH_EXTERNAL", Location::MeshExternal),
        ("MESH_INTERNAL", Location::MeshInternal),
    ];
    let location = written
        .location
        .as_ref()
        .map_or(Some(Location::MeshExternal), |text| {
            report.one_of(text, &locations)
        });
    let resolution = resolution(&written, report);
    let hosts: Vec<Hostname> = written
        .hosts
        .iter()
        .filter_map(|host| values::hostname(host, report))
        .collect();
    values::unique(
        "host",
        written
            .hosts
            .iter()
            .map(|host| (host.value.clone(), &host.at)),
        report,
    );
    let endpoints: Vec<ServiceEntryEndpoint> = written
        .endpoints
        .iter()
        .filter_map(|e| networking::endpoint(e, report))
        .collect();
    let ports = ports(&written, report);
    let (addresses, address_ranges) = addresses(&written.addresses, report);
    let resolution = resolution?;
    fits(&written, &hosts, &endpoints, &resolution, report);
    let model = MeshService {
        waypoint: WaypointChoice::of(&meta.labels),
        key: ServiceKey::new(meta.name.namespace.clone(), hosts.first()?.clone()),
        name: meta.name.name.clone(),
        source: meta.source,
        origin: ServiceOrigin::ServiceEntry,
        addresses,
        address_ranges,
        ports,
        selector: values::selector(written.selector.as_ref(), report)
            .filter(|_| resolution != Resolution::Passthrough),
        location: location?,
        resolution,
        headless: false,
        endpoints,
        subject_alt_names: written
            .subject_alt_names
            .iter()
            .map(|name| name.value.clone())
            .collect(),
        visibility: values::visibility(&written.export_to, &meta.name.namespace, report),
        published: false,
        global: meta.labels.get(GLOBAL) == Some("true"),
        distribution: distribution(None, annotations, report),
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

fn must_have(written: &written::ServiceEntry, report: &Report) {
    if written.hosts.is_empty() {
        report.required(None::<()>, &written.at, "hosts");
    }
    if written.ports.is_empty() {
        let message = "a ServiceEntry without `ports` has no effect";
        let help = "add its ports";
        report.warning(codes::NO_MEANING, &written.at, message, help);
    }
}

fn resolution(written: &written::ServiceEntry, report: &Report) -> Option<Resolution> {
    let words = [
        ("NONE", 0),
        ("STATIC", 1),
        ("DNS", 2),
        ("DNS_ROUND_ROBIN", 3),
        ("DYNAMIC_DNS", 4),
    ];
    let number = written
        .resolution
        .as_ref()
        .map_or(Some(0), |text| report.one_of(text, &words))?;
    Some(match number {
        1 => Resolution::Static,
        2 => Resolution::Dns,
        3 => Resolution::DnsRoundRobin,
        4 => Resolution::DynamicDns,
        _ => Resolution::Passthrough,
    })
}

fn is_selecting(written: &written::ServiceEntry) -> bool {
    let selector = written.selector.as_ref();
    selector.is_some_and(|selector| !selector.labels.is_empty())
}

/// Checks that hosts, endpoints, selector and resolution fit together.
fn fits(
    written: &written::ServiceEntry,
    hosts: &[Hostname],
    endpoints: &[ServiceEntryEndpoint],
    resolution: &Resolution,
    report: &Report,
) {
    let at = written
        .resolution
        .as_ref()
        .map_or(&written.at, |text| &text.at);
    let clash = |message: &str, help: &str| report.error(codes::CONTRADICTION, at, message, help);
    let wildcard = hosts.iter().any(Hostname::is_wildcard);
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
        Resolution::Passthrough if is_selecting(written) => {
            let message = "`workloadSelector` has no effect: with resolution NONE connections go where the client sent them";
            report.warning(codes::NOT_OBEYED, at, message, "use STATIC, or remove it");
        }
        Resolution::Static
            if endpoints
                .iter()
                .any(|e| matches!(e.address, EndpointAddress::Dns(_))) =>
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
            if *resolution == Resolution::DnsRoundRobin && endpoints.len() > 1 {
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
fn leads_out(written: &written::ServiceEntry, report: &Report) {
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

fn ports(written: &written::ServiceEntry, report: &Report) -> Vec<ServicePort> {
    let all = &written.ports;
    let names = all.iter().filter_map(|p| p.port.name.as_ref());
    values::unique(
        "port name",
        names.map(|name| (name.value.clone(), &name.at)),
        report,
    );
    let numbers = all.iter().filter_map(|p| p.port.number.as_ref());
    values::unique(
        "port",
        numbers.map(|number| (number.value, &number.at)),
        report,
    );
    let declared: BTreeSet<&str> = all
        .iter()
        .filter_map(|p| p.port.name.as_ref())
        .map(|name| &*name.value)
        .collect();
    for (name, _) in written
        .endpoints
        .iter()
        .flat_map(|endpoint| &endpoint.ports)
    {
        if !declared.contains(&*name.value) {
            let message = format!(
                "no port of the ServiceEntry has the name `{}`",
                clip(&name.value)
            );
            // Few, so that a hostile entry cannot make the search for near misses long.
            let help = crate::text::suggest(
                &name.value,
                declared.iter().take(MAX_SUGGESTED_PORTS).copied(),
            );
            report.error(codes::CONTRADICTION, &name.at, message, help);
        }
    }
    all.iter()
        .filter_map(|port| service_port(port, report))
        .collect()
}

fn service_port(written: &written::ServiceEntryPort, report: &Report) -> Option<ServicePort> {
    let port = &written.port;
    let number = report
        .required(port.number.as_ref(), &port.at, "number")
        .and_then(|number| report.port(number));
    let name = report
        .required(port.name.as_ref(), &port.at, "name")
        .and_then(|name| values::port_name(name, report));
    let target = written
        .target_port
        .as_ref()
        .map(|number| report.port(number));
    let protocol = values::istio_protocol(port.protocol.as_ref(), report);
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
        source: report.source(&port.at),
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
