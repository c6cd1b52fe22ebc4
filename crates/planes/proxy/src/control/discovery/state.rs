//! State and decisions of the control thread: subscriptions, the moment when a closed state goes to the workers,
//! and the sockets that accept.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use voile_identity::{CertificateKey, CertificateStore, Revocations};
use voile_memory::MemoryRelief;
use voile_proto::proxy::{HealthFinding, HealthFindings};
use voile_proto::type_url;
use voile_telemetry::logging::LogLevelHandle;
use voile_telemetry::tap::Tap;
use voile_traffic::EndpointHealth;
use voile_transport::handover::Lent;
use voile_transport::{CaptureExemption, Listener, Origin};
use voile_xds::client::XdsClient;

use crate::control::admin_pages::application_metrics::ApplicationMetrics;
use crate::control::admin_pages::health::AskForHealth;
use crate::control::admin_pages::probers::Probers;
use crate::control::discovery::compiler::Compiler;
use crate::control::discovery::destinations::Destinations;
use crate::control::discovery::discovery_state::DiscoveryState;
use crate::control::discovery::names::Lookups;
use crate::control::discovery::unknown_callers::UnknownCallers;
use crate::control::network::accept::{self, Dispatcher};
use crate::control::network::capture_check::CaptureCheck;
use crate::control::network::datagrams::Datagrams;
use crate::control::network::dns::Dns;
use crate::control::network::sockets::{
    self, Key, ListenerDirection, Socket, Sockets, WantedListener,
};
use crate::control::options::{ProxyOptions, SERVICE_IDLE};
use crate::control::recorders::{PendingRecorders, Recorders};
use crate::plan::{ListenerId, ProxyPlan};
use crate::registry::{CompiledPolicies, is_service};
use crate::telemetry_settings::Recordings;
use crate::worker::{FromWorker, ToWorker};

/// Largest number of unhealthy endpoints that are reported to the control plane, for people; all are counted.
const MAX_FINDINGS: usize = 100;

/// See the module.
pub(in crate::control) struct Control {
    pub(in crate::control) workload: String,
    pub(in crate::control) drain_timeout: Duration,
    pub(in crate::control) handover_drain_timeout: Duration,
    pub(in crate::control) log: Option<LogLevelHandle>,
    pub(in crate::control) shared: Arc<Mutex<DiscoveryState>>,
    pub(in crate::control) client: XdsClient,
    pub(in crate::control) store: Arc<CertificateStore>,
    pub(in crate::control) dispatcher: Rc<Dispatcher>,
    pub(in crate::control) published: Option<Arc<ProxyPlan>>,
    pub(in crate::control) recorders: Recorders,
    /// Mark of our own outward connections.
    outward_mark: Option<u32>,
    pub(in crate::control) probers: Probers,
    pub(in crate::control) application_metrics: Option<ApplicationMetrics>,
    pub(in crate::control) dns: Option<Rc<Dns>>,
    pub(in crate::control) lookups: Lookups,
    compiler: Compiler,
    pub(in crate::control) draining: bool,
    pub(in crate::control) memory: MemoryRelief<Dispatcher>,
    accepting: BTreeMap<Key, watch::Sender<()>>,
    datagrams: Datagrams,
    subscribed: BTreeSet<Arc<str>>,
    workload_uid: Option<Arc<str>>,
    pub(in crate::control) destinations: Destinations,
    policies: BTreeSet<Arc<str>>,
    /// Services whose routes are asked for.
    routed: BTreeSet<Arc<str>>,
    /// Time when held-back routes come into force.
    held_back: Option<Instant>,
    /// When files of our own machine are looked at again.
    pub(in crate::control) files_next: Option<Instant>,
    /// Policies and keys that the configuration names, by type.
    named: BTreeMap<&'static str, BTreeSet<Arc<str>>>,
    /// Revocation lists at the last check of our own certificate.
    revocations: Arc<Revocations>,
    pub(in crate::control) strangers: UnknownCallers,
    /// Time after which an unused subscription ends.
    pub(in crate::control) service_idle: Rc<Cell<Duration>>,
    /// The same, where the command line says so.
    own_service_idle: Option<Duration>,
    /// Sender of the application's health probe.
    health_probe: AskForHealth,
    capture_check: CaptureCheck,
}

