//! Gateway configuration ⇄ `voile.proxy.v1.Gateway`. The control plane makes the checked type, and the message carries it. A part
//! that the proxy cannot read refuses the whole configuration, so that no host is served by half of it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use voile_model::Port;
use voile_proto::proxy as wire;

use super::configuration::distinct;
use super::fields::forms::{lower_case, named, required};
use super::fields::{wire_enum, wire_tuple, wire_type};
use super::{PackedRoutes, WireError, WireType};

/// Listeners of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gateway {
    /// All of them.
    pub listeners: Vec<GatewayListener>,
    /// For TLS that it makes itself.
    pub credentials: Vec<Credential>,
}

/// A Secret, as far as TLS towards servers needs it. `Debug` does not show the key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Credential {
    /// As DestinationRules name it.
    pub name: Arc<str>,
    /// Not empty: why there is none.
    pub missing: Arc<str>,
    /// PEM; may be empty.
    pub certificates: Vec<u8>,
    /// PEM; may be empty.
    pub private_key: Vec<u8>,
    /// PEM; may be empty.
    pub authorities: Vec<u8>,
    /// PEM of lists of what these took back; empty where nobody looks.
    pub revocations: Vec<u8>,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("name", &self.name)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}

/// Treatment of a server's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerKind {
    /// Requests of HTTP.
    #[default]
    Requests,
    /// Bytes, after TLS ended here if it does.
    Bytes,
    /// TLS that ends behind us: its name alone is looked at.
    Passthrough,
    /// The mesh's own TLS, which goes on unread to who takes it.
    AutoPassthrough,
}

impl ServerKind {
    /// Returns true if it takes TLS that ends behind the gateway.
    #[must_use]
    pub fn ends_behind(self) -> bool {
        matches!(self, Self::Passthrough | Self::AutoPassthrough)
    }
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayListener {
    /// Unique in its configuration, stable over edits.
    pub name: Arc<str>,
    /// Address of the listener.
    pub bind: SocketAddr,
    /// The port that Gateways call it by.
    pub port: Port,
    /// Never empty.
    pub servers: Vec<GatewayServer>,
    /// Port that clients call for HTTP/3, which is served over UDP at the same address; `None` without HTTP/3.
    pub http3: Option<Port>,
}

/// A server, which takes some of a listener's connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayServer {
    /// Names that clients of TLS ask for, lower case; `*` is any, and none.
    pub names: Vec<Arc<str>>,
    /// TLS termination at the gateway; `None` is plaintext.
    pub tls: Option<GatewayTls>,
    /// Treatment of its connections.
    pub kind: ServerKind,
    /// Virtual hosts of its requests.
    pub hosts: Vec<VirtualHost>,
    /// Routes of its connections, for kinds that are no HTTP.
    pub connections: PackedRoutes,
}

/// TLS termination at a gateway. `Debug` does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct GatewayTls {
    /// Source of the certificate, for people.
    pub credential: Arc<str>,
    /// Certificate and key in PEM; or why there are none.
    pub certificate: Result<(Vec<u8>, Vec<u8>), Arc<str>>,
    /// Authorities of client certificates, in PEM; empty if clients are not asked for one.
    pub authorities: Vec<u8>,
    /// Lists of certificates that those took back, in PEM; empty where nobody looks.
    pub revocations: Vec<u8>,
    /// True if a client that is asked for a certificate may come without one.
    pub anonymous: bool,
    /// True if a client whose certificate cannot be verified is served as one without a certificate.
    pub unverified: bool,
    /// True if TLS 1.2 is enabled.
    pub tls12: bool,
    /// True if TLS 1.3 is enabled.
    pub tls13: bool,
    /// Suites of TLS 1.2 by OpenSSL's names; none is all.
    pub suites: Vec<Arc<str>>,
    /// The mesh's own mutual TLS, by the proxy's own certificate; nothing of the above is said then.
    pub mesh: bool,
    /// Files of the gateway's own machine in place of certificate, key and authorities.
    pub files: Option<Box<GatewayFiles>>,
    /// Certificates and keys in PEM beside that one, with where they come from, for clients that cannot verify its kind of key.
    pub more: Vec<(Arc<str>, Vec<u8>, Vec<u8>)>,
}

