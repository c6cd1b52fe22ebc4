//! Endpoints that are known by a name. The resolvers of the calling pod look the name up, from inside the pod, when
//! it connects and the last answer has expired. Nothing is looked up without connections. The last good answer serves
//! while a new one is sought, and goes on serving when none is found.
//!
//! ```text
//! worker ─ Question ─► Lookups of the pod ─ known ─────────────────────────► addresses
//!                                          └ unknown ─ resolver ─ Table ──┘
//! ```

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, oneshot};
use voile_dns::{DnsQuestion, LookupError, NameState, ResolvedAddresses, Resolver, Table};
use voile_telemetry::OnDemandFigures;

use crate::pod::Pod;

/// Names that are kept for one pod; the one unused for longest makes room. A node has a hundred pods, and a mesh that names more
/// hosts outside than these has others ask for most of them.
const MAX_NAMES: usize = 1024;
/// Names looked up at once for one pod, each by two sockets; more wait their turn.
const MAX_LOOKUPS: usize = 16;
/// Time after which an unused name and its addresses are forgotten: other hosts may have those addresses by then.
const UNUSED_FOR: Duration = Duration::from_mins(10);

/// Addresses of a name, at least one; or the reason why there is none.
pub(crate) type Resolved = Result<Arc<[IpAddr]>, Arc<str>>;

/// A worker's question for the addresses of a name, to which a connection of a pod goes.
#[derive(Debug)]
pub(crate) struct NameLookup {
    pub(crate) pod: Arc<Pod>,
    pub(crate) host: Arc<str>,
    pub(crate) answer: oneshot::Sender<Resolved>,
}

#[derive(Default)]
struct ResolvedNames {
    table: Table,
    /// Connections that wait for a name.
    waiting: HashMap<Arc<str>, Vec<oneshot::Sender<Resolved>>>,
}

/// See the module.
pub(crate) struct Lookups {
    resolver: Rc<Resolver>,
    turns: Semaphore,
    known: RefCell<ResolvedNames>,
    /// When each was called last.
    called: RefCell<DnsQuestion>,
    begun: Cell<u64>,
    failed: Cell<u64>,
}

impl Lookups {
    pub(crate) fn new(resolver: Rc<Resolver>) -> Rc<Self> {
        Rc::new(Self {
            resolver,
            turns: Semaphore::new(MAX_LOOKUPS),
            known: RefCell::default(),
            called: RefCell::new(DnsQuestion::at_most(MAX_NAMES)),
            begun: Cell::new(0),
            failed: Cell::new(0),
        })
    }

    /// A connection is for this name.
    pub(crate) fn resolve(self: &Rc<Self>, host: &Arc<str>, answer: oneshot::Sender<Resolved>) {
        let now = Instant::now();
        let asking = self.called.borrow_mut().used(host, now);
        let mut known = self.known.borrow_mut();
        known.forget(&asking.let_go);
        let ask = known.table.used(host, now);
        // A caller gets the last failure of a name. If the name is being looked up again, it waits for that result
        // instead.
        let tried = ask || known.waiting.contains_key(host);
        let answered = match known.table.state(host) {
            NameState::Known(addresses) => Some(Ok(Arc::clone(addresses))),
            NameState::Failed(why) if !tried => Some(Err(Arc::clone(why))),
            NameState::Failed(_) | NameState::Unknown => None,
        };
        match answered {
            // The waiting connection may be gone by now.
            Some(answered) => drop(answer.send(answered)),
            None => {
                let waiting = known.waiting.entry(Arc::clone(host)).or_default();
                waiting.retain(|other| !other.is_closed());
                waiting.push(answer);
            }
        }
        drop(known);
        if ask {
            tokio::task::spawn_local(Rc::clone(self).look_up(Arc::clone(host)));
        }
        if asking.sweep {
            let sweep = voile_dns::sweep(Rc::downgrade(self), Self::forget_unused);
            tokio::task::spawn_local(sweep);
        }
    }

    async fn look_up(self: Rc<Self>, host: Arc<str>) {
        self.begun.set(self.begun.get() + 1);
        let turn = self.turns.acquire().await;
        let answer = self.resolver.lookup(&host).await;
        drop(turn);
        self.settle(&host, &answer);
    }

