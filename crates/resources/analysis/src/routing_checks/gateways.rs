//! Checks Istio's Gateways: existing listeners, Services in front, certificates, and each port and host served once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use voile_model::mesh::routing_intent::{DeclaredServer, Gateway};
use voile_model::mesh::{Mesh, Secret};
use voile_model::{Diagnostic, Hostname, Labels, Namespace, ResourceName, Source};

use crate::certificates::{self, AUTHORITIES, PAIRS};
use crate::codes;
use crate::services::shown;
use crate::subject::Subject;
use crate::suggestions;
use crate::view::ClientView;

/// End of the name of a Secret that holds authorities only.
const OF_AUTHORITIES: &str = "-cacert";

/// Help text: the labels and annotations that make Pods a gateway.
const WRITE_ONE: &str = "give the gateway's Deployment these labels; one is a gateway with `metadata.annotations: {inject.istio.io/templates: gateway}`, \
     `metadata.labels: {sidecar.istio.io/inject: \"true\"}` and `spec.containers: [{name: istio-proxy, image: auto}]` in its template";

/// Gateways of Istio's installation that are made for Gateways.
fn started(mesh: &Mesh, found: &mut Vec<Diagnostic>) {
    for (name, gateways) in mesh.default_gateways() {
        for gateway in gateways {
            let said = format!(
                "Gateway {} selects {name} of Istio's installation, which no resource declares: `voile up` starts it; a cluster must have it",
                gateway.name
            );
            let source = gateway.source.clone();
            found.push(
                Diagnostic::note(codes::DEFAULT_GATEWAY_STARTED, source, said)
                    .field("spec.selector"),
            );
        }
    }
}

/// Checks all Gateways of Istio's API, and the certificates of both APIs' Gateways.
pub(crate) fn check(view: &ClientView<'_>, now: SystemTime, found: &mut Vec<Diagnostic>) {
    started(view.mesh, found);
    let ours: Vec<_> = view.mesh.intents.gateways.iter().collect();
    let mut named = of_listeners(view.mesh);
    for gateway in &ours {
        let Some(selector) = &gateway.selector else {
            continue;
        };
        let mut selected = view.selected_anywhere(selector);
        let any = selected.first().map(|one| one.name.clone());
        selected.retain(|one| one.is_gateway());
        if selected.is_empty() {
            let lacks = suggestions::missing_workloads(&gateway.name.namespace, selector);
            let selector = shown(selector);
            let (why, help) = match any {
                None => ("no workload".to_owned(), WRITE_ONE),
                Some(other) => (
                    format!("{other}, which is no gateway"),
                    "give the gateway's Pods a sidecar and the annotation `inject.istio.io/templates: gateway`",
                ),
            };
            let said = format!(
                "the selector ({selector}) of Gateway {} selects {why}: nothing listens",
                gateway.name
            );
            let source = gateway.source.clone();
            found.push(
                Diagnostic::error(codes::GATEWAY_SELECTS_NOTHING, source, said)
                    .field("spec.selector")
                    .help(help)
                    .lacks(lacks),
            );
        }
        let namespaces: BTreeSet<_> = selected.iter().map(|one| one.namespace).collect();
        // Without a known workload, Secrets are searched in their likely namespaces.
        let root = &view.mesh.config.root_namespace;
        let likely = [&gateway.name.namespace, root].into_iter();
        let likely: BTreeSet<_> = likely.filter(|_| namespaces.is_empty()).collect();
        for server in &gateway.servers {
            reached(gateway, server, &selected, found);
            for (namespace, name, at) in &server.credentials {
                let own = namespace.as_ref();
                let there = |namespace: &&Namespace| {
                    let id = ResourceName::new((*namespace).clone(), &**name);
                    view.mesh.secrets.contains_key(&id)
                };
                let likely = likely
                    .iter()
                    .copied()
                    .filter(|one| own.is_none() && there(one));
                let looked_at = namespaces.iter().copied().chain(likely);
                for namespace in own.into_iter().chain(looked_at) {
                    if let Some(id) = credential(view.mesh, namespace, name, at, found) {
                        let hosts = server.hosts.iter().map(|host| &host.host);
                        named.entry(id).or_default().extend(hosts);
                    }
                }
            }
        }
    }
    for (id, hosts) in &named {
        if let Some(secret) = view.mesh.secrets.get(id) {
            let hosts: Vec<_> = hosts.iter().copied().collect();
            certificates::check(secret, &hosts, now, found);
        }
    }
    conflicts(&ours, found);
    shared_certificates(&ours, found);
}

