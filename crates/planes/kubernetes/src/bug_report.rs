//! What a report of a fault needs of a cluster: versions, checks, the mesh's resources, events, and logs of control planes, node agents
//! and proxies. `voile bug-report` calls it. It reads no Secret, and no log of an application.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use kube::api::{Api, ListParams, LogParams};
use kube::{Client, ResourceExt as _};

use crate::error::{ClusterError, explain};
use crate::inject::request::{INIT_CONTAINER, PROXY_CONTAINER};
use crate::install::{Checks, Release};
use crate::source::ClusterObjects;

/// Longest log of a container, in bytes.
const MAX_LOG_BYTES: i64 = 4 * 1024 * 1024;
/// All logs of a report, in bytes.
const MAX_LOGS_BYTES: usize = 128 * 1024 * 1024;
/// Most pods in trouble whose proxies' logs are read; pods of the control plane and pods that are named do not count.
const MAX_TROUBLED_PODS: usize = 50;
/// Most events.
const MAX_EVENTS: u32 = 2_000;
/// Pods of one answer of the API server.
const PAGE_SIZE: u32 = 500;
/// Group of the files of Secrets, which no report has.
const SECRETS: &str = "secrets/";

/// The parts of logs that a report has.
#[derive(Debug, Clone, Copy)]
pub struct LogRange {
    /// Age of the oldest line; none: all.
    pub since: Option<Duration>,
    /// Most lines of a container, the last ones.
    pub lines: i64,
}

/// Files of a report, and what could not be read.
#[derive(Debug, Default)]
pub struct BugReport {
    /// Each with its path.
    pub files: Vec<(String, Vec<u8>)>,
    /// Questions that the cluster did not answer, with its words.
    pub missing: Vec<String>,
    log_bytes: usize,
}

