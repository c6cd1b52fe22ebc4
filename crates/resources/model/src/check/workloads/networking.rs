//! Checks of WorkloadEntry (and endpoints of a ServiceEntry, which have its shape) and ProxyConfig.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::check::CheckedResource;
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{Cursor, FieldPath, Fields, Report, Text};
use crate::mesh::{
    CaptureSelection, EndpointAddress, ProxyConfig, ServiceEntryEndpoint, Topology, Workload,
    WorkloadKind, WorkloadType,
};
use crate::names::{Hostname, Labels, Port, ResourceName, WorkloadKey};

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
    let healthy = healthy(fields);
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let (endpoint, _) = endpoint(&mut spec);
    spec.finish();
    let Some(mut endpoint) = endpoint else {
        // A warning or an error has named it; it has no address to call.
        return Some(CheckedResource::Services(Vec::new(), Vec::new()));
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
    workload.ready = healthy.unwrap_or(!is_probed);
    let group = meta.annotations.get(GROUP);
    workload.group = group.map(|group| ResourceName::new(meta.name.namespace, group));
    Some(CheckedResource::Workload(workload.into()))
}

/// The condition `Healthy` in `status`, written by the prober; `None` if unknown.
fn healthy(fields: &mut Fields<'_>) -> Option<bool> {
    let conditions = fields.inner("status")?.list("conditions", |cursor| {
        let mut condition = cursor.fields()?;
        let kind = condition.value("type")?;
        Some((kind, condition.value("status")?))
    });
    let mut conditions = conditions.iter();
    let (_, said) = conditions.find(|(kind, _)| &**kind == "Healthy")?;
    match &**said {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
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

/// Reads the `spec` of a WorkloadEntry, or one of `endpoints` of a ServiceEntry, and the names of its ports.
pub(in crate::check) fn endpoint(
    fields: &mut Fields<'_>,
) -> (Option<ServiceEntryEndpoint>, Vec<Text>) {
    let report = fields.report();
    let ports = fields.get("ports");
    let text = fields.text("address");
    let text = text.filter(|text| !text.value.is_empty());
    let (described, names) = described(ports, fields);
    if text.is_none() && !described.network.is_empty() {
        let message = "an endpoint with `network` but without `address` is never called: gateways between networks forward only to Services";
        let help = "write an address that is reachable from this network";
        report.warning(codes::NOT_OBEYED, fields.at(), message, help);
        return (None, names);
    }
    let address = report
        .required(text, fields.at(), "address")
        .and_then(|text| address(&text, report));
    let endpoint = address.map(|address| ServiceEntryEndpoint {
        address,
        labels: described.labels,
        ports: described.ports,
        network: described.network,
        locality: described.locality,
        weight: described.weight,
        service_account: described.service_account,
        source: report.source(fields.at()),
    });
    (endpoint, names)
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

/// Reads everything but the address and `ports`, which come first, and the names of ports as written.
pub(in crate::check) fn described(
    ports: Option<Cursor<'_>>,
    fields: &mut Fields<'_>,
) -> (DescribedEndpoint, Vec<Text>) {
    let report = fields.report();
    let entries = ports.map(|ports| ports.entries());
    let (mut ports, mut names) = (BTreeMap::new(), Vec::new());
    for (name, number) in entries.unwrap_or_default() {
        let number = number.integer().and_then(|number| report.port(&number));
        ports.extend(values::port_name(&name, report).zip(number));
        names.push(name);
    }
    let labels = values::labels(&fields.text_map("labels"), report);
    let network = fields.value("network").unwrap_or_default();
    let locality = fields.value("locality").unwrap_or_default();
    let weight = fields.integer("weight").and_then(|weight| {
        let value = u32::try_from(weight.value).ok();
        if value.is_none() {
            let message = format!("{} is not a weight", weight.value);
            report.error(codes::BAD_VALUE, &weight.at, message, "0 or more");
        }
        value
    });
    let account = fields.text("serviceAccount");
    let account = account.filter(|text| !text.value.is_empty());
    let described = DescribedEndpoint {
        labels,
        ports,
        network,
        locality,
        weight,
        service_account: account.map(|text| values::service_account(Some(&text), report)),
    };
    (described, names)
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

pub(in crate::check) fn proxy_config(meta: Meta, fields: &mut Fields<'_>) -> ProxyConfig {
    fields.ignore(&["status"]);
    let selector = fields.mapping("spec", |spec| {
        let selector = values::selected(spec, "selector", "matchLabels");
        let instead = "the annotation `proxy.istio.io/config` of a pod says it";
        spec.without_effect(&[
            ("concurrency", instead),
            (
                "environmentVariables",
                "`proxyMetadata` in the annotation `proxy.istio.io/config` of a pod says it",
            ),
            (
                "image",
                "the annotation `sidecar.istio.io/proxyImage` of a pod says it",
            ),
        ]);
        selector
    });
    ProxyConfig {
        name: meta.name,
        source: meta.source,
        selector: selector.flatten(),
    }
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
