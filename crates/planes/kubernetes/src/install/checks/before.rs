//! Checks that need no control plane.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt as _};

use super::{Checks, LIMIT};
use crate::error::{ClusterError, explain};
use crate::install::chart::{ClusterFacts, Release};
use crate::install::kinds::{self, DEFINITION, KINDS, POD_MONITOR};
use crate::install::{Assignments, InstallError, is_ours, objects, owner};

/// The oldest minor version of Kubernetes 1 that starts native sidecars without a feature gate.
const OLDEST_MINOR: u32 = 29;

/// The release of Gateway API that is named in the cure.
const GATEWAY_API_RELEASE: &str = "v1.6.3";

/// The level of pod security that a namespace demands.
const ENFORCED: &str = "pod-security.kubernetes.io/enforce";

/// Asks for the version of the API server. Returns false if it does not answer: then no other check can run.
pub(super) async fn api_server(client: &Client, checks: &mut Checks) -> bool {
    const NAME: &str = "API server";
    let version = match tokio::time::timeout(LIMIT, client.apiserver_version()).await {
        Ok(Ok(version)) => version,
        Err(_) => {
            let cure = "see whether the API server and its storage are healthy";
            checks.error(NAME, format!("no answer in {LIMIT:?}"), cure);
            return false;
        }
        Ok(Err(error)) => {
            let cure = "see --kubeconfig, --context and the variable KUBECONFIG; the file must lead to a cluster that runs";
            checks.error(NAME, explain(&error), cure);
            return false;
        }
    };
    let minor = version
        .minor
        .trim_end_matches(|one: char| !one.is_ascii_digit())
        .parse();
    let minor: u32 = minor.unwrap_or_default();
    if version.major == "1" && minor < OLDEST_MINOR {
        let found = format!("{} does not start native sidecars", version.git_version);
        checks.error(
            NAME,
            found,
            format!("upgrade the cluster to 1.{OLDEST_MINOR} or later"),
        );
    } else {
        checks.ok(NAME, version.git_version);
    }
    true
}

/// Checks the namespace of the control plane. Its pods meet the strictest level of pod security.
pub(super) async fn namespace(
    client: &Client,
    release: &Release,
    checks: &mut Checks,
) -> Result<(), InstallError> {
    const NAME: &str = "namespace";
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let name = &release.namespace;
    let there = namespaces.get_metadata_opt(name).await;
    let there = there.map_err(|error| ClusterError::api(name, &error))?;
    match there {
        None => checks.ok(NAME, format!("{name} will be created by `voile install`")),
        Some(there) if there.metadata.deletion_timestamp.is_some() => {
            let cure = format!("wait until `kubectl get namespace {name}` no longer shows it");
            checks.error(NAME, format!("{name} is being deleted"), cure);
        }
        Some(there) => {
            let level = there
                .labels()
                .get(ENFORCED)
                .map_or("privileged", String::as_str);
            checks.ok(NAME, format!("{name} exists; its pod security is {level}"));
        }
    }
    Ok(())
}

/// Asks for each permission of an installation.
pub(super) async fn permissions(
    client: &Client,
    release: &Release,
    checks: &mut Checks,
) -> Result<(), InstallError> {
    const NAME: &str = "permissions";
    let mut missing = Vec::new();
    let mut asked = 0;
    let manifests = release.render(&ClusterFacts::default())?;
    let has = |kind: &str| manifests.iter().any(|one| one.field("/kind") == kind);
    let needed = KINDS.iter();
    for kind in needed.filter(|kind| kind.kind != POD_MONITOR || has(POD_MONITOR)) {
        for verb in ["get", "list", "create", "patch"] {
            asked += 1;
            let resource = kind.resource();
            let attributes = ResourceAttributes {
                verb: Some(verb.to_owned()),
                group: Some(resource.group),
                resource: Some(resource.plural),
                namespace: kind.namespaced.then(|| release.namespace.clone()),
                ..ResourceAttributes::default()
            };
            if !may(client, attributes).await? {
                missing.push(format!("{verb} {}", kind.name()));
            }
        }
    }
    match missing.is_empty() {
        true => checks.ok(NAME, format!("all {asked} that an installation needs")),
        false => checks.error(
            NAME,
            format!("missing: {}", missing.join(", ")),
            "install as a user with these permissions, such as one with the ClusterRole cluster-admin",
        ),
    }
    Ok(())
}