impl BugReport {
    /// Reads the cluster. `named` are pods (namespace, name) whose proxies' logs are read in any case. `progress` is told each step.
    ///
    /// # Errors
    /// The API server does not answer at all.
    pub fn collect<'a>(
        client: &'a Client,
        release: &'a Release,
        named: &'a [(String, String)],
        range: LogRange,
        progress: &'a dyn Fn(&str),
    ) -> LocalBoxFuture<'a, Result<Self, ClusterError>> {
        Box::pin(async move {
            let mut report = Self::default();
            progress("versions");
            let server = client.apiserver_version().await;
            let server = server.map_err(|error| ClusterError::api("the version", &error))?;
            let version = serde_json::to_vec_pretty(&server).unwrap_or_default();
            report.add("api-server.json", version);
            progress("checks");
            let checks = Checks::run(client, release, false).await;
            report.add("checks.txt", checks.to_text().into_bytes());
            progress("resources");
            report.resources(client, release).await;
            progress("events");
            report.events(client).await;
            progress("pods and logs");
            report.pods(client, release, named, range).await;
            Ok(report)
        })
    }

    /// Adds a file.
    pub fn add(&mut self, path: impl Into<String>, text: Vec<u8>) {
        self.files.push((path.into(), text));
    }

    async fn resources(&mut self, client: &Client, release: &Release) {
        let revision = release.revision();
        match ClusterObjects::read(client, &release.namespace, revision).await {
            Ok(objects) => {
                let reasons = objects.unread.iter();
                self.missing
                    .extend(reasons.map(|reason| format!("resources: {reason}")));
                for file in objects.files() {
                    if let Ok(text) = &file.text
                        && !file.name.starts_with(SECRETS)
                    {
                        let path = format!("resources/{}.json", file.name);
                        self.add(path, text.as_bytes().to_vec());
                    }
                }
            }
            Err(error) => self.missing.push(format!("resources: {error}")),
        }
    }

    /// Warnings of all namespaces.
    async fn events(&mut self, client: &Client) {
        let events: Api<Event> = Api::all(client.clone());
        let warnings = ListParams::default().fields("type=Warning");
        match events.list(&warnings.limit(MAX_EVENTS)).await {
            Ok(listed) => {
                let text = serde_json::to_vec_pretty(&listed.items).unwrap_or_default();
                self.add("events.json", text);
            }
            Err(error) => self.missing.push(format!("events: {}", explain(&error))),
        }
    }

    async fn pods(
        &mut self,
        client: &Client,
        release: &Release,
        named: &[(String, String)],
        range: LogRange,
    ) {
        let pods = match list(client).await {
            Ok(pods) => pods,
            Err(error) => return self.missing.push(format!("pods: {}", explain(&error))),
        };
        let mut troubled = 0;
        for pod in &pods {
            let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
            let is_named = named.iter().any(|one| one.0 == namespace && one.1 == name);
            let is_ours = namespace == release.namespace && is_of_installation(pod);
            let proxies = containers(pod).filter(|one| is_ours || is_proxy(&one.name));
            let proxies: Vec<&ContainerStatus> = proxies.collect();
            let is_troubled = proxies.iter().any(|one| is_in_trouble(one));
            if !is_named && !is_ours && !is_troubled {
                continue;
            }
            if !is_named && !is_ours {
                troubled += 1;
                if troubled > MAX_TROUBLED_PODS {
                    let text = format!("logs: of more than {MAX_TROUBLED_PODS} pods in trouble");
                    self.missing.push(text);
                    break;
                }
            }
            let status = serde_json::to_vec_pretty(&pod.status).unwrap_or_default();
            let folder = format!("pods/{namespace}/{}", pod.name_any());
            self.add(format!("{folder}/status.json"), status);
            for container in proxies {
                self.logs(client, pod, container, range, &folder).await;
            }
        }
    }

    /// The log of a container, and that of the container before it.
    async fn logs(
        &mut self,
        client: &Client,
        pod: &Pod,
        container: &ContainerStatus,
        range: LogRange,
        folder: &str,
    ) {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        let runs = [(false, "log"), (true, "previous.log")];
        for (previous, ending) in runs {
            if previous && container.restart_count == 0 {
                continue;
            }
            let path = format!("{folder}/{}.{ending}", container.name);
            if self.log_bytes > MAX_LOGS_BYTES {
                self.missing.push(format!(
                    "{path}: the report has {MAX_LOGS_BYTES} bytes of logs already"
                ));
                continue;
            }
            let parameters = LogParams {
                container: Some(container.name.clone()),
                limit_bytes: Some(MAX_LOG_BYTES),
                since_seconds: range.since.and_then(|age| age.as_secs().try_into().ok()),
                tail_lines: Some(range.lines),
                previous,
                timestamps: true,
                ..LogParams::default()
            };
            match pods.logs(&pod.name_any(), &parameters).await {
                Ok(text) => {
                    self.log_bytes += text.len();
                    self.add(path, text.into_bytes());
                }
                Err(error) => self.missing.push(format!("{path}: {}", explain(&error))),
            }
        }
    }
}

/// All pods of the cluster.
async fn list(client: &Client) -> Result<Vec<Pod>, kube::Error> {
    let pods: Api<Pod> = Api::all(client.clone());
    let mut parameters = ListParams::default().limit(PAGE_SIZE);
    let mut all = Vec::new();
    loop {
        let page = pods.list(&parameters).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => parameters.continue_token = Some(next),
            None => return Ok(all),
        }
    }
}

/// Returns true for pods of the control plane and of node agents.
fn is_of_installation(pod: &Pod) -> bool {
    let app = pod.labels().get("app");
    app.is_some_and(|app| app == "istiod" || app.starts_with("voile-node"))
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    status.flat_map(|status| {
        let sidecars = status.init_container_statuses.iter().flatten();
        sidecars.chain(status.container_statuses.iter().flatten())
    })
}

fn is_proxy(container: &str) -> bool {
    [PROXY_CONTAINER, INIT_CONTAINER].contains(&container)
}

/// Returns true if a proxy does not serve, or has ended before. Its init container ends when it has done its work.
fn is_in_trouble(container: &ContainerStatus) -> bool {
    let is_done = container.name == INIT_CONTAINER
        && container
            .state
            .as_ref()
            .and_then(|state| state.terminated.as_ref())
            .is_some_and(|end| end.exit_code == 0);
    container.restart_count > 0 || !(container.ready || is_done)
}
