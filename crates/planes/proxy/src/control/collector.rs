//! Connections to a telemetry collector. They are made as the application's own calls are, with mutual TLS if the
//! endpoint has a sidecar. The proxy verifies the endpoint before it sends a byte. With mutual TLS the bytes travel as
//! opaque ones, whatever protocol is inside.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use voile_telemetry::export::{CollectorDialer, CollectorStream, Dialing};
use voile_transport::{
    self as transport, CONNECT_TIMEOUT, Origin, TLS_HANDSHAKE_TIMEOUT, TransportStream,
};

use crate::plan::{EndpointPlan, ServicePlan};
use crate::worker::verify;

/// One collector. The endpoints change under it as the control plane says; locked on the control thread only.
pub(super) struct CollectorEndpoints {
    authority: String,
    service: Mutex<(Arc<ServicePlan>, Origin)>,
    tls: Arc<ClientConfig>,
    next: AtomicUsize,
}

impl CollectorEndpoints {
    pub(super) fn new(service: &ServicePlan, origin: Origin, tls: Arc<ClientConfig>) -> Self {
        Self {
            authority: format!("{}:{}", service.service.host, service.port),
            service: Mutex::new((Arc::new(service.clone()), origin)),
            tls,
            next: AtomicUsize::new(0),
        }
    }

    /// Stores the control plane's present service plan.
    pub(super) fn follow(&self, service: &ServicePlan, origin: Origin) {
        let mut held = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        *held = (Arc::new(service.clone()), origin);
    }

    /// Endpoints in turn, so that a dead one is left at the next attempt.
    fn pick(&self) -> Option<(EndpointPlan, Origin)> {
        let held = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        let (service, origin) = &*held;
        let alive = service
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.available && !endpoint.is_far());
        let alive: Vec<_> = alive.collect();
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let endpoint = alive.get(turn.checked_rem(alive.len())?)?;
        Some(((*endpoint).clone(), *origin))
    }
}

impl CollectorDialer for CollectorEndpoints {
    fn dial(&self) -> Dialing {
        let picked = self.pick();
        let tls = Arc::clone(&self.tls);
        Box::pin(async move {
            let Some((endpoint, origin)) = picked else {
                return Err(io::Error::other("no healthy upstream"));
            };
            if endpoint.origination.is_some() {
                // Never in plaintext instead.
                let why = "TLS origination by a DestinationRule is not supported for telemetry collectors";
                return Err(io::Error::other(why));
            }
            let tcp = transport::connect(endpoint.address, origin, CONNECT_TIMEOUT);
            let tcp = tcp.await.map_err(io::Error::other)?;
            let Some(expected) = &endpoint.expected else {
                return Ok(Box::new(tcp) as Box<dyn CollectorStream>);
            };
            // The name is neither sent nor compared; identities are.
            let name = ServerName::IpAddress(endpoint.address.ip().into());
            let shaken = transport::connect_tls(tls, name, tcp.into(), TLS_HANDSHAKE_TIMEOUT);
            let stream = shaken.await.map_err(io::Error::other)?;
            verify(&stream, expected).map_err(io::Error::other)?;
            match stream {
                TransportStream::ClientTls(tls) => Ok(tls as Box<dyn CollectorStream>),
                _ => Err(io::Error::other("not a TLS client connection")),
            }
        })
    }

    fn authority(&self) -> &str {
        &self.authority
    }
}
