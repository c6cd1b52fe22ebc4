//! Reads and checks controllers of Pods: Deployments, StatefulSets, DaemonSets and Jobs. Fields for a cluster's scheduler
//! or garbage collector mean nothing on one machine; they are accepted by name.

use crate::check::CheckedResource;
use crate::check::header::Metadata;
use crate::check::pod::template;
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{FieldPath, Fields, IntegerOrText, Report, SpannedValue};
use crate::mesh::{
    ControllerKind, CountOrPercent, Deployment, PodNumbering, PodTemplate, Restart, Strategy,
};
use crate::names::Labels;
use crate::text::clip;

/// Most Pods of one controller on one machine: each is processes and an address.
const MAX_REPLICAS: i64 = 10_000;
/// Default number of retries of a Job: Kubernetes' default.
const BACKOFF_LIMIT: u32 = 6;

/// The template of a controller, and the place of its metadata.
type PlacedTemplate = (PodTemplate, FieldPath);

pub(in crate::check) fn controller(
    mut kind: ControllerKind,
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<CheckedResource> {
    fields.ignore(&["status"]);
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let mut pods = pods(kind, &meta, &mut spec);
    let (replicas, selector, strategy) = match &mut kind {
        ControllerKind::Deployment => deployment(&mut spec, pods.as_ref()),
        ControllerKind::StatefulSet => stateful_set(&mut spec, pods.as_ref()),
        ControllerKind::DaemonSet => daemon_set(&mut spec, pods.as_ref()),
        ControllerKind::Job { indexed } => job(&mut spec, indexed, pods.as_mut()),
    };
    spec.ignore(&["minReadySeconds", "revisionHistoryLimit"]);
    spec.finish();
    let one = Deployment {
        name: meta.name,
        source: meta.source,
        kind,
        replicas,
        selector,
        template: pods?.0,
        strategy,
    };
    Some(CheckedResource::Deployment(one.into()))
}

/// Reads `template`.
fn pods(kind: ControllerKind, meta: &Meta, spec: &mut Fields<'_>) -> Option<PlacedTemplate> {
    let report = spec.report();
    let pods = spec.mapping("template", |fields| {
        let at = fields.at().clone();
        let metadata = Metadata::read(fields);
        let keys = values::labels_and_annotations(&metadata, report);
        misplaced(kind, meta, report);
        let template = template(Some(kind), keys, fields, &at);
        (template, metadata.at.unwrap_or(at))
    });
    report.required(pods, spec.at(), "template")
}

fn deployment(spec: &mut Fields<'_>, pods: Option<&PlacedTemplate>) -> (u32, Labels, Strategy) {
    let replicas = replicas(spec, "replicas", 1);
    let selector = selector(spec, pods);
    let strategy = spec.mapping("strategy", strategy);
    spec.ignore(&["paused", "progressDeadlineSeconds"]);
    (replicas, selector, strategy.unwrap_or(Strategy::DEFAULT))
}

/// Pods under numbers that stay theirs.
fn stateful_set(spec: &mut Fields<'_>, pods: Option<&PlacedTemplate>) -> (u32, Labels, Strategy) {
    const ORDER: [(&str, bool); 2] = [("OrderedReady", true), ("Parallel", false)];
    let replicas = replicas(spec, "replicas", 1);
    let selector = selector(spec, pods);
    let kept_below = kept_below(spec, true);
    let in_order = spec.one_of("podManagementPolicy", &ORDER);
    let first = spec.mapping("ordinals", |ordinals| number(ordinals, "start", 0));
    // A Pod is found by its name below any headless Service that selects it.
    spec.ignore(&[
        "serviceName",
        "persistentVolumeClaimRetentionPolicy",
        "volumeClaimTemplates",
    ]);
    let numbering = PodNumbering {
        first: first.unwrap_or(0),
        kept_below,
        in_order: in_order.unwrap_or(true),
        in_turn: true,
        at_once: u32::MAX,
    };
    (replicas, selector, Strategy::Numbered(numbering))
}

/// One machine is one node: one Pod, which ends before its successor comes.
fn daemon_set(spec: &mut Fields<'_>, pods: Option<&PlacedTemplate>) -> (u32, Labels, Strategy) {
    let selector = selector(spec, pods);
    let numbering = PodNumbering {
        first: 0,
        kept_below: kept_below(spec, false),
        in_order: false,
        in_turn: true,
        at_once: u32::MAX,
    };
    (1, selector, Strategy::Numbered(numbering))
}

/// Pods that end: each completion is one, and is tried again until the limit.
fn job(
    spec: &mut Fields<'_>,
    indexed: &mut bool,
    pods: Option<&mut PlacedTemplate>,
) -> (u32, Labels, Strategy) {
    const MODES: [(&str, bool); 2] = [("NonIndexed", false), ("Indexed", true)];
    let at_once = replicas(spec, "parallelism", 1);
    let completions = replicas(spec, "completions", at_once);
    let limit = number(spec, "backoffLimit", BACKOFF_LIMIT);
    *indexed = spec.one_of("completionMode", &MODES).unwrap_or(false);
    let suspended = spec.flag("suspend");
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
    if let Some((template, _)) = pods {
        template.restart = Restart::Times(limit);
    }
    if suspended {
        let message = "the Job is suspended: none of its Pods runs";
        spec.report()
            .note(codes::NO_MEANING, spec.at(), message, "");
    }
    let numbering = PodNumbering {
        first: 0,
        kept_below: 0,
        in_order: false,
        in_turn: false,
        at_once,
    };
    let replicas = if suspended { 0 } else { completions };
    (replicas, Labels::default(), Strategy::Numbered(numbering))
}

fn replicas(fields: &mut Fields<'_>, name: &'static str, default: u32) -> u32 {
    let written = fields.integer(name);
    bounded(
        written,
        default,
        (MAX_REPLICAS, "replicas"),
        fields.report(),
    )
}

fn number(fields: &mut Fields<'_>, name: &'static str, default: u32) -> u32 {
    let written = fields.integer(name);
    bounded(written, default, AS_A_NUMBER, fields.report())
}

/// The limit of numbers that have no other.
const AS_A_NUMBER: (i64, &str) = (i32::MAX as i64, "as a number");

fn bounded(
    written: Option<SpannedValue<i64>>,
    default: u32,
    (most, what): (i64, &str),
    report: &Report,
) -> u32 {
    let Some(number) = written else {
        return default;
    };
    if !(0..=most).contains(&number.value) {
        let message = format!("{} {what} are not allowed", number.value);
        let help = format!("a number from 0 to {most}");
        report.error(codes::BAD_VALUE, &number.at, message, help);
    }
    u32::try_from(number.value).unwrap_or(default)
}

/// Reads `selector`, which must select the Pods of the template.
fn selector(spec: &mut Fields<'_>, pods: Option<&PlacedTemplate>) -> Labels {
    let report = spec.report();
    let selector = spec.mapping("selector", |selector| {
        let labels = values::labels(&selector.text_map("matchLabels"), report);
        selector.not_yet(&["matchExpressions"]);
        labels
    });
    let selector = report.required(selector, spec.at(), "selector");
    if let (Some(selector), Some((template, at))) = (&selector, pods)
        && (selector.is_empty() || !selector.selects(&template.labels))
    {
        let message = "the selector does not select the Pods of the template";
        let help = "give the template every label of spec.selector.matchLabels";
        report.error(codes::CONTRADICTION, at, message, help);
    }
    selector.unwrap_or_default()
}

/// Reads `updateStrategy`: Pods of lower numbers stay unchanged until they are deleted; with `OnDelete` all do.
fn kept_below(spec: &mut Fields<'_>, has_partition: bool) -> u32 {
    let kept = spec.mapping("updateStrategy", |fields| {
        let kinds = [("RollingUpdate", false), ("OnDelete", true)];
        let on_delete = fields.one_of("type", &kinds) == Some(true);
        let partition = fields.mapping("rollingUpdate", |rolling| {
            rolling.integer_or_text("maxSurge");
            rolling.integer_or_text("maxUnavailable");
            has_partition.then(|| rolling.integer("partition"))?
        });
        match on_delete {
            true => u32::MAX,
            false => bounded(partition.flatten(), 0, AS_A_NUMBER, fields.report()),
        }
    });
    kept.unwrap_or(0)
}

/// Reads `strategy` of a Deployment.
fn strategy(fields: &mut Fields<'_>) -> Strategy {
    let kinds = [("RollingUpdate", false), ("Recreate", true)];
    let recreate = fields.one_of("type", &kinds);
    let rolling = fields.mapping("rollingUpdate", |rolling| Strategy::RollingUpdate {
        surge: share(rolling, "maxSurge"),
        unavailable: share(rolling, "maxUnavailable"),
    });
    match recreate {
        Some(true) => Strategy::Recreate,
        Some(false) | None => rolling.unwrap_or(Strategy::DEFAULT),
    }
}

fn share(rolling: &mut Fields<'_>, name: &'static str) -> CountOrPercent {
    const DEFAULT: CountOrPercent = CountOrPercent::Percent(25);
    let Some(SpannedValue { value, at }) = rolling.integer_or_text(name) else {
        return DEFAULT;
    };
    let share = match value {
        IntegerOrText::Integer(count) => u32::try_from(count).ok().map(CountOrPercent::Count),
        IntegerOrText::Text(text) => {
            let number = text
                .strip_suffix('%')
                .and_then(|number| number.parse().ok());
            number.map(CountOrPercent::Percent)
        }
    };
    if share.is_none() {
        let message = "this is neither a number nor a percentage";
        let help = "a number such as 1, or a percentage such as 25%";
        rolling.report().error(codes::BAD_VALUE, &at, message, help);
    }
    share.unwrap_or(DEFAULT)
}

/// Reports sidecar settings on the controller itself, where no proxy reads them.
fn misplaced(kind: ControllerKind, meta: &Meta, report: &Report) {
    const OF_PODS: [&str; 3] = [
        "sidecar.istio.io/",
        "traffic.sidecar.istio.io/",
        "proxy.istio.io/",
    ];
    let all = meta.labels.iter().chain(meta.annotations.iter());
    for (key, _) in all.filter(|(key, _)| OF_PODS.iter().any(|prefix| key.starts_with(prefix))) {
        let message = format!("`{}` has effect on Pods, not on a {kind}", clip(key));
        let help = "write it under spec.template.metadata";
        report.warning(codes::MISPLACED, &meta.at, message, help);
    }
}
