//! Two small servers: an application that answers every request with the head it got, and a provider that says of a request
//! what the request asks for.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};

use crate::sets::{ASKED, GRANT};

/// The answer to a request with this head.
type Answering = fn(&[u8]) -> Vec<u8>;

/// It answers until it is dropped.
pub(crate) struct Echo {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Echo {
    /// The application.
    pub(crate) fn start() -> Self {
        Self::answering(|head| {
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", head.len());
            [answer.as_bytes(), head].concat()
        })
    }

    /// The provider.
    pub(crate) fn authorizer() -> Self {
        Self::answering(|head| {
            let text = String::from_utf8_lossy(head);
            let status = match text.contains(&format!("{GRANT}: yes\r\n")) {
                true => "200 OK",
                false => "403 Forbidden",
            };
            format!("HTTP/1.1 {status}\r\n{ASKED}: yes\r\ncontent-length: 0\r\n\r\n").into_bytes()
        })
    }

    fn answering(answering: Answering) -> Self {
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
                thread::spawn(move || answer_all(stream, answering));
            }
        });
        Self {
            address,
            ended,
            accepting: Some(accepting),
        }
    }

    /// It as a cluster of Envoy's.
    pub(crate) fn cluster(&self, name: &str) -> Value {
        let (ip, port) = (self.address.ip(), self.address.port());
        let address =
            json!({ "socket_address": { "address": ip.to_string(), "port_value": port } });
        json!({
            "name": name,
            "type": "STATIC",
            "load_assignment": {
                "cluster_name": name,
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
fn answer_all(stream: TcpStream, answering: Answering) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if reader.read_until(b'\n', &mut head).ok()? == 0 {
                return None;
            }
        }
        let answer = answering(&head);
        reader.get_mut().write_all(&answer).ok()?;
    }
}
