//! `voile up`: a folder becomes a mesh that serves, follows edits, survives broken ones, and leaves nothing behind.

mod commands;
mod contained;
mod dashboard;
mod errors;
mod files;
mod guides;
mod keys;
mod kinds;
pub(crate) mod netns;
mod netns_traffic;
mod probes;
pub(crate) mod rollout;
mod tutorial;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::mesh::{Answer, Process, get, put, read_answer, series, wait_until};

/// A service without a sidecar that calls one with a sidecar, and a file for each.
pub(crate) const PAIR: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: pair}
spec: {selector: {app: web}, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: plain, namespace: pair}
spec: {type: LoadBalancer, selector: {app: plain}, ports: [{name: http, port: 8081}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: pair, labels: {app: web, sidecar.istio.io/inject: "true"}}
spec: {containers: [{name: app, command: ["$(VOILE)", echo, --listen, "$(POD_IP):18080"]}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: pair}
spec:
  workloadSelector: {labels: {app: web}}
  ingress: [{port: {number: 8080, protocol: HTTP, name: http}, captureMode: NONE, defaultEndpoint: "0.0.0.0:18080"}]
---
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: pair, labels: {app: plain}}
spec: {containers: [{name: app, command: ["$(VOILE)", echo, --listen, "$(POD_IP):8081", --call, "http://$(WEB_SERVICE_HOST):$(WEB_SERVICE_PORT)/"]}]}
"#;

/// A running `voile up`, its standard output and error in files, its temporary files in a folder of its own.
pub(crate) struct Up {
    folder: tempfile::TempDir,
    child: Child,
}

impl Up {
    /// On loopback addresses, which these tests are about.
    pub(crate) fn start(fill: impl FnOnce(&Path), arguments: &[&str]) -> Up {
        Self::start_as(
            fill,
            &[&["--isolation", "loopback"], arguments].concat(),
            None,
        )
    }

    /// With the temporary files of another one.
    pub(crate) fn start_beside(other: &Up, fill: impl FnOnce(&Path), arguments: &[&str]) -> Up {
        let arguments = [&["--isolation", "loopback"], arguments].concat();
        Self::start_in(fill, &arguments, None, Some(&other.temporary()))
    }

    /// As a user, when that is not us.
    pub(crate) fn start_as(fill: impl FnOnce(&Path), arguments: &[&str], user: Option<u32>) -> Up {
        Self::start_in(fill, arguments, user, None)
    }

    fn start_in(
        fill: impl FnOnce(&Path),
        arguments: &[&str],
        user: Option<u32>,
        temporary: Option<&Path>,
    ) -> Up {
        let folder = tempfile::tempdir().expect("a folder");
        for inner in ["mesh", "tmp"] {
            std::fs::create_dir(folder.path().join(inner)).expect("made");
        }
        fill(&folder.path().join("mesh"));
        let file = |name: &str| std::fs::File::create(folder.path().join(name)).expect("made");
        let mut command = match user {
            None => Command::new(env!("CARGO_BIN_EXE_voile")),
            Some(user) => {
                // Other users may not read the folder of our program.
                let voile = folder.path().join("voile");
                std::fs::copy(env!("CARGO_BIN_EXE_voile"), &voile).expect("copied");
                for path in ["", "tmp"] {
                    let path = folder.path().join(path);
                    std::os::unix::fs::chown(path, Some(user), Some(user)).expect("given away");
                }
                let mut command = Command::new(voile);
                command.uid(user).gid(user);
                command
            }
        };
        let child = command
            .arg("up")
            .arg(folder.path().join("mesh"))
            .args(arguments)
            .env("TMPDIR", temporary.unwrap_or(&folder.path().join("tmp")))
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .expect("voile starts");
        Up { folder, child }
    }

    pub(crate) fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    /// Log of a process of the run.
    pub(crate) fn log(&self, process: &str) -> String {
        let runs = self.left_behind();
        let logs = runs
            .iter()
            .map(|run| run.join("logs").join(format!("{process}.log")));
        logs.filter_map(|log| std::fs::read_to_string(log).ok())
            .collect()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("mesh").join(name)
    }

    pub(crate) fn edit(&self, name: &str, from: &str, to: &str) {
        let path = self.file(name);
        let text = std::fs::read_to_string(&path).expect("the file is there");
        assert!(text.contains(from), "{name} has no {from:?}");
        put(&path, &text.replacen(from, to, 1));
    }

    /// The folder of temporary files.
    fn temporary(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }

    /// Runs another command of the program beside this one; returns its exit code, and what it said.
    pub(crate) fn command(&self, words: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_voile"))
            .args(words)
            .env("TMPDIR", self.temporary())
            .stdin(Stdio::null())
            .output()
            .expect("voile starts");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        (output.status.code(), said)
    }

    /// Waits until all is ready and returns the published addresses by service.
    pub(crate) fn ready(&mut self) -> BTreeMap<String, SocketAddr> {
        let mut ended = None;
        wait_until("all is ready, or it has ended", || {
            ended = self.child.try_wait().expect("it can be waited for");
            ended.is_some() || self.text("err").contains("voile up: ready after")
        });
        assert_eq!(ended, None, "{}", self.text("err"));
        let line = |line: &str| {
            let (service, url) = line.split_once('\t')?;
            Some((service.to_owned(), url.split_once("://")?.1.parse().ok()?))
        };
        self.text("out").lines().filter_map(line).collect()
    }

    /// The metrics pages of all sidecars that answer, and where they are.
    fn sidecars(&self) -> Vec<(SocketAddr, String)> {
        let text = self.text("err");
        let (_, block) = text
            .split_once(" pods in 127.")
            .expect("the block is printed");
        let octet: u8 = block
            .split('.')
            .next()
            .and_then(|octet| octet.parse().ok())
            .expect("an octet");
        let pods =
            (2..20).map(|last| SocketAddr::from((Ipv4Addr::new(127, octet, 0, last), 15020)));
        pods.filter_map(|address| Some((address, get(address, "/metrics").ok()?)))
            .map(|(at, answer)| (at, String::from_utf8_lossy(&answer.body).into_owned()))
            .collect()
    }

    /// The metrics pages of all sidecars that answer.
    fn pages(&self) -> Vec<String> {
        self.sidecars().into_iter().map(|(_, page)| page).collect()
    }

    /// The workloads whose sidecars took requests, and where their metrics are.
    pub(crate) fn pods(&self) -> Vec<(String, SocketAddr)> {
        let workload = |page: &str| {
            let line = page.lines().find(|line| {
                line.starts_with("istio_requests_total")
                    && line.contains("reporter=\"destination\"")
            })?;
            let (_, rest) = line.split_once("destination_workload=\"")?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        let pods = self.sidecars().into_iter();
        pods.filter_map(|(at, page)| Some((workload(&page)?, at)))
            .collect()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the signal is sent");
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("voile up ends", || {
            ended = self.child.try_wait().expect("it can be waited for");
            ended.is_some()
        });
        ended.expect("the wait ended with a status")
    }

    /// Processes that inherited our environment, by pid and command line.
    pub(crate) fn family(&self) -> Vec<String> {
        let mark = format!("TMPDIR={}", self.folder.path().join("tmp").display());
        let entries = std::fs::read_dir("/proc").expect("/proc");
        let of_family = |pid: &str| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment
                .split(|byte| *byte == 0)
                .any(|variable| variable == mark.as_bytes())
        };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && of_family(name))
            .map(|pid| {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                format!(
                    "{pid} {}",
                    String::from_utf8_lossy(&line).replace('\0', " ")
                )
            })
            .collect()
    }

    pub(crate) fn left_behind(&self) -> Vec<PathBuf> {
        let entries =
            std::fs::read_dir(self.folder.path().join("tmp")).expect("the folder is there");
        entries.flatten().map(|entry| entry.path()).collect()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // Already gone is as good; its children go with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- voile up\n{}{}", self.text("out"), self.text("err"));
        }
    }
}

