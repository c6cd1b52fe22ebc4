//! The keys of QUIC's packets, which are rustls', as quinn wants them: quinn brings no cryptography of its own.

use bytes::BytesMut;
use quinn_proto::crypto::{self, CryptoError, HeaderKey, KeyPair, PacketKey};
use rustls::quic::{self, Suite};

/// The suite of first packets, whose keys are public (RFC 9001 section 5.2).
///
/// # Panics
/// Never: rustls has it.
#[must_use]
pub fn first_suite() -> Suite {
    let first = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let suite = first.tls13().and_then(rustls::Tls13CipherSuite::quic_suite);
    suite.expect("invariant: first packets have a suite")
}

/// Both sides' keys of packets and of their heads.
#[must_use]
pub fn keys(keys: quic::Keys) -> crypto::Keys {
    crypto::Keys {
        header: KeyPair {
            local: Box::new(Header(keys.local.header)),
            remote: Box::new(Header(keys.remote.header)),
        },
        packet: packets(quic::PacketKeySet {
            local: keys.local.packet,
            remote: keys.remote.packet,
        }),
    }
}

/// Both sides' keys of packets.
#[must_use]
pub fn packets(keys: quic::PacketKeySet) -> KeyPair<Box<dyn PacketKey>> {
    KeyPair {
        local: Box::new(Packet(keys.local)),
        remote: Box::new(Packet(keys.remote)),
    }
}

struct Packet(Box<dyn quic::PacketKey>);

impl PacketKey for Packet {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let (header, rest) = buf.split_at_mut(header_len);
        let (payload, room) = rest.split_at_mut(rest.len() - self.0.tag_len());
        let tag = self.0.encrypt_in_place(packet, header, payload);
        room.copy_from_slice(
            tag.expect("invariant: a packet is short enough to be sealed")
                .as_ref(),
        );
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let opened = self.0.decrypt_in_place(packet, header, payload);
        let length = opened.map_err(|_| CryptoError)?.len();
        payload.truncate(length);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.0.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.0.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.0.integrity_limit()
    }
}

struct Header(Box<dyn quic::HeaderProtectionKey>);

/// Longest packet number, in bytes: the sample begins behind that much.
const LONGEST_NUMBER: usize = 4;

impl Header {
    /// The sample, the first byte and the packet number of a packet.
    fn parts<'p>(&self, at: usize, packet: &'p mut [u8]) -> (&'p [u8], &'p mut u8, &'p mut [u8]) {
        let (head, rest) = packet.split_at_mut(at + LONGEST_NUMBER);
        let (first, head) = head.split_at_mut(1);
        (
            &rest[..self.0.sample_len()],
            &mut first[0],
            &mut head[at - 1..],
        )
    }
}

/// Precondition that quinn guarantees.
const LONG_ENOUGH: &str = "invariant: a packet is long enough for its sample";

impl HeaderKey for Header {
    fn decrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        let (sample, first, number) = self.parts(pn_offset, packet);
        let opened = self.0.decrypt_in_place(sample, first, number);
        opened.expect(LONG_ENOUGH);
    }

    fn encrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        let (sample, first, number) = self.parts(pn_offset, packet);
        let sealed = self.0.encrypt_in_place(sample, first, number);
        sealed.expect(LONG_ENOUGH);
    }

    fn sample_size(&self) -> usize {
        self.0.sample_len()
    }
}
