//! `networking.istio.io`: DestinationRule.

use super::{Selector, Text, TextMap};
use crate::decode::{At, Cursor, Fields, Spanned};

/// `spec` of a DestinationRule.
#[derive(Debug)]
pub(crate) struct DestinationRule {
    pub(crate) at: At,
    pub(crate) host: Option<Text>,
    pub(crate) policy: TrafficPolicy,
    pub(crate) subsets: Vec<Subset>,
    pub(crate) export_to: Vec<Text>,
    pub(crate) selector: Option<Selector>,
}

/// One of `subsets`.
#[derive(Debug)]
pub(crate) struct Subset {
    pub(crate) at: At,
    pub(crate) name: Option<Text>,
    pub(crate) labels: TextMap,
    pub(crate) policy: TrafficPolicy,
}

/// `trafficPolicy`.
#[derive(Debug, Default)]
pub(crate) struct TrafficPolicy {
    pub(crate) pool: Option<ConnectionPool>,
    pub(crate) ports: Vec<PortPolicy>,
    pub(crate) tls: Option<ClientTls>,
    /// Where failover between localities is asked for.
    pub(crate) failover: Option<At>,
    /// Whether `outlierDetection` is there.
    pub(crate) ejects: bool,
}

/// `tls`.
#[derive(Debug)]
pub(crate) struct ClientTls {
    pub(crate) at: At,
    pub(crate) mode: Option<Text>,
    pub(crate) credential_name: Option<Text>,
    pub(crate) insecure: Option<Spanned<bool>>,
}

/// One of `portLevelSettings`.
#[derive(Debug)]
pub(crate) struct PortPolicy {
    pub(crate) at: At,
    pub(crate) number: Option<Spanned<i64>>,
    pub(crate) pool: Option<ConnectionPool>,
    pub(crate) tls: Option<ClientTls>,
}

/// `connectionPool`.
#[derive(Debug, Default)]
pub(crate) struct ConnectionPool {
    pub(crate) h2_upgrade_policy: Option<Text>,
    pub(crate) use_client_protocol: Option<Spanned<bool>>,
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
        spec.not_yet(&["workloadSelector"]);
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

/// What every level of a policy may say and we do not obey.
const NOT_YET: &[&str] = &["loadBalancer", "outlierDetection", "tls"];

impl TrafficPolicy {
    fn read(parent: &mut Fields<'_>) -> Self {
        let Some(mut fields) = parent.inner("trafficPolicy") else {
            return Self::default();
        };
        let policy = Self {
            pool: ConnectionPool::read(&mut fields),
            ports: fields.list("portLevelSettings", PortPolicy::read),
            tls: ClientTls::read(&mut fields),
            failover: failover(&mut fields),
            ejects: fields.get("outlierDetection").is_some(),
        };
        fields.not_yet(NOT_YET);
        fields.not_yet(&["tunnel", "proxyProtocol", "retryBudget"]);
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
            pool: ConnectionPool::read(&mut fields),
            tls: ClientTls::read(&mut fields),
        };
        fields.not_yet(NOT_YET);
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
        };
        fields.ignore(&[
            "clientCertificate",
            "privateKey",
            "caCertificates",
            "subjectAltNames",
            "sni",
            "caCrl",
        ]);
        fields.finish();
        Some(tls)
    }
}

/// Where a `loadBalancer` asks for failover.
fn failover(parent: &mut Fields<'_>) -> Option<At> {
    let mut locality = parent.inner("loadBalancer")?.inner("localityLbSetting")?;
    let disabled = locality.boolean("enabled").is_some_and(|flag| !flag.value);
    let asked = ["failover", "failoverPriority"]
        .into_iter()
        .find_map(|field| locality.get(field))?;
    (!disabled).then(|| asked.at().clone())
}

impl ConnectionPool {
    fn read(parent: &mut Fields<'_>) -> Option<Self> {
        let mut fields = parent.inner("connectionPool")?;
        fields.not_yet(&["tcp"]);
        let pool = fields.inner("http").map(|mut http| {
            let pool = Self {
                h2_upgrade_policy: http.text("h2UpgradePolicy"),
                use_client_protocol: http.boolean("useClientProtocol"),
            };
            http.not_yet(&[
                "http1MaxPendingRequests",
                "http2MaxRequests",
                "maxRequestsPerConnection",
                "maxRetries",
                "idleTimeout",
                "maxConcurrentStreams",
                "http2KeepAlive",
            ]);
            http.finish();
            pool
        });
        fields.finish();
        Some(pool.unwrap_or_default())
    }
}
