//! Gateway configuration: a listener for each address and port that Gateways open for it. A listener has a chain for plaintext or
//! for each TLS server, and virtual hosts with the routes of the VirtualServices that name them.
//!
//! ```text
//! plaintext ────────────────────────▶ policies, tokens ─▶ https? ─▶ virtual host ─▶ route
//! TLS (by the name that is asked for) ▶ the same, with the hosts of that server and no others
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use voile_model::mesh::routing_intent::{
    DeclaredServer, Gateway, ServerFiles, ServerTlsMode, TlsVersion,
};
use voile_model::mesh::{HostRouting, RouteAttachment, Workload, believed, certificate};
use voile_model::{Hostname, Namespace, Port, ResourceName, Source};

use super::manager::{self, Routes, TrafficDirection};
use super::names::{self, ClusterTraffic};
use super::outbound::{BLACK_HOLE, Outbound, black_hole};
use super::security::Security;
use super::{Made, actions, tls};
use crate::json::{message, socket, typed};
use crate::limit::LimitName;

/// Servers of one address and port, each with its Gateway; the oldest first.
type Servers<'a> = Vec<(&'a Arc<Gateway>, &'a DeclaredServer)>;

/// Headers by which proxies of the mesh know each other; nobody outside is one.
const PEERS_OWN: [&str; 2] = ["x-envoy-peer-metadata", "x-envoy-peer-metadata-id"];

/// A workload's doors to the outside.
struct Edge<'a> {
    outbound: Outbound<'a>,
    workload: &'a Workload,
    security: &'a Security,
}

/// Transport of a server's clients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientTransport {
    Plain,
    Tls,
    /// In a way of which nothing is translated.
    Otherwise,
}

fn come(server: &DeclaredServer) -> ClientTransport {
    use ServerTlsMode::{Mutual, OptionalMutual, Simple};
    let mode = server.tls.as_ref().map(|tls| tls.mode);
    match (&*server.protocol, mode) {
        ("HTTP" | "HTTP2" | "GRPC", _) => ClientTransport::Plain,
        ("HTTPS", None | Some(Simple | Mutual | OptionalMutual)) => ClientTransport::Tls,
        _ => ClientTransport::Otherwise,
    }
}

pub(super) fn translate(
    outbound: Outbound<'_>,
    workload: &Workload,
    security: &Security,
    made: &mut Made,
) {
    let Some(own) = workload.addresses.first().copied() else {
        let about = format!("workload {}", workload.key);
        let why = "it has no address, and so no listeners";
        return made.limit(LimitName::NoAddress, about, why);
    };
    let mut listeners: BTreeMap<SocketAddr, Servers<'_>> = BTreeMap::new();
    for gateway in outbound
        .mesh
        .gateways_for(&workload.key.namespace, &workload.labels)
    {
        for server in &gateway.servers {
            let listens = server.listens.unwrap_or(server.port);
            let bind = SocketAddr::new(server.bind.unwrap_or(own), listens.get());
            listeners.entry(bind).or_default().push((gateway, server));
        }
    }
    let edge = Edge {
        outbound,
        workload,
        security,
    };
    made.clusters.insert(BLACK_HOLE.to_owned(), black_hole());
    for (bind, servers) in listeners {
        if let Some(listener) = edge.listener(bind, servers, made) {
            let name = listener["name"].as_str().unwrap_or_default().to_owned();
            made.listeners.insert(name, listener);
        }
    }
}

fn about((gateway, server): (&Arc<Gateway>, &DeclaredServer)) -> String {
    format!("Gateway {}, {}", gateway.name, server.source)
}

/// Returns true if clients are asked for a certificate.
fn asks(server: &DeclaredServer) -> bool {
    use ServerTlsMode::{Mutual, OptionalMutual};
    // Envoy would tell servers of a certificate that it could not verify.
    let tls = server.tls.as_ref().filter(|tls| !tls.unverified);
    matches!(tls.map(|tls| tls.mode), Some(Mutual | OptionalMutual))
}

/// TLS that ends here by these secrets: what is shown, and who is believed.
fn ended(
    server: &DeclaredServer,
    (shown, believed): (&[String], Option<&str>),
    alpn: &[&str],
) -> Value {
    let mode = server.tls.as_ref().map(|tls| tls.mode);
    let demands = mode == Some(ServerTlsMode::Mutual);
    let believed = believed.map(|name| (name, demands));
    tls::edge(server.tls.as_ref(), shown, believed, alpn)
}

