//! The file that an Envoy is started with: either everything inline, so that it needs nobody, or nothing but the way to the
//! control plane.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value, json};
use voile_model::WorkloadKey;

use crate::json::{duration, from_control, host, socket};
use crate::proxy::{Configuration, IDENTITY, InterceptMode, ROOT, identity_secret, root_secret};

/// The cluster that is the control plane.
const CONTROL: &str = "voile-control";
/// Longest time for a connection to the control plane.
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
/// Files in the folder of certificates by which Envoy finds what else is in it, and takes renewals.
const IDENTITY_FILE: &str = "envoy-identity.json";
const ROOT_FILE: &str = "envoy-root.json";

/// Runtime flag: match the values of a header one by one. Switched off, routes match all values joined by commas, as Envoy did
/// before it had the flag and as our own proxies do.
const JOINED_HEADERS: &str = "envoy.reloadable_features.match_headers_individually";

/// First part of a sidecar's node id; [`GATEWAY_NODE`] is a gateway's. The control plane sends a gateway's configuration
/// only to an Envoy whose own id says that it is a gateway.
pub const SIDECAR_NODE: &str = "sidecar";
/// See [`SIDECAR_NODE`].
pub const GATEWAY_NODE: &str = "router";

/// Metadata of a node: how connections get to it.
pub const INTERCEPTION_MODE: &str = "INTERCEPTION_MODE";
/// Metadata of a node: where its key and certificate are.
pub const CERTIFICATES: &str = "VOILE_CERTIFICATES";

/// Which Envoy it is.
#[derive(Debug, Clone)]
pub struct EnvoyIdentity<'a> {
    /// The workload it stands for.
    pub workload: &'a WorkloadKey,
    /// True if that is a gateway.
    pub gateway: bool,
    /// The workload's address.
    pub address: IpAddr,
    /// Capture of its connections.
    pub capture: InterceptMode,
    /// The folder with `cert-chain.pem`, `key.pem` and `root-cert.pem`, as `voile agent` keeps it.
    pub certificates: &'a str,
    /// Address of its admin pages.
    pub admin: SocketAddr,
}

/// Address and credential for the control plane.
#[derive(Debug, Clone)]
pub struct ControlPlaneAddress<'a> {
    /// Its name or address.
    pub host: &'a str,
    /// Its port.
    pub port: u16,
    /// A token to show instead of the certificate in `Seat::certificates`.
    pub token: Option<&'a str>,
    /// True for the state-of-the-world protocol, which sends all at every change.
    pub state_of_the_world: bool,
}

