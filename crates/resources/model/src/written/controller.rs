//! Controllers of Pods: Deployments, StatefulSets, DaemonSets and Jobs. Fields for a cluster's scheduler or garbage
//! collector mean nothing on one machine; they are accepted by name.

use super::pod::Template;
use super::{Text, TextMap};
use crate::decode::{FieldPath, Fields, IntegerOrText, SpannedValue};

/// `spec` of a controller; fields that a kind does not have are always absent.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) at: FieldPath,
    pub(crate) replicas: Option<SpannedValue<i64>>,
    pub(crate) selector: Option<TextMap>,
    pub(crate) template: Option<Template>,
    /// `strategy` of a Deployment, `updateStrategy` of the others.
    pub(crate) strategy: Option<Strategy>,
    /// Of a StatefulSet.
    pub(crate) pod_management: Option<Text>,
    /// `ordinals.start` of a StatefulSet.
    pub(crate) first: Option<SpannedValue<i64>>,
    /// Of a Job.
    pub(crate) job: Job,
}

/// `spec.strategy` of a Deployment, `spec.updateStrategy` of a StatefulSet or DaemonSet.
#[derive(Debug)]
pub(crate) struct Strategy {
    pub(crate) kind: Option<Text>,
    pub(crate) max_surge: Option<SpannedValue<IntegerOrText>>,
    pub(crate) max_unavailable: Option<SpannedValue<IntegerOrText>>,
    pub(crate) partition: Option<SpannedValue<i64>>,
}

/// Fields of Jobs alone.
#[derive(Debug, Default)]
pub(crate) struct Job {
    pub(crate) parallelism: Option<SpannedValue<i64>>,
    pub(crate) completions: Option<SpannedValue<i64>>,
    pub(crate) backoff_limit: Option<SpannedValue<i64>>,
    pub(crate) completion_mode: Option<Text>,
    pub(crate) suspended: bool,
}

impl Controller {
    /// Reads `spec` of a Deployment.
    pub(crate) fn read_deployment(document: &mut Fields<'_>) -> Option<Self> {
        Self::read(document, |spec, one| {
            one.replicas = spec.integer("replicas");
            one.selector = selector(spec);
            one.strategy = Strategy::read(spec, "strategy", false);
            spec.ignore(&["paused", "progressDeadlineSeconds"]);
        })
    }

    /// Reads `spec` of a StatefulSet.
    pub(crate) fn read_stateful_set(document: &mut Fields<'_>) -> Option<Self> {
        Self::read(document, |spec, one| {
            one.replicas = spec.integer("replicas");
            one.selector = selector(spec);
            one.strategy = Strategy::read(spec, "updateStrategy", true);
            one.pod_management = spec.text("podManagementPolicy");
            one.first = spec.inner("ordinals").and_then(|mut ordinals| {
                let first = ordinals.integer("start");
                ordinals.finish();
                first
            });
            // A Pod is found by its name below any headless Service that selects it.
            spec.ignore(&["serviceName"]);
            spec.ignore(&[
                "persistentVolumeClaimRetentionPolicy",
                "volumeClaimTemplates",
            ]);
        })
    }

    /// Reads `spec` of a DaemonSet.
    pub(crate) fn read_daemon_set(document: &mut Fields<'_>) -> Option<Self> {
        Self::read(document, |spec, one| {
            one.selector = selector(spec);
            one.strategy = Strategy::read(spec, "updateStrategy", false);
        })
    }

    /// Reads `spec` of a Job.
    pub(crate) fn read_job(document: &mut Fields<'_>) -> Option<Self> {
        Self::read(document, |spec, one| {
            one.job = Job {
                parallelism: spec.integer("parallelism"),
                completions: spec.integer("completions"),
                backoff_limit: spec.integer("backoffLimit"),
                completion_mode: spec.text("completionMode"),
                suspended: spec.boolean("suspend").is_some_and(|is| is.value),
            };
            // A cluster selects a Job's Pods by a label that it makes.
            spec.ignore(&["selector", "manualSelector"]);
            spec.ignore(&[
                "activeDeadlineSeconds",
                "backoffLimitPerIndex",
                "managedBy",
                "maxFailedIndexes",
                "podFailurePolicy",
                "podReplacementPolicy",
                "successPolicy",
                "ttlSecondsAfterFinished",
            ]);
        })
    }

    fn read(
        document: &mut Fields<'_>,
        of_kind: impl FnOnce(&mut Fields<'_>, &mut Self),
    ) -> Option<Self> {
        document.ignore(&["status"]);
        let mut spec = document.inner("spec")?;
        let mut one = Self {
            at: spec.at().clone(),
            replicas: None,
            selector: None,
            template: Template::read(&mut spec),
            strategy: None,
            pod_management: None,
            first: None,
            job: Job::default(),
        };
        of_kind(&mut spec, &mut one);
        spec.ignore(&["minReadySeconds", "revisionHistoryLimit"]);
        spec.finish();
        Some(one)
    }
}

fn selector(spec: &mut Fields<'_>) -> Option<TextMap> {
    let mut selector = spec.inner("selector")?;
    let labels = selector.text_map("matchLabels");
    selector.not_yet(&["matchExpressions"]);
    selector.finish();
    Some(labels)
}

impl Strategy {
    fn read(spec: &mut Fields<'_>, field: &'static str, has_partition: bool) -> Option<Self> {
        let mut strategy = spec.inner(field)?;
        let mut read = Self {
            kind: strategy.text("type"),
            max_surge: None,
            max_unavailable: None,
            partition: None,
        };
        if let Some(mut rolling) = strategy.inner("rollingUpdate") {
            read.max_surge = rolling.integer_or_text("maxSurge");
            read.max_unavailable = rolling.integer_or_text("maxUnavailable");
            if has_partition {
                read.partition = rolling.integer("partition");
            }
            rolling.finish();
        }
        strategy.finish();
        Some(read)
    }
}
