//! MeshConfig: the YAML inside `data.mesh` of the ConfigMap `istio`.

pub(crate) mod provider;

use super::telemetry::{CustomTag, custom_tags};
use super::{Text, TextMap};
use crate::decode::{Cursor, FieldPath, Fields, SpannedValue};
use crate::mesh::ClientCertificateDetails;

/// MeshConfig.
#[derive(Debug)]
pub(crate) struct MeshConfig {
    pub(crate) trust_domain: Option<Text>,
    pub(crate) trust_domain_aliases: Vec<Text>,
    pub(crate) root_namespace: Option<Text>,
    pub(crate) enable_auto_mtls: Option<SpannedValue<bool>>,
    pub(crate) enable_prometheus_merge: Option<SpannedValue<bool>>,
    pub(crate) outbound_mode: Option<Text>,
    pub(crate) connect_timeout: Option<Text>,
    pub(crate) protocol_detection_timeout: Option<Text>,
    pub(crate) h2_upgrade_policy: Option<Text>,
    pub(crate) default_retry: Option<WrittenRetries>,
    pub(crate) access_log_file: Option<Text>,
    pub(crate) access_log_encoding: Option<Text>,
    pub(crate) access_log_format: Option<Text>,
    pub(crate) path_normalization: Option<Text>,
    pub(crate) enable_tracing: Option<SpannedValue<bool>>,
    pub(crate) default_providers: DefaultProviders,
    pub(crate) proxy: Option<ProxySettings>,
    pub(crate) extension_providers: Vec<ExtensionProvider>,
    pub(crate) exports: DefaultExports,
}

/// `defaultServiceExportTo` and its like.
#[derive(Debug, Default)]
pub(crate) struct DefaultExports {
    pub(crate) services: Vec<Text>,
    pub(crate) virtual_services: Vec<Text>,
    pub(crate) destination_rules: Vec<Text>,
}

/// `defaultConfig`.
#[derive(Debug)]
pub(crate) struct ProxySettings {
    pub(crate) concurrency: Option<SpannedValue<i64>>,
    pub(crate) termination_drain_duration: Option<Text>,
    pub(crate) hold_application: Option<SpannedValue<bool>>,
    pub(crate) discovery_address: Option<Text>,
    pub(crate) tracing: Option<ProxyTracing>,
    pub(crate) runtime_values: TextMap,
    pub(crate) interception_mode: Option<Text>,
    pub(crate) trusted_proxies: Option<SpannedValue<i64>>,
    /// True if load balancers in front of gateways send PROXY headers.
    pub(crate) proxy_protocol: bool,
    /// Treatment of `x-forwarded-client-cert` at gateways and at sidecars.
    pub(crate) forwards: [Option<Text>; 2],
    /// Parts of client certificates that sidecars add.
    pub(crate) details: Option<ClientCertificateDetails>,
}

/// `defaultProviders`.
#[derive(Debug, Default)]
pub(crate) struct DefaultProviders {
    pub(crate) tracing: Vec<Text>,
    pub(crate) metrics: Vec<Text>,
    pub(crate) access_logging: Vec<Text>,
}

/// `defaultConfig.tracing`.
#[derive(Debug)]
pub(crate) struct ProxyTracing {
    pub(crate) sampling: Option<SpannedValue<f64>>,
    pub(crate) max_path_tag_length: Option<SpannedValue<i64>>,
    pub(crate) custom_tags: Vec<CustomTag>,
    pub(crate) istio_tags: Option<SpannedValue<bool>>,
}

/// One of `extensionProviders`.
#[derive(Debug)]
pub(crate) struct ExtensionProvider {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
    pub(crate) kinds: Vec<&'static str>,
    pub(crate) telemetry: Option<provider::Telemetry>,
}

/// The kinds of provider.
const PROVIDER_KINDS: [&str; 15] = [
    "envoyExtAuthzHttp",
    "envoyExtAuthzGrpc",
    "zipkin",
    "lightstep",
    "datadog",
    "skywalking",
    "opencensus",
    "opentelemetry",
    "stackdriver",
    "prometheus",
    "envoyFileAccessLog",
    "envoyHttpAls",
    "envoyTcpAls",
    "envoyOtelAls",
    "sds",
];