/// Certificates that Envoy reads from files itself, under the names that Istio gives such secrets.
fn of_files(server: &DeclaredServer, files: &ServerFiles, alpn: &[&str], made: &mut Made) -> Value {
    let secret = format!("file-cert:{}~{}", files.certificate, files.key);
    let file = |path: &str| json!({ "filename": path });
    let shown = json!({
        "certificate_chain": file(&files.certificate),
        "private_key": file(&files.key),
        "watched_directory": folder(&files.certificate),
    });
    made.secret(&secret, "tls_certificate", shown);
    let authorities = files.authorities.as_ref().filter(|_| asks(server));
    let believed = authorities.map(|path| {
        let mut name = format!("file-root:{path}");
        let mut trusted = json!({ "trusted_ca": file(path), "watched_directory": folder(path) });
        if let Some(lists) = &files.revocations {
            name = format!("{name}~{lists}");
            trusted["crl"] = file(lists);
        }
        made.secret(&name, "validation_context", trusted);
        name
    });
    ended(server, (&[secret], believed.as_deref()), alpn)
}

/// Folder of a file: Envoy reads the file again when another is moved into the folder.
fn folder(path: &str) -> Value {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    json!({ "path": if folder.is_empty() { "/" } else { folder } })
}

impl Edge<'_> {
    fn listener(
        &self,
        bind: SocketAddr,
        mut servers: Servers<'_>,
        made: &mut Made,
    ) -> Option<Value> {
        servers.retain(|one| {
            let known = come(one.1) != ClientTransport::Otherwise;
            if !known {
                let why = "servers of protocol TLS and TCP, and HTTPS servers with passthrough or the mesh's own mutual TLS, are not translated: they admit no client";
                made.limit(LimitName::GatewayServer, about(*one), why);
            }
            known
        });
        let kind = come(servers.first()?.1);
        servers.retain(|one| {
            let alike = come(one.1) == kind;
            if !alike {
                let why = "its port is plaintext in one Gateway and TLS in another; the oldest Gateway wins";
                made.limit(LimitName::ListenerTwice, about(*one), why);
            }
            alike
        });
        let name = format!("gateway_{}", names::listener(bind));
        let mut listener = json!({
            "name": name,
            "address": socket(bind),
            "traffic_direction": TrafficDirection::Out.direction(),
        });
        let mut filters = Vec::new();
        let of_mesh = self.outbound.mesh.config.proxy.proxy_protocol;
        if self.workload.hears_proxy_header(of_mesh) {
            filters.push(listener_filter("proxy_protocol", "ProxyProtocol"));
        }
        let chains = match kind {
            ClientTransport::Tls => {
                self.name_http3(bind, &servers, made);
                filters.push(listener_filter("tls_inspector", "TlsInspector"));
                self.chains(&name, &servers, made)
            }
            _ => {
                let chains = self.plain(&name, &servers, made);
                if chains.len() > 1 {
                    filters.push(listener_filter("http_inspector", "HttpInspector"));
                }
                chains
            }
        };
        if !filters.is_empty() {
            listener["listener_filters"] = json!(filters);
        }
        listener["filter_chains"] = json!(chains);
        Some(listener)
    }

    /// Says that nobody listens for HTTP/3 where a gateway of ours would.
    fn name_http3(&self, bind: SocketAddr, servers: &Servers<'_>, made: &mut Made) {
        let takes = |one: &DeclaredServer| {
            let said = one.tls.as_ref();
            said.is_none_or(|tls| tls.newest >= TlsVersion::V13)
        };
        let mesh = self.outbound.mesh;
        // A gateway that expects PROXY headers from balancers has no HTTP/3: UDP has no such header.
        let heard = self
            .workload
            .hears_proxy_header(mesh.config.proxy.proxy_protocol);
        let Some(one) = servers.iter().find(|one| takes(one.1) && !heard) else {
            return;
        };
        let asked = Port::new(bind.port());
        let asked = asked.and_then(|listens| mesh.udp_port_before(self.workload, listens));
        if let Some(port) = asked {
            let why = format!(
                "its Service has the UDP port {port} for HTTP/3, which is not translated: nothing listens there, and responses have no alt-svc"
            );
            made.limit(LimitName::Http3, about(*one), &why);
        }
    }

    /// The versions of HTTP that have routes of their own here: a cluster carries one, and where a port's protocol is not declared HTTP
    /// goes on in the version in which it came. The last is for everybody else.
    fn versions(&self, servers: &Servers<'_>) -> &'static [ClusterTraffic] {
        let client = &self.workload.key.namespace;
        let hosts = self.outbound.mesh.hosts_at(client, servers);
        let port = servers.first().map(|(_, server)| server.port);
        let mut all = hosts.values().flat_map(|host| &host.services);
        let by_version = |port| all.any(|(one, _)| self.outbound.is_by_version(one, port));
        match port.is_some_and(by_version) {
            true => &[ClusterTraffic::Http2, ClusterTraffic::Http1],
            false => &[ClusterTraffic::Http1],
        }
    }

    /// A chain for plaintext, of each version.
    fn plain(&self, name: &str, servers: &Servers<'_>, made: &mut Made) -> Vec<Value> {
        let chain = |carried: &ClusterTraffic| {
            let name = of_version(name, *carried);
            let manager = self.manager((&name, *carried), servers, made);
            let mut chain = json!({ "name": name, "filters": [manager] });
            if *carried == ClusterTraffic::Http2 {
                chain["filter_chain_match"] = json!({ "application_protocols": ["h2c"] });
            }
            chain
        };
        self.versions(servers).iter().map(chain).collect()
    }

    /// A chain for each server of TLS, so that nobody gets by one certificate to what is behind another.
    fn chains(&self, name: &str, servers: &Servers<'_>, made: &mut Made) -> Vec<Value> {
        let mut taken: BTreeSet<&str> = BTreeSet::new();
        let mut chains = Vec::new();
        for (number, one) in servers.iter().enumerate() {
            let hosts = one.1.hosts.iter().map(|one| one.host.as_str());
            let names: Vec<&str> = hosts.filter(|host| taken.insert(host)).collect();
            if names.is_empty() {
                let why = "an older server has all of its hosts";
                made.limit(LimitName::ListenerTwice, about(*one), why);
                continue;
            }
            let own = format!("{name}~{}~{number}", one.0.name);
            let mut matched = json!({ "transport_protocol": "tls" });
            // A client without a server name matches the server for all names.
            if !names.contains(&"*") {
                matched["server_names"] = json!(names);
            }
            chains.extend(self.encrypted(&own, *one, matched, made));
        }
        chains
    }

    /// Those of one server, of each version.
    fn encrypted(
        &self,
        name: &str,
        one: (&Arc<Gateway>, &DeclaredServer),
        matched: Value,
        made: &mut Made,
    ) -> Vec<Value> {
        let servers = vec![one];
        let versions = self.versions(&servers);
        let chain = |carried: &ClusterTraffic| {
            let spoken: &[&str] = match (versions.len(), carried) {
                (1, _) => &["h2", "http/1.1"],
                (_, ClusterTraffic::Http2) => &["h2"],
                _ => &["http/1.1"],
            };
            let socket = self.shown(one.1, spoken, made)?;
            let name = of_version(name, *carried);
            let mut matched = matched.clone();
            if *carried == ClusterTraffic::Http2 {
                matched["application_protocols"] = json!(spoken);
            }
            Some(json!({
                "name": name,
                "filter_chain_match": matched,
                "filters": [self.manager((&name, *carried), &servers, made)],
                "transport_socket": socket,
            }))
        };
        let shown: Option<Vec<Value>> = versions.iter().map(chain).collect();
        shown.unwrap_or_else(|| {
            // Nobody is let in, nor taken for somebody else's.
            let closed = manager::tcp(self.outbound.mesh, BLACK_HOLE);
            vec![json!({ "name": name, "filter_chain_match": matched, "filters": [closed] })]
        })
    }

    /// A Secret of the gateway's own namespace, or of another where Gateway API's rules permit it.
    fn secret(
        &self,
        server: &DeclaredServer,
        (elsewhere, named, _): &(Option<Namespace>, Arc<str>, Source),
    ) -> Option<ResourceName> {
        let own = match server.granted {
            true => elsewhere.as_ref()?,
            false => &self.workload.key.namespace,
        };
        let named = named.strip_prefix("kubernetes://").unwrap_or(named);
        let named = match named.split_once('/') {
            Some((namespace, name)) if namespace == own.as_str() => name,
            Some(_) => return None,
            None => named,
        };
        Some(ResourceName::new(own.clone(), named))
    }

    /// Certificates from the existing Secrets; `None` if there is none.
    fn shown(&self, server: &DeclaredServer, alpn: &[&str], made: &mut Made) -> Option<Value> {
        let mesh = self.outbound.mesh;
        if let Some(files) = server.tls.as_ref().and_then(|tls| tls.files.as_ref()) {
            return Some(of_files(server, files, alpn, made));
        }
        let named = server.credentials.iter();
        let ids: Vec<ResourceName> = named.filter_map(|one| self.secret(server, one)).collect();
        let held = ids.iter().filter_map(|id| {
            let (chain, key) = certificate(mesh, id).ok()?;
            let shown = json!({ "certificate_chain": pem(chain)?, "private_key": pem(key)? });
            Some((format!("kubernetes://{id}"), shown))
        });
        let held: Vec<(String, Value)> = held.collect();
        if held.is_empty() {
            return None;
        }
        let believed = match asks(server) {
            true => {
                let mut known = ids.iter();
                let own = server
                    .tls
                    .as_ref()
                    .and_then(|tls| tls.authorities.as_deref());
                let (name, believed) = match own {
                    Some(own) => (format!("gateway-cacert:{}", server.source), own.clone()),
                    None => {
                        let (id, believed) =
                            known.find_map(|id| Some((id, believed(mesh, id)?)))?;
                        (format!("kubernetes://{id}-cacert"), believed)
                    }
                };
                let mut context = json!({ "trusted_ca": pem(believed.authorities)? });
                // Lists that are meant and not there let nobody in.
                let lists = believed.revocations.ok()?;
                if !lists.is_empty() {
                    context["crl"] = pem(lists)?;
                }
                made.secret(&name, "validation_context", context);
                Some(name)
            }
            false => None,
        };
        let names: Vec<String> = held.iter().map(|(name, _)| name.clone()).collect();
        for (name, shown) in held {
            made.secret(&name, "tls_certificate", shown);
        }
        Some(ended(server, (&names, believed.as_deref()), alpn))
    }

    fn manager(
        &self,
        (name, carried): (&str, ClusterTraffic),
        servers: &Servers<'_>,
        made: &mut Made,
    ) -> Value {
        let routes = self.routes((name, carried), servers, made);
        made.routes.insert(name.to_owned(), routes);
        let before = [self.security.http.as_slice(), &actions::filters()].concat();
        let way = TrafficDirection::Edge(self.workload);
        manager::http(
            self.outbound.mesh,
            way,
            name,
            Routes::Named(name.to_owned()),
            &before,
        )
    }

    fn routes(
        &self,
        (name, carried): (&str, ClusterTraffic),
        servers: &Servers<'_>,
        made: &mut Made,
    ) -> Value {
        let client = &self.workload.key.namespace;
        let hosts = self.outbound.mesh.hosts_at(client, servers);
        let port = servers.first().map(|(_, server)| server.port);
        let one = |(host, routing): (&Hostname, HostRouting<'_>)| {
            json!({
                "name": host.as_str(),
                "domains": [host.as_str()],
                "routes": port.map(|port| self.host(&routing, (port, carried), made)).unwrap_or_default(),
                "include_request_attempt_count": true,
            })
        };
        let hosts: Vec<Value> = hosts.into_iter().map(one).collect();
        json!({
            "name": name,
            "validate_clusters": false,
            "ignore_port_in_host_matching": true,
            "max_direct_response_body_size_bytes": actions::MAX_BODY,
            "internal_only_headers": PEERS_OWN,
            "virtual_hosts": hosts,
        })
    }

    /// All routes of one host: those of the oldest first, what takes everything last.
    fn host(
        &self,
        routing: &HostRouting<'_>,
        (port, carried): (Port, ClusterTraffic),
        made: &mut Made,
    ) -> Vec<Value> {
        let (mut routes, mut last) = (Vec::new(), Vec::new());
        if routing.https_redirect {
            routes.push(to_https());
        }
        for (one, gateway) in &routing.services {
            let to = (RouteAttachment::Gateway(gateway), port, carried);
            for route in &one.http {
                let mut own = Vec::new();
                let all = self.outbound.alternatives(one, route, to, (&mut own, made));
                match all {
                    true => last.extend(own),
                    false => routes.extend(own),
                }
            }
        }
        routes.extend(last);
        routes
    }
}

