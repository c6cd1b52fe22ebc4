//! `networking.istio.io`: DestinationRule.

use super::traffic::{RetryBudget, WrittenPolicyLevel};
use super::{Selector, Text, TextMap};
use crate::decode::{Cursor, FieldPath, Fields, SpannedValue};

/// `spec` of a DestinationRule.
#[derive(Debug)]
pub(crate) struct DestinationRule {
    pub(crate) at: FieldPath,
    pub(crate) host: Option<Text>,
    pub(crate) policy: TrafficPolicy,
    pub(crate) subsets: Vec<Subset>,
    pub(crate) export_to: Vec<Text>,
    pub(crate) selector: Option<Selector>,
}

/// One of `subsets`.
#[derive(Debug)]
pub(crate) struct Subset {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
    pub(crate) labels: TextMap,
    pub(crate) policy: TrafficPolicy,
}

/// `trafficPolicy`.
#[derive(Debug, Default)]
pub(crate) struct TrafficPolicy {
    pub(crate) level: WrittenPolicyLevel,
    pub(crate) retry_budget: Option<RetryBudget>,
    pub(crate) ports: Vec<PortPolicy>,
    pub(crate) tls: Option<ClientTls>,
    /// `proxyProtocol`, with its version where one is written.
    pub(crate) proxy_protocol: Option<Option<Text>>,
    /// Location of a failover setting between localities.
    pub(crate) failover: Option<FieldPath>,
}

/// `tls`.
#[derive(Debug)]
pub(crate) struct ClientTls {
    pub(crate) at: FieldPath,
    pub(crate) mode: Option<Text>,
    pub(crate) credential_name: Option<Text>,
    pub(crate) insecure: Option<SpannedValue<bool>>,
    pub(crate) client_certificate: Option<Text>,
    pub(crate) private_key: Option<Text>,
    pub(crate) ca_certificates: Option<Text>,
    pub(crate) subject_alt_names: Vec<Text>,
    pub(crate) sni: Option<Text>,
    pub(crate) ca_crl: Option<Text>,
}

/// One of `portLevelSettings`.
#[derive(Debug)]
pub(crate) struct PortPolicy {
    pub(crate) at: FieldPath,
    pub(crate) number: Option<SpannedValue<i64>>,
    pub(crate) level: WrittenPolicyLevel,
    pub(crate) tls: Option<ClientTls>,
}

impl DestinationRule {
    /// Reads `spec`.
    pub(crate) fn read(document: &mut Fields<'_>) -> Option<Self> {
        document.ignore(&["status"]);
        let mut spec = document.inner("spec")?;
        let rule = Self {
            at: spec.at().clone(),
            host: spec.text("host"),
            policy: TrafficPolicy::read(&mut spec),
            subsets: spec.list("subsets", Subset::read),
            export_to: spec.texts("exportTo"),
            selector: Selector::read(&mut spec, "workloadSelector", "matchLabels"),
        };
        spec.finish();
        Some(rule)
    }
}

impl Subset {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let subset = Self {
            at: cursor.at.clone(),
            name: fields.text("name"),
            labels: fields.text_map("labels"),
            policy: TrafficPolicy::read(&mut fields),
        };
        fields.finish();
        Some(subset)
    }
}

impl TrafficPolicy {
    fn read(parent: &mut Fields<'_>) -> Self {
        let Some(mut fields) = parent.inner("trafficPolicy") else {
            return Self::default();
        };
        let policy = Self {
            level: WrittenPolicyLevel::read(&mut fields),
            retry_budget: RetryBudget::read(&mut fields),
            ports: fields.list("portLevelSettings", PortPolicy::read),
            tls: ClientTls::read(&mut fields),
            proxy_protocol: fields.inner("proxyProtocol").map(|mut inner| {
                let version = inner.text("version");
                inner.finish();
                version
            }),
            failover: failover(&mut fields),
        };
        fields.not_yet(&["tunnel"]);
        fields.finish();
        policy
    }
}

impl PortPolicy {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let number = fields.inner("port").and_then(|mut port| {
            let number = port.integer("number");
            port.finish();
            number
        });
        let policy = Self {
            at: cursor.at.clone(),
            number,
            level: WrittenPolicyLevel::read(&mut fields),
            tls: ClientTls::read(&mut fields),
        };
        fields.finish();
        Some(policy)
    }
}

impl ClientTls {
    fn read(parent: &mut Fields<'_>) -> Option<Self> {
        let mut fields = parent.inner("tls")?;
        let tls = Self {
            at: fields.at().clone(),
            mode: fields.text("mode"),
            credential_name: fields.text("credentialName"),
            insecure: fields.boolean("insecureSkipVerify"),
            client_certificate: fields.text("clientCertificate"),
            private_key: fields.text("privateKey"),
            ca_certificates: fields.text("caCertificates"),
            subject_alt_names: fields.texts("subjectAltNames"),
            sni: fields.text("sni"),
            ca_crl: fields.text("caCrl"),
        };
        fields.finish();
        Some(tls)
    }
}

/// Location of the failover setting of a `loadBalancer`.
fn failover(parent: &mut Fields<'_>) -> Option<FieldPath> {
    let mut locality = parent.inner("loadBalancer")?.inner("localityLbSetting")?;
    let disabled = locality.boolean("enabled").is_some_and(|flag| !flag.value);
    let asked = ["failover", "failoverPriority"]
        .into_iter()
        .find_map(|field| locality.get(field))?;
    (!disabled).then(|| asked.at().clone())
}
