//! Check of ConfigMaps. The one called `istio` is the mesh's configuration, written as YAML inside `data.mesh`.

mod limits;
pub(super) mod provider;
mod proxy;

use std::sync::Arc;

use voile_traffic::{DEFAULT_RETRIES, UNHEEDED_CONDITIONS, retry_conditions};

use super::values::{self, Meta};
use super::{CheckedResource, sidecar, traffic_policy};
use crate::codes;
use crate::decode::{Cursor, FieldPath, Fields, Report, Text};
use crate::logs::log_format::LogFormat;
use crate::mesh::{
    AccessLog, ConfigMap, DefaultExports, DefaultProviders, MeshConfig, PathNormalization,
    RetrySettings,
};
use crate::names::TrustDomain;
use crate::text::clip;
use crate::yaml::{self, SourcePosition, Value};

/// `h2UpgradePolicy`.
pub(super) const H2_UPGRADE_POLICIES: [(&str, bool); 2] =
    [("DO_NOT_UPGRADE", false), ("UPGRADE", true)];

/// Name of the ConfigMap that configures the mesh.
const MESH_CONFIG_MAP: &str = "istio";
/// Key of the mesh configuration inside it.
const MESH_KEY: &str = "mesh";

pub(super) fn config_map(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<CheckedResource> {
    let mesh_text = fields.get("data").and_then(|data| {
        let node = data.node.get(MESH_KEY)?;
        Some((
            node,
            FieldPath {
                place: node.place,
                path: values::join(&data.at.path, MESH_KEY),
            },
        ))
    });
    let data = fields.text_map("data");
    fields.ignore(&["binaryData", "immutable"]);
    if &*meta.name.name != MESH_CONFIG_MAP {
        let data = data.into_iter();
        let data = data.map(|(key, value)| (key.value, value.value));
        return Some(CheckedResource::ConfigMap(
            ConfigMap {
                name: meta.name,
                data: data.collect(),
                source: meta.source,
            }
            .into(),
        ));
    }
    for (key, _) in &data {
        if !matches!(&*key.value, MESH_KEY | "meshNetworks") {
            let help = crate::text::suggest(&key.value, [MESH_KEY]);
            report.error(
                codes::UNKNOWN_FIELD,
                &key.at,
                format!("unknown key `{}`", clip(&key.value)),
                help,
            );
        }
    }
    report.read_protobuf();
    let networks = data.iter().filter(|(key, value)| {
        let nothing = ["", "networks: {}", "{}"].contains(&value.value.trim());
        &*key.value == "meshNetworks" && !nothing
    });
    for (_, networks) in networks {
        let message = "`meshNetworks` is not yet supported and has no effect: Gateways of the classes istio-east-west and istio-remote connect networks";
        let help = "write such Gateways, and the label topology.istio.io/network";
        report.warning(codes::NOT_OBEYED, &networks.at, message, help);
    }
    let mut config = MeshConfig {
        source: Some(meta.source),
        ..MeshConfig::default()
    };
    if let Some((node, at)) = mesh_text {
        embedded(node, at, &mut config, report)?;
    }
    Some(CheckedResource::MeshConfig(config.into()))
}

/// The YAML inside `data.mesh`.
fn embedded(
    node: &yaml::YamlNode,
    at: FieldPath,
    config: &mut MeshConfig,
    report: &Report,
) -> Option<()> {
    let Value::Scalar(scalar) = &node.value else {
        return None;
    };
    // Only a literal block keeps its lines; in any other style all we can name is where the text begins.
    let (origin, exact) = scalar
        .content
        .map_or((at.place, false), |content| (content, true));
    match yaml::parse_document(&scalar.text, origin) {
        Err(error) => {
            let place = if exact { error.place } else { at.place };
            report.error(
                error.code,
                &FieldPath {
                    place,
                    path: at.path,
                },
                error.message,
                error.help,
            );
            return None;
        }
        Ok(Some(mut root)) if !root.is_null() => {
            if !exact {
                pin(&mut root, at.place);
            }
            let cursor = Cursor {
                node: &root,
                at,
                report,
            };
            cursor.mapping(|fields| mesh_config(config, fields))?;
        }
        Ok(_) => {}
    }
    Some(())
}

/// Gives every node one place.
pub(super) fn pin(node: &mut yaml::YamlNode, place: SourcePosition) {
    node.place = place;
    match &mut node.value {
        Value::Scalar(_) => {}
        Value::List(items) => items.iter_mut().for_each(|item| pin(item, place)),
        Value::Map(entries) => entries.iter_mut().for_each(|(key, value)| {
            key.place = place;
            pin(value, place);
        }),
    }
}

fn default_exports(fields: &mut Fields<'_>) -> DefaultExports {
    let report = fields.report();
    let mut exports = |name| values::exports(&fields.texts(name), report);
    DefaultExports {
        services: exports("defaultServiceExportTo"),
        virtual_services: exports("defaultVirtualServiceExportTo"),
        destination_rules: exports("defaultDestinationRuleExportTo"),
    }
}

/// Applies the written settings over the defaults.
fn mesh_config(config: &mut MeshConfig, fields: &mut Fields<'_>) {
    let report = fields.report();
    let trust_domain = |text: &Text| {
        report.parsed(
            text,
            "a trust domain",
            TrustDomain::new,
            "lower-case letters, digits, `.`, `-` and `_`, without spiffe://",
        )
    };
    config.locality = traffic_policy::locality_of_mesh(fields);
    let domain = fields.text("trustDomain");
    set(
        &mut config.trust_domain,
        domain.as_ref().and_then(trust_domain),
    );
    let aliases = fields.texts("trustDomainAliases");
    config.trust_domain_aliases = aliases.iter().filter_map(trust_domain).collect();
    let root = fields.text("rootNamespace");
    let root = root.and_then(|text| values::namespace(&text, report));
    set(&mut config.root_namespace, root);
    config.default_exports = default_exports(fields);
    let flags = [
        ("enableAutoMtls", &mut config.enable_auto_mtls),
        ("enablePrometheusMerge", &mut config.merges_metrics),
        ("enableTracing", &mut config.enable_tracing),
    ];
    for (name, flag) in flags {
        set(flag, fields.optional_flag(name));
    }
    let policy = fields.mapping("outboundTrafficPolicy", |policy| {
        let mode = policy.one_of("mode", &sidecar::OUTBOUND_MODES);
        let instead = "connections to unknown hosts are forwarded as they come";
        policy.without_effect(&[("tls", instead)]);
        mode
    });
    set(&mut config.outbound_policy, policy.flatten());
    if let Some(text) = fields.text("connectTimeout") {
        set(&mut config.connect_timeout, report.duration(&text));
        if config.connect_timeout.is_zero() {
            report.bad(&text, " for a timeout", "write a time longer than 0");
        }
    }
    let detection = fields.duration("protocolDetectionTimeout");
    set(&mut config.protocol_detection_timeout, detection);
    let upgrade = fields.one_of("h2UpgradePolicy", &H2_UPGRADE_POLICIES);
    set(&mut config.http2_upgrade, upgrade);
    let normalization = fields.mapping("pathNormalization", |inner| {
        inner.one_of("normalization", &NORMALIZATIONS)
    });
    set(&mut config.path_normalization, normalization.flatten());
    access_log(config, fields);
    let providers = fields.mapping("defaultProviders", default_providers);
    config.default_providers = providers.unwrap_or_default();
    config.default_retry = fields.mapping("defaultHttpRetryPolicy", retry);
    set(
        &mut config.proxy,
        fields.mapping("defaultConfig", proxy::settings),
    );
    config.extension_providers = provider::providers(fields);
    without_effect(fields);
}

/// `pathNormalization.normalization`. DEFAULT is what Istio does when nothing is said.
const NORMALIZATIONS: [(&str, PathNormalization); 5] = [
    ("DEFAULT", PathNormalization::Base),
    ("NONE", PathNormalization::None),
    ("BASE", PathNormalization::Base),
    ("MERGE_SLASHES", PathNormalization::MergeSlashes),
    (
        "DECODE_AND_MERGE_SLASHES",
        PathNormalization::DecodeAndMergeSlashes,
    ),
];

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

fn default_providers(fields: &mut Fields<'_>) -> DefaultProviders {
    DefaultProviders {
        tracing: fields.values("tracing"),
        metrics: fields.values("metrics"),
        access_logging: fields.values("accessLogging"),
    }
}

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

fn without_effect(fields: &mut Fields<'_>) {
    fields.without_effect(&WITHOUT_EFFECT);
    match fields.is_object() {
        // The source of a cluster obeys them.
        true => fields.ignore(&["discoverySelectors"]),
        false => fields.without_effect(&[("discoverySelectors", "folders are read whole")]),
    }
    // The mesh speaks TLS 1.3 alone, which is the strictest that can be asked for.
    fields.mapping("meshMTLS", |inner| {
        inner.ignore(&["minProtocolVersion"]);
        let instead = "workloads use TLS 1.3 with AES-GCM suites";
        inner.without_effect(&[("cipherSuites", instead), ("ecdhCurves", instead)]);
    });
    let instead = "refusals at listeners are written with all other access logs";
    let help = "remove it; everything else of this resource is in force";
    fields.not_obeyed("disableEnvoyListenerLog", &["false"], instead, help);
}

/// The mesh's log and format. An empty format is the default of its encoding.
fn access_log(config: &mut MeshConfig, fields: &mut Fields<'_>) {
    let report = fields.report();
    let encoding = fields.one_of("accessLogEncoding", &[("TEXT", false), ("JSON", true)]);
    let json = encoding == Some(true);
    let said = fields.text("accessLogFormat");
    let format = match said.filter(|text| !text.value.is_empty()) {
        None if json => Some(LogFormat::default_json()),
        None => Some(LogFormat::default_text()),
        Some(text) if json => provider::format(&text.at, LogFormat::json(&text.value), report),
        Some(text) => provider::format(&text.at, LogFormat::text(&text.value), report),
    };
    set(&mut config.access_log_format, format);
    let path = fields.text("accessLogFile");
    let path = path.filter(|path| !path.value.is_empty());
    let path = path.and_then(|path| provider::log_path(&path, report));
    config.access_log = path.map(|path| AccessLog {
        path,
        format: config.access_log_format.clone(),
    });
}

/// A retry policy: `defaultHttpRetryPolicy`, or `retries` of a route.
pub(super) fn retry(fields: &mut Fields<'_>) -> RetrySettings {
    let report = fields.report();
    let attempts = fields.integer("attempts");
    let counted = attempts
        .as_ref()
        .and_then(|number| u32::try_from(number.value).ok());
    if let (Some(number), None) = (attempts, counted) {
        let message = format!("{} is not a number of attempts", number.value);
        report.error(codes::BAD_VALUE, &number.at, message, "write 0 or more");
    }
    let on = fields.text("retryOn");
    let per_try_timeout = fields.duration("perTryTimeout");
    let backoff = fields.duration("backoff");
    let previous = fields.boolean("retryIgnorePreviousHosts");
    if let Some(previous) = previous.filter(|one| !one.value) {
        report.error(
            codes::NOT_YET,
            &previous.at,
            "retryIgnorePreviousHosts: false is not yet supported: a retry prefers other endpoints",
            "remove it",
        );
    }
    let remote = fields.boolean("retryRemoteLocalities");
    if let Some(remote) = remote.filter(|one| one.value) {
        report.error(
            codes::NOT_YET,
            &remote.at,
            "retryRemoteLocalities: true is not yet supported: a retry prefers the nearest healthy locality, like other requests",
            "remove it; use localityLbSetting",
        );
    }
    RetrySettings {
        retries: counted.unwrap_or(DEFAULT_RETRIES),
        on: on.map_or_else(Vec::new, |text| conditions_of_retry(&text, report)),
        per_try_timeout: per_try_timeout.filter(|limit| !limit.is_zero()),
        backoff: backoff.filter(|base| !base.is_zero()),
    }
}

/// `retryOn`.
fn conditions_of_retry(text: &Text, report: &Report) -> Vec<Arc<str>> {
    let names = text.value.split(',').map(str::trim);
    let names = names.filter(|name| !name.is_empty());
    let unheeded: Vec<&str> = names
        .clone()
        .filter(|name| UNHEEDED_CONDITIONS.contains(name))
        .collect();
    if !unheeded.is_empty() {
        let message = format!("not yet supported: `{}`", unheeded.join("`, `"));
        let help = "the other conditions are in force; write status codes as numbers";
        report.warning(codes::NOT_YET, &text.at, message, help);
    }
    let known = retry_conditions();
    let mut on = Vec::new();
    for name in names {
        let code = name
            .parse()
            .is_ok_and(|code: u16| (100..600).contains(&code));
        if code || known.contains(&name) {
            on.push(name.into());
        } else {
            let help = crate::text::suggest(name, known.iter().copied());
            report.bad(
                text,
                &format!(": there is no condition `{}`", clip(name)),
                help,
            );
        }
    }
    on
}
