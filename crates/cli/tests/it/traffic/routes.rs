//! VirtualServices through a control plane and a sidecar, to the endpoint that answers: by match, by weight, and while all of it
//! changes.

mod actions;
mod moved;

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::mesh::{HTTP_PORT, Mesh, application, exchange, read_answer, wait_until};

const HEAD: &str = "apiVersion: networking.istio.io/v1\nkind: ";

/// A second version of the server, without a sidecar.
fn second_pod(mesh: &Mesh) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: server-v2\n  namespace: shop\n\
         \x20 labels: {{app: server, version: v2, sidecar.istio.io/inject: \"false\"}}\n\
         spec:\n  containers: [{{name: app}}]\nstatus: {{phase: Running, podIP: {}}}\n",
        mesh.address(3, 0).ip()
    )
}

/// The same, and both versions' applications.
fn second_version(mesh: &Mesh) {
    say(mesh, "v2.yaml", &second_pod(mesh));
    answer(mesh.http_app(), "v1");
    let second = TcpListener::bind(mesh.address(3, HTTP_PORT)).expect("an address");
    answer(second, "v2");
}

/// Answers every request with a word.
fn answer(listener: TcpListener, word: &'static str) {
    application::serve(listener, move |stream| {
        let mut reader = BufReader::new(stream);
        while application::read_request(&mut reader).is_some() {
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{word}",
                word.len()
            );
            if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
}

/// Puts a file in the place of another at once, as editors do.
fn say(mesh: &Mesh, name: &str, text: &str) {
    let new = mesh.config().join(format!("{name}.new"));
    std::fs::write(&new, text).expect("written");
    std::fs::rename(&new, mesh.config().join(name)).expect("renamed");
}

fn rule(subsets: &[(&str, &str)]) -> String {
    let subsets = subsets
        .iter()
        .map(|(name, version)| format!("  - {{name: {name}, labels: {{version: {version}}}}}\n"));
    let subsets: String = subsets.collect();
    format!(
        "{HEAD}DestinationRule\nmetadata: {{name: server, namespace: shop}}\nspec:\n  host: server\n  subsets:\n{subsets}"
    )
}

fn routes(http: &str) -> String {
    format!(
        "{HEAD}VirtualService\nmetadata: {{name: server, namespace: shop}}\nspec:\n  hosts: [server]\n  http:\n{http}"
    )
}

fn weighted(shares: &[(&str, u32)]) -> String {
    let to = |(subset, weight): &(&str, u32)| {
        format!("    - {{destination: {{host: server, subset: {subset}}}, weight: {weight}}}\n")
    };
    let shares: String = shares.iter().map(to).collect();
    routes(&format!("  - route:\n{shares}"))
}

/// Status and body.
fn ask(to: SocketAddr, request: &str) -> (u16, String) {
    let request = format!("{request}Host: server\r\nConnection: close\r\n\r\n");
    let answer = exchange(to, request.as_bytes()).expect("an answer");
    (
        answer.status,
        String::from_utf8_lossy(&answer.body).into_owned(),
    )
}

fn get(to: SocketAddr) -> (u16, String) {
    ask(to, "GET / HTTP/1.1\r\n")
}

/// Sends so many requests and counts them by the application that answered.
fn shares(to: SocketAddr, requests: u32) -> BTreeMap<String, u32> {
    let mut stream = TcpStream::connect(to).expect("a connection");
    let mut reader = BufReader::new(stream.try_clone().expect("a copy"));
    let mut shares = BTreeMap::new();
    for _ in 0..requests {
        let sent = stream.write_all(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n");
        sent.expect("sent");
        let answer = read_answer(&mut reader).expect("an answer");
        assert_eq!(answer.status, 200, "{answer:?}");
        let word = String::from_utf8_lossy(&answer.body).into_owned();
        *shares.entry(word).or_default() += 1;
    }
    shares
}

#[test]
fn the_first_route_that_matches_decides_who_answers() {
    let mesh = Mesh::start("PERMISSIVE");
    second_version(&mesh);
    let to = mesh.http();
    say(&mesh, "rule.yaml", &rule(&[("old", "v1"), ("new", "v2")]));
    say(
        &mesh,
        "routes.yaml",
        &routes(
            "  - name: testers\n    match:\n    - headers: {x-tester: {exact: \"yes\"}}\n      withoutHeaders: {x-bot: {}}\n\
             \x20   - uri: {prefix: /New}\n      ignoreUriCase: true\n    route: [{destination: {host: server, subset: new}}]\n\
             \x20 - match: [{uri: {exact: /lost}}]\n    route: [{destination: {host: server, subset: gone}}]\n\
             \x20 - match: [{uri: {exact: /nobody}}]\n    route: [{destination: {host: nobody}}]\n\
             \x20 - match: [{sourceLabels: {app: other}}, {port: 81}]\n    route: [{destination: {host: nobody}}]\n\
             \x20 - match: [{method: {exact: GET}, sourceLabels: {app: client}}]\n    route: [{destination: {host: server, subset: old}}]\n",
        ),
    );
    // Routes that name what is not there wait for it, where others serve: here for nothing.
    wait_until("the routes", || ask(to, "PUT / HTTP/1.1\r\n").0 == 404);
    let v1 = (200, "v1".to_owned());
    let v2 = (200, "v2".to_owned());
    for _ in 0..3 {
        assert_eq!(get(to), v1);
        assert_eq!(ask(to, "GET / HTTP/1.1\r\nX-Tester: yes\r\n"), v2);
        assert_eq!(
            ask(to, "GET / HTTP/1.1\r\nX-Tester: yes\r\nX-Bot: 1\r\n"),
            v1
        );
        assert_eq!(ask(to, "GET / HTTP/1.1\r\nX-Tester: y\r\n"), v1);
        assert_eq!(
            ask(to, "POST /new/1?x HTTP/1.1\r\nContent-Length: 0\r\n"),
            v2
        );
    }
    let (status, why) = ask(to, "GET /lost?x HTTP/1.1\r\n");
    assert_eq!(status, 503);
    assert!(why.contains("has no subset gone"), "{why}");
    let (status, why) = ask(to, "GET /nobody HTTP/1.1\r\n");
    assert_eq!(status, 503);
    assert!(
        why.contains("no service nobody.shop.svc.cluster.local"),
        "{why}"
    );
    assert_eq!(ask(to, "PUT / HTTP/1.1\r\n").0, 404);
    let metrics = mesh.client_metrics();
    for labels in [
        ["response_code=\"503\"", "response_flags=\"NC\""],
        ["response_code=\"404\"", "response_flags=\"NR\""],
    ] {
        let service = "destination_service=\"server.shop.svc.cluster.local\"";
        let all = [labels[0], labels[1], service];
        let found = crate::mesh::series(&metrics, "istio_requests_total", &all);
        assert!(found.is_some(), "{labels:?}\n{metrics}");
    }
    std::fs::remove_file(mesh.config().join("routes.yaml")).expect("removed");
    wait_until("no routes", || ask(to, "PUT / HTTP/1.1\r\n").0 == 200);
}

/// Asks without a pause until told to end, and counts what is not 200.
struct Load {
    end: Arc<AtomicBool>,
    counts: Arc<[AtomicU64; 2]>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(to: SocketAddr) -> Self {
        let (end, counts) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let threads = (0..2).map(|_| {
            let (end, counts): (_, Arc<[AtomicU64; 2]>) = (Arc::clone(&end), Arc::clone(&counts));
            std::thread::spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    let bad = usize::from(get(to).0 != 200);
                    counts[bad].fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let threads = threads.collect();
        Self {
            end,
            counts,
            threads,
        }
    }

    /// Answers that were right, and that were not.
    fn end(self) -> (u64, u64) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a thread");
        }
        let [good, bad] = &*self.counts;
        (good.load(Ordering::Relaxed), bad.load(Ordering::Relaxed))
    }
}

#[test]
fn a_canary_takes_its_share_and_no_request_is_lost_while_it_grows_whatever_comes_first() {
    let mesh = Mesh::start("PERMISSIVE");
    second_version(&mesh);
    let to = mesh.http();
    wait_until("both versions", || shares(to, 40).len() == 2);
    let load = Load::start(to);
    // Routes before the subsets that they name: what was goes on until those are there.
    say(&mesh, "routes.yaml", &weighted(&[("v1", 100), ("v2", 0)]));
    say(&mesh, "rule.yaml", &rule(&[("v1", "v1"), ("v2", "v2")]));
    wait_until("everything to v1", || shares(to, 40).get("v1") == Some(&40));
    say(&mesh, "routes.yaml", &weighted(&[("v1", 90), ("v2", 10)]));
    wait_until("a tenth", || shares(to, 40).len() == 2);
    let tenth = shares(to, 2000).get("v2").copied().unwrap_or(0);
    // Five standard deviations of a tenth of two thousand.
    assert!((133..267).contains(&tenth), "{tenth} of 2000");
    for weight in [30, 60, 90, 20, 50] {
        say(
            &mesh,
            "routes.yaml",
            &weighted(&[("v1", 100 - weight), ("v2", weight)]),
        );
        shares(to, 50);
    }
    // Subsets under other names, and before the routes that name them, one at a time.
    say(&mesh, "rule.yaml", &rule(&[("v1", "v1"), ("canary", "v2")]));
    shares(to, 50);
    say(
        &mesh,
        "routes.yaml",
        &weighted(&[("v1", 0), ("canary", 100)]),
    );
    wait_until("everything to v2", || shares(to, 40).get("v2") == Some(&40));
    // All at once.
    say(
        &mesh,
        "rule.yaml",
        &(rule(&[("stable", "v1")]) + "---\n" + &weighted(&[("stable", 1)])),
    );
    std::fs::remove_file(mesh.config().join("routes.yaml")).expect("removed");
    wait_until("everything to v1 again", || {
        shares(to, 40).get("v1") == Some(&40)
    });
    let (good, bad) = load.end();
    assert!(good > 100, "only {good} were asked");
    assert_eq!(bad, 0, "of {good}");
}
