//! Limits of a QUIC endpoint and its connections, by name, with unit and reason. Limits that HTTP/2 has are the same here.

use std::sync::Arc;
use std::time::Duration;

use quinn::{EndpointConfig, IdleTimeout, ServerConfig, TransportConfig, VarInt};

use super::crypto::{CertificateChoice, Names};
use super::socket_takeover::{Numbers, ProcessStamp};
use super::tokens::Keys;
use crate::http2::limits::{
    CONNECTION_WINDOW, MAX_DOWNSTREAM_STREAMS, MAX_HEADER_LIST, STREAM_WINDOW,
};

/// QUIC of RFC 9000; a client with a draft version gets the supported versions.
const VERSION_1: u32 = 1;

/// Unidirectional streams of a client at a time: one for settings, two of QPACK's, and a few of unknown types.
const MAX_UNIDIRECTIONAL: u32 = 8;

/// Time that a connection may be without a packet: then its client is gone, or has nothing to ask. Envoy's value. Clients that
/// wait longer for an answer send pings meanwhile.
const IDLE: Duration = Duration::from_secs(300);

/// Bytes of a handshake that are kept out of order: twice a large ClientHello, and as much as a chain of certificates of a client.
const MAX_HANDSHAKE_BYTES: usize = 16 * 1024;

/// Connections that are asked for and not yet given to a worker, which takes one turn of the control thread.
const MAX_WAITING: usize = 256;

/// Bytes kept of one of these, and of all.
const MAX_WAITING_BYTES: u64 = 16 * 1024;
const MAX_ALL_WAITING_BYTES: u64 = 1024 * 1024;

/// Handshakes under way on a port from which on a client must first prove its address (Retry): a round trip more for honest
/// clients. A forged address costs us one small packet and no memory.
pub(crate) const RETRY_FROM: usize = 64;

/// Handshakes under way on a port; others are refused, and may come over TCP.
pub(crate) const MAX_HANDSHAKES: usize = 1024;

/// Bytes of a field block that are read: the size of the largest head; its beginning is enough to answer 431.
pub(crate) const MAX_BLOCK: usize = MAX_HEADER_LIST as usize;

/// Bytes as which a stream counts that waits for its head, beside the head. One packet can open as many as a client may have.
pub(crate) const WAITING_STREAM: usize = 4 * 1024;

/// Bytes that are taken of a stream at once.
pub(crate) const MAX_CHUNK: usize = 16 * 1024;

/// Settings for every packet of a port, whose connections bear this stamp.
pub(crate) fn endpoint(stamp: ProcessStamp) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::new(Keys::fresh()));
    config
        .supported_versions(vec![VERSION_1])
        .cid_generator(move || Box::new(Numbers(stamp)));
    config
}

/// Settings of the connections of a port, whose clients may ask for these names.
pub(crate) fn terms(names: Names) -> ServerConfig {
    let mut transport = TransportConfig::default();
    let idle = IdleTimeout::try_from(IDLE).expect("invariant: it is a number of milliseconds");
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(MAX_DOWNSTREAM_STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(MAX_UNIDIRECTIONAL))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .send_window(CONNECTION_WINDOW.into())
        .max_idle_timeout(Some(idle))
        .crypto_buffer_size(MAX_HANDSHAKE_BYTES)
        .datagram_receive_buffer_size(None);
    let mut config = ServerConfig::new(
        Arc::new(CertificateChoice::of(names)),
        Arc::new(Keys::fresh()),
    );
    config
        .transport_config(Arc::new(transport))
        // Policies were asked about the address that a client came from.
        .migration(false)
        .max_incoming(MAX_WAITING)
        .incoming_buffer_size(MAX_WAITING_BYTES)
        .incoming_buffer_size_total(MAX_ALL_WAITING_BYTES);
    config
}
