//! `voile tap`: requests and connections of proxies, as they end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use voile_telemetry::tap::is_meant;

use crate::commands::inspect::monitoring::{WatchedMesh, word};
use crate::commands::inspect::traffic::proxy_watch::{WatchNews, WatchedRecords};
use crate::commands::values::Output;

/// Show requests and connections of the mesh as they end: who called what, the answer, the endpoint, and the policy that refused.
///
/// A line has the time of the start, the proxy, the direction, the request, its status, its duration and where that went (the proxy's
/// policies and routing, the wait for a connection, the endpoint until its answer began), the caller, the endpoint, and what is unusual:
/// retries, Envoy's response flags and details, and for a refusal the policy with its file and line. Of retries, the wait and the endpoint's
/// time are those of the last attempt. A call between two proxies has a line of each. A node proxy shows connections, with the pod that it serves in place of its own name. No headers and
/// bodies are shown; tokens in paths are masked.
///
/// Proxies record requests only while somebody watches, and only then do requests cost more. Each keeps 1,024 records a
/// second and 1,024 that wait; the number of further ones is told on standard error. Pods that come later are watched, too. Up to four
/// may watch a proxy at a time. Only who may
/// use the control socket of `voile up` (its user, and root) or may forward ports of a cluster's pods can watch.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  voile tap --denied\n  voile tap shop/web --status 5xx\n  voile tap --kubernetes shop --path /cart --count 20 -o json\n\n\
                  Exit code: 0 at the end of --for or --count, and on Ctrl-C; 2 if no proxy can be watched."
)]
pub(crate) struct TapArgs {
    /// NAMESPACE, or NAMESPACE/NAME of a pod or workload. Without it all proxies of the mesh.
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    watched: WatchedMesh,
    /// Only requests whose path begins so.
    #[arg(long, value_name = "PREFIX")]
    path: Option<String>,
    /// Only requests with this method.
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// Only requests with this status, or class such as 5xx.
    #[arg(long, value_name = "STATUS", value_parser = status)]
    status: Option<String>,
    /// Only callers with this text in their verified identity, such as ns/shop/sa/web.
    #[arg(long, value_name = "TEXT")]
    from: Option<String>,
    /// Only what a policy refused: authorization, tokens, rate limits.
    #[arg(long)]
    denied: bool,
    /// Stop after this time, such as 30s.
    #[arg(long = "for", value_name = "DURATION", value_parser = crate::commands::values::duration)]
    for_: Option<Duration>,
    /// Stop after so many records.
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
    /// With `json` an object a line, with its `proxy`.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
}

/// `503`, or a class such as `5xx`.
fn status(text: &str) -> Result<String, String> {
    let class = text.strip_suffix("xx").unwrap_or(text);
    let length = if class == text { 3 } else { 1 };
    let begins = class.starts_with(['1', '2', '3', '4', '5']);
    match begins && class.len() == length && class.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Ok(text.to_owned()),
        false => Err("expected a status such as 503, or a class such as 5xx".to_owned()),
    }
}

pub(crate) fn run(args: &TapArgs) -> ExitCode {
    match follow(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("voile tap: {reason}");
            ExitCode::from(2)
        }
    }
}

fn follow(args: &TapArgs) -> Result<(), String> {
    let until = args.for_.map(|time| Instant::now() + time);
    let (targets, filter) = (args.targets.clone(), args.filter());
    let of_node = filter.clone() + &args.workloads();
    let watched = WatchedRecords {
        mesh: args.watched.clone(),
        filter: Box::new(move |proxy| match is_named(&targets, &proxy.to_string()) {
            true => Some(filter.clone()),
            // It serves pods that are meant, and others.
            false => proxy.is_node_proxy().then(|| of_node.clone()),
        }),
    };
    let told = watched.watch();
    let mut printer = TapPrinter {
        args,
        documents: PolicyDocuments::new(&args.watched),
        proxies: None,
        silent: BTreeMap::new(),
        answered: false,
        printed: 0,
    };
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let next = match left {
            None => told.recv().ok(),
            Some(left) => told.recv_timeout(left).ok(),
        };
        match next {
            None => return printer.end(),
            Some(WatchNews::Listed(Ok(proxies))) => printer.listed(proxies)?,
            Some(WatchNews::Listed(Err(reason))) => {
                // The proxies that are known may answer on.
                if printer.proxies.is_none() || printer.is_silent() {
                    return Err(reason);
                }
            }
            Some(WatchNews::Answered(proxy, answer)) => {
                if !printer.take(&proxy, answer) {
                    return Ok(());
                }
                if !printer.answered && printer.is_silent() {
                    return printer.end();
                }
            }
        }
    }
}