/// Files of the gateway's own machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayFiles {
    /// The certificate and those between it and its root, in PEM.
    pub certificate: Arc<str>,
    /// Its key, in PEM.
    pub key: Arc<str>,
    /// Authorities of client certificates; `None` if clients are not asked for one.
    pub authorities: Option<Arc<str>>,
    /// Lists of certificates that those took back; `None` where nobody looks.
    pub revocations: Option<Arc<str>>,
}

impl GatewayTls {
    /// Returns true if clients are asked for a certificate.
    #[must_use]
    pub fn asks(&self) -> bool {
        let by_file = |files: &GatewayFiles| files.authorities.is_some();
        !self.authorities.is_empty() || self.files.as_deref().is_some_and(by_file)
    }

    /// Sources of its certificates, for people.
    #[must_use]
    pub fn all_credentials(&self) -> String {
        let more = self.more.iter().map(|(credential, ..)| credential);
        let all: Vec<&str> = std::iter::once(&self.credential)
            .chain(more)
            .map(AsRef::as_ref)
            .collect();
        all.join(", ")
    }

    /// The mesh's own mutual TLS.
    #[must_use]
    pub fn of_mesh() -> Self {
        Self {
            credential: "".into(),
            certificate: Ok(Default::default()),
            authorities: Vec::new(),
            revocations: Vec::new(),
            anonymous: false,
            unverified: false,
            tls12: false,
            tls13: true,
            suites: Vec::new(),
            mesh: true,
            files: None,
            more: Vec::new(),
        }
    }
}

impl fmt::Debug for GatewayTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayTls")
            .field("credential", &self.credential)
            .field("missing", &self.certificate.as_ref().err())
            .field("anonymous", &self.anonymous)
            .field("unverified", &self.unverified)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

/// A host that requests may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualHost {
    /// Lower case, without port; may begin with `*.`, or be `*`.
    pub host: Arc<str>,
    /// Routes of its requests.
    pub routes: PackedRoutes,
    /// True if plaintext requests are redirected to `https`.
    pub https_redirect: bool,
}

wire_type! {
    Gateway as wire::Gateway { listeners, credentials, }
    verify has_distinct_listeners
}

fn has_distinct_listeners(gateway: &Gateway) -> Result<(), WireError> {
    distinct(
        "listeners",
        gateway.listeners.iter().map(|one| (&one.name, one.bind)),
    )
}

wire_type! {
    Credential as wire::Credential {
        name,
        missing,
        certificates,
        private_key,
        authorities,
        revocations,
    }
}

wire_type! {
    GatewayListener as wire::GatewayListener { name, bind with required, port, servers, http3, }
    verify can_tell_servers_apart
}

fn can_tell_servers_apart(listener: &GatewayListener) -> Result<(), WireError> {
    let servers = &listener.servers;
    if servers.is_empty() {
        return Err(WireError::new("servers", "missing"));
    }
    let in_tls = |server: &GatewayServer| server.tls.is_some() || server.kind.ends_behind();
    if servers.len() > 1 && !servers.iter().all(in_tls) {
        let reason = "a plaintext server must be the only one of its port";
        return Err(WireError::new("servers", reason));
    }
    Ok(())
}

wire_enum! { ServerKind as wire::ServerKind { Requests, Bytes, Passthrough, AutoPassthrough } }

wire_type! {
    GatewayServer as wire::GatewayServer { names, tls, kind, hosts, connections, }
    verify terminates_only_its_own_tls
}

fn terminates_only_its_own_tls(server: &GatewayServer) -> Result<(), WireError> {
    if server.kind.ends_behind() && server.tls.is_some() {
        let reason = "not allowed: the gateway does not terminate TLS of this kind";
        return Err(WireError::new("tls", reason));
    }
    Ok(())
}

wire_type! { VirtualHost as wire::VirtualHost { host by lower_case, routes, https_redirect, } }

