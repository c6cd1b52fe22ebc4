//! `voile config`: what a proxy holds, and which documents say so.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use super::monitoring::{AllMonitoring, short, table, word};

/// Show a connected proxy's resources, their versions, and the file and line of each document.
///
/// The control plane answers from the proxy's own stream: from what it sent, not from what it would send. With several control
/// planes, the first one that serves the proxy answers. Resources without a document (fetched keys, lists of revoked
/// certificates) have no file and line.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0, or 2 if there is no such proxy or the control plane cannot be reached."
)]
pub(crate) struct ConfigArgs {
    #[command(flatten)]
    monitoring: AllMonitoring,
    /// NAMESPACE/POD, an identity, a node id or a stream number, as `voile status` shows them
    #[arg(value_name = "PROXY")]
    proxy: String,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// More than the control plane waits for a stream.
const WAIT: Duration = Duration::from_secs(90);

pub(crate) fn run(args: &ConfigArgs) -> ExitCode {
    // Names go as they are: none that a proxy can have holds what a query could not.
    let good = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'&' | b'#' | b'?');
    if !args.proxy.bytes().all(good) {
        eprintln!("voile config: `{}` is not the name of a proxy", args.proxy);
        return ExitCode::from(2);
    }
    let path = format!("/debug/config?proxy={}", args.proxy);
    let mut reasons = Vec::new();
    for (_, monitoring) in args.monitoring.each() {
        match monitoring.page(&path, WAIT) {
            Ok(page) if args.json => println!("{page:#}"),
            Ok(page) => print!("{}", text(&page)),
            Err(reason) => {
                reasons.push(reason);
                continue;
            }
        }
        return ExitCode::SUCCESS;
    }
    for reason in reasons {
        eprintln!("voile config: {reason}");
    }
    ExitCode::from(2)
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
                let line = document["line"].as_u64().unwrap_or(0);
                let (kind, name) = (word(document, "kind"), word(document, "name"));
                format!("{}:{line} {kind} {name}", word(document, "file"))
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
