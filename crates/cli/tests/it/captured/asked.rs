//! The first request to a service waits for one answer of the control plane, and for no second question. The relay in between
//! passes one message of the proxy, and holds back all later ones.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use voile_host::netns::Namespace;

use super::{BETWEEN, Captured, VIP, WORLD, XDS, connect, listen, wait_until_ready};
use crate::mesh::{Process, application, is_at_rest, wait_until};

/// Silence that ends a message, and shows that no end has more to send: far longer than sending several messages at once takes.
/// On a busy machine a sender may wait as long for a processor; then the silence does not count.
const QUIET: Duration = Duration::from_millis(250);
const ROUTED_VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 11);
/// A service whose requests are led to itself, and marked.
const ROUTED: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: routed, namespace: shop}\n\
     spec: {clusterIP: 10.96.0.11, selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8080}]}\n---\n\
     apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: routed, namespace: shop}\n\
     spec: {hosts: [routed], http: [{route: [{destination: {host: routed}, headers: {response: {add: {led: by-routes}}}}]}]}\n";

/// Treatment of a proxy's messages on their way to the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Passes,
    /// The next word passes, whole.
    OneWord,
    Waits,
}

#[derive(Debug)]
struct Between {
    /// The processes that speak to each other.
    speakers: Mutex<Vec<u32>>,
    mood: Mutex<Mood>,
    heard: Mutex<Instant>,
    connections: AtomicUsize,
}

impl Between {
    /// Stands between proxies and the control plane.
    fn start(world: &Namespace) -> Arc<Self> {
        let between = Arc::new(Self {
            speakers: Mutex::default(),
            mood: Mutex::new(Mood::Passes),
            heard: Mutex::new(Instant::now()),
            connections: AtomicUsize::new(0),
        });
        let (world, own) = (world.clone(), Arc::clone(&between));
        let door = listen(&world, (WORLD, BETWEEN));
        application::serve(door, move |proxy| {
            let control = world.run(|| TcpStream::connect((WORLD, XDS)));
            // The control plane is not there while it restarts: the proxy connects again.
            let Ok(Ok(control)) = control else { return };
            own.connections.fetch_add(1, Ordering::SeqCst);
            let both = (proxy.try_clone(), control.try_clone());
            let (Ok(proxy_out), Ok(control_out)) = both else {
                return;
            };
            let down = Arc::clone(&own);
            std::thread::spawn(move || down.carry_down(control, proxy_out));
            own.carry_up(proxy, control_out);
        });
        between
    }

    fn mood(&self) -> Mood {
        *self.mood.lock().expect("nobody panics")
    }

    fn become_one(&self, mood: Mood) {
        *self.mood.lock().expect("nobody panics") = mood;
    }

    fn hear(&self) {
        *self.heard.lock().expect("nobody panics") = Instant::now();
    }

    /// Waits until both ends have nothing to send.
    fn wait_for_silence(&self) {
        wait_until("all is said", || {
            self.heard.lock().expect("nobody panics").elapsed() > 2 * QUIET && self.is_at_rest()
        });
    }

    /// Returns true if both processes wait for input, and not for a processor.
    fn is_at_rest(&self) -> bool {
        let speakers = self.speakers.lock().expect("nobody panics");
        speakers.iter().all(|pid| is_at_rest(*pid))
    }

    fn carry_up(&self, mut from: TcpStream, mut to: TcpStream) {
        from.set_read_timeout(Some(QUIET)).expect("open");
        let (mut word, mut bytes) = (Vec::new(), [0; 4096]);
        loop {
            let is_over = match from.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => {
                    self.hear();
                    word.extend_from_slice(&bytes[..count]);
                    false
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    self.is_at_rest()
                }
                Err(_) => break,
            };
            let passes = match self.mood() {
                Mood::Passes => true,
                Mood::OneWord if is_over && !word.is_empty() => {
                    self.become_one(Mood::Waits);
                    true
                }
                Mood::OneWord | Mood::Waits => false,
            };
            if passes && to.write_all(&std::mem::take(&mut word)).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }

    fn carry_down(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            self.hear();
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }
}

/// Says who answers, and keeps the connection.
fn answer(listener: TcpListener) {
    application::serve(listener, |mut stream| {
        let mut reader = std::io::BufReader::new(stream.try_clone().expect("a copy"));
        while application::read_request(&mut reader).is_some() {
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhere";
            if stream.write_all(answer).is_err() {
                return;
            }
        }
    });
}

fn ask(mesh: &Captured, address: Ipv4Addr, host: &str) -> String {
    let mut stream = connect(&mesh.client, (address, 80));
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answered");
    text
}

#[test]
fn the_first_request_to_an_address_waits_for_one_answer_and_no_second_question() {
    let Some(mut mesh) = Captured::start("STRICT", "") else {
        return;
    };
    answer(listen(&mesh.server, (Ipv4Addr::UNSPECIFIED, 8080)));
    mesh.write("routed.yaml", ROUTED);
    let between = Between::start(&mesh.world);
    drop(mesh._sidecars.remove(0));
    mesh.asks = BETWEEN;
    let again = mesh.sidecar("client", &mesh.client, ("redirect", "none"));
    mesh._sidecars.insert(0, again);
    wait_until_ready(&mesh.client);
    for (address, host, is_routed) in [(VIP, "server", false), (ROUTED_VIP, "routed", true)] {
        let control = mesh.control.iter().map(Process::pid);
        let speakers = control.chain([mesh._sidecars[0].pid()]).collect();
        *between.speakers.lock().expect("nobody panics") = speakers;
        between.wait_for_silence();
        between.become_one(Mood::OneWord);
        let heard = ask(&mesh, address, host);
        assert_eq!(between.mood(), Mood::Waits, "a word was said");
        assert!(heard.starts_with("HTTP/1.1 200"), "{address}: {heard}");
        assert_eq!(heard.contains("led: by-routes"), is_routed, "{heard}");
        between.become_one(Mood::Passes);
        between.wait_for_silence();
        let heard = ask(&mesh, address, host);
        assert!(heard.starts_with("HTTP/1.1 200"), "{address}: {heard}");
        // The next question goes on a new stream that begins with the held resources.
        let before = between.connections.load(Ordering::SeqCst);
        drop(mesh.control.take());
        mesh.start_control();
        wait_until("the proxy is back", || {
            between.connections.load(Ordering::SeqCst) > before
        });
    }
}
