//! The main loop behind `voile up`. One thread looks after everything in small steps, so that starting, restarting, scaling
//! and stopping are the same code whether at the beginning or after an edit.

mod acknowledged;
mod by_node;
mod display;
mod edits;
mod options;
mod propagation;
mod published_ports;
mod questions;
mod rollout_environment;
mod start;
mod stop;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::runtime::Handle;
use voile_host::enclosure::InsideSocket;
use voile_host::isolation::ProcessIsolation;
use voile_identity::{
    NEW_ROOT_FLAG, RootPolicy, StateDir, TOKEN_AUDIENCE, TokenKey, TokenSubject, check_root,
};
use voile_model::mesh::MeshConfig;
use voile_model::{Diagnostic, Mesh, ResourceName, codes};
use voile_watch::FolderWatch;

use crate::addresses::Addresses;
use crate::application::{ApplicationContext, container, control, pod_id, sidecar};
use crate::contained::confinement;
use crate::control_socket::ControlSocket;
use crate::documents::render;
use crate::expand::{PodPlan, RunPlan};
use crate::host_capabilities::HostCapabilities;
use crate::node;
use crate::observer::{Observation, Observer};
use crate::pod_network::{PodNetwork, resolver};
use crate::pod_run::{LeavingPod, PodRun};
use crate::probing::Probing;
use crate::process::Process;
use crate::relay::RelayThread;
use crate::rollout::{EmptyEnvironment, PodRoster};
use crate::run_folder::RunFolder;
use acknowledged::AcknowledgedEdits;
use by_node::{ByNode, node_subject};
use display::DisplayState;
pub use edits::serve_by_node;
pub use options::{Dataplane, RunnerOptions, SignalMessages, UpError};

/// Between two steps of the main loop.
const STEP: Duration = Duration::from_millis(50);
/// Default validity of a token.
pub const TOKEN_TTL: Duration = Duration::from_secs(3600);
/// Pause between two attempts of an action that failed, such as writing a file.
const RETRY: Duration = Duration::from_secs(1);
/// Sidecars that are replaced at a time: each new one costs a moment of a core.
const REPLACED_AT_A_TIME: usize = 2;

/// The file of the mesh in the run's folder of configuration.
const MESH_FILE: &str = "mesh.json";
/// The control plane's last configuration without errors, in the state folder.
const LAST_GOOD: &str = "last-good.json";
/// The root certificate in the state folder.
const ROOT_CERTIFICATE: &str = "root-cert.pem";

/// Runs the mesh until `stop` says so (a message or a hang-up); returns the exit code. It cleans up on every path.
pub(crate) fn run(
    options: RunnerOptions,
    inside: Option<InsideSocket>,
    run_folder: RunFolder,
    words: &SignalMessages,
) -> Result<u8, UpError> {
    // A core dump of a proxy holds its keys.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none).map_err(io::Error::from)?;
    let stop = &words.stop;
    let replace = Arc::clone(&words.replace);
    let mut runner = Runner::prepare(options, inside, run_folder, replace)?;
    let outcome = runner.drive(stop);
    if let Err(error) = &outcome {
        runner.explain(error);
    }
    runner.stop(stop);
    outcome
}

