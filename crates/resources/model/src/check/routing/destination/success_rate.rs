//! Outlier detection by success rates. Istio's DestinationRule has no field for it, so it is asked for by annotations of ours, with
//! Envoy's names; they hold for every `outlierDetection` of their rule.

use std::iter::once;

use crate::codes;
use crate::decode::{FieldPath, Report, Text, TextMap};
use crate::mesh::DestinationRule;
use crate::mesh::traffic::SuccessRate;
use crate::text::{clip, suggest};

/// Prefix of Voile's annotations.
const PREFIX: &str = "voile.dev/";
const MINIMUM_HOSTS: &str = "success_rate_minimum_hosts";
const REQUEST_VOLUME: &str = "success_rate_request_volume";
const STDEV_FACTOR: &str = "success_rate_stdev_factor";
const ENFORCING: &str = "enforcing_success_rate";
/// Annotations of Voile with a meaning on any resource.
const ANYWHERE: [&str; 2] = ["generated-from", "ignore"];

/// The success rate settings in a rule's annotations and the location of the first; `None` without such annotations.
pub(super) fn read(annotations: &TextMap, report: &Report) -> Option<(SuccessRate, FieldPath)> {
    let mut rate = SuccessRate::default();
    let mut first = None;
    for (key, value) in annotations {
        let Some(name) = key.value.strip_prefix(PREFIX) else {
            continue;
        };
        let (number, least, most) = match name {
            MINIMUM_HOSTS => (&mut rate.minimum_hosts, 1, u32::MAX),
            REQUEST_VOLUME => (&mut rate.request_volume, 1, u32::MAX),
            STDEV_FACTOR => (&mut rate.stdev_factor, 0, u32::MAX),
            ENFORCING => (&mut rate.enforcing_percent, 0, 100),
            _ if ANYWHERE.contains(&name) => continue,
            _ => {
                unknown(key, name, report);
                continue;
            }
        };
        first.get_or_insert_with(|| key.at.clone());
        let parse = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            let number: Option<u32> = text.parse().ok().filter(|_| digits);
            number.filter(|number| (least..=most).contains(number))
        };
        let help = format!("a whole number from {least} to {most}, in quotes");
        if let Some(said) = report.parsed(value, name, parse, &help) {
            *number = said;
        }
    }
    first.map(|at| (rate, at))
}

/// One that would say something if it were spelt otherwise.
fn unknown(key: &Text, name: &str, report: &Report) {
    const KNOWN: [&str; 4] = [MINIMUM_HOSTS, REQUEST_VOLUME, STDEV_FACTOR, ENFORCING];
    let message = format!("unknown annotation `{}`", clip(&key.value));
    let help = suggest(name, KNOWN);
    report.error(codes::UNKNOWN_FIELD, &key.at, message, help);
}

/// Applies the comparison to every outlier detection of a rule.
pub(super) fn compare(
    rule: &mut DestinationRule,
    rate: SuccessRate,
    at: &FieldPath,
    report: &Report,
) {
    let parts = rule.subsets.values_mut().map(|part| &mut part.policy);
    let policies = once(&mut rule.policy).chain(parts);
    let levels =
        policies.flat_map(|policy| once(&mut policy.whole).chain(policy.ports.values_mut()));
    let mut all = levels
        .filter_map(|level| level.outliers.as_mut())
        .peekable();
    if all.peek().is_none() {
        let message = "success rate ejection has no effect without `outlierDetection`";
        let help =
            "add `outlierDetection: {}`: its `interval` sets when success rates are compared";
        report.error(codes::CONTRADICTION, at, message, help);
    }
    all.for_each(|outliers| outliers.success_rate = Some(rate));
}
