//! Reads and checks EndpointSlice, and Endpoints, which come to the same.

use std::net::IpAddr;
use std::sync::Arc;

use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{FieldPath, Fields, Report, Text};
use crate::mesh::{
    EndpointAddress, EndpointSlice, EndpointSubset, Readiness, SliceEndpoint, SliceKind, SlicePort,
};
use crate::names::{Hostname, ResourceName};

/// Label that names the Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Labels by which Kubernetes' controllers mark the slices that they wrote for a Service's selector.
const WRITTEN_BY: [(&str, &str); 2] = [
    (
        "endpointslice.kubernetes.io/managed-by",
        "endpointslice-controller.k8s.io",
    ),
    ("endpoints.kubernetes.io/managed-by", "endpoint-controller"),
];
/// Annotation that the older controller leaves on each Endpoints.
const TRIGGERED: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Label of an Endpoints that is not mirrored into slices.
const NOT_MIRRORED: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Label for the region of a slice's endpoints; a zone alone does not give the region.
const REGION: &str = "topology.kubernetes.io/region";

/// `addressType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressType {
    V4,
    V6,
    Name,
    /// Of an Endpoints.
    Either,
    /// One that cannot be read.
    Unknown,
}

pub(in crate::check) fn endpoint_slice(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> EndpointSlice {
    let types = [
        ("IPv4", AddressType::V4),
        ("IPv6", AddressType::V6),
        ("FQDN", AddressType::Name),
    ];
    let kind = report.required(fields.text("addressType"), &meta.at, "addressType");
    let kind = kind.and_then(|text| report.one_of(&text, &types));
    let service = meta.labels.get(SERVICE_NAME).map(Into::into);
    let checking = SliceContext::new(&meta, kind.unwrap_or(AddressType::Unknown), report);
    let subsets = vec![EndpointSubset {
        ports: checking.ports(fields),
        endpoints: fields.mappings("endpoints", |one| checking.endpoint(one, None)),
    }];
    checking.slice(&meta, SliceKind::EndpointSlice, service, subsets)
}

pub(in crate::check) fn endpoints(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> EndpointSlice {
    let mirrored = meta.labels.get(NOT_MIRRORED) != Some("true");
    let service = mirrored.then(|| meta.name.name.clone());
    let checking = SliceContext::new(&meta, AddressType::Either, report);
    let subsets = fields.mappings("subsets", |subset| Some(checking.subset(subset)));
    checking.slice(&meta, SliceKind::Endpoints, service, subsets)
}

/// Context of the resource whose endpoints are checked.
struct SliceContext<'a> {
    name: ResourceName,
    kind: AddressType,
    region: Option<Arc<str>>,
    /// Kubernetes' controller wrote it for the Service's selector, so it is not in force.
    of_selector: bool,
    report: &'a Report,
}

impl<'a> SliceContext<'a> {
    fn new(meta: &Meta, kind: AddressType, report: &'a Report) -> Self {
        let mut labels = WRITTEN_BY.iter();
        let labelled = labels.any(|(label, by)| meta.labels.get(label) == Some(*by));
        Self {
            name: meta.name.clone(),
            kind,
            region: meta.labels.get(REGION).map(Into::into),
            of_selector: labelled || meta.annotations.get(TRIGGERED).is_some(),
            report,
        }
    }

    fn slice(
        &self,
        meta: &Meta,
        kind: SliceKind,
        service: Option<Arc<str>>,
        subsets: Vec<EndpointSubset>,
    ) -> EndpointSlice {
        EndpointSlice {
            name: self.name.clone(),
            kind,
            service,
            source: meta.source.clone(),
            of_selector: self.of_selector,
            subsets,
        }
    }

    /// One of an Endpoints' `subsets`.
    fn subset(&self, fields: &mut Fields<'_>) -> EndpointSubset {
        let mut endpoints = Vec::new();
        for (name, readiness) in [
            ("addresses", Readiness::Ready),
            ("notReadyAddresses", Readiness::NotReady),
        ] {
            endpoints.extend(fields.mappings(name, |one| self.endpoint(one, Some(readiness))));
        }
        EndpointSubset {
            endpoints,
            ports: self.ports(fields),
        }
    }

    fn ports(&self, fields: &mut Fields<'_>) -> Vec<SlicePort> {
        let mut names = Vec::new();
        let ports = fields.mappings("ports", |port| self.port(port, &mut names));
        values::unique_names("port name", &names, self.report);
        ports
    }

    fn port(&self, fields: &mut Fields<'_>, names: &mut Vec<Text>) -> Option<SlicePort> {
        let report = self.report;
        let name = fields.text("name");
        names.extend(name.clone());
        let name = name.filter(|name| !name.value.is_empty());
        let name = name.map_or(Some("".into()), |name| values::port_name(&name, report));
        // Kubernetes leaves open what a slice means that says no number.
        let number = report.required(fields.integer("port"), fields.at(), "port");
        let number = number.and_then(|number| report.port(&number));
        let transport = values::transport(fields);
        // The Service declares the protocol.
        fields.ignore(&["appProtocol"]);
        Some(SlicePort {
            name: name?,
            transport: transport?,
            number: number?,
        })
    }

    /// One of a slice's `endpoints`, or, with a readiness, of the addresses of an Endpoints.
    fn endpoint(&self, fields: &mut Fields<'_>, older: Option<Readiness>) -> Option<SliceEndpoint> {
        let report = self.report;
        let conditions = || fields.mapping("conditions", readiness);
        let readiness = older.or_else(conditions).unwrap_or(Readiness::Ready);
        let (name, addresses) = match older {
            None => ("addresses", fields.texts("addresses")),
            Some(_) => ("ip", fields.text("ip").into_iter().collect()),
        };
        let hostname = fields.text("hostname");
        let zone = match older {
            None => fields.text("zone"),
            Some(_) => None,
        };
        let target = fields.mapping("targetRef", |target| {
            let said = ["kind", "namespace", "name"].map(|name| target.text(name));
            target.ignore(&["apiVersion", "fieldPath", "resourceVersion", "uid"]);
            said
        });
        // Hints about callers are ignored; `zone` gives the locality.
        fields.ignore(match older {
            None => &["deprecatedTopology", "hints", "nodeName"],
            Some(_) => &["nodeName"],
        });
        let address = report.required(addresses.first(), fields.at(), name)?;
        if let Some(other) = addresses.get(1) {
            let message = "several addresses of one endpoint are not yet supported: Kubernetes does not define their use";
            let help = "write an endpoint for each address";
            report.error(codes::NOT_YET, &other.at, message, help);
        }
        let address = self.address(address)?;
        let pod = target.and_then(|target| self.pod(target, fields.at()));
        self.unheard(hostname, zone.as_ref(), pod.as_ref());
        let locality = match (&self.region, zone) {
            (Some(region), Some(zone)) => format!("{region}/{}", zone.value).into(),
            (Some(region), None) => region.clone(),
            (None, _) => "".into(),
        };
        Some(SliceEndpoint {
            address,
            readiness,
            pod,
            locality,
            source: report.source(fields.at()),
        })
    }

    /// An address of the kind that the slice says it has.
    fn address(&self, text: &Text) -> Option<EndpointAddress> {
        let report = self.report;
        if self.kind == AddressType::Unknown {
            return None;
        }
        if self.kind == AddressType::Name {
            let host = |text: &str| {
                let numeric = text.parse::<IpAddr>().is_ok();
                Hostname::new(text).filter(|host| !host.is_wildcard() && !numeric)
            };
            let help = "write a host name, or another addressType";
            let found = report.parsed(text, "an address of addressType FQDN", host, help);
            return found.map(EndpointAddress::Dns);
        }
        let address = values::unicast_ip(text, report)?;
        let fits = match self.kind {
            AddressType::V4 => address.is_ipv4(),
            AddressType::V6 => address.is_ipv6(),
            AddressType::Name | AddressType::Either | AddressType::Unknown => true,
        };
        if !fits {
            let message = format!("`{address}` is not of the slice's addressType");
            let help = "a slice has addresses of one family: write another slice for the other";
            report.error(codes::CONTRADICTION, &text.at, message, help);
            return None;
        }
        if is_link_local(address) {
            let message =
                format!("`{address}` is a link-local address, which each host has of its own");
            let help = "write an address that is not link-local; Kubernetes rejects it, too";
            report.error(codes::BAD_VALUE, &text.at, message, help);
            return None;
        }
        Some(EndpointAddress::Ip(address))
    }

    /// The Pod that an endpoint must be; other kinds mean nothing here.
    fn pod(
        &self,
        [kind, namespace, name]: [Option<Text>; 3],
        at: &FieldPath,
    ) -> Option<ResourceName> {
        if &*kind?.value != "Pod" {
            return None;
        }
        let name = self.report.required(name, at, "targetRef.name")?;
        let namespace = match &namespace {
            Some(namespace) => values::namespace(namespace, self.report)?,
            None => self.name.namespace.clone(),
        };
        Some(ResourceName::new(namespace, name.value))
    }

    /// Reports the ignored fields of an endpoint.
    fn unheard(&self, hostname: Option<Text>, zone: Option<&Text>, pod: Option<&ResourceName>) {
        if self.of_selector {
            return;
        }
        if let Some(zone) = zone
            && self.region.is_none()
        {
            let message = format!(
                "zone {} without a region has no effect: locality needs a region",
                zone.value
            );
            let help = format!("label the slice {REGION}");
            self.report.warning(codes::NOT_YET, &zone.at, message, help);
        }
        if let Some(hostname) = hostname
            && pod.is_none_or(|pod| pod.name != hostname.value)
        {
            let message = format!(
                "hostname {} is not yet supported: the mesh's DNS does not resolve it",
                hostname.value
            );
            let help = "pods behind a headless Service have their own names there";
            self.report
                .warning(codes::NOT_YET, &hostname.at, message, help);
        }
    }
}

/// Reads `conditions`; nothing said is ready.
fn readiness(fields: &mut Fields<'_>) -> Readiness {
    let ready = fields.optional_flag("ready").unwrap_or(true);
    let (serving, terminating) = (fields.flag("serving"), fields.flag("terminating"));
    match ready {
        true => Readiness::Ready,
        false if serving && terminating => Readiness::Leaving,
        false => Readiness::NotReady,
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