impl Control {
    pub(in crate::control) fn new(
        options: &ProxyOptions,
        shared: Arc<Mutex<DiscoveryState>>,
        client: XdsClient,
        store: Arc<CertificateStore>,
        dispatcher: Rc<Dispatcher>,
        recorders: Recorders,
        (lookups, compiler, service_idle, health_probe): (
            Lookups,
            Compiler,
            Rc<Cell<Duration>>,
            AskForHealth,
        ),
    ) -> Self {
        Self {
            workload: options.workload.clone(),
            drain_timeout: options.process.drain_timeout,
            handover_drain_timeout: options.process.handover_drain_timeout,
            log: options.process.log.clone(),
            shared,
            client,
            store,
            memory: MemoryRelief::new(Rc::clone(&dispatcher)),
            dispatcher,
            published: None,
            recorders,
            outward_mark: options.exemption().and_then(CaptureExemption::outward_mark),
            probers: options.probers.clone().exempt_by(options.exemption()),
            application_metrics: options
                .application_metrics
                .clone()
                .map(|metrics| metrics.exempt_by(options.exemption())),
            dns: None,
            lookups,
            compiler,
            draining: false,
            accepting: BTreeMap::new(),
            datagrams: Datagrams::default(),
            subscribed: BTreeSet::new(),
            workload_uid: None,
            destinations: Destinations::default(),
            policies: BTreeSet::new(),
            routed: BTreeSet::new(),
            held_back: None,
            files_next: None,
            named: BTreeMap::new(),
            revocations: Arc::default(),
            strangers: UnknownCallers::default(),
            service_idle,
            own_service_idle: options.service_idle,
            health_probe,
            capture_check: CaptureCheck::new(options.captured_addresses.clone()),
        }
    }

    pub(in crate::control) fn shared(&self) -> MutexGuard<'_, DiscoveryState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After a response: subscribes to the resources that the configuration now names, and publishes if the state is
    /// closed and new.
    pub(in crate::control) fn publish(&mut self) {
        let heard = Instant::now();
        let has_read_much = self.shared().registry.take_read_much();
        self.dispatcher.told(has_read_much);
        let held_back = self.shared().registry.look_at_held_back(heard);
        self.held_back = held_back;
        self.ask_for_health();
        self.subscribe();
        self.subscribe_named();
        self.shared().registry.forget_names();
        self.answer_strangers();
        self.answer_destinations();
        self.end_along();
        if self.compiles() {
            return; // What comes of it is published, with all that was heard meanwhile.
        }
        self.read_new_files(heard);
        let plan = self.shared().registry.plan();
        let Some(plan) = plan else { return };
        self.compiler.caught_up();
        self.trust();
        let limits = {
            let shared = self.shared();
            let held = shared.registry.configuration.as_ref();
            held.map(|held| held.value.limits).unwrap_or_default()
        };
        self.dispatcher.ledger().obey(&limits);
        let idle = self.own_service_idle.or(limits.service_idle);
        self.service_idle.set(idle.unwrap_or(SERVICE_IDLE));
        if self.published.as_deref() != Some(&plan) {
            self.obey(plan, heard);
        }
        self.accept();
    }

    /// The application is asked as the configuration says by now.
    fn ask_for_health(&self) {
        let wanted = {
            let shared = self.shared();
            let held = shared.registry.configuration.as_ref();
            held.and_then(|held| held.value.health_probe.clone())
        };
        self.health_probe.send_if_modified(|known| {
            let is_new = *known != wanted;
            *known = wanted;
            is_new
        });
    }

    /// Returns true if policies are being compiled before the state can be published.
    fn compiles(&mut self) -> bool {
        if self.compiler.is_busy() {
            return true;
        }
        let work = self.shared().registry.work();
        work.is_some_and(|work| self.compiler.begin(work))
    }

    /// Policies have been compiled.
    pub(in crate::control) fn policies_compiled(&mut self, compiled: CompiledPolicies) {
        self.compiler.ended();
        self.shared().registry.authorization.keep(compiled);
        self.publish();
    }

    /// Subscribes to the routes of the services called now, and forgets the routes of others.
    fn subscribe_routes(&mut self) {
        let routed: BTreeSet<Arc<str>> = {
            let shared = self.shared();
            let captured = self.destinations.targets();
            let captured = captured.flat_map(|to| shared.registry.policies_wanted(to));
            let captured = captured.filter(|name| is_service(name));
            captured.chain(shared.registry.services_called()).collect()
        };
        let new: Vec<_> = routed.difference(&self.routed).cloned().collect();
        let gone: Vec<_> = self.routed.difference(&routed).cloned().collect();
        self.routed = routed;
        if !new.is_empty()
            && self
                .client
                .subscribe(type_url::SERVICE_ROUTES, new)
                .is_err()
        {
            tracing::error!("too many subscriptions: some services have no routes");
        }
        if !gone.is_empty() {
            self.client
                .unsubscribe(type_url::SERVICE_ROUTES, gone.iter().cloned());
            let mut shared = self.shared();
            for name in &gone {
                shared.registry.forget_routes(name);
            }
        }
    }

