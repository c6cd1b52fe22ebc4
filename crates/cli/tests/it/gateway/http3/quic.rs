//! A client of HTTP/3 over quinn, which says frames as it likes. TLS is rustls', given to quinn by hand: quinn brings none here.

use std::any::Any;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use quinn::{Connection, Endpoint, RecvStream, SendStream, TokioRuntime, VarInt};
use quinn_proto::crypto::{
    self, CryptoError, ExportKeyingMaterialError, HeaderKey, HmacKey, KeyPair, PacketKey,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::pki_types::CertificateDer;
use rustls::quic::{ClientConnection, KeyChange, Secrets, Version};
use voile_http2::Fields;
use voile_http3::{FrameEvent, Frames, data_head, decode, encode, head_frame, settings};
use voile_transport::quic::{first_suite, keys, packets};

/// A head beyond this is no test's.
const MOST: usize = 1 << 20;

/// A connection and where it came from.
pub(crate) struct Dialed {
    pub(crate) connection: Connection,
    endpoint: Endpoint,
    pub(crate) control: SendStream,
}

/// Response to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) early: Vec<u16>,
    pub(crate) status: u16,
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<Fields>,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let value = self.fields.get(name)?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Runs on a runtime of this thread.
pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let limit = std::time::Duration::from_secs(60);
    runtime.block_on(async { tokio::time::timeout(limit, work).await.expect("in time") })
}

pub(crate) fn endpoint() -> Endpoint {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let mut config = quinn::EndpointConfig::new(Arc::new(NoKey));
    config.supported_versions(vec![1, 0xff00_001d]);
    Endpoint::new(config, None, socket, Arc::new(TokioRuntime)).expect("an endpoint")
}

/// Connects to the server there by this name, with these settings.
pub(crate) async fn dial(
    to: SocketAddr,
    name: &str,
    tls: &Arc<rustls::ClientConfig>,
) -> Result<Dialed, String> {
    let endpoint = endpoint();
    let config = quinn::ClientConfig::new(Arc::new(Tls(Arc::clone(tls))));
    let connecting = endpoint.connect_with(config, to, name);
    let connection = connecting.map_err(|error| error.to_string())?.await;
    let connection = connection.map_err(|error| error.to_string())?;
    let mut control = connection
        .open_uni()
        .await
        .map_err(|error| error.to_string())?;
    let said = [vec![0], settings(MOST as u64)].concat();
    control
        .write_all(&said)
        .await
        .map_err(|error| error.to_string())?;
    Ok(Dialed {
        connection,
        endpoint,
        control,
    })
}

/// A head: method, authority, path and more.
pub(crate) fn head(method: &str, host: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut fields = Fields::new();
    for (name, value) in [
        (":method", method),
        (":scheme", "https"),
        (":authority", host),
        (":path", path),
    ] {
        fields.push(name, value.as_bytes());
    }
    for (name, value) in more {
        fields.push(name, value.as_bytes());
    }
    block(&fields)
}

/// A frame of it with its pseudo-header fields, which an answer's encoder does not write.
fn block(fields: &Fields) -> Vec<u8> {
    let mut all = vec![0, 0];
    let pseudo = [
        (":method", Some(fields.method())),
        (":scheme", fields.scheme()),
        (":authority", fields.authority()),
        (":path", fields.path()),
    ];
    for (name, value) in pseudo {
        let Some(value) = value else { continue };
        // A literal with a literal name, whose length has three bits and then seven more.
        match name.len().checked_sub(7) {
            None => all.push(0x20 | name.len() as u8),
            Some(rest) => all.extend_from_slice(&[0x27, rest as u8]),
        }
        all.extend_from_slice(name.as_bytes());
        assert!(value.len() < 127);
        all.push(value.len() as u8);
        all.extend_from_slice(value.as_bytes());
    }
    all.extend_from_slice(&encode(fields)[2..]);
    head_frame(&all)
}

