//! DNS: an answer belongs to its question and fits its transport. From any answer of a server, the reader takes
//! addresses of the requested family, or refuses.

use std::net::IpAddr;

use domain::base::Message;
use voile_dns::message::{self, QueryKind, ReceivedMessage, receive};
use voile_dns::{Query, addresses_in};

/// Limit of every datagram, in bytes (DNS flag day 2020).
const MAX_DATAGRAM: usize = 1232;
/// Largest answer for a client that offers nothing, in bytes (RFC 1035).
const PLAIN_DATAGRAM: usize = 512;
/// Alias of the name in some answers.
const ALIAS: &str = "web.shop.svc.example.org";
/// Longest name in text, in bytes.
const MAX_NAME: usize = 253;

/// A packet that came from a client.
pub(crate) fn question(packet: &[u8]) {
    let _ = message::shown(packet);
    for made in [
        message::server_failure(packet),
        message::no_such_name(packet),
    ] {
        let Some(made) = made else { continue };
        assert!(made.len() <= packet.len() + PLAIN_DATAGRAM);
        well_formed(&made, packet);
    }
    match receive(packet) {
        ReceivedMessage::Ignore(_) => {
            let asks = Message::from_slice(packet).is_ok_and(|message| !message.header().qr());
            assert!(!asks, "a question is never left without a word");
        }
        ReceivedMessage::Foreign => {}
        ReceivedMessage::Refuse(answer) => {
            assert!(answer.len() <= packet.len(), "nobody is made louder");
            well_formed(&answer, packet);
        }
        ReceivedMessage::Query(query) => answered(&query, packet),
    }
}

/// An answer: readable to its end, to this question.
fn well_formed(answer: &[u8], packet: &[u8]) {
    let answer = Message::from_slice(answer).expect("a message");
    assert!(answer.header().qr());
    assert_eq!(
        answer.header().id().to_be_bytes(),
        packet[..2],
        "the id is the client's"
    );
    let records = answer.iter().all(|record| record.is_ok());
    assert!(records, "every record can be read");
    let counts = answer.header_counts();
    let told = usize::from(counts.ancount()) + usize::from(counts.nscount());
    let told = told + usize::from(counts.arcount());
    assert_eq!(answer.iter().count(), told, "as many as are announced");
}

fn answered(query: &Query<'_>, packet: &[u8]) {
    assert!(!query.name.is_empty() && query.name.len() <= MAX_NAME);
    assert!(!query.name.starts_with('.') && !query.name.ends_with('.'));
    assert_eq!(query.name, query.name.to_ascii_lowercase());
    let _ = message::reverse_address(&query.name);
    let asked = Message::from_slice(packet).expect("it was read");
    let datagram = match asked.opt() {
        Some(_) => MAX_DATAGRAM,
        None => PLAIN_DATAGRAM,
    };
    let check = |answer: &[u8], limit: usize| {
        assert!(answer.len() <= limit, "{} of {limit}", answer.len());
        well_formed(answer, packet);
        let answer = Message::from_slice(answer).expect("a message");
        assert!(answer.is_answer(asked), "to the question that was asked");
    };
    check(&query.no_such_name(), datagram);
    check(&query.nothing_of_that_kind(), datagram);
    check(&query.pointer("web.shop.svc.cluster.local", 30), datagram);
    let many: Vec<IpAddr> = (0..300u16).map(numbered).collect();
    for count in [0, 1, 2, 300] {
        // A name that is its own alias leads nowhere, and our reader says so.
        let alias = Some(ALIAS).filter(|alias| query.name != *alias);
        for alias in [None, alias] {
            let given = &many[..count];
            let whole = query.addresses(given, alias, 30, false);
            check(&whole, usize::from(u16::MAX));
            assert_eq!(read_back(&whole, query.kind), of_kind(given, query.kind));
            let cut = query.addresses(given, alias, 30, true);
            check(&cut, datagram);
            let found = read_back(&cut, query.kind);
            let wanted = of_kind(given, query.kind);
            assert!(wanted.starts_with(&found));
            let is_cut = Message::from_slice(&cut).is_ok_and(|answer| answer.header().tc());
            assert_eq!(
                is_cut,
                found.len() < wanted.len(),
                "what is left out is told"
            );
        }
    }
}

/// One of 300 addresses, every third of them IPv6.
fn numbered(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    match number % 3 {
        2 => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number]),
        _ => IpAddr::from([10, 0, high, low]),
    }
}

fn of_kind(addresses: &[IpAddr], kind: QueryKind) -> Vec<IpAddr> {
    let wanted = |address: &&IpAddr| match kind {
        QueryKind::A => address.is_ipv4(),
        QueryKind::Aaaa => address.is_ipv6(),
        QueryKind::Other(_) => false,
    };
    addresses.iter().filter(wanted).copied().collect()
}

/// Reads an answer back with the crate's own reader.
fn read_back(answer: &[u8], kind: QueryKind) -> Vec<IpAddr> {
    match kind {
        QueryKind::Other(_) => Vec::new(),
        kind => addresses_in(answer, kind).expect("our own answer").0,
    }
}

/// A packet that a server answered with.
pub(crate) fn answer(packet: &[u8]) {
    for kind in [QueryKind::A, QueryKind::Aaaa] {
        let Ok((addresses, ttl)) = addresses_in(packet, kind) else {
            continue;
        };
        assert!(ttl.as_secs() <= 300, "{ttl:?} is longer than any is used");
        assert_eq!(of_kind(&addresses, kind), addresses);
        // An owner of one byte, type, class, TTL, length, and the address itself.
        assert!(addresses.len() * 15 <= packet.len());
    }
}
