//! Listeners of a gateway. A virtual host is a service that has only routes, so that requests use the same tables, weights,
//! retries and endpoints as a sidecar's.

mod tls;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use voile_model::Port;
use voile_telemetry as telemetry;
use voile_traffic::{RetryBudget, RetryPolicy};
use voile_xds::wire::{
    Credential, GatewayListener, GatewayServer, ProxyConfiguration, ServerKind, WireProtocol,
};

use super::Registry;
use super::files::FileStore;
use super::origination;
use super::routes::HeldRoutes;
use tls::Tls;

use crate::plan::{
    GatewayPlan, Http3Plan, OutboundPlan, PassthroughMode, ServerPlan, ServicePlan, TrafficPlan,
};

/// Host that matches every host.
const ANY: &str = "*";
/// Name of the service that stands for opaque connections until routes select one.
const CONNECTIONS: &str = "connections";

/// See the module; empty of a sidecar.
#[derive(Debug, Default)]
pub(crate) struct GatewayState {
    listeners: Vec<Listener>,
    /// For TLS that it makes itself.
    credentials: Vec<Arc<Credential>>,
}

#[derive(Debug)]
struct Listener {
    name: Arc<str>,
    bind: SocketAddr,
    port: Port,
    servers: Vec<RegisteredServer>,
    /// Port that clients use for HTTP/3.
    http3: Option<Port>,
}

#[derive(Debug)]
struct RegisteredServer {
    /// Key of the server over edits, unique in its listener.
    key: Arc<str>,
    names: Vec<Arc<str>>,
    tls: Option<Tls>,
    kind: ServerKind,
    hosts: Vec<Host>,
    /// Routes of all connections, for server kinds that are not HTTP.
    connections: Option<Host>,
}

impl RegisteredServer {
    /// Everything that has routes.
    fn routed(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().chain(&self.connections)
    }
}

/// Key of a server, whose parts must not change under a connection: the server's names, and the verification
/// of its clients.
fn key(listener: &str, server: &GatewayServer) -> Arc<str> {
    let names: Vec<&str> = server.names.iter().map(|name| &**name).collect();
    let clients = match &server.tls {
        // There is one, whose names are those of all services: they come and go, and connections stay.
        None if server.kind == ServerKind::AutoPassthrough => {
            return format!("{listener}/automatic").into();
        }
        None if server.kind == ServerKind::Passthrough => "passthrough",
        None => "plain",
        Some(tls) if tls.mesh => "mesh",
        Some(tls) if !tls.asks() => "simple",
        Some(tls) if tls.unverified => "unverified",
        Some(tls) if tls.anonymous => "optional",
        Some(_) => "mutual",
    };
    let kind = match server.kind {
        ServerKind::Bytes => "-bytes",
        ServerKind::Requests | ServerKind::Passthrough | ServerKind::AutoPassthrough => "",
    };
    format!("{listener}/{clients}{kind}/{}", names.join(",")).into()
}

#[derive(Debug)]
struct Host {
    host: Arc<str>,
    https_redirect: bool,
    routes: HeldRoutes,
}

impl Listener {
    fn new(version: &Arc<str>, said: &GatewayListener, over_udp: bool) -> Result<Self, String> {
        let host = |one: &voile_xds::wire::VirtualHost| {
            let routes = HeldRoutes::new(version.clone(), one.routes.clone());
            Ok(Host {
                host: one.host.clone(),
                https_redirect: one.https_redirect,
                routes: routes.map_err(|error| format!("{}: {}: {error}", said.name, one.host))?,
            })
        };
        let connections = |one: &GatewayServer| {
            let routes = HeldRoutes::new(version.clone(), one.connections.clone());
            Ok::<_, String>(Host {
                host: CONNECTIONS.into(),
                https_redirect: false,
                routes: routes.map_err(|error| format!("{}: {error}", said.name))?,
            })
        };
        let server = |one: &GatewayServer| {
            let hosts = one.hosts.iter().map(host);
            Ok(RegisteredServer {
                kind: one.kind,
                connections: match one.kind {
                    ServerKind::Requests => None,
                    ServerKind::Bytes | ServerKind::Passthrough | ServerKind::AutoPassthrough => {
                        Some(connections(one)?)
                    }
                },
                key: key(&said.name, one),
                names: one.names.clone(),
                tls: one.tls.as_ref().map(Tls::new),
                hosts: hosts.collect::<Result<_, String>>()?,
            })
        };
        let servers = said.servers.iter().map(server);
        Ok(Self {
            name: said.name.clone(),
            bind: said.bind,
            port: said.port,
            servers: servers.collect::<Result<_, String>>()?,
            http3: said.http3.filter(|_| over_udp),
        })
    }
}

