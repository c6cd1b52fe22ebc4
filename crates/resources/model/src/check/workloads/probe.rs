//! Checks of the probes of containers and WorkloadGroups: Kubernetes' defaults and bounds. A probe that cannot run as
//! written is refused.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use crate::codes;
use crate::decode::{FieldPath, IntegerOrText, Report, SpannedValue};
use crate::mesh::{ContainerPort, HealthProbe, Probe, ProbeAction, Probes};
use crate::names::Port;
use crate::text::{clip, suggest};
use crate::written::Text;
use crate::written::pod as written_pod;
use crate::written::probe as written;

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

pub(in crate::check) fn probes(
    container: &written_pod::Container,
    ports: &[ContainerPort],
    report: &Report,
) -> Probes {
    let check = |written: &Option<written::Probe>, kind| {
        written
            .as_ref()
            .and_then(|written| probe(written, kind, ProbeNames::Container(ports), report))
    };
    Probes {
        startup: check(&container.startup_probe, ProbeOwner::Startup),
        readiness: check(&container.readiness_probe, ProbeOwner::Readiness),
        liveness: check(&container.liveness_probe, ProbeOwner::Liveness),
    }
}

/// The probe of a WorkloadGroup.
pub(in crate::check) fn of_member(
    written: &written::Probe,
    report: &Report,
) -> Option<HealthProbe> {
    let probe = probe(written, ProbeOwner::Readiness, ProbeNames::Member, report)?;
    let host = match (&written.http, &written.tcp) {
        (Some(http), _) => http.host.as_ref(),
        (_, Some(tcp)) => tcp.host.as_ref(),
        _ => None,
    };
    Some(HealthProbe {
        probe,
        host: host.and_then(loopback),
    })
}