pub(crate) fn bookstore(folder: &Path) {
    example("bookstore", folder);
}

/// Copies one of the examples.
pub(crate) fn example(name: &str, folder: &Path) {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    for entry in std::fs::read_dir(examples.join(name))
        .expect("the example is there")
        .flatten()
    {
        std::fs::copy(entry.path(), folder.join(entry.file_name())).expect("copied");
    }
}

/// A page of `voile dashboard` or `voile up --web`, by the URL that it printed.
#[derive(Debug, Clone)]
pub(crate) struct PrintedPage {
    pub(crate) address: SocketAddr,
    /// `/KEY`.
    pub(crate) base: String,
}

impl PrintedPage {
    pub(crate) fn parse(url: &str) -> Option<Self> {
        let rest = url.strip_prefix("http://")?.strip_suffix('/')?;
        let (address, key) = rest.split_once('/')?;
        Some(Self {
            address: address.parse().ok()?,
            base: format!("/{key}"),
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}{}/", self.address, self.base)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        get(self.address, &format!("{}{path}", self.base)).expect("an answer")
    }
}

/// The page that `voile up --web` serves.
pub(crate) fn web(up: &Up) -> PrintedPage {
    let mut page = None;
    wait_until("the runner says where its page is", || {
        let text = up.text("err");
        let mut lines = text.lines();
        page = lines.find_map(|line| PrintedPage::parse(line.split_once("dashboard ")?.1));
        page.is_some()
    });
    page.expect("a page")
}

pub(crate) fn pair(folder: &Path) {
    std::fs::write(folder.join("pair.yaml"), PAIR).expect("written");
}

/// Requests that the sidecars of a workload took by mutual TLS, pod by pod.
fn by_mutual_tls(up: &Up, workload: &str) -> Vec<f64> {
    let workload = format!("destination_workload=\"{workload}\"");
    let labels = [
        "reporter=\"destination\"",
        "connection_security_policy=\"mutual_tls\"",
        &workload,
    ];
    up.pages()
        .iter()
        .filter_map(|page| series(page, "istio_requests_total", &labels))
        .collect()
}

#[test]
fn the_bookstore_serves_by_mutual_tls_follows_edits_survives_broken_ones_and_leaves_nothing_behind()
{
    let mut up = Up::start(bookstore, &[]);
    let published = up.ready();
    let storefront = published["bookstore/storefront"];
    let answer = get(storefront, "/").expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    for workload in ["books", "reviews", "ratings", "inventory"] {
        wait_until(&format!("{workload} is called by mutual TLS"), || {
            by_mutual_tls(&up, workload)
                .iter()
                .any(|count| *count > 0.0)
        });
    }

    up.edit("reviews.yaml", "replicas: 2", "replicas: 3");
    wait_until("the third replica takes requests", || {
        assert_eq!(
            get(storefront, "/")
                .expect("an answer while scaling")
                .status,
            200
        );
        by_mutual_tls(&up, "reviews").len() == 3
    });
    up.edit("reviews.yaml", "replicas: 3", "replicas: 1");
    wait_until("two replicas go", || {
        assert_eq!(
            get(storefront, "/")
                .expect("an answer while scaling")
                .status,
            200
        );
        by_mutual_tls(&up, "reviews").len() == 1
    });

    up.edit("security.yaml", "mode: PERMISSIVE", "mode: STRICTEST");
    wait_until("the broken edit is reported", || {
        up.text("err").contains("security.yaml:21:")
    });
    assert_eq!(
        get(storefront, "/")
            .expect("the last good state serves")
            .status,
        200
    );
    up.edit("security.yaml", "mode: STRICTEST", "mode: STRICT");
    wait_until("plaintext is refused", || get(storefront, "/").is_err());

    assert!(
        !up.family().is_empty(),
        "there is something to leave behind"
    );
    up.signal(rustix::process::Signal::INT);
    let status = up.wait();
    assert!(status.success(), "{status}");
    assert_eq!(up.family(), Vec::<String>::new());
    assert_eq!(up.left_behind(), Vec::<PathBuf>::new());
}

/// Clients that ask again and again, on connections they keep and on new ones, until nobody answers.
fn traffic(to: SocketAddr) -> Vec<std::thread::JoinHandle<usize>> {
    let ask = move || {
        let mut answered = 0;
        while let Ok(mut kept) = std::net::TcpStream::connect(to) {
            let mut reader = match kept.try_clone() {
                Ok(clone) => std::io::BufReader::new(clone),
                Err(_) => break,
            };
            for _ in 0..10 {
                let sent = kept.write_all(b"GET / HTTP/1.1\r\nHost: plain\r\n\r\n");
                match sent.and_then(|()| read_answer(&mut reader)) {
                    Ok(answer) => answered += usize::from(answer.status == 200),
                    Err(_) => break,
                }
            }
        }
        answered
    };
    (0..2).map(|_| std::thread::spawn(ask)).collect()
}

/// Three rounds, each interrupted while clients ask.
pub(crate) fn rounds(mut start: impl FnMut() -> Option<(Up, SocketAddr)>, mut check: impl FnMut()) {
    for round in 0..3 {
        let Some((mut up, address)) = start() else {
            return;
        };
        wait_until("it serves", || {
            get(address, "/").is_ok_and(|answer| answer.status == 200)
        });
        let clients = traffic(address);
        // So that there is something in flight.
        for _ in 0..20 {
            assert_eq!(get(address, "/").expect("an answer").status, 200);
        }
        up.signal(rustix::process::Signal::INT);
        let status = up.wait();
        assert!(status.success(), "round {round}: {status}");
        assert_eq!(up.family(), Vec::<String>::new(), "round {round}");
        assert_eq!(up.left_behind(), Vec::<PathBuf>::new(), "round {round}");
        assert!(get(address, "/").is_err(), "round {round}: nobody listens");
        for client in clients {
            assert!(client.join().expect("it ends") > 0, "round {round}");
        }
        check();
    }
}

#[test]
fn three_rounds_interrupted_under_traffic_leave_no_process_socket_or_file() {
    rounds(
        || {
            let mut up = Up::start(pair, &["--quiet"]);
            let published = up.ready();
            Some((up, published["pair/plain"]))
        },
        || {},
    );
}

#[test]
fn a_pod_without_a_sidecar_reaches_services_and_a_killed_runner_leaves_no_process() {
    let mut up = Up::start(pair, &["--quiet"]);
    let published = up.ready();
    let answer = get(published["pair/plain"], "/").expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    let counted = up.pages().iter().any(|page| {
        series(
            page,
            "istio_requests_total",
            &[
                "destination_workload=\"web-0\"",
                "connection_security_policy=\"none\"",
            ],
        )
        .is_some()
    });
    assert!(counted, "the sidecar has seen the call: {:?}", up.pages());
    up.signal(rustix::process::Signal::KILL);
    assert!(!up.wait().success());
    wait_until("no process is left", || up.family().is_empty());
}

#[test]
fn what_cannot_be_written_or_read_for_a_while_is_said_and_done_later() {
    let mut up = Up::start(pair, &[]);
    let plain = up.ready()["pair/plain"];
    let run = up.left_behind().pop().expect("the run's folder");
    // Any write error of the kernel takes this path; so does a full disk.
    let (tokens, away) = (run.join("tokens"), run.join("away"));
    std::fs::rename(&tokens, &away).expect("taken away");
    let second = r#"
apiVersion: v1
kind: Pod
metadata: {name: second, namespace: pair, labels: {app: second, sidecar.istio.io/inject: "true"}}
spec: {containers: [{name: app, command: ["$(VOILE)", echo, --listen, "$(POD_IP):18080"]}]}
"#;
    std::fs::write(up.file("second.yaml"), second).expect("written");
    wait_until("the failure is said", || {
        up.text("err").contains("retrying every second")
    });
    assert_eq!(get(plain, "/").expect("it goes on").status, 200);
    std::fs::rename(&away, &tokens).expect("put back");
    wait_until("the token is written", || {
        tokens.join("pair.second-0").exists()
    });
    let (mesh, aside) = (up.file(""), up.folder.path().join("aside"));
    std::fs::rename(&mesh, &aside).expect("moved away");
    wait_until("that is said", || {
        up.text("err").contains("the folder cannot be read")
    });
    std::fs::rename(&aside, &mesh).expect("moved back");
    wait_until("its return is said", || {
        up.text("err").contains("the folder can be read again")
    });
    assert_eq!(get(plain, "/").expect("it goes on").status, 200);
    up.signal(rustix::process::Signal::INT);
    assert_eq!(up.wait().code(), Some(0), "{}", up.text("err"));
}

#[test]
fn an_application_that_crashes_is_reported_with_its_last_words_and_an_edit_heals_it() {
    let mut up = Up::start(pair, &["--quiet"]);
    let plain = up.ready()["pair/plain"];
    assert_eq!(get(plain, "/").expect("an answer").status, 200);
    let good = r#"command: ["$(VOILE)", echo, --listen, "$(POD_IP):18080"]"#;
    let bad = r#"command: [sh, -c, "echo last words of $POD_NAME; exit 3"]"#;
    up.edit("pair.yaml", good, bad);
    wait_until("the crash is reported with the pause that follows", || {
        up.text("err").contains(
            "pair.web-0.app ended with code 3; starting it again in 1s\n    last words of web-0",
        )
    });
    assert_ne!(
        get(plain, "/").expect("plain answers, but not well").status,
        200
    );
    up.edit("pair.yaml", bad, good);
    wait_until("it is well again", || {
        get(plain, "/").is_ok_and(|answer| answer.status == 200)
    });
}

#[test]
fn an_interrupt_during_the_start_is_obeyed() {
    let mut up = Up::start(bookstore, &[]);
    wait_until("it has begun", || up.text("err").contains("waiting for"));
    up.signal(rustix::process::Signal::INT);
    let status = up.wait();
    assert!(status.success(), "{status}");
    assert_eq!((up.family(), up.left_behind()), (vec![], vec![]));
}

#[test]
fn once_ready_runs_a_command_that_knows_the_urls_and_gives_its_exit_code() {
    let mut up = Up::start(
        pair,
        &[
            "--quiet",
            "--once-ready",
            "echo \"got $URL_PAIR_PLAIN\"; exit 7",
        ],
    );
    let status = up.wait();
    assert_eq!(status.code(), Some(7), "{}", up.text("err"));
    assert!(
        up.text("out").contains("got http://127.0.0.1:"),
        "{}",
        up.text("out")
    );
    assert_eq!((up.family(), up.left_behind()), (vec![], vec![]));
}

#[test]
fn what_cannot_be_done_is_said_with_the_right_exit_code() {
    for (arguments, code, says) in [
        (vec!["up", ".", "--isolation", "vm"], 2, "netns"),
        (vec!["up", "/nonexistent/folder"], 1, "/nonexistent/folder"),
        (vec!["up"], 2, "<DIR>"),
    ] {
        let output = Process::output(|voile| {
            voile.args(&arguments);
        });
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
}
