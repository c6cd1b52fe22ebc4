//! `voile dashboard` beside `voile up`: its data, who may ask for it, and the page in a real browser.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use voile_testkit::prerequisites::{Prerequisite, program};

use crate::mesh::{get, wait_until};
use crate::up::commands::denied;
use crate::up::netns::{NOBODY, is_root, start_with};
use crate::up::{PrintedPage, Up, bookstore, web};

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
    page: PrintedPage,
}

impl Dashboard {
    fn start(up: &Up) -> Self {
        Self::start_in(&up.temporary(), &[])
    }

    /// Of the meshes that run with a folder for temporary files.
    fn start_in(temporary: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_voile"))
            .args(["dashboard", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .env("TMPDIR", temporary)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("voile starts");
        let out = child.stdout.take().expect("it is piped");
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).expect("a line");
        let page = PrintedPage::parse(line.trim()).expect("a URL");
        Self { child, page }
    }

    /// The data of the page, once all calls of the bookstore are in it.
    fn data(&self) -> Value {
        let mut data = Value::Null;
        wait_until("the calls are on the page", || {
            let answer = self.page.get("/data.json");
            data = serde_json::from_slice(&answer.body).expect("JSON");
            let edges = data["edges"].as_array().map_or(&[][..], Vec::as_slice);
            edges.len() >= 5 && edges.iter().any(is_of_reviews)
        });
        data
    }

    /// Has requests recorded until every workload answered one of them. The dashboard keeps them while somebody asks.
    fn recorded(&self) {
        wait_until("requests of every workload are recorded", || {
            let answer = self.page.get(REQUESTS);
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
        let page = self.page.clone();
        std::thread::spawn(move || {
            let pause = Duration::from_millis(200);
            while stopped.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                page.get("/data.json");
                page.get(REQUESTS);
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
    let mut stranger = TcpStream::connect(dashboard.page.address).expect("connected");
    let asked = b"GET /data.json HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    stranger.write_all(asked).expect("asked");
    let mut answer = String::new();
    stranger.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    // Nor may another user of this machine, who does not know the key.
    let key = dashboard.page.base.trim_start_matches('/');
    for path in [
        "/data.json",
        "/",
        "//data.json",
        &format!("/{}/data.json", &key[1..]),
    ] {
        let answer = get(dashboard.page.address, path).expect("an answer");
        assert_eq!(answer.status, 404, "{path}");
    }
    let (code, said) = up.command(&["dashboard", "--listen", "0.0.0.0:0"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is not a loopback address"), "{said}");

    let pid = Pid::from_child(&dashboard.child);
    kill_process(pid, Signal::INT).expect("the signal is sent");
    assert!(dashboard.child.wait().expect("it ends").success());
}

/// What is told of a workload on request.
fn of_workload(dashboard: &Dashboard, part: &str, name: &str) -> (u16, String) {
    let path = format!("/workload.json?part={part}&name={name}");
    let answer = dashboard.page.get(&path);
    let text = String::from_utf8(answer.body.to_vec()).expect("text");
    (answer.status, text)
}

#[test]
fn a_workload_has_its_callers_documents_and_logs() {
    let mut up = Up::start(denied, &[]);
    up.ready();
    let dashboard = Dashboard::start(&up);
    let parsed = |(status, text): (u16, String)| -> Value {
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).expect("JSON")
    };
    let (code, said) = up.command(&["who-can", "pair/web"]);
    assert_eq!(code, Some(0), "{said}");
    let callers = parsed(of_workload(&dashboard, "callers", "pair%2Fweb-0"));
    let answers = &callers[0]["access"][0]["answers"];
    for answer in answers.as_array().expect("answers") {
        // The page says the same.
        let access = answer["access"].as_str().expect("text");
        assert!(said.contains(access), "{access}: {said}");
    }
    let documents = parsed(of_workload(&dashboard, "configuration", "pair/web-0"));
    let receiving = documents["receiving"].as_array().expect("a list");
    let mut policies = receiving.iter();
    let policy = policies.find(|one| one["kind"] == "AuthorizationPolicy");
    let policy = policy.expect("the policy");
    let place = format!("{}:", up.file("pair.yaml").display());
    assert_eq!(policy["name"], "pair/nobody");
    assert!(
        policy["place"]
            .as_str()
            .is_some_and(|at| at.starts_with(&place)),
        "{policy}"
    );
    let logs = parsed(of_workload(&dashboard, "logs", "pair/web-0"));
    let mut processes = logs.as_array().expect("a list").iter();
    assert!(
        processes.any(|log| log["process"] == "pair.web-0.sidecar"),
        "{logs}"
    );
    let (status, said) = of_workload(&dashboard, "callers", "pair/nobody");
    assert_eq!(
        (status, &*said),
        (404, "no service of the mesh selects pair/nobody")
    );
    let (status, said) = of_workload(&dashboard, "secrets", "pair/web-0");
    assert_eq!(status, 404, "{said}");
}

#[test]
fn requests_of_pods_that_come_later_are_recorded() {
    let mut up = Up::start(bookstore, &[]);
    up.ready();
    let dashboard = Dashboard::start(&up);
    dashboard.recorded();
    let file = up.file("reviews.yaml");
    let text = std::fs::read_to_string(&file).expect("read");
    let more = text.replace("replicas: 2", "replicas: 3");
    assert_ne!(text, more);
    std::fs::write(&file, more).expect("written");
    wait_until("a request of the third pod is recorded", || {
        let answer = dashboard.page.get(REQUESTS);
        let page: Value = serde_json::from_slice(&answer.body).expect("JSON");
        let mut records = page["records"].as_array().into_iter().flatten();
        records.any(|record| record["proxy"] == "bookstore/reviews-2")
    });
}

#[test]
fn the_records_of_the_laboratory_are_listed_shown_and_compared() {
    let records = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benchmarks/records");
    let [first, second] =
        ["speed-core", "speed-core-2"].map(|name| format!("{records}/2026-11-21-{name}"));
    let nowhere = tempfile::tempdir().expect("a folder");
    let dashboard = Dashboard::start_in(nowhere.path(), &["--records", records]);
    let ask = |path: &str| {
        let answer = dashboard.page.get(path);
        let text = String::from_utf8(answer.body.to_vec()).expect("text");
        (answer.status, text)
    };
    let (_, list) = ask("/records.json");
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let mut listed = list["records"].as_array().expect("records").iter();
    assert!(listed.any(|one| one["name"] == *second && one["report"] == true));
    let (status, page) = ask(&format!("/report.html?of={second}"));
    let file = std::fs::read_to_string(format!("{second}/report.html")).expect("read");
    assert!(status == 200 && page == file);
    let (status, page) = ask(&format!("/comparison.html?first={first}&second={second}"));
    assert_eq!(status, 200, "{page}");
    assert!(page.contains("<h2>Ratios</h2>"), "{page}");
    for path in [
        "/report.html?of=/etc".to_owned(),
        format!("/report.html?of={first}/../2026-11-21-speed-core-2"),
        format!("/comparison.html?first={first}"),
    ] {
        assert_eq!(ask(&path).0, 404, "{path}");
    }
}

/// The page that `voile up --web` says.
fn shown_by(up: &Up) {
    let page = web(up);
    wait_until("the calls are on the page", || {
        let answer = page.get("/data.json");
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

/// What a browser makes of a view of the page, without a complaint.
fn drawn_page(
    chromium: &Path,
    home: &Path,
    page: &PrintedPage,
    (view, size): (&str, &str),
) -> String {
    let output = Command::new(chromium)
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
        .arg(format!("--user-data-dir={}", home.display()))
        .arg(format!("--window-size={size}"))
        .arg(format!("{}#{view}", page.url()))
        .stdin(Stdio::null())
        .output()
        .expect("the browser starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("CONSOLE"), "{view}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
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
        (
            "graph:bookstore/books:callers,configuration,logs",
            "1280,900",
        ),
        ("graph", "400,900"),
        ("calls", "1280,900"),
        ("requests", "1280,900"),
        ("proxies", "1280,900"),
    ] {
        let drawn = |workload: &str| match view.split(':').next() {
            Some("graph") => format!("data-name=\"bookstore/{workload}\""),
            Some("requests") if workload == "traffic" => "<table id=\"recorded\">".to_owned(),
            Some("requests") => format!("<td class=\"word proxy\">bookstore/{workload}-0</td>"),
            Some("calls") => format!("<td class=\"word\">bookstore/<wbr>{workload}</td>"),
            _ => format!("<td class=\"word\">bookstore/<wbr>{workload}-0</td>"),
        };
        let mut dom = String::new();
        // On a busy machine a browser may come before the calls that it is to show.
        wait_until(&format!("all workloads are drawn: {view}"), || {
            dom = drawn_page(&chromium, home.path(), &dashboard.page, (view, size));
            WORKLOADS
                .iter()
                .all(|workload| dom.contains(&drawn(workload)))
        });
        if view.contains(':') {
            for part in [
                "sa/books</dd>",
                "<p class=\"dim\">Deployment bookstore/books, port 9080</p><h4>everything</h4>",
                "every identity of the mesh (6)",
                "For what it receives",
                "PeerAuthentication bookstore/default",
                "/security.yaml:",
                "<h3>bookstore.books-0.app</h3><pre ",
            ] {
                assert!(dom.contains(part), "{part}: {dom}");
            }
        }
    }
    drop(looking);
}
