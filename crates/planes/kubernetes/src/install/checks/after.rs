//! Checks of an installed control plane.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use super::{Checks, bounded, node_agent, some_of};
use crate::error::ClusterError;
use crate::inject::injected_by;
use crate::install::InstallError;
use crate::install::chart::Release;
use crate::install::wait::{deployment_name, explain, rollout};
use crate::trust::roots::SYSTEM_NAMESPACES;

/// The metric of the control plane that counts streams of proxies.
const CONNECTED: &str = "voile_control_connected_proxies";

/// Returns true if the control plane's Deployment is there.
pub(super) async fn is_installed(client: &Client, release: &Release) -> Result<bool, InstallError> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &release.namespace);
    let name = deployment_name(release.revision());
    let there = deployments.get_metadata_opt(&name).await;
    Ok(there
        .map_err(|error| ClusterError::api(&name, &error))?
        .is_some())
}

/// All checks of the control plane.
pub(super) async fn run(client: &Client, release: &Release, checks: &mut Checks) {
    let done = bounded(deployment(client, release, checks)).await;
    checks.refused("control plane", done);
    let done = bounded(certificate_of_webhooks(client, release, checks)).await;
    checks.refused("certificate of the webhooks", done);
    let done = bounded(node_agent::run(client, release, checks)).await;
    checks.refused("node agent", done);
    let done = bounded(root_certificates(client, checks)).await;
    checks.refused("root certificate", done);
    let done = bounded(proxies(client, release, checks)).await;
    checks.refused("proxies", done);
}

async fn deployment(
    client: &Client,
    release: &Release,
    checks: &mut Checks,
) -> Result<(), InstallError> {
    const NAME: &str = "control plane";
    let name = deployment_name(release.revision());
    let rollout = rollout(client, &release.namespace, "Deployment", &name).await?;
    if rollout.is_done() {
        checks.ok(NAME, rollout.words());
        return Ok(());
    }
    let cause = explain(client, &release.namespace, release.revision()).await?;
    let (found, cure) = cause.split_once("cure: ").unwrap_or((&cause, ""));
    let found = format!("{}\n{found}", rollout.words());
    checks.error(NAME, found.trim_end(), cure);
    Ok(())
}

/// Checks that the control plane has written its authority into the webhooks of the revision.
async fn certificate_of_webhooks(
    client: &Client,
    release: &Release,
    checks: &mut Checks,
) -> Result<(), InstallError> {
    const NAME: &str = "certificate of the webhooks";
    let all: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let listed = all.list(&ListParams::default()).await;
    let listed = listed
        .map_err(|error| ClusterError::api("the list of mutatingwebhookconfigurations", &error))?;
    let name = deployment_name(release.revision());
    let (mut with, mut without) = (0, BTreeSet::new());
    for configuration in &listed {
        for webhook in configuration.webhooks.iter().flatten() {
            let service = webhook.client_config.service.as_ref();
            let ours =
                service.is_some_and(|one| one.name == name && one.namespace == release.namespace);
            let bundle = webhook.client_config.ca_bundle.as_ref();
            match bundle {
                _ if !ours => {}
                Some(bundle) if !bundle.0.is_empty() => with += 1,
                _ => drop(without.insert(configuration.name_any())),
            }
        }
    }
    let logs = format!(
        "see what the control plane says: kubectl -n {} logs deployment/{name}",
        release.namespace
    );
    if !without.is_empty() {
        let names: Vec<String> = without.into_iter().collect();
        checks.error(
            NAME,
            format!(
                "caBundle is missing in {}; no pod of the mesh can be created",
                names.join(", ")
            ),
            logs,
        );
    } else if with == 0 {
        checks.error(NAME, "no webhook calls this control plane", "voile install");
    } else {
        checks.ok(NAME, format!("caBundle is there in all {with} webhooks"));
    }
    Ok(())
}

