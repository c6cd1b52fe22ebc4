//! Hosts of a pattern (`DYNAMIC_DNS`). Each host is an endpoint from a client's first request for it until too many newer hosts
//! replace it. DNS resolves a host when a connection is made. The worker never calls a host outside the pattern.

mod hosts;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use voile_model::Hostname;

use crate::plan::{EndpointPlan, ServicePlan};
use crate::worker::upstream::endpoint::Endpoint;

/// See the module.
pub(crate) struct OnDemand {
    pattern: Hostname,
    /// Plan of every host, without its name.
    plan: EndpointPlan,
    hosts: RefCell<Hosts>,
}

#[derive(Default)]
struct Hosts {
    known: HashMap<Arc<str>, (Rc<Endpoint>, u64)>,
    /// Number of times that hosts were named.
    turn: u64,
}

impl OnDemand {
    /// Follows a plan whose endpoint is a pattern; keeps the state of an unchanged pattern.
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
}
