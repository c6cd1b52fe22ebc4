//! `voile graph`: processes that do exactly what their scripts say, without a mesh and under `voile up`.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use voile_graph::dice::ProcessRandom;
use voile_testkit::prerequisites::{Prerequisite, program};

use crate::mesh::{Process, exchange, get, memory, read_to_end, wait_until};
use crate::up::Up;

/// Seed of all random choices here.
const SEED: u64 = 11;

/// Half of the requests to `a` go on to `b`, which is gRPC and calls `d`; then all go to `c`, which fails a quarter of them.
/// Nothing follows a call that can fail, so every count is known beforehand, in any order of requests.
const GRAPH: &str = "
defaults: {requestSize: 1 KB, responseSize: 2 KB}
services:
- {name: a, isEntrypoint: true, script: [[{call: {service: b, probability: 50}}, {cpu: 50us}, {memory: 64k}], {sleep: 300us}, {call: c}]}
- {name: b, isEntrypoint: true, type: grpc, script: [{call: d}, {call: {service: d, probability: 30, size: 100 KB}}]}
- {name: c, isEntrypoint: true, errorRate: 25%}
- {name: d, isEntrypoint: true, responseSize: 200 KB}
";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new(graph: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("graph.yaml"), graph).expect("written");
        Self(folder)
    }

    fn graph(&self) -> PathBuf {
        self.0.path().join("graph.yaml")
    }
}

/// Starts one service on a free port; the address comes from its log.
fn serve(folder: &Folder, service: &str, more: &[&str]) -> (Process, SocketAddr) {
    let process = Process::start(service, |command| {
        command
            .args(["graph", "serve", "--graph"])
            .arg(folder.graph());
        command.args(["--service", service, "--listen", "127.0.0.1:0"]);
        command.args(more);
    });
    let mut address = None;
    wait_until("it listens", || {
        let log = process.log();
        address = log.split_once("listening on ").and_then(|(_, rest)| {
            let (line, _) = rest.split_once('\n')?;
            line.parse().ok()
        });
        address.is_some()
    });
    (process, address.expect("waited for"))
}

fn page(address: SocketAddr) -> String {
    let answer = get(address, "/metrics").expect("the page");
    String::from_utf8_lossy(&answer.body).into_owned()
}

/// The sum of all series of a name with these labels.
fn count(page: &str, name: &str, labels: &[&str]) -> u64 {
    let of_name = |line: &&str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    };
    let values = page.lines().filter(of_name).map(|line| {
        let value = line
            .rsplit(' ')
            .next()
            .and_then(|value| value.parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("no number: {line}"))
    });
    values.sum::<f64>() as u64
}

/// Sends requests over several connections at a time; the answer is how many of each status came.
fn send(address: SocketAddr, threads: usize, each: usize) -> BTreeMap<u16, u64> {
    let one = move || {
        let statuses = (0..each).map(|_| get(address, "/").expect("an answer").status);
        statuses.collect::<Vec<_>>()
    };
    let running: Vec<_> = (0..threads).map(|_| std::thread::spawn(one)).collect();
    let mut found = BTreeMap::new();
    for thread in running {
        for status in thread.join().expect("no panic") {
            *found.entry(status).or_insert(0) += 1;
        }
    }
    found
}

/// Processes that have this path on their command line, with the whole of it.
fn users(path: &Path) -> Vec<(i32, String)> {
    let path = path.to_string_lossy().into_owned();
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let found = entries.filter_map(|entry| {
        let pid = entry.file_name().to_string_lossy().parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    });
    found.filter(|(_, line)| line.contains(&path)).collect()
}

/// Starts a graph whose services are all entry points, and waits until it is ready.
fn run_graph(folder: &Folder) -> (Process, BTreeMap<String, SocketAddr>) {
    let run = Process::start("graph run", |command| {
        command.args(["graph", "run"]).arg(folder.graph());
        command.args(["--seed", &SEED.to_string()]);
    });
    wait_until("all is ready", || {
        run.log().contains("ready; Ctrl-C stops all")
    });
    let at: BTreeMap<String, SocketAddr> = run
        .log()
        .lines()
        .filter_map(|line| {
            let (name, url) = line.split_once("\thttp://")?;
            Some((name.to_owned(), url.trim_end_matches('/').parse().ok()?))
        })
        .collect();
    (run, at)
}

