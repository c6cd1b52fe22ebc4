//! Which Gateways are ours, and which of their listeners are good.

use std::sync::Arc;

use super::{deployment, gateway_tls};
use crate::attach::inputs::{AttachmentInputs, refusal};
use crate::mesh::TrustedCertificates;
use crate::mesh::gateway_api::{
    ConditionReason, GROUP, Gateway, Listener, ListenerSet, ListenerTls, Reference,
    RefusedCondition, RouteKind,
};
use crate::mesh::routing_intent::ServerTlsMode;
use crate::names::{Hostname, Namespace, ResourceName};

/// A Gateway of a class of ours.
pub(super) struct OpenGateway<'m> {
    pub(super) gateway: &'m Arc<Gateway>,
    /// Why it is not accepted as a whole.
    pub(super) refused: Option<RefusedCondition>,
    /// Its own listeners, then those of ListenerSets.
    pub(super) listeners: Vec<ListenerStatus<'m>>,
    /// ListenerSets that it takes.
    pub(super) sets: Vec<&'m Arc<ListenerSet>>,
    /// The Secret that it shows to backends, if it has one.
    pub(super) client_certificate: Option<Result<ResourceName, RefusedCondition>>,
}

/// A listener with its status.
pub(super) struct ListenerStatus<'m> {
    pub(super) listener: &'m Listener,
    /// Its ListenerSet, if it is not the Gateway's own.
    pub(super) set: Option<&'m Arc<ListenerSet>>,
    /// Refusal of an unsupported protocol.
    pub(super) refused: Option<RefusedCondition>,
    /// Refusal because none of the authorities of its clients is usable: it serves nobody.
    pub(super) untrusted: Option<RefusedCondition>,
    /// Conflict with another listener.
    pub(super) conflict: Option<RefusedCondition>,
    /// Refusal of an unusable reference.
    pub(super) unresolved: Option<RefusedCondition>,
    /// What its clients show, if it terminates TLS.
    pub(super) mode: ServerTlsMode,
    /// The Secret that it shows to clients.
    pub(super) certificate: Option<ResourceName>,
    /// Authorities of its clients' certificates in the place of those of its Secret.
    pub(super) authorities: Option<Arc<TrustedCertificates>>,
    /// True if clients with an invalid certificate are served as those without one.
    pub(super) unverified: bool,
    /// Kinds of routes that it takes.
    pub(super) kinds: Vec<RouteKind>,
    /// Number of attached routes.
    pub(super) attached: usize,
}

impl ListenerStatus<'_> {
    /// Returns true if routes can attach to it.
    pub(super) fn is_open(&self) -> bool {
        self.refused.is_none() && self.conflict.is_none()
    }

    /// Returns true if it is open, and the authorities of its clients are usable.
    pub(super) fn is_accepted(&self) -> bool {
        self.is_open() && self.untrusted.is_none()
    }

    /// Returns true if it serves clients. A TLS listener without a usable certificate does not.
    pub(super) fn serves(&self) -> bool {
        self.is_accepted() && (self.unresolved.is_none() || self.certificate.is_some())
    }

    /// The namespace that counts as its own.
    pub(super) fn namespace<'a>(&'a self, gateway: &'a Gateway) -> &'a Namespace {
        match self.set {
            Some(set) => &set.name.namespace,
            None => &gateway.name.namespace,
        }
    }

    /// The host that it serves; `None` is any.
    pub(super) fn host(&self) -> Option<&Hostname> {
        self.listener.hostname.as_ref()
    }

    /// The family of listeners that can share its port.
    pub(super) fn family(&self) -> ListenerFamily {
        match &*self.listener.protocol {
            "HTTPS" | TLS => ListenerFamily::Tls,
            TCP => ListenerFamily::Tcp,
            _ => ListenerFamily::Http,
        }
    }

    pub(super) fn in_tls(&self) -> bool {
        self.family() == ListenerFamily::Tls
    }

    /// Returns true if TLS passes through it.
    pub(super) fn passes_tls(&self) -> bool {
        self.listener
            .tls
            .as_ref()
            .is_some_and(|tls| tls.passthrough)
    }

    /// Returns true if it carries requests, not connections.
    pub(super) fn has_requests(&self) -> bool {
        ![TLS, TCP].contains(&&*self.listener.protocol)
    }
}

/// Listeners of one family can share a port, as long as something tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListenerFamily {
    Http,
    Tls,
    Tcp,
}

const TLS: &str = "TLS";
const TCP: &str = "TCP";

/// Kinds of routes that a listener can carry.
fn carried(listener: &Listener) -> Vec<RouteKind> {
    let passed = listener.tls.as_ref().is_some_and(|tls| tls.passthrough);
    match &*listener.protocol {
        TLS if passed => vec![RouteKind::Tls],
        TLS => vec![RouteKind::Tls, RouteKind::Tcp],
        TCP => vec![RouteKind::Tcp],
        _ => vec![RouteKind::Http, RouteKind::Grpc],
    }
}

