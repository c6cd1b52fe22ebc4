//! Reads and checks the probes of containers and WorkloadGroups: Kubernetes' defaults and bounds. A probe that cannot run
//! as written is refused.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use crate::codes;
use crate::decode::{Fields, IntegerOrText, Report, SpannedValue, Text};
use crate::mesh::{ContainerPort, HealthProbe, Probe, ProbeAction, Probes};
use crate::names::Port;
use crate::text::{clip, suggest};

/// Kubernetes' default of `periodSeconds`.
const PERIOD: i64 = 10;
/// Kubernetes' default of `timeoutSeconds`.
const TIMEOUT: i64 = 1;
/// Kubernetes' default of `successThreshold`.
const SUCCESSES: i64 = 1;
/// Kubernetes' default of `failureThreshold`.
const FAILURES: i64 = 3;
/// The longest service that a gRPC probe may ask about, in bytes: the question is one small frame.
const MAX_SERVICE_BYTES: usize = 1024;
/// The longest path, and the longest field, of a probe, in bytes: servers refuse longer ones.
const MAX_TEXT_BYTES: usize = 4096;
/// Fields that would change where the request ends; a probe has no body.
const FRAMING: [&str; 7] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// The owner of a probe, which resolves its port names.
#[derive(Clone, Copy)]
enum ProbeNames<'a> {
    /// A container, which is asked at its own address.
    Container(&'a [ContainerPort]),
    /// A member of a WorkloadGroup, checked by the proxy beside it.
    Member,
}

/// The kind of a probe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProbeOwner {
    Startup,
    Readiness,
    Liveness,
}

/// A question, and the loopback address where it is asked.
type HostedAction = (ProbeAction, Option<IpAddr>);

/// Reads the probes of a container with these ports.
pub(in crate::check) fn probes(container: &mut Fields<'_>, ports: &[ContainerPort]) -> Probes {
    let mut read = |name, owner| {
        let names = ProbeNames::Container(ports);
        let probe = container.mapping(name, |fields| probe(fields, owner, names));
        probe.flatten().map(|(probe, _)| probe)
    };
    Probes {
        startup: read("startupProbe", ProbeOwner::Startup),
        readiness: read("readinessProbe", ProbeOwner::Readiness),
        liveness: read("livenessProbe", ProbeOwner::Liveness),
    }
}

/// Reads the probe of a WorkloadGroup.
pub(in crate::check) fn of_member(fields: &mut Fields<'_>) -> Option<HealthProbe> {
    let (probe, host) = probe(fields, ProbeOwner::Readiness, ProbeNames::Member)?;
    Some(HealthProbe { probe, host })
}

