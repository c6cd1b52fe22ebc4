//! All policies of a mesh change at once while requests run. No request is ever answered by a mixture of old and new policies,
//! and the time until every proxy obeys is printed. At the size that the issue names, for people (the release profile, about a
//! minute): `VOILE_POLICIES=1000 VOILE_PROXIES=20 cargo test --release -p voile --test it -- policies_at_once --nocapture`.

use std::fmt::Write as _;
use std::io::{BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::mesh::{
    Client, HTTP_PORT, Process, application, free_port, get, local, own_net, read_answer,
    start_control, start_proxy, wait_until,
};

/// Port of the applications.
const APPLICATION_PORT: u16 = 18080;
/// Number of changes of all policies.
const CHANGES: u32 = 3;
/// Interval between two looks of a watcher.
const LOOK_EVERY: Duration = Duration::from_millis(3);
/// Watchers of one proxy, on a connection each: there are two workers, and the second gets the second connection.
const WATCHERS: usize = 2;
/// Rules of each policy.
const RULES: usize = 10;

fn asked(name: &str, usual: usize) -> usize {
    let said = std::env::var(name).ok();
    said.and_then(|said| said.parse().ok()).unwrap_or(usual)
}

fn pod(number: usize) -> String {
    format!("server-{number}")
}

fn resources(net: [u8; 3], proxies: usize) -> String {
    let mut text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled}}\n".to_owned();
    for number in 0..proxies {
        let pod = pod(number);
        let address = pod_address(net, number);
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {pod}, namespace: shop}}\n\
             ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, namespace: shop, labels: {{app: server}}}}\n\
             spec: {{serviceAccountName: {pod}, containers: [{{name: app}}]}}\nstatus: {{phase: Running, podIP: {address}}}\n"
        );
    }
    text + &format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: server, namespace: shop}}\n\
         spec: {{selector: {{app: server}}, ports: [{{name: http, port: {HTTP_PORT}, targetPort: {HTTP_PORT}}}]}}\n\
         ---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: server, namespace: shop}}\n\
         spec: {{workloadSelector: {{labels: {{app: server}}}}, ingress: [{{port: {{number: {HTTP_PORT}, protocol: HTTP, name: http-in}}, \
         captureMode: NONE, defaultEndpoint: \"0.0.0.0:{APPLICATION_PORT}\"}}]}}\n"
    )
}

fn pod_address(net: [u8; 3], number: usize) -> IpAddr {
    Ipv4Addr::new(net[0], net[1], net[2], number as u8 + 1).into()
}

/// All policies of one generation. Each request is allowed or denied by another policy than in the next generation. A proxy
/// that obeys half of a generation denies a request to `/kept`, or allows one to `/shut`.
fn policies(count: usize, generation: u32) -> String {
    let mut text = String::new();
    let pairs = count / 2;
    for number in 0..pairs * 2 {
        let (pair, second) = (number / 2, number % 2 == 1);
        let has_it = second == (generation % 2 == 1);
        let (action, stem) = match pair % 2 {
            0 => ("ALLOW", "kept"),
            _ => ("DENY", "shut"),
        };
        let mut rules = String::new();
        for rule in 0..RULES {
            let path = match (rule, has_it) {
                (0, true) => format!("/{stem}/{pair}"),
                // A rule of this generation and no other.
                (1, true) if action == "ALLOW" => format!("/generation/{generation}"),
                _ => format!("/nobody/{generation}/{number}/{rule}"),
            };
            let _ = write!(rules, "{{to: [{{operation: {{paths: [\"{path}\"]}}}}]}}, ");
        }
        if action == "ALLOW" {
            rules.push_str("{to: [{operation: {paths: [\"/shut/*\"]}}]}");
        }
        let _ = write!(
            text,
            "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p-{number}, namespace: shop}}\n\
             spec: {{selector: {{matchLabels: {{app: server}}}}, action: {action}, rules: [{rules}]}}\n"
        );
    }
    text
}

fn set(config: &Path, text: &str) {
    let new = config.join(".authorization.new");
    std::fs::write(&new, text).expect("policies");
    std::fs::rename(new, config.join("authorization.yaml")).expect("in place");
}

/// A caller with a connection that stays.
struct Caller(BufReader<TcpStream>);

impl Caller {
    fn new(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).expect("the listener");
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("an open socket");
        stream.set_nodelay(true).expect("an open socket");
        Self(BufReader::new(stream))
    }

    fn status(&mut self, path: &str) -> u16 {
        let request = format!("GET {path} HTTP/1.1\r\nHost: server\r\n\r\n");
        let sent = self.0.get_mut().write_all(request.as_bytes());
        sent.expect("the connection stays");
        read_answer(&mut self.0).expect("an answer").status
    }
}

/// Observations of a watcher: the time at which its worker obeyed each generation, its slowest request, and its
/// number of requests.
struct Seen {
    obeyed: Vec<Instant>,
    slowest: Duration,
    requests: u64,
}

/// Asks without end what must always be allowed, what never, and which generation is obeyed.
fn watch(
    to: SocketAddr,
    pairs: usize,
    wanted: &AtomicU32,
    news: &Sender<()>,
    stop: &Receiver<()>,
) -> Seen {
    let mut caller = Caller::new(to);
    let mut seen = Seen {
        obeyed: Vec::new(),
        slowest: Duration::ZERO,
        requests: 0,
    };
    let mut turn = 0;
    while stop.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        let before = wanted.load(Ordering::SeqCst);
        let mut ask = |path: &str| {
            let began = Instant::now();
            let status = caller.status(path);
            seen.slowest = seen.slowest.max(began.elapsed());
            seen.requests += 1;
            status
        };
        turn += 1;
        let pair = turn % pairs;
        let (stem, status) = if pair.is_multiple_of(2) {
            ("kept", 200)
        } else {
            ("shut", 403)
        };
        let path = format!("/{stem}/{pair}");
        assert_eq!(
            ask(&path),
            status,
            "{path} of {to} towards generation {before}"
        );
        assert_eq!(ask("/never"), 403, "{to} towards generation {before}");
        let old = ask(&format!("/generation/{}", before.wrapping_sub(1)));
        let new = ask(&format!("/generation/{before}"));
        let old_again = ask(&format!("/generation/{}", before.wrapping_sub(1)));
        // Unless the next one was set meanwhile: the old is obeyed until the new one is, and never after.
        if wanted.load(Ordering::SeqCst) == before {
            assert!(
                old == 200 || new == 200,
                "{to} obeys neither, {before} being wanted"
            );
            assert!(
                new == 403 || old_again == 403,
                "{to} obeys both, {before} being wanted"
            );
            if new == 200 && seen.obeyed.len() as u32 == before {
                seen.obeyed.push(Instant::now());
                news.send(()).expect("the test");
            }
        }
    }
    seen
}

struct Proxies {
    _control: Process,
    proxies: Vec<Process>,
    config: tempfile::TempDir,
}

fn start(net: [u8; 3], count: usize, first: &str) -> Proxies {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("config");
    std::fs::create_dir(&config).expect("the config folder");
    std::fs::write(config.join("mesh.yaml"), resources(net, count)).expect("resources");
    set(&config, first);
    let ports = [free_port(), free_port(), free_port()];
    let control = start_control(folder.path(), ports, None, &[]);
    let mut proxies = Vec::new();
    for number in 0..count {
        let address = SocketAddr::new(pod_address(net, number), APPLICATION_PORT);
        application::reflect(TcpListener::bind(address).expect("the application's address"));
        let own = [free_port(), free_port(), free_port()];
        let proxy = start_proxy(
            folder.path(),
            ports[0],
            &pod(number),
            own,
            &Client::default(),
        );
        wait_until("the proxy is ready", || {
            get(local(own[2]), "/healthz/ready").is_ok_and(|answer| answer.status == 200)
        });
        proxies.push(proxy);
    }
    Proxies {
        _control: control,
        proxies,
        config: folder,
    }
}

#[test]
fn many_policies_change_at_once_and_nobody_is_judged_by_half_of_them() {
    let (count, proxies) = (asked("VOILE_POLICIES", 40), asked("VOILE_PROXIES", 3));
    let net = own_net();
    let mesh = start(net, proxies, &policies(count, 0));
    let wanted = Arc::new(AtomicU32::new(0));
    let (news, obeyed) = mpsc::channel();
    let watchers: Vec<(Sender<()>, JoinHandle<Seen>)> = (0..proxies * WATCHERS)
        .map(|number| {
            let to = SocketAddr::new(pod_address(net, number / WATCHERS), HTTP_PORT);
            let (wanted, news) = (Arc::clone(&wanted), news.clone());
            let (stop, stopped) = mpsc::channel();
            let watcher = move || watch(to, count / 2, &wanted, &news, &stopped);
            (stop, std::thread::spawn(watcher))
        })
        .collect();
    drop(news);
    // Each watcher tells once of each generation; one that fails ends the wait.
    let all_obey = |generation: u32| {
        for _ in 0..watchers.len() {
            let patience = Duration::from_secs(60);
            let told = obeyed.recv_timeout(patience);
            told.unwrap_or_else(|_| panic!("not everybody obeys generation {generation}"));
        }
    };
    all_obey(0);
    let mut set_at = vec![Instant::now()];
    for generation in 1..=CHANGES {
        let text = policies(count, generation);
        wanted.store(generation, Ordering::SeqCst);
        set_at.push(Instant::now());
        set(&mesh.config.path().join("config"), &text);
        all_obey(generation);
    }
    let mut seen = Vec::new();
    for (stop, watcher) in watchers {
        let _ = stop.send(());
        seen.push(watcher.join().expect("no wrong verdict"));
    }
    for (generation, set_at) in set_at.iter().enumerate().skip(1) {
        let times = seen.iter().map(|seen| seen.obeyed[generation] - *set_at);
        let mut times: Vec<Duration> = times.collect();
        times.sort_unstable();
        println!(
            "{count} policies of {RULES} rules changed at once: {proxies} proxies obey after {:?} (first), {:?} (median), {:?} (last)",
            times[0],
            times[times.len() / 2],
            times[times.len() - 1]
        );
    }
    let requests: u64 = seen.iter().map(|seen| seen.requests).sum();
    let slowest = seen.iter().map(|seen| seen.slowest).max();
    println!("{requests} requests meanwhile, none judged wrongly, the slowest took {slowest:?}");
    assert!(mesh.proxies.len() == proxies && requests > 0);
}

/// Policies of some rules each, of which the first also allows what its generation is called.
fn all_but_one_the_same(count: usize, rules: usize, generation: u32) -> String {
    let mut text = String::new();
    for number in 0..count {
        let _ = write!(
            text,
            "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p-{number}, namespace: shop}}\n\
             spec: {{selector: {{matchLabels: {{app: server}}}}, rules: ["
        );
        for rule in 0..rules {
            let _ = write!(
                text,
                "{{to: [{{operation: {{paths: [\"/kept/{number}/{rule}\"]}}}}]}}, "
            );
        }
        if number == 0 {
            let _ = write!(
                text,
                "{{to: [{{operation: {{paths: [\"/generation/{generation}\"]}}}}]}}, "
            );
        }
        text.push_str("]}\n");
    }
    text
}

/// In release at the size that 0014 speaks of: `VOILE_POLICIES=1000` and `VOILE_POLICIES=1 VOILE_RULES=10000`.
#[test]
fn one_policy_of_many_changes_and_what_the_others_say_holds_meanwhile() {
    let (count, rules) = (asked("VOILE_POLICIES", 40), asked("VOILE_RULES", 1));
    let net = own_net();
    let mesh = start(net, 1, &all_but_one_the_same(count, rules, 0));
    let to = SocketAddr::new(pod_address(net, 0), HTTP_PORT);
    // One for each worker.
    let mut callers: Vec<Caller> = (0..WATCHERS).map(|_| Caller::new(to)).collect();
    let kept = format!("/kept/{}/{}", count - 1, rules - 1);
    wait_until("the first generation is in force", || {
        let statuses = callers
            .iter_mut()
            .map(|caller| caller.status("/generation/0"));
        statuses.filter(|status| *status == 200).count() == WATCHERS
    });
    for generation in 1..=CHANGES {
        let text = all_but_one_the_same(count, rules, generation);
        let (old, new) = (generation - 1, generation);
        let set_at = Instant::now();
        set(&mesh.config.path().join("config"), &text);
        for caller in &mut callers {
            let new = format!("/generation/{new}");
            wait_until("the change is in force", || {
                assert_eq!(caller.status(&kept), 200, "another policy's rule");
                caller.status(&new) == 200
            });
        }
        println!(
            "one of {count} policies of {rules} rules changed: in force after {:?}",
            set_at.elapsed()
        );
        let before = format!("/generation/{old}");
        for caller in &mut callers {
            assert_eq!(caller.status(&before), 403, "what it allowed before");
        }
    }
}
