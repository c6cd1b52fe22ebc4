//! The hosts of a pattern (`DYNAMIC_DNS`), each an endpoint of its own from when a client first names it until too many others were
//! named since. Where each is, is asked of DNS when a connection is made; nothing is called that the pattern does not cover.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use voile_model::Hostname;
use voile_model::names::is_mesh_name;

use super::Worker;
use super::balance::Wish;
use super::endpoint::{Endpoint, InFlight, Known};
use crate::plan::{EndpointPlan, NamePlan, ServicePlan};

/// Hosts of one pattern that a worker keeps; each costs some hundred bytes, and its idle connections are the pool's.
const MAX_HOSTS: usize = 256;

/// See the module.
pub(crate) struct OnDemand {
    pattern: Hostname,
    /// What every host is, but for its name.
    plan: EndpointPlan,
    hosts: RefCell<Hosts>,
}

#[derive(Default)]
struct Hosts {
    known: HashMap<Arc<str>, (Rc<Endpoint>, u64)>,
    /// How often any was named.
    turn: u64,
}

impl OnDemand {
    /// Of a service whose endpoint is a pattern: the same as before, if that is the same.
    pub(crate) fn follow(before: Option<&Rc<Self>>, plan: &ServicePlan) -> Option<Rc<Self>> {
        let [only] = &plan.endpoints[..] else {
            return None;
        };
        let pattern = Hostname::new(only.host_on_demand()?)?;
        if let Some(before) = before.filter(|before| before.plan == *only) {
            return Some(Rc::clone(before));
        }
        Some(Rc::new(Self {
            pattern,
            plan: only.clone(),
            hosts: RefCell::default(),
        }))
    }

    /// The host that was named, unless it failed the request before; nobody where none was, or one that is not meant.
    pub(crate) fn choose(&self, worker: &Worker, wish: Wish<'_>) -> Option<InFlight> {
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
        // What is the mesh's own is nothing to ask the world for, whatever the pattern.
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
        let made = Endpoint::follow(worker, &Known::new([]), &plan);
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