impl GatewayState {
    fn servers(&self) -> impl Iterator<Item = &RegisteredServer> {
        self.listeners.iter().flat_map(|listener| &listener.servers)
    }

    /// Each with the key of its server.
    fn hosts(&self) -> impl Iterator<Item = (&Arc<str>, &Host)> {
        self.servers()
            .flat_map(|server| server.routed().map(|host| (&server.key, host)))
    }

    /// Problems with the TLS of servers. Excludes local files, whose content is no fault of the control
    /// plane.
    pub(crate) fn troubles(&self) -> impl Iterator<Item = String> {
        let all = self.servers().filter_map(|server| server.tls.as_ref());
        all.filter(|tls| !tls.is_of_files())
            .filter_map(Tls::trouble)
    }

    /// Problems with local files, by server.
    pub(crate) fn file_troubles(&self) -> impl Iterator<Item = (&str, String)> {
        self.servers().filter_map(|server| {
            let tls = server.tls.as_ref().filter(|tls| tls.is_of_files())?;
            Some((&*server.key, tls.trouble()?))
        })
    }

    /// Files of our own machine that are named.
    pub(super) fn files(&self) -> impl Iterator<Item = &Arc<str>> {
        let all = self.servers().filter_map(|server| server.tls.as_ref());
        all.flat_map(Tls::files)
    }

    /// Makes of files what is to be made anew; says whether there was any.
    pub(super) fn look(&mut self, files: &FileStore) -> bool {
        let servers = self.listeners.iter_mut().flat_map(|one| &mut one.servers);
        let mut changed = false;
        for server in servers {
            let tls = server.tls.iter_mut();
            for tls in tls {
                changed |= tls.look(files, &server.key);
            }
        }
        changed
    }

    /// The routes of all virtual hosts.
    pub(crate) fn routes(&self) -> impl Iterator<Item = &HeldRoutes> {
        self.hosts().map(|(_, host)| &host.routes)
    }

    /// The credential of this name, or why there is none.
    pub(super) fn credential(&self, name: &Arc<str>) -> Result<Arc<Credential>, Arc<str>> {
        let mut all = self.credentials.iter();
        match all.find(|one| one.name == *name) {
            None => Err(format!(
                "the credential {name} is missing: the control plane sends a Secret only to gateways in its namespace"
            )
            .into()),
            Some(one) if !one.missing.is_empty() => Err(one.missing.clone()),
            Some(one) => Ok(Arc::clone(one)),
        }
    }

    /// Names of the services that they lead to.
    pub(super) fn services(&self) -> impl Iterator<Item = Arc<str>> {
        let targets = self.routes().flat_map(HeldRoutes::targets);
        targets.map(|to| to.service.to_string().into())
    }

    /// Addresses and names of the listeners.
    pub(crate) fn binds(&self) -> impl Iterator<Item = (SocketAddr, Arc<str>)> {
        let all = self.listeners.iter();
        all.map(|listener| (listener.bind, listener.name.clone()))
    }

    /// The same for HTTP/3.
    pub(crate) fn http3_binds(&self) -> impl Iterator<Item = (SocketAddr, Arc<str>)> {
        let all = self.listeners.iter();
        let all = all.filter(|listener| listener.http3.is_some());
        all.map(|listener| (listener.bind, listener.name.clone()))
    }

    /// Replaces the listeners. Unchanged route tables stay, unless our own workload's labels changed.
    pub(super) fn turn_into(&mut self, mut new: Self, relabelled: bool) {
        let before = self.hosts().filter(|_| !relabelled);
        let before: HashMap<_, _> = before
            .map(|(server, old)| ((server.clone(), old.host.clone()), &old.routes))
            .collect();
        let shown = self
            .servers()
            .filter_map(|old| Some((&old.key, old.tls.as_ref()?)));
        let shown: HashMap<_, _> = shown.collect();
        let servers = new.listeners.iter_mut().flat_map(|one| &mut one.servers);
        for server in servers {
            for host in server.hosts.iter_mut().chain(&mut server.connections) {
                if let Some(old) = before.get(&(server.key.clone(), host.host.clone())) {
                    host.routes.follow(old);
                }
            }
            if let (Some(tls), Some(old)) = (&mut server.tls, shown.get(&server.key)) {
                tls.follow(old);
            }
        }
        *self = new;
    }

    /// For people with a question: listeners, their hosts, and where each route leads.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (&str, &str, Vec<(String, Vec<String>)>)> {
        self.hosts()
            .map(|(listener, host)| (&**listener, &*host.host, host.routes.shown()))
    }
}