/// Whether one of the targets, if there are any, names this proxy.
pub(crate) fn is_named(targets: &[String], proxy: &str) -> bool {
    targets.is_empty() || targets.iter().any(|target| is_meant(target, proxy))
}

impl TapArgs {
    /// The query that names the pods of a node proxy that are wanted.
    fn workloads(&self) -> String {
        let targets = self.targets.iter();
        let targets = targets.map(|target| utf8_percent_encode(target, NON_ALPHANUMERIC));
        targets
            .map(|target| format!("&workload={target}"))
            .collect()
    }

    /// The query that names what is wanted.
    fn filter(&self) -> String {
        let mut query = String::new();
        for (name, value) in [
            ("path", &self.path),
            ("method", &self.method),
            ("status", &self.status),
            ("from", &self.from),
        ] {
            if let Some(value) = value {
                let value = utf8_percent_encode(value, NON_ALPHANUMERIC);
                let _ = write!(query, "&{name}={value}");
            }
        }
        if self.denied {
            query += "&denied";
        }
        query
    }
}

/// Output so far.
struct TapPrinter<'a> {
    args: &'a TapArgs,
    /// The proxies that are watched; none before the first list.
    proxies: Option<BTreeSet<String>>,
    /// Why each proxy that did not answer the last time did not.
    silent: BTreeMap<String, String>,
    documents: PolicyDocuments,
    /// Whether any proxy answered.
    answered: bool,
    printed: u64,
}

impl TapPrinter<'_> {
    /// Takes the proxies that are watched now. An error if none is there at the begin.
    fn listed(&mut self, proxies: BTreeSet<String>) -> Result<(), String> {
        if self.proxies.is_none() && proxies.is_empty() {
            return Err(match self.args.targets.is_empty() {
                true => "the mesh has no proxy that runs".to_owned(),
                false => format!(
                    "no proxy that runs is of {}; `voile status` lists the proxies",
                    self.args.targets.join(", ")
                ),
            });
        }
        self.silent.retain(|proxy, _| proxies.contains(proxy));
        self.proxies = Some(proxies);
        Ok(())
    }

    /// Whether none of the proxies answers.
    fn is_silent(&self) -> bool {
        let all = self.proxies.as_ref().map_or(0, BTreeSet::len);
        all > 0 && self.silent.len() >= all
    }

    /// Prints an answer. Returns false at the end.
    fn take(&mut self, proxy: &str, answer: Result<Value, String>) -> bool {
        let page = match answer {
            Ok(page) => {
                self.answered = true;
                self.silent.remove(proxy);
                page
            }
            Err(reason) => {
                let is_watched = self.proxies.as_ref().is_some_and(|all| all.contains(proxy));
                if is_watched && !self.silent.contains_key(proxy) {
                    eprintln!("voile tap: {proxy} cannot be watched: {reason}");
                    self.silent.insert(proxy.to_owned(), reason);
                }
                return true;
            }
        };
        let missed = page["missed"].as_u64().unwrap_or(0);
        if missed > 0 {
            eprintln!(
                "voile tap: {missed} records of {proxy} are left out: there are too many; narrow it by --path, --status or --from"
            );
        }
        let mut out = std::io::stdout().lock();
        for record in page["records"].as_array().into_iter().flatten() {
            let record = self.documents.complete(proxy, record.clone());
            let line = match self.args.output {
                Output::Json => record.to_string(),
                Output::Text => line(&record),
            };
            // The reader may be gone.
            if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                return false;
            }
            self.printed += 1;
            if self.args.count == Some(self.printed) {
                return false;
            }
        }
        true
    }

    /// An error if no proxy answers.
    fn end(self) -> Result<(), String> {
        let reason = || format!("none of {} proxies can be watched", self.silent.len());
        (self.answered || !self.is_silent())
            .then_some(())
            .ok_or_else(reason)
    }
}

