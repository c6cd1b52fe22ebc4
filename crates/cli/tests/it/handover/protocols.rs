//! Sidecars replaced again and again, both at once, without a control plane, by processes that die or hang on the way: what
//! every protocol sees of it, which is nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use voile_transport::Packets;

use crate::handover::lending;
use crate::mesh::load::Load;
use crate::mesh::{Mesh, Process, application, get, read_answer, wait_until};
use crate::traffic::http2::{call, connect, message, play, serve};

fn echo(arguments: &[&str]) -> Process {
    let server = Process::start("echo", |voile| {
        voile.arg("echo").args(arguments);
    });
    wait_until("the application listens", || {
        server.log().contains("listening on")
    });
    server
}

/// A WebSocket through both sidecars, with an echo at its end.
struct Conversation(TcpStream);

impl Conversation {
    fn open(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).expect("a connection");
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("patience");
        let opening = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
        stream.write_all(opening.as_bytes()).expect("sent");
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).expect("an answer");
            head.push(byte[0]);
        }
        assert!(
            head.starts_with(b"HTTP/1.1 101 "),
            "{}",
            head.escape_ascii()
        );
        Self(stream)
    }

    fn goes_on(&mut self, word: &str) {
        self.0.write_all(word.as_bytes()).expect("sent");
        let mut back = vec![0; word.len()];
        self.0.read_exact(&mut back).expect("it comes back");
        assert_eq!(back, word.as_bytes());
    }
}

