//! Kubernetes kinds but for Pods: Service, ConfigMap, Secret, and those that are little more than a name.

use super::{Text, TextMap};
use crate::decode::{Cursor, FieldPath, Fields, IntegerOrText, SpannedValue};

/// `spec` of a Service.
#[derive(Debug, Default)]
pub(crate) struct WrittenService {
    pub(crate) kind: Option<Text>,
    pub(crate) cluster_ip: Option<Text>,
    pub(crate) cluster_ips: Vec<Text>,
    pub(crate) external_name: Option<Text>,
    pub(crate) selector: Option<TextMap>,
    pub(crate) ports: Vec<ServicePort>,
    /// `trafficDistribution`.
    pub(crate) distribution: Option<Text>,
}

/// One of `spec.ports`.
#[derive(Debug)]
pub(crate) struct ServicePort {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
    pub(crate) port: Option<SpannedValue<i64>>,
    pub(crate) target_port: Option<SpannedValue<IntegerOrText>>,
    pub(crate) protocol: Option<Text>,
    pub(crate) app_protocol: Option<Text>,
    pub(crate) node_port: Option<SpannedValue<i64>>,
}

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

impl WrittenService {
    /// Reads `spec`.
    pub(crate) fn read(document: &mut Fields<'_>) -> Self {
        document.ignore(&["status"]);
        let Some(mut spec) = document.inner("spec") else {
            return Self::default();
        };
        let service = Self {
            kind: spec.text("type"),
            cluster_ip: spec.text("clusterIP"),
            cluster_ips: spec.texts("clusterIPs"),
            external_name: spec.text("externalName"),
            selector: spec.get("selector").map(|cursor| cursor.text_map()),
            ports: spec.list("ports", ServicePort::read),
            distribution: spec.text("trafficDistribution"),
        };
        spec.ignore(&[
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
        ]);
        for (name, so_anyway, instead, help) in NOT_OBEYED {
            spec.not_obeyed(name, so_anyway, instead, help);
        }
        spec.finish();
        service
    }
}

impl ServicePort {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let port = Self {
            at: cursor.at.clone(),
            name: fields.text("name"),
            port: fields.integer("port"),
            target_port: fields.integer_or_text("targetPort"),
            protocol: fields.text("protocol"),
            app_protocol: fields.text("appProtocol"),
            node_port: fields.integer("nodePort"),
        };
        fields.finish();
        Some(port)
    }
}

/// `spec.parentRef` of an IPAddress.
#[derive(Debug, Default)]
pub(crate) struct ParentRef {
    pub(crate) at: Option<FieldPath>,
    pub(crate) group: Option<Text>,
    pub(crate) resource: Option<Text>,
    pub(crate) namespace: Option<Text>,
    pub(crate) name: Option<Text>,
}

impl ParentRef {
    /// Reads `spec`.
    pub(crate) fn read(document: &mut Fields<'_>) -> Self {
        let Some(mut spec) = document.inner("spec") else {
            return Self::default();
        };
        let parent = spec
            .inner("parentRef")
            .map_or_else(Self::default, |mut fields| {
                let parent = Self {
                    at: Some(fields.at().clone()),
                    group: fields.text("group"),
                    resource: fields.text("resource"),
                    namespace: fields.text("namespace"),
                    name: fields.text("name"),
                };
                fields.finish();
                parent
            });
        spec.finish();
        parent
    }
}

/// A ConfigMap.
#[derive(Debug, Default)]
pub(crate) struct ConfigMap {
    pub(crate) data: TextMap,
}

impl ConfigMap {
    /// Reads its fields.
    pub(crate) fn read(document: &mut Fields<'_>) -> Self {
        let data = document.text_map("data");
        document.ignore(&["binaryData", "immutable"]);
        Self { data }
    }
}

/// A Secret.
#[derive(Debug)]
pub(crate) struct Secret {
    pub(crate) kind: Option<Text>,
    pub(crate) data: TextMap,
    pub(crate) string_data: TextMap,
}

impl Secret {
    /// Reads its fields.
    pub(crate) fn read(document: &mut Fields<'_>) -> Self {
        let secret = Self {
            kind: document.text("type"),
            data: document.text_map("data"),
            string_data: document.text_map("stringData"),
        };
        document.ignore(&["immutable"]);
        secret
    }
}
