//! Many rounds of clients that come, use, break off and go: descriptors return to where they were, and memory does not
//! grow with the rounds.

use std::io::{BufReader, Write};
use std::net::TcpStream;

use crate::mesh::{Mesh, application, read_answer, wait_until};

/// Clients a round.
const CLIENTS: usize = 300;
/// Rounds before the first look, and after it.
const WARM_UP: usize = 2;
const ROUNDS: usize = 4;
/// Allowed difference of memory, in KiB: the allocator's and the statistics' own variation.
const UNREST_KIB: u64 = 2048;

fn round(mesh: &Mesh) {
    let mut clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| TcpStream::connect(mesh.http()).expect("a connection"))
        .collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let request: &[u8] = match number % 4 {
            0 => b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi",
            // Half a head, half a body: abandoned.
            1 => b"GET / HTTP/1.1\r\nHo",
            2 => b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\nhi",
            _ => b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        };
        client.write_all(request).expect("sent");
    }
    for (number, client) in clients.iter().enumerate() {
        if number % 4 == 0 || number % 4 == 3 {
            let answer = read_answer(&mut BufReader::new(client)).expect("served");
            assert_eq!(answer.status, 200);
        }
    }
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

fn anonymous_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    number.expect("the kernel says how much")
}

#[test]
fn rounds_of_clients_leave_neither_descriptors_nor_memory_behind() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let pids = [mesh.client.pid(), mesh.server.pid()];
    // Pooled connections stay on purpose; they are the most a round left, and no more after any other.
    let settled = |what: &str, most: [usize; 2]| {
        wait_until(what, || {
            mesh.client_metrics().contains("\nvoile_connections 0\n")
                && descriptors(pids[0]) <= most[0]
                && descriptors(pids[1]) <= most[1]
        });
    };
    for _ in 0..WARM_UP {
        round(&mesh);
    }
    settled("everybody is gone", [usize::MAX; 2]);
    let most = pids.map(|pid| descriptors(pid) + CLIENTS);
    let before = pids.map(anonymous_kib);
    for _ in 0..ROUNDS {
        round(&mesh);
        settled("descriptors are given back", most);
    }
    wait_until("memory is given back", || {
        let after = pids.map(anonymous_kib);
        (0..2).all(|side| after[side] <= before[side] + UNREST_KIB)
    });
}