/// HTTP that switches protocols at `/chat` and answers everything else.
fn chat(mesh: &Mesh) {
    application::serve(mesh.http_app(), |stream| {
        let mut reader = std::io::BufReader::new(stream);
        while let Some((head, _)) = application::read_request(&mut reader) {
            if head.starts_with("GET /chat") {
                let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
                let mut buffer = [0; 1024];
                let mut answer = switch.as_bytes();
                while reader.get_mut().write_all(answer).is_ok() {
                    match reader.read(&mut buffer) {
                        Ok(read @ 1..) => answer = &buffer[..read],
                        _ => return,
                    }
                }
                return;
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";
            if reader.get_mut().write_all(answer).is_err() {
                return;
            }
        }
    });
}

#[test]
fn every_protocol_goes_on_while_both_sidecars_are_replaced_five_times() {
    let mut mesh = Mesh::start_as("STRICT", &lending());
    chat(&mesh);
    let (grpc, tcp) = (
        mesh.grpc_app().to_string(),
        mesh.tcp_app_address().to_string(),
    );
    let _application = echo(&["--listen", &grpc, "--tcp", &tcp]);
    let mut chat = Conversation::open(mesh.http());
    let mut loads = [
        Load::start(
            "HTTP/1.1",
            &format!("http://{}/", mesh.http()),
            &[
                "--rate",
                "400",
                "--method",
                "POST",
                "--payload-size",
                "100",
                "--connections",
                "8",
            ],
        ),
        Load::start(
            "connections",
            &format!("http://{}/", mesh.http()),
            &["--rate", "100", "--no-keepalive"],
        ),
        Load::start(
            "HTTP/2",
            &format!("h2c://{}/", mesh.grpc()),
            &["--rate", "200", "--streams", "8"],
        ),
        Load::start(
            "gRPC",
            &format!("grpc://{}", mesh.grpc()),
            &["--rate", "200", "--streams", "4"],
        ),
        Load::start(
            "TCP",
            &format!("tcp://{}", mesh.tcp()),
            &["--rate", "200", "--payload-size", "100"],
        ),
    ];
    let mut old = Vec::new();
    for round in 0..5 {
        // Both at once: each hands over while the other does.
        old.push(mesh.replace("client", &lending()));
        old.push(mesh.replace("server", &lending()));
        for process in old.iter().rev().take(2) {
            wait_until("the old one hands over", || {
                process.log().contains("draining")
            });
        }
        mesh.wait_ready();
        chat.goes_on(&format!("round {round}"));
        assert!(loads.iter_mut().all(Load::runs));
    }
    for load in loads {
        load.none_failed();
    }
    let log = old[0].log();
    assert!(
        old[0].is_running() && old[1].is_running(),
        "they carry the conversation: {log}"
    );
    drop(chat);
    for mut process in old {
        assert!(process.wait().success(), "{}", process.log());
    }
}

#[test]
fn a_grpc_stream_lives_on_in_the_old_processes_and_new_calls_go_to_the_new() {
    let mut mesh = Mesh::start_as("STRICT", &lending());
    let (app, address) = (mesh.grpc_app(), mesh.grpc());
    play(|| async {
        let (given_up, _) = tokio::sync::mpsc::unbounded_channel();
        serve(app, given_up).await;
        let mut client = connect(address).await;
        let (response, mut send) = client.send_request(call("/echo"), false).expect("sent");
        send.send_data(message("before"), false).expect("sent");
        let mut body = response.await.expect("an answer").into_body();
        let got = body.data().await.expect("open").expect("a message");
        assert_eq!(got, message("before"));
        let mut old = [
            mesh.replace("client", &lending()),
            mesh.replace("server", &lending()),
        ];
        for process in &old {
            // The runtime's other tasks must run meanwhile.
            while !process.log().contains("draining") {
                tokio::task::yield_now().await;
            }
        }
        for text in ["after", "and after"] {
            send.send_data(message(text), false).expect("sent");
            let got = body.data().await.expect("open").expect("a message");
            assert_eq!(got, message(text));
        }
        let mut fresh = connect(address).await;
        let (response, _) = fresh.send_request(call("/what"), true).expect("sent");
        let answer = response.await.expect("an answer");
        assert_eq!(answer.headers()["grpc-status"], "12");
        assert!(old.iter_mut().all(Process::is_running));
        send.send_data(Bytes::new(), true).expect("sent");
        while let Some(rest) = body.data().await {
            assert!(rest.expect("the end").is_empty());
        }
        let trailers = body.trailers().await.expect("an end").expect("trailers");
        assert_eq!(trailers["grpc-status"], "0");
        for process in &mut old {
            while process.is_running() {
                tokio::task::yield_now().await;
            }
        }
    });
}

#[test]
fn a_successor_without_a_control_plane_waits_for_it_and_the_old_one_serves() {
    let mut mesh = Mesh::start_as("STRICT", &lending());
    chat(&mesh);
    let url = format!("http://{}/", mesh.http());
    let mut load = Load::start("HTTP/1.1", &url, &["--rate", "200"]);
    mesh.kill_control();
    let mut old = mesh.replace("client", &lending());
    wait_until("the new one waits", || {
        mesh.client.log().contains("listening sockets taken over")
            && mesh.client.log().contains("cannot connect")
    });
    assert_eq!(get(mesh.http(), "/").expect("served").status, 200);
    assert!(!old.log().contains("draining"), "{}", old.log());
    assert!(load.runs());
    mesh.restart_control();
    assert!(old.wait().success(), "{}", old.log());
    mesh.wait_ready();
    load.none_failed();
}

/// Takes a pod's sockets, as a successor does; the conversation, and how many there were.
pub(crate) fn take_sockets(mesh: &Mesh, pod: &str) -> (Packets, Vec<std::os::fd::OwnedFd>) {
    let path = mesh.handover_socket(pod);
    let packets = Packets::connect(&path, Duration::from_secs(20));
    let packets = packets.expect("a socket").expect("somebody listens");
    packets
        .send(&format!("voile-handover/1 shop/{pod}"), None)
        .expect("sent");
    let hear = || packets.receive().expect("a word").expect("no end");
    let answer = hear().text;
    let count: usize = answer
        .strip_prefix("take ")
        .expect("welcome")
        .parse()
        .expect("a number");
    let sockets = (0..count)
        .map(|_| hear().descriptor.expect("a socket"))
        .collect();
    (packets, sockets)
}

#[test]
fn a_successor_that_is_killed_at_any_word_leaves_the_old_one_serving() {
    let mut mesh = Mesh::start_as("STRICT", &lending());
    chat(&mesh);
    let url = format!("http://{}/", mesh.http());
    let load = Load::start("connections", &url, &["--rate", "200", "--no-keepalive"]);
    let failures = || mesh.client.log().matches("handover failed").count();
    // Messages of the successor before it dies.
    let lives: [&[&str]; 5] = [
        &[],
        &["nonsense"],
        &["ready"],
        &["ready", "nonsense"],
        &["ready", "hang"],
    ];
    for (number, words) in lives.into_iter().enumerate() {
        let (packets, sockets) = take_sockets(&mesh, "client");
        assert!(sockets.len() >= 6, "pages and listeners: {}", sockets.len());
        for word in words {
            match *word {
                // Longer than the old one waits: it goes on serving meanwhile, in the kernel's queue.
                "hang" => wait_until("the old one goes on", || failures() > number),
                word => packets.send(word, None).expect("sent"),
            }
            if *word == "ready" {
                let answer = packets.receive().expect("a word").expect("no end");
                assert_eq!(answer.text, "yours");
            }
        }
        drop((packets, sockets));
        wait_until("it says so", || failures() > number);
        assert_eq!(
            get(mesh.http(), "/").expect("served").status,
            200,
            "{words:?}"
        );
        let page = get(mesh.client_admin(), "/ready").expect("its pages are there again");
        assert_eq!(page.status, 200, "{words:?}");
    }
    // And the next one is welcome.
    let mut old = mesh.replace("client", &lending());
    assert!(old.wait().success(), "{}", old.log());
    mesh.wait_ready();
    load.none_failed();
    let mut last = TcpStream::connect(mesh.http()).expect("a connection");
    last.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect("sent");
    let answer = read_answer(&mut std::io::BufReader::new(last)).expect("served");
    assert_eq!(answer.status, 200);
}

#[test]
fn a_successor_that_hangs_makes_room_for_the_next() {
    let mut mesh = Mesh::start_as("STRICT", &lending());
    chat(&mesh);
    // One that never says who it is, and one that took the sockets and then says nothing.
    let socket = mesh.handover_socket("client");
    let _silent = Packets::connect(&socket, Duration::from_secs(20)).expect("a socket");
    let (hanging, sockets) = take_sockets(&mesh, "client");
    let began = std::time::Instant::now();
    let mut old = mesh.replace("client", &lending());
    assert!(old.wait().success(), "{}", old.log());
    mesh.wait_ready();
    // It would have waited for a minute; nothing here takes half of that, however busy the machine is.
    assert!(began.elapsed() < Duration::from_secs(30));
    let told = hanging.receive().expect("a word").expect("no end");
    assert_eq!(told.text, "refused another process requested the handover");
    drop(sockets);
    assert_eq!(get(mesh.http(), "/").expect("served").status, 200);
}

/// A successor that was displaced while its control plane was away does not serve after the control
/// plane is back.
#[test]
fn of_two_successors_the_last_one_serves() {
    let mut mesh = Mesh::start_as("STRICT", &lending());
    chat(&mesh);
    mesh.kill_control();
    let taken = |mesh: &Mesh| mesh.client.log().contains("listening sockets taken over");
    let mut old = mesh.replace("client", &lending());
    wait_until("the first has the sockets", || taken(&mesh));
    let mut displaced = mesh.replace("client", &lending());
    wait_until("the second has the sockets", || taken(&mesh));
    mesh.restart_control();
    assert_eq!(displaced.wait().code(), Some(1));
    let said = displaced.log();
    assert!(
        said.contains("another process requested the handover"),
        "{said}"
    );
    assert!(old.wait().success(), "{}", old.log());
    mesh.wait_ready();
    assert_eq!(get(mesh.http(), "/").expect("served").status, 200);
}