wire_type! {
    GatewayTls as wire::GatewayTls {
        credential,
        certificate = (missing, certificates, private_key),
        authorities,
        anonymous,
        unverified,
        tls12,
        tls13,
        suites,
        mesh,
        files = (certificate_file, key_file, authorities_file, revocations_file),
        revocations,
        more,
    }
    verify admits_no_more_clients_than_meant
}

fn admits_no_more_clients_than_meant(tls: &GatewayTls) -> Result<(), WireError> {
    if tls.mesh {
        let of_mesh = GatewayTls {
            tls13: tls.tls13,
            ..GatewayTls::of_mesh()
        };
        let reason = "mutual TLS of the mesh has no settings of its own";
        return match *tls == of_mesh {
            true => Ok(()),
            false => Err(WireError::new("mesh", reason)),
        };
    }
    let pem = tls.certificate.iter().flat_map(|(one, key)| [one, key]);
    let mut pem = pem.chain([&tls.authorities, &tls.revocations]);
    let both = tls.files.is_some() && pem.any(|pem| !pem.is_empty());
    // Revoked without authorities is never read as "nothing is revoked", nor anonymous as "nobody need show one".
    let lists_alone = !tls.revocations.is_empty() && tls.authorities.is_empty();
    let open = tls.anonymous && !tls.asks();
    let faults = [
        (
            !tls.tls12 && !tls.tls13,
            "tls13",
            "no TLS version is enabled",
        ),
        (both, "certificate_file", "files and PEM are both set"),
        (open || lists_alone, "authorities", "missing"),
        (tls.unverified && !tls.anonymous, "anonymous", "missing"),
    ];
    match faults.into_iter().find(|(wrong, ..)| *wrong) {
        Some((_, field, reason)) => Err(WireError::new(field, reason)),
        None => Ok(()),
    }
}

/// The reason why there is none, or a certificate and its key.
impl WireType<(String, Vec<u8>, Vec<u8>)> for Result<(Vec<u8>, Vec<u8>), Arc<str>> {
    fn to_wire(&self) -> (String, Vec<u8>, Vec<u8>) {
        match self {
            Ok((certificates, key)) => (String::new(), certificates.clone(), key.clone()),
            Err(missing) => (missing.to_string(), Vec::new(), Vec::new()),
        }
    }

    fn from_wire(form: (String, Vec<u8>, Vec<u8>)) -> Result<Self, WireError> {
        let (missing, certificates, key) = form;
        Ok(match missing.is_empty() {
            true => Ok((certificates, key)),
            false => Err(missing.into()),
        })
    }
}

wire_tuple! {
    (Arc<str>, Vec<u8>, Vec<u8>) as wire::GatewayCertificate { credential, certificates, private_key }
}

type FilePaths = (String, String, String, String);

/// All that is needed of them, and nothing beside.
impl WireType<FilePaths> for Option<Box<GatewayFiles>> {
    fn to_wire(&self) -> FilePaths {
        let paths = |files: &GatewayFiles| {
            let (certificate, key) = (files.certificate.to_wire(), files.key.to_wire());
            (
                certificate,
                key,
                files.authorities.to_wire(),
                files.revocations.to_wire(),
            )
        };
        self.as_deref().map(paths).unwrap_or_default()
    }

    fn from_wire(
        (certificate, key, authorities, revocations): FilePaths,
    ) -> Result<Self, WireError> {
        let authorities: Option<Arc<str>> = WireType::from_wire(authorities)?;
        let revocations: Option<Arc<str>> = WireType::from_wire(revocations)?;
        if revocations.is_some() && authorities.is_none() {
            return Err(WireError::new("authorities_file", "missing"));
        }
        if certificate.is_empty() && key.is_empty() && authorities.is_none() {
            return Ok(None);
        }
        let within = |field: &'static str| move |error: WireError| error.within(field);
        Ok(Some(Box::new(GatewayFiles {
            certificate: named(certificate).map_err(within("certificate_file"))?,
            key: named(key).map_err(within("key_file"))?,
            authorities,
            revocations,
        })))
    }
}