async fn may(client: &Client, attributes: ResourceAttributes) -> Result<bool, InstallError> {
    let mut review = SelfSubjectAccessReview::default();
    review.spec.resource_attributes = Some(attributes);
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await;
    let answer =
        answer.map_err(|error| ClusterError::api("the question for permissions", &error))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Checks the definitions of kinds: the chart's own, Istio's and Gateway API's.
pub(super) async fn definitions(client: &Client, checks: &mut Checks) -> Result<(), InstallError> {
    let all: Api<CustomResourceDefinition> = Api::all(client.clone());
    let listed = all.list(&ListParams::default()).await;
    let listed = listed
        .map_err(|error| ClusterError::api("the list of customresourcedefinitions", &error))?
        .items;
    let served: Vec<(String, Vec<&str>)> = listed
        .iter()
        .map(|one| {
            let versions = one.spec.versions.iter().filter(|version| version.served);
            (
                one.name_any(),
                versions.map(|version| &*version.name).collect(),
            )
        })
        .collect();
    let (mut missing, mut present, mut other) = (0, 0, Vec::new());
    // The chart itself says which definitions there are.
    let chart =
        Release::new("default", &[], &Assignments::default())?.render(&ClusterFacts::default())?;
    for definition in chart.iter().filter(|one| one.field("/kind") == DEFINITION) {
        let name = definition.field("/metadata/name");
        let Some((_, versions)) = served.iter().find(|(served, _)| served == name) else {
            missing += 1;
            continue;
        };
        present += 1;
        let read = definition.object["spec"]["versions"]
            .as_array()
            .into_iter()
            .flatten();
        let mut read = read.filter_map(|version| version["name"].as_str());
        if !read.any(|version| versions.contains(&version)) {
            other.push(format!("{name} serves {}", versions.join(", ")));
        }
    }
    match other.is_empty() {
        true => checks.ok(
            "kinds of Istio and Voile",
            format!("{present} are installed, {missing} will be by `voile install`"),
        ),
        false => checks.error(
            "kinds of Istio and Voile",
            format!("versions that Voile does not read: {}", other.join("; ")),
            "install the definitions of Istio 1.22 or later",
        ),
    }
    gateway_api(&served, checks);
    Ok(())
}

fn gateway_api(served: &[(String, Vec<&str>)], checks: &mut Checks) {
    const NAME: &str = "kinds of Gateway API";
    let cure = format!(
        "kubectl apply --server-side -f https://github.com/kubernetes-sigs/gateway-api/releases/download/{GATEWAY_API_RELEASE}/standard-install.yaml"
    );
    let gateways = served
        .iter()
        .find(|(name, _)| name == "gateways.gateway.networking.k8s.io");
    match gateways {
        None => checks.warning(
            NAME,
            "none is installed; they are needed for Gateway and HTTPRoute alone",
            cure,
        ),
        Some((_, versions)) if !versions.contains(&"v1") => {
            checks.warning(
                NAME,
                format!("they serve {}, and Voile reads v1", versions.join(", ")),
                cure,
            );
        }
        Some((_, versions)) => checks.ok(NAME, format!("they serve {}", versions.join(", "))),
    }
}

/// Checks that no object of one of the names belongs to others.
pub(super) async fn names(
    client: &Client,
    release: &Release,
    installed: bool,
    checks: &mut Checks,
) -> Result<(), InstallError> {
    const NAME: &str = "names";
    let facts = crate::install::cluster_facts(client).await?;
    let manifests = release.render(&facts)?;
    let mut foreign = Vec::new();
    for manifest in &manifests {
        let Some(kind) = kinds::find(manifest.field("/kind")) else {
            continue;
        };
        let name = manifest.field("/metadata/name");
        let what = format!("{}/{name}", kind.name());
        let there = objects(client, kind, &release.namespace)
            .get_metadata_opt(name)
            .await;
        let there = there.map_err(|error| ClusterError::api(&what, &error))?;
        if let Some(object) = there.filter(|object| !is_ours(object, release.name())) {
            foreign.push(format!("{what} belongs to {}", owner(&object)));
        }
    }
    let helm = foreign.iter().any(|one| one.contains("belongs to Helm"));
    match foreign.is_empty() {
        true => checks.ok(NAME, format!("all {} are free or of this installation", manifests.len())),
        false if helm && installed => checks.ok(NAME, "they belong to a release of Helm"),
        false if helm => checks.warning(
            NAME,
            "a release of Helm has these names".to_owned(),
            "change and remove it by Helm; `voile install --revision NAME` installs another one beside it",
        ),
        false => checks.error(
            NAME,
            foreign.join("\n"),
            "voile install --revision NAME installs a revision of its own beside it",
        ),
    }
    Ok(())
}

/// Checks that pods of the mesh may have the init container that redirects their traffic, unless a CNI plugin does that.
pub(super) async fn mesh_namespaces(
    client: &Client,
    release: &Release,
    checks: &mut Checks,
) -> Result<(), InstallError> {
    const NAME: &str = "pod security of the mesh";
    let revision = if release.revision().is_empty() {
        "default"
    } else {
        release.revision()
    };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let listed = namespaces.list_metadata(&ListParams::default()).await;
    let listed = listed.map_err(|error| ClusterError::api("the list of namespaces", &error))?;
    let (mut joined, mut strict) = (0, Vec::new());
    for namespace in listed {
        let label = |name: &str| namespace.labels().get(name).map_or("", String::as_str);
        let injected = label("istio-injection") == "enabled" && revision == "default";
        if !injected && label("istio.io/rev") != revision {
            continue;
        }
        joined += 1;
        let level = label(ENFORCED);
        if matches!(level, "baseline" | "restricted") {
            strict.push(format!("{} is {level}", namespace.name_any()));
        }
    }
    let has_cni = super::node_agent::has_cni_sidecars(client, release).await?;
    match strict.is_empty() {
        _ if has_cni => checks.ok(
            NAME,
            format!("sidecars of {joined} namespaces with injection meet the level restricted"),
        ),
        true => checks.ok(
            NAME,
            format!("{joined} namespaces with injection accept the init container"),
        ),
        false => checks.warning(
            NAME,
            format!(
                "the init container istio-init needs NET_ADMIN, and pods with it are refused: {}",
                strict.join(", ")
            ),
            format!("voile install --set pilot.cni.enabled=true, or kubectl label namespace NAME --overwrite {ENFORCED}=privileged"),
        ),
    }
    Ok(())
}
