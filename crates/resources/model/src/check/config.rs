//! Check of ConfigMaps. The one called `istio` is the mesh's configuration, written as YAML inside `data.mesh`.

mod limits;
pub(super) mod provider;

use std::collections::BTreeMap;
use std::sync::Arc;

use voile_traffic::{DEFAULT_RETRIES, UNHEEDED_CONDITIONS, retry_conditions};

use super::values::{self, Meta};
use super::{CheckedResource, networking, sidecar, telemetry, topology, traffic_policy};
use crate::codes;
use crate::decode::{Cursor, FieldPath, Fields, Report, SpannedValue};
use crate::logs::log_format::LogFormat;
use crate::mesh::{
    AccessLog, ConfigMap, DefaultExports, DefaultProviders, ExtensionProvider, Forwards,
    MeshConfig, PathNormalization, Provider, ProxySettings, ProxyTracing, RetrySettings,
};
use crate::names::TrustDomain;
use crate::text::clip;
use crate::written::{Text, config as written, kubernetes};
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
    let written = kubernetes::ConfigMap::read(fields);
    if &*meta.name.name != MESH_CONFIG_MAP {
        let data: BTreeMap<Arc<str>, Arc<str>> = written
            .data
            .into_iter()
            .map(|(key, value)| (key.value, value.value))
            .collect();
        return Some(CheckedResource::ConfigMap(
            ConfigMap {
                name: meta.name,
                data,
                source: meta.source,
            }
            .into(),
        ));
    }
    for (key, _) in &written.data {
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
    let networks = written.data.iter().filter(|(key, value)| {
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
            let mut fields = cursor.fields()?;
            config.locality = traffic_policy::locality_of_mesh(&mut fields);
            let written = written::MeshConfig::read(&mut fields);
            fields.finish();
            mesh_config(config, &written, report);
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

fn http2_upgrade(written: &written::MeshConfig, report: &Report) -> Option<bool> {
    let text = written.h2_upgrade_policy.as_ref()?;
    report.one_of(text, &H2_UPGRADE_POLICIES)
}

fn default_exports(written: &written::DefaultExports, report: &Report) -> DefaultExports {
    DefaultExports {
        services: values::exports(&written.services, report),
        virtual_services: values::exports(&written.virtual_services, report),
        destination_rules: values::exports(&written.destination_rules, report),
    }
}

/// Applies the written settings over the defaults.
fn mesh_config(config: &mut MeshConfig, written: &written::MeshConfig, report: &Report) {
    let trust_domain = |text: &Text| {
        report.parsed(
            text,
            "a trust domain",
            TrustDomain::new,
            "lower-case letters, digits, `.`, `-` and `_`, without spiffe://",
        )
    };
    set(
        &mut config.trust_domain,
        written.trust_domain.as_ref().and_then(trust_domain),
    );
    config.trust_domain_aliases = written
        .trust_domain_aliases
        .iter()
        .filter_map(trust_domain)
        .collect();
    set(
        &mut config.root_namespace,
        written
            .root_namespace
            .as_ref()
            .and_then(|text| values::namespace(text, report)),
    );
    config.default_exports = default_exports(&written.exports, report);
    let flag = |flag: &Option<SpannedValue<bool>>| flag.as_ref().map(|flag| flag.value);
    set(
        &mut config.enable_auto_mtls,
        flag(&written.enable_auto_mtls),
    );
    set(
        &mut config.merges_metrics,
        flag(&written.enable_prometheus_merge),
    );
    let policy = written
        .outbound_mode
        .as_ref()
        .and_then(|text| report.one_of(text, &sidecar::OUTBOUND_MODES));
    set(&mut config.outbound_policy, policy);
    set(
        &mut config.connect_timeout,
        written
            .connect_timeout
            .as_ref()
            .and_then(|text| report.duration(text)),
    );
    let detection = written
        .protocol_detection_timeout
        .as_ref()
        .and_then(|text| report.duration(text));
    set(&mut config.protocol_detection_timeout, detection);
    set(&mut config.http2_upgrade, http2_upgrade(written, report));
    if let Some(timeout) = &written.connect_timeout
        && config.connect_timeout.is_zero()
    {
        report.bad(timeout, " for a timeout", "write a time longer than 0");
    }
    path_normalization(config, written, report);
    access_log(config, written, report);
    default_providers(config, written);
    config.default_retry = written
        .default_retry
        .as_ref()
        .map(|written| retry(written, report));
    if let Some(proxy) = &written.proxy {
        config.proxy = proxy_settings(proxy, report);
    }
    config.extension_providers = providers(&written.extension_providers, report);
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

fn path_normalization(config: &mut MeshConfig, written: &written::MeshConfig, report: &Report) {
    set(
        &mut config.path_normalization,
        written
            .path_normalization
            .as_ref()
            .and_then(|text| report.one_of(text, &NORMALIZATIONS)),
    );
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

fn default_providers(config: &mut MeshConfig, written: &written::MeshConfig) {
    set(
        &mut config.enable_tracing,
        written.enable_tracing.as_ref().map(|flag| flag.value),
    );
    let names = |texts: &[Text]| texts.iter().map(|text| text.value.clone()).collect();
    config.default_providers = DefaultProviders {
        tracing: names(&written.default_providers.tracing),
        metrics: names(&written.default_providers.metrics),
        access_logging: names(&written.default_providers.access_logging),
    };
}

/// The mesh's log and format. An empty format is the default of its encoding.
fn access_log(config: &mut MeshConfig, written: &written::MeshConfig, report: &Report) {
    let words = [("TEXT", false), ("JSON", true)];
    let encoding = written.access_log_encoding.as_ref();
    let json = encoding.and_then(|text| report.one_of(text, &words)) == Some(true);
    let said = written
        .access_log_format
        .as_ref()
        .filter(|text| !text.value.is_empty());
    let format = match said {
        None if json => Some(LogFormat::default_json()),
        None => Some(LogFormat::default_text()),
        Some(text) if json => provider::format(text, LogFormat::json(&text.value), report),
        Some(text) => provider::format(text, LogFormat::text(&text.value), report),
    };
    set(&mut config.access_log_format, format);
    let path = written
        .access_log_file
        .as_ref()
        .filter(|path| !path.value.is_empty());
    let path = path.and_then(|path| provider::log_path(path, report));
    config.access_log = path.map(|path| AccessLog {
        path,
        format: config.access_log_format.clone(),
    });
}

fn proxy_tracing(written: &written::ProxyTracing, report: &Report) -> ProxyTracing {
    ProxyTracing {
        sampling: written
            .sampling
            .as_ref()
            .and_then(|number| telemetry::share(number, report)),
        max_path_tag_length: written
            .max_path_tag_length
            .as_ref()
            .and_then(|number| provider::tag_length(number, report)),
        custom_tags: telemetry::custom_tags(&written.custom_tags, report),
        istio_tags: written.istio_tags.as_ref().map(|flag| flag.value),
    }
}

/// A retry policy, of the mesh or of a route.
pub(super) fn retry(written: &written::WrittenRetries, report: &Report) -> RetrySettings {
    let attempts = written.attempts.as_ref();
    let counted = attempts.and_then(|number| u32::try_from(number.value).ok());
    if let (Some(number), None) = (attempts, counted) {
        let message = format!("{} is not a number of attempts", number.value);
        report.error(codes::BAD_VALUE, &number.at, message, "write 0 or more");
    }
    if let Some(previous) = written.ignore_previous.as_ref().filter(|one| !one.value) {
        report.error(
            codes::NOT_YET,
            &previous.at,
            "retryIgnorePreviousHosts: false is not yet supported: a retry prefers other endpoints",
            "remove it",
        );
    }
    if let Some(remote) = written.remote_localities.as_ref().filter(|one| one.value) {
        report.error(
            codes::NOT_YET,
            &remote.at,
            "retryRemoteLocalities: true is not yet supported: a retry prefers the nearest healthy locality, like other requests",
            "remove it; use localityLbSetting",
        );
    }
    let on = written.retry_on.as_ref();
    let on = on.map_or_else(Vec::new, |text| conditions_of_retry(text, report));
    let duration = |text: &Option<Text>| text.as_ref().and_then(|text| report.duration(text));
    RetrySettings {
        retries: counted.unwrap_or(DEFAULT_RETRIES),
        on,
        per_try_timeout: duration(&written.per_try_timeout).filter(|limit| !limit.is_zero()),
        backoff: duration(&written.backoff).filter(|base| !base.is_zero()),
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

fn proxy_settings(written: &written::ProxySettings, report: &Report) -> ProxySettings {
    let mut settings = ProxySettings {
        concurrency: written
            .concurrency
            .as_ref()
            .and_then(|number| networking::concurrency(number, report)),
        discovery_address: written
            .discovery_address
            .as_ref()
            .map(|text| text.value.clone()),
        tracing: written
            .tracing
            .as_ref()
            .map(|tracing| proxy_tracing(tracing, report))
            .unwrap_or_default(),
        limits: limits::limits(&written.runtime_values, report),
        proxy_protocol: written.proxy_protocol,
        ..ProxySettings::default()
    };
    let termination = written
        .termination_drain_duration
        .as_ref()
        .and_then(|text| report.duration(text));
    set(&mut settings.termination_drain_duration, termination);
    set(
        &mut settings.hold_application_until_proxy_starts,
        written.hold_application.as_ref().map(|flag| flag.value),
    );
    let number = written.trusted_proxies.as_ref();
    set(
        &mut settings.trusted_proxies,
        number.and_then(|number| topology::trusted_proxies(number, report)),
    );
    let [gateway, sidecar] = &written.forwards;
    settings.forwards = Forwards {
        gateway: topology::forwards(gateway.as_ref(), report),
        sidecar: topology::forwards(sidecar.as_ref(), report),
        details: written.details,
    };
    let mode = written.interception_mode.as_ref();
    set(
        &mut settings.keeps_source,
        mode.and_then(|mode| keeps_source(mode, report)),
    );
    settings
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

fn providers(
    written: &[written::ExtensionProvider],
    report: &Report,
) -> BTreeMap<Arc<str>, ExtensionProvider> {
    let names = written.iter().filter_map(|provider| provider.name.as_ref());
    values::unique(
        "provider",
        names.map(|name| (name.value.clone(), &name.at)),
        report,
    );
    let checked = |written: &written::ExtensionProvider| {
        let name = report
            .required(
                written.name.as_ref().filter(|name| !name.value.is_empty()),
                &written.at,
                "name",
            )?
            .value
            .clone();
        let [kind] = written.kinds[..] else {
            let message = format!(
                "a provider has exactly one type, not {}",
                written.kinds.len()
            );
            report.error(
                codes::CONTRADICTION,
                &written.at,
                message,
                "write one field such as envoyExtAuthzHttp or opentelemetry",
            );
            return None;
        };
        let source = report.source(&written.at);
        Some((
            name.clone(),
            ExtensionProvider {
                name,
                kind: kind.into(),
                provider: match &written.telemetry {
                    Some(written) => provider::provider(written, report)?,
                    None => Provider::Other,
                },
                source,
            },
        ))
    };
    written.iter().filter_map(checked).collect()
}
