//! `trafficPolicy` of a DestinationRule: balancers, outliers, pools.

use super::Text;
use crate::decode::{Cursor, FieldPath, Fields, SpannedValue};

/// Fields of every level of a policy.
#[derive(Debug, Default)]
pub(crate) struct WrittenPolicyLevel {
    pub(crate) balancer: Option<LoadBalancer>,
    pub(crate) outliers: Option<OutlierDetection>,
    pub(crate) pool: Option<ConnectionPool>,
}

/// `loadBalancer`.
#[derive(Debug)]
pub(crate) struct LoadBalancer {
    pub(crate) at: FieldPath,
    pub(crate) simple: Option<Text>,
    pub(crate) hash: Option<ConsistentHash>,
    pub(crate) warmup: Option<Warmup>,
    /// The same, as Istio had it first.
    pub(crate) warmup_duration: Option<Text>,
    pub(crate) locality: Option<LocalitySetting>,
    pub(crate) zones: Option<ZoneAwareSetting>,
}

/// A region, and the one that comes first after it.
pub(crate) type Failover = (Option<Text>, Option<Text>, FieldPath);

/// `localityLbSetting`.
#[derive(Debug)]
pub(crate) struct LocalitySetting {
    pub(crate) at: FieldPath,
    pub(crate) enabled: Option<SpannedValue<bool>>,
    pub(crate) distribute: Vec<Distribute>,
    pub(crate) failover: Vec<Failover>,
    pub(crate) priority: Vec<Text>,
}

/// `zoneAwareLbSetting`.
#[derive(Debug)]
pub(crate) struct ZoneAwareSetting {
    pub(crate) at: FieldPath,
    pub(crate) enabled: Option<SpannedValue<bool>>,
    pub(crate) failover: Vec<Failover>,
    pub(crate) priority: Vec<Text>,
    pub(crate) min_cluster_size: Option<SpannedValue<i64>>,
}

/// One of `distribute`.
#[derive(Debug)]
pub(crate) struct Distribute {
    pub(crate) at: FieldPath,
    pub(crate) from: Option<Text>,
    pub(crate) to: Vec<(Text, SpannedValue<i64>)>,
}

/// `retryBudget`.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    pub(crate) percent: Option<SpannedValue<f64>>,
    pub(crate) min: Option<SpannedValue<i64>>,
}

/// `consistentHash`.
#[derive(Debug)]
pub(crate) struct ConsistentHash {
    pub(crate) at: FieldPath,
    pub(crate) header: Option<Text>,
    pub(crate) cookie: Option<Cookie>,
    pub(crate) source_ip: Option<SpannedValue<bool>>,
    pub(crate) query: Option<Text>,
    /// `ringHash.minimumRingSize`, or the same where Istio had it first.
    pub(crate) ring_size: Option<SpannedValue<i64>>,
    /// `maglev`, if present, and its `tableSize`.
    pub(crate) maglev: Option<Option<SpannedValue<i64>>>,
}

/// `httpCookie`.
#[derive(Debug)]
pub(crate) struct Cookie {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
    pub(crate) path: Option<Text>,
    pub(crate) ttl: Option<Text>,
    pub(crate) attributes: Vec<(Option<Text>, Option<Text>, FieldPath)>,
}

/// `warmup`.
#[derive(Debug)]
pub(crate) struct Warmup {
    pub(crate) at: FieldPath,
    pub(crate) duration: Option<Text>,
    pub(crate) minimum_percent: Option<SpannedValue<f64>>,
    pub(crate) aggression: Option<SpannedValue<f64>>,
}

/// `outlierDetection`.
#[derive(Debug)]
pub(crate) struct OutlierDetection {
    pub(crate) split: Option<SpannedValue<bool>>,
    pub(crate) local: Option<SpannedValue<i64>>,
    pub(crate) gateway: Option<SpannedValue<i64>>,
    pub(crate) five: Option<SpannedValue<i64>>,
    pub(crate) interval: Option<Text>,
    pub(crate) base_ejection: Option<Text>,
    pub(crate) max_ejection_percent: Option<SpannedValue<i64>>,
    pub(crate) min_health_percent: Option<SpannedValue<i64>>,
}

/// `connectionPool`.
#[derive(Debug, Default)]
pub(crate) struct ConnectionPool {
    pub(crate) tcp: Tcp,
    pub(crate) http: WrittenHttpPool,
}

