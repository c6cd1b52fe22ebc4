//! Gateway API by its conformance suite. The cases of `cases/*.txt` name the suite's tests, and hold their resources, the
//! requests and the expected results. All run against one `voile up`, each with a listener of its own.

mod backend_tls;
mod client_certificates;
mod data;
mod example;
mod https;
mod mesh;
mod policies;
mod protocols;
mod streams;
mod table;

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use crate::mesh::application::{read_request, serve};
use crate::mesh::{Answer, exchange, own_net};

/// Backends, each a server of this test: short name, namespace.
const BACKENDS: [(&str, &str); 5] = [
    ("v1", "infra"),
    ("v2", "infra"),
    ("v3", "infra"),
    ("app", "apps"),
    ("web", "web"),
];
/// The ports of their Services: of HTTP, of HTTP/2 alone, and of WebSocket.
const PORT: u16 = 8080;
const H2C_PORT: u16 = 8081;
const WS_PORT: u16 = 8082;

/// Paths of requests that came, by backend.
type Heard = Arc<Mutex<BTreeMap<&'static str, Vec<String>>>>;

/// Starts the backends; gives the resources by which the mesh knows them.
fn backends(heard: &Heard) -> String {
    backends_with_first(heard).0
}

/// The same, and where the first of them listens.
fn backends_with_first(heard: &Heard) -> (String, SocketAddr) {
    let (mut yaml, mut first) = (String::new(), None);
    let [a, b, c] = own_net();
    for (last, (name, namespace)) in (1..).zip(BACKENDS) {
        let listener = TcpListener::bind((Ipv4Addr::new(a, b, c, last), 0)).expect("a port");
        let address = listener.local_addr().expect("bound");
        answer(listener, name, Arc::clone(heard));
        first.get_or_insert(address);
        let own = address.port();
        let h2c = protocols::h2c(address.ip(), name);
        yaml += &format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{selector: {{app: {name}}}, ports: [{{name: first, port: {PORT}, targetPort: {own}}}, \
             {{port: {H2C_PORT}, targetPort: {h2c}, name: two, appProtocol: kubernetes.io/h2c}}, \
             {{port: {WS_PORT}, targetPort: {own}, name: three, appProtocol: kubernetes.io/ws}}]}}\n---\n\
             apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{address: {}, labels: {{app: {name}}}}}\n---\n",
            address.ip()
        );
    }
    (yaml, first.expect("a backend"))
}

/// Answers with its name and the request's head. `X-Echo-Set-Header: name:value, …` sets headers of the answer. For a path with
/// `delay=MS` the server waits until the client leaves, so that only a client with a time limit gets an answer. For a path that
/// ends in `failing=STATUS,COUNT` the server first answers that many times with the status. A WebSocket client gets the name, and
/// then an echo.
fn answer(listener: TcpListener, name: &'static str, heard: Heard) {
    serve(listener, move |stream| {
        let mut reader = BufReader::new(stream);
        while let Some((head, _)) = read_request(&mut reader) {
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let held = path.contains("delay=forever");
            let failing = path.split_once("failing=").map(|(_, said)| {
                let (status, count) = said.split_once(',').expect("STATUS,COUNT");
                (status.to_owned(), count.parse().expect("a count"))
            });
            let times = {
                let mut heard = heard.lock().expect("whole");
                let paths = heard.entry(name).or_default();
                paths.push(path.clone());
                paths.iter().filter(|one| **one == path).count()
            };
            if head.to_lowercase().contains("\r\nupgrade: websocket\r\n") {
                return protocols::echo(reader, name);
            }
            if held {
                // Waits until the client leaves.
                let _ = read_request(&mut reader);
                return;
            }
            let wanted = head.lines().filter_map(|line| {
                let (field, value) = line.split_once(": ")?;
                field
                    .eq_ignore_ascii_case("x-echo-set-header")
                    .then_some(value)
            });
            let fields = wanted.flat_map(|list| list.split(',')).filter_map(|one| {
                let (field, value) = one.trim().split_once(':')?;
                Some(format!("{field}: {value}\r\n"))
            });
            let fields: String = fields.collect();
            let body = format!("{name}\n{head}");
            let status = failing.filter(|(_, count)| times <= *count);
            let status = status.map_or("200 OK".to_owned(), |(status, _)| {
                format!("{status} failing")
            });
            let text = format!(
                "HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\n\r\n{body}",
                body.len()
            );
            if reader.get_mut().write_all(text.as_bytes()).is_err() {
                return;
            }
        }
    });
}

