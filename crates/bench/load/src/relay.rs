//! A bare TCP relay: the least a process in the path can do, and so the floor every proxy is compared with.
//!
//! ```text
//! client ──read──▶ worker's buffer ──write──▶ server      and back; one read and one write per message
//! ```
//!
//! Half-close travels each way by itself; a reset travels as a reset. Nothing is allocated once a pair is open,
//! unless a receiver is slower than its sender, and then at most one buffer per direction.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use socket2::SockRef;

use crate::accept::{Inbox, accept_loop, listen, raise_descriptor_limit};
use crate::connect::start_connect;
use crate::poll::{Poll, Readiness};
use crate::shovel::{BUFFER_BYTES, CopyDirection};
use crate::stop::Stop;

const INBOX: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// Options of a relay.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// Address to listen on; port 0 takes a free port.
    pub listen: SocketAddr,
    /// Address to which the relay carries each accepted connection.
    pub to: SocketAddr,
    /// Worker threads.
    pub workers: usize,
    /// Source address of the outgoing connections.
    pub bind: Option<IpAddr>,
}

/// A relay that listens but does not yet run.
#[derive(Debug)]
pub struct TcpRelay {
    options: RelayOptions,
    listener: TcpListener,
}

impl TcpRelay {
    /// Binds the listening address.
    pub fn bind(options: RelayOptions) -> io::Result<Self> {
        raise_descriptor_limit();
        let listener = listen(options.listen)?;
        Ok(Self { options, listener })
    }

    /// The address really listened on.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Relays until stopped; open pairs are then closed.
    pub fn run(self, stop: &Stop) -> io::Result<()> {
        let inboxes: Vec<_> = (0..self.options.workers.max(1))
            .map(|_| Inbox::new())
            .collect::<io::Result<_>>()?;
        let mut workers = Vec::new();
        for (index, inbox) in inboxes.iter().enumerate() {
            let (inbox, stop, options) = (Arc::clone(inbox), stop.clone(), self.options.clone());
            let mut worker = RelayWorker::new(inbox, options)?;
            let thread = thread::Builder::new().name(format!("relay-{index}"));
            workers.push(thread.spawn(move || worker.run(&stop))?);
        }
        let accepted = accept_loop(&[self.listener], &inboxes, stop);
        stop.raise();
        for worker in workers {
            worker
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("relay worker panicked")))?;
        }
        accepted
    }
}

#[derive(Debug)]
struct Pair {
    /// Client and server.
    ends: [TcpStream; 2],
    /// Client to server and server to client.
    directions: [CopyDirection; 2],
    connecting: bool,
}

enum RelayFate {
    Open,
    Done,
    Broken,
}

struct RelayWorker {
    poll: Poll,
    inbox: Arc<Inbox>,
    options: RelayOptions,
    pairs: Vec<Option<Pair>>,
    free: Vec<usize>,
    /// Slots emptied during this batch of events; reused only after it, since the batch may still name them.
    emptied: Vec<usize>,
    buffer: Box<[u8]>,
}

impl RelayWorker {
    fn new(inbox: Arc<Inbox>, options: RelayOptions) -> io::Result<Self> {
        Ok(Self {
            poll: Poll::new()?,
            inbox,
            options,
            pairs: Vec::new(),
            free: Vec::new(),
            emptied: Vec::new(),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
        })
    }

    fn run(&mut self, stop: &Stop) -> io::Result<()> {
        self.poll.add_level(self.inbox.waker.fd(), INBOX)?;
        self.poll.add_level(stop.fd(), STOP)?;
        loop {
            for index in 0..self.poll.wait()? {
                let ready = self.poll.event(index);
                match ready.token {
                    STOP => return Ok(()),
                    INBOX => self.open_new(),
                    _ => self.on_ready(ready),
                }
            }
            self.free.append(&mut self.emptied);
        }
    }

    fn open_new(&mut self) {
        for (client, _listener) in self.inbox.take() {
            if let Err(error) = self.open(client) {
                eprintln!("voile relay: connect to {}: {error}", self.options.to);
                self.inbox.closed();
            }
        }
    }

    fn open(&mut self, client: TcpStream) -> io::Result<()> {
        let server = start_connect(self.options.to, self.options.bind)?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.pairs.push(None);
            self.pairs.len() - 1
        });
        let registered = self
            .poll
            .add_stream(&client, slot as u64 * 2)
            .and_then(|()| self.poll.add_stream(&server, slot as u64 * 2 + 1));
        if let Err(error) = registered {
            self.free.push(slot);
            return Err(error);
        }
        self.pairs[slot] = Some(Pair {
            ends: [client, server],
            directions: [CopyDirection::default(), CopyDirection::default()],
            connecting: true,
        });
        Ok(())
    }

    fn on_ready(&mut self, ready: Readiness) {
        let (slot, side) = ((ready.token / 2) as usize, (ready.token % 2) as usize);
        let Some(pair) = self.pairs.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        let fate = pair.on_ready(side, ready, &mut self.buffer);
        if matches!(fate, RelayFate::Open) {
            return;
        }
        if let Some(pair) = self.pairs[slot].take() {
            if matches!(fate, RelayFate::Broken) {
                pair.reset();
            }
            self.emptied.push(slot);
            self.inbox.closed();
        }
    }
}

impl Pair {
    fn on_ready(&mut self, side: usize, ready: Readiness, buffer: &mut [u8]) -> RelayFate {
        if ready.readable() {
            self.directions[side].readable = true;
        }
        if ready.hangup() {
            self.directions[side].hangup = true;
        }
        if self.connecting {
            if side == 0 || !ready.writable() {
                return RelayFate::Open;
            }
            match self.ends[1].take_error() {
                Ok(None) => self.connecting = false,
                Ok(Some(_)) | Err(_) => return RelayFate::Broken,
            }
        }
        // An event on one end can unblock both directions: its bytes, and the bytes that wait for it.
        let [client, server] = &self.ends;
        let [to_server, to_client] = &mut self.directions;
        let moved = to_server
            .shovel(client, server, buffer)
            .and_then(|()| to_client.shovel(server, client, buffer));
        if moved.is_err() {
            return RelayFate::Broken;
        }
        if self.directions.iter().all(|direction| direction.finished) {
            RelayFate::Done
        } else {
            RelayFate::Open
        }
    }

    /// Closes both ends with a reset, so that neither side takes a cut stream for a whole one.
    fn reset(&self) {
        for end in &self.ends {
            let _ = SockRef::from(end).set_linger(Some(Duration::ZERO));
        }
    }
}
