//! `voile events`: what happens at a control plane, as it happens.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use super::monitoring::{Monitoring, short, word};

/// Follow what happens at a control plane: changes published and when every proxy has them, proxies that come, go or refuse,
/// certificates issued.
///
/// One line each; `--json` prints each as an object. The control plane remembers the last 1,000; who is slower is told how
/// many were missed. Ends with Ctrl-C, with `--for`, or when the control plane is gone.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 when the time of --for is over, 2 when the control plane cannot be asked (any more)."
)]
pub(crate) struct Args {
    #[command(flatten)]
    monitoring: Monitoring,
    /// Begin with what the control plane still remembers.
    #[arg(long)]
    past: bool,
    /// Stop after this time, such as 30s.
    #[arg(long = "for", value_name = "DURATION", value_parser = super::proxy::duration)]
    for_: Option<Duration>,
    /// As JSON, one object a line.
    #[arg(long)]
    json: bool,
}

/// How long one question waits for something to happen.
const WAIT_SECONDS: u64 = 20;

pub(crate) fn run(args: &Args) -> ExitCode {
    match follow(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("voile events: {reason}");
            ExitCode::from(2)
        }
    }
}

fn follow(args: &Args) -> Result<(), String> {
    let begin = std::time::Instant::now();
    let mut out = std::io::stdout().lock();
    let mut after = match args.past {
        true => 0,
        false => last(&args.monitoring.page("/debug/events", Duration::ZERO)?)?,
    };
    loop {
        let left = args.for_.map(|all| all.saturating_sub(begin.elapsed()));
        let wait = left.map_or(WAIT_SECONDS, |left| left.as_secs().min(WAIT_SECONDS));
        let path = format!("/debug/events?after={after}&wait={wait}");
        let page = args.monitoring.page(&path, Duration::from_secs(wait))?;
        after = last(&page)?;
        let missed = page["missed"].as_u64().unwrap_or(0);
        if missed > 0 && !args.past {
            eprintln!("voile events: {missed} missed");
        }
        for event in page["events"].as_array().into_iter().flatten() {
            let line = if args.json {
                event.to_string()
            } else {
                line(event)
            };
            // Whoever reads may be gone.
            if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                return Ok(());
            }
        }
        if left.is_some_and(|left| left.as_secs() == 0) {
            return Ok(());
        }
    }
}

fn last(page: &Value) -> Result<u64, String> {
    let number = page["last"].as_u64();
    number.ok_or_else(|| "the control plane's page of events has no number".to_owned())
}

fn line(event: &Value) -> String {
    let at = event["at"].as_u64().unwrap_or(0);
    let (seconds, milliseconds) = (at / 1000, at % 1000);
    let time = format!(
        "{:02}:{:02}:{:02}.{milliseconds:03}Z",
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60
    );
    let stream = || format!("{} (stream {})", word(event, "identity"), event["stream"]);
    let said = match word(event, "event") {
        "published" => {
            let changed = event["changed"].as_object().into_iter().flatten();
            let changed: Vec<String> = changed
                .map(|(kind, count)| format!("{count} {}", short(kind)))
                .collect();
            format!(
                "published {} ({})",
                word(event, "version"),
                changed.join(", ")
            )
        }
        "in-sync" => format!(
            "in sync   {} at all {} proxies",
            word(event, "version"),
            event["proxies"]
        ),
        "connected" => format!("connected {}", stream()),
        "disconnected" => format!("gone      {}: {}", stream(), word(event, "reason")),
        "refused" => format!(
            "REFUSED   {}: {}: {}",
            stream(),
            short(word(event, "type")),
            word(event, "reason")
        ),
        "certified" => format!(
            "certified {} for {}",
            word(event, "identity"),
            word(event, "asked_by")
        ),
        other => format!("{other} {event}"),
    };
    format!("{time} {said}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_a_line() {
        for (event, expected) in [
            (
                json!({"at": 3_661_005, "event": "published", "version": "v2",
                    "changed": {"type.googleapis.com/istio.workload.Address": 3}}),
                "01:01:01.005Z published v2 (3 Address)",
            ),
            (
                json!({"at": 0, "event": "in-sync", "version": "v2", "proxies": 2000}),
                "00:00:00.000Z in sync   v2 at all 2000 proxies",
            ),
            (
                json!({"at": 0, "event": "refused", "identity": "x", "stream": 4, "type": "a/b.C", "reason": "no"}),
                "00:00:00.000Z REFUSED   x (stream 4): C: no",
            ),
        ] {
            assert_eq!(line(&event), expected);
        }
    }
}
