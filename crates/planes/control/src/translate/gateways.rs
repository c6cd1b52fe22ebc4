//! Gateway configuration of a workload: the servers of the Gateways that select it, and the VirtualServices bound to those. As in
//! Istio, servers of one port are one listener. Each of several VirtualServices for one host has its routes there, the oldest
//! first, catch-all routes last.

mod automatic;
mod connections;
mod credentials;
mod http3;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use voile_model::mesh::routing_intent::{
    DeclaredServer, Gateway, ServerFiles, ServerTls, ServerTlsMode, TlsVersion,
};
use voile_model::mesh::{
    HostRouting, Mesh, RouteAttachment, TextMatch, Workload, believed, certificate,
};
use voile_model::{Hostname, Namespace, Port, ResourceName, Source};
use voile_xds::wire::{
    self as checked, GatewayFiles, GatewayListener, GatewayServer, GatewayTls, PackedRoutes,
    RequestMatch, Routes, ServerKind, VirtualHost, WireRoute,
};

use super::routes::RouteResponses;

/// Servers of one address and port, each with its Gateway; the oldest first.
type Servers<'a> = Vec<(&'a Arc<Gateway>, &'a DeclaredServer)>;

pub(super) fn gateway(
    mesh: &Mesh,
    workload: &Workload,
    problems: &mut Vec<String>,
) -> checked::Gateway {
    let answers = RouteResponses::new(mesh);
    let mut listeners: BTreeMap<SocketAddr, (Port, Servers<'_>)> = BTreeMap::new();
    let own: Option<IpAddr> = workload.addresses.first().copied();
    for gateway in mesh.gateways_for(&workload.key.namespace, &workload.labels) {
        for server in &gateway.servers {
            if let Some(address) = server.bind.or(own) {
                let behind = || mesh.port_behind(workload, server.port);
                let listens = server.listens.or_else(behind).unwrap_or(server.port);
                let bind = SocketAddr::new(address, listens.get());
                let (_, servers) = listeners.entry(bind).or_insert((server.port, Vec::new()));
                servers.push((gateway, server));
            }
        }
    }
    let listeners = listeners.into_iter().map(|(bind, (port, servers))| {
        let servers = told_apart(mesh, workload, &answers, servers, problems);
        GatewayListener {
            name: format!("gateway/{bind}").into(),
            bind,
            port,
            http3: http3::called(mesh, workload, bind, &servers),
            servers,
        }
    });
    checked::Gateway {
        listeners: listeners.collect(),
        credentials: credentials::for_servers(mesh, workload, problems),
    }
}

/// Kind of server: servers of the same kind can share a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortFamily {
    Http,
    Tcp,
    Tls,
}

impl PortFamily {
    fn of(server: &DeclaredServer) -> Self {
        match &*server.protocol {
            "HTTPS" | "TLS" => Self::Tls,
            "TCP" => Self::Tcp,
            _ => Self::Http,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
        }
    }
}

/// Servers of plaintext are one; those of TLS are told apart by the name that clients ask for, and each has its own hosts, so that
/// nobody gets by one certificate to what is behind another.
fn told_apart(
    mesh: &Mesh,
    workload: &Workload,
    answers: &RouteResponses<'_>,
    mut servers: Servers<'_>,
    problems: &mut Vec<String>,
) -> Vec<GatewayServer> {
    let family = servers
        .first()
        .map_or(PortFamily::Http, |(_, first)| PortFamily::of(first));
    servers.retain(|(gateway, server)| {
        let own = PortFamily::of(server);
        if own != family {
            problems.push(format!(
                "{}: {}: port {} of {} is {} for one Gateway and {} for another; the oldest Gateway wins",
                server.source,
                gateway.name,
                server.port,
                workload.key,
                family.word(),
                own.word()
            ));
        }
        own == family
    });
    let plain = |kind| GatewayServer {
        names: Vec::new(),
        tls: None,
        kind,
        hosts: Vec::new(),
        connections: PackedRoutes::default(),
    };
    match family {
        PortFamily::Http => vec![GatewayServer {
            hosts: hosts(mesh, workload, answers, &servers),
            ..plain(ServerKind::Requests)
        }],
        PortFamily::Tcp => vec![GatewayServer {
            connections: connections::routes(mesh, workload, answers, &servers),
            ..plain(ServerKind::Bytes)
        }],
        PortFamily::Tls => {
            let (automatic, named): (Servers<'_>, Servers<'_>) = servers
                .into_iter()
                .partition(|(_, server)| automatic::is(server));
            let named = named.iter();
            let named = named.map(|one| in_tls(mesh, workload, answers, one, problems));
            named
                .chain(automatic::server(mesh, workload, &automatic))
                .collect()
        }
    }
}

