//! Certificates signed by way of Kubernetes' CertificateSigningRequests, as Istio's registration authority has them: an object for each
//! certificate, with the identity of a caller that proved itself.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher::watch_object;
use kube::{Client, ResourceExt as _};
use rustls::pki_types::CertificateDer;
use serde_json::json;
use voile_identity::{ExternalSigner, ExternalSignerError, SignerFuture};

use super::pending::PendingRequests;
use super::rotation::certificates;
use crate::error::{FORBIDDEN, explain};
use crate::install::MANAGER;

/// Longest wait for a certificate: a caller waits ten seconds.
const PATIENCE: Duration = Duration::from_secs(8);
/// Shortest life that the API takes (`expirationSeconds`).
const MIN_LIFE: Duration = Duration::from_secs(600);
const USAGES: [&str; 4] = [
    "digital signature",
    "key encipherment",
    "server auth",
    "client auth",
];

/// A signer of CertificateSigningRequests.
pub(crate) struct KubernetesSigner {
    requests: Api<CertificateSigningRequest>,
    signer: String,
    longest: Duration,
    roots: RwLock<Vec<CertificateDer<'static>>>,
    pending: PendingRequests,
}

impl fmt::Debug for KubernetesSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KubernetesSigner")
            .field(&self.signer)
            .finish()
    }
}

impl KubernetesSigner {
    /// `roots` are those of the signer, in PEM.
    pub(crate) fn new(client: Client, signer: &str, longest: Duration, roots: &str) -> Arc<Self> {
        Arc::new(Self {
            requests: Api::all(client),
            signer: signer.to_owned(),
            longest: longest.max(MIN_LIFE),
            roots: RwLock::new(certificates(roots)),
            pending: PendingRequests::default(),
        })
    }

    /// Believes certificates below these roots.
    pub(crate) fn set_roots(&self, roots: &str) {
        let mut held = self.roots.write().unwrap_or_else(PoisonError::into_inner);
        *held = certificates(roots);
    }

    async fn request(&self, csr_pem: &str, life: Duration) -> Result<String, ExternalSignerError> {
        let unavailable = |what: &str, error: &kube::Error| {
            ExternalSignerError::Unavailable(format!("{what}: {}", explain(error)))
        };
        let request = CertificateSigningRequest {
            metadata: ObjectMeta {
                generate_name: Some("voile-workload-".to_owned()),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                request: ByteString(csr_pem.as_bytes().to_vec()),
                signer_name: self.signer.clone(),
                usages: Some(USAGES.map(str::to_owned).to_vec()),
                expiration_seconds: i32::try_from(life.as_secs()).ok(),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        };
        let made = self.requests.create(&PostParams::default(), &request).await;
        let made =
            made.map_err(|error| unavailable("create a CertificateSigningRequest", &error))?;
        let name = made.name_any();
        let certified = tokio::time::timeout(PATIENCE, self.certified(&name)).await;
        // Others may delete it sooner; the cluster forgets it after an hour.
        let deleted = self.requests.delete(&name, &DeleteParams::default()).await;
        if let Err(error) = deleted {
            tracing::debug!("certificatesigningrequests/{name}: {}", explain(&error));
        }
        certified.unwrap_or_else(|_| {
            Err(ExternalSignerError::Unavailable(format!(
                "no certificate of the signer {} within {PATIENCE:?}",
                self.signer
            )))
        })
    }

    /// Approves a request, and waits for its certificate.
    async fn certified(&self, name: &str) -> Result<String, ExternalSignerError> {
        let approval = json!({"status": {"conditions": [{
            "type": "Approved",
            "status": "True",
            "reason": "VerifiedIdentity",
            "message": "the caller proved this identity by its service account's token or certificate",
        }]}});
        let approved = self
            .requests
            .patch_approval(name, &PatchParams::apply(MANAGER), &Patch::Merge(approval))
            .await;
        match approved {
            Ok(_) => {}
            // Somebody else approves.
            Err(kube::Error::Api(status)) if status.code == FORBIDDEN => {
                tracing::debug!("certificatesigningrequests/{name} waits for another's approval");
            }
            Err(error) => {
                let text = format!("approve a CertificateSigningRequest: {}", explain(&error));
                return Err(ExternalSignerError::Unavailable(text));
            }
        }
        let mut changes = watch_object(self.requests.clone(), name).boxed();
        while let Some(change) = changes.next().await {
            let Ok(Some(found)) = change else { continue };
            if let Some(answer) = answer(&found) {
                return answer;
            }
        }
        Err(ExternalSignerError::Unavailable(
            "the API server is away".to_owned(),
        ))
    }
}

/// The answer in a request's status, if there is one.
fn answer(request: &CertificateSigningRequest) -> Option<Result<String, ExternalSignerError>> {
    let status = request.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let refused = conditions.find(|one| matches!(&*one.type_, "Denied" | "Failed"));
    if let Some(refused) = refused {
        let text = format!(
            "{}: {}",
            refused.type_,
            refused.message.as_deref().unwrap_or("no reason is given")
        );
        return Some(Err(ExternalSignerError::Refused(text)));
    }
    let certificate = status
        .certificate
        .as_ref()
        .filter(|one| !one.0.is_empty())?;
    let text = String::from_utf8(certificate.0.clone());
    Some(text.map_err(|_| ExternalSignerError::Refused("its certificate is not text".to_owned())))
}

impl ExternalSigner for KubernetesSigner {
    fn sign<'a>(&'a self, caller: &'a str, csr_pem: &'a str, ttl: Duration) -> SignerFuture<'a> {
        Box::pin(async move {
            let _pending = self
                .pending
                .admit(caller)
                .map_err(ExternalSignerError::Unavailable)?;
            self.request(csr_pem, ttl).await
        })
    }

    fn roots(&self) -> Vec<CertificateDer<'static>> {
        let held = self.roots.read().unwrap_or_else(PoisonError::into_inner);
        held.clone()
    }

    fn lifetimes(&self) -> (Duration, Duration) {
        (MIN_LIFE, self.longest)
    }
}