/// Istio's fields without effect here, with Voile's behaviour. They do not invalidate a MeshConfig: its other fields
/// are in force.
const WITHOUT_EFFECT: [(&str, &str); 25] = [
    (
        "ca",
        "the certificates of workloads are signed by the control plane",
    ),
    (
        "caCertificates",
        "only the roots of the control plane are trusted",
    ),
    ("certificates", "no certificates are made for DNS names"),
    (
        "configSources",
        "resources are read from the folder or the cluster",
    ),
    (
        "defaultTrafficPolicy",
        "services without a DestinationRule have the built-in defaults",
    ),
    (
        "dnsRefreshRate",
        "the resolver sets when a name is resolved again",
    ),
    (
        "enableEnvoyAccessLogService",
        "a provider of Telemetry receives access logs",
    ),
    (
        "hboneIdleTimeout",
        "the proxy sets how long a tunnel stays open",
    ),
    (
        "inboundClusterStatName",
        "metrics have Istio's standard names",
    ),
    (
        "inboundTrafficPolicy",
        "calls to ports without a service go to the application",
    ),
    ("ingressClass", "no Ingress is in force"),
    ("ingressControllerMode", "no Ingress is in force"),
    ("ingressSelector", "no Ingress is in force"),
    ("ingressService", "no Ingress is in force"),
    (
        "outboundClusterStatName",
        "metrics have Istio's standard names",
    ),
    ("proxyHttpPort", "no port takes requests of an HTTP proxy"),
    (
        "proxyInboundListenPort",
        "proxies choose the port of inbound capture",
    ),
    (
        "proxyListenPort",
        "proxies choose the port of outbound capture",
    ),
    (
        "serviceEntryVisibility",
        "only `exportTo` sets the visibility of a ServiceEntry",
    ),
    (
        "serviceScopeConfigs",
        "the label istio.io/global of a Service lets other networks call it",
    ),
    (
        "serviceSettings",
        "the label istio.io/global of a Service lets other networks call it",
    ),
    ("statNamePrefix", "metrics have Istio's standard names"),
    (
        "tcpKeepalive",
        "connections keep alive as a DestinationRule says",
    ),
    (
        "tlsDefaults",
        "clients use TLS 1.2 and 1.3 with forward-secret suites outside of the mesh",
    ),
    (
        "verifyCertificateAtClient",
        "servers outside of the mesh are always verified",
    ),
];

/// The same of `defaultConfig`.
const PROXY_WITHOUT_EFFECT: [(&str, &str); 31] = [
    (
        "availabilityZone",
        "labels of workloads and nodes set their locality",
    ),
    ("binaryPath", "the proxy is this program"),
    (
        "caCertificatesPem",
        "only the roots of the control plane are trusted",
    ),
    ("configPath", "the proxy has no file of configuration"),
    ("connectionSettings", "proxies have their built-in limits"),
    (
        "controlPlaneAuthPolicy",
        "the control plane is always called in TLS",
    ),
    ("customConfigFile", "the proxy has no file of configuration"),
    ("discoveryRefreshDelay", "changes are pushed at once"),
    (
        "drainDuration",
        "`terminationDrainDuration` bounds the end of a proxy",
    ),
    (
        "envoyAccessLogService",
        "a provider of Telemetry receives access logs",
    ),
    (
        "envoyMetricsService",
        "metrics are read by Prometheus alone",
    ),
    (
        "envoyMetricsServiceAddress",
        "metrics are read by Prometheus alone",
    ),
    (
        "extraStatTags",
        "metrics have Istio's standard labels; Telemetry adds constants",
    ),
    ("fileFlushInterval", "access logs are written at once"),
    ("fileFlushMinSizeKb", "access logs are written at once"),
    ("image", "the proxy is this program"),
    ("meshId", "telemetry names no mesh"),
    (
        "privateKeyProvider",
        "keys are used in the proxy's own memory",
    ),
    ("proxyAdminPort", "the command line sets the admin port"),
    (
        "proxyBootstrapTemplatePath",
        "the proxy has no file of configuration",
    ),
    (
        "proxyMetadata",
        "the proxy reads no environment of the mesh",
    ),
    ("proxyStatsMatcher", "metrics are Istio's standard ones"),
    (
        "readinessProbe",
        "a proxy is ready when it has its configuration",
    ),
    ("sds", "keys are always held in memory"),
    (
        "serviceCluster",
        "labels of workloads name them in telemetry",
    ),
    ("statNameLength", "names of metrics are never cut"),
    ("statsCompression", "metrics are written as they are"),
    ("statsdUdpAddress", "metrics are read by Prometheus alone"),
    ("statusPort", "the command line sets the status port"),
    (
        "tracingServiceName",
        "spans name the workload's canonical service",
    ),
    ("zipkinAddress", "a provider of Telemetry receives spans"),
];

