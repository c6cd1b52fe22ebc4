//! Health of the application, by the probe of its WorkloadGroup. The control plane sends the probe and receives the result.
//! Counting is pure; probing blocks, so a thread of its own does it.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::watch;
use voile_model::mesh::Probe;
use voile_probe::{ProbeOrigin, ProbeRequest};
use voile_transport::CaptureExemption;
use voile_xds::client::{Health, XdsClient};
use voile_xds::wire::HealthProbe;

/// Equal results in a row.
#[derive(Debug)]
struct ConsecutiveAnswers {
    successes: u32,
    failures: u32,
    /// Last reported result.
    well: Option<bool>,
}

impl ConsecutiveAnswers {
    fn new() -> Self {
        Self {
            successes: 0,
            failures: 0,
            well: None,
        }
    }

    /// Counts one more answer; returns the result to report, if it changed.
    fn heard(&mut self, probe: &Probe, good: bool) -> Option<bool> {
        (self.successes, self.failures) = match good {
            true => (self.successes.saturating_add(1), 0),
            false => (0, self.failures.saturating_add(1)),
        };
        let well = match good {
            true => (self.successes >= probe.success_threshold).then_some(true),
            false => (self.failures >= probe.failure_threshold).then_some(false),
        };
        let news = well.filter(|well| self.well != Some(*well));
        self.well = news.or(self.well);
        news
    }
}

/// Origin of a probe's connection to our own application at this address.
pub(super) fn probe_origin(exemption: Option<CaptureExemption>, called: IpAddr) -> ProbeOrigin {
    let origin = exemption.map(|by| by.to_application(called));
    let origin = origin.unwrap_or_default();
    ProbeOrigin {
        mark: origin.mark,
        source: origin.source,
    }
}

/// Access to the application, and permission to run programs beside it.
#[derive(Debug, Clone, Copy)]
pub(in crate::control) struct ApplicationAccess {
    /// How the redirect rules recognise our connections.
    pub(in crate::control) exemption: Option<CaptureExemption>,
    /// Programs may be run because the control plane says so.
    pub(in crate::control) runs_programs: bool,
}

/// Probes as the latest setting says, until its sender is gone.
pub(in crate::control) async fn follow(
    mut wanted: watch::Receiver<Option<HealthProbe>>,
    client: XdsClient,
    reach: ApplicationAccess,
) {
    loop {
        let probe = wanted.borrow_and_update().clone();
        let changed = match probe {
            None => wanted.changed().await,
            Some(probe) => tokio::select! {
                never = ask_for_ever(probe.into(), &client, reach) => match never {},
                changed = wanted.changed() => changed,
            },
        };
        if changed.is_err() {
            return;
        }
    }
}

async fn ask_for_ever(
    asked: Arc<HealthProbe>,
    client: &XdsClient,
    reach: ApplicationAccess,
) -> std::convert::Infallible {
    let mut counted = ConsecutiveAnswers::new();
    tokio::time::sleep(asked.probe.initial_delay).await;
    loop {
        let begun = tokio::time::Instant::now();
        let question = Arc::clone(&asked);
        let answer = tokio::task::spawn_blocking(move || ask(&question, reach)).await;
        let answer = answer.unwrap_or_else(|error| Err(error.to_string()));
        if let Err(why) = &answer {
            tracing::debug!(why, "the health check of the application failed");
        }
        if let Some(well) = counted.heard(&asked.probe, answer.is_ok()) {
            match &answer {
                Ok(()) => tracing::info!("the application is healthy"),
                Err(why) => {
                    tracing::warn!(why, "the application is unhealthy: it takes no traffic");
                }
            }
            debug_assert_eq!(well, answer.is_ok());
            client.tell_health(answer);
        }
        tokio::time::sleep_until(begun + asked.probe.period).await;
    }
}

fn ask(asked: &HealthProbe, reach: ApplicationAccess) -> Health {
    let timeout = asked.probe.timeout;
    match ProbeRequest::from_action(&asked.probe.question) {
        Ok((port, question)) => {
            let address = (asked.address, port.get()).into();
            let origin = probe_origin(reach.exemption, asked.address);
            let answer = voile_probe::ask(address, origin, &question, timeout);
            answer.map(drop).map_err(|failure| failure.why)
        }
        Err(program) if reach.runs_programs => {
            voile_probe::run(program, timeout).map_err(|failure| failure.why)
        }
        Err(_) => Err(
            "the probe is a program, and this proxy may not run programs (`--exec-probes` permits it)".to_owned(),
        ),
    }
}

/// Sender of the application's health probe.
pub(crate) type AskForHealth = watch::Sender<Option<HealthProbe>>;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use voile_model::mesh::ProbeAction;

    use super::*;

    fn probe(successes: u32, failures: u32) -> Probe {
        Probe {
            question: ProbeAction::Exec {
                command: vec!["true".into()],
            },
            initial_delay: Duration::ZERO,
            period: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            success_threshold: successes,
            failure_threshold: failures,
            termination_grace: None,
        }
    }

    #[test]
    fn only_what_changes_is_told_and_only_after_so_many_answers_in_a_row() {
        for (successes, failures, answers, told) in [
            (1, 1, "+", "+"),
            (1, 1, "-", "-"),
            (1, 3, "--+--+---", "..+.....-"),
            (2, 1, "+-++-", ".-.+-"),
            (2, 2, "-+-+--++++", ".....-.+.."),
            (1, 1, "+++---+", "+..-..+"),
        ] {
            let (probe, mut counted) = (probe(successes, failures), ConsecutiveAnswers::new());
            let heard = answers
                .chars()
                .map(|answer| match counted.heard(&probe, answer == '+') {
                    Some(true) => '+',
                    Some(false) => '-',
                    None => '.',
                });
            let heard: String = heard.collect();
            assert_eq!(heard, told, "{answers} by {successes} and {failures}");
        }
    }

    #[test]
    fn a_program_is_run_only_where_the_proxy_was_told_that_it_may_be() {
        let reach = |runs_programs| ApplicationAccess {
            exemption: None,
            runs_programs,
        };
        let asked = |program: &[&str]| HealthProbe {
            probe: Probe {
                question: ProbeAction::Exec {
                    command: program.iter().map(|word| (*word).into()).collect(),
                },
                ..probe(1, 1)
            },
            address: std::net::Ipv4Addr::LOCALHOST.into(),
        };
        assert_eq!(ask(&asked(&["true"]), reach(true)), Ok(()));
        let refused = ask(&asked(&["true"]), reach(false)).expect_err("none is run");
        assert!(refused.contains("--exec-probes"), "{refused}");
        let failed = ask(&asked(&["sh", "-c", "exit 3"]), reach(true)).expect_err("it fails");
        assert!(failed.contains('3'), "{failed}");
        let missing = ask(&asked(&["/no/such/program"]), reach(true)).expect_err("there is none");
        assert!(missing.contains("/no/such/program"), "{missing}");
        let begun = Instant::now();
        let slow = ask(&asked(&["sleep", "600"]), reach(true)).expect_err("it takes too long");
        assert!(slow.contains("longer than 1s"), "{slow}");
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}
