//! One simulated proxy: it asks for its configuration, the services it uses and how to speak to them, follows the policies that its
//! configuration names, and notes when what arrives.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use prost::Message;
use voile_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node};
use voile_proto::proxy::ProxyConfiguration;
use voile_proto::type_url::{ADDRESS, AUTHORIZATION_POLICY, PROXY_CONFIGURATION, SERVICE_POLICY};
use voile_xds::client::{Backoff, Subscriptions, Update};

use crate::discovery_stream::{CrowdState as Wires, Wire};
use crate::plan::SimulatedProxy;
use crate::propagation::{EVERYBODY, mark_in, now_ns};
use crate::{Shared, lock};

/// Types that must be answered before a proxy is in sync.
const TYPES: [&str; 3] = [PROXY_CONFIGURATION, ADDRESS, SERVICE_POLICY];

/// Multiples of it lie evenly between whole numbers, however many there are.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Policies that a proxy's configuration names anew, and those that it names no more.
type Followed = (Vec<Arc<str>>, Vec<Arc<str>>);

/// State of one proxy.
pub(crate) struct Simulated {
    number: usize,
    token: String,
    control: Rc<[String]>,
    wires: Rc<Wires>,
    ledger: Shared,
    subscriptions: Subscriptions,
    /// Types answered on the open stream.
    answered: BTreeSet<Arc<str>>,
    policies: BTreeSet<Arc<str>>,
}

impl Simulated {
    /// The proxy of this number, which asks one of these control planes after the other.
    pub(crate) fn new(
        (number, part): (usize, SimulatedProxy),
        token: String,
        control: Rc<[String]>,
        wires: Rc<Wires>,
        ledger: Shared,
    ) -> Self {
        let node = Node {
            id: format!("sidecar~simulated~{}.{}", part.pod, part.namespace),
            ..Node::default()
        };
        let mut subscriptions = Subscriptions::new(node);
        let own = format!("{}/{}", part.namespace, part.pod);
        for (type_url, names) in [
            (PROXY_CONFIGURATION, vec![own]),
            (ADDRESS, part.services.clone()),
            (SERVICE_POLICY, part.services),
        ] {
            let names = names.into_iter().map(Arc::<str>::from);
            // No stream is open: there is nothing to say yet.
            let _ = subscriptions.change(type_url, names, []);
        }
        Self {
            number,
            token,
            control,
            wires,
            ledger,
            subscriptions,
            answered: BTreeSet::new(),
            policies: BTreeSet::new(),
        }
    }

    /// Follows the control plane, for ever.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::default();
        for attempt in 0.. {
            let at = (self.number + attempt) % self.control.len().max(1);
            let why = self.stream(at, &mut backoff).await;
            tracing::debug!(proxy = self.number, why, "a stream ended");
            self.subscriptions.closed();
            self.answered.clear();
            // Spread evenly over the wait, each at its own place.
            let place = (self.number as f64 * GOLDEN).fract();
            tokio::time::sleep(backoff.wait(place)).await;
        }
    }

    /// One stream, from its beginning to its end, and why it ended.
    async fn stream(&mut self, at: usize, backoff: &mut Backoff) -> String {
        let Some(control) = self.control.get(at) else {
            return "no control plane address is given".to_owned();
        };
        let mut wire = match Wire::open(&self.wires, control, &self.token).await {
            Ok(wire) => wire,
            Err(why) => return why,
        };
        for request in self.subscriptions.open() {
            if let Err(why) = wire.send(&request) {
                return why;
            }
        }
        wire.follow(|message| {
            backoff.reset();
            self.hear(message)
        })
        .await
    }

    /// Handles a response; returns the requests that answer it.
    fn hear(&mut self, message: &[u8]) -> Result<Vec<DeltaDiscoveryRequest>, String> {
        let response = DeltaDiscoveryResponse::decode(message).map_err(|e| e.to_string())?;
        let update = self.subscriptions.receive(response);
        let followed = self.take(&update);
        let mut requests = vec![self.subscriptions.finish(update, Vec::new())];
        if let Some((more, less)) = followed {
            let change = self.subscriptions.change(AUTHORIZATION_POLICY, more, less);
            requests.extend(change);
        }
        Ok(requests)
    }

    /// Notes what came; the policies to follow from now on, and those no more.
    fn take(&mut self, update: &Update) -> Option<Followed> {
        let now = now_ns();
        let mut followed = None;
        let ledger = self.ledger.clone();
        let mut ledger = lock(&ledger);
        ledger.heard(update.added.len());
        for name in &update.removed {
            ledger.removed(self.number, name);
        }
        match &*update.type_url {
            ADDRESS => {
                for resource in &update.added {
                    ledger.arrived(self.number, &resource.name, mark_in(&resource.body), now);
                }
            }
            // It is asked for because the configuration names it: both are there.
            AUTHORIZATION_POLICY => {
                for resource in &update.added {
                    ledger.arrived(
                        self.number,
                        EVERYBODY,
                        mark_in(resource.name.as_bytes()),
                        now,
                    );
                }
            }
            PROXY_CONFIGURATION => {
                for resource in &update.added {
                    followed = self.follow(&resource.body).or(followed);
                }
            }
            _ => {}
        }
        if !self.answered.contains(&update.type_url) {
            self.answered.insert(update.type_url.clone());
            if TYPES.iter().all(|of| self.answered.contains(*of)) {
                ledger.in_sync(self.number, now);
            }
        }
        followed
    }

    /// Returns the changes of a configuration's policy references.
    fn follow(&mut self, body: &[u8]) -> Option<Followed> {
        let configuration = ProxyConfiguration::decode(body).ok()?;
        let references = configuration.authorization_policies.into_iter();
        let named: BTreeSet<Arc<str>> = references.map(|one| one.name.into()).collect();
        let more: Vec<Arc<str>> = named.difference(&self.policies).cloned().collect();
        let less: Vec<Arc<str>> = self.policies.difference(&named).cloned().collect();
        self.policies = named;
        (!more.is_empty() || !less.is_empty()).then_some((more, less))
    }
}
