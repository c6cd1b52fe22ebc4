//! Packets that no decent client sends, and some that decent ones do, with the verdict on each.

use std::net::IpAddr;

use voile_dns::message::{self, ReceivedMessage, receive};

/// A header with these flags and counts, and the rest of a packet.
fn packet(flags: u16, counts: [u16; 4], rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0xab, 0xcd];
    packet.extend(flags.to_be_bytes());
    packet.extend(counts.iter().flat_map(|count| count.to_be_bytes()));
    packet.extend(rest);
    packet
}

/// A question: each label's length and bytes, then type and class.
fn question(labels: &[&str], kind: u16, class: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in labels {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend(class.to_be_bytes());
    bytes
}

fn judged(packet: &[u8]) -> String {
    match receive(packet) {
        ReceivedMessage::Query(query) => format!("{} {:?}", query.name, query.kind),
        ReceivedMessage::Foreign => "foreign".to_owned(),
        ReceivedMessage::Refuse(answer) => {
            assert_eq!(answer[..2], packet[..2], "the id is the client's");
            assert!(answer[2] & 0x80 != 0, "it is an answer");
            assert!(
                answer.len() <= packet.len(),
                "nobody is made louder by asking"
            );
            format!("refused, code {}", answer[3] & 15)
        }
        ReceivedMessage::Ignore(why) => format!("ignored: {why}"),
    }
}

/// A question, with the flags of one that wants recursion.
const ASKS: u16 = 0x0100;
const ONE: [u16; 4] = [1, 0, 0, 0];

fn check(cases: Vec<(&str, Vec<u8>, &str)>) {
    for (what, packet, expected) in cases {
        assert_eq!(judged(&packet), expected, "{what}");
    }
}

#[test]
fn what_is_no_question_is_refused_or_ignored() {
    let name = question(&["Web", "shop"], 1, 1);
    let twice = [name.clone(), name.clone()].concat();
    let cut_record = [name.clone(), vec![0, 0, 41, 4, 208]].concat();
    let transfer = packet(ASKS, ONE, &question(&["shop"], 252, 1));
    let short = "ignored: shorter than a header";
    check(vec![
        ("nothing", vec![], short),
        ("a cut header", vec![0; 11], short),
        ("a question", packet(ASKS, ONE, &name), "web.shop A"),
        (
            "an answer",
            packet(0x8180, ONE, &name),
            "ignored: a response without a query",
        ),
        ("an update", packet(0x2800, ONE, &name), "refused, code 4"),
        (
            "a notification",
            packet(0x2000, ONE, &name),
            "refused, code 4",
        ),
        ("none", packet(ASKS, [0; 4], &[]), "refused, code 1"),
        ("two", packet(ASKS, [2, 0, 0, 0], &twice), "refused, code 1"),
        ("65535", packet(ASKS, [65535; 4], &name), "refused, code 1"),
        ("a transfer", transfer, "refused, code 5"),
        (
            "a cut record",
            packet(ASKS, [1, 0, 0, 1], &cut_record),
            "refused, code 1",
        ),
    ]);
}

#[test]
fn names_are_read_within_their_bounds() {
    let long = "a".repeat(63);
    let too_long = question(&[&long, &long, &long, &long], 1, 1);
    let label_of_64: Vec<u8> = [vec![64], vec![b'a'; 64], vec![0, 0, 1, 0, 1]].concat();
    let sixth = question(&["web"], 28, 1);
    let version = question(&["version", "bind"], 16, 3);
    let asks = |rest: &[u8]| packet(ASKS, ONE, rest);
    check(vec![
        ("AAAA", asks(&sixth), "web Aaaa"),
        ("no room for it", asks(&[]), "refused, code 1"),
        ("no end", asks(b"\x03web"), "refused, code 1"),
        (
            "it points at itself",
            asks(&[0xc0, 12, 0, 1, 0, 1]),
            "refused, code 1",
        ),
        (
            "it points past the end",
            asks(&[0xff, 0xff, 0, 1, 0, 1]),
            "refused, code 1",
        ),
        ("a label of 64 bytes", asks(&label_of_64), "refused, code 1"),
        ("257 bytes", asks(&too_long), "refused, code 1"),
        ("of another class", asks(&version), "foreign"),
        ("a space", asks(&question(&["a b"], 1, 1)), "foreign"),
    ]);
}

#[test]
fn no_byte_flipped_or_cut_of_a_good_packet_is_more_than_another_question() {
    let opt = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
    let name = question(&["web", "shop"], 1, 1);
    let good = packet(0x0100, [1, 0, 0, 1], &[name, opt.to_vec()].concat());
    let local: [IpAddr; 1] = [[10, 0, 0, 1].into()];
    for at in 0..good.len() {
        let mut changed = good.clone();
        for value in 0..=255 {
            changed[at] = value;
            judged(&changed);
            if let ReceivedMessage::Query(query) = receive(&changed) {
                assert!(query.addresses(&local, None, 30, true).len() <= 1232);
                query.pointer("web.shop", 30);
            }
            message::server_failure(&changed);
            message::no_such_name(&changed);
        }
        judged(&good[..at]);
    }
}

#[test]
fn answers_that_do_not_fit_a_datagram_are_left_for_tcp() {
    let asked = packet(0x0100, [1, 0, 0, 0], &question(&["web"], 1, 1));
    let ReceivedMessage::Query(query) = receive(&asked) else {
        panic!("it is a question");
    };
    let many: Vec<IpAddr> = (0..255).map(|last| [10, 0, 0, last].into()).collect();
    let is_cut = |answer: &[u8]| answer[2] & 2 != 0;
    let udp = query.addresses(&many, None, 30, true);
    assert!(udp.len() <= 512 && is_cut(&udp));
    let tcp = query.addresses(&many, None, 30, false);
    assert!(tcp.len() > 4000 && !is_cut(&tcp));
    let few = query.addresses(&many[..3], None, 30, true);
    assert!(!is_cut(&few));
}

#[test]
fn reverse_names_are_addresses_or_nothing() {
    let sixth = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.4.4.2.0.0.0.d.f.ip6.arpa";
    for (name, expected) in [
        ("1.2.244.10.in-addr.arpa", Some("10.244.2.1")),
        (sixth, Some("fd00:244::1")),
        ("2.244.10.in-addr.arpa", None),
        ("9.1.2.244.10.in-addr.arpa", None),
        ("256.2.244.10.in-addr.arpa", None),
        ("in-addr.arpa", None),
        (".in-addr.arpa", None),
        ("1.0.ip6.arpa", None),
        (&format!("0.{sixth}"), None),
        ("ip6.arpa", None),
        ("web.shop", None),
    ] {
        let expected = expected.map(|text| text.parse::<IpAddr>().expect("an address"));
        assert_eq!(message::reverse_address(name), expected, "{name}");
    }
}
