//! The generator as a process: its command line, and its answer in JSON.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use voile_host::child::{Output, Spec, SupervisedChild};
use voile_report::record::{Latency, ValueKind};

use crate::contestants::contestant::CellRoute;
use crate::definition::{Asks, RefusalKind, carried};
use crate::plan::fresh_tokens;
use crate::shared_processes::Lab;

/// Interval at which the lab checks if the user asked to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Samples of a half that make its median worth comparing for drift.
const DRIFT_SAMPLES: u64 = 50;
/// The sink of `voile echo` answers each time it has taken so many bytes, with so many.
const SINK_BYTES: usize = 256 << 10;
const SINK_ANSWER_BYTES: usize = 8;
/// The method of the echo server that gRPC cells call: it sends the message back.
const GRPC_METHOD: &str = "/voile.echo.v1.Echo/Unary";
/// The header that carries tokens.
const AUTHORIZATION: &str = "authorization";

/// Load that the generator must produce.
#[derive(Debug, Clone)]
pub(crate) struct GeneratorRequest {
    pub(crate) kind: ValueKind,
    pub(crate) protocol: String,
    pub(crate) rate: u32,
    pub(crate) connections: u32,
    pub(crate) size: u64,
    /// Bytes of each request's body, where requests have one of their own.
    pub(crate) request_bytes: Option<u64>,
    pub(crate) arrival: String,
    pub(crate) duration: Duration,
    pub(crate) warmup: Duration,
    pub(crate) seed: u64,
    /// A word in the request by which a capture recognises ours.
    pub(crate) marker: Option<String>,
    /// True if the generator also counts in short intervals.
    pub(crate) intervals: bool,
    /// Every request is to be refused so: an answer that lets one through is the mistake.
    pub(crate) refused: Option<RefusalKind>,
    /// Tokens of the requests; empty is none.
    pub(crate) token: String,
    /// Path and expected status of the requests.
    pub(crate) asks: Asks,
    /// The server takes bytes and answers only every [`SINK_BYTES`]; a request of a proof is as long.
    pub(crate) sink: bool,
}

/// The generator's JSON, as far as the lab needs it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Generated {
    pub(crate) valid: bool,
    pub(crate) invalid_reasons: Vec<String>,
    pub(crate) start_unix_ns: u64,
    pub(crate) start_time: String,
    pub(crate) duration_s: f64,
    pub(crate) achieved_rps: f64,
    pub(crate) scheduled: u64,
    pub(crate) sent: u64,
    pub(crate) ok: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) errors_total: u64,
    pub(crate) latency_us: Percentiles,
    pub(crate) service_us: Percentiles,
    pub(crate) lateness_us: Lateness,
    pub(crate) halves_us: Vec<Percentiles>,
    pub(crate) latency_histogram: String,
    pub(crate) interrupted: bool,
    pub(crate) options: GeneratorOptions,
    pub(crate) interval_ms: u64,
    pub(crate) intervals: Vec<CountedInterval>,
    /// Throughput of a bulk run.
    pub(crate) gbit_per_s: Option<f64>,
    /// Median of one half over that of the other, the larger way round.
    #[serde(skip)]
    pub(crate) drift: Option<f64>,
}

/// Options of the generator, as it reports them.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct GeneratorOptions {
    pub(crate) threads: u32,
}

/// Counts of the generator in a short interval.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CountedInterval {
    pub(crate) t_ms: u64,
    pub(crate) errors: u64,
    pub(crate) failed: u64,
    pub(crate) histogram: String,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
    mean: f64,
    count: u64,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Lateness {
    pub(crate) p99: u64,
}

impl From<Percentiles> for Latency {
    fn from(p: Percentiles) -> Self {
        let some = |value| (p.count > 0).then_some(value);
        Self {
            p50: some(p.p50),
            p90: some(p.p90),
            p99: some(p.p99),
            p999: some(p.p999),
            max: some(p.max),
            mean: some(p.mean),
            count: p.count,
        }
        .trimmed()
    }
}

/// Reason why a slice returned no figures at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BrokenSlice {
    /// The user asked to end.
    Stopped,
    /// The generator failed; in words.
    Failed(String),
}

