//! The authority's key in a Secret, where other replicas, and Istio, find it.

mod elsewhere;
mod external;
mod keeper;
mod pending;
mod rotation;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use voile_identity::{Authority, AuthorityFiles, AuthorityStore, ExternalSigner};
use voile_model::TrustDomain;

use crate::control_plane::ClusterOptions;
use crate::error::ClusterError;
pub(crate) use elsewhere::ElsewhereAuthority;
use external::KubernetesSigner;
pub(crate) use keeper::AuthorityKeeper;

/// The Secret that a person makes, with an authority of theirs.
const OWN: &str = "cacerts";
/// The Secret that the first replica makes. Istio's own replicas make the same.
const MADE: &str = "istio-ca-secret";
/// The Secret with the roots of an external authority.
const EXTERNAL: &str = "external-ca-cert";
/// Type of the Secret that the first replica makes, as Istio writes it.
const MADE_TYPE: &str = "istio.io/ca-root";
const CERTIFICATE: &str = "ca-cert.pem";
const KEY: &str = "ca-key.pem";
const CHAIN: &str = "cert-chain.pem";
const ROOTS: &str = "root-cert.pem";

/// An authority in a Secret.
#[derive(Clone)]
struct SecretAuthority {
    /// Name of the Secret.
    secret: &'static str,
    files: AuthorityFiles,
}

/// What a control plane signs by.
pub(crate) struct OpenAuthority {
    secret: SecretAuthority,
    external: Option<ExternalAuthority>,
    /// True if another signs the certificates of workloads.
    is_external: bool,
    /// The authority in force.
    pub(crate) store: AuthorityStore,
}

/// An external signer of workloads' certificates, and its roots, which are trusted beside those of the authority.
struct ExternalAuthority {
    signer: Arc<KubernetesSigner>,
    roots: String,
}

impl OpenAuthority {
    /// Opens the authority of the namespace, and asks for the roots of an external signer, if there is one.
    ///
    /// # Errors
    /// The API server refuses, or a Secret does not hold what it should.
    pub(crate) async fn open(
        client: Client,
        cluster: &ClusterOptions,
        longest: Duration,
    ) -> Result<Self, ClusterError> {
        let namespace = &*cluster.namespace;
        let domain = TrustDomain::new("cluster.local")
            .ok_or_else(|| ClusterError::Config("the default trust domain".to_owned()))?;
        let mut secret = open(client.clone(), namespace, &domain).await?;
        let external = match &cluster.external_signer {
            Some(signer) => {
                let roots = external_roots(client.clone(), namespace).await?;
                secret.trust(&roots);
                let signer = KubernetesSigner::new(client, signer, longest, &roots);
                Some(ExternalAuthority { signer, roots })
            }
            None => None,
        };
        let authority = Authority::from_files(&secret.files, SystemTime::now());
        let authority = authority.map_err(|reason| ClusterError::Object {
            object: format!("secrets/{namespace}/{}", secret.secret),
            reason,
        })?;
        let is_external = external.is_some() || cluster.ca_address.is_some();
        let authority = limited(authority, longest, is_external);
        Ok(Self {
            secret,
            external,
            is_external,
            store: Arc::new(authority).into(),
        })
    }

    /// The external signer.
    pub(crate) fn signer(&self) -> Option<Arc<dyn ExternalSigner>> {
        let external = self.external.as_ref()?;
        Some(external.signer.clone())
    }
}

/// An authority that signs for at most `longest`; proxies do not wait for its certificates where another one signs theirs.
fn limited(authority: Authority, longest: Duration, is_external: bool) -> Authority {
    let authority = authority.with_longest(longest);
    match is_external {
        true => authority.without_workloads(),
        false => authority,
    }
}

impl SecretAuthority {
    /// Trusts these roots, too.
    fn trust(&mut self, roots: &str) {
        self.files.roots = rotation::both(&self.files.roots, roots);
    }
}

/// Opens the authority of the namespace: that of the Secret `cacerts`, else that of `istio-ca-secret`, else a new one. The creation
/// of the Secret elects the replica whose root counts.
///
/// # Errors
/// The API server refuses, or a Secret does not hold an authority.
async fn open(
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

/// The roots of an external authority, in PEM: `root-cert.pem` of the Secret `external-ca-cert`.
///
/// # Errors
/// The API server refuses, or the Secret holds no root.
async fn external_roots(client: Client, namespace: &str) -> Result<String, ClusterError> {
    let secrets: Api<Secret> = Api::namespaced(client, namespace);
    let what = format!("secrets/{namespace}/{EXTERNAL}");
    let found = secrets.get_opt(EXTERNAL).await;
    let found = found.map_err(|error| ClusterError::api(format!("get {what}"), &error))?;
    let roots = found
        .as_ref()
        .map_or_else(|| Err("it is missing".to_owned()), read_roots);
    roots.map_err(|reason| ClusterError::Object {
        object: what,
        reason: format!("{reason}; the roots of the external signer belong into {ROOTS}"),
    })
}

fn read_roots(secret: &Secret) -> Result<String, String> {
    let data = secret.data.as_ref();
    let roots = data
        .and_then(|data| data.get(ROOTS))
        .ok_or_else(|| format!("{ROOTS} is missing"))?;
    let roots = String::from_utf8(roots.0.clone()).map_err(|_| format!("{ROOTS} is not text"))?;
    match rotation::certificates(&roots).is_empty() {
        true => Err(format!("{ROOTS} holds no certificate")),
        false => Ok(roots),
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