    fn subscribe(&mut self) {
        self.subscribe_routes();
        let (mut wanted, uid) = {
            let shared = self.shared();
            let registry = &shared.registry;
            let configuration = registry.configuration.as_ref();
            let mut wanted = registry.services_wanted();
            // Captured services were asked for by address; the destinations of their routes need
            // subscriptions by name.
            wanted.extend(registry.led_to(&self.routed));
            wanted.extend(registry.workloads_wanted());
            (
                wanted,
                configuration.map(|held| held.value.workload_uid.clone()),
            )
        };
        let policies: BTreeSet<Arc<str>> = {
            let shared = self.shared();
            let captured = self.destinations.targets();
            captured
                .flat_map(|to| shared.registry.policies_wanted(to))
                .chain(wanted.iter().cloned())
                .collect()
        };
        // Callers of other zones are never called, and no plan waits for them.
        wanted.extend(self.shared().registry.callers_wanted());
        let new: Vec<_> = wanted.difference(&self.subscribed).cloned().collect();
        let gone: Vec<_> = self.subscribed.difference(&wanted).cloned().collect();
        let new_policies: Vec<_> = policies.difference(&self.policies).cloned().collect();
        let gone_policies: Vec<_> = self.policies.difference(&policies).cloned().collect();
        {
            // An earlier answer that there is none may no longer hold.
            let registry = &mut self.shared().registry;
            for name in &new {
                registry.forget_absent(type_url::ADDRESS, name);
            }
            for name in &new_policies {
                registry.forget_absent(type_url::SERVICE_POLICY, name);
            }
        }
        let mut full = self.client.subscribe(type_url::ADDRESS, new).is_err();
        full |= self
            .client
            .subscribe(type_url::SERVICE_POLICY, new_policies)
            .is_err();
        if uid != self.workload_uid
            && let Some(uid) = &uid
        {
            full |= self
                .client
                .subscribe(type_url::ADDRESS, [uid.clone()])
                .is_err();
        }
        if full {
            tracing::error!("too many subscriptions: some services stay unknown");
        }
        if !gone.is_empty() {
            self.client
                .unsubscribe(type_url::ADDRESS, gone.iter().cloned());
            let mut shared = self.shared();
            // A service that a captured destination needs stays; its subscription continues.
            for name in gone.iter().filter(|name| !policies.contains(*name)) {
                shared.registry.forget_service(name);
            }
        }
        if !gone_policies.is_empty() {
            self.client
                .unsubscribe(type_url::SERVICE_POLICY, gone_policies.iter().cloned());
            let mut shared = self.shared();
            for name in &gone_policies {
                shared.registry.forget_policy(name);
            }
        }
        self.policies = policies;
        self.subscribed = wanted;
        self.workload_uid = uid;
    }

    /// Subscribes to the policies and keys that the configuration names, and forgets the others.
    fn subscribe_named(&mut self) {
        let wanted = self.shared().registry.named_wanted();
        for (kind, wanted) in wanted {
            let before = self.named.entry(kind).or_default();
            let new: Vec<_> = wanted.difference(before).cloned().collect();
            let gone: Vec<_> = before.difference(&wanted).cloned().collect();
            if !new.is_empty() && self.client.subscribe(kind, new).is_err() {
                tracing::error!(
                    kind,
                    "too many subscriptions: the configuration names more resources than one proxy may subscribe to, and is not applied"
                );
            }
            *before = wanted;
            if !gone.is_empty() {
                self.client.unsubscribe(kind, gone.iter().cloned());
                let mut shared = self.shared();
                for name in &gone {
                    shared.registry.forget_named(kind, name);
                }
            }
        }
    }

    /// Sets the trust of handshakes: the configuration's trust domain and its other names.
    fn trust(&mut self) {
        if let Some(held) = &self.shared().registry.configuration {
            self.store
                .trust()
                .set_trust_domain(&held.value.trust_domain, &held.value.trust_domain_aliases);
        }
        let (lists, roots) = {
            let shared = self.shared();
            let held = shared.registry.revocations.as_ref();
            let lists = held.map(|held| Arc::clone(&held.value)).unwrap_or_default();
            (lists, Arc::clone(&shared.registry.mesh_roots))
        };
        self.store.tell_roots(&roots);
        self.store.tell_revocations(&lists);
        self.replace_revoked(&lists);
    }