/// A server of TLS, which ends here or behind us.
fn in_tls(
    mesh: &Mesh,
    workload: &Workload,
    answers: &RouteResponses<'_>,
    (gateway, server): &(&Arc<Gateway>, &DeclaredServer),
    problems: &mut Vec<String>,
) -> GatewayServer {
    let tls = match server.tls.as_ref().map(|tls| tls.mode) {
        Some(ServerTlsMode::Passthrough) => None,
        Some(ServerTlsMode::IstioMutual) => Some(GatewayTls::of_mesh()),
        _ => Some(tls(mesh, workload, server, problems)),
    };
    if let Some(Err(missing)) = tls.as_ref().map(|tls| &tls.certificate) {
        problems.push(format!(
            "{}: {}: port {} of {} admits no client: {missing}",
            server.source, gateway.name, server.port, workload.key
        ));
    }
    let kind = match (&tls, &*server.protocol) {
        (None, _) => ServerKind::Passthrough,
        (Some(_), "TLS") => ServerKind::Bytes,
        (Some(_), _) => ServerKind::Requests,
    };
    let own = vec![(*gateway, *server)];
    let names = server.hosts.iter().map(|one| one.host.as_str().into());
    GatewayServer {
        names: names.collect(),
        hosts: match kind {
            ServerKind::Requests => hosts(mesh, workload, answers, &own),
            _ => Vec::new(),
        },
        connections: match kind {
            ServerKind::Requests => PackedRoutes::default(),
            _ => connections::routes(mesh, workload, answers, &own),
        },
        tls,
        kind,
    }
}

/// The certificates that clients see.
fn tls(
    mesh: &Mesh,
    workload: &Workload,
    server: &DeclaredServer,
    problems: &mut Vec<String>,
) -> GatewayTls {
    match server.tls.as_ref().and_then(|tls| tls.files.as_ref()) {
        Some(files) => of_files(server, files),
        None => of_secrets(mesh, workload, server, problems),
    }
}

/// Certificates from files that the gateway reads itself: the control plane knows only the file names.
fn of_files(server: &DeclaredServer, files: &ServerFiles) -> GatewayTls {
    let said = server.tls.as_ref();
    GatewayTls {
        credential: files.certificate.clone(),
        certificate: Ok(Default::default()),
        authorities: Vec::new(),
        anonymous: said.is_some_and(|tls| tls.mode == ServerTlsMode::OptionalMutual),
        files: Some(Box::new(GatewayFiles {
            certificate: files.certificate.clone(),
            key: files.key.clone(),
            authorities: files.authorities.clone(),
            revocations: files.revocations.clone(),
        })),
        ..spoken(said)
    }
}

/// Versions and suites.
fn spoken(said: Option<&ServerTls>) -> GatewayTls {
    let spoken = |version| said.is_none_or(|tls| (tls.oldest..=tls.newest).contains(&version));
    GatewayTls {
        mesh: false,
        tls12: spoken(TlsVersion::V12),
        tls13: spoken(TlsVersion::V13),
        suites: said
            .map(|tls| tls.cipher_suites.clone())
            .unwrap_or_default(),
        ..GatewayTls::of_mesh()
    }
}

/// A Secret of the gateway's own namespace, or where Gateway API's rules permit it of another: nobody else's is ever told it.
fn secret(
    workload: &Workload,
    server: &DeclaredServer,
    (namespace, named, _): &(Option<Namespace>, Arc<str>, Source),
) -> Result<ResourceName, Arc<str>> {
    let granted = namespace.as_ref().filter(|_| server.granted);
    if server.granted && granted.is_none() {
        return Err("its certificate is not available".into());
    }
    let own = granted.unwrap_or(&workload.key.namespace);
    let name = named.strip_prefix("kubernetes://").unwrap_or(named);
    let name = match name.split_once('/') {
        Some((namespace, name)) if namespace == own.as_str() => name,
        _ => name,
    };
    match name.contains('/') {
        true => Err(format!("the Secret {name} is not in the gateway's namespace {own}").into()),
        false => Ok(ResourceName::new(own.clone(), name)),
    }
}