#[test]
fn a_graph_without_a_mesh_does_exactly_what_its_scripts_say_and_leaves_nothing_behind() {
    const REQUESTS: u64 = 120;
    let folder = Folder::new(GRAPH);
    let (mut run, at) = run_graph(&folder);
    assert_eq!(at.len(), 4, "{}", run.log());

    let statuses = send(at["a"], 6, REQUESTS as usize / 6);

    let (graph, _) = voile_graph::read(&voile_model::SourceFile::new("g", GRAPH));
    let graph = graph.expect("a graph");
    let foretell = |name: &str, requests| {
        let service = &graph.services[graph.find(name).expect("a service")];
        ProcessRandom::new(SEED, &format!("{name}/0")).foretell(service, requests)
    };
    let (_, from_a) = foretell("a", REQUESTS);
    let to_b = from_a[0];
    assert!(
        to_b > 0 && to_b < REQUESTS,
        "a seed that decides nothing: {to_b}"
    );
    let (failed, _) = foretell("c", REQUESTS);
    let (_, from_b) = foretell("b", to_b);
    let expected = [
        ("a", REQUESTS),
        ("b", to_b),
        ("c", REQUESTS),
        ("d", from_b[0] + from_b[1]),
    ];
    for (name, requests) in expected {
        let found = count(&page(at[name]), "service_incoming_requests_total", &[]);
        assert_eq!(found, requests, "requests at {name}");
    }
    assert_eq!(
        statuses,
        BTreeMap::from([(200, REQUESTS - failed), (500, failed)])
    );
    let page_of_a = page(at["a"]);
    for (destination, requests, bad) in [("b:8080", to_b, 0), ("c:8080", REQUESTS, failed)] {
        let label = format!("destination_service=\"{destination}\"");
        let of = |name| count(&page_of_a, name, &[&label]);
        assert_eq!(
            of("service_outgoing_requests_total"),
            requests,
            "{destination}"
        );
        assert_eq!(of("service_outgoing_failures_total"), bad, "{destination}");
        assert_eq!(
            of("service_outgoing_request_size_sum"),
            requests * 1024,
            "{destination}"
        );
    }
    let good = count(
        &page_of_a,
        "service_request_duration_seconds_count",
        &["code=\"200\""],
    );
    let sizes = count(&page_of_a, "service_response_size_sum", &["code=\"200\""]);
    assert_eq!(
        (good, sizes),
        (REQUESTS - failed, (REQUESTS - failed) * 2048)
    );

    run.terminate();
    assert!(run.wait().success(), "{}", run.log());
    assert_eq!(users(&folder.graph()), [], "left behind");
}

/// The CPU time that a process has used.
fn used(process: &Process) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).expect("it runs");
    let (_, fields) = stat.rsplit_once(") ").expect("its fields");
    // utime and stime, the 14th and 15th, of which two are behind us; in ticks of a hundredth of a second.
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: u64 = ticks.map(|one| one.parse::<u64>().expect("ticks")).sum();
    Duration::from_millis(ticks * 10)
}

#[test]
fn a_service_uses_and_holds_all_the_time_what_it_is_said_to() {
    let folder = Folder::new(
        "services:\n- {name: busy, isEntrypoint: true, computeUsage: 30%, memoryUsage: 64 MiB}\n- {name: idle, isEntrypoint: true}\n",
    );
    let begun = Instant::now();
    let [(busy, _), (idle, _)] = ["busy", "idle"].map(|name| serve(&folder, name, &[]));
    let held = |process: &Process| memory(process.pid(), "VmRSS:");
    let more = held(&busy) - held(&idle);
    // Beside it both have what any has, to a few pages.
    assert!((60 << 20..72 << 20).contains(&more), "{more} bytes more");
    let quiet = used(&idle);
    wait_until("it has used a good part of a second", || {
        used(&busy) >= Duration::from_millis(600)
    });
    // Checks CPU time: not more than the share allows, plus the start; there were no requests.
    let (used_by_busy, passed) = (used(&busy), begun.elapsed());
    let most = passed.mul_f64(0.3) + Duration::from_millis(300);
    assert!(used_by_busy <= most, "{used_by_busy:?} in {passed:?}");
    let spent = used(&idle) - quiet;
    assert!(
        spent < Duration::from_millis(100),
        "{spent:?} by one that does nothing"
    );
}

