//! The authority's key in a Secret, where other replicas, and Istio, find it.

mod keeper;
mod rotation;

use std::collections::BTreeMap;
use std::time::SystemTime;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use voile_identity::{Authority, AuthorityFiles};
use voile_model::TrustDomain;

use crate::error::ClusterError;
pub(crate) use keeper::AuthorityKeeper;

/// The Secret that a person makes, with an authority of theirs.
const OWN: &str = "cacerts";
/// The Secret that the first replica makes. Istio's own replicas make the same.
const MADE: &str = "istio-ca-secret";
/// Type of that Secret, as Istio writes it.
const MADE_TYPE: &str = "istio.io/ca-root";
const CERTIFICATE: &str = "ca-cert.pem";
const KEY: &str = "ca-key.pem";
const CHAIN: &str = "cert-chain.pem";
const ROOTS: &str = "root-cert.pem";

/// An authority in a Secret.
#[derive(Clone)]
pub(crate) struct SecretAuthority {
    /// Name of the Secret.
    pub(crate) secret: &'static str,
    pub(crate) files: AuthorityFiles,
}

/// Opens the authority of the namespace: that of the Secret `cacerts`, else that of `istio-ca-secret`, else a new one. The creation
/// of the Secret elects the replica whose root counts.
///
/// # Errors
/// The API server refuses, or a Secret does not hold an authority.
pub(crate) async fn open(
    client: Client,
    namespace: &str,
    name: &TrustDomain,
) -> Result<SecretAuthority, ClusterError> {
    let secrets: Api<Secret> = Api::namespaced(client, namespace);
    let get = async |name: &str| {
        let found = secrets.get_opt(name).await;
        found.map_err(|error| ClusterError::api(format!("get secrets/{namespace}/{name}"), &error))
    };
    let open = |name: &'static str, secret: &Secret| {
        read(name, secret).map_err(|reason| ClusterError::Object {
            object: format!("secrets/{namespace}/{name}"),
            reason: format!(
                "{reason}; the control plane serves nothing until the Secret holds an authority"
            ),
        })
    };
    for name in [OWN, MADE] {
        if let Some(secret) = get(name).await? {
            return open(name, &secret);
        }
    }
    let broken = |reason: String| ClusterError::Object {
        object: format!("secrets/{namespace}/{MADE}"),
        reason,
    };
    let files =
        Authority::generate(name, SystemTime::now()).map_err(|error| broken(error.to_string()))?;
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(MADE.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some(MADE_TYPE.to_owned()),
        data: Some(made_data(&files)),
        ..Secret::default()
    };
    match secrets.create(&PostParams::default(), &secret).await {
        Ok(_) => {
            tracing::info!("a new root is in secrets/{namespace}/{MADE}");
            open(MADE, &secret)
        }
        // Another replica was first.
        Err(Error::Api(status)) if status.code == 409 => {
            let first = get(MADE)
                .await?
                .ok_or_else(|| broken("it vanished while it was made".to_owned()))?;
            open(MADE, &first)
        }
        Err(error) => Err(ClusterError::api(
            format!("create secrets/{namespace}/{MADE}"),
            &error,
        )),
    }
}

/// Content of the Secret that a replica makes.
fn made_data(files: &AuthorityFiles) -> BTreeMap<String, ByteString> {
    let data = [(CERTIFICATE, &files.certificate), (KEY, &files.key)];
    data.map(|(name, text)| (name.to_owned(), ByteString(text.as_bytes().to_vec())))
        .into()
}

/// The authority of a Secret, if it can sign.
fn read(name: &'static str, secret: &Secret) -> Result<SecretAuthority, String> {
    let empty = BTreeMap::new();
    let data = secret.data.as_ref().unwrap_or(&empty);
    let text = |name: &str| {
        let bytes = data.get(name).map(|bytes| bytes.0.clone());
        bytes
            .map(|bytes| String::from_utf8(bytes).map_err(|_| format!("{name} is not text")))
            .transpose()
    };
    let needed = |name: &str| text(name)?.ok_or_else(|| format!("{name} is missing"));
    let certificate = needed(CERTIFICATE)?;
    let files = AuthorityFiles {
        key: needed(KEY)?,
        chain: text(CHAIN)?.unwrap_or_default(),
        // Istio's own Secret has no root beside its certificate, which is the root.
        roots: text(ROOTS)?
            .filter(|text| !text.is_empty())
            .unwrap_or_else(|| certificate.clone()),
        certificate,
    };
    Authority::from_files(&files, SystemTime::now())?;
    Ok(SecretAuthority {
        secret: name,
        files,
    })
}
