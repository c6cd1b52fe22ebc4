//! A DNS server on loopback that knows what the test says, and a client that asks one question.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time to live of answers, in seconds.
const TTL: u32 = 1;
/// A test's patience with one question.
const PATIENCE: Duration = Duration::from_secs(10);

/// Records of the server: addresses by name. `None` in its place means a broken server.
type Zone = BTreeMap<&'static str, Vec<Ipv4Addr>>;

/// The server; it answers until the test process ends.
#[derive(Clone)]
pub(crate) struct Resolver {
    zone: Arc<Mutex<Option<Zone>>>,
    askers: Arc<Mutex<BTreeSet<IpAddr>>>,
    pub(crate) address: SocketAddr,
}

impl Resolver {
    pub(crate) fn start(zone: Zone) -> Self {
        Self::start_on(UdpSocket::bind("127.0.0.1:0").expect("a socket"), zone)
    }

    pub(crate) fn start_on(socket: UdpSocket, zone: Zone) -> Self {
        let resolver = Self {
            zone: Arc::new(Mutex::new(Some(zone))),
            askers: Arc::default(),
            address: socket.local_addr().expect("an address"),
        };
        let ours = resolver.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
                let mut askers = ours.askers.lock().unwrap_or_else(PoisonError::into_inner);
                askers.insert(peer.ip());
                drop(askers);
                // A client that no longer waits needs no answer.
                let _ = socket.send_to(&ours.answer(&buffer[..length]), peer);
            }
        });
        resolver
    }

    /// From now on it knows this; `None`: every answer is SERVFAIL.
    pub(crate) fn set(&self, zone: Option<Zone>) {
        *self.zone.lock().unwrap_or_else(PoisonError::into_inner) = zone;
    }

    /// Addresses of all clients so far.
    pub(crate) fn askers(&self) -> BTreeSet<IpAddr> {
        let askers = self.askers.lock();
        askers.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn answer(&self, question: &[u8]) -> Vec<u8> {
        let zone = self.zone.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, end) = name_at(question, 12);
        let kind = u16::from_be_bytes([question[end], question[end + 1]]);
        let found = zone.as_ref().map(|zone| zone.get(&*name));
        let code = match found {
            None => 2,
            Some(None) => 3,
            Some(Some(_)) => 0,
        };
        let addresses: &[Ipv4Addr] = match found {
            Some(Some(addresses)) if kind == 1 => addresses,
            _ => &[],
        };
        let mut answer = question[..2].to_vec();
        answer.extend([
            0x81,
            0x80 | code,
            0,
            1,
            0,
            addresses.len() as u8,
            0,
            0,
            0,
            0,
        ]);
        answer.extend(&question[12..end + 4]);
        for address in addresses {
            answer.extend([0xc0, 12, 0, 1, 0, 1]);
            answer.extend(TTL.to_be_bytes());
            answer.extend([0, 4]);
            answer.extend(address.octets());
        }
        answer
    }
}

/// The packet that asks for `name` (type `A`, `AAAA` or `PTR`).
pub(crate) fn question(name: &str, kind: &str) -> Vec<u8> {
    let number: u16 = match kind {
        "A" => 1,
        "AAAA" => 28,
        _ => 12,
    };
    let mut question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00".to_vec();
    for label in name.split('.') {
        question.push(label.len() as u8);
        question.extend(label.as_bytes());
    }
    question.push(0);
    question.extend(number.to_be_bytes());
    question.extend([0, 1]);
    question
}

/// Asks `server` for `name`; returns the code's name and the answer.
pub(crate) fn ask(server: SocketAddr, name: &str, kind: &str) -> String {
    let question = question(name, kind);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.send_to(&question, server).expect("sent");
    let mut buffer = [0; 1500];
    let length = socket.recv(&mut buffer).expect("an answer in time");
    read(&buffer[..length])
}

/// A DNS answer as text.
pub(crate) fn read(answer: &[u8]) -> String {
    let mut text = match answer[3] & 15 {
        0 => "NOERROR".to_owned(),
        2 => "SERVFAIL".to_owned(),
        3 => "NXDOMAIN".to_owned(),
        code => format!("code {code}"),
    };
    let (_, end) = name_at(answer, 12);
    let mut at = end + 4;
    for _ in 0..u16::from_be_bytes([answer[6], answer[7]]) {
        let (_, end) = name_at(answer, at);
        let kind = u16::from_be_bytes([answer[end], answer[end + 1]]);
        let length = usize::from(u16::from_be_bytes([answer[end + 8], answer[end + 9]]));
        at = end + 10 + length;
        let data = &answer[end + 10..at];
        let shown = match (kind, <[u8; 4]>::try_from(data), <[u8; 16]>::try_from(data)) {
            (1, Ok(v4), _) => IpAddr::from(Ipv4Addr::from(v4)).to_string(),
            (28, _, Ok(v6)) => IpAddr::from(Ipv6Addr::from(v6)).to_string(),
            _ => name_at(answer, end + 10).0,
        };
        text = text + " " + &shown;
    }
    text
}

/// The name that begins there, and where it ends.
fn name_at(message: &[u8], mut at: usize) -> (String, usize) {
    let mut labels = Vec::new();
    let mut end = None;
    loop {
        let length = usize::from(message[at]);
        if length == 0 {
            return (labels.join("."), end.unwrap_or(at + 1));
        }
        if length >= 0xc0 {
            end.get_or_insert(at + 2);
            at = (length & 0x3f) << 8 | usize::from(message[at + 1]);
            continue;
        }
        let label = &message[at + 1..at + 1 + length];
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += 1 + length;
    }
}
