//! Istio's annotations of a Pod: what the injector obeys, and what it warns of.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use voile_model::check::{
    INJECTED, MetadataEffect, capture_scope, is_boolean, is_quantity, metadata_effect,
};
use voile_model::mesh::{CaptureScope, MeshConfig, TEMPLATES};
use voile_model::{Labels, Severity};

use super::proxy_config::{self, ProxyConfig};
use super::{InjectorOptions, decision};
use crate::inject::request::{InjectionRequest, items, text_of};

const REWRITE_PROBES: &str = "sidecar.istio.io/rewriteAppHTTPProbers";
const PROXY_CPU: &str = "sidecar.istio.io/proxyCPU";
const PROXY_CPU_LIMIT: &str = "sidecar.istio.io/proxyCPULimit";
const PROXY_MEMORY: &str = "sidecar.istio.io/proxyMemory";
const PROXY_MEMORY_LIMIT: &str = "sidecar.istio.io/proxyMemoryLimit";
const PROXY_IMAGE: &str = "sidecar.istio.io/proxyImage";
const LOG_LEVEL: &str = "sidecar.istio.io/logLevel";
const USER_VOLUME: &str = "sidecar.istio.io/userVolume";
const USER_MOUNT: &str = "sidecar.istio.io/userVolumeMount";
const BEFORE_PROXY: &str = "sidecar.istio.io/init-containers-before-proxy";
const NATIVE_SIDECAR: &str = "sidecar.istio.io/nativeSidecar";
const INITIAL_DELAY: &str = "readiness.status.sidecar.istio.io/initialDelaySeconds";
const PERIOD: &str = "readiness.status.sidecar.istio.io/periodSeconds";
const FAILURE_THRESHOLD: &str = "readiness.status.sidecar.istio.io/failureThreshold";
const MERGE_METRICS: &str = "prometheus.istio.io/merge-metrics";

/// Kind of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Template {
    Sidecar,
    Gateway,
    Waypoint,
}

/// Times of the proxy's readiness probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadinessTimes {
    pub(super) initial_delay: u32,
    pub(super) period: u32,
    pub(super) failure_threshold: u32,
}

/// What a Pod asks of its injection.
#[derive(Debug, Clone)]
pub(super) struct PodSettings {
    pub(super) template: Template,
    pub(super) capture: CaptureScope,
    pub(super) rewrites_probes: bool,
    pub(super) merges_metrics: bool,
    pub(super) image: String,
    pub(super) resources: Value,
    pub(super) log_level: String,
    pub(super) readiness: ReadinessTimes,
    pub(super) volumes: Map<String, Value>,
    pub(super) mounts: Map<String, Value>,
    /// Init containers that run before the proxy.
    pub(super) before_proxy: Vec<String>,
    pub(super) proxy: ProxyConfig,
}

/// Reads what the Pod asks for, and the sentences about what has no effect. Faults forbid the injection.
pub(super) fn read(
    request: &InjectionRequest<'_>,
    options: &InjectorOptions,
    mesh: &MeshConfig,
    faults: &mut Vec<String>,
) -> (PodSettings, Vec<String>) {
    let annotations = annotations(request.pod);
    let mut warnings = unheard(&annotations);
    let mut reader = AnnotationReader {
        annotations: &annotations,
        warnings: &mut warnings,
        faults,
    };
    reader.warn_of_words(request.pod);
    let settings = PodSettings {
        template: reader.template(),
        capture: reader.capture(mesh),
        rewrites_probes: reader.boolean(REWRITE_PROBES, options.rewrite_probes),
        merges_metrics: reader.boolean(MERGE_METRICS, mesh.merges_metrics),
        image: reader.image(options),
        resources: reader.resources(),
        log_level: reader.log_level(options),
        readiness: ReadinessTimes {
            initial_delay: reader.number(INITIAL_DELAY, 0),
            period: reader.number(PERIOD, 15),
            failure_threshold: reader.number(FAILURE_THRESHOLD, 4),
        },
        volumes: reader.map(USER_VOLUME),
        mounts: reader.map(USER_MOUNT),
        before_proxy: reader.names(BEFORE_PROXY),
        proxy: ProxyConfig::read(
            annotations.get(proxy_config::ANNOTATION),
            options,
            mesh,
            reader.warnings,
            reader.faults,
        ),
    };
    if !reader.boolean(NATIVE_SIDECAR, true) {
        let message = format!("annotation `{NATIVE_SIDECAR}`: the sidecar is always native");
        warnings.push(message);
    }
    (settings, warnings)
}

fn annotations(pod: &Value) -> Labels {
    let written = pod["metadata"]["annotations"].as_object();
    let pairs = written.into_iter().flatten();
    pairs
        .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
        .collect()
}

/// A sentence about each annotation that has no effect, and about each that Istio does not have.
fn unheard(annotations: &Labels) -> Vec<String> {
    let keys = annotations.iter().map(|(key, _)| &**key);
    let others = keys.filter(|key| !INJECTED.contains(key));
    let sentence = |key: &str| match metadata_effect(key) {
        MetadataEffect::AsWritten => None,
        MetadataEffect::Ignored(why) => Some(format!("annotation `{key}` has no effect: {why}")),
        MetadataEffect::Unknown(help) => {
            let message = format!("annotation `{key}` is unknown and has no effect");
            let separator = if help.is_empty() { "" } else { ": " };
            Some([&message, separator, &*help].concat())
        }
    };
    others.filter_map(sentence).collect()
}

struct AnnotationReader<'a> {
    annotations: &'a Labels,
    warnings: &'a mut Vec<String>,
    faults: &'a mut Vec<String>,
}

