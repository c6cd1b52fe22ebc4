//! Layer between a wire and its socket: plain, or TLS. All reads and writes of the wire go through
//! it.

use std::io::{ErrorKind, Read, Write};

use super::{LaneState, LoadWorker};
use crate::clock::now;
use crate::tally::RequestOutcome;
use crate::tls;

/// Bytes that are encrypted before a write: as many as a socket buffer takes at once.
const SEALED_BYTES: usize = 256 * 1024;

/// Reason why nothing more can be read now.
pub(super) enum ReadStop {
    /// So many bytes are in the buffer. Fewer than the buffer holds mean that no more have come.
    Some(usize),
    Blocked,
    End,
    Broken,
}

/// Why TLS failed, with the cure where the options have one.
fn tls_cause(error: &rustls::Error) -> String {
    use rustls::{AlertDescription as Alert, CertificateError, Error};
    let known = match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "certificate of an unknown issuer: --cacert FILE, or -k to accept any"
        }
        Error::InvalidCertificate(why) => {
            return format!("{why}: --cacert FILE or --tls-name NAME, or -k to accept any");
        }
        Error::AlertReceived(Alert::CertificateRequired) => {
            "the server requires a client certificate: --cert FILE --key FILE"
        }
        Error::AlertReceived(
            Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateUnknown
            | Alert::CertificateExpired
            | Alert::AccessDenied,
        ) => "the server does not accept the client certificate of --cert",
        Error::AlertReceived(Alert::NoApplicationProtocol) => {
            "the server speaks none of the protocols that the URL asks for (ALPN)"
        }
        Error::InvalidMessage(_) => {
            "the server does not speak TLS here: use http, h2c, grpc, ws or tcp in the URL"
        }
        _ => return format!("TLS handshake: {error}"),
    };
    known.to_owned()
}

impl LoadWorker {
    /// TCP is connected: TLS may begin, or requests go out.
    pub(super) fn connected(&mut self, index: usize) {
        let at = now();
        let connection = &mut self.connections[index];
        self.connecting.record(at.saturating_sub(connection.since));
        connection.since = at;
        let Some(settings) = &self.places[connection.place].tls else {
            return self.carried(index);
        };
        match settings.connect() {
            Ok(mut tls) => {
                tls.set_buffer_limit(Some(SEALED_BYTES));
                self.connections[index].tls = Some(tls);
                self.connections[index].state = LaneState::Handshaking;
                self.write(index);
            }
            Err(error) => self.fail_for(index, RequestOutcome::Tls, tls_cause(&error)),
        }
    }

    /// Bytes of the protocol can travel.
    fn carried(&mut self, index: usize) {
        if self.connections[index].wire.greets() {
            self.connections[index].state = LaneState::Greeting;
            self.write(index);
        } else {
            self.opened(index);
        }
    }

    /// Writes what can be written now.
    pub(super) fn write(&mut self, index: usize) {
        loop {
            let connection = &mut self.connections[index];
            let Some(stream) = connection.stream.as_mut() else {
                return;
            };
            let ready = matches!(connection.state, LaneState::Open | LaneState::Greeting);
            let written = if let Some(tls) = &mut connection.tls {
                if ready {
                    let bytes = connection.wire.unsent();
                    if !bytes.is_empty() {
                        // TLS takes as much as its limit allows, and the rest after that has gone.
                        let sealed = tls.writer().write(bytes).unwrap_or(0);
                        connection.wire.wrote(sealed);
                    }
                }
                if !tls.wants_write() {
                    return;
                }
                tls.write_tls(stream)
            } else {
                let bytes = connection.wire.unsent();
                if !ready || bytes.is_empty() {
                    return;
                }
                let written = stream.write(bytes);
                if let Ok(count) = written {
                    connection.wire.wrote(count);
                }
                written
            };
            match written {
                Ok(count) => self.tally.bytes_sent += count as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) if connection.datagrams => return self.fail(index, RequestOutcome::Connect),
                Err(_) => {
                    // The server may have answered (say, 413) before it closed, so a read follows.
                    connection.hangup = true;
                    if !self.unread.contains(&index) {
                        self.unread.push(index);
                    }
                    return;
                }
            }
        }
    }

    /// One read of the socket into the buffer.
    pub(super) fn read_socket(&mut self, index: usize) -> ReadStop {
        let connection = &mut self.connections[index];
        let datagrams = connection.datagrams;
        let Some(stream) = connection.stream.as_mut() else {
            return ReadStop::Blocked;
        };
        loop {
            return match stream.read(&mut self.buffer) {
                Ok(0) if !datagrams => ReadStop::End,
                Ok(count) => ReadStop::Some(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => ReadStop::Blocked,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => ReadStop::Broken,
            };
        }
    }

    /// Opens what the socket gave, and passes it on.
    pub(super) fn unseal(&mut self, index: usize, count: usize, at: u64) {
        let mut sealed = 0;
        while sealed < count {
            let connection = &mut self.connections[index];
            let Some(tls) = &mut connection.tls else {
                return;
            };
            let shaking = tls.is_handshaking();
            let mut bytes = &self.buffer[sealed..count];
            let before = bytes.len();
            let taken = tls.read_tls(&mut bytes).is_ok();
            sealed += before - bytes.len();
            let problem = match taken {
                true => tls.process_new_packets().err(),
                false => Some(rustls::Error::General("too many bytes".to_owned())),
            };
            if let Some(problem) = problem {
                // The alert says why, if it still gets there.
                if let Some(stream) = connection.stream.as_mut() {
                    let _ = tls.write_tls(stream);
                }
                return self.fail_for(index, RequestOutcome::Tls, tls_cause(&problem));
            }
            if shaking && !tls.is_handshaking() {
                self.handshake.record(at.saturating_sub(connection.since));
                if self.agreed.is_none() {
                    self.agreed = Some(tls::agreed(tls));
                }
                self.carried(index);
            }
            self.write(index);
            if !self.opened_bytes(index, at) {
                return;
            }
        }
    }

    /// Passes decrypted bytes on; false when the connection is gone.
    fn opened_bytes(&mut self, index: usize, at: u64) -> bool {
        let generation = self.connections[index].generation;
        let mut plain = std::mem::take(&mut self.plain);
        let alive = loop {
            let connection = &mut self.connections[index];
            let Some(tls) = &mut connection.tls else {
                break false;
            };
            match tls.reader().read(&mut plain) {
                Ok(0) => {
                    self.ended(index, at);
                    break false;
                }
                Ok(count) => {
                    self.digest(index, &plain[..count], at);
                    let connection = &self.connections[index];
                    if connection.generation != generation || connection.stream.is_none() {
                        break false;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break true,
                Err(_) => {
                    self.fail(index, RequestOutcome::Reset);
                    break false;
                }
            }
        };
        self.plain = plain;
        alive
    }
}
