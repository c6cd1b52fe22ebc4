//! A definition as its author wrote it, before anything is checked; and complaints with file, line and column.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use voile_report::claims::CellSelector;
use voile_report::record::ValueKind;

use super::suggestions::meant;
use crate::definition::error::DefinitionError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    pub(super) name: Spanned<String>,
    #[serde(default)]
    pub(super) title: String,
    pub(super) rounds: Spanned<u32>,
    pub(super) slice: Spanned<String>,
    pub(super) warmup: Spanned<String>,
    #[serde(default)]
    pub(super) seed: u64,
    pub(super) load: WrittenLoad,
    pub(super) proxy: WrittenProxy,
    #[serde(default)]
    pub(super) validity: WrittenValidity,
    pub(super) control: Option<Spanned<WrittenControl>>,
    pub(super) cells: Vec<WrittenCells>,
    #[serde(default)]
    pub(super) variants: Vec<WrittenVariant>,
    #[serde(default)]
    pub(super) targets: Vec<WrittenTarget>,
    #[serde(default)]
    pub(super) events: Vec<WrittenEvent>,
    #[serde(default)]
    pub(super) hooks: BTreeMap<Spanned<String>, Spanned<WrittenHook>>,
    pub(super) isolation: Option<Spanned<String>>,
    /// CPU sets by name: of each role the cores.
    #[serde(default)]
    pub(super) cpus: BTreeMap<Spanned<String>, BTreeMap<Spanned<String>, Spanned<String>>>,
    pub(super) limits: Option<Spanned<WrittenLimits>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenEvent {
    pub(super) at: Spanned<String>,
    pub(super) action: Spanned<String>,
    pub(super) command: Option<Vec<String>>,
    pub(super) count: Option<Spanned<u32>>,
    pub(super) slow_factor: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenHook {
    pub(super) before: Option<Spanned<Vec<String>>>,
    pub(super) after: Option<Spanned<Vec<String>>>,
    pub(super) bound: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenLimits {
    pub(super) cpu: Option<Spanned<f64>>,
    pub(super) memory: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenLoad {
    pub(super) rate: Spanned<u32>,
    pub(super) connections: Spanned<u32>,
    pub(super) size: Spanned<u64>,
    pub(super) protocol: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenProxy {
    pub(super) workers: Spanned<u32>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenValidity {
    pub(super) max_lateness: Option<Spanned<String>>,
    pub(super) max_rate_error: Option<Spanned<f64>>,
    pub(super) max_error_share: Option<Spanned<f64>>,
    pub(super) max_drift: Option<Spanned<f64>>,
    pub(super) max_machine_busy: Option<Spanned<f64>>,
    pub(super) max_generator_busy: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenControl {
    pub(super) contestant: String,
    pub(super) mode: String,
    #[serde(default)]
    pub(super) tls: bool,
    #[serde(default = "uniform_word")]
    pub(super) arrival: String,
    pub(super) kind: Option<ValueKind>,
    pub(super) protocol: Option<String>,
    pub(super) rate: Option<u32>,
    pub(super) connections: Option<u32>,
}

fn uniform_word() -> String {
    "uniform".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenCells {
    pub(super) contestants: Vec<Spanned<String>>,
    pub(super) modes: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) tls: OneOrBoth,
    pub(super) features: Option<Vec<Spanned<String>>>,
    pub(super) arrivals: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    pub(super) kind: ValueKind,
    pub(super) protocol: Option<Spanned<String>>,
    pub(super) protocols: Option<Vec<Spanned<String>>>,
    pub(super) rates: Option<Vec<Spanned<u32>>>,
    pub(super) connections: Option<Vec<Spanned<u32>>>,
    pub(super) request_sizes: Option<Vec<Spanned<u64>>>,
    pub(super) response_sizes: Option<Vec<Spanned<u64>>>,
    pub(super) workers: Option<Vec<Spanned<u32>>>,
    pub(super) cpus: Option<Vec<Spanned<String>>>,
    pub(super) hooks: Option<Vec<Spanned<String>>>,
    pub(super) services: Option<Vec<Spanned<u32>>>,
    pub(super) policies: Option<Vec<Spanned<u32>>>,
    pub(super) path_policies: Option<Vec<Spanned<u32>>>,
    pub(super) source_ip_policies: Option<Vec<Spanned<u32>>>,
    pub(super) rules: Option<Vec<Spanned<u32>>>,
    pub(super) principals: Option<Vec<Spanned<u32>>>,
    pub(super) namespaces: Option<Vec<Spanned<u32>>>,
    pub(super) paths: Option<Vec<Spanned<u32>>>,
    pub(super) source_ips: Option<Vec<Spanned<u32>>>,
    pub(super) request_principals: Option<Vec<Spanned<u32>>>,
    pub(super) issuers: Option<Vec<Spanned<u32>>>,
    pub(super) peer_authentications: Option<Vec<Spanned<u32>>>,
    pub(super) routes: Option<Vec<Spanned<u32>>>,
    pub(super) prefix_routes: Option<Vec<Spanned<u32>>>,
    pub(super) header_routes: Option<Vec<Spanned<u32>>>,
    pub(super) hits: Option<Vec<Spanned<String>>>,
    pub(super) endpoints: Option<Vec<Spanned<u32>>>,
    pub(super) verdicts: Option<Vec<Spanned<String>>>,
    pub(super) tokens: Option<Vec<Spanned<String>>>,
    pub(super) starts: Option<Vec<Spanned<String>>>,
}

impl WrittenCells {
    /// Numbers of a kind of configuration, if the group sets them.
    pub(super) fn numbers(&self, kind: &str) -> Option<&Vec<Spanned<u32>>> {
        let numbers = match kind {
            "services" => &self.services,
            "policies" => &self.policies,
            "path_policies" => &self.path_policies,
            "source_ip_policies" => &self.source_ip_policies,
            "rules" => &self.rules,
            "principals" => &self.principals,
            "namespaces" => &self.namespaces,
            "paths" => &self.paths,
            "source_ips" => &self.source_ips,
            "request_principals" => &self.request_principals,
            "issuers" => &self.issuers,
            "peer_authentications" => &self.peer_authentications,
            "routes" => &self.routes,
            "prefix_routes" => &self.prefix_routes,
            "header_routes" => &self.header_routes,
            "endpoints" => &self.endpoints,
            _ => &None,
        };
        numbers.as_ref()
    }
}

/// `true`, `false`, or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrBoth {
    One(bool),
    Several(Vec<bool>),
}

impl Default for OneOrBoth {
    fn default() -> Self {
        Self::One(false)
    }
}

impl OneOrBoth {
    pub(super) fn all(&self) -> Vec<bool> {
        match self {
            Self::One(one) => vec![*one],
            Self::Several(several) => several.clone(),
        }
    }
}

/// A page of a sidecar that somebody watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchedPage {
    /// The metrics, every two seconds, as `voile dashboard` and `voile edges` read them.
    Figures,
    /// Requests as they end, as `voile tap` shows them.
    Requests,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenVariant {
    pub(super) name: Spanned<String>,
    #[serde(default)]
    pub(super) title: String,
    pub(super) of: Spanned<String>,
    #[serde(default)]
    pub(super) arguments: Vec<String>,
    #[serde(default)]
    pub(super) replace: Vec<Replace>,
    #[serde(default)]
    pub(super) append: String,
    #[serde(default = "yes")]
    pub(super) counts: bool,
    pub(super) watched: Option<WatchedPage>,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replace {
    pub(super) from: String,
    pub(super) to: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenTarget {
    pub(super) row: Spanned<String>,
    pub(super) figures: Vec<String>,
    pub(super) contestant: Option<String>,
    pub(super) mode: Option<String>,
    pub(super) tls: Option<bool>,
    pub(super) kind: Option<ValueKind>,
    pub(super) protocol: Option<String>,
    pub(super) arrival: Option<String>,
    pub(super) rate: Option<u32>,
    pub(super) connections: Option<u32>,
    pub(super) at_most: Option<f64>,
    pub(super) at_least: Option<f64>,
    #[serde(default)]
    pub(super) of: Vec<String>,
    pub(super) minus: Option<String>,
    pub(super) generated: Option<BTreeMap<String, u32>>,
    pub(super) verdict: Option<String>,
    pub(super) hit: Option<String>,
    pub(super) token: Option<String>,
    pub(super) ratio_to: Option<WrittenWhere>,
    pub(super) more_than: Option<WrittenWhere>,
    #[serde(default)]
    pub(super) within_noise: bool,
    #[serde(default)]
    pub(super) beside: Vec<String>,
}

/// Properties in which the compared cell differs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenWhere {
    contestant: Option<String>,
    mode: Option<String>,
    tls: Option<bool>,
    protocol: Option<String>,
    rate: Option<u32>,
    connections: Option<u32>,
    generated: Option<BTreeMap<String, u32>>,
    verdict: Option<String>,
    hit: Option<String>,
    token: Option<String>,
    start: Option<String>,
}

impl From<WrittenWhere> for CellSelector {
    fn from(written: WrittenWhere) -> Self {
        Self {
            contestant: written.contestant,
            mode: written.mode,
            tls: written.tls,
            protocol: written.protocol,
            rate: written.rate,
            connections: written.connections,
            generated: written.generated,
            verdict: written.verdict,
            hit: written.hit,
            token: written.token,
            start: written.start,
        }
    }
}

/// The file of a definition, for the position in error messages.
pub(super) struct ComplaintLocation<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl ComplaintLocation<'_> {
    pub(super) fn error(&self, span: Range<usize>, what: impl Into<String>) -> DefinitionError {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        DefinitionError {
            file: self.file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            what: what.into(),
        }
    }

    pub(super) fn number<T: PartialOrd + Copy + fmt::Display>(
        &self,
        field: &str,
        value: &Spanned<T>,
        range: RangeInclusive<T>,
    ) -> Result<T, DefinitionError> {
        let number = *value.get_ref();
        if range.contains(&number) {
            return Ok(number);
        }
        let (low, high) = (range.start(), range.end());
        Err(self.error(
            value.span(),
            format!("{field} is {number}; it must lie between {low} and {high}"),
        ))
    }

    pub(super) fn duration(
        &self,
        field: &str,
        value: &Spanned<String>,
        range: RangeInclusive<Duration>,
    ) -> Result<Duration, DefinitionError> {
        let fail = |why: String| self.error(value.span(), format!("{field}: {why}"));
        let duration =
            voile_load::parse_duration(value.get_ref()).map_err(|e| fail(e.to_string()))?;
        if range.contains(&duration) {
            return Ok(duration);
        }
        Err(fail(format!(
            "{duration:?} must lie between {:?} and {:?}",
            range.start(),
            range.end()
        )))
    }

    pub(super) fn word(
        &self,
        field: &str,
        value: &Spanned<String>,
        known: &[&str],
    ) -> Result<String, DefinitionError> {
        let word = value.get_ref();
        if known.contains(&word.as_str()) {
            return Ok(word.clone());
        }
        Err(self.error(
            value.span(),
            format!(
                "{field} \"{word}\" is unknown; known: {}{}",
                known.join(", "),
                meant(word, known.iter().copied())
            ),
        ))
    }
}
