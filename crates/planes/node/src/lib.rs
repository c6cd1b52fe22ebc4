//! The node proxy: one process for the pods of a node, for TCP connections. It enters the pods' networks and holds a
//! key for each identity. It carries their connections through tunnels of mutual TLS (HBONE) to the node proxies of
//! the destinations.
//!
//! ```text
//! agent ─ pods ─► agents ─► doors of each pod ─► workers:  15001 ─ route ─► pool ═ HBONE ═► 15008 ─ policy ─► application
//! control plane ─ who is where, who may ─► registry ─ views ──┘                              15006 ─ policy ──┘
//! ```

mod agents;
mod connections;
mod dispatch;
mod dns;
mod listener_handover;
mod memory;
mod names;
mod pages;
mod pod;
mod records;
mod registry;
mod route;
mod view_updates;
mod worker;

use connections::{
    connect_heads, inbound, outbound, plaintext, same_node, tunnel, unproven, verified_peers,
};

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::LocalSet;
use voile_identity::{ClientSettings, TrustDomain};
use voile_memory::MemoryRelief;
use voile_process::{ProcessOptions, RunError, Signals, until_over};
use voile_proto::discovery::Node;
use voile_proto::type_url;
use voile_telemetry::tap::Tap;
use voile_transport as transport;
use voile_transport::handover::InheritedSockets;
use voile_xds::client::{ClientConfig, Handler, TokenFile, Update, XdsClient};
use voile_zds::PodIdentity;

use agents::{NodePods, ServingContext};
use dispatch::{Dispatcher, Handle, WorkerLoad};
use dns::Directory;
use listener_handover::{Legacy, NodeListeners, NodeSuccessor};
use memory::NodeMemory;
use names::NameLookup;
use pages::PageSources;
pub use registry::Subscription;
use registry::{Registry, RegistryView};
pub use unproven::UNPROVEN_BYTES;
use view_updates::ViewUpdates;
use worker::ControlPlaneClient;

/// Time that workers get to end cut connections: one turn each, even on a busy machine.
const CUT_LIMIT: Duration = Duration::from_secs(1);

/// Options of a node proxy.
#[derive(Debug)]
pub struct NodeOptions {
    /// What every proxy has. Its drain timeout also holds for the connections of a pod that is gone.
    pub process: ProcessOptions,
    /// The pod that it is itself.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its service account, where tunnels to its own pages are to be taken in its name.
    pub own_account: Option<String>,
    /// The node's name, for the control plane's people.
    pub node: String,
    /// The trust domain of the identities that it serves.
    pub trust_domain: TrustDomain,
    /// Aliases of the trust domain: identities of these are trusted, too.
    pub trust_domain_aliases: Vec<TrustDomain>,
    /// The agent's socket.
    pub agent: PathBuf,
    /// `https://host:port` of a certificate authority beside the control plane.
    pub authority: Option<String>,
    /// Part of the mesh that the proxy subscribes to.
    pub subscription: Subscription,
    /// Its own service-account token, bound to its pod.
    pub token_file: PathBuf,
    /// True if applications are called from their clients' own addresses.
    pub keeps_source: bool,
    /// Resident memory in bytes that the proxy stays below; 0 is no limit, and `u64::MAX` the cgroup's.
    pub memory_limit: u64,
}

/// Runs a node proxy until SIGTERM, SIGINT or `/quitquitquit`.
///
/// # Errors
/// When it cannot begin; once it runs, failures are logged and survived.
pub fn run(options: NodeOptions) -> Result<(), RunError> {
    options.process.check()?;
    may(&options)?;
    let descriptors = transport::raise_descriptor_limit();
    let (workers, node) = (options.process.workers, &options.node);
    tracing::info!(node, workers, descriptors, "node proxy started");
    let legacy = Legacy::claim(&options)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let threads = LocalSet::new().block_on(&runtime, serve(options, legacy))?;
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a worker panicked");
        }
    }
    Ok(())
}

/// Checks the capabilities that the proxy needs, before anything starts.
fn may(options: &NodeOptions) -> Result<(), RunError> {
    let here = voile_host::netns::Namespace::current()?;
    here.within(|| ()).map_err(|error| {
        RunError::Option(format!(
            "cannot enter network namespaces ({error}); a node proxy needs CAP_SYS_ADMIN"
        ))
    })?;
    transport::may_mark().map_err(|error| {
        RunError::Option(format!(
            "cannot mark sockets ({error}); a node proxy needs CAP_NET_ADMIN"
        ))
    })?;
    if options.keeps_source {
        transport::may_be_transparent().map_err(|error| {
            RunError::Option(format!(
                "--keep-source: cannot call from a client's address ({error}); it needs CAP_NET_ADMIN and a kernel with IP_TRANSPARENT"
            ))
        })?;
    }
    Ok(())
}

type Threads = Vec<std::thread::JoinHandle<()>>;