impl MeshConfig {
    /// Reads all of it.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Self {
        let outbound_mode = fields
            .inner("outboundTrafficPolicy")
            .and_then(|mut policy| {
                let mode = policy.text("mode");
                policy.without_effect(&[(
                    "tls",
                    "connections to unknown hosts are forwarded as they come",
                )]);
                policy.finish();
                mode
            });
        let config = Self {
            trust_domain: fields.text("trustDomain"),
            trust_domain_aliases: fields.texts("trustDomainAliases"),
            root_namespace: fields.text("rootNamespace"),
            enable_auto_mtls: fields.boolean("enableAutoMtls"),
            enable_prometheus_merge: fields.boolean("enablePrometheusMerge"),
            outbound_mode,
            connect_timeout: fields.text("connectTimeout"),
            protocol_detection_timeout: fields.text("protocolDetectionTimeout"),
            h2_upgrade_policy: fields.text("h2UpgradePolicy"),
            default_retry: fields
                .inner("defaultHttpRetryPolicy")
                .map(WrittenRetries::read),
            access_log_file: fields.text("accessLogFile"),
            access_log_encoding: fields.text("accessLogEncoding"),
            access_log_format: fields.text("accessLogFormat"),
            path_normalization: fields.inner("pathNormalization").and_then(|mut inner| {
                let mode = inner.text("normalization");
                inner.finish();
                mode
            }),
            enable_tracing: fields.boolean("enableTracing"),
            default_providers: DefaultProviders::read(fields),
            proxy: fields.inner("defaultConfig").map(ProxySettings::read),
            extension_providers: fields.list("extensionProviders", ExtensionProvider::read),
            exports: DefaultExports {
                services: fields.texts("defaultServiceExportTo"),
                virtual_services: fields.texts("defaultVirtualServiceExportTo"),
                destination_rules: fields.texts("defaultDestinationRuleExportTo"),
            },
        };
        fields.without_effect(&WITHOUT_EFFECT);
        match fields.is_object() {
            // The source of a cluster obeys them.
            true => fields.ignore(&["discoverySelectors"]),
            false => fields.without_effect(&[("discoverySelectors", "folders are read whole")]),
        }
        mesh_mtls(fields);
        let instead = "refusals at listeners are written with all other access logs";
        let help = "remove it; everything else of this resource is in force";
        fields.not_obeyed("disableEnvoyListenerLog", &["false"], instead, help);
        config
    }
}

/// `meshMTLS`: the mesh speaks TLS 1.3 alone, which is the strictest that can be asked for.
fn mesh_mtls(fields: &mut Fields<'_>) {
    let Some(mut inner) = fields.inner("meshMTLS") else {
        return;
    };
    inner.ignore(&["minProtocolVersion"]);
    let instead = "workloads use TLS 1.3 with AES-GCM suites";
    inner.without_effect(&[("cipherSuites", instead), ("ecdhCurves", instead)]);
    inner.finish();
}

impl DefaultProviders {
    fn read(fields: &mut Fields<'_>) -> Self {
        let Some(mut inner) = fields.inner("defaultProviders") else {
            return Self::default();
        };
        let read = Self {
            tracing: inner.texts("tracing"),
            metrics: inner.texts("metrics"),
            access_logging: inner.texts("accessLogging"),
        };
        inner.finish();
        read
    }
}

impl ProxyTracing {
    fn read(mut fields: Fields<'_>) -> Self {
        let read = Self {
            sampling: fields.number("sampling"),
            max_path_tag_length: fields.integer("maxPathTagLength"),
            custom_tags: custom_tags(&mut fields).unwrap_or_default(),
            istio_tags: fields.boolean("enableIstioTags"),
        };
        let instead = "a provider of Telemetry receives spans";
        let collectors = [
            "datadog",
            "lightstep",
            "openCensusAgent",
            "stackdriver",
            "tlsSettings",
            "zipkin",
        ];
        fields.without_effect(&collectors.map(|name| (name, instead)));
        fields.finish();
        read
    }
}

/// `defaultHttpRetryPolicy`, or `retries` of a route.
#[derive(Debug)]
pub(crate) struct WrittenRetries {
    pub(crate) attempts: Option<SpannedValue<i64>>,
    pub(crate) retry_on: Option<Text>,
    pub(crate) per_try_timeout: Option<Text>,
    pub(crate) backoff: Option<Text>,
    /// True if endpoints that were tried already come last in a retry.
    pub(crate) ignore_previous: Option<SpannedValue<bool>>,
    /// True if retries may go to other localities while the nearest is healthy.
    pub(crate) remote_localities: Option<SpannedValue<bool>>,
}

