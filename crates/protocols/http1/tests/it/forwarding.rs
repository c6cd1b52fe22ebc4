//! Heads that go on to the next hop, as tables of heads in, heads out.

use voile_http1::{
    Progress, RequestEdit, RequestIndex, RequestSummary, ResponseEdit, ResponseIndex, Version,
};

fn request(input: &str, edit: &RequestEdit<'_>) -> String {
    let mut index = RequestIndex::default();
    index.reset();
    assert_eq!(
        index.parse(input.as_bytes()),
        Ok(Progress::Complete),
        "{input:?}"
    );
    let mut out = Vec::new();
    index.head(input.as_bytes()).write_forwarded(edit, &mut out);
    String::from_utf8(out).unwrap()
}

fn response(input: &str, client: Version, persist: bool) -> String {
    let mut index = ResponseIndex::default();
    index.reset();
    let asked = RequestSummary {
        upgrade: true,
        ..RequestSummary::default()
    };
    assert_eq!(
        index.parse(input.as_bytes(), asked),
        Ok(Progress::Complete),
        "{input:?}"
    );
    let mut out = Vec::new();
    index
        .head(input.as_bytes())
        .write_forwarded(&ResponseEdit { client, persist }, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn requests_lose_what_belongs_to_the_connection_and_nothing_else() {
    let line = "GET /p HTTP/1.1\r\nHost: x\r\n";
    let table = [
        // (fields in, fields out)
        ("A: b\r\nC: d\r\n", "A: b\r\nC: d\r\n"),
        ("Connection: close\r\nA: b\r\n", "A: b\r\n"),
        (
            "A: b\r\nConnection: foo, close\r\nFoo: 1\r\nfoo: 2\r\nC: d\r\n",
            "A: b\r\nC: d\r\n",
        ),
        (
            "Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nA: b\r\n",
            "A: b\r\n",
        ),
        ("TE: trailers\r\n", "TE: trailers\r\n"),
        ("TE: gzip;q=0.5, Trailers\r\n", "TE: trailers\r\n"),
        ("TE: gzip\r\n", ""),
        ("Upgrade: websocket\r\n", ""),
        (
            "Connection: Upgrade\r\nUpgrade: websocket\r\n",
            "Upgrade: websocket\r\nConnection: Upgrade\r\n",
        ),
        (
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n",
            "",
        ),
        (
            "X-Envoy-Peer-Metadata: forged\r\nx-envoy-peer-metadata-id: forged\r\n",
            "",
        ),
        (
            "X-Forwarded-Client-Cert: By=forged\r\nX_Envoy_Peer_Metadata: forged\r\nA: b\r\n",
            "A: b\r\n",
        ),
        ("A:b\r\nC: \t d \t\r\nE:\r\n", "A: b\r\nC: d\r\nE: \r\n"),
        ("Content-Length:\t0 \r\n", "Content-Length: 0\r\n"),
        (
            "Transfer-Encoding:chunked\r\nTrailer: X-Sum\r\n",
            "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n",
        ),
        (
            "Expect: 100-continue\r\nContent-Length: 1\r\n",
            "Expect: 100-continue\r\nContent-Length: 1\r\n",
        ),
        (
            "X-Forwarded-For: 1.2.3.4\r\n",
            "X-Forwarded-For: 1.2.3.4\r\n",
        ),
    ];
    for (input, expected) in table {
        let got = request(&format!("{line}{input}\r\n"), &RequestEdit::default());
        assert_eq!(got, format!("{line}{expected}\r\n"), "{input:?}");
    }
}

#[test]
fn the_request_line_goes_on_in_origin_form_with_one_true_host() {
    let edit = RequestEdit {
        authority: None,
        leave_out: &[],
        default_authority: Some("fallback:80"),
        path: None,
        add: b"x-added: 1\r\n",
    };
    let table = [
        (
            "GET http://a.example:81/p?q HTTP/1.1\r\nHost: b\r\nA: b\r\n\r\n",
            "GET /p?q HTTP/1.1\r\nHost: a.example:81\r\nA: b\r\nx-added: 1\r\n\r\n",
        ),
        (
            "GET http://a HTTP/1.1\r\nHost: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nx-added: 1\r\n\r\n",
        ),
        (
            "OPTIONS http://a HTTP/1.1\r\nHost: b\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: a\r\nx-added: 1\r\n\r\n",
        ),
        (
            "GET /p HTTP/1.0\r\n\r\n",
            "GET /p HTTP/1.1\r\nHost: fallback:80\r\nx-added: 1\r\n\r\n",
        ),
        (
            "GET /p HTTP/1.0\r\nHost: h\r\nExpect: 100-continue\r\n\r\n",
            "GET /p HTTP/1.1\r\nHost: h\r\nx-added: 1\r\n\r\n",
        ),
        (
            "\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nx-added: 1\r\n\r\n",
        ),
    ];
    for (input, expected) in table {
        assert_eq!(request(input, &edit), expected, "{input:?}");
    }
}

#[test]
fn responses_are_fitted_to_the_client_and_its_connection() {
    use Version::{Http10, Http11};
    let ok = "HTTP/1.1 200 OK\r\n";
    let table = [
        (
            Http11,
            true,
            format!("{ok}Content-Length: 1\r\nConnection: close\r\nKeep-Alive: a\r\n"),
            format!("{ok}Content-Length: 1\r\n"),
        ),
        (
            Http11,
            false,
            format!("{ok}A: b\r\n"),
            format!("{ok}A: b\r\nConnection: close\r\n"),
        ),
        (
            Http11,
            true,
            "HTTP/1.0 200 Fine\r\nContent-Length: 0\r\n".into(),
            "HTTP/1.1 200 Fine\r\nContent-Length: 0\r\n".into(),
        ),
        (
            Http10,
            true,
            format!("{ok}Content-Length: 1\r\n"),
            format!("{ok}Content-Length: 1\r\nConnection: keep-alive\r\n"),
        ),
        (
            Http10,
            false,
            format!("{ok}Transfer-Encoding: chunked\r\n"),
            format!("{ok}Connection: close\r\n"),
        ),
        (
            Http11,
            true,
            format!(
                "{ok}X-Envoy-Peer-Metadata: a\r\nConnection: foo\r\nFoo: 1\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n"
            ),
            format!("{ok}Set-Cookie: a\r\nSet-Cookie: b\r\n"),
        ),
        (
            Http11,
            true,
            "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n".into(),
            "HTTP/1.1 204 No Content\r\n".into(),
        ),
        (
            Http11,
            false,
            "HTTP/1.1 103 Early Hints\r\nLink: a\r\n".into(),
            "HTTP/1.1 103 Early Hints\r\nLink: a\r\n".into(),
        ),
        (
            Http11,
            true,
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
                .into(),
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                .into(),
        ),
    ];
    for (client, persist, input, expected) in table {
        assert_eq!(
            response(&format!("{input}\r\n"), client, persist),
            format!("{expected}\r\n"),
            "{input:?}"
        );
    }
}

#[test]
fn connect_goes_on_as_an_authority_with_one_host_and_no_body() {
    let table = [
        // (in, out)
        (
            "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nProxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\n",
            "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nProxy-Authorization: Basic eA==\r\n",
        ),
        // There is one destination, and it is the target's.
        (
            "CONNECT [::1]:443 HTTP/1.1\r\nHost: other\r\nContent-Length: 0\r\nUpgrade: x\r\nConnection: upgrade\r\nA: b\r\n",
            "CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\nA: b\r\n",
        ),
        (
            "CONNECT a:443 HTTP/1.0\r\nA: b\r\n",
            "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nA: b\r\n",
        ),
    ];
    for (input, expected) in table {
        let edit = RequestEdit {
            // Of requests that have a path.
            path: Some("/elsewhere"),
            default_authority: Some("somebody"),
            ..RequestEdit::default()
        };
        assert_eq!(
            request(&format!("{input}\r\n"), &edit),
            format!("{expected}\r\n")
        );
    }
    let input = b"CONNECT a:443 HTTP/1.1\r\nHost: b\r\n\r\n";
    let mut index = RequestIndex::default();
    index.parse(input).unwrap();
    let head = index.head(input);
    assert_eq!(
        (head.path_and_query(), head.authority()),
        ("", Some("a:443"))
    );
    assert!(head.is_connect() && !head.is_idempotent() && !head.wants_upgrade());
}

#[test]
fn an_answer_that_opens_a_tunnel_declares_no_body() {
    let input = "HTTP/1.0 200 Connection established\r\nConnection: close\r\nA: b\r\n\r\n";
    let asked = RequestSummary {
        connect: true,
        ..RequestSummary::default()
    };
    for client in [Version::Http10, Version::Http11] {
        let mut index = ResponseIndex::default();
        index.parse(input.as_bytes(), asked).unwrap();
        let head = index.head(input.as_bytes());
        assert!(head.opens_tunnel());
        let mut out = Vec::new();
        let persist = false;
        head.write_forwarded(&ResponseEdit { client, persist }, &mut out);
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out, "HTTP/1.1 200 Connection established\r\nA: b\r\n\r\n");
    }
}

#[test]
fn a_view_reads_what_the_request_says() {
    let input = "GET http://a:1/p/q?r=s HTTP/1.1\r\nHost: b\r\nX-Id: 7\r\n\r\n";
    let mut index = RequestIndex::default();
    index.reset();
    index.parse(input.as_bytes()).unwrap();
    let head = index.head(input.as_bytes());
    assert_eq!(
        (head.method(), head.path(), head.path_and_query()),
        ("GET", "/p/q", "/p/q?r=s")
    );
    assert_eq!(
        (head.authority(), head.header("x-id")),
        (Some("a:1"), Some(&b"7"[..]))
    );
    assert!(head.is_idempotent());
}

#[test]
fn words_of_one_hop_are_read_and_go_no_further() {
    let table = [
        ("", None, false),
        ("Keep-Alive: timeout=5, max=100\r\n", Some(5), false),
        ("keep-alive: max=3, TIMEOUT = \"72\"\r\n", Some(72), false),
        ("Keep-Alive: timeout=soon\r\n", None, false),
        ("Keep-Alive: timeout=99999999999\r\n", None, false),
        ("X-Voile-Unprocessed: 1\r\n", None, true),
        (
            "x-voile-unprocessed: \r\nkeep-alive: timeout=0\r\n",
            Some(0),
            true,
        ),
    ];
    for (fields, timeout, unprocessed) in table {
        let input = format!("HTTP/1.1 503 No\r\n{fields}Content-Length: 0\r\n\r\n");
        let mut index = ResponseIndex::default();
        index.reset();
        let parsed = index.parse(input.as_bytes(), RequestSummary::default());
        assert_eq!(parsed, Ok(Progress::Complete));
        let head = index.head(input.as_bytes());
        let got = (head.keep_alive_timeout(), head.is_unprocessed());
        assert_eq!(got, (timeout, unprocessed), "{fields:?}");
        let forwarded = response(&input, Version::Http11, true);
        assert_eq!(forwarded, "HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n");
    }
}

#[test]
fn a_request_that_is_renamed_has_one_host_but_a_tunnel_keeps_its_target() {
    let edit = RequestEdit {
        authority: Some("c:1"),
        ..RequestEdit::default()
    };
    let table = [
        (
            "GET /p HTTP/1.1\r\nA: b\r\nHost: h\r\n\r\n",
            "GET /p HTTP/1.1\r\nHost: c:1\r\nA: b\r\n\r\n",
        ),
        (
            "GET http://a/p HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /p HTTP/1.1\r\nHost: c:1\r\n\r\n",
        ),
        (
            "GET /p HTTP/1.0\r\n\r\n",
            "GET /p HTTP/1.1\r\nHost: c:1\r\n\r\n",
        ),
        (
            "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
            "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        ),
    ];
    for (input, expected) in table {
        assert_eq!(request(input, &edit), expected, "{input:?}");
    }
}

#[test]
fn what_is_left_out_goes_with_its_look_alikes() {
    let edit = RequestEdit {
        default_authority: Some("a"),
        add: b"x-user: anna\r\n",
        leave_out: &["x-user".into(), "authorization".into()],
        ..RequestEdit::default()
    };
    let input = "GET / HTTP/1.1\r\nHost: b\r\nX-User: root\r\nx_user: root\r\nx.user: root\r\nx~user: root\r\nX-Users: stays\r\n\
                 Authorization: Bearer x\r\nA: b\r\n\r\n";
    assert_eq!(
        request(input, &edit),
        "GET / HTTP/1.1\r\nHost: b\r\nX-Users: stays\r\nA: b\r\nx-user: anna\r\n\r\n"
    );
}
