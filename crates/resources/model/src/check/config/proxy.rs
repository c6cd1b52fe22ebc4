//! Check of `defaultConfig`: settings of all proxies.

use super::{limits, provider, set};
use crate::check::{networking, telemetry, topology};
use crate::codes;
use crate::decode::{Fields, Report, Text};
use crate::mesh::{ProxySettings, ProxyTracing, Topology};

/// Istio's fields without effect here, with Voile's behaviour.
const WITHOUT_EFFECT: [(&str, &str); 31] = [
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

pub(super) fn settings(fields: &mut Fields<'_>) -> ProxySettings {
    let report = fields.report();
    let concurrency = fields.integer("concurrency");
    let mut settings = ProxySettings {
        concurrency: concurrency.and_then(|number| networking::concurrency(&number, report)),
        discovery_address: fields.value("discoveryAddress"),
        tracing: fields.mapping("tracing", tracing).unwrap_or_default(),
        limits: limits::limits(&fields.text_map("runtimeValues"), report),
        ..ProxySettings::default()
    };
    let termination = fields.duration("terminationDrainDuration");
    set(&mut settings.termination_drain_duration, termination);
    let hold = fields.optional_flag("holdApplicationUntilProxyStarts");
    set(&mut settings.hold_application_until_proxy_starts, hold);
    let mut topology = Topology::default();
    fields.mapping("gatewayTopology", |inner| {
        topology::gateway(inner, &mut topology);
    });
    fields.mapping("proxyHeaders", |inner| {
        topology::headers(inner, &mut topology);
    });
    settings.proxy_protocol = topology.proxy_protocol;
    settings.forwards = topology.forwards;
    set(&mut settings.trusted_proxies, topology.trusted_proxies);
    let mode = fields.text("interceptionMode");
    let keeps_source = mode.and_then(|mode| keeps_source(&mode, report));
    set(&mut settings.keeps_source, keeps_source);
    fields.without_effect(&WITHOUT_EFFECT);
    settings
}

fn tracing(fields: &mut Fields<'_>) -> ProxyTracing {
    let report = fields.report();
    let sampling = fields.number("sampling");
    let length = fields.integer("maxPathTagLength");
    let custom_tags = telemetry::custom_tags(fields).unwrap_or_default();
    let istio_tags = fields.optional_flag("enableIstioTags");
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
    ProxyTracing {
        sampling: sampling.and_then(|number| telemetry::share(&number, report)),
        max_path_tag_length: length.and_then(|number| provider::tag_length(&number, report)),
        custom_tags,
        istio_tags,
    }
}

/// Pods without capture are not built.
fn keeps_source(mode: &Text, report: &Report) -> Option<bool> {
    if &*mode.value == "NONE" {
        report.error(
            codes::NOT_YET,
            &mode.at,
            "interceptionMode: NONE is not yet supported",
            "remove it, or write REDIRECT or TPROXY",
        );
        return None;
    }
    report.one_of(mode, &[("REDIRECT", false), ("TPROXY", true)])
}
