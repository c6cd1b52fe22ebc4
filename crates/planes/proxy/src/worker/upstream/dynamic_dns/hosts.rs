//! Endpoints of named hosts: found, or made at the first request.

use std::rc::Rc;
use std::sync::Arc;

use voile_model::Hostname;
use voile_model::names::is_mesh_name;

use super::OnDemand;
use crate::plan::{EndpointPlan, NamePlan};
use crate::worker::Worker;
use crate::worker::upstream::balance::EndpointPreference;
use crate::worker::upstream::endpoint::{EarlierEndpoints, Endpoint, InFlight};

/// Hosts of one pattern that a worker keeps; each costs some hundred bytes, and its idle connections are the pool's.
const MAX_HOSTS: usize = 256;

impl OnDemand {
    /// Endpoint of the named host, unless it failed the request before; `None` without a host, or for one outside the
    /// pattern.
    pub(crate) fn choose(&self, worker: &Worker, wish: EndpointPreference<'_>) -> Option<InFlight> {
        let host = wish.host.filter(|_| self.plan.available)?;
        let endpoint = self.endpoint(worker, host)?;
        let untried = !wish.tried.contains(&endpoint.key);
        untried.then(|| InFlight::begin(&endpoint, 0, None))
    }

    fn endpoint(&self, worker: &Worker, host: &str) -> Option<Rc<Endpoint>> {
        let mut hosts = self.hosts.borrow_mut();
        hosts.turn += 1;
        let turn = hosts.turn;
        if let Some((known, named)) = hosts.known.get_mut(host) {
            *named = turn;
            return Some(Rc::clone(known));
        }
        // The worker never asks DNS outside for a name of the mesh, even if the pattern covers it.
        let meant = Hostname::new(host).filter(|host| self.pattern.covers(host));
        let meant = meant.filter(|host| !host.is_wildcard() && !is_mesh_name(host.as_str()))?;
        let host: Arc<str> = meant.as_str().into();
        let plan = EndpointPlan {
            name: Some(NamePlan {
                host: Arc::clone(&host),
                logical: true,
                on_demand: true,
            }),
            ..self.plan.clone()
        };
        let made = Endpoint::follow(worker, &EarlierEndpoints::new([]), &plan);
        if hosts.known.len() >= MAX_HOSTS {
            let oldest = hosts.known.iter().min_by_key(|(_, (_, named))| *named);
            if let Some(oldest) = oldest.map(|(host, _)| Arc::clone(host)) {
                hosts.known.remove(&oldest);
            }
        }
        hosts.known.insert(host, (Rc::clone(&made), turn));
        Some(made)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::plan::{EndpointRank, Settings};
    use crate::worker::tests::{Stage, play};

    fn hosts_of(pattern: &str) -> OnDemand {
        let name = NamePlan {
            host: pattern.into(),
            logical: true,
            on_demand: true,
        };
        OnDemand {
            pattern: Hostname::new(pattern).expect("a pattern"),
            plan: EndpointPlan {
                name: Some(name),
                address: "0.0.0.0:80".parse().expect("an address"),
                expected: None,
                weight: 1,
                available: true,
                origination: None,
                rank: EndpointRank::default(),
                peer: Default::default(),
            },
            hosts: RefCell::default(),
        }
    }

    /// Selects the endpoint of a host for a request that `tried` endpoints failed before.
    fn chosen(of: &OnDemand, worker: &Worker, host: &str, tried: &[u32]) -> Option<Rc<Endpoint>> {
        let wish = EndpointPreference {
            key: None,
            tried,
            opaque: false,
            host: Some(host),
        };
        of.choose(worker, wish).map(|one| Rc::clone(&one.endpoint))
    }

    #[test]
    fn each_host_that_a_pattern_covers_is_an_endpoint_of_its_own_and_no_other_is_any() {
        play(|| async {
            let stage = Stage::new(Settings::default());
            let mut of = hosts_of("*.dyn.test");
            let choose = |of: &OnDemand, host: &str| chosen(of, &stage.worker, host, &[]);
            let a = choose(&of, "a.dyn.test").expect("an endpoint");
            let b = choose(&of, "b.dyn.test").expect("an endpoint");
            assert_eq!(a.plan.host_on_demand(), Some("a.dyn.test"));
            assert_eq!(b.plan.host_on_demand(), Some("b.dyn.test"));
            assert_ne!(a.key, b.key, "no connection of one is the other's");
            let again = choose(&of, "a.dyn.test").expect("an endpoint");
            assert!(Rc::ptr_eq(&again, &a));
            for host in ["dyn.test", "other.test", "*.dyn.test", "a dyn.test", ""] {
                assert!(choose(&of, host).is_none(), "{host}");
            }
            // The host has no other endpoint.
            let failed = chosen(&of, &stage.worker, "a.dyn.test", &[a.key]);
            assert!(failed.is_none());
            assert!(chosen(&of, &stage.worker, "b.dyn.test", &[a.key]).is_some());
            of.plan.available = false;
            assert!(choose(&of, "a.dyn.test").is_none());
            // A name of the mesh is never asked outside, even if the pattern covers it.
            let all = hosts_of("*.local");
            assert!(choose(&all, "printer.local").is_some());
            assert!(choose(&all, "web.shop.svc.cluster.local").is_none());
        });
    }

    #[test]
    fn of_too_many_hosts_the_one_goes_that_was_not_named_for_longest() {
        play(|| async {
            let stage = Stage::new(Settings::default());
            let of = hosts_of("*.dyn.test");
            let choose = |host: &str| chosen(&of, &stage.worker, host, &[]).expect("an endpoint");
            let host = |number: usize| format!("h{number}.dyn.test");
            let first: Vec<_> = (0..MAX_HOSTS).map(|number| choose(&host(number))).collect();
            assert!(Rc::ptr_eq(&choose(&host(0)), &first[0]));
            for more in 0..3 {
                choose(&format!("more{more}.dyn.test"));
                assert_eq!(of.hosts.borrow().known.len(), MAX_HOSTS);
            }
            // The hosts after the first were removed; the first was named once more.
            assert!(Rc::ptr_eq(&choose(&host(0)), &first[0]));
            assert!(Rc::ptr_eq(&choose(&host(4)), &first[4]));
            for (gone, was) in first.iter().enumerate().take(4).skip(1) {
                assert!(!Rc::ptr_eq(&choose(&host(gone)), was), "{gone}");
            }
        });
    }
}