/// One line of a case: a request and its expected result. For a call of gRPC (`CALL`) the status is gRPC's own if it is not 0.
#[derive(Debug)]
struct Expectation<'a> {
    method: &'a str,
    host: &'a str,
    path: &'a str,
    fields: Vec<(&'a str, &'a str)>,
    outcome: &'a str,
    checks: Vec<&'a str>,
}

impl<'a> Expectation<'a> {
    /// `METHOD HOST PATH [Name=Value …] => BACKEND-or-STATUS [check …]`.
    fn read(line: &'a str) -> Self {
        let (asked, wanted) = line.split_once(" => ").expect("a line has =>");
        let mut asked = asked.split_whitespace();
        let mut next = || asked.next().expect("method, host and path");
        let (method, host, path) = (next(), next(), next());
        let fields = asked.map(|field| field.split_once('=').expect("Name=Value"));
        let fields = fields.collect();
        let mut wanted = wanted.split_whitespace();
        Self {
            method,
            host,
            path,
            fields,
            outcome: wanted.next().expect("an outcome"),
            checks: wanted.collect(),
        }
    }

    fn ask(&self, at: SocketAddr) -> std::io::Result<Answer> {
        if self.method == "CALL" {
            return protocols::call(at, self.host, self.path, &self.fields);
        }
        let fields = self.fields.iter();
        let fields = fields.map(|(name, value)| format!("{name}: {value}\r\n"));
        let fields: String = fields.collect();
        let (method, path, host) = (self.method, self.path, self.host);
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{fields}Content-Length: 0\r\nConnection: close\r\n\r\n"
        );
        exchange(at, text.as_bytes())
    }

    /// The answer's difference from the expected one, if there is any.
    fn wrong(&self, answer: &Answer) -> Option<String> {
        let body = String::from_utf8_lossy(&answer.body);
        let (by, came) = body.split_once('\n').unwrap_or(("", &body));
        let fits = match self.outcome.parse::<u16>() {
            Ok(status) => answer.status == status,
            Err(_) => answer.status == 200 && by == self.outcome,
        };
        if !fits {
            return Some(format!("{} by {by:?}", answer.status));
        }
        let has = |head: &str, name: &str| -> Option<String> {
            let lines = head.lines().filter_map(|line| line.split_once(':'));
            let same = lines.filter(|(field, _)| field.eq_ignore_ascii_case(name));
            let values: Vec<&str> = same.map(|(_, value)| value.trim()).collect();
            (!values.is_empty()).then(|| values.join(","))
        };
        let failed = self.checks.iter().find(|check| {
            let (kind, wanted) = check.split_once(':').expect("kind:value");
            let (name, value) = wanted.split_once('=').unwrap_or((wanted, ""));
            !match kind {
                "path" => came.split(' ').nth(1) == Some(wanted),
                "req" => has(came, name).as_deref() == Some(value),
                "noreq" => has(came, name).is_none(),
                "res" => has(&answer.head, name).as_deref() == Some(value),
                "nores" => has(&answer.head, name).is_none(),
                "own" => has(came, name).as_deref() == Some(by),
                "to" => has(&answer.head, "location").as_deref() == Some(wanted),
                _ => panic!("no check is called {kind}"),
            }
        });
        failed.map(|check| format!("{check} does not hold\n{}{body}", answer.head))
    }
}
