//! `voile up --isolation netns`: the same folders in namespaces, captured by redirection; the host untouched, and nothing
//! left behind, whoever is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use voile_host::netns::Namespace;
use voile_host::netns::link::{Bridge, Prefixed};
use voile_testkit::prerequisites::{Prerequisite, program, require, skip};

use crate::mesh::resolver::Resolver;
use crate::mesh::{application, get, series, wait_until};
use crate::up::{Up, bookstore, rounds};

/// Somebody without privileges.
pub(crate) const NOBODY: u32 = 65534;

/// A server that wants mutual TLS, and its clients: one captured, one without a sidecar, one whose calls are excluded.
pub(crate) const COURT: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: court, labels: {istio-injection: enabled}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: court}
spec: {selector: {matchLabels: {app: server}}, mtls: {mode: STRICT}}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: court}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: http-open, port: 81, targetPort: 8081}]
---
apiVersion: v1
kind: Pod
metadata:
  name: server
  namespace: court
  labels: {app: server}
  annotations: {traffic.sidecar.istio.io/excludeInboundPorts: "8081"}
spec:
  containers: [{name: app, command: ["$(VOILE)", echo, --listen, "0.0.0.0:8080", "0.0.0.0:8081"]}]
"#;

/// A client of the court, reached from outside by a service of its own name.
pub(crate) fn client(name: &str, extra: &str, port: u16) -> String {
    format!(
        r#"---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: court}}
spec: {{type: LoadBalancer, selector: {{app: {name}}}, ports: [{{name: http, port: 9000}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: court, labels: {{app: {name}}}, annotations: {{{extra}}}}}
spec:
  containers:
  - name: app
    command: ["$(VOILE)", echo, --listen, "0.0.0.0:9000", --call, "http://$(SERVER_SERVICE_HOST):{port}/"]
"#
    )
}

fn court(folder: &Path) {
    let off = "sidecar.istio.io/inject: \"false\"";
    let excluded =
        |what: &str, value: &str| format!("traffic.sidecar.istio.io/{what}: \"{value}\"");
    let folder_text = [
        COURT.to_owned(),
        client("captured", "", 80),
        client("plain", off, 80),
        client("plain-open", off, 81),
        client("captured-open", "", 81),
        client("port-excluded", &excluded("excludeOutboundPorts", "80"), 80),
        client(
            "range-excluded",
            &excluded("excludeOutboundIPRanges", "10.96.0.0/16"),
            80,
        ),
    ];
    fs::write(folder.join("court.yaml"), folder_text.concat()).expect("written");
}

/// Starts it in namespaces; `None`, with the reason printed, where this machine has none.
pub(crate) fn start(
    fill: impl FnOnce(&Path),
    user: Option<u32>,
) -> Option<(Up, BTreeMap<String, SocketAddr>)> {
    start_with(fill, user, &[])
}

/// The same with these options.
pub(crate) fn start_with(
    fill: impl FnOnce(&Path),
    user: Option<u32>,
    options: &[&str],
) -> Option<(Up, BTreeMap<String, SocketAddr>)> {
    let arguments = [&["--isolation", "netns", "--quiet"], options].concat();
    let mut up = Up::start_as(fill, &arguments, user);
    wait_until("it is in namespaces, or says why not", || {
        let said = up.text("err");
        said.contains(NOT_POSSIBLE) || said.contains("isolation netns (")
    });
    if is_refused(&up, user) {
        up.wait();
        return None;
    }
    let published = up.ready();
    Some((up, published))
}

/// Words of a mesh that this machine does not let run in namespaces.
pub(crate) const NOT_POSSIBLE: &str = "--isolation netns is not possible here";

/// Returns true if the mesh said that it cannot run in namespaces here. The test is then skipped. A mesh of an ordinary user needs
/// user namespaces.
pub(crate) fn is_refused(up: &Up, user: Option<u32>) -> bool {
    let said = up.text("err");
    let Some((_, why)) = said.split_once(NOT_POSSIBLE) else {
        return false;
    };
    let is_of_root = is_root() && user.is_none();
    let prerequisite = match (why.contains("nft"), is_of_root) {
        (true, _) => Prerequisite::Nft,
        (false, true) => Prerequisite::Netns,
        (false, false) => Prerequisite::Userns,
    };
    skip(prerequisite, &said);
    true
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns true if this process may enter namespaces of other processes. If not, the test or that part of it is skipped.
pub(crate) fn enters_namespaces() -> bool {
    if !is_root() {
        skip(
            Prerequisite::Root,
            "only root enters other processes' namespaces",
        );
    }
    is_root()
}

/// Does it inside the network of a process, on a thread that ends there.
pub(crate) fn inside<T: Send + 'static>(pid: u32, what: impl FnOnce() -> T + Send + 'static) -> T {
    let network = fs::File::open(format!("/proc/{pid}/ns/net")).expect("its network");
    let thread = std::thread::spawn(move || {
        let network = std::os::fd::AsFd::as_fd(&network);
        move_into_link_name_space(network, Some(LinkNameSpaceType::Network)).expect("entered");
        what()
    });
    thread.join().expect("no panic")
}

/// Asks from inside the network of a process.
pub(crate) fn ask_inside(pid: u32, address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let path = path.to_owned();
    inside(pid, move || {
        let answer = get(address, &path).ok()?;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        Some((answer.status, body))
    })
}

/// The sidecars of the mesh: pod and process.
pub(crate) fn sidecars(up: &Up) -> Vec<(String, u32)> {
    let family = up.family();
    let sidecar = |line: &String| {
        let mut words = line.split(' ');
        let pid = words.next()?.parse().ok()?;
        let pod = words.skip_while(|word| *word != "--workload").nth(1)?;
        Some((pod.to_owned(), pid))
    };
    family.iter().filter_map(sidecar).collect()
}

/// The network namespaces of the family, by name. They are held: the kernel gives the names of those that are gone to the next, which
/// may be those of another test.
fn networks(up: &Up) -> BTreeMap<PathBuf, fs::File> {
    let family = up.family();
    let pids = family.iter().filter_map(|line| line.split(' ').next());
    pids.filter_map(|pid| {
        let held = fs::File::open(format!("/proc/{pid}/ns/net")).ok()?;
        let name = fs::read_link(format!("/proc/self/fd/{}", held.as_raw_fd())).ok()?;
        Some((name, held))
    })
    .collect()
}

/// Ids of all processes in one of these networks.
fn inhabitants(networks: &BTreeMap<PathBuf, fs::File>) -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let ours = fs::read_link("/proc/self/ns/net").expect("ours");
    processes
        .filter(|process| {
            let network = fs::read_link(process.path().join("ns/net"));
            network.is_ok_and(|network| network != ours && networks.contains_key(&network))
        })
        .map(|process| process.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The devices of the host's own network.
fn devices() -> String {
    fs::read_to_string("/proc/net/dev")
        .expect("devices")
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim().to_owned() + " ")
        .collect()
}

#[test]
fn the_bookstore_runs_in_namespaces_by_mutual_tls_and_leaves_nothing_behind() {
    let before = devices();
    let Some((mut up, published)) = start(bookstore, None) else {
        return;
    };
    let storefront = published["bookstore/storefront"];
    let answer = get(storefront, "/").expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(devices(), before, "the host's network has changed");
    if enters_namespaces() {
        every_hop_is_encrypted(&up);
    }
    up.edit("reviews.yaml", "replicas: 2", "replicas: 3");
    wait_until("the third replica runs", || {
        assert_eq!(get(storefront, "/").expect("an answer").status, 200);
        sidecars(&up).len() == 8
    });
    let networks = networks(&up);
    assert!(networks.len() > 8, "a namespace for each pod: {networks:?}");
    up.signal(Signal::INT);
    let status = up.wait();
    assert!(status.success(), "{status}");
    assert_eq!(up.family(), Vec::<String>::new());
    assert_eq!(up.left_behind(), Vec::<PathBuf>::new());
    assert_eq!(inhabitants(&networks), Vec::<String>::new());
}

#[test]
fn three_rounds_in_namespaces_interrupted_under_traffic_leave_nothing_behind() {
    let before = devices();
    rounds(
        || {
            let (up, published) = start(court, None)?;
            Some((up, published["court/captured"]))
        },
        || {
            assert_eq!(devices(), before, "the host's network has changed");
        },
    );
}

fn every_hop_is_encrypted(up: &Up) {
    let sidecars = sidecars(up);
    let metrics = SocketAddr::from((Ipv4Addr::LOCALHOST, 15020));
    for workload in ["books", "reviews", "ratings", "inventory"] {
        let name = format!("destination_workload=\"{workload}\"");
        let labels = [
            "reporter=\"destination\"",
            "connection_security_policy=\"mutual_tls\"",
            &name,
        ];
        wait_until(&format!("{workload} is called by mutual TLS"), || {
            let pods = sidecars.iter().filter(|(pod, _)| pod.contains(workload));
            pods.filter_map(|(_, pid)| ask_inside(*pid, metrics, "/metrics"))
                .any(|(_, page)| series(&page, "istio_requests_total", &labels) > Some(0.0))
        });
    }
    // By a pod's own address, too: ratings takes mutual TLS only, and an application knows nothing of that.
    let pid = |name: &str| {
        let found = sidecars.iter().find(|(pod, _)| pod.contains(name));
        found.expect("a sidecar").1
    };
    let ratings = (2..10)
        .map(|last| SocketAddr::from((Ipv4Addr::new(10, 244, 0, last), 19080)))
        .find(|address| ask_inside(pid("ratings"), *address, "/").is_some());
    let mut ratings = ratings.expect("its own application answers");
    ratings.set_port(9080);
    let asked = ask_inside(pid("reviews-0"), ratings, "/");
    assert_eq!(asked.map(|(status, _)| status), Some(200));
}

#[test]
fn who_is_not_captured_is_refused_where_mutual_tls_is_demanded() {
    let Some((mut up, published)) = start(court, None) else {
        return;
    };
    let status = |name: &str| {
        get(published[&format!("court/{name}")], "/").map_or(0, |answer| answer.status)
    };
    for (name, expected) in [
        ("captured", 200),
        ("plain", 502),
        ("plain-open", 200),
        ("captured-open", 200),
        ("port-excluded", 502),
        ("range-excluded", 502),
    ] {
        // Virtual addresses of pods without a sidecar follow readiness a moment later.
        wait_until(&format!("{name} is answered {expected}"), || {
            status(name) == expected
        });
    }
    up.signal(Signal::TERM);
    assert!(up.wait().success());
}

/// The court's server, which keeps its callers' addresses, by itself or as everybody does, and two clients.
fn keeping(folder: &Path, everywhere: bool) {
    const ALL: &str = "
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: \"defaultConfig: {interceptionMode: TPROXY}\"}
";
    let own = "traffic.sidecar.istio.io/excludeInboundPorts: \"8081\"";
    assert!(COURT.contains(own));
    let kept = match everywhere {
        true => COURT.replace(own, "") + ALL,
        false => COURT.replace(own, "sidecar.istio.io/interceptionMode: TPROXY"),
    };
    let kept = kept.replace("mode: STRICT", "mode: PERMISSIVE");
    let off = "sidecar.istio.io/inject: \"false\"";
    let text = [kept, client("captured", "", 80), client("plain", off, 80)];
    fs::write(folder.join("court.yaml"), text.concat()).expect("written");
}

/// Addresses with a connection to this port in the network of a process; IPv4 in either form.
fn callers(pid: u32, port: u16) -> BTreeSet<Ipv4Addr> {
    let mut found = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (Some(local), Some(remote), Some(&"01")) =
                (words.get(1), words.get(2), words.get(3))
            else {
                continue;
            };
            let ours = local.ends_with(&format!(":{port:04X}"));
            let address = remote.split(':').next().unwrap_or_default();
            let last = &address[address.len().saturating_sub(8)..];
            if let (true, Ok(bits)) = (ours, u32::from_str_radix(last, 16)) {
                found.insert(Ipv4Addr::from(bits.to_ne_bytes()));
            }
        }
    }
    found
}