impl EnvoyIdentity<'_> {
    fn node(&self) -> Value {
        let (namespace, name) = (&self.workload.namespace, &self.workload.name);
        let mode = match self.capture {
            InterceptMode::None => "NONE",
            InterceptMode::Redirect => "REDIRECT",
        };
        let kind = if self.gateway {
            GATEWAY_NODE
        } else {
            SIDECAR_NODE
        };
        json!({
            "id": format!("{kind}~{}~{name}.{namespace}~{namespace}.svc.cluster.local", self.address),
            "cluster": format!("{name}.{namespace}"),
            "metadata": { INTERCEPTION_MODE: mode, CERTIFICATES: self.certificates },
        })
    }

    fn base(&self) -> Value {
        let mut bootstrap = json!({
            "node": self.node(),
            "admin": { "address": socket(self.admin) },
            "layered_runtime": { "layers": [{ "name": "voile", "static_layer": { JOINED_HEADERS: false } }] },
        });
        // Pods that share a machine are told apart by their addresses.
        if (self.capture == InterceptMode::None || self.gateway) && self.address.is_loopback() {
            let from = json!({ "address": self.address.to_string(), "port_value": 0 });
            bootstrap["cluster_manager"] =
                json!({ "upstream_bind_config": { "source_address": from } });
        }
        bootstrap
    }

    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.certificates.trim_end_matches('/'))
    }

    /// The secret's file, looked at again whenever something is renamed in the folder.
    fn secret_file(&self, name: &str) -> Value {
        json!({
            "path_config_source": {
                "path": self.file(name),
                "watched_directory": { "path": self.certificates },
            },
            "resource_api_version": "V3",
        })
    }

    /// Everything in one file.
    #[must_use]
    pub fn whole(&self, configuration: &Configuration) -> Value {
        let listeners: Vec<Value> = configuration.listeners.values().cloned().collect();
        let clusters: Vec<Value> = configuration.clusters.values().cloned().collect();
        let mut resources = json!({ "listeners": listeners, "clusters": clusters });
        self.inline(&mut resources, configuration);
        let mut bootstrap = self.base();
        bootstrap["static_resources"] = resources;
        bootstrap
    }

    /// Puts in place of what the control plane would be asked for what it would say.
    fn inline(&self, value: &mut Value, all: &Configuration) {
        match value {
            Value::Array(list) => list.iter_mut().for_each(|one| self.inline(one, all)),
            Value::Object(fields) => {
                if let Some(rds) = fields.remove("rds") {
                    let name = rds["route_config_name"].as_str().unwrap_or_default();
                    let routes = all.routes.get(name).cloned();
                    fields.insert("route_config".to_owned(), routes.unwrap_or_default());
                }
                if let Some(eds) = fields.remove("eds_cluster_config") {
                    let name = eds["service_name"].as_str().unwrap_or_default();
                    let nobody = || json!({ "cluster_name": name });
                    let endpoints = all.endpoints.get(name).cloned().unwrap_or_else(nobody);
                    fields.insert("type".to_owned(), json!("STATIC"));
                    fields.insert("load_assignment".to_owned(), endpoints);
                }
                own_secrets(fields, all);
                if fields.contains_key("sds_config") {
                    let file = match fields.get("name").and_then(Value::as_str) {
                        Some(ROOT) => ROOT_FILE,
                        _ => IDENTITY_FILE,
                    };
                    fields.insert("sds_config".to_owned(), self.secret_file(file));
                }
                fields.values_mut().for_each(|one| self.inline(one, all));
            }
            _ => {}
        }
    }

    /// Nothing but the way to the control plane.
    #[must_use]
    pub fn served(&self, way: &ControlPlaneAddress<'_>) -> Value {
        let api = if way.state_of_the_world {
            "GRPC"
        } else {
            "DELTA_GRPC"
        };
        let mut service = json!({ "envoy_grpc": { "cluster_name": CONTROL } });
        if let Some(token) = way.token {
            let bearer = format!("Bearer {token}");
            service["initial_metadata"] = json!([{ "key": "authorization", "value": bearer }]);
        }
        let mut bootstrap = self.base();
        bootstrap["dynamic_resources"] = json!({
            "ads_config": {
                "api_type": api,
                "transport_api_version": "V3",
                "grpc_services": [service],
                "set_node_on_first_message_only": true,
            },
            "lds_config": from_control(),
            "cds_config": from_control(),
        });
        bootstrap["static_resources"] = json!({ "clusters": [self.control(way)] });
        bootstrap
    }

    fn control(&self, way: &ControlPlaneAddress<'_>) -> Value {
        let is_address = way.host.parse::<IpAddr>().is_ok();
        let kind = if is_address { "IP_ADDRESS" } else { "DNS" };
        let expected = json!({ "san_type": kind, "matcher": { "exact": way.host } });
        let mut common = json!({
            "alpn_protocols": ["h2"],
            "combined_validation_context": {
                "default_validation_context": { "match_typed_subject_alt_names": [expected] },
                "validation_context_sds_secret_config": { "name": ROOT, "sds_config": self.secret_file(ROOT_FILE) },
            },
        });
        if way.token.is_none() {
            let own = json!({ "name": IDENTITY, "sds_config": self.secret_file(IDENTITY_FILE) });
            common["tls_certificate_sds_secret_configs"] = json!([own]);
        }
        let mut context = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": common,
        });
        if !is_address {
            context["sni"] = json!(way.host);
        }
        let endpoint = json!({ "endpoint": { "address": host(way.host, way.port) } });
        json!({
            "name": CONTROL,
            "type": if is_address { "STATIC" } else { "STRICT_DNS" },
            "connect_timeout": duration(CONNECT_TIMEOUT),
            "typed_extension_protocol_options":
                crate::proxy::cluster::protocol_options(crate::proxy::names::ClusterTraffic::Http2),
            "load_assignment": { "cluster_name": CONTROL, "endpoints": [{ "lb_endpoints": [endpoint] }] },
            "transport_socket": { "name": "envoy.transport_sockets.tls", "typed_config": context },
            // A control plane that vanished without a word is noticed; an idle one is asked now and then.
            "upstream_connection_options": { "tcp_keepalive": { "keepalive_time": 30 } },
        })
    }
}

/// Puts secrets that are here in the place of those that would be asked for: Envoy takes them by file only of its own identity.
fn own_secrets(fields: &mut Map<String, Value>, all: &Configuration) {
    let held = |asked: &Value, kind: &str| {
        let name = asked["name"].as_str()?;
        Some(all.secrets.get(name)?[kind].clone())
    };
    const SHOWN: &str = "tls_certificate_sds_secret_configs";
    let first = fields.get(SHOWN).map(|list| list[0].clone());
    if let Some(shown) = first.and_then(|asked| held(&asked, "tls_certificate")) {
        fields.remove(SHOWN);
        fields.insert("tls_certificates".to_owned(), json!([shown]));
    }
    const BELIEVED: &str = "validation_context_sds_secret_config";
    let asked = fields.get(BELIEVED).cloned();
    if let Some(believed) = asked.and_then(|asked| held(&asked, "validation_context")) {
        fields.remove(BELIEVED);
        fields.insert("validation_context".to_owned(), believed);
    }
}

/// The files that must lie beside the certificates, by name: Envoy takes what is renewed only of what a file told it.
#[must_use]
pub fn secret_files(certificates: &str) -> [(&'static str, String); 2] {
    let folder = certificates.trim_end_matches('/');
    let root = root_secret(folder, None);
    let file = |secret: Value| json!({ "resources": [secret] }).to_string();
    [
        (IDENTITY_FILE, file(identity_secret(folder))),
        (ROOT_FILE, file(root)),
    ]
}
