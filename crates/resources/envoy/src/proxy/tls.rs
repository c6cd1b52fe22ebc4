//! Mutual TLS of the mesh, both ends: which certificate is shown, whose is taken, and what ALPN says travels inside.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use voile_model::Mesh;
use voile_model::mesh::routing_intent::{ServerTls, TlsVersion};

use crate::json::{from_control, message, typed};

/// The secret with the proxy's own certificate.
pub const IDENTITY: &str = "default";
/// The secret with the mesh's root.
pub const ROOT: &str = "ROOTCA";
/// Names by which sidecars' mutual TLS is told from TLS that is meant for the application.
pub(crate) const MESH_ALPN: [&str; 5] = [
    "istio",
    "istio-peer-exchange",
    "istio-http/1.0",
    "istio-http/1.1",
    "istio-h2",
];
/// Those of them that say HTTP.
pub(crate) const HTTP_ALPN: [&str; 3] = ["istio-http/1.0", "istio-http/1.1", "istio-h2"];
/// Those of them that do not.
pub(crate) const TCP_ALPN: [&str; 2] = ["istio", "istio-peer-exchange"];
/// ALPN names of HTTP clients outside the mesh; under STRICT their TLS counts as the mesh's too.
pub(crate) const PLAIN_HTTP_ALPN: [&str; 3] = ["h2", "http/1.1", "http/1.0"];
/// Longest server name that Envoy takes, in bytes.
const MAX_SERVER_NAME: usize = 255;

const UPSTREAM: &str = "extensions.transport_sockets.tls.v3.UpstreamTlsContext";
const DOWNSTREAM: &str = "extensions.transport_sockets.tls.v3.DownstreamTlsContext";
const SOCKET: &str = "envoy.transport_sockets.tls";

/// Settings common to both ends.
fn common(alpn: &[&str], names: &[Value]) -> Value {
    json!({
        // Sidecars speak 1.3 to each other and nothing older.
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_3",
            "tls_maximum_protocol_version": "TLSv1_3",
        },
        "alpn_protocols": alpn,
        "tls_certificate_sds_secret_configs": [{ "name": IDENTITY, "sds_config": from_control() }],
        "combined_validation_context": {
            "default_validation_context": { "match_typed_subject_alt_names": names },
            "validation_context_sds_secret_config": { "name": ROOT, "sds_config": from_control() },
        },
    })
}

/// The client's end: who may answer, by URI or by name.
pub(crate) fn upstream(expected: &BTreeSet<String>, alpn: &[&str], server_name: &str) -> Value {
    let name = |expected: &String| {
        let kind = if expected.contains("://") {
            "URI"
        } else {
            "DNS"
        };
        json!({ "san_type": kind, "matcher": { "exact": expected } })
    };
    let names: Vec<Value> = expected.iter().map(name).collect();
    let mut context = json!({ "common_tls_context": common(alpn, &names) });
    if server_name.len() <= MAX_SERVER_NAME {
        context["sni"] = json!(server_name);
    }
    typed(SOCKET, UPSTREAM, context)
}

/// The server's end: anybody of the mesh; who else may come in is for policies to say. Envoy's codec knows `h2` by that name only,
/// so that is chosen where it is offered beside a sidecar's own.
pub(crate) fn downstream(mesh: &Mesh, http: bool) -> Value {
    let config = &mesh.config;
    let domains = std::iter::once(&config.trust_domain).chain(&config.trust_domain_aliases);
    let names: Vec<Value> = domains
        .map(|domain| {
            let prefix = format!("spiffe://{domain}/");
            json!({ "san_type": "URI", "matcher": { "prefix": prefix } })
        })
        .collect();
    let alpn: &[&str] = match http {
        true => &["h2", "istio-http/1.1", "istio-http/1.0", "http/1.1"],
        false => &TCP_ALPN,
    };
    let context = json!({
        "require_client_certificate": true,
        // A session taken up again is a peer that nobody looked at again.
        "disable_stateless_session_resumption": true,
        "disable_stateful_session_resumption": true,
        "common_tls_context": common(alpn, &names),
    });
    typed(SOCKET, DOWNSTREAM, context)
}

/// The secret that names the files in which the proxy's own certificate and key are, and the folder to watch for newer
/// ones.
pub fn identity_secret(folder: &str) -> Value {
    let folder = folder.trim_end_matches('/');
    let file = |name: &str| json!({ "filename": format!("{folder}/{name}") });
    message(
        "extensions.transport_sockets.tls.v3.Secret",
        json!({
            "name": IDENTITY,
            "tls_certificate": {
                "certificate_chain": file("cert-chain.pem"),
                "private_key": file("key.pem"),
                "watched_directory": { "path": folder },
            },
        }),
    )
}

/// The secret that names the file with the mesh's roots, by which peers are verified; lists of certificates that were taken back
/// (PEM) beside it.
pub fn root_secret(folder: &str, revoked: Option<&str>) -> Value {
    let folder = folder.trim_end_matches('/');
    let mut context = json!({
        "trusted_ca": { "filename": format!("{folder}/root-cert.pem") },
        "watched_directory": { "path": folder },
    });
    if let Some(revoked) = revoked {
        context["crl"] = json!({ "inline_string": revoked });
        // Lists say nothing of roots, which are nobody's to take back but by taking them away.
        context["only_verify_leaf_cert_crl"] = json!(true);
    }
    message(
        "extensions.transport_sockets.tls.v3.Secret",
        json!({ "name": ROOT, "validation_context": context }),
    )
}

/// The end of clients from outside: what is shown to them, whose certificates are asked of them (`true`: from everybody), and what is
/// spoken with them.
pub(super) fn edge(
    said: Option<&ServerTls>,
    shown: &[String],
    believed: Option<(&str, bool)>,
    alpn: &[&str],
) -> Value {
    let version = |version: TlsVersion| match version {
        TlsVersion::V12 => "TLSv1_2",
        TlsVersion::V13 => "TLSv1_3",
    };
    let oldest = said.map_or(TlsVersion::V12, |tls| tls.oldest);
    let newest = said.map_or(TlsVersion::V13, |tls| tls.newest);
    let mut parameters = json!({
        "tls_minimum_protocol_version": version(oldest),
        "tls_maximum_protocol_version": version(newest),
    });
    if let Some(tls) = said.filter(|tls| !tls.cipher_suites.is_empty()) {
        let suites: Vec<&str> = tls.cipher_suites.iter().map(AsRef::as_ref).collect();
        parameters["cipher_suites"] = json!(suites);
    }
    let secret = |name: &String| json!({ "name": name, "sds_config": from_control() });
    let shown: Vec<Value> = shown.iter().map(secret).collect();
    let mut common = json!({
        "tls_params": parameters,
        "alpn_protocols": alpn,
        "tls_certificate_sds_secret_configs": shown,
    });
    if let Some((name, _)) = believed {
        common["validation_context_sds_secret_config"] =
            json!({ "name": name, "sds_config": from_control() });
    }
    let context = json!({
        "require_client_certificate": believed.is_some_and(|(_, demands)| demands),
        // A certificate that was taken away is of no use to anybody.
        "disable_stateless_session_resumption": true,
        "disable_stateful_session_resumption": true,
        "common_tls_context": common,
    });
    typed(SOCKET, DOWNSTREAM, context)
}