#[test]
fn a_pod_may_see_the_addresses_of_its_callers() {
    if !enters_namespaces() {
        return;
    }
    for user in [None, Some(NOBODY)] {
        let fill = |folder: &Path| keeping(folder, user.is_some());
        let Some((mut up, published)) = start(fill, user) else {
            return;
        };
        let server = || {
            let all = sidecars(&up);
            all.iter()
                .find(|(pod, _)| pod.contains("server"))
                .map(|found| found.1)
        };
        let server = server().expect("a sidecar");
        // Each client's request comes by a connection from its own address, and those stay for the next.
        for name in ["captured", "plain"] {
            wait_until(&format!("{name} is answered"), || {
                get(published[&format!("court/{name}")], "/")
                    .is_ok_and(|answer| answer.status == 200)
            });
        }
        wait_until("two pods have connections to the application", || {
            let callers = callers(server, 8080);
            // Both clients, and nobody in their stead.
            callers.len() == 2
                && callers
                    .iter()
                    .all(|address| address.octets()[..2] == [10, 244])
        });
        up.signal(Signal::TERM);
        assert!(up.wait().success());
    }
}

/// No call of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The machine's own network of this test, and beyond it somebody who answers.
const MACHINE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const BEYOND: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// Clients of somebody beyond the mesh, by address and, if they are to be `named`, by name, which they look up at their start.
fn going_out(folder: &Path, named: bool) {
    let off = "sidecar.istio.io/inject: \"false\"";
    let to = |host: &str, text: String| text.replace("$(SERVER_SERVICE_HOST)", host);
    let address = BEYOND.to_string();
    let mut text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: court, labels: {istio-injection: enabled}}\n".to_owned();
    for (host, suffix) in [(&*address, ""), ("beyond.test", "-named")] {
        if named || suffix.is_empty() {
            text += &to(host, client(&format!("captured{suffix}"), "", 8088));
            text += &to(host, client(&format!("plain{suffix}"), off, 8088));
        }
    }
    fs::write(folder.join("court.yaml"), text).expect("written");
}