/// Returns true if Voile serves the class: its controller is Voile's, or it is a predefined class.
pub(super) fn is_ours(world: &AttachmentInputs<'_>, class: &str) -> bool {
    world.mesh.gateway_api.is_ours(class)
}

/// All Gateways of ours.
pub(super) fn opened<'m>(world: &AttachmentInputs<'m>) -> Vec<OpenGateway<'m>> {
    let all = world.mesh.gateway_api.gateways.iter();
    let ours = all.filter(|gateway| is_ours(world, &gateway.class.0));
    ours.map(|gateway| open(world, gateway)).collect()
}

fn open<'m>(world: &AttachmentInputs<'m>, gateway: &'m Arc<Gateway>) -> OpenGateway<'m> {
    let own = gateway.listeners.iter();
    let mut listeners: Vec<ListenerStatus<'m>> =
        own.map(|one| heard(world, gateway, None, one)).collect();
    conflicts_within(&mut listeners, 0);
    let mut sets = Vec::new();
    for set in &world.mesh.gateway_api.listener_sets {
        let from = &set.name.namespace;
        let ours = set.parent.is(GROUP, "Gateway") && set.parent.name == gateway.name;
        if !ours || !world.admits(&gateway.allowed_listeners, &gateway.name.namespace, from) {
            continue;
        }
        sets.push(set);
        let first = listeners.len();
        let added = set.listeners.iter();
        listeners.extend(added.map(|one| heard(world, gateway, Some(set), one)));
        conflicts_with_earlier(&mut listeners, first);
        conflicts_within(&mut listeners, first);
    }
    OpenGateway {
        refused: refused(world, gateway),
        client_certificate: gateway_tls::client_certificate(world, gateway),
        gateway,
        listeners,
        sets,
    }
}

/// The reason to refuse a Gateway, independent of its listeners.
fn refused(world: &AttachmentInputs<'_>, gateway: &Gateway) -> Option<RefusedCondition> {
    let class = world.mesh.gateway_api.classes.get(&gateway.class.0);
    let by_class = class.and_then(|class| class.parameters.as_ref());
    if let Some(source) = gateway.parameters.as_ref().or(by_class) {
        let said = format!("{}: parametersRef is not supported", gateway.name);
        let field = "spec.infrastructure.parametersRef";
        return Some(refusal(
            ConditionReason::InvalidParameters,
            source,
            field,
            said,
        ));
    }
    let source = gateway.addresses.as_ref()?;
    let said = match deployment::deployed_by_users(world, gateway) {
        Some(Some(_)) => return None,
        Some(None) => format!(
            "{}: the address is no Service of the namespace with a selector",
            gateway.name
        ),
        None => format!(
            "{}: addresses are not supported, but one Hostname of a Service, and on a cluster IP addresses",
            gateway.name
        ),
    };
    Some(refusal(
        ConditionReason::UnsupportedAddress,
        source,
        "spec.addresses",
        said,
    ))
}

fn heard<'m>(
    world: &AttachmentInputs<'m>,
    gateway: &Gateway,
    set: Option<&'m Arc<ListenerSet>>,
    listener: &'m Listener,
) -> ListenerStatus<'m> {
    let field = format!("spec.listeners[{}]", listener.name);
    let no = |reason, said| Some(refusal(reason, &listener.source, &field, said));
    let name = &listener.name;
    let passed = listener.tls.as_ref().is_some_and(|tls| tls.passthrough);
    let refused = match &*listener.protocol {
        "HTTP" | TLS | TCP => None,
        "HTTPS" if !passed => None,
        "HTTPS" => no(
            ConditionReason::UnsupportedValue,
            format!(
                "listener {name}: protocol HTTPS does not support TLS mode Passthrough; use protocol TLS"
            ),
        ),
        other => no(
            ConditionReason::UnsupportedProtocol,
            format!("listener {name}: {other} is not supported, only HTTP, HTTPS, TLS and TCP"),
        ),
    };
    let mut kinds = carried(listener);
    let mut unresolved = None;
    if !listener.kinds.is_empty() {
        let asked = |kind: &RouteKind| {
            let mut all = listener.kinds.iter();
            all.any(|(group, word)| &**group == GROUP && &**word == kind.word())
        };
        let known = |(group, word): &&(Arc<str>, Arc<str>)| {
            &**group == GROUP && kinds.iter().any(|kind| kind.word() == &**word)
        };
        if let Some((_, other)) = listener.kinds.iter().find(|kind| !known(kind)) {
            let said = format!("listener {name}: no {other} can attach to it");
            unresolved = no(ConditionReason::InvalidRouteKinds, said);
        }
        kinds.retain(asked);
    }
    if refused.is_some() {
        kinds.clear();
    }
    let mut status = ListenerStatus {
        listener,
        set,
        refused,
        untrusted: None,
        conflict: None,
        unresolved,
        mode: ServerTlsMode::Simple,
        certificate: None,
        authorities: None,
        unverified: false,
        kinds,
        attached: 0,
    };
    let tls = listener.tls.as_ref().filter(|tls| !tls.passthrough);
    if let Some(tls) = tls.filter(|_| status.refused.is_none()) {
        terminate(world, gateway, tls, &mut status);
    }
    status
}