struct Runner {
    options: RunnerOptions,
    ground: HostCapabilities,
    state: PathBuf,
    addresses: Addresses,
    sources: Vec<voile_model::SourceFile>,
    problems: Vec<Diagnostic>,
    mesh: Mesh,
    plan: RunPlan,
    tokens: Option<TokenKey>,
    tokens_written: Instant,
    /// Equals: any sidecar may be with any of them.
    controls: Vec<Process>,
    /// The node proxy and its agent, where there is one.
    node: Option<ByNode>,
    control_was_ready: bool,
    observer: Observer,
    seen: BTreeMap<ResourceName, Observation>,
    /// Number of ready control planes.
    controls_ready: usize,
    pods: BTreeMap<ResourceName, PodRun>,
    leaving: Vec<LeavingPod>,
    /// Which replicas there are, old and new.
    roster: PodRoster,
    /// Since when each pod takes traffic.
    ready_since: BTreeMap<ResourceName, Instant>,
    /// Set when the user asks for new sidecars.
    replace: Arc<AtomicBool>,
    /// Pods that wait for a new sidecar.
    to_replace: BTreeSet<ResourceName>,
    /// Pods that are done, as they were published.
    over: BTreeSet<ResourceName>,
    /// Pods of the node proxy that end, as they were published.
    going: Vec<PodPlan>,
    /// Which pods were said to take traffic; `None` when the plan has changed since.
    published: Option<BTreeSet<ResourceName>>,
    written: String,
    reach: published_ports::OpenRelays,
    watch: FolderWatch,
    /// The folder could not be read when it was last looked at.
    unreadable: bool,
    /// Last failure of the machine, and the time of the next attempt.
    trouble: Option<(String, Instant)>,
    started: Instant,
    was_ready: bool,
    waiting_for: String,
    shown: DisplayState,
    acknowledged: AcknowledgedEdits,
    events: Vec<String>,
    /// Where commands ask for the state of this run.
    socket: Option<ControlSocket>,
    // Dropped last: everything above may still write there.
    run_folder: RunFolder,
}

fn canonical(folder: &Path) -> io::Result<PathBuf> {
    let with_name =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    folder.canonicalize().map_err(with_name)
}

/// Returns the folder of the control planes' keys; an error if it was lost.
fn state_folder(options: &RunnerOptions, run_folder: &RunFolder) -> Result<PathBuf, UpError> {
    let own = || run_folder.path().join("state");
    let state = options.state.clone().unwrap_or_else(own);
    let root = RootPolicy {
        expected: None,
        new_root: options.new_root,
    };
    check_root(&state, &root).map_err(|lost| UpError::State(lost.to_string()))?;
    Ok(state)
}

/// Starts the control planes, and their observer.
fn control_planes(
    around: &ApplicationContext<'_>,
    ground: &HostCapabilities,
    options: &RunnerOptions,
) -> (Vec<Process>, Observer) {
    let places = ground.control_planes(options.control_planes);
    let mut further = options.control.clone();
    if options.dataplane.has_node() {
        let account = node::NODE_PROXY.to_owned();
        further.push(("--node-account", account));
    }
    let controls = places.iter().enumerate();
    let controls = controls.map(|(number, place)| {
        let mut recipe = control(around, number, *place, &further);
        let new_root = options.new_root.then(|| NEW_ROOT_FLAG.to_owned());
        recipe.args.extend(new_root);
        Process::new(recipe)
    });
    let monitoring = places.iter().map(|place| place.monitoring);
    (controls.collect(), Observer::start(monitoring.collect()))
}

/// Starts the parts beside pods and control planes: the way out, if any, and the node proxy, if any.
fn beyond_pods(
    around: &ApplicationContext<'_>,
    ground: &HostCapabilities,
    options: &RunnerOptions,
    (config, runtime): (&MeshConfig, &Handle),
) -> Result<Option<ByNode>, UpError> {
    if let Some(network) = ground.network().filter(|_| options.egress) {
        network.lead_out(runtime)?;
    }
    let node = || ByNode::start(around, ground, options, (config, runtime));
    options.dataplane.has_node().then(node).transpose()
}

/// Prints the problems of the folder. A document that may be a security resource and cannot be read is an error unless the
/// control plane's state has an earlier configuration.
fn print_problems(
    problems: &mut Vec<Diagnostic>,
    sources: &[voile_model::SourceFile],
    state: Option<&Path>,
) -> Result<(), UpError> {
    if state.is_some_and(|state| state.join(LAST_GOOD).exists()) {
        problems.retain(|one| one.code != codes::NEVER_READ);
    }
    edits::print(problems, sources);
    match problems.iter().any(|one| one.code == codes::NEVER_READ) {
        true => Err(UpError::NeverRead),
        false => Ok(()),
    }
}