    /// Replaces our own certificate if it is revoked: asks for a new one, for new keys. A thief of the old keys cannot do
    /// the same, since the authority does not accept a revoked certificate as a proof.
    fn replace_revoked(&mut self, lists: &Arc<Revocations>) {
        if self.revocations == *lists {
            return;
        }
        self.revocations = Arc::clone(lists);
        let own = self.store.current();
        let leaf = own
            .as_ref()
            .and_then(|own| own.certified_key().cert.first());
        let key = leaf.and_then(CertificateKey::of);
        if !lists.is_closed() && key.is_some_and(|key| lists.includes(key)) {
            tracing::warn!("the proxy's own certificate is revoked: requesting another");
            self.store.ask_to_renew();
        }
    }

    fn recordings(&mut self, plan: &ProxyPlan) -> Arc<Recordings> {
        let origin = Origin {
            source: plan.settings.source_address,
            mark: self.outward_mark,
            foreign: false,
        };
        Arc::new(self.recorders.follow(plan, origin))
    }

    /// Begins or ends the records for people who watch.
    pub(in crate::control) fn set_tap(&mut self, tap: Option<Arc<Tap>>) {
        self.recorders.tap = tap;
        if let Some(plan) = self.published.clone() {
            let recording = self.recordings(&plan);
            self.dispatcher
                .broadcast(|| ToWorker::Recording(Arc::clone(&recording)));
        }
    }

    /// Sends a plan to the workers, then lets removed listeners go.
    fn obey(&mut self, plan: ProxyPlan, heard: Instant) {
        let recording = self.recordings(&plan);
        let keys: BTreeSet<Key> = keys(&plan).collect();
        let (inbound, outbound, gateway) = {
            let mut shared = self.shared();
            shared.sockets.retain(|key| keys.contains(key));
            let id = |direction, bind: SocketAddr| {
                let entry = shared.sockets.entries.get(&(direction, bind));
                // Every listener of a configuration has an entry; the number is only a fallback that no
                // listener uses.
                entry.map_or(ListenerId(u32::MAX), |entry| entry.id)
            };
            let inbound: Vec<_> = plan
                .inbound
                .iter()
                .map(|l| id(ListenerDirection::Inbound, l.bind))
                .collect();
            let outbound: Vec<_> = plan
                .outbound
                .iter()
                .map(|l| id(ListenerDirection::Outbound, l.bind))
                .collect();
            let gateway = plan.gateway.iter();
            let gateway: Vec<_> = gateway
                .map(|l| id(ListenerDirection::Gateway, l.bind))
                .collect();
            (inbound, outbound, gateway)
        };
        self.accepting
            .retain(|key, _| key.0.is_captured() || keys.contains(key));
        let plan = Arc::new(plan);
        self.dispatcher.broadcast(|| ToWorker::Plan {
            plan: Arc::clone(&plan),
            inbound: inbound.clone(),
            outbound: outbound.clone(),
            gateway: gateway.clone(),
            recording: Arc::clone(&recording),
            heard,
        });
        tracing::info!(
            inbound = plan.inbound.len(),
            outbound = plan.outbound.len(),
            gateway = plan.gateway.len(),
            "configuration in force"
        );
        if !self.draining {
            self.datagrams.follow(&plan.gateway, &gateway);
        }
        self.published = Some(plan);
    }

