//! A new process replaces a node proxy and takes the listeners of every pod. No connection is refused or cut meanwhile, and a
//! process that dies in the middle changes nothing.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use voile_transport::{Packet, Packets};

use super::names::answered;
use super::*;
use crate::handover::descriptors::limit_descriptors;

/// New connections without a pause, each of which says a word and hears it, until they are ended.
struct Calls {
    over: Arc<AtomicBool>,
    good: Arc<AtomicU64>,
    callers: Vec<JoinHandle<Vec<String>>>,
}

/// One such connection.
fn call(to: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut name = [0; 6];
    stream.read_exact(&mut name)?;
    echo(&mut stream)
}

/// A word there and back.
fn echo(stream: &mut TcpStream) -> io::Result<()> {
    let mut heard = [0; 6];
    stream.write_all(b"hello\n")?;
    stream.read_exact(&mut heard)?;
    match &heard {
        b"hello\n" => Ok(()),
        other => Err(io::Error::other(format!("{other:?}"))),
    }
}

impl Calls {
    /// From each of these networks.
    fn begin(ways: &[(&Namespace, SocketAddr)]) -> Self {
        let (over, good) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let caller = |(from, to): &(&Namespace, SocketAddr)| {
            let (from, to) = ((*from).clone(), *to);
            let (over, good) = (Arc::clone(&over), Arc::clone(&good));
            std::thread::spawn(move || {
                let calling = || {
                    let mut failed = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        match call(to) {
                            Ok(()) => {
                                good.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => failed.push(format!("{to}: {error}")),
                        }
                    }
                    failed
                };
                from.run(calling).expect("entered")
            })
        };
        let callers = ways.iter().map(caller).collect();
        Self {
            over,
            good,
            callers,
        }
    }

    /// Waits until some more have come and gone.
    fn go_on(&self, what: &str) {
        let now = self.good.load(Ordering::Relaxed);
        wait_until(what, || self.good.load(Ordering::Relaxed) > now + 50);
    }

    /// None may have failed.
    fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        for caller in self.callers {
            let failed = caller.join().expect("it called");
            assert!(failed.is_empty(), "{} failed: {failed:?}", failed.len());
        }
    }
}

fn path(mesh: &Mesh, process: &str) -> String {
    let path = mesh.folder.path().join(format!("{process}.handover"));
    path.to_str().expect("text").to_owned()
}

impl Node {
    /// Starts another process, which is to take over and has no configuration yet. Returns the one
    /// before it.
    pub(super) fn challenge(&self, mesh: &mut Mesh, more: &[&str]) -> Process {
        let new = Self::launch(mesh, &mesh.world, (self.process, self.higher), more);
        let mut all = mesh.processes.iter_mut();
        let current = all.find(|process| process.name() == self.process);
        std::mem::replace(current.expect("it was started"), new)
    }
}

const TAKEN: &str = "listening sockets taken over";
pub(super) const HANDED: &str = "handed over to a new process";
const KEPT: &str = "this process keeps serving";