/// The Secrets that gateways serve with, each with the hosts of those servers.
type ServedSecrets<'a> = BTreeMap<ResourceName, BTreeSet<&'a Hostname>>;

/// The Secrets of Gateway API listeners. Another check decides whether a listener may use its Secret.
fn of_listeners(mesh: &Mesh) -> ServedSecrets<'_> {
    let api = &mesh.gateway_api;
    let own = api.gateways.iter().flat_map(|gateway| &gateway.listeners);
    let added = api.listener_sets.iter().flat_map(|set| &set.listeners);
    let mut served = ServedSecrets::new();
    for listener in own.chain(added) {
        let named = listener.tls.iter().flat_map(|tls| &tls.certificates);
        for to in named.filter(|to| to.is("", "Secret")) {
            let hosts = served.entry(to.name.clone()).or_default();
            hosts.extend(&listener.hostname);
        }
    }
    served
}

/// Reports a server's port that no Service targets.
fn reached(
    gateway: &Gateway,
    server: &DeclaredServer,
    selected: &[&Subject<'_>],
    found: &mut Vec<Diagnostic>,
) {
    if selected.is_empty() {
        return;
    }
    let served = |subject: &&Subject<'_>| {
        subject.services.iter().any(|service| {
            let mut ports = service.ports.iter();
            ports.any(|port| {
                port.number == server.port || subject.target(&port.target) == Some(server.port)
            })
        })
    };
    if !selected.iter().any(served) {
        let said = format!(
            "no Service that selects the workloads of Gateway {} has port {}: the port is unreachable",
            gateway.name, server.port
        );
        let source = server.source.clone();
        found.push(
            Diagnostic::warning(codes::GATEWAY_PORT_UNSERVED, source, said)
                .field("spec.servers.port")
                .help("add the port to the gateway's Service"),
        );
    }
}

/// Checks that a Secret exists and holds the needed entries; returns its name.
pub(crate) fn credential(
    mesh: &Mesh,
    namespace: &Namespace,
    name: &str,
    at: &Source,
    found: &mut Vec<Diagnostic>,
) -> Option<ResourceName> {
    // `kubernetes://NAME` and `kubernetes://NAMESPACE/NAME` are addresses of Secrets; other schemes belong to other
    // systems.
    let name = name.strip_prefix("kubernetes://").unwrap_or(name);
    if name.contains("://") {
        return None;
    }
    let id = match name.split_once('/') {
        None => ResourceName::new(namespace.clone(), name),
        Some((namespace, name)) => match Namespace::new(namespace) {
            Some(namespace) => ResourceName::new(namespace, name),
            None => return None,
        },
    };
    let whole = "add a Secret of type kubernetes.io/tls with `tls.crt` and `tls.key` in the namespace of the workload that uses it";
    let (said, help) = match mesh.secrets.get(&id) {
        None => (
            format!("the Secret {id} does not exist"),
            suggestions::for_name(&id, mesh.secrets.keys(), whole),
        ),
        Some(secret) => match (lacks(secret), unreadable(secret)) {
            (Some(lacks), _) => (
                format!("the Secret {id} has no `{lacks}`"),
                whole.to_owned(),
            ),
            (None, Some(key)) => (
                format!(
                    "`{key}` of the Secret {id} contains no certificate revocation list: every client certificate is rejected"
                ),
                "put the revocation lists of its authorities there in PEM (`X509 CRL`), or remove the key".to_owned(),
            ),
            (None, None) => return Some(id),
        },
    };
    let diagnostic = Diagnostic::error(codes::UNKNOWN_CREDENTIAL, at.clone(), said);
    found.push(diagnostic.help(help).lacks(format!("Secret {id}")));
    None
}