#[test]
fn a_graph_ends_when_one_of_its_services_does() {
    let folder = Folder::new(GRAPH);
    let mut run = Process::start("graph run", |command| {
        command.args(["graph", "run"]).arg(folder.graph());
    });
    wait_until("all is ready", || {
        run.log().contains("ready; Ctrl-C stops all")
    });
    let all = users(&folder.graph());
    let (victim, _) = all
        .iter()
        .find(|(_, line)| line.contains("--service c "))
        .expect("it runs");
    let victim = rustix::process::Pid::from_raw(*victim).expect("a process");
    rustix::process::kill_process(victim, rustix::process::Signal::KILL).expect("sent");
    assert_eq!(run.wait().code(), Some(1), "{}", run.log());
    let said = "c was ended by signal 9; all others are stopped";
    assert!(run.log().contains(said), "{}", run.log());
    assert_eq!(users(&folder.graph()), [], "left behind");
}

#[test]
fn a_service_told_to_end_answers_what_it_has_begun() {
    let folder = Folder::new(
        "services: [{name: a, isEntrypoint: true, responseSize: 5, script: [{sleep: 1s}]}]",
    );
    let (mut process, address) = serve(&folder, "a", &[]);
    let slow = std::thread::spawn(move || get(address, "/").expect("an answer"));
    wait_until("the request is there", || {
        count(&page(address), "service_incoming_requests_total", &[]) == 1
    });
    process.terminate();
    let answer = slow.join().expect("no panic");
    assert_eq!((answer.status, answer.body.len()), (200, 5));
    assert!(process.wait().success(), "{}", process.log());
    assert!(TcpStream::connect(address).is_err(), "it listens no more");
}

#[test]
fn callees_get_payload_headers_and_what_joins_traces() {
    let folder = Folder::new(
        "services:
- {name: a, isEntrypoint: true, script: [{call: {service: b, size: 300, hostname: 'b.default.svc.cluster.local:81', extra-header: {X-User: ann}}}]}
- name: b
",
    );
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let callee = listener.local_addr().expect("bound");
    let told = format!("b={callee}");
    let (_process, address) = serve(&folder, "a", &["--at", &told]);
    let seen = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a call");
        let mut text = Vec::new();
        let mut buffer = [0; 4096];
        while !text.windows(4).any(|end| end == b"\r\n\r\n") || text.len() < 300 {
            let read = stream.read(&mut buffer).expect("readable");
            text.extend_from_slice(&buffer[..read]);
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .expect("written");
        String::from_utf8_lossy(&text).into_owned()
    });
    let trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nX-B3-TraceId: 1\r\nb3: 1-2-1\r\nx-request-id: r\r\ntracestate: a=1\r\nX-Other: no\r\nX-User: eve\r\n";
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{trace}Connection: close\r\n\r\n");
    let answer = exchange(address, request.as_bytes()).expect("an answer");
    assert_eq!(
        answer.status,
        200,
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
    let seen = seen.join().expect("no panic").to_ascii_lowercase();
    let (head, body) = seen.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("post / http/1.1\r\n"), "{head}");
    assert_eq!(body.len(), 300);
    let lines = [
        "host: b.default.svc.cluster.local:81",
        "content-length: 300",
        "x-user: ann",
        "x-b3-traceid: 1",
        "b3: 1-2-1",
        "x-request-id: r",
        "tracestate: a=1",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ];
    for line in lines {
        assert!(head.lines().any(|found| found == line), "{line}:\n{head}");
    }
    assert!(!head.contains("x-other") && !head.contains("eve"), "{head}");
}

