//! Check of EndpointSlice, and of Endpoints, which come to the same.

use std::net::IpAddr;
use std::sync::Arc;

use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{FieldPath, Fields, Report};
use crate::mesh::{
    EndpointAddress, EndpointSlice, EndpointSubset, Readiness, SliceEndpoint, SliceKind, SlicePort,
    Transport,
};
use crate::names::{Hostname, ResourceName};
use crate::written::Text;
use crate::written::endpoints as written;

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
}

pub(in crate::check) fn endpoint_slice(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<EndpointSlice> {
    let written = written::EndpointSlice::read(fields);
    let types = [
        ("IPv4", AddressType::V4),
        ("IPv6", AddressType::V6),
        ("FQDN", AddressType::Name),
    ];
    let kind = report
        .required(written.address_type.as_ref(), &meta.at, "addressType")
        .and_then(|text| report.one_of(text, &types))?;
    let service = meta.labels.get(SERVICE_NAME).map(Into::into);
    let checking = SliceContext::new(&meta, kind, report);
    let subsets = vec![checking.subset(&written.subset)];
    Some(checking.slice(&meta, SliceKind::EndpointSlice, service, subsets))
}

pub(in crate::check) fn endpoints(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> EndpointSlice {
    let written = written::subsets(fields);
    let mirrored = meta.labels.get(NOT_MIRRORED) != Some("true");
    let service = mirrored.then(|| meta.name.name.clone());
    let checking = SliceContext::new(&meta, AddressType::Either, report);
    let subsets = written.iter().map(|one| checking.subset(one)).collect();
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

    fn subset(&self, written: &written::Subset) -> EndpointSubset {
        let named = written.ports.iter().filter_map(|port| port.name.as_ref());
        values::unique(
            "port name",
            named.map(|name| (name.value.clone(), &name.at)),
            self.report,
        );
        let ports = written.ports.iter().filter_map(|port| self.port(port));
        let endpoints = written.endpoints.iter();
        EndpointSubset {
            ports: ports.collect(),
            endpoints: endpoints.filter_map(|one| self.endpoint(one)).collect(),
        }
    }

    fn port(&self, written: &written::Port) -> Option<SlicePort> {
        let report = self.report;
        // Kubernetes leaves open what a slice means that says no number.
        let number = report
            .required(written.number.as_ref(), &written.at, "port")
            .and_then(|number| report.port(number));
        let name = match &written.name {
            Some(name) if !name.value.is_empty() => values::port_name(name, report)?,
            _ => "".into(),
        };
        let transports = [
            ("TCP", Some(Transport::Tcp)),
            ("UDP", Some(Transport::Udp)),
            ("SCTP", None),
        ];
        let said = written.protocol.as_ref();
        let transport = said.map_or(Some(Some(Transport::Tcp)), |text| {
            report.one_of(text, &transports)
        })?;
        let Some(transport) = transport else {
            let help = "use TCP or UDP";
            report.error(
                codes::NOT_YET,
                &written.at,
                "SCTP is not yet supported",
                help,
            );
            return None;
        };
        Some(SlicePort {
            name,
            transport,
            number: number?,
        })
    }

    fn endpoint(&self, written: &written::WrittenEndpoint) -> Option<SliceEndpoint> {
        let report = self.report;
        let [first, others @ ..] = &written.addresses[..] else {
            let name = match self.kind {
                AddressType::Either => "ip",
                AddressType::V4 | AddressType::V6 | AddressType::Name => "addresses",
            };
            report.required(None::<()>, &written.at, name);
            return None;
        };
        if let Some(other) = others.first() {
            let message = "several addresses of one endpoint are not yet supported: Kubernetes does not define their use";
            let help = "write an endpoint for each address";
            report.error(codes::NOT_YET, &other.at, message, help);
        }
        let address = self.address(first)?;
        let target = written.target.as_ref();
        let pod = target.and_then(|target| self.pod(target, &written.at));
        self.unheard(written, pod.as_ref());
        let locality = match (&self.region, &written.zone) {
            (Some(region), Some(zone)) => format!("{region}/{}", zone.value).into(),
            (Some(region), None) => region.clone(),
            (None, _) => "".into(),
        };
        Some(SliceEndpoint {
            address,
            readiness: readiness(written),
            pod,
            locality,
            source: report.source(&written.at),
        })
    }

    /// An address of the kind that the slice says it has.
    fn address(&self, text: &Text) -> Option<EndpointAddress> {
        let report = self.report;
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
            AddressType::Name | AddressType::Either => true,
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
    fn pod(&self, target: &written::TargetRef, at: &FieldPath) -> Option<ResourceName> {
        let kind = target.kind.as_ref()?;
        if &*kind.value != "Pod" {
            return None;
        }
        let name = self
            .report
            .required(target.name.as_ref(), at, "targetRef.name")?;
        let namespace = match &target.namespace {
            Some(namespace) => values::namespace(namespace, self.report)?,
            None => self.name.namespace.clone(),
        };
        Some(ResourceName::new(namespace, name.value.clone()))
    }

    /// Reports the ignored fields of an endpoint.
    fn unheard(&self, written: &written::WrittenEndpoint, pod: Option<&ResourceName>) {
        if self.of_selector {
            return;
        }
        if let Some(zone) = &written.zone
            && self.region.is_none()
        {
            let message = format!(
                "zone {} without a region has no effect: locality needs a region",
                zone.value
            );
            let help = format!("label the slice {REGION}");
            self.report.warning(codes::NOT_YET, &zone.at, message, help);
        }
        if let Some(hostname) = &written.hostname
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

/// Nothing said is ready.
fn readiness(written: &written::WrittenEndpoint) -> Readiness {
    let said = |condition: Option<bool>| condition == Some(true);
    match written.ready.unwrap_or(true) {
        true => Readiness::Ready,
        false if said(written.serving) && said(written.terminating) => Readiness::Leaving,
        false => Readiness::NotReady,
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
