//! Validation of resources at admission: the checks of `voile analyze`, with their words. Faults of a resource by itself refuse
//! it. Problems with other resources are warnings, and so is what Voile does not support: another mesh may. A DELETE, and an
//! update of metadata or status alone, always pass.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};
use voile_control::RestedConfiguration;
use voile_model::check::{check_beside, diagnose};
use voile_model::ignored::IgnoredRules;
use voile_model::mesh::gateway_api::{CLASSES, CONTROLLERS, GROUP as GATEWAY_API};
use voile_model::mesh::network::{EAST_WEST_CLASS, REMOTE_CLASS};
use voile_model::mesh::waypoint::{WAYPOINT_CLASSES, WAYPOINT_CONTROLLER};
use voile_model::{Diagnostic, Mesh, Severity, SourceFile, codes};

use super::review::{self, refused, shortened};
use crate::source::trim;

/// Resources that are compared with all others at once: each comparison may take a core.
const MAX_COMPARISONS: usize = 2;
/// Time for the comparison of a resource with all others, and for its turn. After it the resource passes without warnings.
const COMPARISON_TIMEOUT: Duration = Duration::from_secs(3);
/// Time in which a problem may vanish: one command often creates a resource and what it names.
const SETTLING: Duration = Duration::from_millis(500);
/// Faults that a refusal names; the rest is counted.
const MAX_FAULTS: usize = 16;
/// Faults that refuse nothing: parts of Istio that Voile lacks, and versions that the cluster converts.
const TOLERATED: [&str; 3] = [codes::NOT_YET, codes::REFUSED, codes::API_VERSION];

/// Checks resources beside those that are in force.
#[derive(Debug, Clone)]
pub struct Validator {
    configurations: watch::Receiver<Arc<RestedConfiguration>>,
    comparisons: Arc<Semaphore>,
}

impl Validator {
    /// A validator of resources beside those of the newest configuration.
    #[must_use]
    pub fn new(configurations: watch::Receiver<Arc<RestedConfiguration>>) -> Self {
        Self {
            configurations,
            comparisons: Arc::new(Semaphore::new(MAX_COMPARISONS)),
        }
    }

    /// The review that answers a request with this body.
    ///
    /// # Errors
    /// The body is no AdmissionReview. The API server then admits the resource.
    pub(super) async fn answer(&self, body: Bytes) -> Result<Value, String> {
        let mesh = self.configurations.borrow().mesh.clone();
        let judged = spawn_blocking(move || {
            let review = review::read(&body)?;
            Ok::<_, String>(judge(&review["request"], &mesh))
        });
        let verdict = judged.await.map_err(|error| error.to_string())??;
        let response = match verdict {
            Verdict::Admitted(uid) => admitted(&uid, Vec::new()),
            Verdict::Refused(uid, faults) => refused(&uid, &faults),
            Verdict::Compare(uid, file, mut warnings) => {
                warnings.extend(self.compare(file).await);
                admitted(&uid, warnings)
            }
        };
        Ok(review::review(&response))
    }

    /// Problems of a resource beside all others that outlive [`SETTLING`].
    async fn compare(&self, file: SourceFile) -> Vec<String> {
        let name = file.name.clone();
        let settled = Instant::now() + SETTLING;
        let mut configurations = self.configurations.clone();
        let work = async {
            loop {
                let permit = self.comparisons.clone().acquire_owned().await.ok()?;
                let mesh = configurations.borrow_and_update().mesh.clone();
                let compared = file.clone();
                let compared = spawn_blocking(move || compare(&compared, &mesh, permit));
                let warnings = compared.await.ok()?;
                let newer = timeout_at(settled, configurations.changed());
                if warnings.is_empty() || !matches!(newer.await, Ok(Ok(()))) {
                    return Some(warnings);
                }
            }
        };
        match timeout(COMPARISON_TIMEOUT, work).await {
            Ok(warnings) => warnings.unwrap_or_default(),
            Err(_) => {
                tracing::debug!(object = %name, "no time to compare the object with others; it is admitted");
                Vec::new()
            }
        }
    }
}

enum Verdict {
    Admitted(String),
    Refused(String, String),
    /// Nothing is wrong with it by itself, but for these warnings.
    Compare(String, SourceFile, Vec<String>),
}