impl Runner {
    fn prepare(
        mut options: RunnerOptions,
        inside: Option<InsideSocket>,
        run_folder: RunFolder,
        replace: Arc<AtomicBool>,
    ) -> Result<Self, UpError> {
        options.folder = canonical(&options.folder).map_err(UpError::Folder)?;
        let now = Instant::now();
        let (watch, sources) = edits::watch_folder(&options.folder)?;
        let ground = HostCapabilities::claim(inside)?;
        let mut addresses = Addresses::new(ground.layout());
        let mut roster = PodRoster::default();
        let begin = (&mut roster, &EmptyEnvironment);
        let (mesh, plan, mut problems) =
            edits::understand(&sources, (None, options.dataplane), begin, &mut addresses)?;
        print_problems(&mut problems, &sources, options.state.as_deref())?;
        let errors = problems.iter().filter(|one| one.is_error()).count();
        if errors > 0 && (options.strict || plan.pods.is_empty()) {
            return Err(UpError::Problems(errors));
        }
        let state = state_folder(&options, &run_folder)?;
        let around = ApplicationContext {
            voile: &options.voile,
            folder: &options.folder,
            run: &run_folder,
            state: &state,
            show: options.logs,
            egress: options.egress,
        };
        let (controls, observer) = control_planes(&around, &ground, &options);
        let reach = published_ports::OpenRelays::new(RelayThread::start()?);
        let known = (&*mesh.config, reach.runtime());
        let node = beyond_pods(&around, &ground, &options, known)?;
        let monitoring = ground.control_planes(options.control_planes);
        let monitoring = monitoring.iter().map(|place| place.monitoring).collect();
        let socket = open_socket(&run_folder, monitoring, reach.runtime())?;
        Ok(Self {
            options,
            state,
            addresses,
            sources,
            problems,
            mesh,
            plan,
            tokens: None,
            tokens_written: now,
            controls,
            node,
            control_was_ready: false,
            observer,
            seen: BTreeMap::new(),
            controls_ready: 0,
            pods: BTreeMap::new(),
            leaving: Vec::new(),
            roster,
            ready_since: BTreeMap::new(),
            replace,
            to_replace: BTreeSet::new(),
            over: BTreeSet::new(),
            going: Vec::new(),
            published: None,
            written: String::new(),
            reach,
            watch,
            unreadable: false,
            trouble: None,
            started: now,
            was_ready: false,
            waiting_for: String::new(),
            shown: DisplayState::nothing(now),
            acknowledged: AcknowledgedEdits::nothing(now),
            events: Vec::new(),
            socket,
            ground,
            run_folder,
        })
    }

    fn drive(&mut self, stop: &Receiver<()>) -> Result<u8, UpError> {
        self.say(&format!(
            "{}: {} pods in {}, logs in {}",
            self.options.folder.display(),
            self.plan.pods.len(),
            self.ground.describe(),
            self.run_folder.path().join("logs").display(),
        ));
        self.apply()?;
        loop {
            match stop.recv_timeout(STEP) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(0),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.step()?;
            if !self.was_ready {
                self.await_start()?;
                continue;
            }
            if let Some(command) = self.options.once_ready.take() {
                return self.once_ready(&command, stop);
            }
        }
    }

