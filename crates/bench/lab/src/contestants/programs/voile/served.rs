//! One sidecar of Voile: its command line, here or at an agent's, and the counts in its metrics.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use voile_host::child::Spec;
use voile_host::ready::{Probe, http_get};

use super::{LOCAL, Ports, SERVER, Voile, VoileSidecar, local_port};
use crate::agent::{AgentConnection, AgentProgram, VoileOrder};
use crate::contestants::contestant::{ExpectedOutput, RecordedOutput};
use crate::contestants::effect_evidence::READY_PATH;
use crate::contestants::served_process::{ServedProcess, place};
use crate::definition::{FORGED, MatchedRule, PolicyAction, RefusalKind};
use crate::plan::ContestantSetup;
use crate::process::Process;
use crate::shared_processes::Lab;

/// The counters of Istio's standard metrics.
const REQUESTS: &str = "istio_requests_total";
/// Counters of policy decisions, and of those that dry-run policies would have made.
const JUDGED: &str = "voile_authorization_total";
const SHADOWED: &str = "voile_authorization_dry_run_total";
/// Counter of token checks.
const TOKENS: &str = "voile_tokens_total";
/// Counters of records sent to collectors.
const ENTRIES_SENT: &str = "voile_access_log_sent_total";
const SPANS_SENT: &str = "voile_spans_sent_total";
pub(crate) const CONNECTIONS: &str = "istio_tcp_connections_opened_total";
/// The series of questions that were answered with yes.
const ASKED: &str = "voile_authorization_asked_total{verdict=\"allowed\"}";
/// Input for the start of a sidecar.
pub(crate) struct SidecarSettings<'a> {
    pub(crate) account: &'a str,
    pub(crate) control: SocketAddr,
    pub(crate) root: &'a Path,
    pub(crate) token: &'a Path,
    /// Addresses of its own pages: administration, metrics, readiness.
    pub(crate) pages: [SocketAddr; 3],
    pub(crate) workers: u32,
}

/// Its command line.
pub(crate) fn tell(spec: Spec, told: &SidecarSettings<'_>) -> Spec {
    let [admin, metrics, readiness] = told.pages.map(|page| page.to_string());
    spec.args(["proxy", "--workload", told.account])
        .args(["--control", &format!("https://{}", told.control)])
        .arg("--root-cert")
        .arg(told.root)
        .arg("--token-file")
        .arg(told.token)
        .args(["--admin", &admin, "--metrics", &metrics])
        .args(["--readiness", &readiness])
        .args(["--workers", &told.workers.to_string()])
}

/// A port that is free on both ends.
pub(super) fn far_port(far: &AgentConnection, near: IpAddr) -> Result<u16, String> {
    const AT_ONCE: u16 = 4;
    for _ in 0..25 {
        for port in far.ports(AT_ONCE)? {
            if std::net::TcpListener::bind((near, port)).is_ok() {
                return Ok(port);
            }
        }
    }
    Err(format!(
        "no port is free on both {near} and {}",
        far.address()
    ))
}

impl Voile {
    /// Has the server's sidecar started at the agent's.
    pub(super) fn send(
        &self,
        lab: &Lab<'_>,
        far: &AgentConnection,
        state: &Path,
        ports: &Ports,
        token_file: &Path,
    ) -> Result<VoileSidecar, String> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|e| format!("reading {}: {e}", path.display()))
        };
        let order = VoileOrder {
            contestant: self.variant.name.clone(),
            other_build: self.variant.program.is_some(),
            control: ports.control,
            root: read(&state.join("root-cert.pem"))?,
            token: read(token_file)?,
        };
        let (process, _) = lab.start_there(far, AgentProgram::Voile(Box::new(order)))?;
        let nowhere = SocketAddr::new(LOCAL, 0);
        Ok(VoileSidecar {
            process: Process::There(process),
            role: SERVER,
            admin: nowhere,
            metrics: nowhere,
            readiness: nowhere,
            ready_path: READY_PATH,
        })
    }

    /// Checks if the contestant can be measured with the server's sidecar on another machine.
    pub(super) fn possible(&self, lab: &Lab<'_>) -> Result<(), String> {
        let why = if self.stock.is_some() {
            "has its certificates in a folder of the lab, which two machines do not share"
        } else if !self.variant.arguments.is_empty() {
            "gives `voile proxy` its own arguments, which an agent does not accept"
        } else if self.variant.append.contains("${FOLDER}") {
            "writes into a folder, which two machines do not share"
        } else if self.variant.watched.is_some() {
            "is watched at its administration pages, which the agent does not reach for others"
        } else if self.outfit.refusal().is_some() {
            "refuses requests, but an agent counts good answers"
        } else {
            return Ok(());
        };
        if lab.far.is_none() {
            return Ok(());
        }
        Err(format!(
            "{} {why}: measured on one machine only",
            self.variant.name
        ))
    }
}

