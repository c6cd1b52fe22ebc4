//! CUSTOM policies whose provider is asked over HTTP: a request like the one that it is about, and the lists of headers.

use std::io::{BufReader, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use super::{all_requests, ask, custom, free, in_force, path, provider, set, status, text};
use crate::mesh::{Mesh, TCP_PORT, application, exchange, get, wait_until};

pub(crate) const KIND: &str = "envoyExtAuthzHttp";

/// Requests that the authorizer got: heads and bodies.
pub(crate) type Heard = Arc<Mutex<Vec<(String, String)>>>;

/// Answers by the path behind `/check`.
pub(crate) fn authorizer(listener: std::net::TcpListener) -> Heard {
    let heard = Heard::default();
    let kept = Arc::clone(&heard);
    application::serve(listener, move |stream| {
        let mut reader = BufReader::new(stream);
        while let Some((head, body)) = application::read_request(&mut reader) {
            let wish = head.split([' ', '?']).nth(1).unwrap_or_default();
            let wish = wish.trim_start_matches("/check/").to_owned();
            let answer = match wish.as_str() {
                "deny" => {
                    "HTTP/1.1 401 No\r\nwww-authenticate: Basic\r\nx-why: rain\r\nx-other: 1\r\nconnection: close\r\nContent-Length: 4\r\n\r\nrain"
                }
                "error" => "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
                "created" => "HTTP/1.1 201 No\r\nContent-Length: 0\r\n\r\n",
                "nonsense" => "SMTP ready\r\n\r\n",
                "half" => "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
                "tunnel" => "HTTP/1.1 101 Go\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
                _ => {
                    "HTTP/1.1 200 OK\r\nx-user: alice\r\nx-user-mail: a@b\r\nx-note: n\r\nx-envoy-auth-headers-to-remove: x-secret\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
                }
            };
            kept.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((head, body));
            let over = ["half", "nonsense"].contains(&wish.as_str());
            if reader.get_mut().write_all(answer.as_bytes()).is_err() || over {
                return;
            }
        }
    });
    heard
}

pub(crate) fn about(heard: &Heard, path: &str) -> (String, String) {
    let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found = heard.iter().rev().filter(|(head, _)| head.contains(path));
    let (head, body) = found.next().expect("asked about it");
    (head.to_ascii_lowercase(), body.clone())
}

pub(crate) const LISTS: &str = ", pathPrefix: /check, statusOnError: \"503\", timeout: 5s, includeRequestHeadersInCheck: [x-told, \"x-pre-*\", \"*-suf\"], \
    includeAdditionalHeadersInCheck: {x-from: mesh, x-pre-over: ours}, headersToUpstreamOnAllow: [\"x-user*\"], \
    headersToDownstreamOnDeny: [x-why], headersToDownstreamOnAllow: [\"*note\"]";

fn asking(fields: &str) -> (Mesh, Heard) {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let heard = authorizer(listener);
    set(&mesh, &(provider(KIND, at, fields) + &all_requests()));
    in_force("the policy is in force", || status(&mesh, "/deny") == 401);
    (mesh, heard)
}

#[test]
fn it_is_told_by_lists_and_its_words_travel_by_lists() {
    let (mesh, heard) = asking(LISTS);
    let answer = ask(
        &mesh,
        "GET /a?b=c HTTP/1.1\r\nx-told: 1\r\nx-untold: 2\r\nX-Pre-A: 3\r\nx-a-suf: 4\r\nAuthorization: me\r\nx-user: forged\r\nx-secret: s\r\nx-from: me\r\nx-pre-over: me",
    );
    assert_eq!(answer.status, 200);
    let (head, body) = about(&heard, "/check/a?b=c");
    assert!(head.starts_with("get /check/a?b=c http/1.1\r\n"), "{head}");
    for line in [
        "host: server",
        "x-told: 1",
        "x-pre-a: 3",
        "x-a-suf: 4",
        "authorization: me",
        "x-from: mesh",
        "x-pre-over: ours",
        "content-length: 0",
    ] {
        assert!(head.contains(&format!("{line}\r\n")), "{line}: {head}");
    }
    for word in ["x-untold", "x-from: me\r\n", "x-pre-over: me\r\n", "x-user"] {
        assert!(!head.contains(word), "{word}: {head}");
    }
    assert_eq!(body, "");
    let seen = text(&answer).to_ascii_lowercase();
    assert!(
        seen.contains("x-user: alice\r\n") && seen.contains("x-user-mail: a@b\r\n"),
        "{seen}"
    );
    assert!(
        !seen.contains("forged") && !seen.contains("x-secret") && !seen.contains("x-note"),
        "{seen}"
    );
    assert!(
        answer.head.to_ascii_lowercase().contains("x-note: n\r\n"),
        "{}",
        answer.head
    );

    let denied = path(&mesh, "/deny");
    let head = denied.head.to_ascii_lowercase();
    assert_eq!((denied.status, text(&denied)), (401, "rain".to_owned()));
    assert!(
        head.contains("www-authenticate: basic\r\n") && head.contains("x-why: rain\r\n"),
        "{head}"
    );
    assert!(!head.contains("x-other"), "{head}");
}

#[test]
fn only_200_is_a_yes_and_what_is_no_http_is_none() {
    let (mesh, _) = asking(LISTS);
    for broken in ["error", "nonsense", "half", "tunnel"] {
        assert_eq!(status(&mesh, &format!("/{broken}")), 503, "{broken}");
    }
    assert_eq!(status(&mesh, "/created"), 201);
    assert_eq!(status(&mesh, "/allow"), 200);
}

#[test]
fn a_body_is_shown_and_goes_on() {
    let (mesh, heard) =
        asking(", pathPrefix: /check, includeRequestBodyInCheck: {maxRequestBytes: 100}");
    let request = "POST /body HTTP/1.1\r\nHost: server\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let answer = exchange(mesh.http(), request.as_bytes()).expect("an answer");
    assert_eq!(answer.status, 200);
    let (head, body) = about(&heard, "/check/body");
    assert!(head.contains("content-length: 3\r\n"), "{head}");
    assert!(!head.contains("transfer-encoding"), "{head}");
    assert_eq!(body, "abc");
}

#[test]
fn connections_that_it_has_no_words_for_are_refused() {
    let mesh = Mesh::start("PERMISSIVE");
    application::serve(mesh.tcp_app(), |mut stream| {
        let _ = stream.write_all(b"hello");
    });
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let _heard = authorizer(listener);
    let rule = format!("rules: [{{to: [{{operation: {{ports: [\"{TCP_PORT}\"]}}}}]}}]");
    set(&mesh, &(provider(KIND, at, "") + &custom(&rule)));
    wait_until("connections are refused", || {
        let got = crate::mesh::read_to_end(mesh.tcp(), b"hi").unwrap_or_default();
        got.is_empty()
    });
    let dump = get(mesh.server_admin(), "/config_dump").expect("the configuration");
    assert_eq!(dump.status, 200);
}