    /// One turn of the loop: looks after all processes.
    fn step(&mut self) -> Result<(), UpError> {
        let now = Instant::now();
        self.answer_questions();
        let (seen, controls_ready, pages) = self.observer.look();
        (self.seen, self.controls_ready) = (seen, controls_ready);
        self.take_pages(pages);
        let controls = self.controls.iter_mut();
        let mut said: Vec<String> = controls.filter_map(|control| control.tick(now)).collect();
        if self.controls_ready == self.controls.len() && !self.control_was_ready {
            self.control_was_ready = true;
            self.open_tokens()?;
        }
        if self.control_was_ready {
            said.extend(self.look_after_node(now));
            let nothing = Observation::default();
            let busy: BTreeSet<_> = self
                .leaving
                .iter()
                .map(|leaving| leaving.pod.plan.name.clone())
                .collect();
            for (name, pod) in self
                .pods
                .iter_mut()
                .filter(|(name, _)| !busy.contains(*name))
            {
                said.extend(pod.tick(now, self.seen.get(name).unwrap_or(&nothing)));
            }
        }
        for text in said {
            self.event(&text);
        }
        let waits = |leaving: &LeavingPod| leaving.is_waiting_for_news(now);
        let told = !self.leaving.iter().any(waits) || self.unaware().is_none();
        self.leaving.retain_mut(|leaving| !leaving.tick(now, told));
        let pods = self.pods.iter();
        let pods = pods.map(|(name, pod)| (name.clone(), pod.target()));
        let targets = pods.chain(self.node_target()).collect();
        self.observer.set_targets(targets);
        self.replace_sidecars();
        self.note_readiness(now);
        let followed = self.follow(now);
        self.tolerate(followed, now)?;
        self.note_acknowledgements(now);
        if self.was_ready {
            self.note_expiry(now);
            self.show(now);
        }
        Ok(())
    }

    /// Writes the files for changes of the mesh, and renews tokens.
    fn follow(&mut self, now: Instant) -> Result<(), UpError> {
        match &self.trouble {
            Some((_, again)) if now < *again => return Ok(()),
            Some(_) => {
                self.apply()?;
                self.write_tokens()?;
                self.trouble = None;
                self.event("the failed step has succeeded");
            }
            None => self.publish()?,
        }
        if self.control_was_ready
            && now.duration_since(self.tokens_written) >= self.options.token_ttl / 2
        {
            self.write_tokens()?;
        }
        if self.watch.is_due(now) {
            self.edited()?;
        } else if !self.roster.is_settled() {
            self.roll()?;
        }
        Ok(())
    }

    /// Tolerates a failure of the machine (a full disk, say) in a running mesh: reports it and tries again.
    fn tolerate(&mut self, outcome: Result<(), UpError>, now: Instant) -> Result<(), UpError> {
        let error = match outcome {
            Err(UpError::Machine(error)) if self.was_ready => error,
            other => return other,
        };
        let text = format!("{error}; running processes continue; retrying every second");
        if self.trouble.as_ref().is_none_or(|(said, _)| *said != text) {
            self.event(&text);
        }
        self.trouble = Some((text, now + RETRY));
        Ok(())
    }

    /// New sidecars take over from the running ones, a few at a time. Applications and connections stay.
    fn replace_sidecars(&mut self) {
        if self.replace.swap(false, Ordering::Relaxed) {
            let with_sidecar = self.pods.iter().filter(|(_, pod)| pod.sidecar.is_some());
            self.to_replace = with_sidecar.map(|(name, _)| name.clone()).collect();
            self.event(&format!("{} sidecars are replaced", self.to_replace.len()));
            self.replace_node();
        }
        if self.to_replace.is_empty() {
            return;
        }
        let sidecars = self.pods.values().filter_map(|pod| pod.sidecar.as_ref());
        let busy = sidecars.filter(|sidecar| sidecar.is_being_replaced());
        let room = REPLACED_AT_A_TIME.saturating_sub(busy.count());
        for _ in 0..room {
            let Some(name) = self.to_replace.pop_first() else {
                return;
            };
            let sidecar = self
                .pods
                .get_mut(&name)
                .and_then(|pod| pod.sidecar.as_mut());
            if let Some(Err(error)) = sidecar.map(Process::replace) {
                self.event(&format!("{name} keeps its sidecar: {error}"));
            }
        }
    }

