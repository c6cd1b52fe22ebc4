//! YAML to graph. Every field that isotope parses, those that its README promises, and a few of ours; anything else is an
//! error with its place and a near miss.

mod command;
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use voile_model::codes as model_codes;
use voile_model::names::{is_dns_label, is_dns_subdomain};
use voile_model::reading::{Cursor, FieldPath, Fields, Report, SpannedValue, clip, one_document};
use voile_model::{Diagnostic, SourceFile};

use crate::codes;
use crate::model::{FieldLocation, Graph, GraphService, ServiceProtocol, Step};
pub use values::parse_share;
use values::{duration, integer, memory, share, size};

/// Most services of one graph: the largest mesh that Istio's authors tested has 1,000.
pub(crate) const MAX_SERVICES: usize = 5_000;
/// Most replicas of one service: each is a process.
pub(crate) const MAX_REPLICAS: u32 = 1_000;
/// Most that a call to another cluster takes longer: half way round the world and back is 0.3 s.
const MAX_CLUSTER_LATENCY: Duration = Duration::from_secs(10);
/// Most policies of one service: what Istio's own generator makes at most, doubled and rounded.
const MAX_POLICIES: u32 = 100_000;

/// Reads a graph. None when there was any error; complaints come sorted by place.
#[must_use]
pub fn read(file: &SourceFile) -> (Option<Graph>, Vec<Diagnostic>) {
    let (graph, mut problems) = one_document(file, document);
    if let Some(graph) = &graph {
        problems.extend(crate::check(graph));
        Diagnostic::sort(&mut problems);
    }
    let broken = problems.iter().any(Diagnostic::is_error);
    (graph.filter(|_| !broken), problems)
}

/// Values for fields that a service leaves out.
struct Defaults {
    service: GraphService,
    request_size: u64,
}

/// The names of all services, for calls to be resolved.
type Names = BTreeMap<Arc<str>, usize>;

fn document(cursor: &Cursor<'_>) -> Option<Graph> {
    let report = cursor.report();
    let mut fields = cursor.fields()?;
    if let Some(version) = fields.text("apiVersion") {
        report.one_of(&version, &[("v1alpha1", ()), ("v1", ())]);
    }
    if let Some(kind) = fields.text("kind") {
        report.one_of(&kind, &[("MockServiceGraph", ())]);
    }
    let defaults_at = fields.get("defaults");
    // Isotope's README says `default`, its code `defaults`.
    let default_at = fields.get("default");
    let services = fields.get("services");
    let services = report.required(services, fields.at(), "services");
    fields.finish();
    let services = services?;
    let items = services.items();
    if let (Some(_), Some(second)) = (&defaults_at, &default_at) {
        report.error(
            model_codes::CONTRADICTION,
            second.at(),
            "`default` and `defaults` are both set",
            "keep `defaults`",
        );
    }
    if items.is_empty() || items.len() > MAX_SERVICES {
        let message = format!(
            "a graph has 1 to {MAX_SERVICES} services, this has {}",
            items.len()
        );
        report.error(model_codes::LIMIT, services.at(), message, "");
        return None;
    }
    let mut opened = Vec::new();
    for item in &items {
        let mut fields = item.fields()?;
        let name = fields.text("name");
        opened.push((fields, report.required(name, item.at(), "name")?));
    }
    let names = names(report, opened.iter().map(|(_, name)| name));
    let defaults = defaults(defaults_at.or(default_at), &names)?;
    let services = opened
        .into_iter()
        .map(|(fields, name)| service(fields, name, &defaults, &names));
    // All are read, so that every complaint is heard, before any is missed.
    let services: Vec<_> = services.collect();
    let services = services.into_iter().collect::<Option<_>>()?;
    Some(Graph { services })
}

fn names<'a>(report: &Report, all: impl Iterator<Item = &'a SpannedValue<Arc<str>>>) -> Names {
    let mut names = Names::new();
    for (place, name) in all.enumerate() {
        if !is_dns_label(&name.value) {
            report.bad(
                name,
                " for a name",
                "lower-case letters, digits and inner `-`, at most 63 characters",
            );
        }
        if names.insert(Arc::clone(&name.value), place).is_some() {
            let message = format!("a second service is called `{}`", clip(&name.value));
            report.error(model_codes::DECLARED_TWICE, &name.at, message, "");
        }
    }
    names
}

