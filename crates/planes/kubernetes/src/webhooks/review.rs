//! The answer to an AdmissionReview: pure. What cannot be read is refused, so that no Pod of the mesh starts without its proxy.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::InjectionSettings;
use crate::inject::request::{InjectionRequest, PathSettings};
use crate::inject::{InjectionOutcome, inject};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// The API server shortens longer warnings, and drops what exceeds 4096 bytes in all.
const MAX_WARNING_BYTES: usize = 256;
const MAX_WARNINGS_BYTES: usize = 4096;

/// The review that answers a request with this body at this path.
pub(super) fn answer(body: &[u8], path: &str, settings: &InjectionSettings) -> Value {
    let response = match read(body) {
        Err(why) => refused("", &format!("could not decode the AdmissionReview: {why}")),
        Ok(review) => decide(&review["request"], path, settings),
    };
    review(&response)
}

/// A review with this response.
pub(super) fn review(response: &Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": KIND, "response": response})
}

/// The review of a request's body.
pub(super) fn read(body: &[u8]) -> Result<Value, String> {
    let review: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if review["kind"] != KIND || review["apiVersion"] != API_VERSION {
        let (kind, version) = (&review["kind"], &review["apiVersion"]);
        return Err(format!(
            "{kind} of {version} instead of {KIND} of {API_VERSION}"
        ));
    }
    if !review["request"]["uid"].is_string() {
        return Err("there is no request.uid".to_owned());
    }
    Ok(review)
}

fn decide(request: &Value, path: &str, settings: &InjectionSettings) -> Value {
    let uid = request["uid"].as_str().unwrap_or_default();
    let is_new_pod = request["kind"]["kind"] == "Pod" && request["operation"] == "CREATE";
    if !is_new_pod {
        return json!({"uid": uid, "allowed": true});
    }
    let pod = &request["object"];
    let namespace = pod["metadata"]["namespace"].as_str();
    let namespace = namespace.or_else(|| request["namespace"].as_str());
    let asked = InjectionRequest {
        pod,
        namespace: namespace.unwrap_or_default(),
        // The webhook's selectors have chosen the Pod.
        namespace_labels: None,
        workload: None,
        path_settings: &PathSettings::parse(path),
    };
    let name = &pod["metadata"]["name"];
    let name = name
        .as_str()
        .or_else(|| pod["metadata"]["generateName"].as_str());
    let (namespace, name) = (asked.namespace, name.unwrap_or_default());
    match inject(&asked, &settings.options, &settings.mesh) {
        Ok(InjectionOutcome::Skipped(reason)) => {
            tracing::debug!(namespace, name, %reason, "Pod is not injected");
            json!({"uid": uid, "allowed": true})
        }
        Ok(InjectionOutcome::Injected(injected)) => {
            tracing::debug!(namespace, name, "Pod is injected");
            let patch = json!(injected.patch).to_string();
            let mut response = json!({
                "uid": uid,
                "allowed": true,
                "patchType": "JSONPatch",
                "patch": STANDARD.encode(patch),
            });
            let warnings = shortened(injected.warnings);
            if !warnings.is_empty() {
                response["warnings"] = warnings.into();
            }
            response
        }
        Err(error) => {
            tracing::warn!(namespace, name, %error, "Pod is refused: it cannot be injected");
            refused(uid, &error.to_string())
        }
    }
}

/// A response that refuses.
pub(super) fn refused(uid: &str, why: &str) -> Value {
    const BAD_REQUEST: u16 = 400;
    let status: Map<String, Value> = [
        ("message".to_owned(), why.into()),
        ("reason".to_owned(), "BadRequest".into()),
        ("code".to_owned(), BAD_REQUEST.into()),
    ]
    .into_iter()
    .collect();
    json!({"uid": uid, "allowed": false, "status": status})
}

/// As much of the warnings as an API server passes on.
pub(super) fn shortened(warnings: Vec<String>) -> Vec<String> {
    let mut left = MAX_WARNINGS_BYTES;
    let mut kept = Vec::new();
    for mut warning in warnings {
        if warning.len() > MAX_WARNING_BYTES {
            warning.truncate(warning.floor_char_boundary(MAX_WARNING_BYTES - 3));
            warning.push_str("...");
        }
        let Some(rest) = left.checked_sub(warning.len()) else {
            break;
        };
        left = rest;
        kept.push(warning);
    }
    kept
}
