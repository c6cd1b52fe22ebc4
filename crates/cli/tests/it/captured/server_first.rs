//! Protocols in which the server speaks first, and others, on an undeclared port: through two sidecars and from a client
//! without one, in every mode. Conversations are data: extend the table, not the code.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use super::{Captured, SERVER, VIP, connect, hear, listen};
use crate::mesh::application;

#[derive(Clone, Copy)]
enum Says {
    Server(&'static [u8]),
    Client(&'static [u8]),
}

type Conversation = (&'static str, &'static [Says]);

const CONVERSATIONS: [Conversation; 4] = [
    (
        "MySQL",
        &[
            Says::Server(b"\x1b\0\0\0\x0a8.0.36\0\x08\0\0\0secret-salt\0\xff\xff"),
            Says::Client(b"\x05\0\0\x01\x85\xa6\xff\x01\0"),
            Says::Server(b"\x07\0\0\x02\0\0\0\x02\0\0\0"),
            Says::Client(b"\x09\0\0\0\x03SELECT 1"),
            Says::Server(b"\x01\0\0\x01\x01"),
        ],
    ),
    (
        "SMTP",
        &[
            Says::Server(b"220 mail.test ESMTP\r\n"),
            Says::Client(b"EHLO client.test\r\n"),
            Says::Server(b"250-mail.test\r\n250 STARTTLS\r\n"),
            Says::Client(b"QUIT\r\n"),
            Says::Server(b"221 bye\r\n"),
        ],
    ),
    (
        "Redis",
        &[
            Says::Client(b"*1\r\n$4\r\nPING\r\n"),
            Says::Server(b"+PONG\r\n"),
            Says::Client(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"),
            Says::Server(b"$-1\r\n"),
        ],
    ),
    (
        "raw echo",
        &[
            Says::Client(b"\0\x01\x02 anything"),
            Says::Server(b"\0\x01\x02 anything"),
            Says::Client(b"\xff"),
            Says::Server(b"\xff"),
        ],
    ),
];

/// Plays one side; the other side's lines are expected.
fn play(stream: &mut TcpStream, conversation: Conversation, as_server: bool, where_: &str) {
    let (name, lines) = conversation;
    let what = format!("{name}, {where_}");
    for line in lines {
        match (line, as_server) {
            (Says::Server(bytes), true) | (Says::Client(bytes), false) => {
                stream.write_all(bytes).expect("written");
            }
            (Says::Server(bytes) | Says::Client(bytes), _) => hear(stream, bytes, &what),
        }
    }
}

#[test]
fn any_conversation_works_on_an_undeclared_port_in_every_mode() {
    let Some(mesh) = Captured::start("STRICT", "") else {
        return;
    };
    // Declared nowhere (7000 and up), and a service's port whose name says nothing (9000).
    let mut ports = Vec::new();
    for (index, conversation) in (0..).zip(CONVERSATIONS) {
        let port = 7000 + index;
        let serve = move |mut stream: TcpStream| play(&mut stream, conversation, true, "server");
        application::serve(listen(&mesh.server, (Ipv4Addr::UNSPECIFIED, port)), serve);
        ports.push(port);
    }
    let serve = |mut stream: TcpStream| play(&mut stream, CONVERSATIONS[1], true, "server");
    application::serve(listen(&mesh.server, (Ipv4Addr::UNSPECIFIED, 9000)), serve);
    for (mode, strangers) in [("STRICT", false), ("PERMISSIVE", true), ("DISABLE", true)] {
        mesh.set_mode(mode);
        let mut clients = vec![("sidecar", &mesh.client)];
        if strangers {
            clients.push(("no sidecar", &mesh.world));
        }
        for (client, inside) in clients {
            let speak = |to: SocketAddr, conversation| {
                // Twice: the first connection teaches, the second uses it.
                for turn in 1..=2 {
                    let mut stream = connect(inside, to);
                    let what = format!("{mode}, {client}, connection {turn} to {to}");
                    play(&mut stream, conversation, false, &what);
                }
            };
            for (port, conversation) in ports.iter().zip(CONVERSATIONS) {
                speak((SERVER, *port).into(), conversation);
            }
            if client == "sidecar" {
                speak((VIP, 9000).into(), CONVERSATIONS[1]);
            }
        }
    }
}