    /// Begins to accept on bound sockets that the workers have a plan for. Not while the previous process serves, which reads
    /// from the same sockets: connections would be lost if this process had no certificate yet, died, or was sent away.
    fn accept(&mut self) {
        let Some(plan) = self.published.clone() else {
            return;
        };
        if self.shared().sockets.awaits {
            return;
        }
        let keys: BTreeSet<Key> = keys(&plan).collect();
        let shared = Arc::clone(&self.shared);
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let Sockets {
            lends,
            ref mut inherited,
            ref mut entries,
            ..
        } = shared.sockets;
        let mut failed = false;
        for (key, entry) in entries {
            let wanted = key.0.is_captured() || keys.contains(key);
            let is_datagrams = key.0 == ListenerDirection::Datagrams;
            if wanted && entry.is_over() {
                // Its last connection ended after it was wanted again.
                entry.socket = sockets::bind(inherited, key.0, key.1);
                entry.serving = None;
                failed |= matches!(entry.socket, Socket::Failed(_));
            }
            if !wanted || !matches!(entry.socket, Socket::Bound(_)) {
                continue;
            }
            let Socket::Bound(socket) = std::mem::replace(&mut entry.socket, Socket::Accepting)
            else {
                continue;
            };
            if is_datagrams {
                let dispatcher = &self.dispatcher;
                match self.datagrams.listen(key.1, socket, inherited, dispatcher) {
                    Ok(serving) => {
                        entry.serving = Some(serving);
                        tracing::info!(address = %key.1, "listening for HTTP/3");
                    }
                    Err(error) => entry.socket = Socket::Failed(error.to_string()),
                }
                failed |= matches!(entry.socket, Socket::Failed(_));
                continue;
            }
            // Without the copy it cannot be handed over; it serves all the same.
            entry.kept = lends.then(|| socket.try_clone().ok()).flatten();
            match Listener::new(TcpListener::from(socket)) {
                Ok(listener) => {
                    let (stop, stopped) = watch::channel(());
                    let dispatcher = Rc::clone(&self.dispatcher);
                    tokio::task::spawn_local(accept::accept(
                        listener, entry.id, dispatcher, stopped,
                    ));
                    self.accepting.insert(*key, stop);
                    tracing::info!(listener = %entry.name, address = %key.1, "listening");
                }
                Err(error) => entry.socket = Socket::Failed(error.to_string()),
            }
        }
        if failed {
            shared.sockets.plan_retry();
        }
    }

    /// Writers that remain to be waited for after the workers have ended.
    pub(in crate::control) fn end_recording(&mut self) -> PendingRecorders {
        self.recorders.end()
    }

    /// When a socket that could not be bound is tried again, routes that were held back have waited long enough, files are looked at,
    /// or the capture is checked.
    pub(in crate::control) fn next_attempt(&self) -> Option<Instant> {
        let binding = self.shared().sockets.next_attempt();
        let checking = self.capture_check.next();
        let waits = [binding, self.held_back, self.files_next, checking];
        waits.into_iter().flatten().min()
    }

    pub(in crate::control) fn try_again(&mut self) {
        if self.shared().sockets.bind_again() {
            self.accept();
        }
        if self.held_back.is_some_and(|at| at <= Instant::now()) {
            self.publish();
        }
        self.look_at_files(Instant::now());
        self.capture_check.look_again(Instant::now());
    }

    /// A new certificate: new handshakes show it by themselves; labels and trust follow here.
    pub(in crate::control) fn certificate_changed(&mut self) {
        self.trust();
        if let Some(certificate) = self.store.current() {
            let principal = certificate.identity().to_string();
            self.dispatcher
                .broadcast(|| ToWorker::Identity(principal.clone()));
        }
    }

    /// A worker asks or tells something.
    pub(in crate::control) fn heard(&mut self, news: FromWorker) {
        match news {
            FromWorker::Stranger(address) => self.ask_for(address),
            FromWorker::Destination(to) => self.ask_destination(to),
            FromWorker::Found => self.tell_findings(),
            // Another task does this, since it takes time.
            FromWorker::MemoryShort | FromWorker::Freed => {}
            FromWorker::Overdue(to) => self.decide_destination(to),
            FromWorker::Used(host) => self.name_used(&host),
            FromWorker::Resolve(host, answer) => self.resolve(&host, answer),
            FromWorker::ResolveOutside(host, answer) => self.resolve_outside(&host, answer),
            // The worker that says so knows already; hearing it again does no harm.
            FromWorker::ServerFirst {
                place,
                server_first,
            } => self.dispatcher.broadcast(|| ToWorker::ServerFirst {
                place,
                server_first,
            }),
        }
    }

    /// Tells the control plane who is unwell, where that is not what it knows.
    fn tell_findings(&self) {
        let found = self.shared().registry.health.asked();
        let unwell = found.iter().flat_map(|one| {
            let all = one.endpoints.iter();
            let unwell = all.filter(|(_, standing, _)| *standing == EndpointHealth::Unwell);
            unwell.map(|(endpoint, _, why)| HealthFinding {
                check: one.by.to_string(),
                cluster: one.cluster.clone(),
                endpoint: endpoint.to_string(),
                why: why.as_deref().unwrap_or_default().to_owned(),
            })
        });
        let mut findings: Vec<HealthFinding> = unwell.collect();
        let more = findings.len().saturating_sub(MAX_FINDINGS);
        findings.truncate(MAX_FINDINGS);
        self.client.tell_findings(HealthFindings {
            findings,
            more: u32::try_from(more).unwrap_or(u32::MAX),
        });
    }

