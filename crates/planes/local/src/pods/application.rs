//! Command lines of a mesh: for containers, sidecars and the control plane.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use voile_model::Mesh;
use voile_model::mesh::{Container, EnvFrom, EnvValue, MeshConfig, ProbeAction, Probes, Restart};

use crate::expand::PodPlan;
use crate::loopback_block::ControlPlace;
use crate::node;
use crate::pod_network::outside_resolver;
use crate::process::Recipe;
use crate::rollout::COMPLETION_INDEX;
use crate::run_folder::RunFolder;
use crate::variables::{expand, of_services};

/// Istio's ports of a sidecar. Every pod has an address of its own, so the ports never need to move.
pub const ADMIN_PORT: u16 = 15000;
/// Port of a sidecar's metrics.
pub const METRICS_PORT: u16 = 15020;
/// Port at which a capturing sidecar answers DNS.
pub const DNS_PORT: u16 = 15053;
/// Port of a sidecar's readiness.
pub const READINESS_PORT: u16 = 15021;

/// Variable that lists the application probes a sidecar may run for a kubelet.
const PROBERS: &str = "ISTIO_KUBE_APP_PROBERS";
/// A container's program that means this one, as in Voile's image.
const OWN_NAME: &str = "voile";

/// Settings of the run that every recipe needs.
#[derive(Debug)]
pub struct ApplicationContext<'a> {
    /// The path of this program.
    pub voile: &'a Path,
    /// The user's folder, absolute.
    pub folder: &'a Path,
    /// The run's own folder.
    pub run: &'a RunFolder,
    /// The control plane's state.
    pub state: &'a Path,
    /// True if the processes' lines are shown.
    pub show: bool,
    /// True if pods in namespaces have a way out.
    pub egress: bool,
}

