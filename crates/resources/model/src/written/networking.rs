//! `networking.istio.io`: ServiceEntry, WorkloadEntry, WorkloadGroup, Sidecar and ProxyConfig.

use super::probe::Probe;
use super::{Selector, Text, TextMap};
use crate::decode::{Cursor, FieldPath, Fields, SpannedValue};

/// `spec` of a ServiceEntry.
#[derive(Debug)]
pub(crate) struct ServiceEntry {
    pub(crate) at: FieldPath,
    pub(crate) hosts: Vec<Text>,
    pub(crate) addresses: Vec<Text>,
    pub(crate) ports: Vec<ServiceEntryPort>,
    pub(crate) location: Option<Text>,
    pub(crate) resolution: Option<Text>,
    pub(crate) endpoints: Vec<WorkloadEntry>,
    pub(crate) selector: Option<Selector>,
    pub(crate) export_to: Vec<Text>,
    pub(crate) subject_alt_names: Vec<Text>,
}

/// One of `ports` of a ServiceEntry.
#[derive(Debug)]
pub(crate) struct ServiceEntryPort {
    pub(crate) port: ListenerPort,
    pub(crate) target_port: Option<SpannedValue<i64>>,
}

/// Number, protocol and name, as Istio writes ports.
#[derive(Debug)]
pub(crate) struct ListenerPort {
    pub(crate) at: FieldPath,
    pub(crate) number: Option<SpannedValue<i64>>,
    pub(crate) protocol: Option<Text>,
    pub(crate) name: Option<Text>,
}

/// `spec` of a WorkloadEntry, and each of `endpoints` of a ServiceEntry.
#[derive(Debug)]
pub(crate) struct WorkloadEntry {
    pub(crate) at: FieldPath,
    pub(crate) address: Option<Text>,
    pub(crate) ports: Vec<(Text, Option<SpannedValue<i64>>)>,
    pub(crate) labels: TextMap,
    pub(crate) network: Option<Text>,
    pub(crate) locality: Option<Text>,
    pub(crate) weight: Option<SpannedValue<i64>>,
    pub(crate) service_account: Option<Text>,
    /// The condition `Healthy` in `status`, written by the prober; `None` if unknown.
    pub(crate) healthy: Option<bool>,
}

/// `spec` of a WorkloadGroup.
#[derive(Debug)]
pub(crate) struct WorkloadGroup {
    pub(crate) at: FieldPath,
    pub(crate) labels: TextMap,
    pub(crate) annotations: TextMap,
    pub(crate) template: Option<WorkloadEntry>,
    pub(crate) probe: Option<Probe>,
}

/// `spec` of a Sidecar.
#[derive(Debug, Default)]
pub(crate) struct WrittenSidecar {
    pub(crate) selector: Option<Selector>,
    pub(crate) ingress: Vec<Ingress>,
    pub(crate) egress: Vec<Egress>,
    pub(crate) outbound_mode: Option<Text>,
}

/// One of `ingress`.
#[derive(Debug)]
pub(crate) struct Ingress {
    pub(crate) at: FieldPath,
    pub(crate) port: Option<ListenerPort>,
    pub(crate) bind: Option<Text>,
    pub(crate) capture_mode: Option<Text>,
    pub(crate) default_endpoint: Option<Text>,
}

/// One of `egress`.
#[derive(Debug)]
pub(crate) struct Egress {
    pub(crate) at: FieldPath,
    pub(crate) port: Option<ListenerPort>,
    pub(crate) bind: Option<Text>,
    pub(crate) capture_mode: Option<Text>,
    pub(crate) hosts: Vec<Text>,
}

/// `spec` of a ProxyConfig.
#[derive(Debug, Default)]
pub(crate) struct ProxyConfig {
    pub(crate) selector: Option<Selector>,
}

impl ServiceEntry {
    /// Reads `spec`.
    pub(crate) fn read(document: &mut Fields<'_>) -> Option<Self> {
        document.ignore(&["status"]);
        let mut spec = document.inner("spec")?;
        let entry = Self {
            at: spec.at().clone(),
            hosts: spec.texts("hosts"),
            addresses: spec.texts("addresses"),
            ports: spec.list("ports", ServiceEntryPort::read),
            location: spec.text("location"),
            resolution: spec.text("resolution"),
            endpoints: spec.list("endpoints", |cursor| {
                let mut fields = cursor.fields()?;
                let endpoint = WorkloadEntry::read_fields(&mut fields);
                fields.finish();
                Some(endpoint)
            }),
            selector: Selector::read(&mut spec, "workloadSelector", "labels"),
            export_to: spec.texts("exportTo"),
            subject_alt_names: spec.texts("subjectAltNames"),
        };
        spec.finish();
        Some(entry)
    }
}

impl ServiceEntryPort {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let port = Self {
            port: ListenerPort::read_fields(&mut fields),
            target_port: fields.integer("targetPort"),
        };
        fields.finish();
        Some(port)
    }
}