impl GeneratorRequest {
    /// Target of the requests, and the options that shape them.
    fn request(&self, lab: &Lab<'_>, route: &CellRoute) -> Result<Vec<String>, String> {
        let entry = route.entry;
        let path = self.asks.path();
        let size = self.size.to_string();
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        // A body that a capture can recognise, or one of the size asked for.
        let body = match &self.marker {
            Some(marker) => vec!["--data".to_owned(), marker.clone()],
            None => words(&["--payload-size", &size]),
        };
        let mut arguments = match (self.protocol.as_str(), self.kind) {
            ("tcp", ValueKind::Bulk) => {
                words(&[&format!("tcp://{entry}"), "--protocol", "tcp-bulk"])
            }
            ("tcp", _) if self.sink => {
                let mut body = self.marker.clone().unwrap_or_default().into_bytes();
                body.resize(SINK_BYTES, b'.');
                let path = lab.folder.join("load.body");
                std::fs::write(&path, body)
                    .map_err(|e| format!("writing {}: {e}", path.display()))?;
                let (data, answer) = (
                    format!("@{}", path.display()),
                    SINK_ANSWER_BYTES.to_string(),
                );
                let entry = format!("tcp://{entry}");
                words(&[&entry, "--data", &data, "--expect-size", &answer])
            }
            ("tcp", _) => [words(&[&format!("tcp://{entry}")]), body].concat(),
            ("grpc", _) => {
                let mut all = words(&[&format!("grpc://{entry}{GRPC_METHOD}")]);
                if let Some(refusal) = self.refused {
                    let [_, status] = refusal.statuses();
                    all.extend(words(&["--expect-status", status]));
                }
                [all, body].concat()
            }
            ("http2", _) => {
                let mut all = words(&[&format!("h2c://{entry}{path}?size={size}")]);
                all.extend(self.good_answer(&size));
                // Packed heads hide a marker from a capture; a body does not.
                match (&self.marker, self.request_bytes) {
                    (Some(marker), _) => all.extend(words(&["--data", marker, "--method", "POST"])),
                    (None, Some(bytes)) => all.extend(post(bytes)),
                    (None, None) => {}
                }
                all
            }
            _ => {
                let mut url = format!("http://{entry}{path}?size={size}");
                if let Some(marker) = &self.marker {
                    url = format!("{url}&marker={marker}");
                }
                let mut all = vec![url];
                all.extend(self.good_answer(&size));
                all.extend(self.request_bytes.into_iter().flat_map(post));
                all
            }
        };
        if let Some(host) = route.host.as_ref().filter(|_| self.protocol != "tcp") {
            arguments.extend(words(&["--header", &format!("Host: {host}")]));
        }
        if let Some((name, value)) = &self.asks.header {
            arguments.extend(words(&["--header", &format!("{name}: {value}")]));
        }
        if let Some(bind) = &route.bind {
            arguments.extend(words(&["--bind", &bind.to_string()]));
        }
        if !self.token.is_empty() {
            arguments.extend(self.authorization(lab)?);
        }
        Ok(arguments)
    }

    /// Options that put tokens into requests: one for all, or a file of as many new tokens as there are requests.
    fn authorization(&self, lab: &Lab<'_>) -> Result<[String; 2], String> {
        let number = fresh_tokens(self.rate, self.warmup + self.duration);
        let lines = carried(&lab.outfit.generated, &self.token, number);
        if let [one] = lines.as_slice() {
            return Ok(["--header".to_owned(), format!("{AUTHORIZATION}: {one}")]);
        }
        let path = lab.folder.join("load.tokens");
        crate::record_folder::write(&path, &lines.join("\n"))?;
        let each = format!("{AUTHORIZATION}: @{}", path.display());
        Ok(["--header-each".to_owned(), each])
    }

    /// Options that define a good answer over HTTP: the expected size, a refusal, or the status that a stray must get.
    fn good_answer(&self, size: &str) -> [String; 2] {
        let words = match (self.asks.answered, self.refused) {
            (Some(status), _) => ["--expect-status", status],
            (None, Some(refusal)) => ["--expect-status", refusal.statuses()[0]],
            (None, None) => ["--expect-size", size],
        };
        words.map(str::to_owned)
    }