/// An address of the machine's own.
fn loopback(host: &Text) -> Option<IpAddr> {
    if &*host.value == "localhost" {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    host.value.parse().ok().filter(IpAddr::is_loopback)
}

fn probe(
    fields: &mut Fields<'_>,
    owner: ProbeOwner,
    names: ProbeNames<'_>,
) -> Option<(Probe, Option<IpAddr>)> {
    let report = fields.report();
    let question = question(fields, names);
    let delay = count(fields.integer("initialDelaySeconds").as_ref(), 0, report);
    let period = count(fields.integer("periodSeconds").as_ref(), PERIOD, report);
    let timeout = count(fields.integer("timeoutSeconds").as_ref(), TIMEOUT, report);
    let number = fields.integer("successThreshold");
    let successes = count(number.as_ref(), SUCCESSES, report);
    let failures = count(
        fields.integer("failureThreshold").as_ref(),
        FAILURES,
        report,
    );
    let grace = fields.integer("terminationGracePeriodSeconds");
    if let (Some(number), Some(2..), true) = (number, successes, owner != ProbeOwner::Readiness) {
        report.error(
            codes::BAD_VALUE,
            &number.at,
            format!("{} successes are not allowed here", number.value),
            "1; only a readinessProbe may ask for more",
        );
        return None;
    }
    let termination_grace = grace.and_then(|number| termination_grace(&number, owner, report));
    let seconds = |count: u32| Duration::from_secs(count.into());
    let (question, host) = question?;
    let probe = Probe {
        question,
        initial_delay: seconds(delay?),
        period: seconds(period?),
        timeout: seconds(timeout?),
        success_threshold: successes?,
        failure_threshold: failures?,
        termination_grace,
    };
    Some((probe, host))
}

/// A number of seconds or answers; not said, or 0, is the default.
fn count(written: Option<&SpannedValue<i64>>, default: i64, report: &Report) -> Option<u32> {
    let number = written.map_or(0, |number| number.value);
    let number = if number == 0 { default } else { number };
    let count = i32::try_from(number).ok();
    let count = count.and_then(|count| u32::try_from(count).ok());
    if let (None, Some(written)) = (count, written) {
        report.error(
            codes::BAD_VALUE,
            &written.at,
            format!("{} is not allowed here", written.value),
            match default {
                0 => "0 or more".to_owned(),
                default => format!("1 or more; {default} if not said"),
            },
        );
    }
    count
}

fn termination_grace(
    number: &SpannedValue<i64>,
    kind: ProbeOwner,
    report: &Report,
) -> Option<Duration> {
    let refuse = |message: String, help: &str| {
        report.error(codes::BAD_VALUE, &number.at, message, help);
        None
    };
    if kind == ProbeOwner::Readiness {
        let message =
            "a readinessProbe has no terminationGracePeriodSeconds: it stops no container"
                .to_owned();
        return refuse(message, "remove it, or give it to the livenessProbe");
    }
    match u32::try_from(number.value) {
        Ok(seconds @ 1..) => Some(Duration::from_secs(seconds.into())),
        _ => refuse(
            format!("{} seconds are not allowed", number.value),
            "1 or more",
        ),
    }
}

fn question(fields: &mut Fields<'_>, names: ProbeNames<'_>) -> Option<HostedAction> {
    let said = [
        fields.mapping("httpGet", |fields| http(fields, names)),
        fields.mapping("tcpSocket", |fields| {
            let (port, host) = (port(fields, names), own_host(fields, names));
            Some((ProbeAction::Tcp { port: port? }, host))
        }),
        fields.mapping("grpc", |fields| Some((grpc(fields)?, None))),
        fields.mapping("exec", |fields| Some((exec(fields)?, None))),
    ];
    let mut said = said.into_iter().flatten();
    let (code, message) = match (said.next(), said.next()) {
        (Some(question), None) => return question,
        (None, _) => (codes::MISSING, "the probe has no handler"),
        (Some(_), Some(_)) => (codes::CONTRADICTION, "a probe has exactly one handler"),
    };
    let help = "give it one of httpGet, tcpSocket, grpc, exec";
    fields.report().error(code, fields.at(), message, help);
    None
}

fn http(fields: &mut Fields<'_>, names: ProbeNames<'_>) -> Option<HostedAction> {
    let report = fields.report();
    let path = match fields.text("path") {
        None => Some("/".into()),
        Some(text) => path(&text, report),
    };
    let (port, host) = (port(fields, names), own_host(fields, names));
    let tls = fields.one_of("scheme", &[("HTTP", false), ("HTTPS", true)]);
    let headers = fields.mappings("httpHeaders", header);
    let action = ProbeAction::Http {
        port: port?,
        tls: tls.unwrap_or(false),
        path: path?,
        headers,
    };
    Some((action, host))
}

/// Reads `host`: a loopback address of a member. Refuses another host. A probe checks its own container, or the workload
/// beside its proxy; Kubernetes and Istio would allow any host.
fn own_host(fields: &mut Fields<'_>, among: ProbeNames<'_>) -> Option<IpAddr> {
    let host = fields.text("host").filter(|host| !host.value.is_empty())?;
    let (own, help) = match among {
        ProbeNames::Member => (
            loopback(&host),
            "write `localhost` or another loopback address; without `host` the probe uses the member's address",
        ),
        ProbeNames::Container(_) => (
            None,
            "remove it; for another host name in the request, set `Host` in httpHeaders",
        ),
    };
    if own.is_none() {
        let message = "a probe of another host is not supported";
        fields
            .report()
            .error(codes::NOT_YET, &host.at, message, help);
    }
    own
}

pub(in crate::check) fn path(text: &Text, report: &Report) -> Option<Arc<str>> {
    let parse = |text: &str| {
        let visible = text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'#');
        let path = match text.starts_with('/') {
            true => text.to_owned(),
            false => format!("/{text}"), // as the kubelet does
        };
        (visible && path.len() <= MAX_TEXT_BYTES).then(|| path.into())
    };
    let help = "visible ASCII without `#`, at most 4095 bytes; write others by percent encoding, a space as %20";
    report.parsed(text, "a path", parse, help)
}