/// An address of the machine's own.
fn loopback(host: &Text) -> Option<IpAddr> {
    if &*host.value == "localhost" {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    host.value.parse().ok().filter(IpAddr::is_loopback)
}

fn probe(
    written: &written::Probe,
    kind: ProbeOwner,
    ports: ProbeNames<'_>,
    report: &Report,
) -> Option<Probe> {
    let question = question(written, ports, report);
    let delay = count(written.initial_delay.as_ref(), 0, report);
    let period = count(written.period.as_ref(), PERIOD, report);
    let timeout = count(written.timeout.as_ref(), TIMEOUT, report);
    let successes = count(written.success_threshold.as_ref(), SUCCESSES, report);
    let failures = count(written.failure_threshold.as_ref(), FAILURES, report);
    if let (Some(number), Some(2..), true) = (
        &written.success_threshold,
        successes,
        kind != ProbeOwner::Readiness,
    ) {
        report.error(
            codes::BAD_VALUE,
            &number.at,
            format!("{} successes are not allowed here", number.value),
            "1; only a readinessProbe may ask for more",
        );
        return None;
    }
    let grace = match &written.termination_grace {
        None => None,
        Some(number) => Some(termination_grace(number, kind, report)?),
    };
    let seconds = |count: u32| Duration::from_secs(count.into());
    Some(Probe {
        question: question?,
        initial_delay: seconds(delay?),
        period: seconds(period?),
        timeout: seconds(timeout?),
        success_threshold: successes?,
        failure_threshold: failures?,
        termination_grace: grace,
    })
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

fn question(
    written: &written::Probe,
    ports: ProbeNames<'_>,
    report: &Report,
) -> Option<ProbeAction> {
    let said = [
        written.http.is_some(),
        written.tcp.is_some(),
        written.grpc.is_some(),
        written.exec.is_some(),
    ];
    let said = said.into_iter().filter(|said| *said).count();
    if said != 1 {
        let (code, message) = match said {
            0 => (codes::MISSING, "the probe has no handler"),
            _ => (codes::CONTRADICTION, "a probe has exactly one handler"),
        };
        let help = "give it one of httpGet, tcpSocket, grpc, exec";
        report.error(code, &written.at, message, help);
        return None;
    }
    if let Some(http) = &written.http {
        return self::http(http, ports, report);
    }
    if let Some(tcp) = &written.tcp {
        let port = port(tcp.port.as_ref(), &tcp.at, ports, report);
        no_other_host(tcp.host.as_ref(), ports, report)?;
        return Some(ProbeAction::Tcp { port: port? });
    }
    if let Some(grpc) = &written.grpc {
        return self::grpc(grpc, report);
    }
    written
        .exec
        .as_ref()
        .and_then(|exec| self::exec(exec, report))
}

fn http(written: &written::HttpGet, ports: ProbeNames<'_>, report: &Report) -> Option<ProbeAction> {
    let port = port(written.port.as_ref(), &written.at, ports, report);
    let host = no_other_host(written.host.as_ref(), ports, report);
    let tls = match &written.scheme {
        None => Some(false),
        Some(text) => report.one_of(text, &[("HTTP", false), ("HTTPS", true)]),
    };
    let path = match &written.path {
        None => Some("/".into()),
        Some(text) => path(text, report),
    };
    let headers = written.headers.iter().map(|one| header(one, report));
    let headers: Vec<_> = headers.collect();
    host?;
    Some(ProbeAction::Http {
        port: port?,
        tls: tls?,
        path: path?,
        headers: headers.into_iter().collect::<Option<_>>()?,
    })
}

/// Refuses another host. A probe checks its own container, or the workload beside its proxy; Kubernetes and Istio would
/// allow any host.
fn no_other_host(host: Option<&Text>, among: ProbeNames<'_>, report: &Report) -> Option<()> {
    let Some(host) = host.filter(|host| !host.value.is_empty()) else {
        return Some(());
    };
    if matches!(among, ProbeNames::Member) {
        if loopback(host).is_some() {
            return Some(());
        }
        report.error(
            codes::NOT_YET,
            &host.at,
            "a probe of another host is not supported",
            "write `localhost` or another loopback address; without `host` the probe uses the member's address",
        );
        return None;
    }
    report.error(
        codes::NOT_YET,
        &host.at,
        "a probe of another host is not supported",
        "remove it; for another host name in the request, set `Host` in httpHeaders",
    );
    None
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

fn header(written: &written::HttpHeader, report: &Report) -> Option<(Arc<str>, Arc<str>)> {
    let name = report.required(written.name.as_ref(), &written.at, "name")?;
    let value = report.required(written.value.as_ref(), &written.at, "value")?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let good = !name.value.is_empty() && name.value.bytes().all(token);
    if !good || name.value.len() > MAX_TEXT_BYTES {
        report.bad(name, " as the name of a field", "letters, digits and `-`");
        return None;
    }
    if FRAMING.contains(&&*name.value.to_ascii_lowercase()) {
        let help = "remove it: a probe has no body and uses its connection once";
        report.bad(name, " in a probe", help);
        return None;
    }
    let fit = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
    if !value.value.bytes().all(fit) || value.value.len() > MAX_TEXT_BYTES {
        let help = "no control characters, at most 4096 bytes";
        report.bad(value, " as the value of a field", help);
        return None;
    }
    Some((name.value.clone(), value.value.clone()))
}

fn grpc(written: &written::Grpc, report: &Report) -> Option<ProbeAction> {
    let port = report.required(written.port.as_ref(), &written.at, "port")?;
    let service = match &written.service {
        None => Some("".into()),
        Some(text) => service(text, report),
    };
    Some(ProbeAction::Grpc {
        port: report.port(port)?,
        service: service?,
    })
}

/// The service that is asked about.
pub(in crate::check) fn service(text: &Text, report: &Report) -> Option<Arc<str>> {
    let short = |name: &str| (name.len() <= MAX_SERVICE_BYTES).then(|| name.into());
    report.parsed(text, "a service", short, "at most 1024 bytes")
}

fn exec(written: &written::Exec, report: &Report) -> Option<ProbeAction> {
    let program = written.command.first();
    report.required(program, &written.at, "command")?;
    if let Some(text) = written
        .command
        .iter()
        .find(|text| text.value.contains('\0'))
    {
        let help = "remove the NUL character";
        report.bad(text, " as an argument", help);
        return None;
    }
    let words = written.command.iter().map(|text| text.value.clone());
    Some(ProbeAction::Exec {
        command: words.collect(),
    })
}

/// A number, or the name of one of the container's own ports.
fn port(
    written: Option<&SpannedValue<IntegerOrText>>,
    parent: &FieldPath,
    among: ProbeNames<'_>,
    report: &Report,
) -> Option<Port> {
    let written = report.required(written, parent, "port")?;
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