/// Namespace and name of the policy that refused a request.
fn policy_of(record: &Value) -> Option<(&str, &str)> {
    let by_node = record["termination"].as_str();
    if let Some(name) = by_node.and_then(|text| text.strip_prefix("denied by policy ")) {
        return name.split_once('/');
    }
    let texts = ["details", "termination"].map(|field| record[field].as_str());
    let text = texts
        .into_iter()
        .flatten()
        .find(|text| text.contains("policy[ns["))?;
    let (_, rest) = text.split_once("ns[")?;
    let (namespace, rest) = rest.split_once("]-policy[")?;
    let (name, _) = rest.split_once("]-rule[")?;
    Some((namespace, name))
}

/// Places of policies in the documents that the control planes read.
pub(crate) struct PolicyDocuments {
    watched: WatchedMesh,
    /// By proxy, namespace and name.
    known: HashMap<(String, String, String), Option<String>>,
}

impl PolicyDocuments {
    pub(crate) fn new(watched: &WatchedMesh) -> Self {
        Self {
            watched: watched.clone(),
            known: HashMap::new(),
        }
    }

    /// A record with its proxy, and with the document of the policy that refused it.
    pub(crate) fn complete(&mut self, proxy: &str, mut record: Value) -> Value {
        let policy = policy_of(&record);
        let place = policy.and_then(|policy| self.place(proxy, policy));
        record["proxy"] = proxy.into();
        if let Some(place) = place {
            record["policy_document"] = place.into();
        }
        record
    }

    /// File and line of a policy, or the object of a cluster.
    fn place(&mut self, proxy: &str, (namespace, name): (&str, &str)) -> Option<String> {
        let key = (proxy.to_owned(), namespace.to_owned(), name.to_owned());
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let place = self.ask(proxy, namespace, name);
        self.known.insert(key, place.clone());
        place
    }

    fn ask(&self, proxy: &str, namespace: &str, name: &str) -> Option<String> {
        let wanted = format!("{namespace}/{name}");
        let held = self.watched.held_by(proxy).ok()?;
        let documents = held.iter().flat_map(|one| one["documents"].as_array());
        let mut documents = documents.flatten();
        let found = documents.find(|one| {
            word(one, "kind") == "AuthorizationPolicy" && word(one, "name") == wanted
        })?;
        Some(document_place(found))
    }
}

/// `FILE:LINE` of a document, or the object of a cluster.
pub(crate) fn document_place(document: &Value) -> String {
    let file = word(document, "file");
    match document["line"].as_u64().unwrap_or(0) {
        0 => file.to_owned(),
        line => format!("{file}:{line}"),
    }
}

/// Whom an outbound request was for, or who sent an inbound one.
fn other_end(side: &str, record: &Value) -> String {
    let text = |field: &str| record[field].as_str().unwrap_or_default();
    // The caller of an outbound request is the proxy's own workload.
    if side == "out" && !text("cluster").is_empty() {
        return format!("to={}", service(text("cluster")));
    }
    if side == "out" && !text("service").is_empty() {
        return format!("to={}", short_host(text("service")));
    }
    let from = text("from");
    let from = from.split_once("/ns/").map_or(from, |(_, account)| account);
    match from {
        "" => format!("from={}", text("client")),
        from => format!("from={}", from.replace("/sa/", "/")),
    }
}

/// `web.shop:80`, of a cluster `outbound|80||web.shop.svc.cluster.local`.
pub(crate) fn service(cluster: &str) -> String {
    let parts: Vec<&str> = cluster.splitn(4, '|').collect();
    let [_, port, subset, host] = parts[..] else {
        return cluster.to_owned();
    };
    let host = short_host(host);
    match subset {
        "" => format!("{host}:{port}"),
        subset => format!("{host}:{port} subset={subset}"),
    }
}

/// `web.shop`, of `web.shop.svc.cluster.local`.
fn short_host(host: &str) -> &str {
    host.split_once(".svc.").map_or(host, |(name, _)| name)
}

