//! Follows the authority's Secret while the control plane runs, and renews a root of ours before it ends.

use std::time::{Duration, Instant, SystemTime};

use futures_util::stream::select_all;
use futures_util::{StreamExt as _, future};
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use kube::api::{Api, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::watcher::watch_object;
use kube::{Client, Resource as _};
use tokio::sync::watch;
use voile_identity::{AuthorityStore, renew_root};
use voile_model::mesh::gateway_api::CONTROLLERS;

use super::rotation::Rotation;
use super::{
    EXTERNAL, ExternalAuthority, MADE, OWN, OpenAuthority, limited, made_data, read, read_roots,
};
use crate::error::explain;
use crate::source::backoff::WatchBackoff;

/// Time between two looks at the end of a root of ours.
const RENEWAL_CHECK: Duration = Duration::from_secs(60 * 60);

/// Keeps the authority as its Secret is.
pub(crate) struct AuthorityKeeper {
    client: Client,
    namespace: String,
    store: AuthorityStore,
    rotation: Rotation,
    longest: Duration,
    /// The Secret of the authority in force.
    secret: &'static str,
    /// `cacerts`, `istio-ca-secret` and `external-ca-cert`, as they were seen last.
    seen: [Option<Secret>; 3],
    external: Option<ExternalAuthority>,
    is_external: bool,
    /// The last trouble: the same is told once.
    trouble: Option<String>,
    recorder: Recorder,
    /// Only the elected replica renews a root and writes events.
    leads: watch::Receiver<bool>,
}

impl AuthorityKeeper {
    pub(crate) fn new(
        client: Client,
        (namespace, replica): (&str, &str),
        opened: OpenAuthority,
        (overlap, longest): (Duration, Duration),
        leads: watch::Receiver<bool>,
    ) -> Self {
        let reporter = Reporter {
            controller: CONTROLLERS[0].to_owned(),
            instance: Some(replica.to_owned()),
        };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            namespace: namespace.to_owned(),
            store: opened.store,
            rotation: Rotation::new(opened.secret.files, overlap, longest),
            longest,
            secret: opened.secret.secret,
            seen: [None, None, None],
            external: opened.external,
            is_external: opened.is_external,
            trouble: None,
            leads,
        }
    }

    /// Follows the Secrets for ever.
    pub(crate) async fn keep(mut self) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let changes = [(0, OWN), (1, MADE), (2, EXTERNAL)].map(|(index, name)| {
            let changes = watch_object(secrets.clone(), name).backoff(WatchBackoff::default());
            changes
                .filter_map(move |found| future::ready(found.ok().map(|found| (index, found))))
                .boxed()
        });
        let mut changes = select_all(changes);
        let mut renewal = tokio::time::interval(RENEWAL_CHECK);
        loop {
            let due = self.rotation.due();
            tokio::select! {
                found = changes.next() => match found {
                    Some((index, found)) => {
                        self.seen[index] = found;
                        self.look().await;
                    }
                    None => return,
                },
                () = until(due) => {}
                _ = renewal.tick() => {}
                // An error means that nobody is elected any more, which is an end.
                changed = self.leads.changed() => if changed.is_err() {
                    return;
                },
            }
            self.renew(&secrets).await;
            self.advance().await;
        }
    }

    /// Reads the Secret that counts now.
    async fn look(&mut self) {
        if let (Some(external), Some(secret)) = (&mut self.external, &self.seen[2]) {
            match read_roots(secret) {
                Ok(found) => {
                    external.signer.set_roots(&found);
                    external.roots = found;
                }
                Err(reason) => return self.refuse(EXTERNAL, &reason).await,
            }
        }
        let [own, made, _] = &self.seen;
        let found = match (own, made) {
            (Some(own), _) => read(OWN, own).map_err(|reason| (OWN, reason)),
            // A Secret of a person that goes does not bring back ours.
            (None, Some(made)) if self.secret == MADE => {
                read(MADE, made).map_err(|reason| (MADE, reason))
            }
            (None, _) => return,
        };
        match found {
            Ok(mut found) => {
                self.secret = found.secret;
                self.trouble = None;
                if let Some(external) = &self.external {
                    found.trust(&external.roots);
                }
                if self.rotation.want(found.files) {
                    tracing::info!(
                        "secrets/{}/{} has another authority",
                        self.namespace,
                        self.secret
                    );
                }
            }
            Err((secret, reason)) => self.refuse(secret, &reason).await,
        }
    }

    async fn refuse(&mut self, secret: &'static str, reason: &str) {
        let place = format!("secrets/{}/{secret}", self.namespace);
        let text = format!("{place}: {reason}; the authority before it stays in force");
        if self.trouble.as_ref() == Some(&text) {
            return;
        }
        tracing::error!("{text}");
        self.tell(secret, EventType::Warning, "AuthorityRefused", &text)
            .await;
        self.trouble = Some(text);
    }

    /// Takes the steps that are due.
    async fn advance(&mut self) {
        let waited = self.rotation.waits();
        let authority = match self.rotation.advance(Instant::now(), SystemTime::now()) {
            Ok(Some(authority)) => authority,
            Ok(None) => return,
            Err(reason) => return self.refuse(self.secret, &reason).await,
        };
        let roots = authority.roots().len();
        let authority = limited(authority, self.longest, self.is_external);
        self.store.set(authority);
        let mut text = match (waited, self.rotation.waits()) {
            (true, false) => "the key of the Secret signs now".to_owned(),
            (_, true) => format!(
                "its roots are trusted; its key signs in {:?}",
                self.wait().unwrap_or_default()
            ),
            (false, false) => "its roots are trusted".to_owned(),
        };
        text = format!("{text}; {roots} roots are trusted");
        if self.rotation.keeps_old_roots() {
            text += ", of which the Secret lacks some: certificates below them may be alive";
        }
        tracing::info!("secrets/{}/{}: {text}", self.namespace, self.secret);
        self.tell(self.secret, EventType::Normal, "AuthorityChanged", &text)
            .await;
    }

    fn wait(&self) -> Option<Duration> {
        let wait = self
            .rotation
            .due()?
            .saturating_duration_since(Instant::now());
        Some(Duration::from_secs(wait.as_secs_f64().ceil() as u64))
    }

    /// Renews a root of ours that ends soon. Other replicas, and Istio's, see the Secret change.
    async fn renew(&mut self, secrets: &Api<Secret>) {
        let (Some(secret), true) = (&self.seen[1], *self.leads.borrow()) else {
            return;
        };
        let held = match read(MADE, secret) {
            Ok(held) if self.secret == MADE => held,
            _ => return,
        };
        let renewed = match renew_root(&held.files, SystemTime::now()) {
            Ok(Some(renewed)) => renewed,
            Ok(None) => return,
            Err(reason) => {
                let reason = format!("the root cannot be renewed: {reason}");
                return self.refuse(MADE, &reason).await;
            }
        };
        let mut secret = secret.clone();
        let data = secret.data.get_or_insert_default();
        data.extend(made_data(&renewed));
        data.remove(super::ROOTS);
        match secrets.replace(MADE, &PostParams::default(), &secret).await {
            Ok(_) => tracing::info!("secrets/{}/{MADE}: the root is renewed", self.namespace),
            // Another was first.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => {
                let reason = format!(
                    "the root ends soon and cannot be renewed: {}",
                    explain(&error)
                );
                self.refuse(MADE, &reason).await;
            }
        }
    }

    async fn tell(&self, secret: &str, type_: EventType, reason: &str, note: &str) {
        if !*self.leads.borrow() {
            return;
        }
        let seen = self.seen.iter().flatten();
        let mut object = seen
            .map(|secret| secret.object_ref(&()))
            .find(|one| one.name.as_deref() == Some(secret))
            .unwrap_or_else(|| ObjectReference {
                name: Some(secret.to_owned()),
                namespace: Some(self.namespace.clone()),
                ..ObjectReference::default()
            });
        object.kind = Some("Secret".to_owned());
        object.api_version = Some("v1".to_owned());
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note.to_owned()),
            action: "Rotate".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, &object).await {
            tracing::debug!("an event cannot be written: {}", explain(&error));
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
