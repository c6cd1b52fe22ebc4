//! Telling protocols apart, at every place where the network may have cut the bytes.

use voile_transport::{
    ClientHello, DetectedProtocol as Detected, begins_connect, detect, may_become_request,
};

fn vector8(bytes: &[u8]) -> Vec<u8> {
    [
        &[u8::try_from(bytes.len()).expect("invariant: short")][..],
        bytes,
    ]
    .concat()
}

fn vector16(bytes: &[u8]) -> Vec<u8> {
    [
        &u16::try_from(bytes.len())
            .expect("invariant: short")
            .to_be_bytes()[..],
        bytes,
    ]
    .concat()
}

fn extension(kind: u16, value: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector16(value)].concat()
}

fn sni(name: &[u8]) -> Vec<u8> {
    extension(0, &vector16(&[&[0u8][..], &vector16(name)].concat()))
}

fn alpn(names: &[&[u8]]) -> Vec<u8> {
    extension(
        16,
        &vector16(
            &names
                .iter()
                .flat_map(|name| vector8(name))
                .collect::<Vec<_>>(),
        ),
    )
}

fn message(extensions: &[u8]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7u8; 32]);
    body.extend(vector8(&[9; 32]));
    body.extend(vector16(&[0x13, 0x01, 0x13, 0x02]));
    body.extend(vector8(&[0]));
    body.extend(vector16(extensions));
    let length = u32::try_from(body.len())
        .expect("invariant: short")
        .to_be_bytes();
    [&[1, length[1], length[2], length[3]][..], &body].concat()
}

fn record(payload: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &vector16(payload)].concat()
}

fn hello(server_name: Option<&str>, names: &[&[u8]]) -> Detected {
    Detected::Tls(ClientHello {
        server_name: server_name.map(str::to_owned),
        alpn: names.iter().map(|name| name.to_vec()).collect(),
    })
}

fn accepted() -> Vec<(&'static str, Vec<u8>, Detected)> {
    let mesh = message(
        &[
            sni(b"outbound_.80_._.a.b.svc"),
            alpn(&[b"istio-http/1.1", b"istio"]),
        ]
        .concat(),
    );
    let (front, back) = mesh.split_at(60);
    let unknown = message(
        &[
            extension(51, &[1; 1216]),
            alpn(&[b"h2"]),
            extension(0xfafa, &[]),
        ]
        .concat(),
    );
    let mut all = vec![
        (
            "mesh",
            record(&mesh),
            hello(
                Some("outbound_.80_._.a.b.svc"),
                &[b"istio-http/1.1", b"istio"],
            ),
        ),
        (
            "in two records",
            [record(front), record(back)].concat(),
            hello(
                Some("outbound_.80_._.a.b.svc"),
                &[b"istio-http/1.1", b"istio"],
            ),
        ),
        ("no extensions", record(&message(&[])), hello(None, &[])),
        (
            "unknown and grease",
            record(&unknown),
            hello(None, &[b"h2"]),
        ),
    ];
    all.extend(requests());
    all
}

/// Requests, as servers read them: careless ones, too, whose reading the HTTP engine refuses where it is none.
fn requests() -> Vec<(&'static str, Vec<u8>, Detected)> {
    vec![
        ("get", b"GET / HTTP/1.1\r\n".to_vec(), Detected::Http1),
        ("old http", b"GET /x HTTP/1.0\r\n".to_vec(), Detected::Http1),
        ("tunnel", b"CONNECT a:1 HTTP".to_vec(), Detected::Opaque),
        ("no", b"CONNECTED / HTTP/1.1".to_vec(), Detected::Http1),
        (
            "own method",
            b"BREW /pot HTTP/1.1\r\n".to_vec(),
            Detected::Http1,
        ),
        (
            "absolute form",
            b"GET http://a/ HTTP/1.1\r\n".to_vec(),
            Detected::Http1,
        ),
        (
            "options",
            b"OPTIONS * HTTP/1.1\r\n".to_vec(),
            Detected::Http1,
        ),
        (
            "empty lines first",
            b"\r\n\nGET / HTTP/1.1\r\n".to_vec(),
            Detected::Http1,
        ),
        (
            "space first",
            b" GET / HTTP/1.1\r\n".to_vec(),
            Detected::Http1,
        ),
        (
            "two spaces",
            b"FETCH  /  HTTP/1.1\r\n".to_vec(),
            Detected::Http1,
        ),
        ("tabs", b"FETCH\t/\tHTTP/1.1\r\n".to_vec(), Detected::Http1),
        (
            "another version",
            b"FETCH / http/9".to_vec(),
            Detected::Http1,
        ),
        (
            "no ASCII",
            b"FETCH /\xc3\xa9 HTTP/1.1".to_vec(),
            Detected::Http1,
        ),
        (
            "long method",
            [b"A".repeat(300), b" / HTTP/1.1".to_vec()].concat(),
            Detected::Http1,
        ),
        (
            "h2",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            Detected::Http2,
        ),
    ]
}

#[test]
fn every_prefix_is_undecided_or_right() {
    for (name, bytes, expected) in accepted() {
        assert_eq!(detect(&bytes).as_ref(), Some(&expected), "{name}");
        for split in 0..bytes.len() {
            let early = detect(&bytes[..split]);
            assert!(
                early.is_none() || early.as_ref() == Some(&expected),
                "{name} at {split}: {early:?}"
            );
        }
    }
}

