//! Tests of the pages of `examples/ingress`, `ambient` and `machine`: run their commands and make the edits that they name.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use voile_host::netns::Namespace;
use voile_testkit::prerequisites::{Prerequisite, require};

use crate::mesh::{Process, get, series, wait_until};
use crate::up::netns::start_with;
use crate::up::{Up, example};

fn page(example: &str) -> String {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    std::fs::read_to_string(examples.join(example).join("README.md")).expect("its page")
}

/// Texts between the fences of a page, in their order.
fn fenced(page: &str) -> Vec<&str> {
    page.split("```").skip(1).step_by(2).collect()
}

/// Ran by a shell; what it printed.
fn shell(command: &str) -> String {
    let ran = Command::new("sh").args(["-c", command]).output();
    String::from_utf8_lossy(&ran.expect("a shell").stdout).replace('\r', "")
}

/// The page's curl commands, with the published address in place of a port.
fn curls(text: &str, port: u16, at: SocketAddr) -> Vec<String> {
    let lines = text.lines().filter(|line| line.starts_with("curl "));
    let here = |line: &str| {
        line.replace(&format!(":{port}"), &format!(":{}", at.port()))
            .replacen("curl ", "curl -s --max-time 20 ", 1)
    };
    lines.map(here).collect()
}

/// The status, and who answered.
fn answer(text: &str) -> (&str, &str) {
    let status = text.split(' ').nth(1).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once(": "));
    let who = lines.find(|(name, _)| name.eq_ignore_ascii_case("x-voile-echo"));
    (status, who.map_or("", |(_, who)| who))
}

#[test]
fn the_ingress_example_answers_as_its_page_says_in_http_and_tls() {
    let own = tempfile::tempdir().expect("a folder");
    let pair = own.path().join("shop").to_string_lossy().into_owned();
    let page = page("ingress").replace("/tmp/shop", &pair);
    let mut up = Up::start(|folder| example("ingress", folder), &["--quiet"]);
    let published = up.ready();
    let gateway = published["ingress/gateway"];
    let expected = [
        ("200", "web-0"),
        ("200", "cart-0"),
        ("200", "cart-0"),
        ("404", ""),
        ("403", ""),
    ];
    let blocks = fenced(&page);
    let block = |begins: &str| {
        let mut all = blocks.iter().map(|block| block.trim_start_matches('\n'));
        all.find(|block| block.starts_with(begins))
            .expect("a block of the page")
    };
    let commands = curls(block("curl -i -H 'Host: shop.example'"), 30098, gateway);
    assert_eq!(commands.len(), expected.len(), "{commands:?}");
    for (command, expected) in commands.iter().zip(expected) {
        let text = shell(command);
        assert_eq!(answer(&text), expected, "{command}: {text}");
    }

    // In TLS: a certificate, a server, a port.
    let certificate =
        block("openssl req").replace("examples/ingress", &up.file("").to_string_lossy());
    shell(&certificate);
    let server = block("    - port:\n        number: 8443");
    let last = "        - \"*.shop.example\"\n";
    up.edit("gateway.yaml", last, &format!("{last}{server}"));
    let port = "      nodePort: 30098\n";
    let https =
        "    - name: https\n      port: 443\n      targetPort: 8443\n      nodePort: 30443\n";
    up.edit("gateway.yaml", port, &format!("{port}{https}"));
    let asks = block("curl -i --cacert");
    let in_tls = || {
        let command = curls(asks, 30443, later(&up, 30443)).remove(0);
        let text = shell(&command);
        answer(&text) == ("200", "web-0")
    };
    wait_until("the gateway to serve in TLS", in_tls);
    shell(&certificate);
    wait_until("the other certificate to be shown", in_tls);
    let secret = std::fs::read_to_string(up.file("secret.yaml")).expect("the Secret");
    let lines = secret.lines().map(|line| match line.contains("tls.crt: ") {
        true => "  tls.crt: cnViYmlzaA==\n".to_owned(),
        false => format!("{line}\n"),
    });
    std::fs::write(up.file("secret.yaml"), lines.collect::<String>()).expect("written");
    wait_until("the rubbish to be named", || {
        let log = up.log("control");
        log.contains("ingress/shop-certificate: the certificate cannot be read")
    });
    assert!(in_tls(), "the last good one is shown");
    wait_until("the Secret's line to be named", || {
        let said = up.text("err");
        let mut lines = said.lines().filter(|line| line.contains("[V0411]"));
        lines.any(|line| {
            line.contains("secret.yaml:") && line.contains("contains no PEM certificate")
        })
    });
    let redirects = format!("{last}      tls: {{httpsRedirect: true}}\n");
    up.edit("gateway.yaml", last, &redirects);
    wait_until("clients of HTTP to be sent to TLS", || {
        answer(&shell(&commands[0])).0 == "301"
    });
}