impl ListenerPort {
    fn read_fields(fields: &mut Fields<'_>) -> Self {
        Self {
            at: fields.at().clone(),
            number: fields.integer("number"),
            protocol: fields.text("protocol"),
            name: fields.text("name"),
        }
    }

    fn read(parent: &mut Fields<'_>) -> Option<Self> {
        let mut fields = parent.inner("port")?;
        let port = Self::read_fields(&mut fields);
        fields.ignore(&["targetPort"]);
        fields.finish();
        Some(port)
    }
}

impl WorkloadEntry {
    /// Reads `spec`.
    pub(crate) fn read(document: &mut Fields<'_>) -> Option<Self> {
        let healthy = document.inner("status").and_then(|mut status| {
            let conditions = status.list("conditions", |cursor| {
                let mut condition = cursor.fields()?;
                let kind = condition.text("type")?;
                Some((kind.value, condition.text("status")?.value))
            });
            let mut conditions = conditions.iter();
            let (_, said) = conditions.find(|(kind, _)| &**kind == "Healthy")?;
            match &**said {
                "True" => Some(true),
                "False" => Some(false),
                _ => None,
            }
        });
        let mut spec = document.inner("spec")?;
        let entry = Self {
            healthy,
            ..Self::read_fields(&mut spec)
        };
        spec.finish();
        Some(entry)
    }

    fn read_fields(fields: &mut Fields<'_>) -> Self {
        let ports = fields
            .get("ports")
            .map(|cursor| cursor.entries())
            .unwrap_or_default();
        Self {
            at: fields.at().clone(),
            address: fields.text("address"),
            ports: ports
                .into_iter()
                .map(|(name, cursor)| (name, cursor.integer()))
                .collect(),
            labels: fields.text_map("labels"),
            network: fields.text("network"),
            locality: fields.text("locality"),
            weight: fields.integer("weight"),
            service_account: fields.text("serviceAccount"),
            healthy: None,
        }
    }
}

impl WorkloadGroup {
    /// Reads `spec`.
    pub(crate) fn read(document: &mut Fields<'_>) -> Option<Self> {
        document.ignore(&["status"]);
        let mut spec = document.inner("spec")?;
        let (labels, annotations) = match spec.inner("metadata") {
            None => Default::default(),
            Some(mut metadata) => {
                let both = (
                    metadata.text_map("labels"),
                    metadata.text_map("annotations"),
                );
                metadata.finish();
                both
            }
        };
        let template = spec.inner("template").map(|mut template| {
            let entry = WorkloadEntry::read_fields(&mut template);
            template.finish();
            entry
        });
        let group = Self {
            at: spec.at().clone(),
            labels,
            annotations,
            template,
            probe: Probe::read(&mut spec, "probe"),
        };
        spec.finish();
        Some(group)
    }
}

impl WrittenSidecar {
    /// Reads `spec`.
    pub(crate) fn read(document: &mut Fields<'_>) -> Self {
        document.ignore(&["status"]);
        let Some(mut spec) = document.inner("spec") else {
            return Self::default();
        };
        let outbound_mode = spec.inner("outboundTrafficPolicy").and_then(|mut policy| {
            let mode = policy.text("mode");
            policy.not_yet(&["egressProxy"]);
            policy.finish();
            mode
        });
        let sidecar = Self {
            selector: Selector::read(&mut spec, "workloadSelector", "labels"),
            ingress: spec.list("ingress", Ingress::read),
            egress: spec.list("egress", Egress::read),
            outbound_mode,
        };
        let unbounded = "the application sets its number of connections";
        spec.without_effect(&[("inboundConnectionPool", unbounded)]);
        spec.finish();
        sidecar
    }
}

impl Ingress {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let ingress = Self {
            at: cursor.at.clone(),
            port: ListenerPort::read(&mut fields),
            bind: fields.text("bind"),
            capture_mode: fields.text("captureMode"),
            default_endpoint: fields.text("defaultEndpoint"),
        };
        fields.not_yet(&["tls"]);
        let unbounded = "the application sets its number of connections";
        fields.without_effect(&[("connectionPool", unbounded)]);
        fields.finish();
        Some(ingress)
    }
}

impl Egress {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let egress = Self {
            at: cursor.at.clone(),
            port: ListenerPort::read(&mut fields),
            bind: fields.text("bind"),
            capture_mode: fields.text("captureMode"),
            hosts: fields.texts("hosts"),
        };
        fields.finish();
        Some(egress)
    }
}

impl ProxyConfig {
    /// Reads `spec`.
    pub(crate) fn read(document: &mut Fields<'_>) -> Self {
        document.ignore(&["status"]);
        let Some(mut spec) = document.inner("spec") else {
            return Self::default();
        };
        let config = Self {
            selector: Selector::read(&mut spec, "selector", "matchLabels"),
        };
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
        spec.finish();
        config
    }
}