#[test]
fn bytes_after_the_decision_change_nothing() {
    for (name, mut bytes, expected) in accepted() {
        bytes.extend([0, 22, 3, 255]);
        assert_eq!(detect(&bytes), Some(expected), "{name}");
    }
}

#[test]
fn what_is_neither_is_opaque_at_once() {
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("ssh", b"SSH-2.0-OpenSSH\r\n".to_vec()),
        ("redis", b"*1\r\n$4\r\nPING\r\n".to_vec()),
        ("mysql", vec![0x4a, 0, 0, 0, 10]),
        ("smtp", b"HELO example.org\r\n".to_vec()),
        (
            "another protocol's request",
            b"OPTIONS rtsp://a RTSP/1.0\r\n".to_vec(),
        ),
        (
            "no blank before the version",
            b"FETCH /\x01HTTP/1.1\r\n".to_vec(),
        ),
        ("line without version", b"FETCH /\r\n".to_vec()),
        ("not a ClientHello", record(&[2, 0, 0, 1, 0])),
        ("tls alert", vec![21, 3, 3, 0, 2]),
        ("empty record", record(&[])),
        ("record too long", vec![22, 3, 1, 0x40, 0x01]),
        ("ssl 2", vec![0x80, 0x2e, 1, 3, 1]),
        ("wrong major", vec![22, 2]),
        ("hello too long", record(&[1, 0xff, 0, 0])),
    ];
    for (name, bytes) in cases {
        assert_eq!(detect(&bytes), Some(Detected::Opaque), "{name}");
    }
}

#[test]
fn whoever_says_half_of_a_known_request_is_known_to_say_it() {
    for (bytes, may) in [
        (&b"G"[..], true),
        (b"GET", true),
        (b"GET ", true),
        (b"\r\nGET http://a", true),
        (b"CONN", true),
        (b"PRI * HTTP/2.0\r\n", true),
        (b"", false),
        (b"\r\n", false),
        (b"get", false),
        (b"GETS", false),
        (b"GE ", false),
        (b"hello", false),
        (b"GET /", false),
        (b"PING\r\n", false),
    ] {
        assert_eq!(may_become_request(bytes), may, "{}", bytes.escape_ascii());
    }
    for (bytes, does) in [
        (&b"CONNECT a:1 HTTP/1.1\r\n"[..], true),
        (b"\r\n CONNECT\ta:1", true),
        (b"CONNECT", false),
        (b"CONNECTED a", false),
    ] {
        assert_eq!(begins_connect(bytes), does, "{}", bytes.escape_ascii());
    }
}

#[test]
fn malformed_hellos_are_not_tls() {
    let good = message(&sni(b"a.b"));
    let mut session = good.clone();
    session[38] = 33;
    let name = |list: &[u8]| record(&message(&extension(0, list)));
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("session id of 33", record(&session)),
        (
            "two server names",
            record(&message(&[sni(b"a"), sni(b"b")].concat())),
        ),
        (
            "two alpn",
            record(&message(&[alpn(&[b"h2"]), alpn(&[b"istio"])].concat())),
        ),
        ("empty name", record(&message(&sni(b"")))),
        ("name with zero", record(&message(&sni(b"a\0b")))),
        ("name with slash", record(&message(&sni(b"a/b")))),
        ("name of 254", record(&message(&sni(&[b'a'; 254])))),
        (
            "two hosts in a list",
            name(&vector16(
                &[&[0, 0, 1, b'a'][..], &[0, 0, 1, b'b']].concat(),
            )),
        ),
        ("empty list", name(&vector16(&[]))),
        ("list longer than extension", name(&[0, 9, 0, 0, 1, b'a'])),
        (
            "bytes after list",
            name(&[&vector16(&[0, 0, 1, b'a'])[..], &[0]].concat()),
        ),
        ("empty protocol", record(&message(&alpn(&[b""])))),
        ("no protocols", record(&message(&alpn(&[])))),
        ("bytes after extensions", {
            let mut long = message(&[]);
            long.push(0);
            long[3] += 1;
            record(&long)
        }),
    ];
    for (name, bytes) in cases {
        assert_eq!(detect(&bytes), Some(Detected::Opaque), "{name}");
    }
}

#[test]
fn no_byte_of_a_hello_can_be_changed_into_a_panic() {
    let bytes = record(&message(&[sni(b"a.b"), alpn(&[b"istio"])].concat()));
    for at in 0..bytes.len() {
        for value in [0, 1, 127, 128, 255] {
            let mut bent = bytes.clone();
            bent[at] = value;
            for split in at..=bent.len() {
                let _ = detect(&bent[..split]);
            }
        }
    }
}

#[test]
fn an_endless_line_or_hello_is_given_up() {
    let line = [
        b"FETCH /".to_vec(),
        vec![b'a'; voile_transport::MAX_DETECTION_BYTES],
    ]
    .concat();
    assert_eq!(detect(&line), Some(Detected::Opaque));
    let crumbs: Vec<u8> = std::iter::repeat_n(record(&[1]), 4000).flatten().collect();
    assert_eq!(detect(&crumbs), Some(Detected::Opaque));
}
