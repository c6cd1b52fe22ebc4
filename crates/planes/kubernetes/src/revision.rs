//! Revisions of a control plane, by which several share a cluster: their names, and which objects are whose.

use std::collections::BTreeSet;
use std::fmt::Debug;

use futures_util::stream::{BoxStream, select};
use futures_util::{StreamExt as _, future};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, reflector, watcher as watch_objects};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::source::backoff::WatchBackoff;

/// Name of a revision that nobody named.
pub const DEFAULT_REVISION: &str = "default";
/// Label with the revision, or a tag of it, that a namespace or an object uses, and with that of an object of a control plane.
pub(crate) const REVISION: &str = "istio.io/rev";
/// Label with the name of a tag, at its webhooks.
pub(crate) const TAG: &str = "istio.io/tag";
/// Istio's record of its default revision, which has the label of the revision.
const DEFAULT_VALIDATOR: &str = "istiod-default-validator";

/// `name`, with the revision behind it where it is not the default one, as Istio names what belongs to a revision.
pub(crate) fn of_revision(name: &str, revision: &str) -> String {
    match revision {
        "" | DEFAULT_REVISION => name.to_owned(),
        revision => format!("{name}-{revision}"),
    }
}

/// The label of a revision; the default one may have no name.
pub(crate) fn label_of(revision: &str) -> &str {
    if revision.is_empty() {
        DEFAULT_REVISION
    } else {
        revision
    }
}

/// Names by which objects choose a control plane: by their label, else by that of their namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionNames {
    /// Its revision, and the tags that stand for it.
    names: BTreeSet<String>,
    /// True if the objects that name no revision are its own.
    has_unnamed: bool,
}

impl RevisionNames {
    /// Those of a revision. Each tag comes with the revision that it stands for; `default_revision` is the one that Istio's tools
    /// have recorded. The tag `default` has precedence over it.
    #[must_use]
    pub fn new<'a>(
        revision: &str,
        tags: impl IntoIterator<Item = (&'a str, &'a str)>,
        default_revision: Option<&str>,
    ) -> Self {
        let mut names = BTreeSet::from([revision.to_owned()]);
        let mut unnamed = default_revision.unwrap_or(DEFAULT_REVISION).to_owned();
        for (tag, of) in tags {
            if tag == DEFAULT_REVISION {
                of.clone_into(&mut unnamed);
            }
            if of == revision {
                names.insert(tag.to_owned());
            }
        }
        Self {
            names,
            has_unnamed: unnamed == revision,
        }
    }

    /// Returns true if the control plane owns an object with this label `istio.io/rev`, in a namespace with that one.
    #[must_use]
    pub fn own(&self, label: Option<&str>, of_namespace: Option<&str>) -> bool {
        match label.or(of_namespace) {
            Some(name) => self.names.contains(name),
            None => self.has_unnamed,
        }
    }
}

/// Names of a control plane; none until the cluster's tags are known.
pub(crate) type CurrentNames = watch::Receiver<Option<RevisionNames>>;

/// Names of a control plane, which a task follows.
pub(crate) fn spawn_names(tasks: &mut JoinSet<()>, client: Client, revision: &str) -> CurrentNames {
    let (names, current) = watch::channel(None);
    tasks.spawn(follow_names(client, revision.to_owned(), names));
    current
}

/// Follows the tags of the cluster, for ever.
async fn follow_names(
    client: Client,
    revision: String,
    names: watch::Sender<Option<RevisionNames>>,
) {
    let tags: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let (tags, of_tags) = mirror(tags, watcher::Config::default().labels(TAG));
    let defaults: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let by_name = format!("metadata.name={DEFAULT_VALIDATOR}");
    let (defaults, of_defaults) = mirror(defaults, watcher::Config::default().fields(&by_name));
    let changes = select(
        of_tags.map(|listed| (0, listed)),
        of_defaults.map(|listed| (1, listed)),
    );
    let mut known = [false; 2];
    let mut changes = changes.boxed();
    while let Some((kind, listed)) = changes.next().await {
        known[kind] |= listed;
        if known != [true; 2] {
            continue;
        }
        let (tags, defaults) = (tags.state(), defaults.state());
        let tags = tags.iter().filter_map(|one| {
            let labels = one.labels();
            Some((labels.get(TAG)?.as_str(), labels.get(REVISION)?.as_str()))
        });
        let default = defaults.first().and_then(|one| one.labels().get(REVISION));
        let found = RevisionNames::new(&revision, tags, default.map(String::as_str));
        names.send_if_modified(|names| {
            let differs = names.as_ref() != Some(&found);
            *names = Some(found);
            differs
        });
    }
}

/// Objects as a watch keeps them, and its events: true when a list has come whole.
fn mirror<K>(
    api: Api<K>,
    config: watcher::Config,
) -> (reflector::Store<K>, BoxStream<'static, bool>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (objects, writer) = reflector::store();
    let events = watch_objects(api, config).backoff(WatchBackoff::default());
    let events = events.reflect(writer);
    // The watcher logs nothing; an error is tried again.
    let events = events.filter_map(|event| future::ready(event.ok()));
    let listed = events.map(|event| matches!(event, Event::InitDone));
    (objects, listed.boxed())
}

#[cfg(test)]
mod tests {
    use super::RevisionNames;

    #[test]
    fn objects_belong_to_the_revision_that_they_or_their_namespaces_name() {
        let tags = [("prod", "new"), ("test", "old")];
        let new = RevisionNames::new("new", tags, None);
        let default = RevisionNames::new("default", tags, None);
        for (label, namespace, owned) in [
            (Some("new"), None, true),
            (Some("prod"), Some("old"), true),
            (Some("test"), Some("new"), false),
            (None, Some("prod"), true),
            (None, Some("default"), false),
            (None, None, false),
        ] {
            assert_eq!(new.own(label, namespace), owned, "{label:?} {namespace:?}");
        }
        assert!(default.own(None, None) && !default.own(None, Some("prod")));
    }

    #[test]
    fn the_tag_default_then_the_record_of_istio_says_who_has_unnamed_objects() {
        let has_unnamed = |revision, tags: &[(&'static str, &'static str)], recorded| {
            RevisionNames::new(revision, tags.iter().copied(), recorded).own(None, None)
        };
        assert!(has_unnamed("one", &[], Some("one")));
        assert!(!has_unnamed("default", &[], Some("one")));
        assert!(has_unnamed("two", &[("default", "two")], Some("one")));
        assert!(!has_unnamed("one", &[("default", "two")], Some("one")));
    }
}
