//! CONNECT through two sidecars to a forward proxy on a port declared `http`. A granted CONNECT is a tunnel, a refused one
//! is an answer, policy decides first, and no request can be smuggled behind it.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use voile_testkit::prerequisites::{Prerequisite, program};

use crate::mesh::{HTTP_PORT, Mesh, application, exchange, read_to_end, series, wait_until};

/// A forward proxy: reaches only `allowed`; answers other methods with their head.
fn forward_proxy(listener: TcpListener, allowed: SocketAddr) {
    application::serve(listener, move |stream| {
        let mut reader = BufReader::new(stream);
        let Some((head, _)) = application::read_request(&mut reader) else {
            return;
        };
        let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut client = reader.get_mut().try_clone().expect("open");
        if !head.starts_with("CONNECT ") {
            let length = head.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{head}");
            // A client that has gone hears nothing.
            let _ = client.write_all(answer.as_bytes());
            return;
        }
        if target != allowed.to_string() {
            let no =
                "HTTP/1.1 407 Not you\r\nProxy-Authenticate: Basic\r\nContent-Length: 2\r\n\r\nno";
            let _ = client.write_all(no.as_bytes());
            // As far as it knows the connection goes on.
            let _ = client.read_to_end(&mut Vec::new());
            return;
        }
        let mut server = TcpStream::connect(allowed).expect("the target listens");
        let granted = b"HTTP/1.1 200 Connection established\r\n\r\n";
        client.write_all(granted).expect("granted");
        let (mut back, mut to) = (server.try_clone().expect("open"), client);
        let down = std::thread::spawn(move || {
            let _ = std::io::copy(&mut back, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
        let _ = std::io::copy(&mut reader, &mut server);
        let _ = server.shutdown(Shutdown::Write);
        let _ = down.join();
    });
}

/// Echoes, and says goodbye when its client has said all.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    application::serve(listener, |mut stream| {
        let mut back = stream.try_clone().expect("open");
        let _ = std::io::copy(&mut stream, &mut back);
        let _ = back.write_all(b"goodbye");
        let _ = back.shutdown(Shutdown::Write);
    });
    address
}

fn connect(target: impl std::fmt::Display) -> String {
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")
}

/// The answer to CONNECT, as a number.
fn status(mesh: &Mesh, target: impl std::fmt::Display) -> u16 {
    let answer = read_to_end(mesh.http(), connect(target).as_bytes());
    let answer = String::from_utf8_lossy(&answer.unwrap_or_default()).into_owned();
    let status = answer.get(9..12).and_then(|code| code.parse().ok());
    status.unwrap_or_default()
}

#[test]
fn a_granted_connect_is_a_tunnel_with_half_close_and_is_counted() {
    let mesh = Mesh::start("STRICT");
    let target = echo();
    forward_proxy(mesh.http_app(), target);
    for turn in 0..3 {
        let mut stream = TcpStream::connect(mesh.http()).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("open");
        // The client does not wait for the answer, and ends with its last word.
        let early = format!("{}early ", connect(target));
        stream.write_all(early.as_bytes()).expect("sent");
        let mut head = [0; 1024];
        let mut got = Vec::new();
        while !String::from_utf8_lossy(&got).ends_with("early ") {
            let read = stream.read(&mut head).expect("an answer");
            assert!(read > 0, "{}", String::from_utf8_lossy(&got));
            got.extend_from_slice(&head[..read]);
        }
        let got = String::from_utf8(got).expect("text");
        let expected = "HTTP/1.1 200 Connection established\r\n\r\nearly ";
        assert_eq!(got, expected, "turn {turn}");
        let much = vec![b'x'; 1_000_000];
        let mut writer = stream.try_clone().expect("open");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                writer.write_all(&much).expect("sent");
                writer.shutdown(Shutdown::Write).expect("open");
            });
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).expect("an end");
            assert!(rest == [&much[..], b"goodbye"].concat(), "{}", rest.len());
        });
    }
    let labels = [
        "response_code=\"200\"",
        "request_protocol=\"http\"",
        "connection_security_policy=\"mutual_tls\"",
    ];
    wait_until("tunnels are counted as requests", || {
        series(&mesh.server_metrics(), "istio_requests_total", &labels) == Some(3.0)
    });
}

/// Far more than anything here takes.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

