//! Checks of WorkloadEntry (and endpoints of a ServiceEntry, which have its shape) and ProxyConfig.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::check::CheckedResource;
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{FieldPath, Fields, Report};
use crate::mesh::{
    CaptureSelection, EndpointAddress, ProxyConfig, ServiceEntryEndpoint, Topology, Workload,
    WorkloadKind, WorkloadType,
};
use crate::names::{Hostname, Labels, Port, ResourceName, WorkloadKey};
use crate::written::{Text, networking as written};

/// Label that says a proxy stands before something that is no Pod.
const TLS_MODE: &str = "security.istio.io/tlsMode";

/// Annotation of an entry that was made for a member of a group.
pub const GROUP: &str = "istio.io/autoRegistrationGroup";
/// Annotation of an entry whose workload has a health check.
pub const HEALTH_CHECKED: &str = "proxy.istio.io/health-checks-enabled";

/// Name of the only cluster there is.
pub(in crate::check) const CLUSTER: &str = "Kubernetes";

pub(in crate::check) fn workload_entry(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<CheckedResource> {
    let written = report.required(written::WorkloadEntry::read(fields), &meta.at, "spec")?;
    let Some(mut endpoint) = endpoint(&written, report) else {
        // A warning has named it; it has no address to call.
        return is_of_network(&written).then(|| CheckedResource::Services(Vec::new(), Vec::new()));
    };
    // Istio selects by the labels of the specification, and takes those of metadata where it has none.
    if endpoint.labels.is_empty() {
        endpoint.labels = meta.labels.clone();
    }
    let uid = format!(
        "{CLUSTER}/networking.istio.io/WorkloadEntry/{}/{}",
        meta.name.namespace, meta.name.name
    );
    let key = WorkloadKey::new(meta.name.namespace.clone(), meta.name.name.clone());
    let mut workload = workload_of(
        &endpoint,
        key,
        uid.into(),
        meta.name.name.clone(),
        WorkloadKind::WorkloadEntry,
    );
    workload.source = meta.source;
    let is_probed = meta.annotations.get(HEALTH_CHECKED) == Some("true");
    // A workload with a health check receives no traffic before its first healthy report.
    workload.ready = written.healthy.unwrap_or(!is_probed);
    let group = meta.annotations.get(GROUP);
    workload.group = group.map(|group| ResourceName::new(meta.name.namespace, group));
    Some(CheckedResource::Workload(workload.into()))
}

/// The workload that an endpoint of a ServiceEntry is, if it has an IP address.
pub(in crate::check) fn endpoint_workload(
    entry: &ResourceName,
    endpoint: &ServiceEntryEndpoint,
) -> Option<Workload> {
    let EndpointAddress::Ip(address) = &endpoint.address else {
        return None;
    };
    let uid = format!(
        "{CLUSTER}/networking.istio.io/ServiceEntry/{}/{}/{address}",
        entry.namespace, entry.name
    );
    let name: Arc<str> = format!("{}/{address}", entry.name).into();
    let key = WorkloadKey::new(entry.namespace.clone(), name);
    let kind = WorkloadKind::ServiceEntryEndpoint(entry.clone());
    Some(workload_of(
        endpoint,
        key,
        uid.into(),
        entry.name.clone(),
        kind,
    ))
}

fn workload_of(
    endpoint: &ServiceEntryEndpoint,
    key: WorkloadKey,
    uid: Arc<str>,
    name: Arc<str>,
    kind: WorkloadKind,
) -> Workload {
    let (addresses, hostname) = match &endpoint.address {
        EndpointAddress::Ip(address) => (vec![*address], None),
        EndpointAddress::Dns(hostname) => (Vec::new(), Some(hostname.clone())),
    };
    Workload {
        key,
        uid,
        source: endpoint.source.clone(),
        kind,
        addresses,
        hostname,
        service_account: endpoint
            .service_account
            .clone()
            .unwrap_or_else(|| "default".into()),
        has_sidecar: endpoint.labels.get(TLS_MODE) == Some("istio"),
        gateway: false,
        waypoint: false,
        ambient: false,
        asks_for_ambient: false,
        node: "".into(),
        canonical_name: canonical_name(&endpoint.labels, &name),
        canonical_revision: canonical_revision(&endpoint.labels),
        workload_name: name,
        workload_type: WorkloadType::Pod,
        named_ports: endpoint.ports.clone(),
        container_ports: endpoint.ports.values().copied().collect(),
        captured_ports: CaptureSelection::default(),
        topology: Topology::default(),
        labels: endpoint.labels.clone(),
        network: endpoint.network.clone(),
        locality: match &*endpoint.locality {
            "" => locality(&endpoint.labels),
            _ => endpoint.locality.clone(),
        },
        weight: endpoint.weight,
        ready: true,
        group: None,
    }
}

/// The locality in a workload's labels: `region/zone/subzone`. Istio's own label precedes Kubernetes' labels. Its parts
/// may be joined by dots, because labels have no slashes.
pub(in crate::check) fn locality(labels: &Labels) -> Arc<str> {
    if let Some(text) = labels.get("istio-locality") {
        return match text.contains('/') {
            true => text.into(),
            false => text.replace('.', "/").into(),
        };
    }
    let parts = [
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "topology.istio.io/subzone",
    ];
    let known = parts.iter().map_while(|key| labels.get(key));
    known.collect::<Vec<_>>().join("/").into()
}

/// Istio's order of labels for the name in metrics.
#[must_use]
pub fn canonical_name(labels: &Labels, otherwise: &Arc<str>) -> Arc<str> {
    let by_label = [
        "service.istio.io/canonical-name",
        "app.kubernetes.io/name",
        "app",
    ]
    .iter()
    .find_map(|key| labels.get(key));
    by_label.map_or_else(|| otherwise.clone(), Into::into)
}

/// Istio's order of labels for the revision in metrics.
#[must_use]
pub fn canonical_revision(labels: &Labels) -> Arc<str> {
    let keys = [
        "service.istio.io/canonical-revision",
        "app.kubernetes.io/version",
        "version",
    ];
    keys.iter()
        .find_map(|key| labels.get(key))
        .unwrap_or("latest")
        .into()
}

pub(in crate::check) fn endpoint(
    written: &written::WorkloadEntry,
    report: &Report,
) -> Option<ServiceEntryEndpoint> {
    let text = written
        .address
        .as_ref()
        .filter(|text| !text.value.is_empty());
    if text.is_none() && is_of_network(written) {
        let message = "an endpoint with `network` but without `address` is never called: gateways between networks forward only to Services";
        let help = "write an address that is reachable from this network";
        report.warning(codes::NOT_OBEYED, &written.at, message, help);
        return None;
    }
    let address = report
        .required(text, &written.at, "address")
        .and_then(|text| address(text, report));
    let described = described(written, report);
    Some(ServiceEntryEndpoint {
        address: address?,
        labels: described.labels,
        ports: described.ports,
        network: described.network,
        locality: described.locality,
        weight: described.weight,
        service_account: described.service_account,
        source: report.source(&written.at),
    })
}

/// Returns true if an endpoint has a network and no address.
pub(in crate::check) fn is_of_network(written: &written::WorkloadEntry) -> bool {
    let named = |text: &Option<Text>| text.as_ref().is_some_and(|text| !text.value.is_empty());
    named(&written.network) && !named(&written.address)
}

/// Properties of a workload without its address.
pub(in crate::check) struct DescribedEndpoint {
    pub(in crate::check) labels: Labels,
    pub(in crate::check) ports: BTreeMap<Arc<str>, Port>,
    pub(in crate::check) network: Arc<str>,
    pub(in crate::check) locality: Arc<str>,
    pub(in crate::check) weight: Option<u32>,
    pub(in crate::check) service_account: Option<Arc<str>>,
}

pub(in crate::check) fn described(
    written: &written::WorkloadEntry,
    report: &Report,
) -> DescribedEndpoint {
    let mut ports = BTreeMap::new();
    for (name, number) in &written.ports {
        let name = values::port_name(name, report);
        let number = number.as_ref().and_then(|number| report.port(number));
        ports.extend(name.zip(number));
    }
    let weight = written.weight.as_ref().and_then(|weight| {
        let value = u32::try_from(weight.value).ok();
        if value.is_none() {
            report.error(
                codes::BAD_VALUE,
                &weight.at,
                format!("{} is not a weight", weight.value),
                "0 or more",
            );
        }
        value
    });
    let text = |text: &Option<Text>| {
        text.as_ref()
            .map_or_else(|| "".into(), |text| text.value.clone())
    };
    DescribedEndpoint {
        labels: values::labels(&written.labels, report),
        ports,
        network: text(&written.network),
        locality: text(&written.locality),
        weight,
        service_account: written
            .service_account
            .as_ref()
            .filter(|text| !text.value.is_empty())
            .map(|text| values::service_account(Some(text), report)),
    }
}

fn address(text: &Text, report: &Report) -> Option<EndpointAddress> {
    if text.value.starts_with("unix:") {
        let message = "Unix sockets are not yet supported as addresses";
        report.error(
            codes::NOT_YET,
            &text.at,
            message,
            "write an IP address or a host name",
        );
        return None;
    }
    if text.value.parse::<IpAddr>().is_ok() {
        return values::unicast_ip(text, report).map(EndpointAddress::Ip);
    }
    // A name that is only digits and dots is a mistyped address, not a host.
    let host = |text: &str| {
        let numeric = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        Hostname::new(text).filter(|host| !host.is_wildcard() && !numeric)
    };
    report
        .parsed(
            text,
            "an address",
            host,
            "write an IP address or a host name, without a port",
        )
        .map(EndpointAddress::Dns)
}

pub(in crate::check) fn proxy_config(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<ProxyConfig> {
    let written = written::ProxyConfig::read(fields);
    Some(ProxyConfig {
        name: meta.name,
        source: meta.source,
        selector: values::selector(written.selector.as_ref(), report),
    })
}

/// Worker threads; 0 leaves the choice to the proxy.
pub(in crate::check) fn concurrency(
    number: &crate::decode::SpannedValue<i64>,
    report: &Report,
) -> Option<u32> {
    const MAX_WORKERS: i64 = 1024; // more threads than any machine has cores
    let at: &FieldPath = &number.at;
    if !(0..=MAX_WORKERS).contains(&number.value) {
        let message = format!("{} workers are not allowed", number.value);
        report.error(
            codes::BAD_VALUE,
            at,
            message,
            format!("a number from 0 to {MAX_WORKERS}"),
        );
    }
    u32::try_from(number.value)
        .ok()
        .filter(|number| *number != 0)
}