/// Name for a version of HTTP: HTTP/1.1, and anything for all versions, has the plain name.
fn of_version(name: &str, carried: ClusterTraffic) -> String {
    match carried {
        ClusterTraffic::Http2 => names::flavoured(name, carried),
        ClusterTraffic::Http1 | ClusterTraffic::Opaque => name.to_owned(),
    }
}

/// Clients in plaintext are sent to `https`, at the port that it implies: theirs is plaintext's.
fn to_https() -> Value {
    let is_https = json!({ "name": "x-forwarded-proto", "string_match": { "exact": "https" }, "invert_match": true });
    json!({
        "name": "https-redirect",
        "match": { "prefix": "/", "headers": [is_https] },
        "redirect": { "scheme_redirect": "https", "port_redirect": 443 },
    })
}

fn listener_filter(what: &str, kind: &str) -> Value {
    typed(
        &format!("envoy.filters.listener.{what}"),
        &format!("extensions.filters.listener.{what}.v3.{kind}"),
        json!({}),
    )
}

fn pem(bytes: Vec<u8>) -> Option<Value> {
    let text = String::from_utf8(bytes).ok()?;
    Some(json!({ "inline_string": text }))
}

impl Made {
    fn secret(&mut self, name: &str, kind: &str, value: Value) {
        let secret = json!({ "name": name, kind: value });
        let secret = message("extensions.transport_sockets.tls.v3.Secret", secret);
        self.secrets.insert(name.to_owned(), secret);
    }
}
