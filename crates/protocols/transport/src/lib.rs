//! Everything between a socket and a protocol: listeners that shed instead of dying, protocol detection that never
//! loses a byte, mutual TLS with the protocol named in ALPN, upstream connections, the opaque relay, orderly closing.
//!
//! ```text
//! bind → accept ─(control thread)→ worker → detect → TLS → Stream → relay | codec → close
//! ```

mod ahead;
mod alert;
pub mod alpn;
pub mod buffers;
mod detection;
mod handshake;
mod limits;
pub mod quic;
mod relay;
mod sockets;
mod stream;
mod within;

pub use sockets::handover;
use sockets::{close, connect, listener, packets, redirected};

pub use detection::proxy_protocol;
use detection::{client_hello, detect};

pub use alert::refuse;
pub use client_hello::{ClientHello, HelloError, message as client_hello};
pub use close::{LingeringConnection, linger, reset};
pub use connect::{ConnectError, KeepAlive, connect, open, prepare};
pub use detect::{
    DetectedProtocol, Readable, TLS_HANDSHAKE_RECORD, begins_connect, detect, is_word,
    may_become_request, read_first, read_http, read_opening, read_prefix, readable,
};
pub use handshake::{HandshakeError, accept_tls, connect_tls};
pub use limits::*;
pub use listener::{
    AcceptFailure, Listener, ShedCounter, SpareDescriptor, bind, descriptor_limit,
    raise_descriptor_limit,
};
pub use packets::{AsyncPackets, Packet, PacketListener, Packets};
pub use proxy_protocol::{ProxyHeader, ProxyHeaderError, read_proxy_header};
pub use redirected::{
    APPLICATION_MARK, APPLICATION_SOURCE_V4, APPLICATION_SOURCE_V6, CaptureExemption, OUTWARD_MARK,
    Origin, is_local, is_redirected, may_be_transparent, may_mark, original_destination,
};
pub use relay::{FirstSpeaker, RelayEnd, RelayOutcome, relay, relay_watched, yield_turn};
pub use stream::{ServerTls, SocketEvents, TcpIo, TransportStream, TunnelledStream};
pub use within::{NestedTls, connect_tls_within};