/// A control plane, the first being number 0. They share the state: see docs/decisions/0025.
pub fn control(
    around: &ApplicationContext<'_>,
    number: usize,
    place: ControlPlace,
    further: &[(&'static str, String)],
) -> Recipe {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut args = vec![
        ("--config", text(around.folder)),
        ("--config", text(&around.run.config())),
        ("--state", text(around.state)),
        ("--listen", place.xds.to_string()),
        ("--plaintext", "off".to_owned()),
        ("--monitoring", place.monitoring.to_string()),
    ];
    args.extend_from_slice(further);
    let id = match number {
        0 => "control".to_owned(),
        _ => format!("control-{}", number + 1),
    };
    ours(around, id, "control", &args)
}

/// The sidecar of a pod.
pub fn sidecar(
    around: &ApplicationContext<'_>,
    config: &MeshConfig,
    pod: &PodPlan,
    control: &[ControlPlace],
    captured: bool,
) -> Recipe {
    let id = process_name(pod, "sidecar");
    let urls: Vec<String> = control
        .iter()
        .map(|place| format!("https://{}", place.xds))
        .collect();
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let gateway = pod.template.is_gateway();
    let mut args = vec![
        ("--workload", pod.name.to_string()),
        ("--control", urls.join(",")),
        ("--root-cert", text(around.state.join("root-cert.pem"))),
        ("--token-file", text(around.run.token(&pod_id(pod)))),
    ];
    if pod.template.is_waypoint() {
        args.push(("--role", "waypoint".to_owned()));
    } else if gateway {
        args.push(("--role", "gateway".to_owned()));
    }
    if gateway && captured {
        // Alone in its namespace, as a sidecar; nothing is redirected to it.
        args.extend([
            ("--admin", format!("127.0.0.1:{ADMIN_PORT}")),
            ("--metrics", format!("0.0.0.0:{METRICS_PORT}")),
            ("--readiness", format!("0.0.0.0:{READINESS_PORT}")),
        ]);
    } else if captured {
        let keeps_source = pod.template.capture.keeps_source == Some(true);
        let resolver = resolver_of(around);
        let capture = if keeps_source { "tproxy" } else { "redirect" };
        // Istio's own: alone in its namespace, it need not move a port, and administration stays within.
        args.extend([
            ("--capture", capture.to_owned()),
            ("--dns", format!("127.0.0.1:{DNS_PORT}")),
            // Without a way out, queries to this machine's resolver would only time out.
            ("--resolver", resolver),
            ("--admin", format!("127.0.0.1:{ADMIN_PORT}")),
            ("--metrics", format!("0.0.0.0:{METRICS_PORT}")),
            ("--readiness", format!("0.0.0.0:{READINESS_PORT}")),
        ]);
    } else {
        args.extend([
            ("--admin", format!("{}:{ADMIN_PORT}", pod.address)),
            ("--metrics", format!("{}:{METRICS_PORT}", pod.address)),
            ("--readiness", format!("{}:{READINESS_PORT}", pod.address)),
        ]);
    }
    if let Some(path) = around.run.handover(pod.address) {
        args.push(("--handover", text(path)));
    }
    if let Some(workers) = config.proxy.concurrency.filter(|workers| *workers > 0) {
        args.push(("--workers", workers.to_string()));
    }
    let mut recipe = ours(around, id, "proxy", &args);
    if captured && pod.template.rewrites_probes {
        let probers = probers(pod);
        recipe
            .env
            .extend(probers.map(|text| (PROBERS.to_owned(), text)));
    }
    recipe
}

/// Returns the resolver that a proxy asks for names outside the mesh.
fn resolver_of(around: &ApplicationContext<'_>) -> String {
    let outside = outside_resolver().filter(|_| around.egress);
    outside.map_or_else(|| "none".to_owned(), |server| server.to_string())
}

/// The proxy of all pods, where there is one. In the mesh's own network, at loopback.
pub(crate) fn node_proxy(
    around: &ApplicationContext<'_>,
    config: &MeshConfig,
    control: &[ControlPlace],
    agent: &Path,
) -> Recipe {
    let urls: Vec<String> = control
        .iter()
        .map(|place| format!("https://{}", place.xds))
        .collect();
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let own = format!("{}/{}", node::NAMESPACE, node::NAME);
    let mut args = vec![
        ("--role", "node".to_owned()),
        ("--node", node::NODE.to_owned()),
        ("--workload", own),
        ("--control", urls.join(",")),
        ("--subscribe", "on-demand".to_owned()),
        ("--root-cert", text(&around.state.join("root-cert.pem"))),
        ("--token-file", text(&around.run.token(node::NAME))),
        ("--agent", text(agent)),
        ("--resolver", resolver_of(around)),
        ("--trust-domain", config.trust_domain.to_string()),
    ];
    let aliases = config.trust_domain_aliases.iter();
    args.extend(aliases.map(|alias| ("--trust-domain-alias", alias.to_string())));
    if let Some(path) = around.run.node_handover() {
        args.push(("--handover", text(&path)));
    }
    let mut recipe = ours(around, node::NAME.to_owned(), "proxy", &args);
    recipe.args.push("--keep-source".to_owned());
    recipe
}

/// The pod's probes by path, as Istio's injector would write them; those that are asked over the network.
fn probers(pod: &PodPlan) -> Option<String> {
    let mut all = serde_json::Map::new();
    for container in &pod.template.containers {
        let Probes {
            startup,
            readiness,
            liveness,
        } = &container.probes;
        for (word, probe) in [
            ("startupz", startup),
            ("readyz", readiness),
            ("livez", liveness),
        ] {
            let Some(probe) = probe else { continue };
            let (kind, action) = match &probe.question {
                ProbeAction::Exec { .. } => continue,
                ProbeAction::Tcp { port } => ("tcpSocket", json!({"port": port.get()})),
                ProbeAction::Grpc { port, service } => {
                    let action = json!({"port": port.get(), "service": **service});
                    ("grpc", action)
                }
                ProbeAction::Http {
                    port,
                    tls,
                    path,
                    headers,
                } => {
                    let header = |(name, value): &(Arc<str>, Arc<str>)| json!({"name": **name, "value": **value});
                    let headers: Vec<_> = headers.iter().map(header).collect();
                    let scheme = if *tls { "HTTPS" } else { "HTTP" };
                    let action = json!({
                        "port": port.get(), "scheme": scheme, "path": **path, "httpHeaders": headers
                    });
                    ("httpGet", action)
                }
            };
            let path = format!("/app-health/{}/{word}", container.name);
            let seconds = probe.timeout.as_secs();
            all.insert(path, json!({kind: action, "timeoutSeconds": seconds}));
        }
    }
    (!all.is_empty()).then(|| Value::Object(all).to_string())
}

fn ours(
    around: &ApplicationContext<'_>,
    name: String,
    command: &str,
    args: &[(&str, String)],
) -> Recipe {
    let mut line = vec![command.to_owned()];
    line.extend(
        args.iter()
            .flat_map(|(flag, value)| [(*flag).to_owned(), value.clone()]),
    );
    Recipe {
        log: around.run.log(&name),
        name,
        program: around.voile.to_owned(),
        args: line,
        env: Vec::new(),
        folder: None,
        show: around.show,
        place: None,
        restart: Restart::Always,
    }
}

/// `namespace.pod`, as a file name.
pub fn pod_id(pod: &PodPlan) -> String {
    format!("{}.{}", pod.name.namespace, pod.name.name)
}

fn process_name(pod: &PodPlan, part: &str) -> String {
    format!("{}.{part}", pod_id(pod))
}

/// One container. Fails when a variable comes from something that is not there.
pub fn container(
    around: &ApplicationContext<'_>,
    mesh: &Mesh,
    pod: &PodPlan,
    container: &Container,
) -> Result<Recipe, String> {
    let variables = environment(around, mesh, pod, container)?;
    let mut words = container
        .command
        .iter()
        .chain(&container.args)
        .map(|word| expand(word, &variables));
    let program = words
        .next()
        .ok_or_else(|| format!("the container `{}` has no command", container.name))?;
    let args = words.collect();
    let folder = match container.working_dir.as_deref() {
        Some(folder) => around.folder.join(expand(folder, &variables)),
        None => around.folder.to_owned(),
    };
    // A path is meant from the working directory; a bare name is looked for in PATH.
    let program = match &*program {
        OWN_NAME => around.voile.to_owned(),
        path if path.contains('/') => folder.join(path),
        name => name.into(),
    };
    let name = process_name(pod, &container.name);
    Ok(Recipe {
        log: around.run.log(&name),
        name,
        program,
        args,
        env: variables.into_iter().collect(),
        folder: Some(folder),
        show: around.show,
        place: None,
        restart: pod.template.restart,
    })
}

fn environment(
    around: &ApplicationContext<'_>,
    mesh: &Mesh,
    pod: &PodPlan,
    container: &Container,
) -> Result<BTreeMap<String, String>, String> {
    let mut variables = of_services(pod.name.namespace.as_str(), &pod.services);
    for (name, value) in [
        ("POD_IP", pod.address.to_string()),
        ("POD_NAME", pod.name.name.to_string()),
        ("POD_NAMESPACE", pod.name.namespace.to_string()),
        ("HOSTNAME", pod.name.name.to_string()),
        ("VOILE", around.voile.to_string_lossy().into_owned()),
    ] {
        variables.insert(name.to_owned(), value);
    }
    if let Some(index) = pod.template.labels.get(COMPLETION_INDEX) {
        variables.insert("JOB_COMPLETION_INDEX".to_owned(), index.to_owned());
    }
    for from in &container.env_from {
        variables.extend(variables_from(mesh, pod, from, &container.name)?);
    }
    for (name, value) in &container.env {
        let value = match value {
            EnvValue::Text(text) => Some(expand(text, &variables)),
            EnvValue::Field(path) => Some(field(pod, path).ok_or_else(|| {
                format!(
                    "variable {name} of container `{}`: there is no field `{path}` here",
                    container.name
                )
            })?),
            EnvValue::ConfigMapKey {
                name: map,
                key,
                optional,
            } => {
                let value = config_map(mesh, pod, map, key);
                found(
                    value,
                    *optional,
                    container,
                    name,
                    &format!("ConfigMap `{map}`"),
                    key,
                )?
            }
            EnvValue::SecretKey {
                name: secret,
                key,
                optional,
            } => {
                let value = secret_value(mesh, pod, secret, key);
                found(
                    value,
                    *optional,
                    container,
                    name,
                    &format!("Secret `{secret}`"),
                    key,
                )?
            }
        };
        if let Some(value) = value {
            variables.insert(name.to_string(), value);
        }
    }
    Ok(variables)
}

fn found(
    value: Option<String>,
    optional: bool,
    container: &Container,
    name: &str,
    from: &str,
    key: &str,
) -> Result<Option<String>, String> {
    match value {
        None if !optional => Err(format!(
            "variable {name} of container `{}`: {from} has no key `{key}`, or is not there",
            container.name
        )),
        value => Ok(value),
    }
}

/// The keys of a whole ConfigMap or Secret; a value that is no text has no variable.
fn variables_from(
    mesh: &Mesh,
    pod: &PodPlan,
    from: &EnvFrom,
    container: &str,
) -> Result<Vec<(String, String)>, String> {
    let name = voile_model::ResourceName::new(pod.name.namespace.clone(), from.name.clone());
    let named = |key: &str| format!("{}{key}", from.prefix);
    let found = if from.secret {
        mesh.secrets.get(&name).map(|secret| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
            let data = secret.data.iter();
            data.filter_map(|(key, bytes)| Some((named(key), text(bytes)?)))
                .collect()
        })
    } else {
        mesh.config_maps.get(&name).map(|map| {
            let data = map.data.iter();
            data.map(|(key, value)| (named(key), value.to_string()))
                .collect()
        })
    };
    match found {
        None if !from.optional => {
            let kind = if from.secret { "Secret" } else { "ConfigMap" };
            Err(format!(
                "envFrom of container `{container}`: the {kind} `{name}` is not there"
            ))
        }
        found => Ok(found.unwrap_or_default()),
    }
}

fn config_map(mesh: &Mesh, pod: &PodPlan, map: &str, key: &str) -> Option<String> {
    let name = voile_model::ResourceName::new(pod.name.namespace.clone(), map);
    mesh.config_maps
        .get(&name)?
        .data
        .get(key)
        .map(ToString::to_string)
}

fn secret_value(mesh: &Mesh, pod: &PodPlan, secret: &str, key: &str) -> Option<String> {
    let name = voile_model::ResourceName::new(pod.name.namespace.clone(), secret);
    let bytes = mesh.secrets.get(&name)?.data.get(key)?;
    String::from_utf8(bytes.to_vec()).ok()
}

fn field(pod: &PodPlan, path: &str) -> Option<String> {
    let template = &pod.template;
    let keyed = |prefix: &str| {
        path.strip_prefix(prefix)?
            .strip_prefix("['")?
            .strip_suffix("']")
    };
    if let Some(key) = keyed("metadata.labels") {
        return Some(template.labels.get(key).unwrap_or_default().to_owned());
    }
    if let Some(key) = keyed("metadata.annotations") {
        return Some(template.annotations.get(key).unwrap_or_default().to_owned());
    }
    Some(match path {
        "metadata.name" => pod.name.name.to_string(),
        "metadata.namespace" => pod.name.namespace.to_string(),
        "spec.serviceAccountName" => template.service_account.to_string(),
        "status.podIP" | "status.podIPs" => pod.address.to_string(),
        "status.hostIP" | "status.hostIPs" => "127.0.0.1".to_owned(),
        "spec.nodeName" => "localhost".to_owned(),
        _ => return None,
    })
}