/// For the calling thread and what it starts, this is the machine's resolv.conf.
#[expect(unsafe_code, reason = "a mount namespace for one thread")]
fn resolve_by(resolv_conf: &Path) {
    use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: NEWNS unshares no memory and no descriptors.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("its own mounts");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).expect("private");
    mount_bind(resolv_conf, "/etc/resolv.conf").expect("bound");
}

/// Somebody beyond the machine who serves HTTP on 8088 and names on 53.
fn beyond(machine: &Namespace) -> (Bridge, Namespace) {
    let addresses = [Prefixed::v4(MACHINE, 24)];
    let bridge = machine.run(|| Bridge::create(&addresses));
    let bridge = bridge.expect("entered").expect("a bridge");
    let beyond = bridge.add_pod(&[Prefixed::v4(BEYOND, 24)], &[MACHINE.into()]);
    let beyond = beyond.expect("a namespace");
    let listener = beyond.run(|| TcpListener::bind((BEYOND, 8088)));
    application::reflect(listener.expect("entered").expect("bound"));
    let names = beyond.run(|| UdpSocket::bind((BEYOND, 53)));
    let zone = [("beyond.test", vec![BEYOND])].into();
    Resolver::start_on(names.expect("entered").expect("bound"), zone);
    (bridge, beyond)
}