/// Text in a variant's resources that makes it send records to collectors.
const LOG_SERVICE: &str = "accessLogging:";
const SAMPLING: &str = "sampling: ";

impl VoileSidecar {
    /// Entries and spans that it has sent, where its resources want them.
    pub(super) fn sent(
        &self,
        resources: &str,
        protocol: &str,
    ) -> Result<Vec<RecordedOutput>, String> {
        let Process::Here(process) = &self.process else {
            return Ok(Vec::new());
        };
        let sampling = resources.split_once(SAMPLING);
        let percent = sampling.and_then(|(_, rest)| rest.lines().next()?.trim().parse().ok());
        let spans = percent.filter(|_| protocol != "tcp");
        let entries = resources.contains(LOG_SERVICE).then_some(100);
        let mut all = Vec::new();
        for (percent, counter, what) in [
            (
                entries,
                ENTRIES_SENT,
                "entries that the {} sent to the access log service",
            ),
            (spans, SPANS_SENT, "spans that the {} sent"),
        ] {
            let Some(percent) = percent else { continue };
            let text = exposition(process.name(), self.metrics)?;
            all.push(RecordedOutput {
                what: format!("{}, by its metrics", what.replace("{}", self.role)),
                count: counted(&text, counter, ""),
                expected: ExpectedOutput::OneOf(100 / std::cmp::max(percent, 1_u64)),
            });
        }
        Ok(all)
    }

    /// Number of requests that the policies have judged as the outfit requires, and number of checked tokens. Empty if no metric
    /// shows it.
    pub(super) fn judged(&self, outfit: &ContestantSetup) -> Result<Vec<RecordedOutput>, String> {
        let Process::Here(process) = &self.process else {
            return Ok(Vec::new());
        };
        let text = exposition(process.name(), self.metrics)?;
        let counters = [token_counter(outfit), policy_counter(outfit)];
        let one = |(counter, verdict, what): Counter| RecordedOutput {
            what: format!("{what}, by the {}'s metrics", self.role),
            count: counted(&text, counter, verdict),
            expected: ExpectedOutput::OneOf(1),
        };
        Ok(counters.into_iter().flatten().map(one).collect())
    }
}

