//! Check that no two control planes inject the same pods.

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};

use super::Checks;
use crate::error::ClusterError;
use crate::install::chart::{ClusterFacts, Release};
use crate::install::{InstallError, is_ours, owner};

/// The end of the names of Istio's and Voile's webhooks.
const INJECTOR: &str = "sidecar-injector.istio.io";

/// Labels and values that make a webhook select a pod.
type Claim = (String, String);

/// Compares the labels that this release's webhooks select with those of others.
pub(super) async fn overlaps(
    client: &Client,
    release: &Release,
    checks: &mut Checks,
) -> Result<(), InstallError> {
    const NAME: &str = "webhooks";
    let mut ours = Vec::new();
    for manifest in release.render(&ClusterFacts::default())? {
        let read = serde_json::from_value::<MutatingWebhookConfiguration>(manifest.object.clone());
        if let Ok(configuration) = read
            && manifest.field("/kind") == "MutatingWebhookConfiguration"
        {
            ours.extend(claims(&configuration));
        }
    }
    let all: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let listed = all.list(&ListParams::default()).await;
    let listed = listed
        .map_err(|error| ClusterError::api("the list of mutatingwebhookconfigurations", &error))?;
    let mut overlapping = Vec::new();
    let namespace = Some(release.namespace.as_str());
    for other in listed.iter().filter(|one| !is_ours(*one, release.name())) {
        // The same release, installed by Helm.
        let service = |webhook: &MutatingWebhook| webhook.client_config.service.clone();
        let mut services = other.webhooks.iter().flatten().filter_map(service);
        let name = crate::install::wait::deployment_name(release.revision());
        if services.any(|one| Some(one.namespace.as_str()) == namespace && one.name == name) {
            continue;
        }
        let mut shared = claims(other)
            .into_iter()
            .filter(|claim| ours.contains(claim));
        if let Some((label, value)) = shared.next() {
            overlapping.push(format!(
                "mutatingwebhookconfigurations/{} of {} selects {label}={value}, too",
                other.name_any(),
                owner(other)
            ));
        }
    }
    match overlapping.is_empty() {
        true => checks.ok(NAME, "no other injector selects the same pods"),
        false => checks.error(
            NAME,
            overlapping.join("\n"),
            "install a revision that no other control plane has: voile install --revision NAME",
        ),
    }
    Ok(())
}

/// The labels by which the injectors of a configuration select pods.
fn claims(configuration: &MutatingWebhookConfiguration) -> Vec<Claim> {
    let webhooks = configuration.webhooks.iter().flatten();
    let injectors = webhooks.filter(|one| one.name.ends_with(INJECTOR));
    injectors
        .flat_map(|one| [&one.namespace_selector, &one.object_selector])
        .flatten()
        .flat_map(selected)
        .collect()
}

/// Labels of revisions and of injection that a selector wants.
fn selected(selector: &LabelSelector) -> Vec<Claim> {
    let listed = selector.match_expressions.iter().flatten();
    let listed = listed.filter(|one| one.operator == "In");
    let listed = listed.flat_map(|one| {
        let values = one.values.iter().flatten();
        values.map(|value| (one.key.clone(), value.clone()))
    });
    let plain = selector.match_labels.iter().flatten();
    let plain = plain.map(|(key, value)| (key.clone(), value.clone()));
    let claims = listed.chain(plain);
    claims
        .filter(|(key, _)| matches!(&**key, "istio.io/rev" | "istio-injection"))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::claims;

    #[test]
    fn injectors_claim_the_labels_of_their_selectors() {
        let configuration = json!({
            "metadata": {"name": "istio-sidecar-injector"},
            "webhooks": [
                {"name": "rev.namespace.sidecar-injector.istio.io", "clientConfig": {}, "sideEffects": "None", "admissionReviewVersions": ["v1"],
                 "namespaceSelector": {"matchExpressions": [
                    {"key": "istio.io/rev", "operator": "In", "values": ["canary"]},
                    {"key": "istio-injection", "operator": "DoesNotExist"}]},
                 "objectSelector": {"matchExpressions": [
                    {"key": "sidecar.istio.io/inject", "operator": "NotIn", "values": ["false"]}]}},
                {"name": "another.example.com", "clientConfig": {}, "sideEffects": "None", "admissionReviewVersions": ["v1"],
                 "namespaceSelector": {"matchLabels": {"istio-injection": "enabled"}}},
            ],
        });
        let configuration = serde_json::from_value(configuration).unwrap();
        assert_eq!(
            claims(&configuration),
            [("istio.io/rev".to_owned(), "canary".to_owned())]
        );
    }
}