#[test]
fn a_callee_that_breaks_off_fails_its_request_and_no_other() {
    let folder = Folder::new(
        "services: [{name: a, isEntrypoint: true, responseSize: 3, script: [{call: b}]}, {name: b}]",
    );
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let callee = listener.local_addr().expect("bound");
    // Errors of a callee, in turn; the last answer is correct.
    let answers: [&[u8]; 5] = [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ];
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("a call");
            let mut buffer = [0; 4096];
            // A client that is gone sees what it deserves.
            let _ = stream.read(&mut buffer);
            let _ = stream.write_all(answer);
        }
    });
    let told = format!("b={callee}");
    let (process, address) = serve(&folder, "a", &["--at", &told, "--call-timeout", "5s"]);
    let asked: Vec<(u16, String)> = (0..answers.len())
        .map(|_| {
            let answer = get(address, "/").expect("an answer");
            (
                answer.status,
                String::from_utf8_lossy(&answer.body).into_owned(),
            )
        })
        .collect();
    let statuses: Vec<u16> = asked.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [500, 500, 500, 500, 200], "{asked:?}");
    assert!(
        asked[3]
            .1
            .contains("service b responded with 503 Service Unavailable: busy"),
        "{asked:?}"
    );

    drop(process);
}

#[test]
fn hostile_clients_harm_nobody_else() {
    let folder = Folder::new("services: [{name: a, isEntrypoint: true, responseSize: 3}]");
    let (mut process, address) = serve(&folder, "a", &[]);
    let mut half_open: Vec<TcpStream> = Vec::new();
    for begin in [
        "",
        "P",
        "PRI",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HTTP/1.1\r\nHo",
    ] {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.write_all(begin.as_bytes()).expect("written");
        half_open.push(stream);
    }
    let long = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "x".repeat(200_000)
    );
    for (bytes, expected) in [
        (b"\x16\x03\x01\x02\x00\x01\x00".to_vec(), "400"),
        (b"GET / HTTP/9.9\r\n\r\n".to_vec(), "400"),
        (long.into_bytes(), "431"),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000000\r\n\r\n".to_vec(),
            "413",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"
                .to_vec(),
            "400",
        ),
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense nonsense nonsense".to_vec(),
            "",
        ),
    ] {
        let answer = read_to_end(address, &bytes).unwrap_or_default();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let shown: String = String::from_utf8_lossy(&bytes).chars().take(60).collect();
        assert!(
            answer.get(9..).unwrap_or_default().starts_with(expected),
            "{shown}: {answer}"
        );
    }
    assert_eq!(get(address, "/healthz").expect("an answer").status, 200);
    assert!(process.is_running());
}

#[test]
fn a_services_http2_passes_h2spec() {
    let Some(h2spec) = program(Prerequisite::H2spec, "h2spec") else {
        return;
    };
    let folder = Folder::new("services: [{name: a, isEntrypoint: true, responseSize: 10}]");
    let (_process, address) = serve(&folder, "a", &[]);
    crate::traffic::http2::assert_h2spec(&h2spec, address, true);
}

#[test]
fn what_is_wrong_is_said_before_anything_runs() {
    let folder = Folder::new("services:\n- {name: a, isEntrypoint: true, errorrate: 1%}\n");
    for arguments in [
        &["check"][..],
        &["run"],
        &["draw"],
        &["mesh", "--out", "/nowhere"],
    ] {
        let output = Process::output(|command| {
            command
                .arg("graph")
                .args(&arguments[..1])
                .arg(folder.graph())
                .args(&arguments[1..]);
        });
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(
            said.contains("graph.yaml:2:33: error[V0101]: unknown field `errorrate`"),
            "{said}"
        );
        assert!(said.contains("help: did you mean `errorRate`?"), "{said}");
    }
}

