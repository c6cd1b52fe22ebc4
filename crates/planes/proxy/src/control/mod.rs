//! The control thread: everything that is not a connection. It talks to the control plane, holds the certificate,
//! accepts and hands over, answers admin, metrics and readiness, and ends the process in good order.

mod admin_pages;
mod collector;
mod discovery;
mod handover;
mod network;
mod options;
mod own_sockets;
mod recorders;
mod shutdown;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::LocalSet;
use voile_dns::{Resolver, Upstreams};
use voile_identity::{
    CertificateClient, CertificateStore, ClientSettings, mesh_client_config, mesh_server_config,
};
use voile_process::{RunError, Signals};
use voile_proto::discovery::Node;
use voile_proto::type_url;
use voile_transport as transport;
use voile_transport::alpn;
use voile_xds::client::{ClientConfig, Update, XdsClient};

use crate::control::admin_pages::health::AskForHealth;
use crate::control::discovery::discovery_state::DiscoveryState;
use crate::control::own_sockets::OwnSockets;
use crate::worker::{self, FromWorker, Ledger, Redirected, Tls, WorkerAccount, WorkerInputs};
pub use admin_pages::application_metrics::ApplicationMetrics;
use admin_pages::health;
use admin_pages::page_opening::{PageOpening, StartDns};
pub use admin_pages::probers::Probers;
use discovery::credentials::Credentials;
use discovery::state::Control;
use discovery::{compiler, destinations, names};
use network::accept::{Dispatcher, WorkerHandle};
use network::{dns, sockets};
use options::SERVICE_IDLE;
pub use options::{CapturePorts, Membership, ProxyOptions};
use recorders::{PendingRecorders, Recorders};
use shutdown::ShutdownRequest;

/// Runs a proxy until SIGTERM, SIGINT or `/quitquitquit`.
///
/// # Errors
/// When it cannot begin; once it runs, failures are logged and survived.
pub fn run(options: ProxyOptions) -> Result<(), RunError> {
    let (namespace, name) = match options.workload.split_once('/') {
        Some((namespace, name))
            if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
        {
            (namespace, name)
        }
        _ => {
            return Err(RunError::Option(format!(
                "workload `{}`: expected NAMESPACE/NAME",
                options.workload
            )));
        }
    };
    options.process.check()?;
    let workers = options.process.workers;
    let limit = transport::raise_descriptor_limit();
    tracing::info!(
        workload = options.workload,
        workers,
        descriptors = limit,
        "proxy started"
    );
    let pages = OwnSockets::bind(&options)?;
    let store = Arc::new(CertificateStore::new());
    let tls = mesh_tls(&store)?;
    let (to_control, from_workers) = mpsc::unbounded_channel();
    let capture = Redirected {
        ports: pages.capture_ports(),
        exemption: options.exemption(),
        keeps_source: options.capture.is_some_and(|capture| capture.keeps_source),
    };
    let ledger = Ledger::new(options.limits, voile_memory::cgroup_limit(), workers);
    let (handles, threads) = start_workers(&ledger, &tls, &to_control, &capture, workers)?;
    drop(to_control);
    let node = node(namespace, name, options.membership.as_ref());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let recorders = Recorders::new(Arc::clone(&tls.client_tcp), node.id.as_str().into());
    let local = LocalSet::new();
    let remains = local.block_on(
        &runtime,
        control(
            options,
            node,
            store,
            (handles, ledger),
            from_workers,
            pages,
            recorders,
        ),
    )?;
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a worker panicked");
        }
    }
    // The workers are gone, and their last records are on their way.
    local.block_on(&runtime, remains.finish());
    Ok(())
}

type Threads = Vec<std::thread::JoinHandle<()>>;

/// TLS of both sides, with the protocols that each may name.
fn mesh_tls(store: &Arc<CertificateStore>) -> Result<Tls, RunError> {
    Ok(Tls {
        server: mesh_server_config(store, &alpn::SERVER)?,
        tunnel_server: mesh_server_config(store, &[alpn::PLAIN_HTTP2])?,
        tunnel_client: mesh_client_config(store, &[alpn::PLAIN_HTTP2])?,
        client_http: mesh_client_config(store, &[alpn::HTTP11])?,
        // The mesh's name first, then what a server that only knows one of Istio's other names can pick.
        client_http2: mesh_client_config(store, &[alpn::HTTP2, alpn::TCP, alpn::PLAIN_HTTP2])?,
        client_tcp: mesh_client_config(store, &[alpn::TCP])?,
    })
}

