//! TLS inside QUIC, by rustls: quinn brings no cryptography of its own. As over TCP, the name that a client asks for selects the
//! certificate and the verification of the client. Nothing begins before the ClientHello is there.

use std::any::Any;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use quinn_proto::crypto::{
    self, ExportKeyingMaterialError, HeaderKey, KeyPair, PacketKey, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::quic::{KeyChange, Secrets, ServerConnection, Suite, Version};
use rustls::{AlertDescription, CipherSuite, ServerConfig};
use voile_traffic::AuthorityTable;
use voile_transport::quic::{first_suite, keys, packets};
use voile_transport::{HelloError, client_hello};

/// Server name that matches every name.
const ANY: &str = "*";

/// One server's TLS, as QUIC shows it.
#[derive(Debug, Clone)]
pub(crate) struct ServerOffer {
    /// The server's own, by which it is known again.
    pub(crate) of: Arc<ServerConfig>,
    /// The same for HTTP/3 alone.
    shown: Arc<ServerConfig>,
}

impl ServerOffer {
    /// None where TLS 1.3 is not to be spoken.
    pub(crate) fn new(of: &Arc<ServerConfig>) -> Option<Self> {
        let mut shown = ServerConfig::clone(of);
        shown.alpn_protocols = vec![super::ALPN.to_vec()];
        // Early data is refused: an observer could replay such a request.
        shown.max_early_data_size = 0;
        let shown = Arc::new(shown);
        // A configuration without TLS 1.3 makes no connection.
        ServerConnection::new(Arc::clone(&shown), Version::V1, Vec::new()).ok()?;
        Some(Self {
            of: Arc::clone(of),
            shown,
        })
    }
}

/// Server names that clients may ask for. The closest name counts; a name whose server is not served over
/// HTTP/3 falls to no other.
#[derive(Debug, Default)]
pub(crate) struct Names {
    by_name: AuthorityTable<Option<ServerOffer>>,
    any: Option<Option<ServerOffer>>,
}

impl Names {
    pub(crate) fn insert(&mut self, name: &str, offer: Option<ServerOffer>) {
        match name {
            ANY => drop(self.any.get_or_insert(offer)),
            name => drop(self.by_name.insert(name, offer)),
        }
    }

    fn find(&self, name: Option<&str>) -> Option<&ServerOffer> {
        let named = name.and_then(|name| self.by_name.get(name.as_bytes()));
        named.or(self.any.as_ref())?.as_ref()
    }
}

/// Facts of a handshake.
pub(crate) struct HandshakeInfo {
    /// The server that was asked for.
    pub(crate) of: Arc<ServerConfig>,
    /// Server name in lower case.
    pub(crate) server_name: Option<String>,
    pub(crate) suite: Option<CipherSuite>,
    pub(crate) is_http3: bool,
}

/// See the module.
pub(super) struct CertificateChoice {
    names: Arc<Names>,
    /// Suite of first packets, whose keys are public.
    initial: Suite,
}

impl CertificateChoice {
    pub(super) fn of(names: Names) -> Self {
        Self {
            names: Arc::new(names),
            initial: first_suite(),
        }
    }
}

/// Key and nonce of a Retry's tag, which proves that it is no noise (RFC 9001 section 5.8).
const RETRY_KEY: [u8; 16] = [
    0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e,
];
const RETRY_NONCE: [u8; 12] = [
    0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb,
];

impl crypto::ServerConfig for CertificateChoice {
    fn initial_keys(
        &self,
        version: u32,
        dst_cid: &ConnectionId,
    ) -> Result<crypto::Keys, UnsupportedVersion> {
        match version {
            1 => Ok(initial(&self.initial, dst_cid, Side::Server)),
            _ => Err(UnsupportedVersion),
        }
    }

    fn retry_tag(&self, _version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        let key = UnboundKey::new(&AES_128_GCM, &RETRY_KEY)
            .expect("invariant: the key is as long as its cipher's");
        let whole = [&[orig_dst_cid.len() as u8], &orig_dst_cid[..], packet].concat();
        let nonce = Nonce::assume_unique_for_key(RETRY_NONCE);
        let tag = LessSafeKey::new(key)
            .seal_in_place_separate_tag(nonce, Aad::from(whole), &mut [])
            .expect("invariant: nothing is short enough to be sealed");
        let mut out = [0; 16];
        out.copy_from_slice(tag.as_ref());
        out
    }

    fn start_session(
        self: Arc<Self>,
        _version: u32,
        params: &TransportParameters,
    ) -> Box<dyn Session> {
        let mut own = Vec::new();
        params.write(&mut own);
        Box::new(Handshake {
            initial: self.initial,
            names: Arc::clone(&self.names),
            own,
            heard: Vec::new(),
            begun: None,
            told: false,
            next: None,
        })
    }
}

fn initial(suite: &Suite, dst_cid: &ConnectionId, side: Side) -> crypto::Keys {
    let side = match side {
        Side::Client => rustls::Side::Client,
        Side::Server => rustls::Side::Server,
    };
    keys(suite.keys(dst_cid, side, Version::V1))
}

/// One connection's TLS.
struct Handshake {
    initial: Suite,
    names: Arc<Names>,
    /// Our transport parameters, as they travel.
    own: Vec<u8>,
    /// The ClientHello, until it is whole.
    heard: Vec<u8>,
    begun: Option<BegunHandshake>,
    /// It was said what the handshake shows.
    told: bool,
    next: Option<Secrets>,
}

/// The same once it is known who was asked for.
struct BegunHandshake {
    of: Arc<ServerConfig>,
    tls: ServerConnection,
}

fn refused(alert: AlertDescription, reason: impl Into<String>) -> TransportError {
    TransportError {
        code: TransportErrorCode::crypto(alert.into()),
        frame: None,
        reason: reason.into(),
    }
}

impl Handshake {
    /// Begins TLS with the terms of the named server, once the ClientHello is there.
    fn begin(&mut self, bytes: &[u8]) -> Result<Option<&mut BegunHandshake>, TransportError> {
        if self.begun.is_none() {
            self.heard.extend_from_slice(bytes);
            let hello = match client_hello(&self.heard) {
                Err(HelloError::NeedMore) => return Ok(None),
                Err(HelloError::Malformed) => {
                    return Err(refused(AlertDescription::DecodeError, "no ClientHello"));
                }
                Ok(hello) => hello,
            };
            let name = hello.server_name.map(|name| name.to_ascii_lowercase());
            let Some(offer) = self.names.find(name.as_deref()) else {
                let why = "no server of the Gateway matches the SNI";
                return Err(refused(AlertDescription::UnrecognisedName, why));
            };
            let own = std::mem::take(&mut self.own);
            let tls = ServerConnection::new(Arc::clone(&offer.shown), Version::V1, own);
            let tls =
                tls.map_err(|error| refused(AlertDescription::InternalError, error.to_string()))?;
            let of = Arc::clone(&offer.of);
            self.begun = Some(BegunHandshake { of, tls });
            let heard = std::mem::take(&mut self.heard);
            self.take(&heard)?;
            return Ok(self.begun.as_mut());
        }
        self.take(bytes)?;
        Ok(self.begun.as_mut())
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        let Some(begun) = &mut self.begun else {
            return Ok(());
        };
        begun.tls.read_hs(bytes).map_err(|error| {
            let alert = begun.tls.alert();
            refused(
                alert.unwrap_or(AlertDescription::InternalError),
                error.to_string(),
            )
        })
    }
}

impl Session for Handshake {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> crypto::Keys {
        initial(&self.initial, dst_cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let begun = self.begun.as_ref()?;
        Some(Box::new(HandshakeInfo {
            of: Arc::clone(&begun.of),
            server_name: begun.tls.server_name().map(str::to_ascii_lowercase),
            suite: begun
                .tls
                .negotiated_cipher_suite()
                .map(|suite| suite.suite()),
            is_http3: begun.tls.alpn_protocol() == Some(super::ALPN),
        }))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        let shown = self.begun.as_ref()?.tls.peer_certificates()?;
        let shown = shown.iter().map(|one| one.clone().into_owned());
        Some(Box::new(shown.collect::<Vec<_>>()))
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        let begun = self.begun.as_ref();
        begun.is_none_or(|begun| begun.tls.is_handshaking())
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        let begun = self.begin(buf)?.is_some();
        Ok(begun && !std::mem::replace(&mut self.told, begun))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let begun = self.begun.as_ref();
        let Some(mut said) = begun.and_then(|begun| begun.tls.quic_transport_parameters()) else {
            return Ok(None);
        };
        Ok(Some(TransportParameters::read(Side::Server, &mut said)?))
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<crypto::Keys> {
        match self.begun.as_mut()?.tls.write_hs(buf)? {
            KeyChange::Handshake { keys: change } => Some(keys(change)),
            KeyChange::OneRtt { keys: change, next } => {
                self.next = Some(next);
                Some(keys(change))
            }
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        Some(packets(self.next.as_mut()?.next_packet_keys()))
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        // Servers are sent none.
        false
    }

    fn export_keying_material(
        &self,
        _output: &mut [u8],
        _label: &[u8],
        _context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        // The proxy exports no keying material.
        Err(ExportKeyingMaterialError)
    }
}