#[test]
fn a_refused_connect_ends_the_connection_and_what_came_early_is_no_request() {
    let mesh = Mesh::start("STRICT");
    let target = echo();
    forward_proxy(mesh.http_app(), target);
    let behind = "GET /smuggled HTTP/1.1\r\nHost: server\r\n\r\n";
    let refused = format!("{}{behind}", connect("other.test:443"));
    let answer = read_to_end(mesh.http(), refused.as_bytes()).expect("closed");
    let answer = String::from_utf8(answer).expect("text");
    assert_eq!(
        answer,
        "HTTP/1.1 407 Not you\r\nProxy-Authenticate: Basic\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"
    );
    // Our proxy refuses a message that it could frame in another way than the forward proxy behind
    // it.
    for (fields, expected) in [
        ("Content-Length: 40\r\n", 400),
        ("Transfer-Encoding: chunked\r\n", 400),
        ("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Expect: 100-continue\r\n", 417),
    ] {
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: x\r\n{fields}\r\n{behind}");
        let answer = read_to_end(mesh.http(), request.as_bytes()).expect("closed");
        let answer = String::from_utf8(answer).expect("text");
        let line = format!("HTTP/1.1 {expected} ");
        assert!(answer.starts_with(&line), "{fields}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{fields}: {answer}");
    }
    for target in [
        "a.test",
        "a.test:",
        "a.test:0",
        "/",
        "http://a.test:1/",
        "u@a.test:1",
    ] {
        assert_eq!(status(&mesh, target), 400, "{target}");
    }
    let seen = series(&mesh.server_metrics(), "istio_requests_total", &[]);
    assert_eq!(seen, Some(1.0), "only the refused one came so far");
}

/// An application that answers CONNECT as it answers any request is no forward proxy: it would read what its client sends through the
/// tunnel as requests, past policy and with forged fields.
#[test]
fn an_application_that_answers_connect_as_any_request_opens_no_tunnel() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let behind = "GET /behind HTTP/1.1\r\nHost: server\r\nX-Forwarded-Client-Cert: forged\r\n\r\n";
    for to in [mesh.http(), mesh.inbound(HTTP_PORT)] {
        let request = format!("{}{behind}", connect("other.test:443"));
        let answer = read_to_end(to, request.as_bytes()).expect("closed");
        let answer = String::from_utf8(answer).expect("text");
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert!(!answer.contains("/behind"), "{answer}");
    }
}

#[test]
fn policy_judges_a_connect_by_its_method_and_its_authority() {
    let mesh = Mesh::start("STRICT");
    let target = echo();
    forward_proxy(mesh.http_app(), target);
    let write = |rules: &str| {
        let policy = format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: tunnels, namespace: shop}}\n\
             spec: {{selector: {{matchLabels: {{app: server}}}}, action: ALLOW, rules: [{rules}]}}\n"
        );
        let new = mesh.config().join(".authorization.new");
        std::fs::write(&new, policy).expect("a policy");
        std::fs::rename(new, mesh.config().join("authorization.yaml")).expect("in place");
    };
    let granted = || {
        let mut stream = TcpStream::connect(mesh.http()).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("open");
        let request = connect(target);
        stream.write_all(request.as_bytes()).expect("sent");
        let mut line = [0; 13];
        stream.read_exact(&mut line).expect("an answer");
        line == *b"HTTP/1.1 200 "
    };
    let get = || {
        let request = b"GET /a HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";
        exchange(mesh.http(), request).map_or(0, |answer| answer.status)
    };
    let all = |what: &str, mut holds: Box<dyn FnMut() -> bool + '_>| {
        // Two workers, each told for itself.
        wait_until(what, || (0..12).all(|_| holds()));
    };
    write("{to: [{operation: {methods: [GET]}}]}");
    all(
        "CONNECT is denied",
        Box::new(|| status(&mesh, target) == 403),
    );
    assert_eq!(get(), 200);
    // It has no path, so no path allows it.
    write("{to: [{operation: {paths: [\"/*\"]}}]}");
    all("paths allow requests", Box::new(|| get() == 200));
    assert_eq!(status(&mesh, target), 403);
    write(&format!(
        "{{to: [{{operation: {{methods: [CONNECT], hosts: [\"{target}\"]}}}}]}}"
    ));
    all("only CONNECT is allowed", Box::new(|| get() == 403));
    assert_eq!(status(&mesh, "other.test:443"), 403);
    assert!(granted());
}

#[test]
fn curl_fetches_through_the_tunnel() {
    let Some(program) = program(Prerequisite::Curl, "curl") else {
        return;
    };
    let mesh = Mesh::start("STRICT");
    let web = TcpListener::bind("127.0.0.1:0").expect("a port");
    let target = web.local_addr().expect("an address");
    application::reflect(web);
    forward_proxy(mesh.http_app(), target);
    for version in ["--proxy", "--proxy1.0"] {
        let mut curl = Command::new(&program);
        curl.args(["-sS", "--max-time", "20", "--noproxy", "", "-p", version]);
        curl.arg(format!("http://{}", mesh.http()));
        curl.arg(format!("http://{target}/through"));
        let output = curl.stdin(Stdio::null()).output().expect("curl");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.starts_with("GET /through HTTP/1.1\r\n"),
            "{version} {said} {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
