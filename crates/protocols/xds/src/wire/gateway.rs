//! Gateway configuration ⇄ `voile.proxy.v1.Gateway`. The control plane makes the checked type, and the message carries it. A part
//! that the proxy cannot read refuses the whole configuration, so that no host is served by half of it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use voile_model::Port;
use voile_proto::proxy as wire;

use super::configuration::listeners;
use super::{PackedRoutes, WireError, port, socket, socket_address};

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

impl Gateway {
    /// Checks a message.
    pub fn check(message: &wire::Gateway) -> Result<Self, WireError> {
        let listeners = listeners(
            "listeners",
            &message.listeners,
            GatewayListener::check,
            |l| (&l.name, l.bind),
        )?;
        let credentials = message.credentials.iter().map(|one| Credential {
            name: one.name.as_str().into(),
            missing: one.missing.as_str().into(),
            certificates: one.certificates.clone(),
            private_key: one.private_key.clone(),
            authorities: one.authorities.clone(),
            revocations: one.revocations.clone(),
        });
        Ok(Self {
            listeners,
            credentials: credentials.collect(),
        })
    }

    /// The message.
    #[must_use]
    pub fn encode(&self) -> wire::Gateway {
        let listeners = self.listeners.iter().map(GatewayListener::encode);
        let credentials = self.credentials.iter().map(|one| wire::Credential {
            name: one.name.to_string(),
            missing: one.missing.to_string(),
            certificates: one.certificates.clone(),
            private_key: one.private_key.clone(),
            authorities: one.authorities.clone(),
            revocations: one.revocations.clone(),
        });
        wire::Gateway {
            listeners: listeners.collect(),
            credentials: credentials.collect(),
        }
    }
}

impl GatewayListener {
    fn check(message: &wire::GatewayListener) -> Result<Self, WireError> {
        let mut servers = Vec::with_capacity(message.servers.len());
        for (index, server) in message.servers.iter().enumerate() {
            let server = GatewayServer::check(server);
            servers.push(server.map_err(|error| error.within(&format!("servers[{index}]")))?);
        }
        if servers.is_empty() {
            return Err(WireError::new("servers", "missing"));
        }
        let in_tls = |server: &GatewayServer| server.tls.is_some() || server.kind.ends_behind();
        let plain = servers.iter().filter(|server| !in_tls(server)).count();
        if plain > 0 && servers.len() > 1 {
            let reason = "a plaintext server must be the only one of its port";
            return Err(WireError::new("servers", reason));
        }
        Ok(Self {
            name: message.name.as_str().into(),
            bind: socket("bind", message.bind.as_ref())?,
            port: port("port", message.port)?,
            servers,
            http3: match message.http3 {
                0 => None,
                number => Some(port("http3", number)?),
            },
        })
    }

    fn encode(&self) -> wire::GatewayListener {
        wire::GatewayListener {
            name: self.name.to_string(),
            bind: Some(socket_address(self.bind)),
            port: self.port.get().into(),
            servers: self.servers.iter().map(GatewayServer::encode).collect(),
            http3: self.http3.map_or(0, |port| port.get().into()),
        }
    }
}

impl GatewayServer {
    fn check(message: &wire::GatewayServer) -> Result<Self, WireError> {
        let mut hosts: Vec<VirtualHost> = Vec::with_capacity(message.hosts.len());
        for (index, host) in message.hosts.iter().enumerate() {
            let field = format!("hosts[{index}]");
            let host = VirtualHost::check(host).map_err(|error| error.within(&field))?;
            hosts.push(host);
        }
        let tls = message.tls.as_ref().map(GatewayTls::check).transpose();
        let kind = match wire::ServerKind::try_from(message.kind) {
            Ok(wire::ServerKind::Requests) => ServerKind::Requests,
            Ok(wire::ServerKind::Bytes) => ServerKind::Bytes,
            Ok(wire::ServerKind::Passthrough) => ServerKind::Passthrough,
            Ok(wire::ServerKind::AutoPassthrough) => ServerKind::AutoPassthrough,
            Err(_) => return Err(super::unknown_value("kind", message.kind)),
        };
        if kind.ends_behind() && message.tls.is_some() {
            return Err(WireError::new(
                "tls",
                "not allowed: the gateway does not terminate TLS of this kind",
            ));
        }
        Ok(Self {
            kind,
            connections: PackedRoutes::copied(&message.connections),
            names: message
                .names
                .iter()
                .map(|name| name.as_str().into())
                .collect(),
            tls: tls.map_err(|error| error.within("tls"))?,
            hosts,
        })
    }

    fn encode(&self) -> wire::GatewayServer {
        wire::GatewayServer {
            names: self.names.iter().map(ToString::to_string).collect(),
            tls: self.tls.as_ref().map(GatewayTls::encode),
            hosts: self.hosts.iter().map(VirtualHost::encode).collect(),
            kind: match self.kind {
                ServerKind::Requests => wire::ServerKind::Requests,
                ServerKind::Bytes => wire::ServerKind::Bytes,
                ServerKind::Passthrough => wire::ServerKind::Passthrough,
                ServerKind::AutoPassthrough => wire::ServerKind::AutoPassthrough,
            }
            .into(),
            connections: self.connections.bytes().to_vec(),
        }
    }
}