/// Checks that pods of each namespace find the root certificate.
async fn root_certificates(client: &Client, checks: &mut Checks) -> Result<(), InstallError> {
    const NAME: &str = "root certificate";
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let listed = namespaces.list_metadata(&ListParams::default()).await;
    let listed = listed.map_err(|error| ClusterError::api("the list of namespaces", &error))?;
    let maps: Api<ConfigMap> = Api::all(client.clone());
    let selector = ListParams::default().fields("metadata.name=istio-ca-root-cert");
    let maps = maps.list_metadata(&selector).await;
    let maps = maps.map_err(|error| ClusterError::api("the list of configmaps", &error))?;
    let with: BTreeSet<String> = maps.iter().filter_map(ResourceExt::namespace).collect();
    let alive = listed
        .iter()
        .filter(|one| one.metadata.deletion_timestamp.is_none())
        .filter(|one| !SYSTEM_NAMESPACES.contains(&&*one.name_any()));
    let names: Vec<String> = alive.map(ResourceExt::name_any).collect();
    let without: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|one| !with.contains(*one))
        .collect();
    match without.is_empty() {
        true => checks.ok(
            NAME,
            format!(
                "configmaps/istio-ca-root-cert is in all {} namespaces",
                names.len()
            ),
        ),
        false => {
            let named = some_of(&without);
            checks.error(
                NAME,
                format!(
                    "configmaps/istio-ca-root-cert is missing in {} namespaces, such as {named}",
                    without.len()
                ),
                "wait a few seconds; then see the control plane's log",
            );
        }
    }
    Ok(())
}

/// Compares the pods that have a sidecar with the streams that the control plane counts.
async fn proxies(
    client: &Client,
    release: &Release,
    checks: &mut Checks,
) -> Result<(), InstallError> {
    const NAME: &str = "proxies";
    let all: Api<Pod> = Api::all(client.clone());
    let listed = all
        .list(&ListParams::default().fields("status.phase=Running"))
        .await;
    let listed = listed
        .map_err(|error| ClusterError::api("the list of pods", &error))?
        .items;
    let label = if release.revision().is_empty() {
        "default"
    } else {
        release.revision()
    };
    let sidecars = listed
        .iter()
        .filter(|pod| injected_by(pod.annotations()).as_deref() == Some(label));
    let sidecars = sidecars.count();
    let control = listed.iter().filter(|pod| {
        let is = |name: &str, value: &str| pod.labels().get(name).is_some_and(|one| one == value);
        let ours = is("app", "istiod") && is("istio.io/rev", label);
        ours && pod.namespace().as_deref() == Some(&release.namespace)
    });
    let (mut connected, mut reason) = (0_u64, None);
    for pod in control {
        match count_connected(client, &release.namespace, &pod.name_any()).await {
            Ok(count) => connected += count,
            Err(error) => reason = Some(error),
        }
    }
    let found = format!("{connected} are connected, and {sidecars} running pods have a sidecar");
    let asked = "the monitoring port of a pod did not answer";
    match reason {
        Some(error) => checks.warning(
            NAME,
            format!("{asked}: {error}"),
            "get the permission to get pods/proxy",
        ),
        None if connected < sidecars as u64 => checks.error(
            NAME,
            found,
            "see the log of a sidecar that is not connected: kubectl logs POD -c istio-proxy",
        ),
        None => checks.ok(NAME, found),
    }
    Ok(())
}

/// The proxies that are connected to a pod of the control plane, by way of the API server.
async fn count_connected(client: &Client, namespace: &str, pod: &str) -> Result<u64, String> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:15014/proxy/metrics");
    let request = http::Request::get(path).body(Vec::new());
    let request = request.map_err(|error| error.to_string())?;
    let metrics = client
        .request_text(request)
        .await
        .map_err(|error| crate::error::explain(&error))?;
    let mut values = metrics
        .lines()
        .filter_map(|line| line.strip_prefix(CONNECTED));
    let value = values.find_map(|rest| rest.trim().parse::<f64>().ok());
    value
        .map(|value| value as u64)
        .ok_or_else(|| format!("it has no metric {CONNECTED}"))
}