/// A counter, a label of it, and the counted events.
type Counter = (&'static str, &'static str, &'static str);

/// Counter that grows with the tokens of requests.
fn token_counter(outfit: &ContestantSetup) -> Option<Counter> {
    let (verdict, what) = match outfit.token.as_str() {
        "" => ("verdict=\"none\"", "requests without a token"),
        FORGED => ("verdict=\"refused\"", "tokens refused"),
        _ => ("verdict=\"verified\"", "tokens verified"),
    };
    outfit.believes().then_some((TOKENS, verdict, what))
}

/// Counter that grows with policy decisions.
fn policy_counter(outfit: &ContestantSetup) -> Option<Counter> {
    // A request whose token is refused reaches no policy.
    if !outfit.has_policies() || outfit.refusal() == Some(RefusalKind::Unknown) {
        return None;
    }
    match outfit.meeting() {
        Some(meeting) if meeting.action == PolicyAction::DryRun => {
            let what = "requests that dry-run policies would have refused";
            let found = (SHADOWED, "verdict=\"denied\"", what);
            (meeting.hit != MatchedRule::Miss).then_some(found)
        }
        Some(meeting) if meeting.denies() => {
            let what = "requests that policies refused";
            Some((JUDGED, "verdict=\"denied\"", what))
        }
        _ => {
            let what = "requests that policies let in";
            Some((JUDGED, "verdict=\"allowed\"", what))
        }
    }
}

/// At an agent's: the server's sidecar, of that program.
pub(crate) fn serve(
    lab: &Lab<'_>,
    order: &VoileOrder,
    program: &Path,
) -> Result<ServedProcess, String> {
    let root = place(lab.folder, "root-cert.pem", &order.root)?;
    let token = place(lab.folder, "server.token", &order.token)?;
    let pages = [local_port()?, local_port()?, local_port()?];
    let told = SidecarSettings {
        account: "lab/server",
        control: order.control,
        root: &root,
        token: &token,
        pages,
        workers: lab.workers,
    };
    let name = format!("{}-server", order.contestant);
    let spec = tell(lab.process(SERVER, &name, program)?, &told);
    let [admin, metrics, readiness] = pages;
    Ok(ServedProcess {
        process: spec.start().map_err(|e| e.to_string())?,
        probe: Probe::Http(readiness, "/healthz/ready".to_owned()),
        count: Box::new(move |protocol| metric(&name, metrics, protocol, None).map(Some)),
        tls: Box::new(|| None),
        certificates: Some(admin),
        tidy: Box::new(|| {}),
    })
}

/// Questions that an external service has answered with yes.
pub(super) fn asked(name: &str, page: SocketAddr) -> Result<u64, String> {
    let text = exposition(name, page)?;
    let allowed = text.lines().find_map(|line| line.strip_prefix(ASKED));
    Ok(allowed
        .and_then(|count| count.trim().parse::<f64>().ok())
        .unwrap_or(0.0) as u64)
}

/// Text of a sidecar's metrics page.
pub(super) fn exposition(name: &str, page: SocketAddr) -> Result<String, String> {
    let (status, body) =
        http_get(page, "/metrics").map_err(|e| format!("{name}'s metrics: {e}"))?;
    if status != 200 {
        return Err(format!("{name}'s metrics answer {status}"));
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Requests that a sidecar has carried, or refused, by its metrics.
pub(crate) fn metric(
    name: &str,
    page: SocketAddr,
    protocol: &str,
    refused: Option<RefusalKind>,
) -> Result<u64, String> {
    let counter = if protocol == "tcp" {
        CONNECTIONS
    } else {
        REQUESTS
    };
    let text = exposition(name, page)?;
    Ok(counted(&text, counter, &labels(protocol, refused)))
}

/// Labels of requests that were answered well, or refused; every connection is carried.
fn labels(protocol: &str, refused: Option<RefusalKind>) -> String {
    let [http, grpc] = refused.map_or(["2", "0"], RefusalKind::statuses);
    match protocol {
        "tcp" => String::new(),
        "grpc" => format!("grpc_response_status=\"{grpc}\""),
        // Good answers with any detail.
        _ => format!("response_code=\"{http}"),
    }
}

/// Sum of all series of a counter with these labels. For requests the labels select those answered well, or those refused, so
/// that refused requests are never taken for served ones.
pub(crate) fn counted(exposition: &str, counter: &str, labels: &str) -> u64 {
    exposition
        .lines()
        .filter(|line| {
            line.strip_prefix(counter)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        })
        .filter(|line| line.contains(labels))
        .filter_map(|line| {
            let after_labels = line.rfind('}').map_or(line, |at| &line[at + 1..]);
            after_labels
                .split_ascii_whitespace()
                .find_map(|word| word.parse::<f64>().ok())
        })
        .sum::<f64>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_requests_are_added_up_over_their_series_and_no_others() {
        let text = "# TYPE istio_requests_total counter\n\
            istio_requests_total{response_code=\"200\",grpc_response_status=\"0\",path=\"a b\"} 5\n\
            istio_requests_total{response_code=\"204\"} 3 1700000000\n\
            istio_requests_total{response_code=\"200\",grpc_response_status=\"7\"} 30\n\
            istio_requests_total{response_code=\"403\"} 2 1700000000\n\
            istio_requests_total{response_code=\"401\"} 4 1700000000\n\
            istio_requests_totally{x=\"y\"} 100\nistio_request_bytes_count{} 9\n";
        for (protocol, refused, expected) in [
            ("http1", None, 38),
            ("http1", Some(RefusalKind::Forbidden), 2),
            ("http1", Some(RefusalKind::Unknown), 4),
            ("grpc", None, 5),
            ("grpc", Some(RefusalKind::Forbidden), 30),
        ] {
            let found = counted(text, REQUESTS, &labels(protocol, refused));
            assert_eq!(found, expected, "{protocol} {refused:?}");
        }
        let text = "istio_tcp_connections_opened_total{response_flags=\"-\"} 4\n";
        assert_eq!(counted(text, CONNECTIONS, &labels("tcp", None)), 4);
    }
}