/// Certificates from the named Secrets. If one of several Secrets is missing, the others serve, and a problem is reported.
fn of_secrets(
    mesh: &Mesh,
    workload: &Workload,
    server: &DeclaredServer,
    problems: &mut Vec<String>,
) -> GatewayTls {
    let said = server.tls.as_ref();
    let mode = said.map_or(ServerTlsMode::Simple, |tls| tls.mode);
    let asks = matches!(mode, ServerTlsMode::Mutual | ServerTlsMode::OptionalMutual);
    let named = server.credentials.iter();
    let ids: Vec<_> = named.map(|one| secret(workload, server, one)).collect();
    let held = ids.iter().map(|id| {
        let id = id.clone()?;
        let (certificates, key) = certificate(mesh, &id)?;
        Ok((Arc::from(id.to_string()), certificates, key))
    });
    let (shown, missing): (Vec<_>, Vec<Result<_, Arc<str>>>) = held.partition(Result::is_ok);
    let mut shown = shown.into_iter().flatten();
    let mut missing = missing.into_iter().filter_map(Result::err);
    let (credential, first) = match shown.next() {
        Some((credential, certificates, key)) => (credential, Ok((certificates, key))),
        None => {
            let named = ids.first().and_then(|id| id.as_ref().ok());
            let why = missing
                .next()
                .unwrap_or_else(|| "its certificate is not available".into());
            (
                named.map(ToString::to_string).unwrap_or_default().into(),
                Err(why),
            )
        }
    };
    problems.extend(missing.map(|why| {
        format!(
            "{}: a certificate of {} is not used: {why}",
            server.source, workload.key
        )
    }));
    let mut known = ids.iter().flatten();
    let believed = match said.and_then(|tls| tls.authorities.as_deref()) {
        Some(own) => Some(own.clone()),
        None => known.find_map(|id| believed(mesh, id)),
    };
    let believed = believed.filter(|_| asks);
    let (authorities, revocations, unknown) = match believed {
        None => (Vec::new(), Vec::new(), asks.then(|| nobody_believed(&ids))),
        Some(believed) => match believed.revocations {
            Ok(lists) => (believed.authorities, lists, None),
            Err(why) => (Vec::new(), Vec::new(), Some(why)),
        },
    };
    let certificate = match unknown {
        Some(why) => Err(why),
        None => first,
    };
    GatewayTls {
        credential,
        anonymous: mode == ServerTlsMode::OptionalMutual && !authorities.is_empty(),
        unverified: said.is_some_and(|tls| tls.unverified) && !authorities.is_empty(),
        certificate,
        authorities,
        revocations,
        more: shown.collect(),
        ..spoken(said)
    }
}

/// Why nobody can be asked for a certificate.
fn nobody_believed(ids: &[Result<ResourceName, Arc<str>>]) -> Arc<str> {
    match ids.first() {
        Some(Ok(id)) => format!("neither the Secret {id}-cacert nor {id} has `ca.crt`").into(),
        Some(Err(why)) => why.clone(),
        None => "its certificate is not available".into(),
    }
}

fn hosts(
    mesh: &Mesh,
    workload: &Workload,
    answers: &RouteResponses<'_>,
    servers: &Servers<'_>,
) -> Vec<VirtualHost> {
    let client = &workload.key.namespace;
    let hosts = mesh.hosts_at(client, servers);
    let virtual_host = |(host, made): (&Hostname, HostRouting<'_>)| {
        let routes = made.services.iter().flat_map(|(whole, gateway)| {
            answers.routes(whole, Some(client), RouteAttachment::Gateway(gateway))
        });
        let (mut routes, last): (Vec<_>, Vec<_>) = routes.partition(|one| !takes_all(one));
        routes.extend(last);
        VirtualHost {
            host: host.as_str().into(),
            routes: PackedRoutes::from(&Routes {
                routes,
                connections: Vec::new(),
            }),
            https_redirect: made.https_redirect,
        }
    };
    hosts.into_iter().map(virtual_host).collect()
}

/// Returns true if a route matches every request.
fn takes_all(route: &WireRoute) -> bool {
    let any = |one: &RequestMatch| {
        let path = match &one.uri {
            None | Some(TextMatch::Present) => true,
            Some(TextMatch::Prefix(prefix) | TextMatch::Segments(prefix)) => &**prefix == "/",
            Some(TextMatch::Exact(_) | TextMatch::Regex(_)) => false,
        };
        let rest = RequestMatch {
            uri: None,
            any_case: false,
            ..one.clone()
        };
        path && rest == RequestMatch::default()
    };
    route.matches.is_empty() || route.matches.iter().any(any)
}
