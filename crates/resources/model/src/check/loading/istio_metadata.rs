//! Istio's labels and annotations. Each is either obeyed, or a warning names it and describes Voile's behaviour.
//! `values::labels_and_annotations` calls this for resources and for the templates of Pods. It never refuses a
//! resource: Kubernetes accepts any key.

use crate::codes;
use crate::decode::{Report, TextMap};
use crate::text::{clip, nearest, suggest};

/// The group of Istio's own keys; others end with a dot and it.
const GROUP: &str = "istio.io";
/// `capture` reads these and names the wrong ones.
const CAPTURE: &str = "traffic.sidecar.istio.io";
/// Istio's tools mark generated resources with keys of this group; the keys request nothing.
const OPERATOR: &str = "operator.istio.io";

/// Keys that are obeyed, and marks that ask for nothing.
const OBEYED: [&str; 37] = [
    "ambient.istio.io/redirection",
    "ambient.istio.io/waypoint-inbound-binding",
    "galley.istio.io/analyze-suppress",
    "gateway.istio.io/controller-version",
    "gateway.istio.io/managed",
    "gateway.istio.io/service-account",
    "inject.istio.io/templates",
    "istio.io/autoRegistrationGroup",
    "istio.io/config",
    "istio.io/connectedAt",
    "istio.io/dataplane-mode",
    "istio.io/disconnectedAt",
    "istio.io/dry-run",
    "istio.io/gateway-name",
    "istio.io/global",
    "istio.io/rev",
    "istio.io/tag",
    "istio.io/use-waypoint",
    "istio.io/use-waypoint-namespace",
    "istio.io/waypoint-for",
    "istio.io/workloadController",
    "networking.istio.io/exportTo",
    "networking.istio.io/traffic-distribution",
    "networking.istio.io/tunnel",
    "proxy.istio.io/config",
    "proxy.istio.io/health-checks-enabled",
    "security.istio.io/tlsMode",
    "service.istio.io/canonical-name",
    "service.istio.io/canonical-revision",
    "sidecar.istio.io/inject",
    "sidecar.istio.io/interceptionMode",
    "sidecar.istio.io/rewriteAppHTTPProbers",
    "sidecar.istio.io/status",
    "topology.istio.io/cluster",
    "topology.istio.io/controlPlaneClusters",
    "topology.istio.io/network",
    "topology.istio.io/subzone",
];

/// Annotations of Pods that the injector of a cluster obeys. In a folder they have no effect.
pub const INJECTED: [&str; 16] = [
    "prometheus.istio.io/merge-metrics",
    "readiness.status.sidecar.istio.io/failureThreshold",
    "readiness.status.sidecar.istio.io/initialDelaySeconds",
    "readiness.status.sidecar.istio.io/periodSeconds",
    "sidecar.istio.io/init-containers-before-proxy",
    "sidecar.istio.io/logLevel",
    "sidecar.istio.io/nativeSidecar",
    "sidecar.istio.io/proxyCPU",
    "sidecar.istio.io/proxyCPULimit",
    "sidecar.istio.io/proxyImage",
    "sidecar.istio.io/proxyMemory",
    "sidecar.istio.io/proxyMemoryLimit",
    "sidecar.istio.io/userVolume",
    "sidecar.istio.io/userVolumeMount",
    // Obeyed elsewhere, too.
    "sidecar.istio.io/interceptionMode",
    "sidecar.istio.io/rewriteAppHTTPProbers",
];

const LEGACY: &str = "use an AuthorizationPolicy";
const RESOURCES: &str = "requests and limits of the sidecar are not set";
const LOGS: &str = "the command line sets the proxy's log level";
const PROGRAM: &str = "the proxy is this program";
const METRICS: &str = "metrics are Istio's standard ones";
const READINESS: &str = "a proxy is ready when it has its configuration";
const CANARY: &str = "all requests go to the waypoint of istio.io/use-waypoint";

