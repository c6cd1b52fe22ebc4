//! Hosts outside the mesh, covered by patterns that ask DNS on demand: each is resolved when a client names it and a connection
//! is to be made. The DNS answer is not trusted: it must never lead to an address of the mesh, nor to this host itself.

use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, oneshot};
use voile_dns::{LookupError, ResolvedAddresses};

use crate::control::discovery::names::NameRequester;
use crate::control::discovery::state::Control;
use crate::worker::Resolved;

/// Hosts remembered; of more the one is forgotten that was not named for longest.
const MAX_HOSTS: usize = 1024;
/// Hosts asked for at once; more wait their turn. Endpoints' names have turns of their own.
const MAX_LOOKUPS: usize = 32;
/// Hosts that are asked for or wait for that: a client of ever other names waits for none.
const MAX_WAITING: usize = 1024;
/// Pause after a host could not be resolved, before the next question.
const PAUSE: Duration = Duration::from_secs(5);

/// See the module.
pub(in crate::control) struct ExternalHosts {
    pub(in crate::control) turns: Rc<Semaphore>,
    known: HashMap<Arc<str>, ExternalHost>,
    /// Connections that wait for a host's addresses.
    waiting: HashMap<Arc<str>, Vec<oneshot::Sender<Resolved>>>,
    /// Number of times that hosts were named.
    turn: u64,
}

/// Resolution of a host.
struct ExternalHost {
    found: Resolved,
    until: Instant,
    /// When it was named last, by `turn`.
    named: u64,
}

impl Default for ExternalHosts {
    fn default() -> Self {
        Self {
            turns: Rc::new(Semaphore::new(MAX_LOOKUPS)),
            known: HashMap::new(),
            waiting: HashMap::new(),
            turn: 0,
        }
    }
}

impl ExternalHosts {
    /// Resolution of a host, if it has not expired.
    fn named(&mut self, host: &str, now: Instant) -> Option<Resolved> {
        self.turn += 1;
        let known = self.known.get_mut(host)?;
        known.named = self.turn;
        (known.until > now).then(|| known.found.clone())
    }

    /// Stores an answer and returns the resolution. A failure keeps the earlier answer.
    fn settle(
        &mut self,
        host: &Arc<str>,
        answer: Result<ResolvedAddresses, LookupError>,
        now: Instant,
    ) -> Resolved {
        let (found, until) = match answer {
            Ok(found) => (Ok(found.addresses.into()), now + found.ttl),
            Err(error) => {
                let before = self
                    .known
                    .get(host)
                    .and_then(|known| known.found.clone().ok());
                (before.ok_or_else(|| error.to_string().into()), now + PAUSE)
            }
        };
        let known = ExternalHost {
            found: Resolved::clone(&found),
            until,
            named: self.turn,
        };
        self.known.insert(Arc::clone(host), known);
        if self.known.len() > MAX_HOSTS {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.named);
            if let Some(oldest) = oldest.map(|(host, _)| Arc::clone(host)) {
                self.known.remove(&oldest);
            }
        }
        found
    }
}

impl Control {
    /// A connection waits for the addresses of a host that a client named.
    pub(in crate::control) fn resolve_outside(
        &mut self,
        host: &Arc<str>,
        answer: oneshot::Sender<Resolved>,
    ) {
        let outside = &mut self.lookups.outside;
        if let Some(known) = outside.named(host, Instant::now()) {
            // The asking connection may have gone meanwhile.
            return drop(answer.send(self.led_outside(host, known)));
        }
        if let Some(others) = outside.waiting.get_mut(host) {
            others.retain(|other| !other.is_closed());
            return others.push(answer);
        }
        if outside.waiting.len() >= MAX_WAITING {
            let why = "too many DNS lookups in flight";
            return drop(answer.send(Err(why.into())));
        }
        outside.waiting.insert(Arc::clone(host), vec![answer]);
        self.lookups.begin(NameRequester::Client, Arc::clone(host));
    }

    /// A lookup of such a host ended.
    pub(in crate::control) fn outside_settled(
        &mut self,
        host: &Arc<str>,
        answer: Result<ResolvedAddresses, LookupError>,
    ) {
        let outside = &mut self.lookups.outside;
        let found = outside.settle(host, answer, Instant::now());
        let waiting = outside.waiting.remove(host).unwrap_or_default();
        let led = self.led_outside(host, found);
        for one in waiting {
            // The asking connection may have gone meanwhile.
            let _ = one.send(led.clone());
        }
    }

    /// The addresses that may be called; an error where none may.
    fn led_outside(&self, host: &str, found: Resolved) -> Resolved {
        let found = found?;
        let shared = self.shared();
        let registry = &shared.registry;
        let may = |address: &IpAddr| registry.may_be_outside(*address);
        let allowed: Arc<[IpAddr]> = found.iter().copied().filter(|one| may(one)).collect();
        if allowed.len() < found.len() {
            tracing::warn!(
                host,
                addresses = ?found,
                "DNS resolves an external host to an address of the mesh or of this host; the proxy does not call that address"
            );
        }
        match allowed.is_empty() {
            true => Err("all its addresses belong to the mesh or to this host".into()),
            false => Ok(allowed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(last: u8) -> Result<ResolvedAddresses, LookupError> {
        Ok(ResolvedAddresses {
            addresses: vec![IpAddr::from([192, 0, 2, last])],
            ttl: Duration::from_secs(30),
        })
    }

    #[test]
    fn an_answer_holds_until_it_expires_and_a_failure_leaves_the_last_good_one() {
        let (mut outside, host) = (ExternalHosts::default(), Arc::<str>::from("a.test"));
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(outside.named(&host, at(0)), None);
        let first = outside.settle(&host, found(1), at(0));
        assert_eq!(outside.named(&host, at(29)), Some(first.clone()));
        assert_eq!(outside.named(&host, at(30)), None);
        let stale = outside.settle(&host, Err(LookupError::NoSuchName), at(30));
        assert_eq!(stale, first);
        assert_eq!(outside.named(&host, at(34)), Some(first));
        assert_eq!(outside.named(&host, at(35)), None);
        let other = Arc::<str>::from("b.test");
        let failed = outside.settle(&other, Err(LookupError::NoSuchName), at(0));
        assert!(failed.is_err());
        assert_eq!(outside.named(&other, at(4)), Some(failed));
        assert_eq!(outside.named(&other, at(5)), None);
    }

    #[test]
    fn of_too_many_hosts_the_one_is_forgotten_that_was_not_named_for_longest() {
        let mut outside = ExternalHosts::default();
        let now = Instant::now();
        let host = |number: usize| Arc::<str>::from(format!("h{number}.test"));
        for number in 0..MAX_HOSTS {
            outside.named(&host(number), now);
            let _ = outside.settle(&host(number), found(1), now);
        }
        assert!(outside.named(&host(0), now).is_some());
        outside.named("new.test", now);
        let _ = outside.settle(&"new.test".into(), found(2), now);
        assert_eq!(outside.known.len(), MAX_HOSTS);
        assert!(outside.named(&host(0), now).is_some());
        assert_eq!(outside.named(&host(1), now), None);
        assert!(outside.named("new.test", now).is_some());
    }
}
