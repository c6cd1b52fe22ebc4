//! Checks of controllers of Pods: Deployments, StatefulSets, DaemonSets and Jobs.

use crate::check::pod::template;
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{Fields, IntegerOrText, Report, SpannedValue};
use crate::mesh::{
    ControllerKind, CountOrPercent, Deployment, PodNumbering, PodTemplate, Restart, Strategy,
};
use crate::names::Labels;
use crate::text::clip;
use crate::written::controller as written;

/// Most Pods of one controller on one machine: each is processes and an address.
const MAX_REPLICAS: i64 = 10_000;
/// Default number of retries of a Job: Kubernetes' default.
const BACKOFF_LIMIT: u32 = 6;

pub(in crate::check) fn deployment(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<Deployment> {
    let read = written::Controller::read_deployment(fields);
    let written = report.required(read, &meta.at, "spec")?;
    let replicas = replicas(written.replicas.as_ref(), 1, report);
    let (selector, template) = lasting(ControllerKind::Deployment, &meta, &written, report)?;
    let strategy = match &written.strategy {
        None => Strategy::DEFAULT,
        Some(written) => strategy(written, report)?,
    };
    Some(Deployment {
        name: meta.name,
        source: meta.source,
        kind: ControllerKind::Deployment,
        replicas: replicas?,
        selector,
        template,
        strategy,
    })
}

/// Pods under numbers that stay theirs.
pub(in crate::check) fn stateful_set(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<Deployment> {
    const ORDER: [(&str, bool); 2] = [("OrderedReady", true), ("Parallel", false)];
    let read = written::Controller::read_stateful_set(fields);
    let written = report.required(read, &meta.at, "spec")?;
    let replicas = replicas(written.replicas.as_ref(), 1, report);
    let first = number(written.first.as_ref(), 0, report);
    let (selector, template) = lasting(ControllerKind::StatefulSet, &meta, &written, report)?;
    let in_order = written.pod_management.as_ref();
    let in_order = in_order.map_or(Some(true), |text| report.one_of(text, &ORDER));
    let kept_below = match on_delete(written.strategy.as_ref(), report)? {
        true => Some(u32::MAX),
        false => {
            let partition = written
                .strategy
                .as_ref()
                .and_then(|one| one.partition.as_ref());
            number(partition, 0, report)
        }
    };
    Some(Deployment {
        name: meta.name,
        source: meta.source,
        kind: ControllerKind::StatefulSet,
        replicas: replicas?,
        selector,
        template,
        strategy: Strategy::Numbered(PodNumbering {
            first: first?,
            kept_below: kept_below?,
            in_order: in_order?,
            in_turn: true,
            at_once: u32::MAX,
        }),
    })
}

/// One machine is one node: one Pod, which ends before its successor comes.
pub(in crate::check) fn daemon_set(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<Deployment> {
    let read = written::Controller::read_daemon_set(fields);
    let written = report.required(read, &meta.at, "spec")?;
    let (selector, template) = lasting(ControllerKind::DaemonSet, &meta, &written, report)?;
    let on_delete = on_delete(written.strategy.as_ref(), report)?;
    Some(Deployment {
        name: meta.name,
        source: meta.source,
        kind: ControllerKind::DaemonSet,
        replicas: 1,
        selector,
        template,
        strategy: Strategy::Numbered(PodNumbering {
            first: 0,
            kept_below: if on_delete { u32::MAX } else { 0 },
            in_order: false,
            in_turn: true,
            at_once: u32::MAX,
        }),
    })
}

/// Pods that end: each completion is one, and is tried again until the limit.
pub(in crate::check) fn job(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<Deployment> {
    const MODES: [(&str, bool); 2] = [("NonIndexed", false), ("Indexed", true)];
    let read = written::Controller::read_job(fields);
    let written = report.required(read, &meta.at, "spec")?;
    let job = &written.job;
    let parallelism = replicas(job.parallelism.as_ref(), 1, report);
    let completions = match &job.completions {
        None => parallelism,
        some => replicas(some.as_ref(), 1, report),
    };
    let limit = number(job.backoff_limit.as_ref(), BACKOFF_LIMIT, report);
    let mode = job.completion_mode.as_ref();
    let indexed = mode.map_or(Some(false), |text| report.one_of(text, &MODES));
    let pods = report.required(written.template.as_ref(), &written.at, "template")?;
    let (labels, annotations) = values::labels_and_annotations(&pods.metadata, report);
    let indexed = indexed?;
    let kind = ControllerKind::Job { indexed };
    misplaced(kind, &meta, report);
    let mut template = template(labels, annotations, &pods.spec, &pods.at, report)?;
    if template.restart == Restart::Always {
        let policy = pods.spec.restart_policy.as_ref();
        let at = policy.map_or(&pods.at, |text| &text.at);
        let message = "a Job's Pods cannot have restartPolicy Always, which is the default";
        report.error(codes::BAD_VALUE, at, message, "OnFailure or Never");
        return None;
    }
    template.restart = Restart::Times(limit?);
    let suspended = job.suspended;
    if suspended {
        let message = "the Job is suspended: none of its Pods runs";
        report.note(codes::NO_MEANING, &written.at, message, "");
    }
    Some(Deployment {
        name: meta.name,
        source: meta.source,
        kind,
        replicas: if suspended { 0 } else { completions? },
        selector: Labels::default(),
        template,
        strategy: Strategy::Numbered(PodNumbering {
            first: 0,
            kept_below: 0,
            in_order: false,
            in_turn: false,
            at_once: parallelism?,
        }),
    })
}

fn replicas(written: Option<&SpannedValue<i64>>, default: u32, report: &Report) -> Option<u32> {
    bounded(written, default, MAX_REPLICAS, "replicas", report)
}

fn number(written: Option<&SpannedValue<i64>>, default: u32, report: &Report) -> Option<u32> {
    bounded(written, default, i64::from(i32::MAX), "as a number", report)
}

fn bounded(
    written: Option<&SpannedValue<i64>>,
    default: u32,
    most: i64,
    what: &str,
    report: &Report,
) -> Option<u32> {
    let Some(number) = written else {
        return Some(default);
    };
    let valid = (0..=most).contains(&number.value);
    if !valid {
        let message = format!("{} {what} are not allowed", number.value);
        let help = format!("a number from 0 to {most}");
        report.error(codes::BAD_VALUE, &number.at, message, help);
    }
    u32::try_from(number.value).ok().filter(|_| valid)
}

/// The selector and the template of a controller whose Pods run forever.
fn lasting(
    kind: ControllerKind,
    meta: &Meta,
    written: &written::Controller,
    report: &Report,
) -> Option<(Labels, PodTemplate)> {
    let selector = report
        .required(written.selector.as_ref(), &written.at, "selector")
        .map(|labels| values::labels(labels, report));
    let pods = report.required(written.template.as_ref(), &written.at, "template")?;
    let (labels, annotations) = values::labels_and_annotations(&pods.metadata, report);
    misplaced(kind, meta, report);
    let selector = selector?;
    if selector.is_empty() || !selector.selects(&labels) {
        let at = pods.metadata.at.as_ref().unwrap_or(&pods.at);
        let message = "the selector does not select the Pods of the template";
        report.error(
            codes::CONTRADICTION,
            at,
            message,
            "give the template every label of spec.selector.matchLabels",
        );
    }
    let template = template(labels, annotations, &pods.spec, &pods.at, report)?;
    if let (Some(text), true) = (
        &pods.spec.restart_policy,
        template.restart != Restart::Always,
    ) {
        report.error(
            codes::BAD_VALUE,
            &text.at,
            format!("a {kind}'s Pods cannot have restartPolicy {}", text.value),
            "Always; a Pod or a Job may have the others",
        );
        return None;
    }
    Some((selector, template))
}

/// Returns true if Pods stay unchanged until they are deleted (`OnDelete`).
fn on_delete(written: Option<&written::Strategy>, report: &Report) -> Option<bool> {
    let kinds = [("RollingUpdate", false), ("OnDelete", true)];
    let kind = written.and_then(|one| one.kind.as_ref());
    kind.map_or(Some(false), |text| report.one_of(text, &kinds))
}

/// A word that is not understood is reported, and nothing is guessed in its place.
fn strategy(written: &written::Strategy, report: &Report) -> Option<Strategy> {
    let share = |value: &Option<SpannedValue<IntegerOrText>>| match value {
        None => Some(CountOrPercent::Percent(25)),
        Some(spanned) => {
            let share = match &spanned.value {
                IntegerOrText::Integer(count) => {
                    u32::try_from(*count).ok().map(CountOrPercent::Count)
                }
                IntegerOrText::Text(text) => text
                    .strip_suffix('%')
                    .and_then(|number| number.parse().ok())
                    .map(CountOrPercent::Percent),
            };
            if share.is_none() {
                report.error(
                    codes::BAD_VALUE,
                    &spanned.at,
                    "this is neither a number nor a percentage",
                    "a number such as 1, or a percentage such as 25%",
                );
            }
            share
        }
    };
    let kinds = [("RollingUpdate", false), ("Recreate", true)];
    let kind = written.kind.as_ref();
    let recreate = kind.map_or(Some(false), |text| report.one_of(text, &kinds));
    let (surge, unavailable) = (share(&written.max_surge), share(&written.max_unavailable));
    Some(match recreate? {
        true => Strategy::Recreate,
        false => Strategy::RollingUpdate {
            surge: surge?,
            unavailable: unavailable?,
        },
    })
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