fn start_workers(
    ledger: &Arc<Ledger>,
    tls: &Tls,
    to_control: &mpsc::UnboundedSender<FromWorker>,
    capture: &Redirected,
    count: usize,
) -> Result<(Vec<WorkerHandle>, Threads), RunError> {
    let (mut handles, mut threads) = (Vec::new(), Vec::new());
    for index in 0..count {
        let (sender, inbox) = mpsc::unbounded_channel();
        let load = Arc::new(AtomicUsize::new(0));
        let birth = WorkerInputs {
            tls: tls.clone(),
            inbox,
            control: to_control.clone(),
            capture: capture.clone(),
            load: Arc::clone(&load),
            seat: WorkerAccount {
                ledger: Arc::clone(ledger),
                lane: index,
            },
        };
        let body = move || {
            if let Err(error) = worker::run(birth) {
                tracing::error!(%error, "cannot start a worker");
            }
        };
        threads.push(
            std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(body)?,
        );
        handles.push(WorkerHandle { sender, load });
    }
    Ok((handles, threads))
}

/// Node of the discovery stream, in the terms of Istio's agent.
fn node(namespace: &str, name: &str, membership: Option<&Membership>) -> Node {
    let text = |text: &str| Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    };
    let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let address = membership.map_or(unknown, |membership| membership.address);
    let metadata = membership.map(|membership| Struct {
        fields: BTreeMap::from([
            ("AUTO_REGISTER_GROUP".to_owned(), text(&membership.group)),
            ("NAMESPACE".to_owned(), text(namespace)),
        ]),
    });
    Node {
        id: format!("sidecar~{address}~{name}.{namespace}~{namespace}.svc.cluster.local"),
        metadata,
        user_agent_name: concat!("voile/", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Node::default()
    }
}

async fn control(
    options: ProxyOptions,
    node: Node,
    store: Arc<CertificateStore>,
    (handles, ledger): (Vec<WorkerHandle>, Arc<Ledger>),
    mut from_workers: mpsc::UnboundedReceiver<FromWorker>,
    mut pages: OwnSockets,
    recorders: Recorders,
) -> Result<PendingRecorders, RunError> {
    let shared = Arc::new(Mutex::new(sockets_at_hand(&mut pages, &options)));
    let (news, mut updates) = mpsc::unbounded_channel();
    let dispatcher = Rc::new(Dispatcher::new(handles, ledger)?);
    let certificates = certificate_client(&options, &store);
    let mut renewed = certificates.subscribe();
    tokio::task::spawn_local(certificates.run(std::future::pending()));
    // Without a token only a certificate can open the stream. The pages and signals are served meanwhile.
    let begin = once_there_is(renewed.clone(), options.token_file.is_none());
    let heard = Arc::new(Notify::new());
    let (client, asked) = start_client(begin, &options, node, &store, &shared, (news, &heard));
    let upstreams = dns::upstreams(&options);
    let resolver = dns::resolver(&upstreams);
    let (lookups, mut answers) = names::Lookups::new(Rc::clone(&resolver));
    let idle = Rc::new(Cell::new(options.service_idle.unwrap_or(SERVICE_IDLE)));
    let (resolving, following) = ((upstreams, resolver), (heard, Rc::clone(&idle)));
    let dns = prepare_dns(&mut pages, &shared, &client, resolving, following);
    let (compiler, mut compiled) = compiler::Compiler::new();
    let ending = Rc::new(ShutdownRequest::default());
    let control = Rc::new(RefCell::new(Control::new(
        &options,
        shared,
        client,
        store,
        Rc::clone(&dispatcher),
        recorders,
        (lookups, compiler, idle, asked),
    )));
    let mut doors = PageOpening::new(&control, &ending, options.process.handover, pages, dns)?;
    let mut signals = Signals::install()?;
    let mut reopen = signal(SignalKind::user_defined1())?;
    let looked = control.borrow().looked();
    let mut begun = false;
    loop {
        if !begun && control.borrow().unready().is_empty() {
            begun = true;
            let released = voile_memory::release_cold_pages();
            voile_memory::give_back();
            dispatcher.begun();
            tracing::info!(released, "ready");
            doors.ready().await?;
        }
        let retry = control.borrow().next_attempt();
        let look = control.borrow().next_look();
        tokio::select! {
            Some(()) = updates.recv() => control.borrow_mut().publish(),
            Some(done) = compiled.recv() => compiler::ended(&control, done),
            Some(answer) = answers.recv() => control.borrow_mut().name_settled(answer),
            Some(news) = from_workers.recv() => match news {
                FromWorker::MemoryShort => control.borrow().memory.relieve(),
                FromWorker::Freed => control.borrow().memory.burst_is_over(),
                news => control.borrow_mut().heard(news),
            },
            () = dispatcher.memory_short() => control.borrow().memory.relieve(),
            () = sockets::until(look) => {
                let asked = control.borrow_mut().ask_for_used();
                tokio::task::spawn_local(destinations::look(Rc::clone(&control), asked));
            }
            () = looked.notified() => {}
            Ok(()) = renewed.changed() => control.borrow_mut().certificate_changed(),
            () = sockets::until(retry) => control.borrow_mut().try_again(),
            () = sockets::until(doors.deadline) => return Err(doors.late()),
            Some(()) = reopen.recv() => control.borrow().recorders.reopen(),
            _ = signals.next() => break,
            () = ending.asked() => break,
        }
    }
    doors.close();
    shutdown::drain(&control, &ending, &dispatcher, &mut signals).await;
    Ok(control.borrow_mut().end_recording())
}