/// A tree of five with two replicas and a gRPC leaf.
const TREE: &str = "
defaults: {requestSize: 128, responseSize: 1 KB}
services:
- {name: root, isEntrypoint: true, script: [[{call: left}, {call: right}]]}
- {name: left, script: [{call: leaf}]}
- {name: right, numReplicas: 2, script: [{call: leaf}, {call: store}]}
- {name: leaf}
- {name: store, type: grpc}
";

#[test]
fn a_graph_in_a_mesh_counts_the_same_by_mutual_tls_under_load() {
    let folder = Folder::new(TREE);
    let mesh = folder.0.path().join("mesh");
    let made = Process::output(|command| {
        command
            .args(["graph", "mesh"])
            .arg(folder.graph())
            .arg("--out")
            .arg(&mesh);
    });
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let fill = |to: &Path| {
        for entry in std::fs::read_dir(&mesh).expect("made").flatten() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
        }
    };
    let mut up = Up::start_as(fill, &["--isolation", "loopback"], None);
    let published = up.ready();
    let root = published["graph/root"];
    let load = Process::output(|command| {
        command.args([
            "load",
            "--rate",
            "40",
            "--connections",
            "4",
            "--duration",
            "3s",
            "--json",
        ]);
        command.arg(format!("http://{root}/"));
    });
    let load: serde_json::Value = serde_json::from_slice(&load.stdout).expect("JSON");
    // The machine's speed is not under test. Each request must have done all of its work.
    let pods: Vec<(String, SocketAddr)> = up.pods();
    let mut requests: BTreeMap<String, u64> = BTreeMap::new();
    for (workload, sidecar) in &pods {
        let application = SocketAddr::new(sidecar.ip(), 18080);
        let here = count(&page(application), "service_incoming_requests_total", &[]);
        *requests.entry(workload.clone()).or_default() += here;
        let labels = [
            "reporter=\"destination\"",
            "connection_security_policy=\"mutual_tls\"",
        ];
        let by_mutual_tls = count(&page(*sidecar), "istio_requests_total", &labels);
        let expected = if workload == "root" { 0 } else { here };
        assert_eq!(by_mutual_tls, expected, "{workload} at {sidecar}");
    }
    assert_eq!(pods.len(), 6, "{pods:?}");
    let sent = requests["root"];
    assert!(sent >= 100, "{load}");
    let expected = [
        ("root", 1),
        ("left", 1),
        ("right", 1),
        ("leaf", 2),
        ("store", 1),
    ];
    for (workload, factor) in expected {
        assert_eq!(
            requests[workload],
            sent * factor,
            "{workload}: {requests:?}"
        );
    }
}

#[test]
fn the_cost_of_a_mesh_for_a_graph_is_measured_and_its_path_is_proven() {
    let folder = Folder::new(TREE);
    let out = folder.0.path().join("record");
    let bench = Process::output(|command| {
        command.args(["bench", "graph"]).arg(folder.graph());
        command.args(["--rate", "20", "--rounds", "1", "--slice", "1s", "--out"]);
        command.arg(&out);
    });
    let said = String::from_utf8_lossy(&bench.stderr).into_owned();
    let text = std::fs::read_to_string(out.join("graph.json")).unwrap_or_else(|_| panic!("{said}"));
    let record: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(record["scene"]["graph"]["requests"], 6.0);
    let slices = record["runs"].as_array().expect("slices");
    assert_eq!(slices.len(), 2, "{text}");
    for slice in slices {
        // A loaded machine makes the generator late, and the slice invalid for it; never for the path.
        let reasons = slice["invalid_reasons"].to_string();
        assert!(!reasons.contains("sidecars counted"), "{reasons}");
        let mesh = slice["contestant"] == "voile";
        let slice = &slice["measured"];
        let ok = slice["ok"].as_f64().expect("a number");
        assert!(
            ok > 0.0 && slice["cpu_us.service"].as_f64() > Some(0.0),
            "{slice}"
        );
        let counted = slice["by_mutual_tls"].as_f64();
        assert_eq!(counted, mesh.then_some(ok * 5.0), "{slice}");
        assert_eq!(slice["cpu_us.sidecar"].is_number(), mesh, "{slice}");
        each_part(slice, ok, mesh);
    }
    for (file, words) in [
        ("report.md", "6.00 requests for each at the entry point"),
        ("report.html", "6.00 requests for each at the entry point"),
        ("report.html", "right → store"),
        ("report.html", "data:image/svg+xml,"),
        ("results.csv", ",edges.root → left.calls,"),
        ("graph.svg", "store"),
    ] {
        let text = std::fs::read_to_string(out.join(file)).expect("written");
        assert!(text.contains(words), "{file}: {text}");
    }
    let before = std::fs::read_to_string(out.join("report.html")).expect("the page");
    std::fs::remove_file(out.join("report.html")).expect("removed");
    let again = Process::output(|command| {
        command
            .args(["bench", "report", "--plots", "svg,png"])
            .arg(&out);
    });
    assert!(again.status.success(), "{again:?}");
    let drawn = std::fs::read_to_string(out.join("report.html")).expect("drawn again");
    assert_eq!(drawn, before);
    // If a loaded machine made the round invalid, the plots of every slice by its round remain.
    assert!(std::fs::read_dir(out.join("plots")).expect("plots").count() >= 4);
    assert_eq!(users(&folder.graph()), [], "left behind");
}

