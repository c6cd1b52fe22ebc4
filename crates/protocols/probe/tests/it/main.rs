//! Questions to servers that answer well, badly, strangely or not at all.

mod https;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use voile_probe::{ProbeOrigin, ProbeRequest, ask};

/// Longer than a loaded machine stands still.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(200);

/// A server that answers each connection in turn by the next of these bytes, once it has been asked something.
fn server(answers: Vec<Vec<u8>>) -> (SocketAddr, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("done");
    let address = listener.local_addr().expect("done");
    let thread = thread::spawn(move || {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("done");
            let mut buffer = [0; 4096];
            let read = stream.read(&mut buffer).unwrap_or(0);
            asked.push(String::from_utf8_lossy(&buffer[..read]).into_owned());
            let _ = stream.write_all(&answer);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            // Nothing more until the asker has had enough.
            let _ = stream.read_to_end(&mut Vec::new());
        }
        asked
    });
    (address, thread)
}

fn http(path: &str) -> ProbeRequest {
    ProbeRequest::Http {
        tls: false,
        path: path.to_owned(),
        headers: vec![("X-Probe".to_owned(), "yes".to_owned())],
    }
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).expect("done");
    let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, stream];
    frame.extend(payload);
    frame
}

#[test]
fn statuses_are_judged_as_the_kubelet_does() {
    for (answer, expected) in [
        ("HTTP/1.1 200 OK\r\n\r\n", Ok(200)),
        ("HTTP/1.1 399 x\r\n\r\n", Ok(399)),
        ("HTTP/1.1 400 x\r\n\r\n", Err((Some(400), "answers 400"))),
        ("HTTP/1.1 503 x\r\n\r\n", Err((Some(503), "answers 503"))),
        (
            "HTTP/1.1 302 x\r\nLocation: http://elsewhere.test/\r\n\r\n",
            Ok(302),
        ),
        (
            "HTTP/1.1 302 x\r\nLocation: //elsewhere.test/\r\n\r\n",
            Ok(302),
        ),
        ("220 mail\r\n\r\n", Err((None, "not HTTP/1"))),
    ] {
        let (address, server) = server(vec![answer.as_bytes().to_vec()]);
        let found = ask(
            address,
            ProbeOrigin::default(),
            &http("/healthz?full=1"),
            LONG,
        );
        match (&found, expected) {
            (Ok(status), Ok(expected)) => assert_eq!(*status, expected, "{answer}"),
            (Err(failure), Err((status, part))) => {
                assert_eq!(failure.status, status, "{answer}");
                assert!(failure.why.contains(part), "{answer}: {failure}");
            }
            _ => panic!("{answer}: {found:?}"),
        }
        let asked = server.join().unwrap().remove(0);
        assert!(
            asked.starts_with("GET /healthz?full=1 HTTP/1.1\r\n"),
            "{asked}"
        );
        assert!(asked.contains("\r\nX-Probe: yes\r\n"), "{asked}");
    }
}

#[test]
fn redirects_within_the_application_are_followed_but_not_for_ever() {
    let redirect = b"HTTP/1.1 301 x\r\nLocation: /further\r\n\r\n".to_vec();
    let good = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    let (address, thread) = server(vec![redirect.clone(), good]);
    assert_eq!(
        ask(address, ProbeOrigin::default(), &http("/"), LONG),
        Ok(200)
    );
    assert!(thread.join().unwrap()[1].starts_with("GET /further "));
    let (address, thread) = server(vec![redirect; 10]);
    let failure = ask(address, ProbeOrigin::default(), &http("/"), LONG).unwrap_err();
    assert!(failure.why.contains("redirected more than 9"), "{failure}");
    thread.join().unwrap();
}

#[test]
fn a_redirect_to_another_port_of_the_same_host_is_followed() {
    let (second, answering) = server(vec![b"HTTP/1.1 204 No\r\n\r\n".to_vec()]);
    let location = format!("HTTP/1.1 307 x\r\nLocation: http://{second}/y?z\r\n\r\n");
    let (first, redirecting) = server(vec![location.into_bytes()]);
    let question = ProbeRequest::Http {
        tls: false,
        path: "/x".to_owned(),
        headers: vec![("Host".to_owned(), "shop".to_owned())],
    };
    assert_eq!(ask(first, ProbeOrigin::default(), &question, LONG), Ok(204));
    let asked = redirecting.join().unwrap().remove(0);
    assert!(asked.contains("\r\nHost: shop\r\n"), "{asked}");
    let asked = answering.join().unwrap().remove(0);
    assert!(asked.starts_with("GET /y?z "), "{asked}");
    assert!(
        asked.contains(&format!("\r\nHost: {second}\r\n")),
        "{asked}"
    );
}