/// Errors that a pod without a sidecar gets for calls to unused addresses.
fn calling_out(up: &Up) -> Vec<std::io::ErrorKind> {
    let network = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let captured: Vec<_> = sidecars(up)
        .iter()
        .map(|(_, pid)| network(&pid.to_string()))
        .collect();
    let family = up.family();
    let applications = family.iter().filter(|line| line.contains(" echo --listen"));
    let plain = applications
        .filter_map(|line| line.split(' ').next())
        .find(|pid| !captured.contains(&network(pid)));
    let pid = plain
        .and_then(|pid| pid.parse().ok())
        .expect("a pod without a sidecar");
    inside(pid, || {
        let call = |last| {
            TcpStream::connect_timeout(&(Ipv4Addr::new(192, 0, 2, last), 80).into(), PATIENCE)
        };
        (3..33)
            .map(|last| call(last).expect_err("nobody").kind())
            .collect()
    })
}

#[test]
fn pods_reach_beyond_the_mesh_only_where_that_was_asked_for() {
    // The machine is a namespace, and so is what is beyond it: nothing is sent to anybody else.
    let Some(machine) = require(Prerequisite::Netns, Namespace::create()) else {
        return;
    };
    let _beyond = beyond(&machine);
    let folder = tempfile::tempdir().expect("a folder");
    let resolv_conf = folder.path().join("resolv.conf");
    fs::write(&resolv_conf, format!("nameserver {BEYOND}\n")).expect("written");
    let rules = || machine.run(|| Command::new("nft").args(["list", "ruleset"]).output());
    let before = rules().map(|output| output.map(|output| output.stdout));
    for (egress, expected) in [("none", 502), ("host", 200)] {
        for user in [None, Some(NOBODY).filter(|_| is_root())] {
            let up = machine.run(|| {
                resolve_by(&resolv_conf);
                start_with(
                    |folder| going_out(folder, egress == "host"),
                    user,
                    &["--egress", egress],
                )
            });
            let Some((mut up, published)) = up.expect("entered") else {
                return;
            };
            assert_eq!(published.len(), if egress == "host" { 4 } else { 2 });
            for (name, address) in published {
                let ask = || get(address, "/").map_or(0, |answer| answer.status);
                wait_until(&format!("--egress {egress}: {name} is answered"), || {
                    machine.run(ask).expect("entered") == expected
                });
            }
            if egress == "none" && enters_namespaces() {
                // More than routing would say "unreachable" for.
                let refused = [std::io::ErrorKind::ConnectionRefused; 30];
                assert_eq!(calling_out(&up), refused);
            }
            let now = rules().map(|output| output.map(|output| output.stdout));
            assert_eq!(format!("{now:?}"), format!("{before:?}"));
            up.signal(Signal::TERM);
            assert!(up.wait().success());
            assert_eq!((up.family(), up.left_behind()), (vec![], vec![]));
        }
    }
}

