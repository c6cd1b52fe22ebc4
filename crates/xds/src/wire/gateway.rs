//! What a gateway takes from outside ⇄ `voile.proxy.v1.Gateway`. The control plane makes the checked type, which travels; what the
//! proxy cannot read of it refuses the whole configuration, so that no host is ever served by half of what was said.

use std::net::SocketAddr;
use std::sync::Arc;

use voile_model::Port;
use voile_proto::proxy as wire;

use super::configuration::listeners;
use super::{Routes, WireError, port, socket, socket_address};

/// Listeners of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gateway {
    /// All of them.
    pub listeners: Vec<GatewayListener>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayListener {
    /// Unique in its configuration, stable over edits.
    pub name: Arc<str>,
    /// Where it listens.
    pub bind: SocketAddr,
    /// The port that Gateways call it by.
    pub port: Port,
    /// Never empty.
    pub servers: Vec<GatewayServer>,
}

/// What takes some of a listener's connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayServer {
    /// Who is served.
    pub hosts: Vec<VirtualHost>,
}

/// A host that requests may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualHost {
    /// Lower case, without port; may begin with `*.`, or be `*`.
    pub host: Arc<str>,
    /// Where its requests go.
    pub routes: Routes,
    /// Whether who comes in plaintext is sent to `https`.
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
        Ok(Self { listeners })
    }

    /// The message.
    #[must_use]
    pub fn encode(&self) -> wire::Gateway {
        let listeners = self.listeners.iter().map(GatewayListener::encode);
        wire::Gateway {
            listeners: listeners.collect(),
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
        Ok(Self {
            name: message.name.as_str().into(),
            bind: socket("bind", message.bind.as_ref())?,
            port: port("port", message.port)?,
            servers,
        })
    }

    fn encode(&self) -> wire::GatewayListener {
        wire::GatewayListener {
            name: self.name.to_string(),
            bind: Some(socket_address(self.bind)),
            port: self.port.get().into(),
            servers: self.servers.iter().map(GatewayServer::encode).collect(),
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
        Ok(Self { hosts })
    }

    fn encode(&self) -> wire::GatewayServer {
        wire::GatewayServer {
            hosts: self.hosts.iter().map(VirtualHost::encode).collect(),
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
        let routes = message.routes.as_ref().map(Routes::check).transpose();
        Ok(Self {
            host: host.into(),
            routes: routes
                .map_err(|error| error.within("routes"))?
                .unwrap_or_default(),
            https_redirect: message.https_redirect,
        })
    }

    fn encode(&self) -> wire::VirtualHost {
        wire::VirtualHost {
            host: self.host.to_string(),
            routes: Some(self.routes.encode()),
            https_redirect: self.https_redirect,
        }
    }
}