/// Keys without effect here, with Voile's behaviour.
const WITHOUT_EFFECT: [(&str, &str); 49] = [
    ("alpha.istio.io/canonical-serviceaccounts", LEGACY),
    ("alpha.istio.io/kubernetes-serviceaccounts", LEGACY),
    (
        "ambient.istio.io/bypass-inbound-capture",
        "all inbound connections are captured, and policies hold for them",
    ),
    (
        "ambient.istio.io/dns-capture",
        "the data plane mode selects the DNS proxy",
    ),
    (
        "gateway.istio.io/name-override",
        "pods of a Gateway have its own name",
    ),
    (
        "istio.io/ingress-use-waypoint",
        "gateways call services without their waypoint",
    ),
    (
        "istio.io/reroute-virtual-interfaces",
        "connections of virtual interfaces are not captured",
    ),
    ("istio.io/use-waypoint-canary", CANARY),
    ("istio.io/use-waypoint-canary-namespace", CANARY),
    ("istio.io/use-waypoint-canary-weight", CANARY),
    (
        "networking.istio.io/enable-autoallocate-ip",
        "the control plane chooses an address wherever one is missing",
    ),
    (
        "networking.istio.io/gatewayPort",
        "gateways between networks use port 15008",
    ),
    (
        SERVICE_TYPE,
        "without a cluster, the Service of a Gateway has no type",
    ),
    (
        "prometheus.istio.io/merge-metrics",
        "the application's own metrics are read at its own port",
    ),
    (
        "proxy.istio.io/overrides",
        "the proxy's container is not changed",
    ),
    (
        "readiness.status.sidecar.istio.io/applicationPorts",
        READINESS,
    ),
    (
        "readiness.status.sidecar.istio.io/failureThreshold",
        READINESS,
    ),
    (
        "readiness.status.sidecar.istio.io/initialDelaySeconds",
        READINESS,
    ),
    ("readiness.status.sidecar.istio.io/periodSeconds", READINESS),
    (
        "service.istio.io/workload-name",
        "telemetry names the workload by its owner",
    ),
    ("sidecar.istio.io/agentLogLevel", LOGS),
    ("sidecar.istio.io/bootstrapOverride", PROGRAM),
    ("sidecar.istio.io/componentLogLevel", LOGS),
    (
        "sidecar.istio.io/discoveryAddress",
        "the command line or MeshConfig names the control plane",
    ),
    ("sidecar.istio.io/extraStatTags", METRICS),
    (
        "sidecar.istio.io/init-containers-before-proxy",
        "the mode of injection decides when the sidecar starts",
    ),
    ("sidecar.istio.io/logLevel", LOGS),
    (
        "sidecar.istio.io/nativeSidecar",
        "the mode of injection decides when the sidecar starts",
    ),
    ("sidecar.istio.io/proxyCPU", RESOURCES),
    ("sidecar.istio.io/proxyCPULimit", RESOURCES),
    ("sidecar.istio.io/proxyImage", PROGRAM),
    ("sidecar.istio.io/proxyImageType", PROGRAM),
    ("sidecar.istio.io/proxyMemory", RESOURCES),
    ("sidecar.istio.io/proxyMemoryLimit", RESOURCES),
    ("sidecar.istio.io/statsCompression", METRICS),
    ("sidecar.istio.io/statsEvictionInterval", METRICS),
    ("sidecar.istio.io/statsFlushInterval", METRICS),
    ("sidecar.istio.io/statsHistogramBins", METRICS),
    ("sidecar.istio.io/statsHistogramBuckets", METRICS),
    ("sidecar.istio.io/statsInclusionPrefixes", METRICS),
    ("sidecar.istio.io/statsInclusionRegexps", METRICS),
    ("sidecar.istio.io/statsInclusionSuffixes", METRICS),
    (
        "sidecar.istio.io/userVolume",
        "nothing is mounted into the sidecar",
    ),
    (
        "sidecar.istio.io/userVolumeMount",
        "nothing is mounted into the sidecar",
    ),
    (
        "status.sidecar.istio.io/port",
        "the command line sets the status port",
    ),
    (
        "topology.istio.io/locality",
        "the labels of topology.kubernetes.io and istio-locality set the locality",
    ),
    (
        "traffic.istio.io/nodeSelector",
        "gateways are not reachable at node addresses",
    ),
    (
        "xds.istio.io/grpc-enabled",
        "the control plane serves every gRPC client that subscribes",
    ),
    (
        "sidecar.istio.io/enableCoreDump",
        "the proxy writes no core dumps",
    ),
];