/// Names and addresses that an application looks up by the C library, with the beginning of each answer. Empty stands
/// for "no such name", before a client would give up.
const ASKED: [(&str, &str); 11] = [
    ("server", "10.96."),
    ("server.court", "10.96."),
    ("server.court.svc", "10.96."),
    ("server.court.svc.cluster.local", "10.96."),
    ("headless", "10.244."),
    ("www.wild.example.com", "240.240."),
    ("nobody", ""),
    ("nobody.court.svc.cluster.local", ""),
    ("outside.example.org", ""),
    ("8.8.8.8", ""),
    ("10.244.0.99", ""),
];

/// The court and a pod that asks, and writes what it hears.
fn asking(folder: &Path) {
    crate::up::rollout::make_outbox(folder);
    let heard = folder.join("out/heard");
    let names = ASKED.map(|(name, _)| name).join(" ");
    let text = format!(
        r#"
---
apiVersion: v1
kind: Service
metadata: {{name: headless, namespace: court}}
spec: {{clusterIP: None, selector: {{app: server}}, ports: [{{name: http, port: 8080}}]}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: wild, namespace: court}}
spec:
  hosts: ["*.wild.example.com"]
  ports: [{{number: 80, name: http, protocol: HTTP}}]
  resolution: STATIC
  endpoints: [{{address: 192.0.2.1}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: asker, namespace: court}}
spec:
  containers:
  - name: app
    command:
    - sh
    - -c
    - |
      until getent ahostsv4 headless; do sleep 0.1; done
      for name in {names}; do
        answer=$(timeout 4 getent ahostsv4 "$name"); code=$?
        case $name in *[0-9]) answer=$(timeout 4 getent hosts "$name"); code=$?; esac
        echo "$name $code $(echo "$answer" | head -n 1 | cut -d ' ' -f 1)"
      done > {heard}.draft
      mv {heard}.draft {heard}
      exec sleep 1000