impl Registry {
    /// Gateway listeners of a configuration. The configuration must fit the proxy's role: an annotation on a Pod must not open a
    /// sidecar to the outside.
    pub(super) fn taken_from_outside(
        &self,
        version: &Arc<str>,
        configuration: &ProxyConfiguration,
    ) -> Result<GatewayState, String> {
        match (&configuration.waypoint, self.is_waypoint) {
            (None, false) => {}
            (Some(_), true) => return Ok(GatewayState::default()),
            (Some(_), false) => {
                return Err(
                    "the workload is a waypoint, but this proxy is not; start the proxy with --role waypoint"
                        .to_owned(),
                );
            }
            (None, true) => {
                return Err(
                    "this proxy is a waypoint, but the workload is not; create a Gateway of the class istio-waypoint, or start the proxy without --role waypoint"
                        .to_owned(),
                );
            }
        }
        match (&configuration.gateway, self.is_gateway) {
            (None, false) => Ok(GatewayState::default()),
            (Some(gateway), true) => {
                let listeners = gateway.listeners.iter();
                // Clients over UDP cannot send a PROXY header.
                let over_udp = !configuration.proxy_protocol;
                let listeners = listeners.map(|one| Listener::new(version, one, over_udp));
                let credentials = gateway.credentials.iter().cloned().map(Arc::new);
                Ok(GatewayState {
                    credentials: credentials.collect(),
                    listeners: listeners.collect::<Result<_, _>>()?,
                })
            }
            (Some(_), false) => Err(
                "the workload is a gateway, but this proxy is a sidecar; start the proxy with --role gateway"
                    .to_owned(),
            ),
            (None, true) => Err(
                "this proxy is a gateway, but the workload has a sidecar; set the annotation inject.istio.io/templates: gateway on the Pod, or start the proxy without --role gateway"
                    .to_owned(),
            ),
        }
    }

    /// The plans of a gateway's listeners.
    pub(super) fn edge(&self, configuration: &ProxyConfiguration) -> Vec<GatewayPlan> {
        let plan = |listener: &Listener| GatewayPlan {
            name: listener.name.clone(),
            bind: listener.bind,
            trusted_proxies: configuration.trusted_proxies,
            normalization: configuration.path_normalization,
            servers: listener
                .servers
                .iter()
                .map(|server| self.server(listener, server))
                .collect(),
            waypoint: false,
            http3: listener.http3.map(|port| Http3Plan::new(port).into()),
        };
        let listeners = self.gateway.listeners.iter().map(plan);
        listeners.chain(self.waypoint(configuration)).collect()
    }

    fn server(&self, listener: &Listener, server: &RegisteredServer) -> ServerPlan {
        let hosts = &server.hosts;
        let any = hosts.iter().position(|host| &*host.host == ANY);
        let redirects = hosts.iter().filter(|host| host.https_redirect);
        let redirects: HashSet<_> = redirects.map(|host| host.host.clone()).collect();
        ServerPlan {
            names: server.names.clone(),
            tls: server.tls.as_ref().map(Tls::plan),
            kind: server.kind,
            redirects,
            door: None,
            way: OutboundPlan {
                name: server.key.clone(),
                bind: listener.bind,
                protocol: match server.kind {
                    ServerKind::Requests => WireProtocol::Http,
                    ServerKind::Bytes => WireProtocol::Tcp,
                    ServerKind::Passthrough | ServerKind::AutoPassthrough => WireProtocol::Tls,
                },
                services: server
                    .routed()
                    .map(|host| self.virtual_host(listener.port, (server.kind, host)))
                    .collect(),
                otherwise: any.map_or(PassthroughMode::NoRoute, PassthroughMode::Service),
                // A lone service takes every connection; requests name their host.
                by_name: server.kind == ServerKind::Requests,
            },
        }
    }

    fn virtual_host(&self, called: Port, (kind, host): (ServerKind, &Host)) -> ServicePlan {
        let mut routes = self.plan_of(&host.routes, called);
        if kind == ServerKind::AutoPassthrough {
            let there = routes.targets.iter_mut().flatten();
            there.for_each(origination::unread);
        }
        ServicePlan {
            service: telemetry::ServiceLabels {
                host: host.host.to_string(),
                name: String::new(),
                namespace: String::new(),
            },
            port: called.get(),
            subset: None,
            protocol: WireProtocol::Auto,
            http2_upgrade: false,
            client_protocol: false,
            authorities: match &*host.host {
                ANY => Vec::new(),
                _ => vec![host.host.clone()],
            },
            endpoints: Vec::new(),
            traffic: TrafficPlan::default(),
            retry: RetryPolicy::default(),
            retry_budget: RetryBudget::default(),
            routes: Some(routes),
        }
    }
}
