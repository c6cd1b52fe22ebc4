//! Endpoints known by a DNS name. A name is resolved when a worker uses it and the earlier answer has expired; unused
//! names are never resolved. The last good answer serves during the resolution, and after it fails.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Semaphore, mpsc, oneshot};
use voile_dns::{LookupError, NameState, ResolvedAddresses, Resolver, Table};
use voile_telemetry::{MetricFamily, OnDemandFigures};

use crate::control::discovery::external_hosts::ExternalHosts;
use crate::control::discovery::state::Control;
use crate::worker::Resolved;

/// Names asked for at once; more wait their turn.
const MAX_LOOKUPS: usize = 32;

/// Answer to a lookup, with its purpose.
pub(in crate::control) type Answer = (
    NameRequester,
    Arc<str>,
    Result<ResolvedAddresses, LookupError>,
);

/// Purpose of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::control) enum NameRequester {
    /// Endpoints are known by it.
    Endpoints,
    /// A client named it.
    Client,
}

/// See the module.
pub(in crate::control) struct Lookups {
    resolver: Rc<Resolver>,
    turns: Rc<Semaphore>,
    answers: mpsc::UnboundedSender<Answer>,
    /// Connections that wait for a name's first answer.
    waiting: HashMap<Arc<str>, Vec<oneshot::Sender<Resolved>>>,
    /// Hosts that clients name.
    pub(in crate::control) outside: ExternalHosts,
    /// Lookups begun, and those that found nothing.
    begun: u64,
    failed: u64,
}

impl Lookups {
    /// Answers come back through the receiver.
    pub(in crate::control) fn new(
        resolver: Rc<Resolver>,
    ) -> (Self, mpsc::UnboundedReceiver<Answer>) {
        let (answers, heard) = mpsc::unbounded_channel();
        let lookups = Self {
            resolver,
            turns: Rc::new(Semaphore::new(MAX_LOOKUPS)),
            answers,
            waiting: HashMap::new(),
            outside: ExternalHosts::default(),
            begun: 0,
            failed: 0,
        };
        (lookups, heard)
    }

    /// For the metrics page.
    pub(in crate::control) fn families(&self, names: &Table) -> [MetricFamily; 3] {
        let (known, stale, unknown) = names.counts();
        let figures = OnDemandFigures {
            lookups: self.begun,
            failures: self.failed,
            current: known.saturating_sub(stale),
            stale,
            failed: unknown,
        };
        figures.families()
    }

    pub(in crate::control) fn begin(&mut self, asked: NameRequester, host: Arc<str>) {
        self.begun += 1;
        let turns = match asked {
            NameRequester::Endpoints => &self.turns,
            NameRequester::Client => &self.outside.turns,
        };
        let (resolver, turns) = (Rc::clone(&self.resolver), Rc::clone(turns));
        let answers = self.answers.clone();
        tokio::task::spawn_local(async move {
            let _turn = turns.acquire().await;
            let answer = resolver.lookup(&host).await;
            // Without a receiver the process is ending.
            let _ = answers.send((asked, host, answer));
        });
    }
}

impl Control {
    /// Calls go to endpoints of this name.
    pub(in crate::control) fn name_used(&mut self, host: &Arc<str>) {
        let ask = self.shared().registry.names.used(host, Instant::now());
        if ask {
            self.lookups
                .begin(NameRequester::Endpoints, Arc::clone(host));
        }
    }

    /// A connection waits for the addresses of a name.
    pub(in crate::control) fn resolve(
        &mut self,
        host: &Arc<str>,
        answer: oneshot::Sender<Resolved>,
    ) {
        self.name_used(host);
        let known = resolved(self.shared().registry.names.state(host));
        match known {
            // The asking connection may have gone meanwhile.
            Some(known) => drop(answer.send(known)),
            None => {
                let waiting = self.lookups.waiting.entry(Arc::clone(host)).or_default();
                waiting.retain(|other| !other.is_closed());
                waiting.push(answer);
            }
        }
    }

    /// A lookup ended.
    pub(in crate::control) fn name_settled(&mut self, (asked, host, answer): Answer) {
        if asked == NameRequester::Client {
            self.lookups.failed += u64::from(answer.is_err());
            return self.outside_settled(&host, answer);
        }
        let settled =
            self.shared()
                .registry
                .names
                .settle(&host, &answer, Instant::now(), fastrand::f64());
        self.lookups.failed += u64::from(answer.is_err());
        match &answer {
            Ok(found) if settled.changed => {
                tracing::info!(%host, addresses = ?found.addresses, ttl = ?found.ttl, "endpoints resolved");
            }
            Ok(_) => {}
            Err(error) if settled.stale => {
                tracing::warn!(%host, %error, "cannot resolve the host again; the last good addresses stay in use");
            }
            Err(error) if settled.changed => {
                tracing::warn!(%host, %error, "cannot resolve the host; calls to its services are answered 503 unless they have other endpoints");
            }
            Err(error) => tracing::debug!(%host, %error, "still cannot resolve the host"),
        }
        for waiting in self.lookups.waiting.remove(&host).unwrap_or_default() {
            let known = match &answer {
                Ok(found) => Ok(found.addresses.as_slice().into()),
                Err(error) => Err(error.to_string().into()),
            };
            // The asking connection may have gone meanwhile.
            let _ = waiting.send(known);
        }
        if settled.changed {
            self.publish();
        }
    }
}

fn resolved(state: &NameState) -> Option<Resolved> {
    match state {
        NameState::Unknown => None,
        NameState::Known(addresses) => Some(Ok(Arc::clone(addresses))),
        NameState::Failed(why) => Some(Err(Arc::clone(why))),
    }
}