fn header(fields: &mut Fields<'_>) -> Option<(Arc<str>, Arc<str>)> {
    let report = fields.report();
    let (name, value) = (fields.text("name"), fields.text("value"));
    let name = report.required(name, fields.at(), "name")?;
    let value = report.required(value, fields.at(), "value")?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let good = !name.value.is_empty() && name.value.bytes().all(token);
    if !good || name.value.len() > MAX_TEXT_BYTES {
        report.bad(&name, " as the name of a field", "letters, digits and `-`");
        return None;
    }
    if FRAMING.contains(&&*name.value.to_ascii_lowercase()) {
        let help = "remove it: a probe has no body and uses its connection once";
        report.bad(&name, " in a probe", help);
        return None;
    }
    let fit = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
    if !value.value.bytes().all(fit) || value.value.len() > MAX_TEXT_BYTES {
        let help = "no control characters, at most 4096 bytes";
        report.bad(&value, " as the value of a field", help);
        return None;
    }
    Some((name.value, value.value))
}

fn grpc(fields: &mut Fields<'_>) -> Option<ProbeAction> {
    let report = fields.report();
    let port = report.required(fields.integer("port"), fields.at(), "port");
    let service = match fields.text("service") {
        None => Some("".into()),
        Some(text) => service(&text, report),
    };
    Some(ProbeAction::Grpc {
        port: report.port(&port?)?,
        service: service?,
    })
}

/// The service that is asked about.
pub(in crate::check) fn service(text: &Text, report: &Report) -> Option<Arc<str>> {
    let short = |name: &str| (name.len() <= MAX_SERVICE_BYTES).then(|| name.into());
    report.parsed(text, "a service", short, "at most 1024 bytes")
}

fn exec(fields: &mut Fields<'_>) -> Option<ProbeAction> {
    let report = fields.report();
    let command = fields.texts("command");
    report.required(command.first(), fields.at(), "command")?;
    no_nul(&command, report);
    let command = command.into_iter().map(|text| text.value).collect();
    Some(ProbeAction::Exec { command })
}

/// Refuses a NUL character, which no argument of a program can have.
pub(in crate::check) fn no_nul(arguments: &[Text], report: &Report) {
    let mut arguments = arguments.iter();
    if let Some(text) = arguments.find(|text| text.value.contains('\0')) {
        report.bad(text, " as an argument", "remove the NUL character");
    }
}

/// A number, or the name of one of the container's own ports.
fn port(fields: &mut Fields<'_>, among: ProbeNames<'_>) -> Option<Port> {
    let report = fields.report();
    let written = report.required(fields.integer_or_text("port"), fields.at(), "port")?;
    let name = match &written.value {
        IntegerOrText::Integer(number) => {
            return report.port(&SpannedValue {
                value: *number,
                at: written.at.clone(),
            });
        }
        IntegerOrText::Text(name) => name,
    };
    let ProbeNames::Container(ports) = among else {
        report.error(
            codes::BAD_VALUE,
            &written.at,
            format!(
                "`{}` is not allowed as the port of a probe of a WorkloadGroup",
                clip(name)
            ),
            "a port is a number from 1 to 65535",
        );
        return None;
    };
    let named = ports
        .iter()
        .find(|port| port.name.as_deref() == Some(&**name));
    if named.is_none() {
        let names = ports.iter().filter_map(|port| port.name.as_deref());
        let names: Vec<_> = names.collect();
        report.error(
            codes::BAD_VALUE,
            &written.at,
            format!("the container has no port named `{}`", clip(name)),
            suggest(name, names),
        );
    }
    named.map(|port| port.number)
}