impl VirtualHost {
    fn check(message: &wire::VirtualHost) -> Result<Self, WireError> {
        let host = message.host.as_str();
        if host.is_empty() || host.bytes().any(|byte| byte.is_ascii_uppercase()) {
            let reason = format!("`{}` is not a lower-case host", super::shown(host));
            return Err(WireError::new("host", reason));
        }
        Ok(Self {
            host: host.into(),
            routes: PackedRoutes::copied(&message.routes),
            https_redirect: message.https_redirect,
        })
    }

    fn encode(&self) -> wire::VirtualHost {
        wire::VirtualHost {
            host: self.host.to_string(),
            routes: self.routes.bytes().to_vec(),
            https_redirect: self.https_redirect,
        }
    }
}

impl GatewayTls {
    fn check(message: &wire::GatewayTls) -> Result<Self, WireError> {
        if message.mesh {
            return Ok(Self::of_mesh());
        }
        if !message.tls12 && !message.tls13 {
            return Err(WireError::new("tls13", "no TLS version is enabled"));
        }
        let files = files(message)?;
        let asked = |files: &GatewayFiles| files.authorities.is_some();
        let by_file = files.as_deref().is_some_and(asked);
        // Never read as "nobody need show one".
        if message.anonymous && message.authorities.is_empty() && !by_file {
            return Err(WireError::new("authorities", "missing"));
        }
        if message.unverified && !message.anonymous {
            return Err(WireError::new("anonymous", "missing"));
        }
        // Nor as "nothing is revoked".
        if !message.revocations.is_empty() && message.authorities.is_empty() {
            return Err(WireError::new("authorities", "missing"));
        }
        Ok(Self {
            mesh: false,
            files,
            revocations: message.revocations.clone(),
            more: message
                .more
                .iter()
                .map(|one| {
                    let (certificates, key) = (one.certificates.clone(), one.private_key.clone());
                    (one.credential.as_str().into(), certificates, key)
                })
                .collect(),
            credential: message.credential.as_str().into(),
            certificate: match message.missing.as_str() {
                "" => Ok((message.certificates.clone(), message.private_key.clone())),
                missing => Err(missing.into()),
            },
            authorities: message.authorities.clone(),
            anonymous: message.anonymous,
            unverified: message.unverified,
            tls12: message.tls12,
            tls13: message.tls13,
            suites: message
                .suites
                .iter()
                .map(|name| name.as_str().into())
                .collect(),
        })
    }

    fn encode(&self) -> wire::GatewayTls {
        let (certificates, private_key) = self.certificate.clone().unwrap_or_default();
        let file = |path: fn(&GatewayFiles) -> Option<&Arc<str>>| {
            let path = self.files.as_deref().and_then(path);
            path.map(ToString::to_string).unwrap_or_default()
        };
        let missing = self.certificate.as_ref().err();
        wire::GatewayTls {
            credential: self.credential.to_string(),
            missing: missing.map(ToString::to_string).unwrap_or_default(),
            certificates,
            private_key,
            authorities: self.authorities.clone(),
            anonymous: self.anonymous,
            unverified: self.unverified,
            tls12: self.tls12,
            tls13: self.tls13,
            suites: self.suites.iter().map(ToString::to_string).collect(),
            mesh: self.mesh,
            certificate_file: file(|files| Some(&files.certificate)),
            key_file: file(|files| Some(&files.key)),
            authorities_file: file(|files| files.authorities.as_ref()),
            revocations: self.revocations.clone(),
            revocations_file: file(|files| files.revocations.as_ref()),
            more: self
                .more
                .iter()
                .map(|(credential, certificates, key)| wire::GatewayCertificate {
                    credential: credential.to_string(),
                    certificates: certificates.clone(),
                    private_key: key.clone(),
                })
                .collect(),
        }
    }
}

/// All that is needed of them, and nothing beside.
fn files(message: &wire::GatewayTls) -> Result<Option<Box<GatewayFiles>>, WireError> {
    let path = |text: &str| (!text.is_empty()).then(|| Arc::from(text));
    let authorities = path(&message.authorities_file);
    let revocations = path(&message.revocations_file);
    if revocations.is_some() && authorities.is_none() {
        return Err(WireError::new("authorities_file", "missing"));
    }
    let (certificate, key) = match (path(&message.certificate_file), path(&message.key_file)) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) if authorities.is_none() => return Ok(None),
        (None, _) => return Err(WireError::new("certificate_file", "missing")),
        (_, None) => return Err(WireError::new("key_file", "missing")),
    };
    let told = [
        &message.certificates,
        &message.private_key,
        &message.authorities,
        &message.revocations,
    ];
    if told.into_iter().any(|pem| !pem.is_empty()) {
        return Err(WireError::new(
            "certificate_file",
            "files and PEM are both set",
        ));
    }
    Ok(Some(Box::new(GatewayFiles {
        certificate,
        key,
        authorities,
        revocations,
    })))
}