    fn settle(&self, host: &Arc<str>, answer: &Result<ResolvedAddresses, LookupError>) {
        let mut known = self.known.borrow_mut();
        let now = Instant::now();
        let settled = known.table.settle(host, answer, now, fastrand::f64());
        let told: Resolved = match answer {
            Ok(found) => {
                if settled.changed {
                    tracing::info!(%host, addresses = ?found.addresses, ttl = ?found.ttl, "endpoint resolved");
                }
                Ok(found.addresses.as_slice().into())
            }
            Err(error) => {
                self.failed.set(self.failed.get() + 1);
                match (settled.stale, settled.changed) {
                    (true, _) => {
                        tracing::warn!(%host, %error, "cannot resolve the host again; the last good addresses stay in use");
                    }
                    (_, true) => {
                        tracing::warn!(%host, %error, "cannot resolve the host; calls go to other endpoints of its services, if any");
                    }
                    _ => tracing::debug!(%host, %error, "still cannot resolve the host"),
                }
                Err(error.to_string().into())
            }
        };
        for waiting in known.waiting.remove(host).unwrap_or_default() {
            // The waiting connection may be gone by now.
            let _ = waiting.send(told.clone());
        }
    }

    fn forget_unused(&self) -> Option<Instant> {
        let mut called = self.called.borrow_mut();
        let (unused, next) = called.unused(Instant::now(), UNUSED_FOR);
        self.known.borrow_mut().forget(&unused);
        next
    }

    pub(crate) fn figures(&self) -> OnDemandFigures {
        let (known, stale, failed) = self.known.borrow().table.counts();
        OnDemandFigures {
            lookups: self.begun.get(),
            failures: self.failed.get(),
            current: known.saturating_sub(stale),
            stale,
            failed,
        }
    }
}

impl ResolvedNames {
    /// Forgets these names, but keeps the waiting connections: a lookup that runs is answered.
    fn forget(&mut self, names: &[Arc<str>]) {
        if !names.is_empty() {
            let gone: std::collections::HashSet<&str> = names.iter().map(|name| &**name).collect();
            self.table.retain(|name| !gone.contains(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use voile_dns::Upstreams;

    use super::*;

    /// Lookups of a pod without a resolver.
    fn lookups() -> Rc<Lookups> {
        let upstreams = Rc::new(Upstreams::nobody());
        Lookups::new(Rc::new(Resolver::new(Path::new(""), upstreams)))
    }

    fn found(last: u8) -> Result<ResolvedAddresses, LookupError> {
        Ok(ResolvedAddresses {
            addresses: vec![[192, 0, 2, last].into()],
            ttl: Duration::from_secs(5),
        })
    }

    async fn told(lookups: &Rc<Lookups>, host: &str) -> String {
        let (answer, answered) = oneshot::channel();
        lookups.resolve(&host.into(), answer);
        match answered.await.expect("an answer") {
            Ok(addresses) => format!("{addresses:?}"),
            Err(why) => why.to_string(),
        }
    }

    fn on_a_thread(what: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        tokio::task::LocalSet::new().block_on(&runtime.expect("a runtime"), what);
    }

    #[test]
    fn the_last_good_answer_outlives_failures_and_a_name_that_never_had_one_is_tried_again() {
        on_a_thread(async {
            let lookups = lookups();
            let both = tokio::join!(told(&lookups, "a.test"), told(&lookups, "a.test"));
            let nobody = "no resolver is configured".to_owned();
            assert_eq!(both, (nobody.clone(), nobody));
            assert_eq!(lookups.figures().lookups, 1, "who comes meanwhile waits");
            lookups.settle(&"a.test".into(), &found(1));
            assert_eq!(told(&lookups, "a.test").await, "[192.0.2.1]");
            lookups.settle(&"a.test".into(), &Err(LookupError::Garbled));
            assert_eq!(told(&lookups, "a.test").await, "[192.0.2.1]");
            let figures = lookups.figures();
            let states = (figures.current, figures.stale, figures.failed);
            assert_eq!((states, figures.failures), ((0, 1, 0), 2));
        });
    }

    #[test]
    fn no_more_names_are_kept_than_there_is_room_for() {
        on_a_thread(async {
            let lookups = lookups();
            for number in 0..=MAX_NAMES {
                told(&lookups, &format!("n{number}.test")).await;
            }
            let kept = lookups.figures().failed;
            assert!((MAX_NAMES / 2..=MAX_NAMES).contains(&kept), "{kept}");
        });
    }
}
