//! Heads of HBONE: a CONNECT leads to the workload's own address or nowhere, a name is read in one way, and a written
//! head reads as it was meant.

use std::net::SocketAddr;

use voile_hbone::{CONFIG, TunnelCaller, connect, named, target};
use voile_http2::{Connection, Fields, Link, PREFACE, Pool};

/// Empty SETTINGS, the first frame of a peer.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Addresses at which a workload is called, which the first byte chooses from.
const LOCAL: [&str; 4] = [
    "10.244.0.3:15008",
    "[fd00::3]:15008",
    "[::ffff:10.244.0.3]:15008",
    "127.0.0.1:15008",
];
const OWN_PORTS: [u16; 3] = [15001, 15006, 15008];

/// The longest reason for which there is no tunnel, in bytes: it stands in a log.
const MAX_REASON: usize = 1400;

/// The head that a connection of HBONE hears of a block, if it is one.
fn head(block: &[u8]) -> Option<Fields> {
    let link = Link::new(Connection::server(&CONFIG, Pool::new()));
    link.borrow().receive(PREFACE);
    link.borrow().receive(&SETTINGS);
    let length = u16::try_from(block.len()).ok()?.to_be_bytes();
    let frame = [&[0, length[0], length[1], 1, 4, 0, 0, 0, 1], block].concat();
    link.borrow().receive(&frame);
    link.accept().map(|(head, ..)| head)
}

fn assert_leads_home(head: &Fields, local: SocketAddr) {
    match target(head, local, &OWN_PORTS) {
        Ok(to) => {
            assert_eq!(head.method(), "CONNECT");
            assert!(head.protocol().is_none() && !head.is_cut());
            assert_eq!(to.ip(), local.ip().to_canonical(), "to another workload");
            assert!(to.port() != 0 && !OWN_PORTS.contains(&to.port()), "{to}");
        }
        Err(reason) => {
            let reason = reason.to_string();
            assert!(reason.len() <= MAX_REASON, "{} bytes", reason.len());
            assert!(!reason.contains(char::is_control), "{reason:?}");
        }
    }
}

/// Checks that the name has one reading. A receiver looks a service up by it; another reading would lead to another
/// service.
fn assert_one_reading(head: &Fields) {
    let Some((host, port)) = named(head) else {
        return;
    };
    assert!(!host.bytes().any(|byte| byte.is_ascii_uppercase()));
    let authority = head.authority().expect("it was read");
    let (said, number) = authority.rsplit_once(':').expect("a port was read");
    assert!(said.eq_ignore_ascii_case(&host), "{said:?}, {host:?}");
    assert!(number.bytes().all(|byte| byte.is_ascii_digit()), "{number}");
    assert_eq!(number.trim_start_matches('0').parse().unwrap_or(0), port);
}

/// Checks that no other party can choose the meaning of the caller's attributes.
fn assert_written_as_meant(local: SocketAddr, text: &str) {
    let to = SocketAddr::new(local.ip().to_canonical(), 8080);
    let caller = TunnelCaller {
        client: Some(local),
        baggage: &[("service.name", text), ("k8s.namespace.name", "shop")],
        host: None,
    };
    let mut head = Fields::new();
    connect(&mut head, to, &caller, || 10);
    assert_eq!(target(&head, local, &OWN_PORTS), Ok(to));
    let baggage = head.get("baggage").expect("it is said");
    let baggage = std::str::from_utf8(baggage).expect("ASCII");
    let namespaces = baggage
        .split(',')
        .filter_map(|pair| pair.trim().strip_prefix("k8s.namespace.name="));
    assert_eq!(namespaces.collect::<Vec<_>>(), ["shop"]);
}

/// The first byte says at which address the workload is called; the rest is a block of HPACK.
pub(crate) fn head_of_connect(data: &[u8]) {
    let Some((how, block)) = data.split_first() else {
        return;
    };
    let local = LOCAL[usize::from(*how) % LOCAL.len()];
    let local: SocketAddr = local.parse().expect("an address");
    assert_written_as_meant(local, &String::from_utf8_lossy(block));
    if let Some(head) = head(block) {
        assert_leads_home(&head, local);
        assert_one_reading(&head);
    }
}