/// Published address of a port that came while the mesh ran: the wished one, unless another process has it.
fn later(up: &Up, wish: u16) -> SocketAddr {
    let wish = format!("127.0.0.1:{wish}");
    let said = up.text("err");
    let note = said.split_once(&format!("cannot be published on {wish} ("));
    let instead = note.and_then(|(_, rest)| {
        let (_, rest) = rest.split_once("; on ")?;
        let (url, _) = rest.split_once(" instead")?;
        Some(url.split_once("://")?.1.to_owned())
    });
    instead.unwrap_or(wish).parse().expect("an address")
}

#[test]
fn the_ambient_example_answers_as_its_page_says_and_follows_its_edits() {
    // Without flags: the labels ask for a node proxy.
    let Some((up, published)) = start_with(|folder| example("ambient", folder), None, &[]) else {
        return;
    };
    let (reader, browser) = (published["library/reader"], published["library/browser"]);
    let text = page("ambient");
    let commands = |port, at| curls(fenced(&text)[2], port, at);
    let [asks_reader, asks_browser] = [(0, 30096, reader), (1, 30097, browser)]
        .map(|(line, port, at)| commands(port, at).remove(line));
    let becomes = |wanted: [&str; 2]| {
        wait_until(&format!("they are answered {wanted:?}"), || {
            [shell(&asks_reader), shell(&asks_browser)]
                == wanted.map(|status| format!("{status}\n"))
        });
    };
    becomes(["200", "502"]);

    let paths = "              - /books/*\n";
    let who = "              - cluster.local/ns/library/sa/reader\n";
    up.edit(
        "waypoint.yaml",
        paths,
        &format!("{paths}              - /drafts/*\n"),
    );
    up.edit(
        "waypoint.yaml",
        who,
        &format!("{who}{}", who.replace("reader", "browser")),
    );
    becomes(["200", "200"]);
    up.edit("books.yaml", "use-waypoint: gate", "use-waypoint: missing");
    becomes(["502", "502"]);
    up.edit("books.yaml", "use-waypoint: missing", "use-waypoint: gate");
    becomes(["200", "200"]);
    let aims = "  targetRefs:\n    - kind: Service\n      group: \"\"\n      name: books\n";
    up.edit(
        "waypoint.yaml",
        aims,
        "  selector: {matchLabels: {app: books}}\n",
    );
    wait_until("the policy to be refused with an explanation", || {
        up.text("err").contains("V0343")
    });
}