async fn serve(options: NodeOptions, mut legacy: Legacy) -> Result<Threads, RunError> {
    let sockets = legacy.pages(&options.process)?;
    let (publish, view) = watch::channel(Arc::new(RegistryView::default()));
    let registry = Registry::subscribed_to(options.subscription);
    let registry = Arc::new(Mutex::new(registry));
    let heard = Arc::new(Notify::new());
    let (names, questions) = mpsc::unbounded_channel();
    let news = ViewUpdates::new(Arc::clone(&registry), publish, Arc::clone(&heard));
    let asker = ControlPlaneClient {
        client: discover(&options, news),
        registry,
        subscription: options.subscription,
        names,
    };
    let directory = Directory::new(
        asker.clone(),
        (view.clone(), heard),
        options.process.resolver,
    );
    let (dispatcher, threads) = start_dispatcher(&options, &view, &asker)?;
    let means = means(&options, asker, &dispatcher, directory);
    let agency = agency(&options, means, legacy.inherited)?;
    let told = Rc::new(PageSources {
        agency: Rc::clone(&agency),
        dispatcher: Rc::clone(&dispatcher),
        view,
        ending: Notify::new(),
        leaving: Cell::new(false),
        log: options.process.log.clone(),
    });
    agency.talk();
    tokio::task::spawn_local(look_up(Rc::clone(&agency), questions));
    let watching = watch_view(
        Rc::clone(&agency),
        told.view.clone(),
        Rc::clone(&dispatcher),
    );
    tokio::task::spawn_local(watching);
    let mut signals = Signals::install()?;
    let doors = NodeListeners::new(&told, legacy.who, sockets);
    let opening = Rc::clone(&doors).open(legacy.predecessor, options.process.handover.clone());
    tokio::select! {
        opened = opening => opened?,
        _ = signals.next() => {
            tracing::info!("stopped before the handover: no connection was accepted");
            dispatcher.dismiss();
            return Ok(threads);
        }
    }
    tokio::select! {
        _ = signals.next() => {}
        () = told.ending.notified() => {}
    }
    let successor = doors.close();
    agency.hang_up();
    told.leaving.set(true);
    agency.leave();
    let limit = drain_limit(&options.process, successor);
    // A supervisor that has started the successor ends this process next. That is no haste.
    let mut awaited = successor == NodeSuccessor::Elsewhere;
    drain(limit, (&agency, &dispatcher), &mut signals, &mut awaited).await;
    agency.cut();
    // Each is told by a reset that it was cut; that takes its worker's turn.
    let _ = tokio::time::timeout(CUT_LIMIT, everybody_left(&agency, &dispatcher)).await;
    if awaited {
        tracing::info!("handed over to another network namespace: waiting for SIGTERM");
        signals.next().await;
    }
    dispatcher.dismiss();
    Ok(threads)
}

/// Creates the agency that serves the agent's pods, and the proxy's own pod where that is wanted.
fn agency(
    options: &NodeOptions,
    means: ServingContext,
    inherited: InheritedSockets,
) -> Result<Rc<NodePods>, RunError> {
    let agency = NodePods::new(means, options.agent.clone(), inherited)?;
    if let Some(account) = &options.own_account {
        let who = PodIdentity {
            name: options.name.clone(),
            namespace: options.namespace.clone(),
            service_account: account.clone(),
        };
        let pages = [&options.process.metrics, &options.process.readiness];
        let served = agency.serve_itself(&who, Box::new(pages.map(SocketAddr::port)));
        served.map_err(|error| {
            let (namespace, name) = (&who.namespace, &who.name);
            RunError::Setup(format!(
                "cannot accept HBONE for its own pod {namespace}/{name}: {error}"
            ))
        })?;
    }
    Ok(agency)
}

fn means(
    options: &NodeOptions,
    asker: ControlPlaneClient,
    dispatcher: &Rc<Dispatcher>,
    directory: Rc<Directory>,
) -> ServingContext {
    let certificates = ClientSettings {
        control: options.process.control.clone(),
        root_cert: options.process.root_cert.clone(),
        token_file: Some(options.token_file.clone()),
        join_token_file: None,
        ttl: None,
    };
    let authority = options.authority.clone();
    ServingContext {
        asker,
        directory,
        dispatcher: Rc::clone(dispatcher),
        certificates: match authority {
            None => certificates,
            Some(address) => certificates.at_authority(address),
        },
        trust_domain: options.trust_domain.clone(),
        aliases: options.trust_domain_aliases.clone(),
        keeps_source: options.keeps_source,
        drain: options.process.drain_timeout,
    }
}

/// Time that connections get to end.
fn drain_limit(process: &ProcessOptions, successor: NodeSuccessor) -> Duration {
    match successor {
        NodeSuccessor::Nobody => process.drain_timeout,
        // No process waits for this one's end.
        _ => process.drain_timeout.max(process.handover_drain_timeout),
    }
}

async fn everybody_left(agency: &NodePods, dispatcher: &Dispatcher) {
    until_over(|| dispatcher.load() == 0 && agency.has_answered()).await;
}

/// Waits until all connections have ended and all DNS questions are answered, the limit has passed, or a signal comes that is not
/// `awaited`.
async fn drain(
    limit: Duration,
    (agency, dispatcher): (&NodePods, &Dispatcher),
    signals: &mut Signals,
    awaited: &mut bool,
) {
    let haste = async {
        if *awaited {
            signals.next().await;
            *awaited = false;
        }
        signals.next().await;
    };
    let over = everybody_left(agency, dispatcher);
    voile_process::drain(limit, || dispatcher.load(), over, haste).await;
}