    /// Options for connections, rate and duration.
    fn schedule(&self) -> Vec<String> {
        let duration = |d: Duration| format!("{}us", d.as_micros());
        let mut words = vec![
            ("--connections", self.connections.to_string()),
            ("--duration", duration(self.duration)),
            ("--warmup", duration(self.warmup)),
        ];
        if self.intervals {
            words.push(("--interval", duration(INTERVAL)));
        }
        if self.kind != ValueKind::Bulk {
            words.push(("--rate", self.rate.to_string()));
            words.push(("--arrival", self.arrival.clone()));
            words.push(("--seed", self.seed.to_string()));
        }
        words
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect()
    }
}

/// A request with a body of that many bytes.
fn post(bytes: u64) -> [String; 4] {
    let words = ["--method", "POST", "--payload-size", &bytes.to_string()];
    words.map(str::to_owned)
}

/// Starts the generator for this order.
pub(crate) fn start_load(
    lab: &Lab<'_>,
    route: &CellRoute,
    order: &GeneratorRequest,
) -> Result<(SupervisedChild, PathBuf), String> {
    let (spec, out) = prepare_load(lab, route, order)?;
    Ok((spec.start().map_err(|e| e.to_string())?, out))
}

/// All that comes before it is started: tokens to be signed take their time.
pub(crate) fn prepare_load(
    lab: &Lab<'_>,
    route: &CellRoute,
    order: &GeneratorRequest,
) -> Result<(Spec, PathBuf), String> {
    let out = lab.folder.join("load.json");
    let _ = std::fs::remove_file(&out);
    let spec = lab
        .process("load", "load", &lab.voile)?
        .arg("load")
        .args(order.request(lab, route)?)
        .arg("--json")
        .args(order.schedule())
        .stdout(Output::File(out.clone()));
    let spec = match &route.from {
        Some(place) => spec.place(place.clone()),
        None => spec,
    };
    Ok((spec, out))
}

/// Waits until that moment, or until the generator ends, or the user asks to end.
pub(crate) fn wait_until(
    load: &mut SupervisedChild,
    moment: Instant,
    lab: &Lab<'_>,
) -> Result<bool, BrokenSlice> {
    loop {
        if (lab.stopped)() {
            return Err(BrokenSlice::Stopped);
        }
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        if load.wait(left.min(LOOK_EVERY)).is_some() {
            return Ok(true);
        }
    }
}

/// Waits for the generator's end and reads what it says. A run that it calls invalid is an answer too.
pub(crate) fn finish_load(
    load: &mut SupervisedChild,
    out: &Path,
    bound: Duration,
    lab: &Lab<'_>,
) -> Result<Generated, BrokenSlice> {
    if !wait_until(load, Instant::now() + bound, lab)? {
        return Err(BrokenSlice::Failed(format!(
            "the generator did not end within {bound:?}"
        )));
    }
    let text = std::fs::read_to_string(out).unwrap_or_default();
    let mut generated: Generated = serde_json::from_str(&text).map_err(|e| {
        let exit = load
            .try_exit()
            .map_or_else(String::new, |exit| exit.to_string());
        BrokenSlice::Failed(format!(
            "the generator {exit} without a result ({e}){}",
            lab.log_end("load")
        ))
    })?;
    generated.drift = drift(&generated.halves_us);
    Ok(generated)
}

/// Ratio of the medians of the slice's halves, the larger over the smaller.
fn drift(halves: &[Percentiles]) -> Option<f64> {
    let [first, second] = halves else {
        return None;
    };
    let (low, high) = (first.p50.min(second.p50), first.p50.max(second.p50));
    let enough = first.count.min(second.count) >= DRIFT_SAMPLES;
    (enough && low > 0.0).then(|| high / low)
}

/// Length of the generator's intervals.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_the_larger_half_over_the_smaller() {
        let half = |p50, count| Percentiles {
            p50,
            count,
            ..Percentiles::default()
        };
        for (halves, expected) in [
            (vec![half(100.0, 500), half(450.0, 500)], Some(4.5)),
            (vec![half(450.0, 500), half(100.0, 500)], Some(4.5)),
            (vec![half(100.0, 500), half(450.0, DRIFT_SAMPLES - 1)], None),
            (vec![half(0.0, 500), half(450.0, 500)], None),
            (vec![], None),
        ] {
            assert_eq!(drift(&halves), expected);
        }
    }
}
