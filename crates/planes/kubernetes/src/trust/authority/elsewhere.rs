//! The certificate of a control plane that signs nothing, as with cert-manager's istio-csr: the Secret `istiod-tls`, and the roots in
//! the ConfigMap `istio-ca-root-cert` of its namespace. Others keep both; this never writes one.

use std::time::SystemTime;

use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, future, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use voile_identity::{Authority, AuthorityStore};

use crate::source::backoff::WatchBackoff;
use crate::trust::roots::{CONFIG_MAP, ROOT};

/// The Secret, as cert-manager and Istio name it.
const SECRET: &str = "istiod-tls";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// Roots in the Secret, for want of the ConfigMap. Not every issuer of cert-manager tells them.
const SECRET_ROOTS: &str = "ca.crt";

enum ElsewhereChange {
    Secret(Option<Secret>),
    Roots(Option<ConfigMap>),
}

/// See the module.
pub(crate) struct ElsewhereAuthority {
    namespace: String,
    changes: BoxStream<'static, ElsewhereChange>,
    secret: Option<Secret>,
    roots: Option<ConfigMap>,
    /// The last trouble: the same is told once.
    trouble: Option<String>,
    /// The authority in force.
    pub(crate) store: AuthorityStore,
}

impl ElsewhereAuthority {
    /// Waits until there is a certificate, and roots above it.
    pub(crate) async fn open(client: Client, namespace: &str) -> Option<Self> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
        let secrets = watch_object(secrets, SECRET).backoff(WatchBackoff::default());
        let secrets =
            secrets.filter_map(|found| future::ready(found.ok().map(ElsewhereChange::Secret)));
        let maps = watch_object(maps, CONFIG_MAP).backoff(WatchBackoff::default());
        let maps = maps.filter_map(|found| future::ready(found.ok().map(ElsewhereChange::Roots)));
        let mut changes = stream::select(secrets.boxed(), maps.boxed()).boxed();
        let (mut secret, mut roots, mut trouble) = (None, None, None);
        loop {
            match changes.next().await? {
                ElsewhereChange::Secret(found) => secret = found,
                ElsewhereChange::Roots(found) => roots = found,
            }
            match read(secret.as_ref(), roots.as_ref()) {
                Ok(authority) => {
                    return Some(Self {
                        namespace: namespace.to_owned(),
                        changes,
                        secret,
                        roots,
                        trouble: None,
                        store: std::sync::Arc::new(authority).into(),
                    });
                }
                Err(reason) => tell(&mut trouble, namespace, &reason, "waiting for it"),
            }
        }
    }

    /// Follows both for ever.
    pub(crate) async fn keep(mut self) {
        while let Some(change) = self.changes.next().await {
            match change {
                ElsewhereChange::Secret(found) => self.secret = found,
                ElsewhereChange::Roots(found) => self.roots = found,
            }
            match read(self.secret.as_ref(), self.roots.as_ref()) {
                Ok(authority) => {
                    self.trouble = None;
                    tracing::info!("secrets/{}/{SECRET} is read", self.namespace);
                    self.store.set(authority);
                }
                Err(reason) => {
                    let effect = "the certificate before it stays in force";
                    tell(&mut self.trouble, &self.namespace, &reason, effect);
                }
            }
        }
    }
}

fn tell(trouble: &mut Option<String>, namespace: &str, reason: &str, effect: &str) {
    let text = format!("secrets/{namespace}/{SECRET}: {reason}; {effect}");
    if trouble.as_ref() != Some(&text) {
        tracing::warn!("{text}");
        *trouble = Some(text);
    }
}

fn read(secret: Option<&Secret>, roots: Option<&ConfigMap>) -> Result<Authority, String> {
    let data = secret.ok_or("it is missing")?.data.as_ref();
    let text = |name: &str| {
        let bytes = data.and_then(|data| data.get(name));
        let bytes = bytes.ok_or_else(|| format!("{name} is missing"))?;
        String::from_utf8(bytes.0.clone()).map_err(|_| format!("{name} is not text"))
    };
    let told = roots.and_then(|map| map.data.as_ref()?.get(ROOT).cloned());
    let roots = match told {
        Some(told) => told,
        None => text(SECRET_ROOTS)
            .map_err(|reason| format!("{reason}, and there is no ConfigMap {CONFIG_MAP}"))?,
    };
    Authority::elsewhere(&text(CERTIFICATE)?, &text(KEY)?, &roots, SystemTime::now())
}