impl WrittenRetries {
    pub(crate) fn read(mut fields: Fields<'_>) -> Self {
        let settings = Self {
            attempts: fields.integer("attempts"),
            retry_on: fields.text("retryOn"),
            per_try_timeout: fields.text("perTryTimeout"),
            backoff: fields.text("backoff"),
            ignore_previous: fields.boolean("retryIgnorePreviousHosts"),
            remote_localities: fields.boolean("retryRemoteLocalities"),
        };
        fields.finish();
        settings
    }
}

impl ProxySettings {
    fn read(mut fields: Fields<'_>) -> Self {
        let mut at_gateways = None;
        let mut proxy_protocol = false;
        let mut settings = Self {
            concurrency: fields.integer("concurrency"),
            termination_drain_duration: fields.text("terminationDrainDuration"),
            hold_application: fields.boolean("holdApplicationUntilProxyStarts"),
            discovery_address: fields.text("discoveryAddress"),
            tracing: fields.inner("tracing").map(ProxyTracing::read),
            runtime_values: fields.text_map("runtimeValues"),
            interception_mode: fields.text("interceptionMode"),
            trusted_proxies: fields.inner("gatewayTopology").and_then(|mut topology| {
                let number = topology.integer("numTrustedProxies");
                let header = topology.inner("proxyProtocol").map(Fields::finish);
                proxy_protocol = header.is_some();
                at_gateways = topology.text(GATEWAYS_FORWARD);
                topology.finish();
                number
            }),
            proxy_protocol: false,
            forwards: [None, None],
            details: None,
        };
        settings.proxy_protocol = proxy_protocol;
        let at_sidecars = fields.inner("proxyHeaders").map(|mut inner| {
            let said = proxy_headers(&mut inner);
            inner.finish();
            said
        });
        let (at_sidecars, details) = at_sidecars.unwrap_or_default();
        settings.forwards = [at_gateways, at_sidecars];
        settings.details = details;
        fields.without_effect(&PROXY_WITHOUT_EFFECT);
        fields.finish();
        settings
    }
}

/// `gatewayTopology.forwardClientCertDetails`.
pub(crate) const GATEWAYS_FORWARD: &str = "forwardClientCertDetails";

/// The fields of `proxyHeaders` for `x-forwarded-client-cert`.
pub(crate) fn proxy_headers(
    fields: &mut Fields<'_>,
) -> (Option<Text>, Option<ClientCertificateDetails>) {
    let said = fields.text("forwardedClientCert");
    let details = fields.inner("setCurrentClientCertDetails");
    let details = details.map(|mut inner| {
        let mut told = |name| inner.boolean(name).is_some_and(|flag| flag.value);
        let details = ClientCertificateDetails {
            subject: told("subject"),
            certificate: told("cert"),
            chain: told("chain"),
            dns: told("dns"),
            uri: told("uri"),
        };
        inner.finish();
        details
    });
    for (name, field, so_anyway, instead) in HEADERS_AS_THEY_ARE {
        if let Some(mut inner) = fields.inner(name) {
            inner.not_obeyed(field, so_anyway, instead, "remove it");
            if name == "server" {
                inner.ignore(&["disabled"]);
            }
            inner.finish();
        }
    }
    // Names go on in the case in which they came, and there is no metadata to be exchanged.
    fields.ignore(&[
        "metadataExchangeHeaders",
        "perserveHttp1HeaderCase",
        "preserveHttp1HeaderCase",
    ]);
    (said, details)
}

/// Headers that `proxyHeaders` cannot change: the header, its field, the values that match Voile's behaviour, and that
/// behaviour.
const HEADERS_AS_THEY_ARE: [(&str, &str, &[&str], &str); 6] = [
    (
        "attemptCount",
        "disabled",
        &["false"],
        "retries have x-envoy-attempt-count",
    ),
    (
        "envoyDebugHeaders",
        "disabled",
        &["true"],
        "no proxy writes these headers",
    ),
    (
        "requestId",
        "disabled",
        &["false"],
        "proxies generate x-request-id if spans or an access log need it",
    ),
    ("server", "value", &[""], "no proxy writes the header"),
    (
        "xForwardedHost",
        "enabled",
        &["false"],
        "no proxy writes x-forwarded-host",
    ),
    (
        "xForwardedPort",
        "enabled",
        &["false"],
        "no proxy writes x-forwarded-port",
    ),
];

impl ExtensionProvider {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let name = fields.text("name");
        let kinds = PROVIDER_KINDS
            .into_iter()
            .filter(|kind| fields.get(kind).is_some())
            .collect();
        let telemetry = provider::Telemetry::read(&mut fields);
        fields.finish();
        Some(Self {
            at: cursor.at.clone(),
            name,
            kinds,
            telemetry,
        })
    }
}
