//! The WorkloadEntry of a member, as a document: what its group's template says, its address, how it is, and which control plane
//! holds its stream.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use voile_model::check::{GROUP, HEALTH_CHECKED};
use voile_model::mesh::WorkloadGroup;

use super::claim::Claim;

/// Annotation with the control plane that holds the stream.
const HOLDER: &str = "istio.io/workloadController";
/// The label of what stands behind a proxy; who joins does.
const TLS_MODE: (&str, &str) = ("security.istio.io/tlsMode", "istio");
/// The condition that says how it is.
const HEALTHY: &str = "Healthy";
/// Most characters of a complaint that are kept: people read it.
pub(super) const MAX_COMPLAINT: usize = 400;

/// Health of a member's application: healthy, or the text of its complaint.
pub(super) type Health = Result<(), String>;

/// A document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GroupDocument {
    api_version: String,
    kind: String,
    metadata: Metadata,
    spec: Spec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Metadata {
    name: String,
    namespace: String,
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    address: IpAddr,
    labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    ports: BTreeMap<String, u16>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    network: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    locality: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
    service_account: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Status {
    conditions: Vec<HealthCondition>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct HealthCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
}

impl GroupDocument {
    /// Makes the document of a member.
    pub(super) fn of(group: &WorkloadGroup, claim: &Claim, health: Option<&Health>) -> Self {
        let texts = |labels: &voile_model::Labels| -> BTreeMap<String, String> {
            let all = labels.iter();
            all.map(|(key, value)| (key.to_string(), value.to_string()))
                .collect()
        };
        let mut annotations = texts(&group.annotations);
        annotations.insert(GROUP.to_owned(), group.name.name.to_string());
        if group.probe.is_some() {
            annotations.insert(HEALTH_CHECKED.to_owned(), "true".to_owned());
        }
        let mut labels = texts(&group.labels);
        labels.insert(TLS_MODE.0.to_owned(), TLS_MODE.1.to_owned());
        let ports = group.ports.iter();
        let said_by_group = !group.locality.is_empty();
        let locality = if said_by_group {
            &group.locality
        } else {
            &claim.locality
        };
        let mut entry = Self {
            api_version: "networking.istio.io/v1".to_owned(),
            kind: "WorkloadEntry".to_owned(),
            metadata: Metadata {
                name: claim.member(),
                namespace: group.name.namespace.to_string(),
                annotations,
            },
            spec: Spec {
                address: claim.address,
                labels,
                ports: ports
                    .map(|(name, port)| (name.to_string(), port.get()))
                    .collect(),
                network: group.network.to_string(),
                locality: locality.to_string(),
                weight: group.weight,
                service_account: group.service_account.to_string(),
            },
            status: None,
        };
        if let Some(health) = health.filter(|_| group.probe.is_some()) {
            entry.status = Some(Status::of(health));
        }
        entry
    }

    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    pub(super) fn text(&self) -> Vec<u8> {
        // Names and numbers: there is nothing in them that could not be written.
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Its file's name: an address has one file, so that nobody can have it twice.
    pub(super) fn file(&self) -> String {
        let fit = |c: char| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '-'
            }
        };
        let address: String = self.spec.address.to_string().chars().map(fit).collect();
        match self.spec.network.as_str() {
            "" => format!("{address}.json"),
            // Two networks that are written alike must not be one.
            network => {
                let hex: String = network.bytes().map(|byte| format!("{byte:02x}")).collect();
                format!("{address}@{hex}.json")
            }
        }
    }

    pub(super) fn holder(&self) -> &str {
        let holder = self.metadata.annotations.get(HOLDER);
        holder.map_or("", String::as_str)
    }

    pub(super) fn set_holder(&mut self, holder: &str) {
        self.metadata
            .annotations
            .insert(HOLDER.to_owned(), holder.to_owned());
    }

    /// Returns true if both documents describe the same workload. Then the newer replaces the older one.
    pub(super) fn is_same_member(&self, other: &Self) -> bool {
        let of = |entry: &Self| {
            (
                entry.metadata.namespace.clone(),
                entry.metadata.name.clone(),
                entry.spec.service_account.clone(),
            )
        };
        of(self) == of(other)
    }

    /// For people.
    pub(super) fn called(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    /// Keeps the older document's health if this document has none and its health is checked.
    pub(super) fn keep_health(&mut self, older: &Self) {
        let checked = self.metadata.annotations.contains_key(HEALTH_CHECKED);
        if self.status.is_none() && checked {
            self.status.clone_from(&older.status);
        }
    }
}

impl Status {
    fn of(health: &Health) -> Self {
        let complaint = health.as_ref().err();
        let message = complaint.map(|text| text.chars().take(MAX_COMPLAINT).collect());
        Self {
            conditions: vec![HealthCondition {
                kind: HEALTHY.to_owned(),
                status: if health.is_ok() { "True" } else { "False" }.to_owned(),
                message: message.unwrap_or_default(),
            }],
        }
    }
}