impl AnnotationReader<'_> {
    fn bad(&mut self, key: &str, value: &str, wanted: &str) {
        let fault = format!("annotation `{key}`: `{value}` is not allowed; {wanted}");
        self.faults.push(fault);
    }

    /// The control plane knows `true` and `false` alone.
    fn warn_of_words(&mut self, pod: &Value) {
        for (group, kind) in [("labels", "label"), ("annotations", "annotation")] {
            if let Some(word) = text_of(pod, group, decision::INJECT)
                && !["true", "false"].contains(&word)
            {
                let message = format!("{kind} `{}: {word}`: write `true`", decision::INJECT);
                self.warnings.push(message);
            }
        }
    }

    fn template(&mut self) -> Template {
        let mut template = Template::Sidecar;
        for name in self.names(TEMPLATES) {
            match name.as_str() {
                "sidecar" => {}
                "gateway" => template = Template::Gateway,
                "waypoint" => template = Template::Waypoint,
                _ => self.bad(
                    TEMPLATES,
                    &name,
                    "the templates are `sidecar`, `gateway` and `waypoint`",
                ),
            }
        }
        template
    }

    fn capture(&mut self, mesh: &MeshConfig) -> CaptureScope {
        let (mut scope, diagnostics) = capture_scope(self.annotations);
        for one in &diagnostics {
            let sentence = match one.help.is_empty() {
                true => one.message.clone(),
                false => format!("{}: {}", one.message, one.help),
            };
            match one.severity {
                Severity::Error => self.faults.push(sentence),
                Severity::Warning | Severity::Note => self.warnings.push(sentence),
            }
        }
        if scope.keeps_source.unwrap_or(mesh.proxy.keeps_source) {
            self.warnings.push(
                "interceptionMode TPROXY needs privileges that the proxy does not have: the application sees 127.0.0.6 as its \
                 caller, as with REDIRECT"
                    .to_owned(),
            );
            scope.keeps_source = Some(false);
        }
        scope
    }

    /// True and false as Go reads them.
    fn boolean(&mut self, key: &str, default: bool) -> bool {
        match self.annotations.get(key) {
            None => default,
            Some(word) if is_boolean(word) => word.starts_with(['1', 't', 'T']),
            Some(other) => {
                self.bad(key, other, "write `true` or `false`");
                default
            }
        }
    }

    fn number(&mut self, key: &str, default: u32) -> u32 {
        let Some(text) = self.annotations.get(key) else {
            return default;
        };
        text.parse().unwrap_or_else(|_| {
            self.bad(key, text, "write a number");
            default
        })
    }

    fn names(&self, key: &str) -> Vec<String> {
        let text = self.annotations.get(key).unwrap_or_default();
        let names = text.split(',').map(str::trim);
        let names = names.filter(|name| !name.is_empty());
        names.map(str::to_owned).collect()
    }

    /// Istio's image would be started with our arguments; it is replaced.
    fn image(&mut self, options: &InjectorOptions) -> String {
        match self.annotations.get(PROXY_IMAGE) {
            None => options.image.clone(),
            Some(image) if image.contains('/') && !image.contains("/proxyv2") => image.to_owned(),
            Some(image) => {
                let message = format!(
                    "annotation `{PROXY_IMAGE}: {image}` has no effect: it is no image of Voile"
                );
                self.warnings.push(message);
                options.image.clone()
            }
        }
    }

    fn resources(&mut self) -> Value {
        let mut resources = json!({"requests": {"cpu": "10m", "memory": "16Mi"}});
        for (key, kind, name) in [
            (PROXY_CPU, "requests", "cpu"),
            (PROXY_MEMORY, "requests", "memory"),
            (PROXY_CPU_LIMIT, "limits", "cpu"),
            (PROXY_MEMORY_LIMIT, "limits", "memory"),
        ] {
            let Some(quantity) = self.annotations.get(key) else {
                continue;
            };
            if !is_quantity(quantity) {
                self.bad(key, quantity, "write a quantity such as `100m` or `64Mi`");
            }
            resources[kind][name] = quantity.into();
        }
        resources
    }

    fn log_level(&mut self, options: &InjectorOptions) -> String {
        let level = match self.annotations.get(LOG_LEVEL) {
            None => return options.log_level.clone(),
            Some(level @ ("off" | "error" | "warn" | "info" | "debug" | "trace")) => level,
            Some("warning") => "warn",
            Some("err" | "critical") => "error",
            Some(other) => {
                self.bad(
                    LOG_LEVEL,
                    other,
                    "write off, error, warn, info, debug or trace",
                );
                "info"
            }
        };
        level.to_owned()
    }

    /// A JSON object by name, or a list of objects with names.
    fn map(&mut self, key: &str) -> Map<String, Value> {
        let Some(text) = self.annotations.get(key) else {
            return Map::new();
        };
        let named = |one: &Value| Some((one["name"].as_str()?.to_owned(), one.clone()));
        let read = match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(map)) if map.values().all(Value::is_object) => Some(map),
            Ok(list @ Value::Array(_)) => {
                let wrapped = json!({"list": list});
                items(&wrapped, "list").map(named).collect()
            }
            Ok(_) | Err(_) => None,
        };
        read.unwrap_or_else(|| {
            self.bad(key, text, "write a JSON object of objects by name");
            Map::new()
        })
    }
}

/// Variables of the proxy by name.
pub(super) type Variables = BTreeMap<String, String>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_on_injection_names_every_annotation() {
        let page = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../docs/reference/injection.md"
        );
        let page = std::fs::read_to_string(page).expect("the page");
        for name in INJECTED {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
