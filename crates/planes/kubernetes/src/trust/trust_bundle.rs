//! The mesh's root in a ClusterTrustBundle, as Istio's `ENABLE_CLUSTER_TRUST_BUNDLE_API` has it: one object of the cluster in place of a
//! ConfigMap in every namespace. The elected replica keeps it.

use futures_util::StreamExt as _;
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Client, Error};
use serde_json::json;

use crate::error::explain;
use crate::install::MANAGER;
use crate::source::backoff::WatchBackoff;
use crate::trust::roots::RETRY;

/// Name of the bundle, which pods of the mesh mount. It begins with the signer's name.
pub(crate) const BUNDLE: &str = "istio.io:istiod-ca:root-cert";
const SIGNER: &str = "istio.io/istiod-ca";

/// Keeps the bundle, for ever.
pub(crate) async fn keep(client: Client, root: String) {
    let bundles: Api<ClusterTrustBundle> = Api::all(client);
    let mut changes = watch_object(bundles.clone(), BUNDLE)
        .backoff(WatchBackoff::default())
        .boxed();
    let mut trouble = None;
    let mut is_right = true;
    loop {
        tokio::select! {
            next = changes.next() => match next {
                Some(Ok(found)) => is_right = found.is_some_and(|one| one.spec.trust_bundle == root),
                // A cluster without the kind is one to which nothing can be written, either.
                Some(Err(_)) => is_right = false,
                None => return,
            },
            () = tokio::time::sleep(RETRY), if !is_right => {}
        }
        if is_right {
            continue;
        }
        match write(&bundles, &root).await {
            Ok(_) => (trouble, is_right) = (None, true),
            Err(error) => {
                let text = explain(&error);
                if trouble.as_ref() != Some(&text) {
                    tracing::warn!(
                        "clustertrustbundles/{BUNDLE} cannot be written: {text}; injected pods cannot start without it"
                    );
                    trouble = Some(text);
                }
            }
        }
    }
}

async fn write(bundles: &Api<ClusterTrustBundle>, root: &str) -> Result<ClusterTrustBundle, Error> {
    let bundle = json!({
        "apiVersion": "certificates.k8s.io/v1beta1",
        "kind": "ClusterTrustBundle",
        "metadata": {"name": BUNDLE},
        "spec": {"signerName": SIGNER, "trustBundle": root},
    });
    let writer = PatchParams::apply(MANAGER).force();
    bundles.patch(BUNDLE, &writer, &Patch::Apply(bundle)).await
}