    /// Why this proxy is not ready; empty when it is.
    pub(in crate::control) fn unready(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.draining {
            reasons.push("draining".to_owned());
        }
        reasons.extend(self.capture_check.fault().cloned());
        let because = |trouble: Option<String>| match trouble {
            Some(trouble) => format!(" ({trouble})"),
            None => String::new(),
        };
        let certificate = self.store.current();
        if certificate.is_none() {
            reasons.push(format!(
                "no certificate yet{}",
                because(self.store.trouble())
            ));
        }
        let shared = self.shared();
        if shared.registry.configuration.is_none() {
            let state = self.client.state();
            let trouble = state.borrow().last_error.clone();
            let who = certificate
                .map(|held| format!("the control plane does not send it to {}", held.identity()));
            reasons.push(format!(
                "no configuration yet for {}{}",
                self.workload,
                because(trouble.or(who))
            ));
        } else if self.published.is_none() && self.compiler.is_busy() {
            reasons.push("policies are being compiled".to_owned());
        } else if self.published.is_none() {
            let missing: Vec<String> = shared
                .registry
                .unanswered()
                .iter()
                .map(ToString::to_string)
                .collect();
            reasons.push(format!(
                "the control plane has not yet answered for {}",
                missing.join(", ")
            ));
        }
        reasons.extend(shared.sockets.failures());
        reasons
    }

    /// Stops accepting and closes every listening socket.
    pub(in crate::control) fn stop_accepting(&mut self) {
        self.draining = true;
        self.accepting.clear();
    }

    /// Stops accepting in favour of a successor. No connection in the sockets' queues is lost.
    pub(in crate::control) fn give_way(&mut self) {
        self.stop_accepting();
        self.datagrams.give_way();
    }

    /// Stops accepting connections and begins the drain.
    pub(in crate::control) fn begin_drain(&mut self) {
        self.stop_accepting();
        self.datagrams.pause();
        self.release();
    }

    /// The previous process accepts no more: its sockets are ours. It may go on reading HTTP/3's sockets that no
    /// listener here wants.
    pub(in crate::control) fn relieved(&mut self) {
        {
            let mut shared = self.shared();
            shared.sockets.awaits = false;
        }
        self.accept();
        let role = ListenerDirection::Datagrams.role();
        self.shared().sockets.inherited.forget(role);
    }

    /// Lets go of the sockets that were kept for a successor.
    fn release(&mut self) {
        for entry in self.shared().sockets.entries.values_mut() {
            entry.kept = None;
        }
    }

    /// Copies of the listening sockets, for a successor.
    pub(in crate::control) fn lend(&mut self) -> io::Result<Vec<Lent>> {
        let mut all = self.datagrams.lend()?;
        let shared = self.shared();
        let held = |(key, entry): (&Key, &WantedListener)| {
            let socket = match (&entry.kept, &entry.socket) {
                (Some(socket), _) | (None, Socket::Bound(socket)) => socket.try_clone(),
                (None, Socket::Accepting | Socket::Failed(_)) => return None,
            };
            Some(socket.map(|socket| (key.0.role().to_owned(), key.1, socket)))
        };
        let held = shared.sockets.entries.iter().filter_map(held);
        all.extend(held.collect::<io::Result<Vec<_>>>()?);
        Ok(all)
    }

    /// Accepts again after a successor failed.
    pub(in crate::control) fn accept_again(&mut self) {
        self.draining = false;
        self.datagrams.take_back();
        for entry in self.shared().sockets.entries.values_mut() {
            if let Some(socket) = entry.kept.take() {
                entry.socket = Socket::Bound(socket);
            }
        }
        self.accept();
    }
}

fn keys(plan: &ProxyPlan) -> impl Iterator<Item = Key> {
    let inbound = plan
        .inbound
        .iter()
        .map(|listener| (ListenerDirection::Inbound, listener.bind));
    let outbound = plan.outbound.iter();
    let outbound = outbound.map(|listener| (ListenerDirection::Outbound, listener.bind));
    let gateway = plan.gateway.iter().flat_map(|listener| {
        let datagrams = listener.http3.as_ref();
        let datagrams = datagrams.map(|_| (ListenerDirection::Datagrams, listener.bind));
        std::iter::once((ListenerDirection::Gateway, listener.bind)).chain(datagrams)
    });
    inbound.chain(outbound).chain(gateway)
}
