//! `voile dashboard` beside `voile up`: its data, who may ask for it, and the page in a real browser.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use voile_testkit::prerequisites::{Prerequisite, program};

use crate::mesh::{get, wait_until};
use crate::up::netns::{NOBODY, is_root, start_with};
use crate::up::{Up, bookstore, web};

/// Workloads of the bookstore, in the columns of the page.
const WORKLOADS: [&str; 6] = [
    "traffic",
    "storefront",
    "books",
    "inventory",
    "reviews",
    "ratings",
];

/// The latest requests of the mesh.
const REQUESTS: &str = "/requests.json?show=all&after=0";

/// A running dashboard.
struct Dashboard {
    child: Child,
    address: SocketAddr,
}

impl Dashboard {
    fn start(up: &Up) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_voile"))
            .args(["dashboard", "--listen", "127.0.0.1:0"])
            .env("TMPDIR", up.temporary())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("voile starts");
        let out = child.stdout.take().expect("it is piped");
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("http://").expect("a URL");
        let address = address.trim_end_matches('/').parse().expect("an address");
        Self { child, address }
    }

    /// The data of the page, once all calls of the bookstore are in it.
    fn data(&self) -> Value {
        let mut data = Value::Null;
        wait_until("the calls are on the page", || {
            let answer = get(self.address, "/data.json").expect("an answer");
            data = serde_json::from_slice(&answer.body).expect("JSON");
            let edges = data["edges"].as_array().map_or(&[][..], Vec::as_slice);
            edges.len() >= 5 && edges.iter().any(is_of_reviews)
        });
        data
    }

    /// Has requests recorded until every workload answered one of them. The dashboard keeps them while somebody asks.
    fn recorded(&self) {
        wait_until("requests of every workload are recorded", || {
            let answer = get(self.address, REQUESTS).expect("an answer");
            let page: Value = serde_json::from_slice(&answer.body).expect("JSON");
            let records = page["records"].as_array().map_or(&[][..], Vec::as_slice);
            let mut called = WORKLOADS.iter().filter(|name| **name != "traffic");
            called.all(|name| {
                let proxy = format!("bookstore/{name}-0");
                records.iter().any(|record| record["proxy"] == proxy)
            })
        });
    }

    /// Keeps looking until the sender is dropped.
    fn keep_looking(&self) -> mpsc::Sender<()> {
        let (stop, stopped) = mpsc::channel();
        let address = self.address;
        std::thread::spawn(move || {
            let pause = Duration::from_millis(200);
            while stopped.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = get(address, "/data.json");
                let _ = get(address, REQUESTS);
            }
        });
        stop
    }
}

/// Whether an edge has the calls from reviews to ratings, all by mutual TLS. A pair that did not call just now has none.
fn is_of_reviews(edge: &Value) -> bool {
    (&edge["source"], &edge["destination"])
        == (&"bookstore/reviews".into(), &"bookstore/ratings".into())
        && edge["mutual_tls"] == 1.0
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_page_has_calls_proxies_and_workloads_and_is_for_this_machine() {
    let mut up = Up::start(bookstore, &[]);
    up.ready();
    let mut dashboard = Dashboard::start(&up);
    let data = dashboard.data();
    assert_eq!(data["proxies"].as_array().map(Vec::len), Some(7), "{data}");
    let mut workloads = data["workloads"].as_array().expect("workloads").iter();
    let reviews = workloads.find(|one| one["name"] == "bookstore/reviews");
    let pods = &reviews.expect("reviews")["pods"];
    assert_eq!(pods.as_array().map(Vec::len), Some(2), "{pods}");

    // A page of another site may not read it.
    let mut stranger = TcpStream::connect(dashboard.address).expect("connected");
    let asked = b"GET /data.json HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    stranger.write_all(asked).expect("asked");
    let mut answer = String::new();
    stranger.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let (code, said) = up.command(&["dashboard", "--listen", "0.0.0.0:0"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is not a loopback address"), "{said}");

    let pid = Pid::from_child(&dashboard.child);
    kill_process(pid, Signal::INT).expect("the signal is sent");
    assert!(dashboard.child.wait().expect("it ends").success());
}

/// The page that `voile up --web` says.
fn shown_by(up: &Up) {
    let address = web(up);
    wait_until("the calls are on the page", || {
        let answer = get(address, "/data.json").expect("an answer");
        let data: Value = serde_json::from_slice(&answer.body).expect("JSON");
        let edges = data["edges"].as_array().map_or(&[][..], Vec::as_slice);
        edges.iter().any(is_of_reviews)
    });
}

#[test]
fn the_page_comes_with_the_mesh() {
    let mut up = Up::start(bookstore, &["--web=127.0.0.1:0"]);
    up.ready();
    shown_by(&up);
}

#[test]
fn the_page_comes_with_a_mesh_in_namespaces_whoever_runs_it() {
    for user in [None, Some(NOBODY).filter(|_| is_root())] {
        let Some((up, _)) = start_with(bookstore, user, &["--web=127.0.0.1:0"]) else {
            return;
        };
        shown_by(&up);
    }
}

#[test]
fn a_browser_draws_every_workload_without_a_complaint() {
    let Some(chromium) = program(Prerequisite::Browser, "chromium") else {
        return;
    };
    let mut up = Up::start(bookstore, &[]);
    up.ready();
    let dashboard = Dashboard::start(&up);
    dashboard.data();
    dashboard.recorded();
    let looking = dashboard.keep_looking();
    let home = tempfile::tempdir().expect("a folder");
    for (view, size) in [
        ("graph:bookstore/books", "1280,900"),
        ("graph", "400,900"),
        ("calls", "1280,900"),
        ("requests", "1280,900"),
        ("proxies", "1280,900"),
    ] {
        let output = Command::new(&chromium)
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--dump-dom",
            ])
            .args([
                "--enable-logging=stderr",
                "--log-level=0",
                "--virtual-time-budget=20000",
            ])
            .arg(format!("--user-data-dir={}", home.path().display()))
            .arg(format!("--window-size={size}"))
            .arg(format!("http://{}/#{view}", dashboard.address))
            .stdin(Stdio::null())
            .output()
            .expect("the browser starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("CONSOLE"), "{view}: {said}");
        let dom = String::from_utf8_lossy(&output.stdout);
        for workload in WORKLOADS {
            let drawn = match view.split(':').next() {
                Some("graph") => format!("data-name=\"bookstore/{workload}\""),
                Some("requests") if workload == "traffic" => "<table id=\"records\">".to_owned(),
                Some("requests") => format!("<td class=\"word\">bookstore/{workload}-0</td>"),
                Some("calls") => format!("<td class=\"word\">bookstore/{workload}</td>"),
                _ => format!("<td class=\"word\">bookstore/{workload}-0</td>"),
            };
            assert!(dom.contains(&drawn), "{view}: {drawn}: {dom}");
        }
        if view.contains(':') {
            assert!(
                dom.contains("sa/books</dd>"),
                "the identity of the chosen one: {dom}"
            );
        }
    }
    drop(looking);
}