/// Annotations that Istio has deprecated, with their replacements. A warning names those without effect in any case.
const DEPRECATED: [(&str, &str); 1] = [(
    "sidecar.istio.io/inject",
    "write it as a label, which Istio's injector looks at first",
)];

/// Annotations that are obeyed here and alpha in Istio. Not those that Istio's tools and injectors write themselves.
const ALPHA: [&str; 14] = [
    "ambient.istio.io/waypoint-inbound-binding",
    "gateway.istio.io/service-account",
    "istio.io/autoRegistrationGroup",
    "istio.io/dry-run",
    "networking.istio.io/exportTo",
    "networking.istio.io/traffic-distribution",
    "sidecar.istio.io/interceptionMode",
    "sidecar.istio.io/rewriteAppHTTPProbers",
    "traffic.sidecar.istio.io/excludeInboundPorts",
    "traffic.sidecar.istio.io/excludeOutboundIPRanges",
    "traffic.sidecar.istio.io/excludeOutboundPorts",
    "traffic.sidecar.istio.io/includeInboundPorts",
    "traffic.sidecar.istio.io/includeOutboundIPRanges",
    "traffic.sidecar.istio.io/includeOutboundPorts",
];

/// Test of a value as Istio does it, and a description of accepted values.
type Takes = (fn(&str) -> bool, &'static str);

const NUMBER: Takes = (|text| text.parse::<u32>().is_ok(), "a number of 0 or more");
const QUANTITY: Takes = (is_quantity, "a quantity such as 100m, 2 or 128Mi");

/// Annotations without effect here whose values Istio checks: it injects no Pod with a wrong value. `capture` and `pod`
/// check the obeyed annotations.
const VALUES: [(&str, Takes); 9] = [
    (
        "prometheus.istio.io/merge-metrics",
        (is_boolean, "true or false"),
    ),
    ("readiness.status.sidecar.istio.io/failureThreshold", NUMBER),
    (
        "readiness.status.sidecar.istio.io/initialDelaySeconds",
        NUMBER,
    ),
    ("readiness.status.sidecar.istio.io/periodSeconds", NUMBER),
    ("sidecar.istio.io/proxyCPU", QUANTITY),
    ("sidecar.istio.io/proxyCPULimit", QUANTITY),
    ("sidecar.istio.io/proxyMemory", QUANTITY),
    ("sidecar.istio.io/proxyMemoryLimit", QUANTITY),
    (
        "status.sidecar.istio.io/port",
        (|text| text.trim().parse::<u16>().is_ok(), "a port"),
    ),
];

/// The words that Go's `strconv.ParseBool` takes.
#[must_use]
pub fn is_boolean(text: &str) -> bool {
    let words = [
        "1", "t", "T", "true", "TRUE", "True", "0", "f", "F", "false", "FALSE", "False",
    ];
    words.contains(&text)
}

/// A decimal number with a suffix of Kubernetes.
#[must_use]
pub fn is_quantity(text: &str) -> bool {
    let digits = text.trim_start_matches(['+', '-']);
    let end = digits.find(|one: char| !one.is_ascii_digit() && one != '.');
    let (number, suffix) = digits.split_at(end.unwrap_or(digits.len()));
    let suffixes = [
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
    ];
    let exponent = suffix.strip_prefix(['e', 'E']);
    let is_exponent = exponent.is_some_and(|power| power.parse::<i8>().is_ok());
    number.parse::<f64>().is_ok() && (suffixes.contains(&suffix) || is_exponent)
}

/// Names the labels and annotations that are Istio's and have no effect, and those that Istio does not have; the annotations with
/// values that Istio does not take, and those that it has deprecated or calls alpha.
pub(in crate::check) fn check(
    (labels, annotations): (&TextMap, &TextMap),
    live: bool,
    report: &Report,
) {
    known(labels, false, report);
    known(annotations, live, report);
    let is_label = |name: &str| labels.iter().any(|(label, _)| &*label.value == name);
    for (key, value) in annotations {
        let name = &*key.value;
        let mut values = VALUES.iter();
        if let Some((_, (takes, what))) = values.find(|(known, _)| *known == name)
            && !takes(&value.value)
        {
            let message = format!(
                "`{}` is no valid value of `{name}`: Istio's injector rejects Pods with it",
                clip(&value.value)
            );
            let help = format!("write {what}");
            report.warning(codes::BAD_METADATA, &value.at, message, help);
        }
        let mut deprecated = DEPRECATED.iter();
        if let Some((_, instead)) = deprecated.find(|(known, _)| *known == name)
            && !is_label(name)
        {
            let message = format!("Istio has deprecated the annotation `{name}`");
            report.note(codes::DEPRECATED_METADATA, &key.at, message, *instead);
        }
        if ALPHA.contains(&name) {
            let message = format!("the annotation `{name}` is alpha in Istio: it may change there");
            report.note(codes::ALPHA_METADATA, &key.at, message, "");
        }
    }
}

/// Effect of a label or annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetadataEffect {
    /// It is obeyed or only a mark, or it is not Istio's.
    AsWritten,
    /// It has none; the text describes Voile's behaviour.
    Ignored(&'static str),
    /// Istio has no such key; the text may suggest one, or be empty.
    Unknown(String),
}

/// Returns the effect of a label or annotation of a folder, by its name. Those about capture have their own check.
#[must_use]
pub fn metadata_effect(name: &str) -> MetadataEffect {
    let Some((group, _)) = name.split_once('/') else {
        return MetadataEffect::AsWritten;
    };
    let of_istio = group.strip_suffix(GROUP);
    let of_istio = of_istio.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    let elsewhere = group == CAPTURE || group.ends_with(OPERATOR);
    if !of_istio || elsewhere || OBEYED.contains(&name) {
        return MetadataEffect::AsWritten;
    }
    let mut known = WITHOUT_EFFECT.iter();
    if let Some((_, instead)) = known.find(|(known, _)| *known == name) {
        return MetadataEffect::Ignored(instead);
    }
    let all = WITHOUT_EFFECT.iter().map(|(known, _)| *known);
    let near = nearest(name, all.chain(OBEYED));
    MetadataEffect::Unknown(near.map_or_else(String::new, |near| suggest(name, [near])))
}

/// Annotation of a Gateway with the type of its Service, which a cluster's deployer obeys.
const SERVICE_TYPE: &str = "networking.istio.io/service-type";

/// Names keys without effect. On a cluster, the injector has obeyed those of Pods that are its own.
fn known(keys: &TextMap, live: bool, report: &Report) {
    for (key, _) in keys {
        let name = &*key.value;
        if live && (INJECTED.contains(&name) || name == SERVICE_TYPE) {
            continue;
        }
        match metadata_effect(name) {
            MetadataEffect::AsWritten => {}
            MetadataEffect::Ignored(instead) => {
                let message = format!("`{name}` has no effect: {instead}");
                report.warning(codes::NOT_OBEYED, &key.at, message, "remove it");
            }
            MetadataEffect::Unknown(help) => {
                let message = format!("Istio has no label or annotation `{}`", clip(name));
                report.warning(codes::UNKNOWN_METADATA, &key.at, message, help);
            }
        }
    }
}
