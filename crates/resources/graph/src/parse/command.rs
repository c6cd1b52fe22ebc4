//! Scripts: steps, lists of concurrent commands, and the commands themselves.

use std::sync::Arc;
use std::time::Duration;

use voile_model::codes as model_codes;
use voile_model::reading::{Cursor, Fields, NodeForm, Report, SpannedValue, clip};

use super::values::{duration, probability, size};
use super::{Names, place, unknown};
use crate::codes;
use crate::model::{Probability, ScriptStep, ServiceCall, Step};

/// Longest pause of a script.
const MAX_SLEEP: Duration = Duration::from_secs(3600);
/// Most CPU time of one command: a mistyped unit must not hold a core for an hour.
const MAX_CPU: Duration = Duration::from_secs(10);
/// Most commands of one script, those of concurrent lists counted.
const MAX_COMMANDS: usize = 5_000;
/// Most header fields that a call adds.
const MAX_HEADERS: usize = 64;

/// Names of the commands.
const COMMANDS: &str = "one of sleep, call, cpu, memory";

/// Reads scripts.
pub(super) struct Reader<'n> {
    pub(super) request_size: u64,
    pub(super) names: &'n Names,
}

impl Reader<'_> {
    pub(super) fn script(&self, script: &Cursor<'_>) -> Vec<Step> {
        let steps: Vec<Step> = script
            .items()
            .iter()
            .filter_map(|item| self.step(item))
            .collect();
        let commands: usize = steps.iter().map(|step| step.commands().len()).sum();
        if commands > MAX_COMMANDS {
            let message = format!("{commands} commands, more than the {MAX_COMMANDS} allowed");
            script
                .report()
                .error(model_codes::LIMIT, script.at(), message, "");
        }
        steps
    }

    fn step(&self, step: &Cursor<'_>) -> Option<Step> {
        if step.form() != NodeForm::List {
            return self.command(step).map(Step::One);
        }
        let mut together = Vec::new();
        for item in step.items() {
            if item.form() == NodeForm::List {
                item.report().error(
                    codes::NESTED,
                    item.at(),
                    "a list of concurrent commands within another",
                    "only one level is supported: move the inner commands to a service of their own",
                );
                return None;
            }
            together.extend(self.command(&item));
        }
        Some(Step::Together(together))
    }

    fn command(&self, command: &Cursor<'_>) -> Option<ScriptStep> {
        let report = command.report();
        if command.form() == NodeForm::Scalar {
            let text = command.raw()?;
            report.bad(
                &text,
                " for a command",
                format!("{COMMANDS}, with a value: `- sleep: 10ms`"),
            );
            return None;
        }
        let mut fields = command.fields()?;
        let sleep = fields.get("sleep");
        let call = fields.get("call");
        let cpu = fields.get("cpu");
        let memory = fields.get("memory");
        let found = [&sleep, &call, &cpu, &memory].into_iter().flatten().count();
        fields.finish();
        if found != 1 {
            let message = match found {
                0 => "a command is missing",
                _ => "several commands in one step",
            };
            let help = match found {
                0 => COMMANDS,
                _ => "begin each command with `- `",
            };
            report.error(model_codes::BAD_VALUE, command.at(), message, help);
            return None;
        }
        if let Some(sleep) = sleep {
            return duration(&sleep, MAX_SLEEP).map(ScriptStep::Sleep);
        }
        if let Some(cpu) = cpu {
            return duration(&cpu, MAX_CPU).map(ScriptStep::Cpu);
        }
        if let Some(memory) = memory {
            return size(&memory).map(ScriptStep::Memory);
        }
        self.call(&call?).map(ScriptStep::Call)
    }

    fn call(&self, call: &Cursor<'_>) -> Option<ServiceCall> {
        let report = call.report();
        let mut read = ServiceCall {
            at: place(report, call.at()),
            ..ServiceCall::to(0, self.request_size)
        };
        if call.form() == NodeForm::Scalar {
            read.service = self.resolve(report, &call.text()?)?;
            return Some(read);
        }
        let mut fields = call.fields()?;
        let service = fields.text("service");
        let service = report.required(service, fields.at(), "service");
        if let Some(host) = fields.text("hostname") {
            if !is_host(&host.value) {
                let help = "a host name and maybe a port, such as b.other.svc.cluster.local:8080";
                report.bad(&host, " for a hostname", help);
            }
            read.hostname = Some(host.value);
        }
        read.headers = headers(report, &mut fields);
        let written = fields.get("size");
        // Isotope's README says `payloadSize`, its code `size`.
        let promised = fields.get("payloadSize");
        if let (Some(_), Some(second)) = (&written, &promised) {
            let message = "`size` and `payloadSize` are both there";
            report.error(
                model_codes::CONTRADICTION,
                second.at(),
                message,
                "keep `size`",
            );
        }
        if let Some(bytes) = written.or(promised).and_then(|at| size(&at)) {
            read.size = bytes;
        }
        if let Some(at) = fields.get("probability") {
            read.probability = probability(&at).unwrap_or(Probability::ALL);
        }
        fields.finish();
        read.service = self.resolve(report, &service?)?;
        Some(read)
    }

    fn resolve(&self, report: &Report, name: &SpannedValue<Arc<str>>) -> Option<usize> {
        let found = self.names.get(&name.value).copied();
        if found.is_none() {
            unknown(report, name, self.names);
        }
        found
    }
}

/// `name` or `name:port`.
fn is_host(text: &str) -> bool {
    let (host, port) = text
        .split_once(':')
        .map_or((text, None), |(h, p)| (h, Some(p)));
    let port_fits = port.is_none_or(|port| {
        port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    port_fits && !host.is_empty() && host.len() <= 253 && host.bytes().all(plain)
}

fn headers(report: &Report, fields: &mut Fields<'_>) -> Vec<(Arc<str>, Arc<str>)> {
    /// Those that frame a message: adding them would change where it ends.
    const FRAMING: [&str; 7] = [
        "connection",
        "content-length",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    let map = fields.text_map("extra-header");
    if let Some((key, _)) = map.get(MAX_HEADERS) {
        let message = format!("more than {MAX_HEADERS} header fields");
        report.error(model_codes::LIMIT, &key.at, message, "");
    }
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let mut headers = Vec::new();
    for (key, value) in map {
        let lower = key.value.to_ascii_lowercase();
        if lower.is_empty() || !lower.bytes().all(token) || FRAMING.contains(&&*lower) {
            report.bad(
                &key,
                " for a header field",
                "a name such as x-user, and not a framing header",
            );
        }
        let printable = value.value.bytes().all(|b| (b' '..=b'~').contains(&b));
        if !printable {
            let message = format!("`{}` is not allowed for a header value", clip(&value.value));
            report.error(
                model_codes::BAD_VALUE,
                &value.at,
                message,
                "printable ASCII",
            );
        }
        headers.push((lower.into(), value.value));
    }
    headers
}