fn judge(request: &Value, mesh: &Mesh) -> Verdict {
    let uid = request["uid"].as_str().unwrap_or_default().to_owned();
    let (object, before) = (&request["object"], &request["oldObject"]);
    let is_written = matches!(request["operation"].as_str(), Some("CREATE" | "UPDATE"));
    let group = request["resource"]["group"].as_str().unwrap_or_default();
    let ends = !object["metadata"]["deletionTimestamp"].is_null();
    if !is_written || ends || same_content(object, before) || is_foreign(group, object, mesh) {
        return Verdict::Admitted(uid);
    }
    let Some(file) = source_file(request, group) else {
        return Verdict::Admitted(uid);
    };
    let found = diagnose(&file);
    let is_fault = |one: &&Diagnostic| one.is_error() && !TOLERATED.contains(&one.code);
    let faults: Vec<&Diagnostic> = found.iter().filter(is_fault).collect();
    // Routes and policies of Gateway API belong to the controllers of their Gateways; their conditions tell faults, too.
    let is_shared = group == GATEWAY_API && object["kind"] != "Gateway";
    if faults.is_empty() || is_shared {
        let warned = warnings(&file, &found);
        return Verdict::Compare(uid, file, warned);
    }
    let mut lines: Vec<String> = faults
        .iter()
        .take(MAX_FAULTS)
        .map(|one| one.words())
        .collect();
    if let Some(more) = faults
        .len()
        .checked_sub(MAX_FAULTS)
        .filter(|more| *more > 0)
    {
        lines.push(format!("and {more} more"));
    }
    tracing::debug!(object = %file.name, faults = lines.len(), "object is refused");
    Verdict::Refused(uid, lines.join("\n"))
}

/// Returns true if two versions of an object differ in nothing but metadata and status.
fn same_content(object: &Value, before: &Value) -> bool {
    let (Some(object), Some(before)) = (object.as_object(), before.as_object()) else {
        return false;
    };
    let content = |name: &&String| !matches!(&***name, "apiVersion" | "metadata" | "status");
    let names = object.keys().chain(before.keys()).filter(content);
    names
        .into_iter()
        .all(|name| object.get(name) == before.get(name))
}

/// Returns true if the object is a Gateway or GatewayClass of another controller.
fn is_foreign(group: &str, object: &Value, mesh: &Mesh) -> bool {
    if group != GATEWAY_API {
        return false;
    }
    let spec = &object["spec"];
    let is_ours =
        |controller: &str| controller == WAYPOINT_CONTROLLER || CONTROLLERS.contains(&controller);
    match object["kind"].as_str() {
        Some("GatewayClass") => {
            let controller = spec["controllerName"].as_str();
            controller.is_none_or(|name| !is_ours(name))
        }
        Some("Gateway") => {
            let class = spec["gatewayClassName"].as_str().unwrap_or_default();
            let declared = mesh.gateway_api.classes.get(class);
            let mut ours = WAYPOINT_CLASSES.iter().chain(&CLASSES);
            match declared {
                Some(declared) => !is_ours(&declared.controller),
                None => {
                    ![EAST_WEST_CLASS, REMOTE_CLASS].contains(&class)
                        && !ours.any(|one| *one == class)
                }
            }
        }
        _ => false,
    }
}

/// The object as the control plane will read it from the cluster.
fn source_file(request: &Value, group: &str) -> Option<SourceFile> {
    let mut object = request["object"].clone();
    let plural = request["resource"]["resource"].as_str()?;
    let kind = object["kind"].as_str()?.to_owned();
    let version = object["apiVersion"].as_str()?.to_owned();
    let metadata = object["metadata"].as_object_mut()?;
    if !metadata.contains_key("name") {
        let prefix = metadata.get("generateName")?.as_str()?;
        metadata.insert("name".to_owned(), format!("{prefix}x").into());
    }
    let name = metadata["name"].as_str()?;
    let file = match request["namespace"].as_str() {
        Some(namespace) => format!("{plural}.{group}/{namespace}/{name}"),
        None => format!("{plural}.{group}/{name}"),
    };
    if let Some(namespace) = request["namespace"].as_str() {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    Some(SourceFile::new(file, trim::text(&kind, &version, object)))
}

fn compare(file: &SourceFile, mesh: &Mesh, permit: OwnedSemaphorePermit) -> Vec<String> {
    let (together, mut found) = check_beside(file, mesh);
    found.extend(voile_analysis::analyze(&together, SystemTime::now()));
    drop(permit);
    found.retain(|one| one.source.file == file.name);
    warnings(file, &found)
}

/// Problems that people should see, but for those that the annotation `voile.dev/ignore` hides.
fn warnings(file: &SourceFile, found: &[Diagnostic]) -> Vec<String> {
    let ignored = IgnoredRules::of(std::slice::from_ref(file));
    let shown = |one: &&Diagnostic| one.severity != Severity::Note && !ignored.hides(one);
    found.iter().filter(shown).map(Diagnostic::words).collect()
}

fn admitted(uid: &str, warnings: Vec<String>) -> Value {
    let mut response = json!({"uid": uid, "allowed": true});
    let warnings = shortened(warnings);
    if !warnings.is_empty() {
        response["warnings"] = warnings.into();
    }
    response
}