#[test]
fn a_body_is_heard_out_but_not_for_ever() {
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    let endless = "x".repeat(100_000);
    for (answer, expected) in [
        (chunks.to_owned(), None),
        ("HTTP/1.1 200 OK\r\n\r\nuntil the end".to_owned(), None),
        (format!("HTTP/1.1 200 OK\r\n\r\n{endless}"), None),
        (
            format!("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{endless}"),
            None,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok".to_owned(),
            Some("ended within the answer's body"),
        ),
    ] {
        let (address, thread) = server(vec![answer.clone().into_bytes()]);
        let found = ask(address, ProbeOrigin::default(), &http("/"), LONG);
        match (&found, expected) {
            (Ok(200), None) => {}
            (Err(failure), Some(part)) => assert!(failure.why.contains(part), "{failure}"),
            _ => panic!("{}: {found:?}", &answer[..40]),
        }
        thread.join().unwrap();
    }
}

#[test]
fn grpc_health_is_asked_in_a_few_frames() {
    let settings = frame(4, 0, 0, &[]);
    let headers = frame(1, 4, 1, &[0x88]);
    let answer = |message: &[u8]| {
        let mut data = vec![0, 0, 0, 0, u8::try_from(message.len()).unwrap()];
        data.extend(message);
        [settings.clone(), headers.clone(), frame(0, 0, 1, &data)].concat()
    };
    let padded = [3, 0, 0, 0, 0, 2, 8, 1, 0, 0, 0];
    for (name, bytes, expected) in [
        ("serving", answer(&[8, 1]), None),
        ("padded", frame(0, 8, 1, &padded), None),
        ("not serving", answer(&[8, 2]), Some("NOT_SERVING")),
        ("unknown", answer(&[]), Some("UNKNOWN")),
        ("strange", answer(&[10, 1, 0]), Some("not a health status")),
        (
            "trailers only",
            frame(1, 5, 1, &[0x88]),
            Some("without a health status"),
        ),
        ("reset", frame(3, 0, 1, &[0; 4]), Some("reset the call")),
        (
            "going",
            frame(7, 0, 0, &[0; 8]),
            Some("ends the connection"),
        ),
        (
            "too much padding",
            frame(0, 8, 1, &[9, 0]),
            Some("not HTTP/2"),
        ),
        (
            "HTTP/1",
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            Some("not HTTP/2"),
        ),
        (
            "flood",
            frame(6, 1, 0, &[0; 8]).repeat(100),
            Some("no response among"),
        ),
    ] {
        let (address, thread) = server(vec![bytes]);
        let question = ProbeRequest::Grpc {
            service: "shop.v1.Orders".to_owned(),
        };
        match (
            ask(address, ProbeOrigin::default(), &question, LONG),
            expected,
        ) {
            (Ok(200), None) => {}
            (Err(failure), Some(part)) => assert!(failure.why.contains(part), "{name}: {failure}"),
            (found, _) => panic!("{name}: {found:?}"),
        }
        let asked = thread.join().unwrap().remove(0);
        assert!(asked.contains("shop.v1.Orders"), "{name}: {asked}");
    }
}

#[test]
fn silence_and_absence_are_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap();
    assert_eq!(
        ask(silent, ProbeOrigin::default(), &ProbeRequest::Tcp, LONG),
        Ok(200)
    );
    let grpc = ProbeRequest::Grpc {
        service: String::new(),
    };
    for question in [http("/"), grpc] {
        let failure = ask(silent, ProbeOrigin::default(), &question, SHORT).unwrap_err();
        assert!(failure.why.contains("no answer within 200ms"), "{failure}");
    }
    drop(listener);
    let failure = ask(silent, ProbeOrigin::default(), &ProbeRequest::Tcp, LONG).unwrap_err();
    assert!(failure.why.contains("connection refused"), "{failure}");
}

#[test]
fn what_would_not_stay_one_request_is_not_asked() {
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    let question = |path: &str, name: &str, value: &str| ProbeRequest::Http {
        tls: false,
        path: path.to_owned(),
        headers: vec![(name.to_owned(), value.to_owned())],
    };
    for (question, part) in [
        (question("/a b", "A", "x"), "path"),
        (question("a", "A", "x"), "path"),
        (question("/\r\nB: c", "A", "x"), "path"),
        (question("/", "A", "x\r\nB: c"), "header field"),
        (question("/", "A:", "x"), "header field"),
        (question("/", "", "x"), "header field"),
        (question("/", "content-LENGTH", "1"), "header field"),
        (
            ProbeRequest::Grpc {
                service: "a".repeat(1025),
            },
            "service",
        ),
    ] {
        let failure = ask(nobody, ProbeOrigin::default(), &question, LONG).unwrap_err();
        assert!(failure.why.contains(part) && !failure.refused, "{failure}");
    }
}
