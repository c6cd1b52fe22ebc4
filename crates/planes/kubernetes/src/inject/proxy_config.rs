//! The annotation `proxy.istio.io/config` of a Pod over the mesh's `defaultConfig`, as far as the injector needs them.

use std::time::Duration;

use serde_json::Value;
use voile_model::mesh::MeshConfig;
use voile_model::{TrustDomain, parse_duration};

use super::InjectorOptions;
use super::annotations::Variables;

/// The annotation.
pub(super) const ANNOTATION: &str = "proxy.istio.io/config";
/// Variable that switches DNS capture.
const DNS_CAPTURE: &str = "ISTIO_META_DNS_CAPTURE";
/// Fields that the control plane obeys, and one that always holds with a native sidecar.
const HEARD_ELSEWHERE: [&str; 3] = [
    "gatewayTopology",
    "proxyHeaders",
    "holdApplicationUntilProxyStarts",
];

/// Settings of one proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProxyConfig {
    /// `host:port` of the control plane.
    pub(super) discovery_address: String,
    /// Trust domain of the mesh.
    pub(super) trust_domain: TrustDomain,
    /// Worker threads; `None` leaves the choice to the proxy.
    pub(super) workers: Option<u32>,
    /// Time for open requests at the end.
    pub(super) drain: Duration,
    /// True if the proxy answers DNS questions.
    pub(super) dns: bool,
    /// Further variables of the proxy.
    pub(super) variables: Variables,
}

impl ProxyConfig {
    /// Reads the annotation's text, if there is one.
    pub(super) fn read(
        text: Option<&str>,
        options: &InjectorOptions,
        mesh: &MeshConfig,
        warnings: &mut Vec<String>,
        faults: &mut Vec<String>,
    ) -> Self {
        let default = &mesh.proxy;
        let address = default.discovery_address.as_deref();
        let mut config = Self {
            discovery_address: address.unwrap_or(&options.discovery_address).to_owned(),
            trust_domain: mesh.trust_domain.clone(),
            workers: default.concurrency.filter(|workers| *workers > 0),
            drain: default.termination_drain_duration,
            dns: options.dns,
            variables: Variables::new(),
        };
        let written = match text.map(serde_saphyr::from_str::<Value>) {
            None | Some(Ok(Value::Null)) => return config,
            Some(Ok(Value::Object(written))) => written,
            Some(Ok(_) | Err(_)) => {
                faults.push(format!("annotation `{ANNOTATION}` is no YAML mapping"));
                return config;
            }
        };
        for (field, value) in &written {
            let is_read = match field.as_str() {
                "discoveryAddress" => value
                    .as_str()
                    .map(|address| config.discovery_address = address.to_owned()),
                "concurrency" => value
                    .as_u64()
                    .and_then(|workers| u32::try_from(workers).ok())
                    .map(|workers| config.workers = (workers > 0).then_some(workers)),
                "terminationDrainDuration" => value
                    .as_str()
                    .and_then(parse_duration)
                    .map(|drain| config.drain = drain),
                "proxyMetadata" => config.read_variables(value),
                known if HEARD_ELSEWHERE.contains(&known) => Some(()),
                _ => {
                    let message = format!("`{field}` in annotation `{ANNOTATION}` has no effect");
                    warnings.push(message);
                    Some(())
                }
            };
            if is_read.is_none() {
                let fault = format!("annotation `{ANNOTATION}`: `{field}: {value}` is not allowed");
                faults.push(fault);
            }
        }
        config
    }

    fn read_variables(&mut self, written: &Value) -> Option<()> {
        for (name, value) in written.as_object()? {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            if name == DNS_CAPTURE {
                self.dns = value == "true";
            }
            self.variables.insert(name.clone(), value);
        }
        Some(())
    }
}