/// The first invalid CRL of a Secret.
fn unreadable(secret: &Secret) -> Option<&'static str> {
    const BEGINS: &[u8] = b"-----BEGIN X509 CRL-----";
    let is_none = |key: &&str| {
        let held = secret.data.get(*key);
        held.is_some_and(|held| !held.windows(BEGINS.len()).any(|part| part == BEGINS))
    };
    ["ca.crl", "crl"].into_iter().find(is_none)
}

fn lacks(secret: &Secret) -> Option<&'static str> {
    let has = |key: &str| secret.data.contains_key(key);
    let whole = |(certificate, key): &(&str, &str)| has(certificate) && has(key);
    let authorities =
        secret.name.name.ends_with(OF_AUTHORITIES) && AUTHORITIES.into_iter().any(has);
    match PAIRS.iter().any(whole) || authorities {
        true => None,
        false if has("tls.crt") => Some("tls.key"),
        false => Some("tls.crt"),
    }
}

/// Gateways of the same workloads that show one certificate: a browser that knows the one asks it for hosts of the other.
fn shared_certificates(gateways: &[&Arc<Gateway>], found: &mut Vec<Diagnostic>) {
    let mut showing: BTreeMap<_, Vec<&Gateway>> = BTreeMap::new();
    let each = gateways.iter().flat_map(|gateway| {
        let servers = gateway.servers.iter();
        let credentials = servers.flat_map(|server| &server.credentials);
        credentials.map(move |(namespace, name, _)| ((namespace, name), gateway))
    });
    for (certificate, gateway) in each {
        showing.entry(certificate).or_default().push(gateway);
    }
    for ((_, certificate), gateways) in &showing {
        let mut told = BTreeSet::new();
        for gateway in gateways {
            let Some(selector) = &gateway.selector else {
                continue;
            };
            let meets = |other: &Gateway| {
                other
                    .selector
                    .as_ref()
                    .is_some_and(|one| selector.selects(one))
            };
            let other = gateways
                .iter()
                .find(|other| other.name != gateway.name && meets(other));
            let (Some(other), true) = (other, told.insert(&gateway.name)) else {
                continue;
            };
            let said = format!(
                "Gateway {} serves the certificate `{certificate}`, and so does {} in {}: a client that reuses its connection for a host of the other Gateway gets 421 and reconnects (404 in Istio)",
                gateway.name, other.name, other.source
            );
            let source = gateway.source.clone();
            found.push(
                Diagnostic::note(codes::SHARED_CERTIFICATE, source, said)
                    .field("spec.servers.tls.credentialName")
                    .help("serve all hosts of a certificate with one Gateway"),
            );
        }
    }
}

/// One port and host of the same workloads, twice.
fn conflicts(gateways: &[&Arc<Gateway>], found: &mut Vec<Diagnostic>) {
    type Place<'a> = (
        &'a Labels,
        u16,
        &'a voile_model::mesh::routing_intent::ServerHost,
    );
    let mut taken: BTreeMap<Place<'_>, (&Gateway, &DeclaredServer)> = BTreeMap::new();
    for gateway in gateways {
        for server in &gateway.servers {
            for host in &server.hosts {
                let Some(selector) = &gateway.selector else {
                    continue;
                };
                let place = (selector, server.port.get(), host);
                let Some((first, at)) = taken.get(&place) else {
                    taken.insert(place, (gateway, server));
                    continue;
                };
                let said = format!(
                    "Gateway {} serves {} on port {}, and so does {} in {}",
                    gateway.name, host.host, server.port, first.name, at.source
                );
                let source = server.source.clone();
                found.push(
                    Diagnostic::error(codes::CONFLICTING_GATEWAYS, source, said)
                        .field("spec.servers.hosts")
                        .help("keep one server for each port and host, and let routes of several namespaces share it"),
                );
            }
        }
    }
}
