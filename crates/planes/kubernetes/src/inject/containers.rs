//! The containers and volumes of a proxy in a Pod.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{Value, json};
use voile_model::mesh::CaptureSelection;

use super::InjectorOptions;
use super::annotations::{PodSettings, Template};
use crate::inject::request::{
    CAPTURE_ARGUMENT, DNS_ARGUMENT, INIT_CONTAINER, InjectionRequest, PROXY_CONTAINER,
};
use crate::trust::roots::CONFIG_MAP;
use crate::trust::trust_bundle::BUNDLE;

/// User and group of the proxy.
pub(crate) const PROXY_USER: u32 = 1337;
/// Port of metrics and rewritten probes.
pub(super) const METRICS_PORT: u16 = 15020;
const READINESS_PORT: u16 = 15021;
const DNS_PORT: u16 = 15053;
/// Lifetime of a token: Istio's.
const TOKEN_SECONDS: u32 = 43_200;
const TOKEN_AUDIENCE: &str = "istio-ca";
const TOKEN_FOLDER: &str = "/var/run/secrets/tokens";
const TOKEN_VOLUME: &str = "istio-token";
const ROOT_FOLDER: &str = "/var/run/secrets/istio";
const ROOT_VOLUME: &str = "istiod-ca-cert";
/// Seconds that a sidecar may take to become ready before it is started again. While the hook waits, the kubelet shows no log of
/// the container and does not delete the Pod.
const START_SECONDS: u32 = 20;
/// Seconds that a gateway or waypoint may take to become ready, one probe a second.
const STARTUP_SECONDS: u32 = 600;
const PROBE_TIMEOUT_SECONDS: u32 = 3;

/// The init container that sets the redirect rules for a proxy of this user.
pub(super) fn init(settings: &PodSettings, options: &InjectorOptions, user: u64) -> Value {
    let mut args = vec!["redirect".to_owned()];
    if user != u64::from(PROXY_USER) {
        args.push(format!("--proxy-uid={user}"));
    }
    if settings.proxy.dns {
        args.push(format!("--dns-port={DNS_PORT}"));
    }
    let scope = &settings.capture;
    let port = |port: &voile_model::Port| port.get().to_string();
    let range =
        |range: &voile_model::mesh::AddressRange| format!("{}/{}", range.address, range.prefix);
    selection(&mut args, &scope.inbound_ports, "inbound-ports", port);
    selection(
        &mut args,
        &scope.outbound_ranges,
        "outbound-ip-ranges",
        range,
    );
    if !scope.excluded_outbound_ranges.is_empty() {
        let ranges = joined(&scope.excluded_outbound_ranges, range);
        args.push(format!("--exclude-outbound-ip-ranges={ranges}"));
    }
    for (option, ports) in [
        ("--include-outbound-ports", &scope.outbound_ports),
        ("--exclude-outbound-ports", &scope.excluded_outbound_ports),
    ] {
        if !ports.is_empty() {
            args.push(format!("{option}={}", joined(ports, port)));
        }
    }
    let mut container = json!({
        "name": INIT_CONTAINER,
        "image": settings.image,
        "args": args,
        "resources": settings.resources,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "runAsGroup": 0,
            "runAsNonRoot": false,
            "runAsUser": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    });
    set_pull_policy(&mut container, options);
    container
}

fn selection<T>(
    args: &mut Vec<String>,
    selection: &CaptureSelection<T>,
    what: &str,
    text: impl Fn(&T) -> String,
) {
    let (option, list) = match selection {
        CaptureSelection::AllBut(list) if list.is_empty() => return,
        CaptureSelection::AllBut(list) => ("exclude", list),
        CaptureSelection::Only(list) => ("include", list),
    };
    args.push(format!("--{option}-{what}={}", joined(list, text)));
}

fn joined<T>(list: &[T], text: impl Fn(&T) -> String) -> String {
    list.iter().map(text).collect::<Vec<_>>().join(",")
}

fn set_pull_policy(container: &mut Value, options: &InjectorOptions) {
    if let Some(policy) = &options.image_pull_policy {
        container["imagePullPolicy"] = policy.as_str().into();
    }
}