/// Every service and every call has its figures, and they are of this slice: a request to the root makes two at the leaf.
fn each_part(slice: &serde_json::Value, ok: f64, mesh: bool) {
    for (service, factor) in [
        ("root", 1),
        ("left", 1),
        ("right", 1),
        ("leaf", 2),
        ("store", 1),
    ] {
        let found = |figure: &str| slice[format!("services.{service}.{figure}")].as_f64();
        let requests = ok * f64::from(factor);
        assert_eq!(found("requests"), Some(requests), "{service}: {slice}");
        for figure in ["took.mean_us", "cpu_us"] {
            assert!(found(figure) > Some(0.0), "{service} {figure}: {slice}");
        }
        for figure in ["sidecar_cpu_us", "sidecar_rss_bytes"] {
            let there = found(figure) > Some(0.0);
            assert_eq!(there, mesh, "{service} {figure}: {slice}");
        }
    }
    for call in [
        "root → left",
        "root → right",
        "left → leaf",
        "right → leaf",
        "right → store",
    ] {
        let found = |figure: &str| slice[format!("edges.{call}.{figure}")].as_f64();
        let counted = (found("calls"), found("failed"));
        assert_eq!(counted, (Some(ok), Some(0.0)), "{call}: {slice}");
        assert!(found("took.mean_us") > Some(0.0), "{call}: {slice}");
    }
}

/// A second is longer than anything else that happens to a request.
#[test]
fn a_call_to_another_cluster_takes_so_much_longer_and_is_named_by_check() {
    let folder = Folder::new(
        "defaults: {clusterLatency: 1s}\nservices:\n\
         - {name: a, isEntrypoint: true, cluster: near, script: [{call: b}, {call: c}]}\n\
         - {name: b, isEntrypoint: true, cluster: far}\n- {name: c, isEntrypoint: true, cluster: near}\n",
    );
    let checked = Process::output(|command| {
        command.args(["graph", "check"]).arg(folder.graph());
    });
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(
        said.ends_with("to another cluster: a → b, 1s longer\n"),
        "{said}"
    );
    assert!(checked.stderr.is_empty(), "nothing to complain about");
    let (_run, entries) = run_graph(&folder);
    assert_eq!(get(entries["a"], "/").expect("an answer").status, 200);
    let page = page(entries["a"]);
    let took = |callee: &str| {
        let name = format!(
            "service_outgoing_request_duration_seconds_sum{{destination_service=\"{callee}:8080\"}} "
        );
        let line = page.lines().find_map(|line| line.strip_prefix(&name));
        let took = line.and_then(|took| took.parse::<f64>().ok());
        took.unwrap_or_else(|| panic!("{name}: {page}"))
    };
    assert!(
        took("b") >= 1.0 && took("c") < 1.0,
        "{} {}",
        took("b"),
        took("c")
    );
}