    fn ready(&self) -> BTreeSet<ResourceName> {
        let nothing = Observation::default();
        let ready = |(name, pod): &(&ResourceName, &PodRun)| {
            pod.is_ready(self.seen.get(*name).unwrap_or(&nothing))
        };
        self.pods
            .iter()
            .filter(ready)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Tells the control plane, and the relays, which pods there are and which take traffic.
    fn publish(&mut self) -> Result<(), UpError> {
        let ready = self.ready();
        let over = self.pods.values().filter(|pod| pod.is_over());
        let over: BTreeSet<_> = over.map(|pod| pod.plan.name.clone()).collect();
        let going = self.going();
        let same = self.over == over && self.going == going;
        if self.published.as_ref() == Some(&ready) && same {
            return Ok(());
        }
        let text = render(&self.plan, self.ground.layout(), &ready, &over, &going);
        (self.over, self.going) = (over, going);
        if text != self.written {
            self.run_folder
                .replace(&self.run_folder.config().join(MESH_FILE), &text)?;
            self.written = text;
        }
        let network = self.ground.network();
        let mut notes = self.reach.follow(&self.mesh, &self.plan, &ready, network)?;
        for pod in self.pods.values_mut() {
            notes.extend(pod.follow(&self.mesh, &self.plan, &ready));
        }
        for note in notes {
            self.event(&note);
        }
        self.published = Some(ready);
        Ok(())
    }

    /// Makes the running pods agree with the plan, as far as the rollout allows now.
    fn apply(&mut self) -> Result<(), UpError> {
        let now = Instant::now();
        let mut wanted: BTreeMap<ResourceName, PodPlan> = self
            .plan
            .pods
            .iter()
            .map(|pod| (pod.name.clone(), pod.clone()))
            .collect();
        let running: Vec<ResourceName> = self.pods.keys().cloned().collect();
        for name in running {
            let plan = wanted.remove(&name);
            if let Some(plan) = &plan
                && let Some(pod) = self.pods.get_mut(&name)
                && pod.plan.runs_as(plan)
            {
                pod.go_on_as(plan.clone());
                continue;
            }
            let Some(pod) = self.pods.remove(&name) else {
                continue;
            };
            self.leaving.push(LeavingPod::new(pod, now));
            let what = if plan.is_some() {
                "is replaced"
            } else {
                "goes"
            };
            self.event(&format!("{name} {what}"));
            wanted.extend(plan.map(|plan| (name, plan)));
        }
        let tokens = !wanted.is_empty();
        for (name, plan) in wanted {
            if self.was_ready {
                self.event(&format!("{name} starts"));
            }
            let pod = self.make(plan)?;
            self.pods.insert(name, pod);
        }
        if tokens {
            self.write_tokens()?;
        }
        self.published = None;
        self.publish()
    }

    fn make(&mut self, plan: PodPlan) -> Result<PodRun, UpError> {
        let around = ApplicationContext {
            voile: &self.options.voile,
            folder: &self.options.folder,
            run: &self.run_folder,
            state: &self.state,
            show: self.options.logs,
            egress: self.options.egress,
        };
        let network = match self.ground.network() {
            Some(network) => {
                let by_node = self.plan.by_node && plan.is_ambient();
                Some(network.add_pod(&plan, by_node)?)
            }
            None => None,
        };
        let proxy = plan.sidecar.as_ref().map(|_| {
            let control = self.ground.control_planes(self.options.control_planes);
            let recipe = sidecar(
                &around,
                &self.mesh.config,
                &plan,
                &control,
                network.is_some(),
            );
            Process::new(recipe.at(network.as_ref().map(PodNetwork::sidecar_place)))
        });
        let mut apps = Vec::new();
        let mut wrong = Vec::new();
        for one in plan.template.applications() {
            match container(&around, &self.mesh, &plan, one) {
                Ok(recipe) => {
                    let place = match network.as_ref() {
                        Some(network) => Some(self.application_place(network, &plan)?),
                        None => self.ground.loopback_place().cloned(),
                    };
                    let place = match place {
                        Some(place) => {
                            Some(place.confined(confinement(&around, &plan, &one.security)?))
                        }
                        None => None,
                    };
                    let recipe = recipe.at(place).with_a_home();
                    // From within it goes past the sidecar, from outside through it.
                    let within = plan.sidecar.is_none() || plan.template.rewrites_probes;
                    let namespace = network.as_ref().filter(|_| within);
                    let namespace = namespace.map(PodNetwork::namespace);
                    let probing = Probing::new(&plan, namespace, &one.probes, &recipe);
                    apps.push((Process::new(recipe), probing));
                }
                Err(error) => wrong.push(format!("{}: {error}", plan.name)),
            }
        }
        for text in &wrong {
            self.event(text);
        }
        let unserved = self.plan.by_node && plan.is_ambient();
        let mut pod = PodRun::new(plan, network, proxy, apps);
        if !wrong.is_empty() {
            pod.refuse(wrong.join(", "));
        }
        pod.wait_for_node(unserved);
        Ok(pod)
    }

    fn application_place(
        &self,
        network: &PodNetwork,
        plan: &PodPlan,
    ) -> io::Result<ProcessIsolation> {
        let (namespace, captured) = (plan.name.namespace.as_str(), network.is_captured());
        let Some(text) = resolver(namespace, captured, self.options.egress) else {
            return network.application_place(None);
        };
        let file = self.run_folder.resolver(namespace, captured);
        self.run_folder.replace_readable(&file, &text)?;
        network.application_place(Some(&file))
    }

    /// The control plane makes the keys; we only use them, so we wait until it is ready.
    fn open_tokens(&mut self) -> Result<(), UpError> {
        let state = |error: &dyn std::fmt::Display| UpError::State(error.to_string());
        let directory = StateDir::open(&self.state).map_err(|error| state(&error))?;
        self.pin_root()?;
        self.tokens = Some(TokenKey::open(&directory).map_err(|error| state(&error))?);
        self.write_tokens()
    }

    fn write_tokens(&mut self) -> Result<(), UpError> {
        let Some(key) = &self.tokens else {
            return Ok(());
        };
        self.tokens_written = Instant::now();
        if self.node.is_some() {
            let subject = node_subject();
            let (now, ttl) = (SystemTime::now(), self.options.token_ttl);
            let token = key.mint(&subject, TOKEN_AUDIENCE, now, ttl);
            let token = token.map_err(|error| UpError::State(error.to_string()))?;
            let file = self.run_folder.token(node::NAME);
            self.run_folder.replace(&file, &token)?;
        }
        for pod in self.plan.pods.iter().filter(|pod| pod.sidecar.is_some()) {
            let subject = TokenSubject {
                namespace: pod.name.namespace.to_string(),
                service_account: pod.template.service_account.to_string(),
                pod: Some(pod.name.name.to_string()),
            };
            let token = key
                .mint(
                    &subject,
                    TOKEN_AUDIENCE,
                    SystemTime::now(),
                    self.options.token_ttl,
                )
                .map_err(|error| UpError::State(error.to_string()))?;
            self.run_folder
                .replace(&self.run_folder.token(&pod_id(pod)), &token)?;
        }
        Ok(())
    }
}

fn same(a: &Diagnostic, b: &Diagnostic) -> bool {
    // A line that moved is not another problem.
    (a.code, &a.source.file, &a.field, &a.message) == (b.code, &b.source.file, &b.field, &b.message)
}

/// Opens the control socket, if its path is not too long for the kernel.
fn open_socket(
    run_folder: &RunFolder,
    controls: Vec<SocketAddr>,
    runtime: &Handle,
) -> Result<Option<ControlSocket>, UpError> {
    let path = run_folder.control_socket();
    let open = |path: &Path| ControlSocket::open(path, controls, runtime);
    Ok(path.as_deref().map(open).transpose()?)
}
