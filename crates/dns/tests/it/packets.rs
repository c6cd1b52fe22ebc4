//! Packets that no decent client sends, and some that decent ones do: what each is judged to be.

use std::net::IpAddr;

use voile_dns::message::{self, Received, receive};

/// A header with these flags and counts, and what follows.
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
        Received::Query(query) => format!("{} {:?}", query.name, query.kind),
        Received::Foreign => "foreign".to_owned(),
        Received::Refuse(answer) => {
            assert_eq!(answer[..2], packet[..2], "the id is the client's");
            assert!(answer[2] & 0x80 != 0, "it is an answer");
            assert!(
                answer.len() <= packet.len(),
                "nobody is made louder by asking"
            );
            format!("refused, code {}", answer[3] & 15)
        }
        Received::Ignore(why) => format!("ignored: {why}"),
    }
}

#[test]
fn every_packet_is_a_question_or_refused_or_ignored() {
    let asks = 0x0100;
    let one = [1, 0, 0, 0];
    let name = question(&["Web", "shop"], 1, 1);
    let long = "a".repeat(63);
    let too_long = question(&[&long, &long, &long, &long], 1, 1);
    let label_of_64: Vec<u8> = [vec![64], vec![b'a'; 64], vec![0, 0, 1, 0, 1]].concat();
    let twice = [name.clone(), name.clone()].concat();
    let cut_record = [name.clone(), vec![0, 0, 41, 4, 208]].concat();
    let cases: [(&str, Vec<u8>, &str); 20] = [
        ("nothing", vec![], "ignored: shorter than a header"),
        (
            "a cut header",
            vec![0; 11],
            "ignored: shorter than a header",
        ),
        ("a question", packet(asks, one, &name), "web.shop A"),
        (
            "AAAA",
            packet(asks, one, &question(&["web"], 28, 1)),
            "web Aaaa",
        ),
        (
            "an answer",
            packet(0x8180, one, &name),
            "ignored: an answer to nothing",
        ),
        ("an update", packet(0x2800, one, &name), "refused, code 4"),
        (
            "a notification",
            packet(0x2000, one, &name),
            "refused, code 4",
        ),
        ("no question", packet(asks, [0; 4], &[]), "refused, code 1"),
        (
            "two questions",
            packet(asks, [2, 0, 0, 0], &twice),
            "refused, code 1",
        ),
        (
            "65535 questions",
            packet(asks, [65535; 4], &name),
            "refused, code 1",
        ),
        (
            "no room for the question",
            packet(asks, one, &[]),
            "refused, code 1",
        ),
        (
            "a name that does not end",
            packet(asks, one, b"\x03web"),
            "refused, code 1",
        ),
        (
            "a name that points at itself",
            packet(asks, one, &[0xc0, 12, 0, 1, 0, 1]),
            "refused, code 1",
        ),
        (
            "a name that points past the end",
            packet(asks, one, &[0xff, 0xff, 0, 1, 0, 1]),
            "refused, code 1",
        ),
        (
            "a label of 64 bytes",
            packet(asks, one, &label_of_64),
            "refused, code 1",
        ),
        (
            "a name of 257 bytes",
            packet(asks, one, &too_long),
            "refused, code 1",
        ),
        (
            "a transfer",
            packet(asks, one, &question(&["shop"], 252, 1)),
            "refused, code 5",
        ),
        (
            "records that are cut",
            packet(asks, [1, 0, 0, 1], &cut_record),
            "refused, code 1",
        ),
        (
            "the version",
            packet(asks, one, &question(&["version", "bind"], 16, 3)),
            "foreign",
        ),
        (
            "a name with a space",
            packet(asks, one, &question(&["a b"], 1, 1)),
            "foreign",
        ),
    ];
    for (what, packet, expected) in cases {
        assert_eq!(judged(&packet), expected, "{what}");
    }
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
            if let Received::Query(query) = receive(&changed) {
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
    let Received::Query(query) = receive(&asked) else {
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