/// A record for people.
fn line(record: &Value) -> String {
    let text = |field: &str| record[field].as_str().unwrap_or_default();
    let time = text("time").split_once('T').map_or("", |(_, time)| time);
    let time = time.trim_end_matches('Z');
    let time = time.get(..12).unwrap_or(time);
    let side = match text("side") {
        "outbound" => "out",
        _ => "in",
    };
    let what = match text("method") {
        "" => match text("server_name") {
            "" => format!("TCP {}", word(record, "destination")),
            name => format!("TCP {name}"),
        },
        method => format!("{method} {}{}", text("authority"), text("path")),
    };
    let status = match (record["status"].as_u64(), text("grpc_status")) {
        (None, _) => String::new(),
        (Some(0), _) => " → no answer".to_owned(),
        (Some(status), "") => format!(" → {status}"),
        (Some(status), grpc) => format!(" → {status} grpc {grpc}"),
    };
    let milliseconds = |field: &str| record[field].as_f64();
    // Of a node proxy's connection it matters which pod it serves.
    let pod = match text("workload") {
        "" => text("proxy"),
        pod => pod,
    };
    let mut line = format!("{time:<12} {pod} {side:<3} {what}{status}");
    let _ = write!(
        line,
        " {:.1}ms",
        milliseconds("duration_ms").unwrap_or_default()
    );
    for part in ["proxy", "queue", "upstream"] {
        if let Some(took) = milliseconds(&format!("{part}_ms")) {
            let _ = write!(line, " {part}={took:.2}ms");
        }
    }
    let _ = write!(line, " {}", other_end(side, record));
    if !text("endpoint").is_empty() {
        let _ = write!(line, " endpoint={}", text("endpoint"));
    }
    if !matches!(text("route"), "" | "default") {
        let _ = write!(line, " route={}", text("route"));
    }
    if record["attempts"]
        .as_u64()
        .is_some_and(|attempts| attempts > 1)
    {
        let _ = write!(line, " attempts={}", record["attempts"]);
    }
    for field in [
        "flags",
        "details",
        "termination",
        "upstream_failure",
        "downstream_failure",
    ] {
        // What every good answer says.
        if !matches!(text(field), "" | "via_upstream") {
            let _ = write!(line, " {field}={}", text(field));
        }
    }
    if !text("policy_document").is_empty() {
        let _ = write!(line, " policy={}", text("policy_document"));
    }
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_says_who_called_what_and_what_is_unusual() {
        let denied = json!({
            "time": "2026-11-29T12:34:56.123456789Z", "side": "inbound", "method": "GET", "authority": "web", "path": "/a?b",
            "status": 403, "duration_ms": 0.42, "from": "spiffe://cluster.local/ns/shop/sa/client", "client": "10.0.0.1:5",
            "attempts": 0, "route": "default",
            "details": "rbac_access_denied_matched_policy[ns[shop]-policy[no-admin]-rule[0]]",
            "proxy": "shop/web-1", "policy_document": "mesh/policy.yaml:3",
        });
        assert_eq!(policy_of(&denied), Some(("shop", "no-admin")));
        assert_eq!(
            line(&denied),
            "12:34:56.123 shop/web-1 in  GET web/a?b → 403 0.4ms from=shop/client \
             details=rbac_access_denied_matched_policy[ns[shop]-policy[no-admin]-rule[0]] policy=mesh/policy.yaml:3"
        );
        let tcp = json!({
            "time": "2026-11-29T12:34:56Z", "side": "outbound", "duration_ms": 1500.0, "client": "10.0.0.1:5",
            "destination": "10.0.0.9:3306", "endpoint": "10.0.0.2:3306", "flags": "UF",
            "cluster": "outbound|3306||db.shop.svc.cluster.local", "proxy": "shop/web-1",
        });
        assert_eq!(policy_of(&tcp), None);
        assert_eq!(
            line(&tcp),
            "12:34:56     shop/web-1 out TCP 10.0.0.9:3306 1500.0ms to=db.shop:3306 endpoint=10.0.0.2:3306 flags=UF"
        );
        let retried = json!({
            "time": "2026-11-29T12:34:56.5Z", "side": "outbound", "method": "POST", "authority": "db", "path": "/x.Y/Z",
            "status": 200, "grpc_status": "14", "duration_ms": 7.0, "proxy_ms": 0.1, "queue_ms": 1.2, "upstream_ms": 5.5, "client": "10.0.0.1:5", "attempts": 3,
            "route": "canary", "details": "via_upstream", "cluster": "outbound|80|v2|db.shop.svc.cluster.local",
            "proxy": "shop/web-1",
        });
        assert_eq!(
            line(&retried),
            "12:34:56.5   shop/web-1 out POST db/x.Y/Z → 200 grpc 14 7.0ms proxy=0.10ms queue=1.20ms upstream=5.50ms \
             to=db.shop:80 subset=v2 route=canary attempts=3"
        );
    }
}