#[test]
fn the_ambient_example_is_explained_as_its_page_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = page("ambient");
    let lines = page
        .lines()
        .filter(|line| line.starts_with("voile explain "));
    let said: Vec<String> = lines
        .map(|line| {
            let output = Process::output(|voile| {
                voile.current_dir(&root).args(line.split(' ').skip(1));
            });
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
        .collect();
    let [reader, browser] = &said[..] else {
        panic!("two questions: {said:?}");
    };
    assert!(reader.starts_with("ALLOWED"), "{reader}");
    assert!(browser.starts_with("DENIED"), "{browser}");
}

#[test]
fn the_ambient_example_without_a_waypoint_is_open_and_said_to_be() {
    let without = |folder: &Path| {
        example("ambient", folder);
        let books = folder.join("books.yaml");
        let text = std::fs::read_to_string(&books).expect("books");
        let text = text.replace("use-waypoint: gate", "use-waypoint: none");
        std::fs::write(books, text).expect("written");
    };
    let Some((up, published)) = start_with(without, None, &["--dataplane", "node"]) else {
        return;
    };
    for name in ["reader", "browser"] {
        let at = published[&format!("library/{name}")];
        wait_until("everybody to read everything", || {
            get(at, "/").is_ok_and(|answer| answer.status == 200)
        });
    }
    assert!(up.text("err").contains("V0324"), "{}", up.text("err"));
}

/// A network of the test's own, in which the addresses and ports of the page are free.
fn machine() -> Option<Namespace> {
    let machine = require(Prerequisite::Netns, Namespace::create())?;
    let up = machine
        .run(|| shell("ip link set lo up && echo up"))
        .expect("entered");
    assert_eq!(up, "up\n", "the loopback interface");
    Some(machine)
}

/// The page's machine: its network, and the processes in it.
struct Court {
    network: Namespace,
    /// Where `voile status` looks for meshes: others may run on this machine.
    temporary: PathBuf,
    running: Vec<(String, Process)>,
}

impl Court {
    /// Runs the commands of a block of the page, which begin at the repository's root.
    fn play(&mut self, block: &str) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let voile = Path::new(env!("CARGO_BIN_EXE_voile"));
        let text = block.replace("\\\n", " ");
        for line in text.lines().filter(|line| !line.is_empty()) {
            let Some(line) = line.strip_suffix(" &") else {
                let folder = voile.parent().expect("its folder").display();
                let command = format!("cd {} && PATH={folder}:$PATH && {line}", root.display());
                self.inside(|| shell(&command));
                continue;
            };
            let words: Vec<&str> = line.split_whitespace().skip(1).collect();
            let start = || {
                Process::start(line, |voile| {
                    voile.current_dir(&root).args(&words);
                })
            };
            let process = self.inside(start);
            self.running.push((words.join(" "), process));
        }
    }

    fn inside<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        self.network.run(what).expect("entered")
    }

    /// Ends what runs with all of these words.
    fn stop(&mut self, words: [&str; 2]) {
        let is = |(line, _): &(String, Process)| words.iter().all(|word| line.contains(word));
        let place = self.running.iter().position(is).expect("it runs");
        let (_, mut process) = self.running.remove(place);
        process.terminate();
        process.wait();
    }

    /// The rows of `voile status` that tell of members: name and whether it is well.
    fn members(&self) -> Vec<(String, String)> {
        let voile = env!("CARGO_BIN_EXE_voile");
        let temporary = self.temporary.display();
        let text = self.inside(|| shell(&format!("TMPDIR='{temporary}' {voile} status")));
        let row = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, member, _, well] = words[..] else {
                return None;
            };
            member
                .starts_with("stock-")
                .then(|| (member.to_owned(), well.to_owned()))
        };
        text.lines().filter_map(row).collect()
    }

    /// Returns true if a call of the client gets an answer with status 200.
    fn is_answered(&self) -> bool {
        let asked = "curl -s -o /dev/null -w '%{http_code}' --max-time 5 http://127.70.0.100:8080/";
        self.inside(|| shell(asked)) == "200"
    }

    /// Requests that the sidecar at this address took.
    fn taken(&self, last: u8) -> f64 {
        let at = SocketAddr::from(([127, 70, 0, last], 15020));
        let page = self.inside(|| get(at, "/metrics").map(|answer| answer.body));
        let page = String::from_utf8_lossy(&page.unwrap_or_default()).into_owned();
        let labels = ["reporter=\"destination\"", "mutual_tls"];
        series(&page, "istio_requests_total", &labels).unwrap_or_default()
    }
}

#[test]
fn the_machine_example_takes_machines_in_and_lets_them_go_as_its_page_says() {
    let Some(network) = machine() else {
        return;
    };
    let own = tempfile::tempdir().expect("a folder");
    let page = page("machine").replace("/tmp/", &format!("{}/", own.path().display()));
    let blocks = fenced(&page);
    let [control, client, join, shown] = blocks[..4] else {
        panic!("four blocks: {blocks:?}");
    };
    let mut court = Court {
        network,
        temporary: own.path().to_owned(),
        running: Vec::new(),
    };
    let well = |all: &[(&str, &str)]| -> Vec<(String, String)> {
        let row = |(last, well): &(&str, &str)| (format!("stock-127.70.0.{last}"), (*well).into());
        all.iter().map(row).collect()
    };
    court.play(control);
    wait_until("what clients trust", || {
        own.path().join("machine/root-cert.pem").exists()
    });
    court.play(client);
    court.play(join);
    wait_until("the machine to answer", || court.is_answered());
    wait_until("the machine to be shown", || {
        court.members() == well(&[("2", "yes")])
    });
    let row = shown.lines().last().expect("a row").split_whitespace();
    assert_eq!(
        row.collect::<Vec<_>>()[1..],
        ["stock-127.70.0.2", "127.70.0.2", "yes"]
    );
    assert!(court.taken(2) >= 1.0, "over mutual TLS");
    let entry = own.path().join("machine/workloads/127.70.0.2.json");
    assert!(entry.exists(), "it is a document");

    court.play(&join.replace("127.70.0.2", "127.70.0.3"));
    wait_until("calls to go to both", || {
        court.is_answered() && court.taken(3) >= 1.0
    });
    court.stop(["echo", "127.70.0.2"]);
    wait_until("who is ill to be said so", || {
        court.members() == well(&[("2", "no"), ("3", "yes")])
    });
    wait_until("the other to take all calls", || {
        let before = court.taken(3);
        (0..10).all(|_| court.is_answered()) && court.taken(3) - before >= 10.0
    });
    let echo = join.lines().find(|line| line.starts_with("voile echo"));
    court.play(echo.expect("its application"));
    wait_until("it to be well again", || {
        court.members() == well(&[("2", "yes"), ("3", "yes")])
    });
    court.stop(["--workload-group", "127.70.0.2"]);
    wait_until("it to have left", || {
        court.members() == well(&[("3", "yes")]) && !entry.exists()
    });
    assert!(court.is_answered());
}