/// `connectionPool.tcp`.
#[derive(Debug, Default)]
pub(crate) struct Tcp {
    pub(crate) max_connections: Option<SpannedValue<i64>>,
    pub(crate) connect_timeout: Option<Text>,
    pub(crate) idle_timeout: Option<Text>,
    pub(crate) keep_alive: Option<KeepAlive>,
}

/// `tcpKeepalive`.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    pub(crate) probes: Option<SpannedValue<i64>>,
    pub(crate) time: Option<Text>,
    pub(crate) interval: Option<Text>,
}

/// `connectionPool.http`.
#[derive(Debug, Default)]
pub(crate) struct WrittenHttpPool {
    pub(crate) h2_upgrade_policy: Option<Text>,
    pub(crate) use_client_protocol: Option<SpannedValue<bool>>,
    pub(crate) max_pending: Option<SpannedValue<i64>>,
    pub(crate) max_requests: Option<SpannedValue<i64>>,
    pub(crate) requests_per_connection: Option<SpannedValue<i64>>,
    pub(crate) max_retries: Option<SpannedValue<i64>>,
    pub(crate) idle_timeout: Option<Text>,
}

impl WrittenPolicyLevel {
    pub(crate) fn read(fields: &mut Fields<'_>) -> Self {
        Self {
            balancer: LoadBalancer::read(fields),
            outliers: OutlierDetection::read(fields),
            pool: ConnectionPool::read(fields),
        }
    }
}

impl LoadBalancer {
    fn read(parent: &mut Fields<'_>) -> Option<Self> {
        let mut fields = parent.inner("loadBalancer")?;
        let balancer = Self {
            at: fields.at().clone(),
            simple: fields.text("simple"),
            hash: ConsistentHash::read(&mut fields),
            warmup: Warmup::read(&mut fields),
            warmup_duration: fields.text("warmupDurationSecs"),
            locality: LocalitySetting::read(&mut fields),
            zones: ZoneAwareSetting::read(&mut fields),
        };
        fields.finish();
        Some(balancer)
    }
}

impl LocalitySetting {
    pub(super) fn read(parent: &mut Fields<'_>) -> Option<Self> {
        let mut fields = parent.inner("localityLbSetting")?;
        let setting = Self {
            at: fields.at().clone(),
            enabled: fields.boolean("enabled"),
            distribute: fields.list("distribute", Distribute::read),
            failover: fields.list("failover", failover),
            priority: fields.texts("failoverPriority"),
        };
        fields.finish();
        Some(setting)
    }
}

fn failover(cursor: &Cursor<'_>) -> Option<Failover> {
    let mut fields = cursor.fields()?;
    let failover = (fields.text("from"), fields.text("to"), fields.at().clone());
    fields.finish();
    Some(failover)
}

impl ZoneAwareSetting {
    pub(super) fn read(parent: &mut Fields<'_>) -> Option<Self> {
        let mut fields = parent.inner("zoneAwareLbSetting")?;
        let setting = Self {
            at: fields.at().clone(),
            enabled: fields.boolean("enabled"),
            failover: fields.list("failover", failover),
            priority: fields.texts("failoverPriority"),
            min_cluster_size: fields.integer("minClusterSize"),
        };
        fields.finish();
        Some(setting)
    }
}

impl Distribute {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let to = fields.get("to").map(|to| to.entries());
        let share = |(to, share): (Text, Cursor<'_>)| Some((to, share.integer()?));
        let distribute = Self {
            at: fields.at().clone(),
            from: fields.text("from"),
            to: to.into_iter().flatten().filter_map(share).collect(),
        };
        fields.finish();
        Some(distribute)
    }
}

impl RetryBudget {
    pub(crate) fn read(parent: &mut Fields<'_>) -> Option<Self> {
        let mut fields = parent.inner("retryBudget")?;
        let budget = Self {
            percent: fields.number("percent"),
            min: fields.integer("minRetryConcurrency"),
        };
        fields.without_effect(&[(
            "budgetInterval",
            "the budget is a share of the requests that are open now",
        )]);
        fields.finish();
        Some(budget)
    }
}