/// Has names looked up for which workers ask.
async fn look_up(agency: Rc<NodePods>, mut questions: mpsc::UnboundedReceiver<NameLookup>) {
    while let Some(question) = questions.recv().await {
        agency.resolve(question);
    }
}

/// Releases memory that ended connections held.
async fn watch_emptied(emptied: Arc<Notify>, dispatcher: Rc<Dispatcher>) {
    loop {
        emptied.notified().await;
        dispatcher.settle();
    }
}

/// Looks after our own certificates whenever lists change.
async fn watch_view(
    agency: Rc<NodePods>,
    mut view: watch::Receiver<Arc<RegistryView>>,
    dispatcher: Rc<Dispatcher>,
) {
    let mut known = Arc::default();
    while view.changed().await.is_ok() {
        dispatcher.told();
        let (lists, roots) = {
            let view = view.borrow_and_update();
            (Arc::clone(&view.revocations), Arc::clone(&view.roots))
        };
        agency.tell_roots(&roots);
        if known != lists {
            agency.revoke(&lists);
            known = lists;
        }
    }
}

/// Starts the discovery client: every policy, and every address or those that are asked for.
fn discover(options: &NodeOptions, news: Arc<ViewUpdates>) -> XdsClient {
    let config = ClientConfig {
        addresses: options.process.control.clone(),
        root_certificate: Some(options.process.root_cert.clone()),
        node: node(options),
    };
    let handler: Handler = Box::new(move |update: &Update| news.take(update));
    let credentials = Arc::new(TokenFile(options.token_file.clone()));
    let runtime = tokio::runtime::Handle::current();
    let client = XdsClient::start(config, credentials, handler, &runtime);
    // So few names are never too many. Revocation lists are requested first, so that they are known before any
    // connection is allowed. A control plane other than Voile's does not know them, and does not answer.
    let _ = client.subscribe(type_url::REVOCATION_LISTS, [type_url::REVOCATIONS]);
    let _ = client.subscribe(type_url::AUTHORIZATION, ["*"]);
    if options.subscription == Subscription::All {
        let _ = client.subscribe(type_url::ADDRESS, ["*"]);
    }
    client
}

/// Node metadata that the proxy sends, in ztunnel's words. The control plane does not trust it; it is for people to
/// read.
fn node(options: &NodeOptions) -> Node {
    let (name, namespace) = (&options.name, &options.namespace);
    let text = |text: &str| Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    };
    let fields = [
        ("NAME", name),
        ("NAMESPACE", namespace),
        ("NODE_NAME", &options.node),
    ];
    let fields = fields.map(|(name, value)| (name.to_owned(), text(value)));
    Node {
        id: format!("ztunnel~0.0.0.0~{name}.{namespace}~{namespace}.svc.cluster.local"),
        metadata: Some(Struct {
            fields: BTreeMap::from(fields),
        }),
        user_agent_name: concat!("voile/", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Node::default()
    }
}

/// Starts the workers, and the tasks that look after their memory.
fn start_dispatcher(
    options: &NodeOptions,
    view: &watch::Receiver<Arc<RegistryView>>,
    asker: &ControlPlaneClient,
) -> io::Result<(Rc<Dispatcher>, Threads)> {
    let emptied = Arc::new(Notify::new());
    let memory = NodeMemory::new(options.memory_limit);
    let tap = Arc::new(Tap::default());
    let shared = (&memory, &emptied, &tap);
    let (handles, threads) = start_workers(options.process.workers, view, asker, shared)?;
    let dispatcher = Rc::new(Dispatcher::new(handles, Arc::clone(&memory), tap));
    tokio::task::spawn_local(memory.look_after(MemoryRelief::new(Rc::clone(&dispatcher))));
    tokio::task::spawn_local(watch_emptied(emptied, Rc::clone(&dispatcher)));
    Ok((dispatcher, threads))
}

fn start_workers(
    count: usize,
    view: &watch::Receiver<Arc<RegistryView>>,
    asker: &ControlPlaneClient,
    (memory, emptied, tap): (&Arc<NodeMemory>, &Arc<Notify>, &Arc<Tap>),
) -> io::Result<(Vec<Handle>, Threads)> {
    let (mut handles, mut threads) = (Vec::new(), Vec::new());
    for index in 0..count {
        let (sender, inbox) = mpsc::unbounded_channel();
        let (view, asker) = (view.clone(), asker.clone());
        let (memory, tap) = (Arc::clone(memory), Arc::clone(tap));
        let thread = std::thread::Builder::new()
            .name(format!("worker-{index}"))
            .spawn(move || {
                if let Err(error) = worker::run(inbox, view, asker, (memory, tap)) {
                    tracing::error!(%error, "cannot start a worker");
                }
            })?;
        handles.push(Handle {
            sender,
            load: Arc::new(WorkerLoad::new(emptied)),
        });
        threads.push(thread);
    }
    Ok((handles, threads))
}
