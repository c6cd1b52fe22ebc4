//! Events of a definition: the action on a contestant, and its time in every slice.

use std::time::Duration;

use super::written::{ComplaintLocation, WrittenEvent};
use crate::definition::error::DefinitionError;

/// Most events of a slice: a reader cannot follow more.
const MAX_EVENTS: usize = 20;
/// Default factor of a slow request: so many times the median before.
const SLOW_FACTOR: f64 = 3.0;
/// Time before the first event, whose median defines slowness; and time after the last event, for
/// recovery.
const MARGIN: Duration = Duration::from_millis(300);

/// Action of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventAction {
    /// A policy is changed.
    PushPolicy,
    /// So many authorization policies are changed at once.
    ChangePolicies(u32),
    /// Workloads get new certificates.
    RotateCertificates,
    /// The server behind the service becomes another one.
    MoveEndpoints,
    /// The server's sidecar is ended and started again.
    RestartProxy,
    /// A new process takes over from the server's sidecar.
    UpgradeProxy,
    /// The control plane is killed; it is started again after the slice.
    KillControlPlane,
    /// A command is run.
    Hook(Vec<String>),
}

/// Words of definitions.
const ACTIONS: [&str; 8] = [
    "push-policy",
    "rotate-certificates",
    "move-endpoints",
    "restart-proxy",
    "upgrade-proxy",
    "kill-control-plane",
    "hook",
    "change-policies",
];

/// Policies that are changed at once, where the definition does not say, and the most it may say.
const POLICIES: u32 = 1_000;
const MOST_POLICIES: u32 = 100_000;
/// The load's own and the two that tell generations apart, and as many for the next generation.
const LEAST_POLICIES: u32 = 4;

impl EventAction {
    /// Its word in definitions and records.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::PushPolicy => ACTIONS[0],
            Self::RotateCertificates => ACTIONS[1],
            Self::MoveEndpoints => ACTIONS[2],
            Self::RestartProxy => ACTIONS[3],
            Self::UpgradeProxy => ACTIONS[4],
            Self::KillControlPlane => ACTIONS[5],
            Self::Hook(_) => ACTIONS[6],
            Self::ChangePolicies(_) => ACTIONS[7],
        }
    }

    /// Returns true if the action ends proxy processes, and their counters with them.
    pub(crate) fn replaces_proxies(&self) -> bool {
        matches!(self, Self::RestartProxy | Self::UpgradeProxy)
    }
}

/// An event on the time axis of a slice.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduledEvent {
    /// After the measured part began.
    pub at: Duration,
    /// Action of the event.
    pub action: EventAction,
    /// Factor of a slow request: so many times the median before the first event.
    pub slow_factor: f64,
}

pub(super) fn events(
    place: &ComplaintLocation<'_>,
    written: Vec<WrittenEvent>,
    slice: Duration,
) -> Result<Vec<ScheduledEvent>, DefinitionError> {
    let mut events: Vec<ScheduledEvent> = Vec::new();
    for event in written {
        let last = slice.saturating_sub(MARGIN);
        let at = place.duration("at", &event.at, MARGIN.min(last)..=last)?;
        if events.last().is_some_and(|before| before.at > at) {
            return Err(place.error(
                event.at.span(),
                "events must be in the order of their times",
            ));
        }
        let word = place.word("action", &event.action, &ACTIONS)?;
        let count = match &event.count {
            Some(count) if word == "change-policies" => {
                place.number("count", count, LEAST_POLICIES..=MOST_POLICIES)?
            }
            Some(count) => {
                let why = format!("count belongs to action \"change-policies\", not to \"{word}\"");
                return Err(place.error(count.span(), why));
            }
            None => POLICIES,
        };
        let action = match (word.as_str(), event.command) {
            ("change-policies", None) => EventAction::ChangePolicies(count),
            ("hook", Some(command)) if !command.is_empty() => EventAction::Hook(command),
            ("hook", _) => {
                let why = "a hook needs its command: command = [\"program\", \"argument\"]";
                return Err(place.error(event.action.span(), why));
            }
            (_, Some(_)) => {
                let why = format!("command belongs to action \"hook\", not to \"{word}\"");
                return Err(place.error(event.action.span(), why));
            }
            ("push-policy", None) => EventAction::PushPolicy,
            ("rotate-certificates", None) => EventAction::RotateCertificates,
            ("move-endpoints", None) => EventAction::MoveEndpoints,
            ("restart-proxy", None) => EventAction::RestartProxy,
            ("upgrade-proxy", None) => EventAction::UpgradeProxy,
            _ => EventAction::KillControlPlane,
        };
        let slow_factor = match &event.slow_factor {
            Some(factor) => place.number("slow_factor", factor, 1.0..=1000.0)?,
            None => SLOW_FACTOR,
        };
        if events.len() == MAX_EVENTS {
            let why = format!("more than {MAX_EVENTS} events in one slice");
            return Err(place.error(event.action.span(), why));
        }
        events.push(ScheduledEvent {
            at,
            action,
            slow_factor,
        });
    }
    Ok(events)
}