/// Resolves what a listener terminates TLS with: its certificate, and the authorities of its clients.
fn terminate(
    world: &AttachmentInputs<'_>,
    gateway: &Gateway,
    tls: &ListenerTls,
    status: &mut ListenerStatus<'_>,
) {
    status.mode = tls.mode;
    if tls.mode == ServerTlsMode::IstioMutual {
        // The certificates and authorities of the mesh.
        return;
    }
    let of = match status.set {
        Some(set) => ("ListenerSet", &set.name.namespace),
        None => ("Gateway", &gateway.name.namespace),
    };
    match shown(world, of, status.listener, tls) {
        Ok(secret) => status.certificate = Some(secret),
        Err(why) => status.unresolved = Some(why),
    }
    let Some(validation) = gateway.tls.validation(status.listener.port) else {
        return;
    };
    let clients = gateway_tls::verification(world, gateway, validation);
    status.unresolved = status.unresolved.take().or(clients.unresolved);
    status.untrusted = clients.refused;
    match (tls.mode, validation.fallback) {
        (ServerTlsMode::Simple, true) => {
            status.mode = ServerTlsMode::OptionalMutual;
            status.unverified = true;
        }
        (ServerTlsMode::Simple, false) => status.mode = ServerTlsMode::Mutual,
        _ => {}
    }
    status.authorities = clients.authorities;
}

/// The Secret of a listener's certificate.
fn shown(
    world: &AttachmentInputs<'_>,
    (kind, own): (&str, &Namespace),
    listener: &Listener,
    tls: &ListenerTls,
) -> Result<ResourceName, RefusedCondition> {
    let Some(to) = tls.certificates.first() else {
        let said = format!(
            "listener {}: `certificateRefs` names no Secret",
            listener.name
        );
        let field = "spec.listeners.tls.certificateRefs";
        return Err(refusal(
            ConditionReason::InvalidCertificateRef,
            &tls.source,
            field,
            said,
        ));
    };
    gateway_tls::pair(
        world,
        (kind, own),
        to,
        ConditionReason::InvalidCertificateRef,
    )
}

/// Why two listeners cannot be told apart, if they cannot.
fn clash(one: &ListenerStatus<'_>, other: &ListenerStatus<'_>) -> Option<ConditionReason> {
    if one.refused.is_some() || other.refused.is_some() || one.listener.port != other.listener.port
    {
        return None;
    }
    // Nothing tells connections of plain TCP apart.
    if one.family() != other.family() || one.family() == ListenerFamily::Tcp {
        return Some(ConditionReason::ProtocolConflict);
    }
    (one.listener.hostname == other.listener.hostname).then_some(ConditionReason::HostnameConflict)
}

fn conflict(
    one: &ListenerStatus<'_>,
    other: &ListenerStatus<'_>,
    reason: ConditionReason,
) -> RefusedCondition {
    let (name, port) = (&one.listener.name, one.listener.port);
    let what = match reason {
        ConditionReason::ProtocolConflict if one.family() == other.family() => {
            "and nothing distinguishes their connections"
        }
        ConditionReason::ProtocolConflict => "another protocol",
        _ => "the same host",
    };
    let said = format!(
        "listener {name}: listener {} has port {port}, too, with {what}",
        other.listener.name
    );
    refusal(reason, &one.listener.source, "spec.listeners", said)
}

/// Listeners of one resource have no order: all of them conflict. Listeners with an earlier conflict are ignored.
fn conflicts_within(all: &mut [ListenerStatus<'_>], first: usize) {
    let open: Vec<usize> = (first..all.len())
        .filter(|index| all[*index].conflict.is_none())
        .collect();
    for &index in &open {
        let others = open.iter().filter(|other| **other != index);
        let found = others
            .filter_map(|other| Some((other, clash(&all[index], &all[*other])?)))
            .next();
        if let Some((other, reason)) = found {
            all[index].conflict = Some(conflict(&all[index], &all[*other], reason));
        }
    }
}

/// Earlier listeners win conflicts.
fn conflicts_with_earlier(all: &mut [ListenerStatus<'_>], first: usize) {
    for index in first..all.len() {
        let earlier = (0..first).filter(|other| all[*other].conflict.is_none());
        let found = earlier
            .filter_map(|other| Some((other, clash(&all[index], &all[other])?)))
            .next();
        if let Some((other, reason)) = found {
            all[index].conflict = Some(conflict(&all[index], &all[other], reason));
        }
    }
}

/// The Gateway of ours that is meant.
pub(super) fn meant<'o, 'm>(
    opened: &'o [OpenGateway<'m>],
    to: &Reference,
) -> Option<(usize, &'o OpenGateway<'m>)> {
    let is_it = |gateway: &Gateway| gateway.name == to.name;
    let mut all = opened.iter().enumerate();
    all.find(|(_, open)| is_it(open.gateway))
}