/// Starts the probes of the application, by the configuration to come.
fn health_of(options: &ProxyOptions, client: &XdsClient) -> AskForHealth {
    let (ask, asked) = watch::channel(None);
    let reach = health::ApplicationAccess {
        exemption: options.exemption(),
        runs_programs: options.exec_probes,
    };
    tokio::task::spawn_local(health::follow(asked, client.clone(), reach));
    ask
}

/// Waits for a first certificate, where one is needed.
async fn once_there_is<T>(mut renewed: watch::Receiver<T>, needed: bool) {
    if needed {
        // Without a sender the process is ending.
        let _ = renewed.changed().await;
    }
}

fn certificate_client(options: &ProxyOptions, store: &Arc<CertificateStore>) -> CertificateClient {
    let settings = ClientSettings {
        control: options.process.control.clone(),
        root_cert: options.process.root_cert.clone(),
        token_file: options.token_file.clone(),
        join_token_file: options.join_token_file.clone(),
        ttl: None,
    };
    let store = Arc::clone(store);
    match options.authority.clone() {
        None => CertificateClient::new(settings, store),
        Some((address, domain)) => {
            CertificateClient::new(settings.at_authority(address), store).naming_itself(domain)
        }
    }
}

/// Sockets that listen already, or were inherited.
fn sockets_at_hand(pages: &mut OwnSockets, options: &ProxyOptions) -> DiscoveryState {
    let mut shared = DiscoveryState::default();
    shared.registry.asks_revocations = true;
    shared.registry.is_gateway = options.gateway;
    shared.registry.is_waypoint = options.waypoint;
    shared.sockets.inherited = std::mem::take(&mut pages.inherited);
    shared.sockets.lends = options.process.handover.is_some();
    shared.sockets.awaits = pages.predecessor.is_some();
    for (direction, address, socket) in pages.captured.drain(..) {
        shared.registry.capturing = true;
        shared.sockets.adopt(direction, address, socket);
    }
    shared
}

/// The DNS proxy, where it was asked for, to be started when the doors open.
fn prepare_dns(
    pages: &mut OwnSockets,
    shared: &Arc<Mutex<DiscoveryState>>,
    client: &XdsClient,
    resolving: (Rc<Upstreams>, Rc<Resolver>),
    (heard, idle): (Arc<Notify>, Rc<Cell<Duration>>),
) -> Option<StartDns> {
    let sockets = pages.dns.take()?;
    let (shared, client) = (Arc::clone(shared), client.clone());
    Some(Box::new(move || {
        dns::Dns::start(sockets, shared, client, resolving, (heard, idle))
    }))
}

fn start_client(
    begin: impl Future<Output = ()> + Send + 'static,
    options: &ProxyOptions,
    node: Node,
    store: &Arc<CertificateStore>,
    shared: &Arc<Mutex<DiscoveryState>>,
    (news, heard): (mpsc::UnboundedSender<()>, &Arc<Notify>),
) -> (XdsClient, AskForHealth) {
    let config = ClientConfig {
        addresses: options.process.control.clone(),
        root_certificate: Some(options.process.root_cert.clone()),
        node,
    };
    let credentials = Credentials::new(options.token_file.clone(), Arc::clone(store));
    let (shared, heard) = (Arc::clone(shared), Arc::clone(heard));
    let handler = move |update: &Update| {
        let rejections = shared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .apply(update);
        // Without a receiver the process is ending.
        let _ = news.send(());
        heard.notify_waiters();
        rejections
    };
    let client = XdsClient::start_after(
        begin,
        config,
        Arc::new(credentials),
        Box::new(handler),
        &tokio::runtime::Handle::current(),
    );
    let first = [
        (type_url::PROXY_CONFIGURATION, options.workload.as_str()),
        (type_url::REVOCATION_LISTS, type_url::REVOCATIONS),
    ];
    for (kind, name) in first {
        if client.subscribe(kind, [name]).is_err() {
            tracing::error!("cannot subscribe to the proxy's configuration");
        }
    }
    let asked = health_of(options, &client);
    (client, asked)
}
