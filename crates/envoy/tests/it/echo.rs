//! An application that answers every request with the head it got.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};

/// It answers until it is dropped.
pub(crate) struct Echo {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Echo {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let ended = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ended);
        let accepting = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if until.load(Ordering::Relaxed) {
                    return;
                }
                // Ends when its caller hangs up.
                thread::spawn(move || answer_all(stream));
            }
        });
        Self {
            address,
            ended,
            accepting: Some(accepting),
        }
    }

    /// It as a cluster of Envoy's.
    pub(crate) fn cluster(&self) -> Value {
        let (ip, port) = (self.address.ip(), self.address.port());
        let address =
            json!({ "socket_address": { "address": ip.to_string(), "port_value": port } });
        json!({
            "name": "echo",
            "type": "STATIC",
            "load_assignment": {
                "cluster_name": "echo",
                "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address } }] }],
            },
        })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

/// Requests have no bodies here.
fn answer_all(stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if reader.read_until(b'\n', &mut head).ok()? == 0 {
                return None;
            }
        }
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", head.len());
        let mut answer = answer.into_bytes();
        answer.extend(head);
        reader.get_mut().write_all(&answer).ok()?;
    }
}
