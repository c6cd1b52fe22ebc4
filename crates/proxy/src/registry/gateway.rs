//! What a gateway takes from outside: a virtual host is a service that has nothing but routes, so that requests find their way by
//! the same table, weights, retries and endpoints as a sidecar's.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use voile_model::Port;
use voile_telemetry as telemetry;
use voile_traffic::{RetryBudget, RetryPolicy};
use voile_xds::wire::{GatewayListener, Protocol, ProxyConfiguration};

use super::Registry;
use super::routes::HeldRoutes;
use crate::plan::{GatewayPlan, Otherwise, OutboundPlan, ServerPlan, ServicePlan};

/// What stands for every host.
const ANY: &str = "*";

/// See the module; empty of a sidecar.
#[derive(Debug, Default)]
pub(crate) struct Held {
    listeners: Vec<Listener>,
}

#[derive(Debug)]
struct Listener {
    name: Arc<str>,
    bind: SocketAddr,
    port: Port,
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    hosts: Vec<Host>,
}

#[derive(Debug)]
struct Host {
    host: Arc<str>,
    https_redirect: bool,
    routes: HeldRoutes,
}

impl Listener {
    fn new(version: &Arc<str>, said: &GatewayListener) -> Result<Self, String> {
        let host = |one: &voile_xds::wire::VirtualHost| {
            let routes = HeldRoutes::new(version.clone(), one.routes.clone());
            Ok(Host {
                host: one.host.clone(),
                https_redirect: one.https_redirect,
                routes: routes.map_err(|error| format!("{}: {}: {error}", said.name, one.host))?,
            })
        };
        let server = |one: &voile_xds::wire::GatewayServer| {
            let hosts = one.hosts.iter().map(host);
            Ok(Server {
                hosts: hosts.collect::<Result<_, String>>()?,
            })
        };
        let servers = said.servers.iter().map(server);
        Ok(Self {
            name: said.name.clone(),
            bind: said.bind,
            port: said.port,
            servers: servers.collect::<Result<_, String>>()?,
        })
    }
}

impl Held {
    fn hosts(&self) -> impl Iterator<Item = (&Arc<str>, &Host)> {
        self.listeners.iter().flat_map(|listener| {
            let servers = listener.servers.iter();
            servers.flat_map(|server| server.hosts.iter().map(|host| (&listener.name, host)))
        })
    }

    /// The routes of all virtual hosts.
    pub(crate) fn routes(&self) -> impl Iterator<Item = &HeldRoutes> {
        self.hosts().map(|(_, host)| &host.routes)
    }

    /// Names of the services that they lead to.
    pub(super) fn services(&self) -> impl Iterator<Item = Arc<str>> {
        let targets = self.routes().flat_map(HeldRoutes::targets);
        targets.map(|to| to.service.to_string().into())
    }

    /// Where it listens, and what the listener is called.
    pub(crate) fn binds(&self) -> impl Iterator<Item = (SocketAddr, Arc<str>)> {
        let all = self.listeners.iter();
        all.map(|listener| (listener.bind, listener.name.clone()))
    }

    /// Takes the place of what was there. Tables of routes that say the same stay, unless our own workload is called otherwise.
    pub(super) fn turn_into(&mut self, mut new: Self, relabelled: bool) {
        let before = self.hosts().filter(|_| !relabelled);
        let before: HashMap<_, _> = before
            .map(|(listener, old)| ((listener.clone(), old.host.clone()), &old.routes))
            .collect();
        for listener in &mut new.listeners {
            for host in listener.servers.iter_mut().flat_map(|one| &mut one.hosts) {
                if let Some(old) = before.get(&(listener.name.clone(), host.host.clone())) {
                    host.routes.follow(old);
                }
            }
        }
        *self = new;
    }

    /// For people with a question: listeners, their hosts, and where each route leads.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (&str, &str, Vec<(&str, Vec<String>)>)> {
        self.hosts()
            .map(|(listener, host)| (&**listener, &*host.host, host.routes.shown()))
    }
}

impl Registry {
    /// What a configuration says is taken from outside. It must be for a proxy of our role: a sidecar does not stand open to the
    /// world because somebody put an annotation on its Pod.
    pub(super) fn taken_from_outside(
        &self,
        version: &Arc<str>,
        configuration: &ProxyConfiguration,
    ) -> Result<Held, String> {
        match (&configuration.gateway, self.is_gateway) {
            (None, false) => Ok(Held::default()),
            (Some(gateway), true) => {
                let listeners = gateway.listeners.iter();
                let listeners = listeners.map(|one| Listener::new(version, one));
                Ok(Held {
                    listeners: listeners.collect::<Result<_, _>>()?,
                })
            }
            (Some(_), false) => Err(
                "the workload is a gateway's, and this proxy a sidecar; start it with --role gateway"
                    .to_owned(),
            ),
            (None, true) => Err(
                "this proxy is a gateway, and the workload has a sidecar; give the Pod the annotation inject.istio.io/templates: gateway, or start it without --role gateway"
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
        };
        self.gateway.listeners.iter().map(plan).collect()
    }

    fn server(&self, listener: &Listener, server: &Server) -> ServerPlan {
        let hosts = &server.hosts;
        let any = hosts.iter().position(|host| &*host.host == ANY);
        let redirects = hosts.iter().filter(|host| host.https_redirect);
        let redirects: HashSet<_> = redirects.map(|host| host.host.clone()).collect();
        ServerPlan {
            redirects,
            way: OutboundPlan {
                name: listener.name.clone(),
                bind: listener.bind,
                protocol: Protocol::Http,
                services: hosts
                    .iter()
                    .map(|host| self.virtual_host(listener.port, host))
                    .collect(),
                otherwise: any.map_or(Otherwise::NoRoute, Otherwise::Service),
                by_name: true,
            },
        }
    }

    fn virtual_host(&self, called: Port, host: &Host) -> ServicePlan {
        ServicePlan {
            service: telemetry::Service {
                host: host.host.to_string(),
                name: String::new(),
                namespace: String::new(),
            },
            port: called.get(),
            subset: None,
            protocol: Protocol::Auto,
            http2_upgrade: false,
            client_protocol: false,
            authorities: match &*host.host {
                ANY => Vec::new(),
                _ => vec![host.host.clone()],
            },
            endpoints: Vec::new(),
            retry: RetryPolicy::default(),
            retry_budget: RetryBudget::default(),
            routes: Some(self.plan_of(&host.routes, called)),
        }
    }
}