/// The container of the proxy: a native sidecar among the init containers, or the only container of a gateway.
pub(super) fn proxy(
    request: &InjectionRequest<'_>,
    settings: &PodSettings,
    options: &InjectorOptions,
) -> Value {
    let readiness = settings.readiness;
    let probe = json!({"path": "/healthz/ready", "port": READINESS_PORT});
    let mut mounts = vec![
        json!({"name": ROOT_VOLUME, "mountPath": ROOT_FOLDER, "readOnly": true}),
        json!({"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": true}),
    ];
    for (name, mount) in &settings.mounts {
        let mut mount = mount.clone();
        mount["name"] = name.as_str().into();
        mounts.push(mount);
    }
    let mut container = json!({
        "name": PROXY_CONTAINER,
        "image": settings.image,
        "args": arguments(settings, options),
        "env": variables(request, settings, options),
        "ports": [{"name": "http-envoy-prom", "containerPort": METRICS_PORT, "protocol": "TCP"}],
        "readinessProbe": {
            "httpGet": probe,
            "initialDelaySeconds": readiness.initial_delay,
            "periodSeconds": readiness.period,
            "timeoutSeconds": PROBE_TIMEOUT_SECONDS,
            "failureThreshold": readiness.failure_threshold,
        },
        "resources": settings.resources,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "runAsGroup": PROXY_USER,
            "runAsNonRoot": true,
            "runAsUser": PROXY_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": mounts,
    });
    match settings.template {
        Template::Sidecar => {
            container["restartPolicy"] = "Always".into();
            container["lifecycle"] = json!({"postStart": {"exec": {"command": [
                "voile",
                "wait",
                format!("--readiness={}", loopback(options.listen, READINESS_PORT)),
                format!("--timeout={START_SECONDS}s"),
            ]}}});
        }
        // The readiness probe alone would look again only after its period.
        Template::Gateway | Template::Waypoint => {
            container["startupProbe"] = json!({
                "httpGet": probe,
                "periodSeconds": 1,
                "timeoutSeconds": PROBE_TIMEOUT_SECONDS,
                "failureThreshold": STARTUP_SECONDS,
            });
        }
    }
    set_pull_policy(&mut container, options);
    container
}

fn loopback(listen: IpAddr, port: u16) -> SocketAddr {
    match listen {
        IpAddr::V4(_) => (Ipv4Addr::LOCALHOST, port).into(),
        IpAddr::V6(_) => (Ipv6Addr::LOCALHOST, port).into(),
    }
}

fn arguments(settings: &PodSettings, options: &InjectorOptions) -> Vec<String> {
    let config = &settings.proxy;
    let at = |port: u16| SocketAddr::new(options.listen, port).to_string();
    let mut args = vec![
        "proxy".to_owned(),
        "--workload=$(POD_NAMESPACE)/$(POD_NAME)".to_owned(),
        format!("--control=https://{}", config.discovery_address),
        format!("--root-cert={ROOT_FOLDER}/root-cert.pem"),
        format!("--token-file={TOKEN_FOLDER}/{TOKEN_VOLUME}"),
        format!("--metrics={}", at(METRICS_PORT)),
        format!("--readiness={}", at(READINESS_PORT)),
        format!("--drain-timeout={}s", config.drain.as_secs_f64()),
        format!("--log-level={}", settings.log_level),
    ];
    match settings.template {
        Template::Gateway => args.push("--role=gateway".to_owned()),
        Template::Waypoint => args.push("--role=waypoint".to_owned()),
        Template::Sidecar => {
            args.push(CAPTURE_ARGUMENT.to_owned());
            // A pod whose connections nobody redirects is never ready.
            args.push("--capture-check=$(INSTANCE_IPS)".to_owned());
            if config.dns {
                args.push(format!("{DNS_ARGUMENT}127.0.0.1:{DNS_PORT}"));
            }
        }
    }
    if let Some(address) = &options.ca_address {
        args.push(format!("--ca-address=https://{address}"));
        args.push(format!("--trust-domain={}", config.trust_domain));
    }
    args.extend(config.workers.map(|count| format!("--workers={count}")));
    args
}

fn variables(
    request: &InjectionRequest<'_>,
    settings: &PodSettings,
    options: &InjectorOptions,
) -> Vec<Value> {
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let mut variables = vec![
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        field("INSTANCE_IP", "status.podIP"),
        field("SERVICE_ACCOUNT", "spec.serviceAccountName"),
        field("HOST_IP", "status.hostIP"),
    ];
    if settings.template == Template::Sidecar {
        variables.push(field("INSTANCE_IPS", "status.podIPs"));
    }
    let cluster = request.path_settings.cluster.as_ref();
    let mut written = request.path_settings.variables.clone();
    written.extend(settings.proxy.variables.clone());
    let cluster = cluster.unwrap_or(&options.cluster).clone();
    written
        .entry("ISTIO_META_CLUSTER_ID".to_owned())
        .or_insert(cluster);
    if let Some(network) = super::metadata::network(request, options) {
        written
            .entry("ISTIO_META_NETWORK".to_owned())
            .or_insert(network);
    }
    let text = |(name, value): (String, String)| json!({"name": name, "value": value});
    variables.extend(written.into_iter().map(text));
    variables
}

/// The volumes of the proxy, and those that the Pod's annotations add.
pub(super) fn volumes(settings: &PodSettings, options: &InjectorOptions) -> Vec<Value> {
    let token = json!({"path": TOKEN_VOLUME, "audience": TOKEN_AUDIENCE, "expirationSeconds": TOKEN_SECONDS});
    let root = match options.trust_bundle {
        true => {
            let bundle = json!({"clusterTrustBundle": {"name": BUNDLE, "path": "root-cert.pem"}});
            json!({"name": ROOT_VOLUME, "projected": {"sources": [bundle]}})
        }
        false => json!({"name": ROOT_VOLUME, "configMap": {"name": CONFIG_MAP}}),
    };
    let mut volumes = vec![
        json!({"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}),
        root,
    ];
    for (name, volume) in &settings.volumes {
        let mut volume = volume.clone();
        volume["name"] = name.as_str().into();
        volumes.push(volume);
    }
    volumes
}
