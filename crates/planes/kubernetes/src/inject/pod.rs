//! Putting the parts of an injection into a Pod.

use serde_json::{Value, json};

use super::annotations::{PodSettings, Template};
use super::containers::{self, PROXY_USER};
use super::metadata::{self, Added};
use super::{InjectorOptions, merge, probes, prometheus};
use crate::inject::request::{INIT_CONTAINER, InjectionRequest, PROXY_CONTAINER, items};

/// Gives the Pod its proxy.
pub(super) fn inject(
    pod: &mut Value,
    request: &InjectionRequest<'_>,
    settings: &PodSettings,
    options: &InjectorOptions,
    warnings: &mut Vec<String>,
) {
    warn_of_dangers(pod, settings, warnings);
    let mut proxy = containers::proxy(request, settings, options);
    if let Some(user) = take(pod, "containers", PROXY_CONTAINER)
        .or_else(|| take(pod, "initContainers", PROXY_CONTAINER))
    {
        merge::container(&mut proxy, &user);
    }
    let mut added = Added {
        init_containers: vec![],
        containers: vec![],
        volumes: vec![],
    };
    match settings.template {
        Template::Gateway | Template::Waypoint => {
            added.containers.push(PROXY_CONTAINER.to_owned());
            list(pod, "containers").push(proxy);
        }
        Template::Sidecar => {
            let user = proxy["securityContext"]["runAsUser"].as_u64();
            let rules = (!options.cni).then(|| {
                let mut init =
                    containers::init(settings, options, user.unwrap_or(PROXY_USER.into()));
                if let Some(user) = take(pod, "initContainers", INIT_CONTAINER) {
                    merge::container(&mut init, &user);
                }
                init
            });
            let first: Vec<Value> = settings
                .before_proxy
                .iter()
                .filter_map(|name| take(pod, "initContainers", name))
                .collect();
            let ours = rules.iter().chain([&proxy]);
            let names = ours.filter_map(|container| container["name"].as_str());
            added.init_containers = names.map(str::to_owned).collect();
            let all = rules.into_iter().chain(first).chain([proxy]);
            list(pod, "initContainers").splice(0..0, all);
        }
    }
    for volume in containers::volumes(settings, options) {
        let name = volume["name"].as_str().unwrap_or_default().to_owned();
        take(pod, "volumes", &name);
        list(pod, "volumes").push(volume);
        added.volumes.push(name);
    }
    for secret in &options.image_pull_secrets {
        take(pod, "imagePullSecrets", secret);
        list(pod, "imagePullSecrets").push(json!({"name": secret}));
    }
    if settings.template == Template::Sidecar
        && settings.rewrites_probes
        && let Some(probers) = probes::rewrite(pod, warnings)
        && let Some(proxy) = find(pod, "initContainers", PROXY_CONTAINER)
    {
        let variable = json!({"name": probes::PROBERS, "value": probers});
        if let Some(variables) = proxy["env"].as_array_mut() {
            variables.push(variable);
        }
    }
    metadata::set(pod, request, settings, options, &added);
    if settings.merges_metrics
        && let Some(annotations) = pod["metadata"]["annotations"].as_object_mut()
        && let Some(own) = prometheus::redirect(annotations, warnings)
        && settings.template == Template::Sidecar
        && let Some(proxy) = find(pod, "initContainers", PROXY_CONTAINER)
        && let Some(variables) = proxy["env"].as_array_mut()
    {
        variables.push(json!({"name": prometheus::VARIABLE, "value": own}));
    }
}

/// Sentences about Pods whose connections bypass the proxy, or whose proxy cannot find the control plane.
fn warn_of_dangers(pod: &Value, settings: &PodSettings, warnings: &mut Vec<String>) {
    let spec = &pod["spec"];
    let user_of = |owner: &Value| owner["securityContext"]["runAsUser"].as_u64();
    let pod_user = user_of(spec);
    let applications = items(spec, "containers").chain(items(spec, "initContainers"));
    if settings.template == Template::Sidecar {
        for container in applications.filter(|one| one["name"] != PROXY_CONTAINER) {
            if user_of(container).or(pod_user) == Some(PROXY_USER.into()) {
                let name = container["name"].as_str().unwrap_or_default();
                let message = format!(
                    "container `{name}` runs as user {PROXY_USER}, the proxy's: its connections bypass the proxy"
                );
                warnings.push(message);
            }
        }
    }
    let policy = spec["dnsPolicy"].as_str().unwrap_or("ClusterFirst");
    if !["ClusterFirst", "ClusterFirstWithHostNet"].contains(&policy) {
        let message = format!(
            "dnsPolicy {policy}: the proxy may not find the control plane {}",
            settings.proxy.discovery_address
        );
        warnings.push(message);
    }
}

/// A list of the Pod's `spec`, made if it is not there.
fn list<'a>(pod: &'a mut Value, field: &str) -> &'a mut Vec<Value> {
    let list = &mut pod["spec"][field];
    if !list.is_array() {
        *list = json!([]);
    }
    list.as_array_mut().expect("invariant: it is an array")
}

/// Removes the element of this name from a list of the Pod's `spec`.
fn take(pod: &mut Value, field: &str, name: &str) -> Option<Value> {
    let list = pod.get_mut("spec")?.get_mut(field)?.as_array_mut()?;
    let index = list.iter().position(|one| one["name"] == name)?;
    Some(list.remove(index))
}

/// The element of this name in a list of the Pod's `spec`.
fn find<'a>(pod: &'a mut Value, field: &str, name: &str) -> Option<&'a mut Value> {
    let list = pod.get_mut("spec")?.get_mut(field)?.as_array_mut()?;
    list.iter_mut().find(|one| one["name"] == name)
}
