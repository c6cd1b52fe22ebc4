//! `networking.istio.io`: DestinationRule.

use super::{Text, TextMap};
use crate::decode::{At, Cursor, Fields, Spanned};

/// `spec` of a DestinationRule.
#[derive(Debug)]
pub(crate) struct DestinationRule {
    pub(crate) at: At,
    pub(crate) host: Option<Text>,
    pub(crate) policy: TrafficPolicy,
    pub(crate) subsets: Vec<Subset>,
    pub(crate) export_to: Vec<Text>,
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
}

/// One of `portLevelSettings`.
#[derive(Debug)]
pub(crate) struct PortPolicy {
    pub(crate) at: At,
    pub(crate) number: Option<Spanned<i64>>,
    pub(crate) pool: Option<ConnectionPool>,
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
        };
        fields.not_yet(NOT_YET);
        fields.finish();
        Some(policy)
    }
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
