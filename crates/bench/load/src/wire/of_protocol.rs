//! The wire of a run's protocol.

use std::sync::Arc;

use crate::options::{LoadOptions, LoadProtocol};
use crate::wire::{PreparedRequest, Wire, http1, http2, tcp, udp, websocket};

/// The wire of a run's protocol.
pub(crate) fn wire(options: &LoadOptions, requests: &Arc<[PreparedRequest]>) -> Box<dyn Wire> {
    let requests = Arc::clone(requests);
    match options.protocol {
        LoadProtocol::Http1 => Box::new(http1::Http1::new(requests)),
        LoadProtocol::Http2 | LoadProtocol::Grpc => {
            Box::new(http2::Http2::new(requests, options.streams))
        }
        LoadProtocol::WebSocket => Box::new(websocket::WebSocket::new(requests, options)),
        LoadProtocol::TcpRr | LoadProtocol::TcpBulk => Box::new(tcp::Tcp::new(requests)),
        LoadProtocol::Udp => Box::new(udp::Udp::new(requests)),
    }
}
