//! Checks of a cluster before and after an installation. Each has a status and, if it fails, a cure. They change nothing.

mod after;
mod before;
mod node_agent;
mod webhooks;

use std::time::Duration;

use futures_util::future::BoxFuture;
use kube::Client;
use serde_json::{Value, json};

use super::InstallError;
use super::chart::Release;

/// The longest time of a check: an API server that has lost its storage accepts questions and does not answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Names that a message has at most.
const NAMED: usize = 5;

/// The first of these names, joined by commas.
fn some_of(names: &[impl AsRef<str>]) -> String {
    let named = names.iter().take(NAMED).map(AsRef::as_ref);
    named.collect::<Vec<_>>().join(", ")
}

/// Ends a check after its longest time.
async fn bounded(
    check: impl Future<Output = Result<(), InstallError>>,
) -> Result<(), InstallError> {
    let late = |_| InstallError::Unavailable(format!("no answer of the API server in {LIMIT:?}"));
    tokio::time::timeout(LIMIT, check).await.map_err(late)?
}

/// Status of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// Worth a look: the mesh works, or a part of it is not used.
    Warning,
    /// The mesh does not work, or cannot be installed.
    Error,
}

impl CheckStatus {
    /// The word that is printed.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Result of a check.
#[derive(Debug, Clone)]
pub struct CheckResult {
    /// The subject of the check.
    pub name: &'static str,
    /// The outcome.
    pub status: CheckStatus,
    /// The finding.
    pub found: String,
    /// The action of a person that helps, unless the status is `ok`.
    pub cure: String,
}

/// Results in the order of their numbers.
#[derive(Debug, Default)]
pub struct Checks {
    /// The results; the first has the number 1.
    pub results: Vec<CheckResult>,
}

impl Checks {
    /// Checks a cluster before an installation, and the control plane if there is one. A question that the API server refuses
    /// is a result, too.
    pub fn run<'a>(client: &'a Client, release: &'a Release, before: bool) -> BoxFuture<'a, Self> {
        Box::pin(async move {
            let mut checks = Self::default();
            let all = &mut checks;
            if !before::api_server(client, all).await {
                return checks;
            }
            // A person who may not ask for it sees the refusals of the other checks.
            let installed = !before
                && after::is_installed(client, release)
                    .await
                    .unwrap_or_default();
            let done = bounded(before::namespace(client, release, all)).await;
            all.refused("namespace", done);
            if !installed {
                let done = bounded(before::permissions(client, release, all)).await;
                all.refused("permissions", done);
            }
            let done = bounded(before::definitions(client, all)).await;
            all.refused("kinds of Istio and Voile", done);
            let done = bounded(before::names(client, release, installed, all)).await;
            all.refused("names", done);
            let done = bounded(webhooks::overlaps(client, release, all)).await;
            all.refused("webhooks", done);
            let done = bounded(before::mesh_namespaces(client, release, all)).await;
            all.refused("pod security of the mesh", done);
            if installed {
                after::run(client, release, all).await;
            } else if !before {
                all.warning(
                    "control plane",
                    format!("none is installed in the namespace {}", release.namespace),
                    "voile install",
                );
            }
            checks
        })
    }

    /// Adds the error of a check that could not ask.
    fn refused(&mut self, name: &'static str, done: Result<(), InstallError>) {
        if let Err(error) = done {
            let cure = match error {
                InstallError::Unavailable(_) => {
                    "see whether the API server and its storage are healthy"
                }
                _ => {
                    "check as a user who may ask for it, such as one with the ClusterRole cluster-admin"
                }
            };
            self.error(name, error.to_string(), cure);
        }
    }

    /// Returns true if no check has the status `error`.
    pub fn passed(&self) -> bool {
        self.results
            .iter()
            .all(|one| one.status != CheckStatus::Error)
    }

    /// The results as JSON.
    pub fn to_json(&self) -> Value {
        let numbered = self.results.iter().enumerate();
        let checks = numbered.map(|(number, one)| {
            json!({
                "number": number + 1,
                "name": one.name,
                "status": one.status.word(),
                "found": one.found,
                "cure": one.cure,
            })
        });
        json!({"passed": self.passed(), "checks": checks.collect::<Vec<_>>()})
    }

    /// The results as numbered lines.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (number, one) in self.results.iter().enumerate() {
            let CheckResult {
                name,
                status,
                found,
                cure,
            } = one;
            let found = found.replace('\n', "\n            ");
            text.push_str(&format!(
                "{:>2} {:<8} {name}: {found}\n",
                number + 1,
                status.word()
            ));
            if !cure.is_empty() {
                text.push_str(&format!(
                    "            cure: {}\n",
                    cure.replace('\n', "\n            ")
                ));
            }
        }
        text
    }

    fn add(&mut self, status: CheckStatus, name: &'static str, found: String, cure: String) {
        self.results.push(CheckResult {
            name,
            status,
            found,
            cure,
        });
    }

    fn ok(&mut self, name: &'static str, found: impl Into<String>) {
        self.add(CheckStatus::Ok, name, found.into(), String::new());
    }

    fn warning(&mut self, name: &'static str, found: impl Into<String>, cure: impl Into<String>) {
        self.add(CheckStatus::Warning, name, found.into(), cure.into());
    }

    fn error(&mut self, name: &'static str, found: impl Into<String>, cure: impl Into<String>) {
        self.add(CheckStatus::Error, name, found.into(), cure.into());
    }
}