#[test]
fn node_proxies_that_are_replaced_under_load_refuse_and_cut_no_connection() {
    let Some(mut mesh) = mesh(&on_two_nodes(&[("first", FIRST)])) else {
        return;
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let ways = [path(&mesh, "one"), path(&mesh, "two")];
    // Open connections may outlast this drain timeout; it is for an end without a successor.
    let drain = ["--drain-timeout", "100ms", "--handover"];
    let [one, two] = [0, 1].map(|index| [&drain[..], &[ways[index].as_str()]].concat());
    let of_client = [(&client, "client")];
    let of_first = [(&first, "server")];
    let mut nodes = [
        (
            Node::start(&mut mesh, "ztunnel-one", 0, &of_client, &one),
            &of_client,
            &one,
        ),
        (
            Node::start(&mut mesh, "ztunnel-two", 100, &of_first, &two),
            &of_first,
            &two,
        ),
    ];
    let (service, direct) = ((VIP, 80).into(), (FIRST, APPLICATION).into());
    let (_, mut open) = answers(&client.inside, service).expect("the server");
    let calls = Calls::begin(&[(&client.inside, service), (&mesh.world, direct)]);
    calls.go_on("calls come through");
    let mut old = Vec::new();
    for (node, pods, words) in &mut nodes {
        let before = node.challenge(&mut mesh, words);
        node.tell(&pods[..]);
        wait_until("the new process serves", || before.log().contains(HANDED));
        calls.go_on("calls go on");
        echo(&mut open).expect("what was open lives on");
        wait_until("its pages are the new one's", || node.is_ready(&mesh));
        old.push(before);
    }
    calls.end();
    let told = &nodes[1].0;
    wait_until("tunnels lead to the new process", || {
        let line = "istio_tcp_connections_opened_total{";
        let page = told.metrics(&mesh);
        page.lines()
            .any(|found| found.starts_with(line) && found.contains("\"mutual_tls\""))
    });
    echo(&mut open).expect("to its end");
    for process in &mut old {
        assert!(process.is_running(), "it waits for what is open");
    }
    drop(open);
    for mut process in old {
        assert!(process.wait().success(), "{}", process.log());
    }
    let said = Path::new(&ways[0]);
    assert!(said.exists(), "the next one finds the new one");
}

#[test]
fn what_is_open_longer_than_is_allowed_after_a_handover_is_cut() {
    let Some((mut mesh, mut node, client, first, path)) = lending() else {
        return;
    };
    let words = ["--handover", &path];
    let open = || answers(&client.inside, (VIP, 80)).expect("the server").1;
    let all: Vec<TcpStream> = (0..40).map(|_| open()).collect();
    let mut old = node.challenge(&mut mesh, &words);
    node.tell(&[(&client, "client"), (&first, "server")]);
    for mut open in all {
        let limit = open.set_read_timeout(Some(Duration::from_secs(20)));
        limit.expect("open");
        let reset = open.read(&mut [0; 16]);
        let reset = reset.expect_err("it is cut, and does not look finished");
        assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
    }
    assert!(old.wait().success(), "{}", old.log());
    assert!(
        old.log()
            .contains("drain timeout: closing the remaining connections")
    );
    assert_eq!(name(&client.inside, (VIP, 80)).as_deref(), Some("first"));
}

/// One node with both pods, that hands over at this path and lets what is open go on for two seconds.
fn lending() -> Option<(Mesh, Node, Pod, Pod, String)> {
    let mut mesh = mesh(&(resources(&[("first", FIRST)]) + ZTUNNEL))?;
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let path = path(&mesh, "one");
    let words = ["--handover", &path, "--handover-drain-timeout", "2s"];
    let words = [&words[..], &["--drain-timeout", "2s"]].concat();
    let pods = [(&client, "client"), (&first, "server")];
    let node = Node::start(&mut mesh, "ztunnel-one", 0, &pods, &words);
    Some((mesh, node, client, first, path))
}

#[test]
fn whom_the_agent_does_not_name_to_the_new_process_is_served_no_more() {
    let Some((mut mesh, mut node, client, first, path)) = lending() else {
        return;
    };
    let mut old = node.challenge(&mut mesh, &["--handover", &path]);
    node.tell(&[(&first, "server")]);
    assert!(old.wait().success(), "{}", old.log());
    let called = client.inside.run(|| TcpStream::connect((VIP, 80)));
    let error = called.expect("entered").expect_err("nobody listens");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    let direct = (FIRST, APPLICATION);
    assert_eq!(name(&mesh.world, direct).as_deref(), Some("first"));
}

/// Takes over from the process that offers its sockets there, up to where it has stopped and waits to hear that they are served.
fn take_sockets(path: &str) -> (Packets, Vec<Packet>) {
    let talk = Packets::connect(Path::new(path), Duration::from_secs(10));
    let talk = talk.expect("connected").expect("somebody is there");
    let say = |text: &str| talk.send(text, None).expect("sent");
    let hear = || talk.receive().expect("heard").expect("a word");
    say("voile-handover/1 node one of cluster.local in 0:0");
    let count = hear().text;
    let count = count
        .strip_prefix("take ")
        .and_then(|count| count.parse().ok());
    let sockets: Vec<_> = (0..count.expect("a number")).map(|_: u32| hear()).collect();
    say("ready");
    assert_eq!(hear().text, "yours");
    (talk, sockets)
}

#[test]
fn pods_are_served_again_after_a_handover_failed_without_descriptors() {
    let Some((mesh, mut node, client, first, path)) = lending() else {
        return;
    };
    let successor = take_sockets(&path);
    let pid = node.running(&mesh).pid();
    // A limit below what is open: nothing more opens.
    let before = limit_descriptors(pid, 3);
    drop(successor);
    wait_until("the old one serves again", || {
        node.log(&mesh).contains(KEPT)
    });
    limit_descriptors(pid, before);
    node.tell(&[(&client, "client"), (&first, "server")]);
    assert_eq!(name(&client.inside, (VIP, 80)).as_deref(), Some("first"));
    let server = format!("NOERROR {VIP}");
    assert_eq!(answered(&client, "server", "A"), server);
    wait_until("its pages are open", || node.is_ready(&mesh));
}

#[test]
fn a_successor_that_dies_or_is_anothers_changes_nothing() {
    let Some((mut mesh, mut node, client, first, path)) = lending() else {
        return;
    };
    let pods = [(&client, "client"), (&first, "server")];
    let (service, direct) = ((VIP, 80).into(), (FIRST, APPLICATION).into());
    let calls = Calls::begin(&[(&client.inside, service), (&mesh.world, direct)]);
    // Killed when it has the sockets, and knows of the pods, but not that these are all.
    let old = node.challenge(&mut mesh, &["--handover", &path]);
    node.agent.greet();
    pods.iter()
        .for_each(|(pod, account)| node.agent.add(pod, account));
    wait_until("it has the sockets", || node.log(&mesh).contains(TAKEN));
    let index = mesh.processes.len() - 1;
    let mut dead = std::mem::replace(&mut mesh.processes[index], old);
    dead.kill();
    wait_until("the old one says so", || node.log(&mesh).contains(KEPT));
    calls.go_on("the old one serves");
    // Killed when the old one has stopped already: the test is the new one.
    let (talk, sockets) = take_sockets(&path);
    let has = |what: &str| {
        sockets
            .iter()
            .any(|socket| socket.text.starts_with(what) && socket.descriptor.is_some())
    };
    for what in [
        "outbound@",
        "plaintext@",
        "tunnels@",
        "admin@",
        "readiness@",
    ] {
        assert!(has(what), "{what}: {sockets:?}");
    }
    drop((sockets, talk));
    node.tell(&pods);
    calls.go_on("the old one serves again");
    wait_until("and says that it is ready", || node.is_ready(&mesh));
    // One of another node gets nothing.
    let words = ["--handover", &path];
    let mut stranger = Node::launch(&mesh, &mesh.world, ("ztunnel-three", 0), &words);
    assert_eq!(stranger.wait().code(), Some(1));
    let why = "the running proxy refuses: this process speaks `voile-handover/1 node one of";
    assert!(stranger.log().contains(why), "{}", stranger.log());
    // And the next good one takes over.
    let mut old = node.challenge(&mut mesh, &["--handover", &path]);
    node.tell(&pods);
    assert!(old.wait().success(), "{}", old.log());
    calls.go_on("the new one serves");
    calls.end();
}

#[test]
fn one_of_another_network_takes_over_and_the_old_one_waits_to_be_ended() {
    let Some((mut mesh, mut node, client, first, path)) = lending() else {
        return;
    };
    let apart = mesh.pod_with("apart", SECOND, Rules::default());
    let words = ["--handover", path.as_str()];
    let new = Node::launch(&mesh, &apart.inside, ("ztunnel-one", 0), &words);
    let mut old = mesh.processes.pop().expect("it was started");
    mesh.processes.push(new);
    node.tell(&[(&client, "client"), (&first, "server")]);
    wait_until("the old one is done", || {
        old.log().contains("waiting for SIGTERM")
    });
    // Its pages are its own network's, and those of the old one are closed.
    let page = || get(local(15021), "/healthz/ready");
    let ready = apart.inside.run(page).expect("entered");
    assert_eq!(ready.expect("a page").status, 200);
    let called = mesh.world.run(|| TcpStream::connect(local(15021)));
    called.expect("entered").expect_err("nobody listens");
    assert_eq!(name(&client.inside, (VIP, 80)).as_deref(), Some("first"));
    assert!(old.is_running());
    old.terminate();
    assert!(old.wait().success(), "{}", old.log());
    assert_eq!(name(&client.inside, (VIP, 80)).as_deref(), Some("first"));
}
