//! `voile config`: what a proxy holds, and which documents say so.

mod held;

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use crate::commands::inspect::monitoring::{AllMonitoring, short, table, word};
use crate::commands::values::OutputArgs;

/// Show a connected proxy's resources, their versions, and the file and line of each document.
///
/// The control plane answers from the proxy's own stream: from what it sent, not from what it would send. With several control
/// planes, the first one that serves the proxy answers. Resources without a document (fetched keys, lists of revoked
/// certificates) have no file and line.
///
/// With `--kubernetes` the proxy itself answers, by its administration page; the port is forwarded. PROXY is then a pod as kubectl
/// and istioctl name it: POD, POD.NAMESPACE, NAMESPACE/POD, deploy/NAME, svc/NAME (the first of several pods).
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0, or 2 if there is no such proxy, or nobody can be reached who knows it."
)]
pub(crate) struct ConfigArgs {
    #[command(flatten)]
    monitoring: AllMonitoring,
    /// NAMESPACE/POD, an identity, a node id or a stream number, as `voile status` shows them; with `--kubernetes` a pod
    #[arg(value_name = "PROXY")]
    proxy: String,
    /// Namespace of a pod that is named without one; without it that of the context.
    #[arg(long, short, value_name = "NAME", requires = "kubernetes")]
    namespace: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

/// More than the control plane waits for a stream.
const WAIT: Duration = Duration::from_secs(90);

pub(crate) fn run(args: &ConfigArgs) -> ExitCode {
    let (answer, text): (_, fn(&Value) -> String) = match args.monitoring.kubernetes() {
        true => (of_pod(args), held::text),
        false => (of_control_planes(args), text),
    };
    match answer {
        Ok(page) if args.output.is_json() => println!("{page:#}"),
        Ok(page) => print!("{}", text(&page)),
        Err(reasons) => {
            for reason in reasons {
                eprintln!("voile config: {reason}");
            }
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// The page of the proxy itself.
fn of_pod(args: &ConfigArgs) -> Result<Value, Vec<String>> {
    let proxy = args
        .monitoring
        .proxy(&args.proxy, args.namespace.as_deref());
    let page = proxy.and_then(|proxy| proxy.page("/config_dump", Duration::ZERO));
    page.map_err(|reason| vec![reason])
}

/// The page of the first control plane that serves the proxy.
fn of_control_planes(args: &ConfigArgs) -> Result<Value, Vec<String>> {
    // Names go as they are: none that a proxy can have holds what a query could not.
    let good = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'&' | b'#' | b'?');
    if !args.proxy.bytes().all(good) {
        return Err(vec![format!("`{}` is not the name of a proxy", args.proxy)]);
    }
    let path = format!("/debug/config?proxy={}", args.proxy);
    let mut reasons = Vec::new();
    for server in args.monitoring.each().map_err(|reason| vec![reason])? {
        match server.page(&path, WAIT) {
            Ok(page) => return Ok(page),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons)
}

fn text(page: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut text = String::new();
    for proxy in list(page) {
        let stream = proxy["stream"].as_u64().unwrap_or(0);
        text += &format!("{} (stream {stream})\n", word(&proxy, "identity"));
        let mut rows = Vec::new();
        for resource in list(&proxy["resources"]) {
            let documents = list(&resource["documents"]);
            let mut why = documents.iter().map(|document| {
                let (kind, name) = (word(document, "kind"), word(document, "name"));
                let file = word(document, "file");
                match document["line"].as_u64().unwrap_or(0) {
                    0 => format!("{file} {kind} {name}"),
                    line => format!("{file}:{line} {kind} {name}"),
                }
            });
            rows.push(vec![
                short(word(&resource, "type")).to_owned(),
                word(&resource, "name").to_owned(),
                word(&resource, "version").to_owned(),
                why.next().unwrap_or_else(|| "-".to_owned()),
            ]);
            let more = why.map(|why| vec![String::new(), String::new(), String::new(), why]);
            rows.extend(more);
        }
        text += &table(&["TYPE", "NAME", "VERSION", "BECAUSE OF"], &rows);
    }
    text
}