"#,
        heard = heard.display()
    );
    fs::write(folder.join("court.yaml"), COURT.to_owned() + &text).expect("written");
}

#[test]
fn the_c_library_finds_the_names_of_the_mesh_and_hears_at_once_that_others_do_not_exist() {
    if program(Prerequisite::Getent, "getent").is_none() {
        return;
    }
    let Some((mut up, _)) = start(asking, None) else {
        return;
    };
    let heard = up.file("out/heard");
    wait_until("it has asked for every name", || heard.exists());
    let heard = fs::read_to_string(heard).expect("text");
    for ((name, expected), line) in ASKED.iter().zip(heard.lines()) {
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some(*name), "{heard}");
        let (code, answer) = (words.next(), words.next().unwrap_or_default());
        // 2 is getent's "not found"; 124 would be "still waiting".
        let found = if expected.is_empty() { "2" } else { "0" };
        assert_eq!(code, Some(found), "{name}: {heard}");
        assert!(answer.starts_with(expected), "{name}: {heard}");
    }
    up.signal(Signal::TERM);
    assert!(up.wait().success());
}

/// A pod that starts a process which leaves its group, its session and its parent.
fn runaway(folder: &Path) {
    let text = r#"
apiVersion: v1
kind: Pod
metadata: {name: runaway}
spec:
  containers: [{name: app, command: [sh, -c, "setsid sh -c 'sleep 1000 & sleep 1001' & exec sleep 1002"]}]
"#;
    fs::write(folder.join("runaway.yaml"), text).expect("written");
}

#[test]
fn whoever_is_killed_no_process_namespace_or_file_is_left() {
    for inside in [false, true] {
        let Some((mut up, _)) = start(runaway, None) else {
            return;
        };
        let sleepers = || {
            up.family()
                .iter()
                .filter(|line| line.contains("sleep 100"))
                .count()
        };
        wait_until("the grandchildren run", || sleepers() >= 3);
        let networks = networks(&up);
        if inside {
            // The runner is the one who started the control plane.
            let control = up.family();
            let control = control
                .iter()
                .find(|line| line.contains(" control "))
                .expect("it runs");
            let pid = control.split(' ').next().expect("a pid");
            let parent = Command::new("ps").args(["-o", "ppid=", "-p", pid]).output();
            let parent = String::from_utf8(parent.expect("ps runs").stdout).expect("a number");
            let parent = parent.trim().parse().expect("a number");
            kill_process(Pid::from_raw(parent).expect("a pid"), Signal::KILL).expect("sent");
        } else {
            up.signal(Signal::KILL);
        }
        assert!(!up.wait().success());
        wait_until("no process is left", || up.family().is_empty());
        wait_until("no file is left", || up.left_behind().is_empty());
        assert_eq!(inhabitants(&networks), Vec::<String>::new());
    }
}

#[test]
fn an_ordinary_user_has_the_same_mesh_in_a_user_namespace() {
    if !is_root() {
        return skip(
            Prerequisite::Root,
            "the other tests have an ordinary user already",
        );
    }
    let Some((mut up, published)) = start(bookstore, Some(NOBODY)) else {
        return;
    };
    let answer = get(published["bookstore/storefront"], "/").expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    up.signal(Signal::INT);
    let status = up.wait();
    assert!(status.success(), "{status}");
    assert_eq!(up.family(), Vec::<String>::new());
    assert_eq!(up.left_behind(), Vec::<PathBuf>::new());
}

#[test]
fn a_command_runs_outside_and_its_code_is_ours() {
    let arguments = [
        "--isolation",
        "netns",
        "--quiet",
        "--once-ready",
        "readlink /proc/self/ns/net; exit 7",
    ];
    let mut up = Up::start_as(runaway, &arguments, None);
    let status = up.wait();
    if is_refused(&up, None) {
        return;
    }
    assert_eq!(status.code(), Some(7), "{}", up.text("err"));
    let ours = fs::read_link("/proc/self/ns/net").expect("ours");
    assert_eq!(up.text("out").trim(), ours.to_string_lossy());
    assert_eq!((up.family(), up.left_behind()), (vec![], vec![]));
    let _ = up.pid();
}
