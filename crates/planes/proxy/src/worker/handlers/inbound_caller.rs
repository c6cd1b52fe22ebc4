//! Client of an inbound connection: its verified identity, its address, and the facts that it or its balancer stated.

use std::net::SocketAddr;

use rustls::CipherSuite;
use voile_http2::source_number;
use voile_transport::DetectedProtocol;

use crate::worker::handlers::forwarded_client_cert::Forwarded;
use crate::worker::policy::admission::ConnectionArrival;
use crate::worker::records::downstream::Downstream;

/// Client of an inbound connection.
#[derive(Debug, Clone)]
pub(crate) struct InboundCaller {
    pub(crate) arrival: ConnectionArrival,
    /// SPIFFE identity, empty in plaintext.
    pub(crate) principal: String,
    pub(crate) suite: Option<CipherSuite>,
    pub(crate) remote: SocketAddr,
    /// Facts that few connections bring, behind a thin pointer.
    pub(crate) told: Option<Box<ProxyHeaderInfo>>,
}

/// Facts that a client, or the balancer in front of it, stated.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProxyHeaderInfo {
    /// SNI.
    pub(crate) server_name: Option<Box<str>>,
    /// Client for which the balancer connects.
    pub(crate) client: Option<SocketAddr>,
    /// Certificate facts that servers receive.
    pub(crate) forwarded: Option<Forwarded>,
    /// True if a certificate of the client was not verified.
    pub(crate) unverified: bool,
}

impl InboundCaller {
    /// Certificate facts that servers receive.
    pub(in crate::worker) fn forwarded(&self) -> Option<&Forwarded> {
        self.told.as_ref()?.forwarded.as_ref()
    }

    /// The name that a TLS client asked for.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.told.as_ref()?.server_name.as_deref()
    }

    /// Address of the client: the peer's, or the one that the balancer states.
    pub(crate) fn client(&self) -> SocketAddr {
        let said = self.told.as_ref().and_then(|told| told.client);
        said.unwrap_or(self.remote)
    }

    /// Number of the client's source: address and identity.
    pub(in crate::worker) fn source(&self) -> u64 {
        source_number(self.client().ip(), &self.principal)
    }

    /// Notes what a client's own TLS asks for.
    pub(in crate::worker) fn hear(&mut self, detected: DetectedProtocol) {
        if let DetectedProtocol::Tls(hello) = detected
            && let Some(mut name) = hello.server_name
        {
            // In lower case, as rustls and Envoy have it, so that spelling cannot bypass an authorizer.
            name.make_ascii_lowercase();
            self.tell(|told| told.server_name = Some(name.into()));
        }
    }

    pub(in crate::worker) fn tell(&mut self, change: impl FnOnce(&mut ProxyHeaderInfo)) {
        change(self.told.get_or_insert_default());
    }

    /// As logs tell of it.
    pub(crate) fn downstream(&self, local: SocketAddr) -> Downstream<'_> {
        Downstream {
            local,
            remote: self.client(),
            principal: &self.principal,
            suite: self.suite,
        }
    }
}

/// Caller in plaintext.
pub(in crate::worker) fn stranger(remote: SocketAddr) -> InboundCaller {
    InboundCaller {
        arrival: ConnectionArrival::Plaintext,
        principal: String::new(),
        suite: None,
        remote,
        told: None,
    }
}

/// Caller in plaintext, for which a balancer connects.
pub(in crate::worker) fn behind(remote: SocketAddr, client: Option<SocketAddr>) -> InboundCaller {
    let mut caller = stranger(remote);
    if client.is_some() {
        caller.tell(|told| told.client = client);
    }
    caller
}