impl Dialed {
    /// The certificate that it was shown.
    pub(crate) fn shown(&self) -> CertificateDer<'static> {
        let shown = self.connection.peer_identity().expect("an identity");
        let shown = shown.downcast::<Vec<CertificateDer<'static>>>();
        shown.expect("certificates").swap_remove(0)
    }

    /// Says that it goes, and waits until that is heard.
    pub(crate) async fn leave(self) {
        self.connection.close(VarInt::from_u32(0x100), b"");
        self.endpoint.wait_idle().await;
    }

    /// Asks, with a body if there is one.
    pub(crate) async fn ask(&self, head: &[u8], body: Option<&[u8]>) -> Result<Answer, String> {
        let (mut send, mut recv) = self.connection.open_bi().await.map_err(|e| e.to_string())?;
        let upload = async {
            // A server that has answered may stop reading.
            if send.write_all(head).await.is_err() {
                return;
            }
            if let Some(body) = body {
                for part in body.chunks(100_000) {
                    if send.write_all(&data_head(part.len())).await.is_err()
                        || send.write_all(part).await.is_err()
                    {
                        return;
                    }
                }
            }
            let _ = send.finish();
        };
        let (answer, ()) = tokio::join!(read(&mut recv), upload);
        answer
    }
}

/// Reads an answer to its end.
pub(crate) async fn read(recv: &mut RecvStream) -> Result<Answer, String> {
    let mut frames = Frames::of_request(MOST);
    let mut answer = Answer {
        early: Vec::new(),
        status: 0,
        fields: Fields::new(),
        body: Vec::new(),
        trailers: None,
    };
    loop {
        let chunk = recv.read_chunk(MOST, true).await;
        let Some(chunk) = chunk.map_err(|error| error.to_string())? else {
            return Ok(answer);
        };
        let mut bytes: Bytes = chunk.bytes;
        while let Some(event) = frames.next(&mut bytes).map_err(|code| code.to_string())? {
            match event {
                FrameEvent::Data(data) => answer.body.extend_from_slice(&data),
                FrameEvent::Block { bytes, whole } => {
                    let fields = decode(&bytes, whole, MOST).expect("a block").fields;
                    match (answer.status, fields.status()) {
                        (0, early @ 100..200) => answer.early.push(early),
                        (0, status) => (answer.status, answer.fields) = (status, fields),
                        _ => answer.trailers = Some(fields),
                    }
                }
                other => return Err(format!("{other:?}")),
            }
        }
    }
}

/// The code by which a connection or stream ended, from quinn's error.
pub(crate) fn code(number: u32) -> VarInt {
    VarInt::from_u32(number)
}

// --- cryptography

struct NoKey;

impl HmacKey for NoKey {
    fn sign(&self, _data: &[u8], signature_out: &mut [u8]) {
        signature_out.fill(7);
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, _data: &[u8], _signature: &[u8]) -> Result<(), CryptoError> {
        Err(CryptoError)
    }
}

struct Tls(Arc<rustls::ClientConfig>);

impl crypto::ClientConfig for Tls {
    fn start_session(
        self: Arc<Self>,
        _version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn crypto::Session>, ConnectError> {
        let mut own = Vec::new();
        params.write(&mut own);
        let name = server_name.to_owned().try_into().expect("a name");
        let tls = ClientConnection::new(Arc::clone(&self.0), Version::V1, name, own);
        Ok(Box::new(Session {
            tls: tls.expect("a client"),
            next: None,
        }))
    }
}

struct Session {
    tls: ClientConnection,
    next: Option<Secrets>,
}

impl crypto::Session for Session {
    fn initial_keys(&self, dst_cid: &ConnectionId, _side: Side) -> crypto::Keys {
        keys(first_suite().keys(dst_cid, rustls::Side::Client, Version::V1))
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        Some(Box::new(self.tls.alpn_protocol().map(<[u8]>::to_vec)))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        let shown = self.tls.peer_certificates()?.to_vec();
        Some(Box::new(shown))
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        Some(false)
    }

    fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.tls.read_hs(buf).map_err(|error| TransportError {
            code: TransportErrorCode::crypto(self.tls.alert().map_or(80, Into::into)),
            frame: None,
            reason: error.to_string(),
        })?;
        Ok(false)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(mut said) = self.tls.quic_transport_parameters() else {
            return Ok(None);
        };
        Ok(Some(TransportParameters::read(Side::Client, &mut said)?))
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<crypto::Keys> {
        match self.tls.write_hs(buf)? {
            KeyChange::Handshake { keys: change } => Some(keys(change)),
            KeyChange::OneRtt { keys: change, next } => {
                self.next = Some(next);
                Some(keys(change))
            }
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let next = self.next.as_mut()?.next_packet_keys();
        Some(packets(next))
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], payload: &[u8]) -> bool {
        // Only the presence of a tag matters here, not its value.
        payload.len() >= 16
    }

    fn export_keying_material(
        &self,
        _: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}
