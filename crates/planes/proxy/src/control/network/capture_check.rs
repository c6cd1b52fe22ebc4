//! Check that the kernel redirects the connections of our pod to us. A proxy without privileges cannot read the redirect rules, so
//! it calls its own pod. A proxy that nobody redirects to must never be ready: its application would bypass it.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use voile_transport as transport;

/// Time between two checks, until the rules are in force.
const INTERVAL: Duration = Duration::from_millis(100);

/// See the module. The rules stay as long as the pod's network, so the check ends with its first success.
pub(in crate::control) struct CaptureCheck {
    /// The pod's own addresses.
    addresses: Vec<IpAddr>,
    fault: Option<String>,
    /// When it is made again.
    next: Option<Instant>,
}

impl CaptureCheck {
    /// Makes the first check. Without addresses there is none.
    pub(in crate::control) fn new(addresses: Vec<IpAddr>) -> Self {
        let mut check = Self {
            addresses,
            fault: None,
            next: None,
        };
        check.look(Instant::now());
        check
    }

    /// Why connections are not redirected.
    pub(in crate::control) fn fault(&self) -> Option<&String> {
        self.fault.as_ref()
    }

    /// When to check again.
    pub(in crate::control) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Checks again, if it is time.
    pub(in crate::control) fn look_again(&mut self, now: Instant) {
        if self.next.is_some_and(|at| at <= now) {
            self.look(now);
        }
    }

    fn look(&mut self, now: Instant) {
        self.fault = self.addresses.iter().find_map(fault);
        self.next = self.fault.as_ref().map(|_| now + INTERVAL);
    }
}

/// Why connections to this address of our pod are not redirected; `None` if they are.
fn fault(address: &IpAddr) -> Option<String> {
    let reason = match transport::is_redirected(*address) {
        Ok(true) => return None,
        Ok(false) => "its redirect rules are missing".to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!(
        "connections to this pod's address {address} are not redirected ({reason}); a CNI plugin or the init container istio-init \
         sets the rules. Cure: see whether the node agent runs on this node: kubectl get pods -A -l app=voile-node -o wide"
    ))
}
