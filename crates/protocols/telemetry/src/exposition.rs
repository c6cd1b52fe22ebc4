//! Merging the workers' shards and writing Prometheus' text format (version 0.0.4).

mod projection;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

pub use projection::{LabelChange, MetricShape, Projection};

use crate::histogram::Histogram;
use crate::labels::{GRPC, Labels};
use crate::shard::{Series, SeriesOutcome, Snapshot, TcpOutcome};

/// A metric of our own beside Istio's: one family, its samples by labels.
#[derive(Debug, Clone)]
pub struct MetricFamily {
    /// Metric name.
    pub name: &'static str,
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Label pairs and value.
    pub samples: Vec<(Vec<(&'static str, String)>, f64)>,
}

impl MetricFamily {
    /// A family with one sample and no labels.
    #[must_use]
    pub fn single(name: &'static str, kind: &'static str, help: &'static str, value: f64) -> Self {
        Self {
            name,
            kind,
            help,
            samples: vec![(Vec::new(), value)],
        }
    }
}

/// Merged figures of the workers.
#[derive(Debug, Default)]
pub struct Scrape {
    series: BTreeMap<Arc<Labels>, Series>,
    overflowed: u64,
    families: Vec<MetricFamily>,
    projection: Projection,
    expired: u64,
}

impl Scrape {
    /// Adds a worker's answer.
    pub fn add(&mut self, snapshot: Snapshot) {
        self.overflowed += snapshot.overflowed;
        self.expired += snapshot.expired;
        for series in snapshot.series {
            self.projection.adds_up |= !series.labels.values.is_empty();
            match self.series.get_mut(&series.labels) {
                None => {
                    self.series.insert(Arc::clone(&series.labels), series);
                }
                Some(mine) => merge(mine, &series),
            }
        }
    }

    /// Shows series in these shapes.
    pub fn project(&mut self, projection: Projection) {
        let adds_up = self.projection.adds_up;
        self.projection = projection;
        self.projection.adds_up = adds_up;
    }

    /// Adds a metric of our own.
    pub fn family(&mut self, family: MetricFamily) {
        self.families.push(family);
    }

    /// The page.
    #[must_use]
    pub fn render(&self) -> String {
        let mut page = String::with_capacity(16 * 1024);
        self.http(&mut page);
        self.opaque(&mut page);
        let build = vec![
            ("component", "proxy".to_owned()),
            ("tag", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        family(
            &mut page,
            &MetricFamily {
                name: "istio_build",
                kind: "gauge",
                help: "The running version.",
                samples: vec![(build, 1.0)],
            },
        );
        family(
            &mut page,
            &MetricFamily::single(
                "voile_metric_series_overflowed_total",
                "counter",
                "Connections and routes counted under the labels `other`, because the limit of series is reached.",
                self.overflowed as f64,
            ),
        );
        family(
            &mut page,
            &MetricFamily::single(
                "voile_metric_series_expired_total",
                "counter",
                "Series dropped because nothing was counted in them for half an hour.",
                self.expired as f64,
            ),
        );
        for own in &self.families {
            family(&mut page, own);
        }
        page
    }

    fn http(&self, page: &mut String) {
        self.requests(page);
        self.histogram(
            page,
            "istio_request_duration_milliseconds",
            "Duration of requests.",
            |o| &o.duration,
        );
        self.histogram(
            page,
            "istio_request_bytes",
            "Size of requests, head included.",
            |o| &o.request_bytes,
        );
        self.histogram(
            page,
            "istio_response_bytes",
            "Size of responses, head included.",
            |o| &o.response_bytes,
        );
        self.messages(
            page,
            "istio_request_messages_total",
            "Messages from clients of gRPC calls.",
            |messages| messages.0,
        );
        self.messages(
            page,
            "istio_response_messages_total",
            "Messages to clients of gRPC calls.",
            |messages| messages.1,
        );
    }

    fn opaque(&self, page: &mut String) {
        self.tcp(
            page,
            "istio_tcp_sent_bytes_total",
            "Bytes sent to clients of opaque connections.",
            |o| o.sent,
        );
        self.tcp(
            page,
            "istio_tcp_received_bytes_total",
            "Bytes received from clients of opaque connections.",
            |o| o.received,
        );
        self.tcp(
            page,
            "istio_tcp_connections_opened_total",
            "Opaque connections opened.",
            |o| o.opened,
        );
        self.tcp(
            page,
            "istio_tcp_connections_closed_total",
            "Opaque connections closed.",
            |o| o.closed,
        );
    }

    fn requests(&self, page: &mut String) {
        let name = "istio_requests_total";
        let mut headed = false;
        for (labels, outcome) in self.projection.outcomes(name, self.outcomes()) {
            let help = "Requests by how they ended.";
            head_once(page, &mut headed, name, "counter", help);
            let _ = writeln!(page, "{name}{{{labels}}} {}", outcome.count);
        }
    }

    fn histogram(
        &self,
        page: &mut String,
        name: &'static str,
        help: &str,
        of: impl Fn(&SeriesOutcome) -> &Histogram,
    ) {
        let mut headed = false;
        for (labels, outcome) in self.projection.outcomes(name, self.outcomes()) {
            head_once(page, &mut headed, name, "histogram", help);
            let histogram = of(&outcome);
            for (bound, count) in histogram.cumulative() {
                let _ = writeln!(page, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
            }
            let count = histogram.count();
            let _ = writeln!(page, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(page, "{name}_sum{{{labels}}} {}", histogram.sum());
            let _ = writeln!(page, "{name}_count{{{labels}}} {count}");
        }
    }

    fn messages(
        &self,
        page: &mut String,
        name: &'static str,
        help: &str,
        of: impl Fn((u64, u64)) -> u64,
    ) {
        let mut headed = false;
        let calls = |(series, _): &(&Series, &SeriesOutcome)| series.labels.protocol == GRPC;
        let calls = self.outcomes().filter(calls);
        for (labels, outcome) in self.projection.outcomes(name, calls) {
            head_once(page, &mut headed, name, "counter", help);
            let _ = writeln!(page, "{name}{{{labels}}} {}", of(outcome.messages));
        }
    }

    fn tcp(
        &self,
        page: &mut String,
        name: &'static str,
        help: &str,
        of: impl Fn(&TcpOutcome) -> u64,
    ) {
        let mut headed = false;
        let all = self
            .series
            .values()
            .flat_map(|series| series.tcp.iter().map(move |outcome| (series, outcome)));
        for (labels, value) in self.projection.connections(name, all, of) {
            head_once(page, &mut headed, name, "counter", help);
            let _ = writeln!(page, "{name}{{{labels}}} {value}");
        }
    }

    fn outcomes(&self) -> impl Iterator<Item = (&Series, &SeriesOutcome)> {
        self.series
            .values()
            .flat_map(|series| series.http.iter().map(move |outcome| (series, outcome)))
    }
}

fn merge(mine: &mut Series, theirs: &Series) {
    for outcome in &theirs.http {
        match mine.http.iter_mut().find(|own| own.is_like(outcome)) {
            None => mine.http.push(outcome.clone()),
            Some(own) => own.add(outcome),
        }
    }
    for outcome in &theirs.tcp {
        match mine.tcp.iter_mut().find(|own| own.flags == outcome.flags) {
            None => mine.tcp.push(outcome.clone()),
            Some(own) => {
                own.opened += outcome.opened;
                own.closed += outcome.closed;
                own.sent += outcome.sent;
                own.received += outcome.received;
            }
        }
    }
}

fn outcome_labels<'a>(
    labels: &'a Labels,
    outcome: &SeriesOutcome,
) -> Vec<(&'static str, Cow<'a, str>)> {
    let status = outcome.grpc_status.map(|status| status.to_string());
    let own = [
        ("response_code", Cow::Owned(outcome.code.to_string())),
        (
            "grpc_response_status",
            Cow::Owned(status.unwrap_or_default()),
        ),
        ("response_flags", Cow::Borrowed(outcome.flags)),
    ];
    let common = labels.pairs().into_iter();
    common
        .map(|(name, value)| (name, Cow::Borrowed(value)))
        .chain(own)
        .collect()
}

fn label_text<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::with_capacity(768);
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        escape_label(&mut text, value);
        text.push('"');
    }
    text
}

/// Appends a label's value as the format wants it: backslash, quote and line feed escaped.
pub fn escape_label(text: &mut String, value: &str) {
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

fn head_once(page: &mut String, done: &mut bool, name: &str, kind: &str, help: &str) {
    if !std::mem::replace(done, true) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }
}

fn family(page: &mut String, family: &MetricFamily) {
    let mut headed = false;
    for (labels, value) in &family.samples {
        head_once(page, &mut headed, family.name, family.kind, family.help);
        let labels = label_text(labels.iter().map(|(name, value)| (*name, value.as_str())));
        let _ = match labels.as_str() {
            "" => writeln!(page, "{} {value}", family.name),
            labels => writeln!(page, "{}{{{labels}}} {value}", family.name),
        };
    }
}

/// The same page in OpenMetrics' words: counters' families are named without `_total`, `untyped` is `unknown`, and the page says that
/// it is whole.
#[must_use]
pub fn open_metrics(page: &str) -> String {
    let mut out = String::with_capacity(page.len() + 16);
    for line in page.lines() {
        let head = line.strip_prefix("# HELP ").map(|rest| ("# HELP ", rest));
        let head = head.or_else(|| line.strip_prefix("# TYPE ").map(|rest| ("# TYPE ", rest)));
        match head.and_then(|(word, rest)| Some((word, rest.split_once(' ')?))) {
            Some((word, (name, rest))) => {
                let name = name.strip_suffix("_total").unwrap_or(name);
                let rest = match (word, rest) {
                    ("# TYPE ", "untyped") => "unknown",
                    (_, rest) => rest,
                };
                let _ = writeln!(out, "{word}{name} {rest}");
            }
            None => {
                let _ = writeln!(out, "{line}");
            }
        }
    }
    out.push_str("# EOF\n");
    out
}