fn defaults(cursor: Option<Cursor<'_>>, names: &Names) -> Option<Defaults> {
    let mut defaults = Defaults {
        service: GraphService::named(""),
        request_size: 0,
    };
    let Some(cursor) = cursor else {
        return Some(defaults);
    };
    let mut fields = cursor.fields()?;
    // First: it is a default of the script beside it, too.
    if let Some(bytes) = fields.get("requestSize").and_then(|at| size(&at)) {
        defaults.request_size = bytes;
    }
    shared(
        &mut fields,
        &mut defaults.service,
        defaults.request_size,
        names,
    );
    fields.finish();
    Some(defaults)
}

/// The fields that stand under `defaults` as well as in a service.
fn shared(fields: &mut Fields<'_>, service: &mut GraphService, request_size: u64, names: &Names) {
    let report = fields.report();
    if let Some(protocol) = fields.text("type") {
        let words = [
            ("http", ServiceProtocol::Http),
            ("grpc", ServiceProtocol::Grpc),
        ];
        service.protocol = report.one_of(&protocol, &words).unwrap_or(service.protocol);
    }
    if let Some(rate) = fields.get("errorRate").and_then(|at| share(&at)) {
        service.error_rate = rate;
    }
    if let Some(bytes) = fields.get("responseSize").and_then(|at| size(&at)) {
        service.response_size = bytes;
    }
    if let Some(replicas) = fields.get("numReplicas") {
        let help = format!("1 to {MAX_REPLICAS}; each replica is a process");
        if let Some(number) = integer(&replicas, 1, MAX_REPLICAS, &help) {
            service.replicas = number;
        }
    }
    if let Some(policies) = fields.get("numRbacPolicies")
        && let Some(number) = integer(&policies, 0, MAX_POLICIES, "")
    {
        service.policies = number;
    }
    let latency = fields.get("clusterLatency");
    if let Some(latency) = latency.and_then(|at| duration(&at, MAX_CLUSTER_LATENCY)) {
        service.cluster_latency = latency;
    }
    if let Some(compute) = fields.get("computeUsage").and_then(|at| share(&at)) {
        service.compute = compute;
    }
    if let Some(held) = fields.get("memoryUsage").and_then(|at| memory(&at)) {
        service.memory = held;
    }
    if let Some(script) = fields.get("script") {
        service.script = steps(&script, request_size, names);
    }
}

fn steps(script: &Cursor<'_>, request_size: u64, names: &Names) -> Vec<Step> {
    let reader = command::Reader {
        request_size,
        names,
    };
    reader.script(script)
}

fn service(
    mut fields: Fields<'_>,
    name: SpannedValue<Arc<str>>,
    defaults: &Defaults,
    names: &Names,
) -> Option<GraphService> {
    let report = fields.report();
    let mut service = GraphService {
        name: Arc::clone(&name.value),
        at: place(report, &name.at),
        ..defaults.service.clone()
    };
    service.namespace = dns(report, fields.text("namespace"), is_dns_label);
    service.cluster = dns(report, fields.text("cluster"), is_dns_subdomain);
    if let Some(entry) = fields.boolean("isEntrypoint") {
        service.entry = entry.value;
    }
    shared(&mut fields, &mut service, defaults.request_size, names);
    let labels = fields.text_map("labels");
    service.labels = labels
        .into_iter()
        .map(|(key, value)| (key.value, value.value))
        .collect();
    fields.finish();
    Some(service)
}

fn dns(
    report: &Report,
    text: Option<SpannedValue<Arc<str>>>,
    is: impl Fn(&str) -> bool,
) -> Option<Arc<str>> {
    let text = text?;
    if !is(&text.value) {
        let help = "lower-case letters, digits and inner `-`";
        report.bad(&text, " for a name", help);
    }
    Some(text.value)
}

fn place(report: &Report, at: &FieldPath) -> FieldLocation {
    FieldLocation {
        source: report.source(at),
        field: Arc::clone(&at.path),
    }
}

/// Error for a call to an unknown service, with the nearest name.
fn unknown(report: &Report, name: &SpannedValue<Arc<str>>, names: &Names) {
    let help = voile_model::reading::suggest(&name.value, names.keys().map(|name| &**name));
    report.error(
        codes::UNKNOWN_SERVICE,
        &name.at,
        format!("the graph has no service `{}`", clip(&name.value)),
        help,
    );
}