impl ConsistentHash {
    fn read(parent: &mut Fields<'_>) -> Option<Self> {
        let mut fields = parent.inner("consistentHash")?;
        let ring = fields.inner("ringHash").and_then(|mut ring| {
            let size = ring.integer("minimumRingSize");
            ring.finish();
            size
        });
        let maglev = fields.inner("maglev").map(|mut maglev| {
            let size = maglev.integer("tableSize");
            maglev.finish();
            size
        });
        let hash = Self {
            at: fields.at().clone(),
            header: fields.text("httpHeaderName"),
            cookie: Cookie::read(&mut fields),
            source_ip: fields.boolean("useSourceIp"),
            query: fields.text("httpQueryParameterName"),
            ring_size: ring.or(fields.integer("minimumRingSize")),
            maglev,
        };
        fields.finish();
        Some(hash)
    }
}

impl Cookie {
    fn read(parent: &mut Fields<'_>) -> Option<Self> {
        let mut fields = parent.inner("httpCookie")?;
        let attribute = |cursor: &Cursor<'_>| {
            let mut fields = cursor.fields()?;
            let attribute = (
                fields.text("name"),
                fields.text("value"),
                fields.at().clone(),
            );
            fields.finish();
            Some(attribute)
        };
        let cookie = Self {
            at: fields.at().clone(),
            name: fields.text("name"),
            path: fields.text("path"),
            ttl: fields.text("ttl"),
            attributes: fields.list("attributes", attribute),
        };
        fields.finish();
        Some(cookie)
    }
}

impl Warmup {
    fn read(parent: &mut Fields<'_>) -> Option<Self> {
        let mut fields = parent.inner("warmup")?;
        let warmup = Self {
            at: fields.at().clone(),
            duration: fields.text("duration"),
            minimum_percent: fields.number("minimumPercent"),
            aggression: fields.number("aggression"),
        };
        fields.finish();
        Some(warmup)
    }
}

impl OutlierDetection {
    fn read(parent: &mut Fields<'_>) -> Option<Self> {
        let mut fields = parent.inner("outlierDetection")?;
        let five = fields.integer("consecutive5xxErrors");
        let outliers = Self {
            split: fields.boolean("splitExternalLocalOriginErrors"),
            local: fields.integer("consecutiveLocalOriginFailures"),
            gateway: fields.integer("consecutiveGatewayErrors"),
            // As Istio had it first.
            five: five.or(fields.integer("consecutiveErrors")),
            interval: fields.text("interval"),
            base_ejection: fields.text("baseEjectionTime"),
            max_ejection_percent: fields.integer("maxEjectionPercent"),
            min_health_percent: fields.integer("minHealthPercent"),
        };
        fields.without_effect(&[(
            "outlierDetectionHttpErrorCodes",
            "statuses of 500 and above count as errors, and no others",
        )]);
        fields.finish();
        Some(outliers)
    }
}

impl ConnectionPool {
    fn read(parent: &mut Fields<'_>) -> Option<Self> {
        let mut fields = parent.inner("connectionPool")?;
        let pool = Self {
            tcp: fields.inner("tcp").map(Tcp::read).unwrap_or_default(),
            http: fields
                .inner("http")
                .map(WrittenHttpPool::read)
                .unwrap_or_default(),
        };
        fields.finish();
        Some(pool)
    }
}

impl Tcp {
    fn read(mut fields: Fields<'_>) -> Self {
        let keep_alive = fields.inner("tcpKeepalive").map(|mut fields| {
            let keep_alive = KeepAlive {
                probes: fields.integer("probes"),
                time: fields.text("time"),
                interval: fields.text("interval"),
            };
            fields.finish();
            keep_alive
        });
        let tcp = Self {
            max_connections: fields.integer("maxConnections"),
            connect_timeout: fields.text("connectTimeout"),
            idle_timeout: fields.text("idleTimeout"),
            keep_alive,
        };
        fields.without_effect(&[(
            "maxConnectionDuration",
            "connections stay as long as they are used",
        )]);
        fields.finish();
        tcp
    }
}

impl WrittenHttpPool {
    fn read(mut fields: Fields<'_>) -> Self {
        let http = Self {
            h2_upgrade_policy: fields.text("h2UpgradePolicy"),
            use_client_protocol: fields.boolean("useClientProtocol"),
            max_pending: fields.integer("http1MaxPendingRequests"),
            max_requests: fields.integer("http2MaxRequests"),
            requests_per_connection: fields.integer("maxRequestsPerConnection"),
            max_retries: fields.integer("maxRetries"),
            idle_timeout: fields.text("idleTimeout"),
        };
        fields.without_effect(&[
            (
                "maxConcurrentStreams",
                "the server sets the number of streams of a connection",
            ),
            ("http2KeepAlive", "idle connections are not probed"),
        ]);
        fields.finish();
        http
    }
}
