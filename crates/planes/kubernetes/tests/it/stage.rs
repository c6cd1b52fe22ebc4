//! An API server with a client, and the commands of an installation.

use std::cell::RefCell;
use std::collections::BTreeSet;

use voile_kubernetes::install::{
    ApplyMode, Checks, InstallError, Release, Removal, apply, cluster_facts, uninstall,
};
use voile_kubernetes::{Client, ClusterAddress, connect};
use voile_testkit::cluster::ApiServer;

/// Kinds that follow others.
const FOLLOWING: [&str; 4] = [
    "events",
    "events.events.k8s.io",
    "apiservices.apiregistration.k8s.io",
    "componentstatuses",
];

/// An API server.
pub(crate) struct Stage {
    pub(crate) server: ApiServer,
    pub(crate) client: Client,
}

/// A release in istio-system.
pub(crate) fn release(assignments: &[&str]) -> Release {
    let assignments: Vec<String> = assignments.iter().map(|one| (*one).to_owned()).collect();
    Release::new("istio-system", &[], &assignments.into()).expect("values")
}

impl Stage {
    /// Starts one with these controllers.
    pub(crate) async fn start(controllers: &str) -> Option<Self> {
        let server = ApiServer::with_controllers(controllers)?;
        let address = ClusterAddress {
            kubeconfig: Some(server.kubeconfig()),
            context: None,
        };
        let client = connect(&address).await.expect("a client");
        Some(Self { server, client })
    }

    /// Installs and returns the lines of progress.
    pub(crate) async fn install(&self, release: &Release) -> Result<Vec<String>, InstallError> {
        let lines = RefCell::new(Vec::new());
        let manifests = release.manifests(&cluster_facts(&self.client).await?)?;
        let progress = |line: &str| lines.borrow_mut().push(line.to_owned());
        let mode = ApplyMode::Store;
        apply(&self.client, release, &manifests, mode, &progress).await?;
        Ok(lines.into_inner())
    }

    /// Removes and returns the lines of progress.
    pub(crate) async fn remove(
        &self,
        revision: &str,
        purge: bool,
    ) -> Result<Vec<String>, InstallError> {
        let lines = RefCell::new(Vec::new());
        let removal = Removal {
            namespace: "istio-system",
            revision,
            purge_definitions: purge,
            confirm: &|_| true,
        };
        let progress = |line: &str| lines.borrow_mut().push(line.to_owned());
        uninstall(&self.client, removal, &progress).await?;
        Ok(lines.into_inner())
    }

    /// Checks.
    pub(crate) async fn check(&self, release: &Release, before: bool) -> Checks {
        Checks::run(&self.client, release, before).await
    }

    /// Runs kubectl with the words of a line, and further arguments.
    pub(crate) fn try_kubectl(&self, line: &str, more: &[&str]) -> Result<String, String> {
        let mut words: Vec<&str> = line.split(' ').collect();
        words.extend(more);
        self.server.kubectl(&words)
    }

    /// The same, which must succeed.
    #[track_caller]
    pub(crate) fn kubectl(&self, line: &str, more: &[&str]) -> String {
        match self.try_kubectl(line, more) {
            Ok(output) => output,
            Err(error) => panic!("kubectl {line}: {error}"),
        }
    }

    /// Sets the status of an object.
    pub(crate) fn set_status(&self, object: &str, status: &str) {
        let line = format!("patch -n istio-system {object} --subresource=status --type=merge -p");
        self.kubectl(&line, &[&format!("{{\"status\": {status}}}")]);
    }

    /// Everything that the cluster has.
    pub(crate) fn everything(&self) -> BTreeSet<String> {
        let kinds = self.kubectl("api-resources --verbs=list -o name --cached=false", &[]);
        let kinds = kinds.lines().filter(|kind| !FOLLOWING.contains(kind));
        let kinds: Vec<&str> = kinds.collect();
        let output = "jsonpath={range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{\"\\n\"}{end}";
        let objects = self.kubectl("get -A -o", &[output, &kinds.join(",")]);
        let ours = |line: &&str| !line.starts_with("Lease/kube-system/");
        objects.lines().filter(ours).map(str::to_owned).collect()
    }
}
