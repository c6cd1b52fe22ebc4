//! Servers for the tests: our own echo server and relay on free ports, and one that plays a script of bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use voile_load::echo::{Echo, EchoOptions};
use voile_load::relay::{RelayOptions, TcpRelay};
use voile_load::{LoadOptions, LoadTarget, Stop};

/// Long enough for a loaded machine; only a test that fails waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A TCP port that refuses connections. A connection of its own holds the port, so no test that runs beside this one gets it.
pub(crate) struct ClosedTcpPort {
    pub(crate) address: SocketAddr,
    _listener: TcpListener,
    _holder: TcpStream,
}

impl ClosedTcpPort {
    pub(crate) fn reserve() -> ClosedTcpPort {
        let listener = TcpListener::bind(loopback()).unwrap();
        let holder = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        ClosedTcpPort {
            address: holder.local_addr().unwrap(),
            _listener: listener,
            _holder: holder,
        }
    }
}

/// A server of ours that stops with the test.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Served {
    pub(crate) fn echo(options: EchoOptions) -> Self {
        Self::at(EchoOptions {
            listen: vec![loopback()],
            ..options
        })
    }

    /// The server at the one address that the options name.
    pub(crate) fn at(options: EchoOptions) -> Self {
        let echo = Echo::bind(options).unwrap();
        let address = echo.addresses().unwrap()[0];
        Self::start(address, move |stop| echo.run(stop))
    }

    pub(crate) fn relay(to: SocketAddr) -> Self {
        let options = RelayOptions {
            listen: loopback(),
            to,
            workers: 2,
            bind: None,
        };
        let relay = TcpRelay::bind(options).unwrap();
        let address = relay.address().unwrap();
        Self::start(address, move |stop| relay.run(stop))
    }

    fn start(
        address: SocketAddr,
        run: impl FnOnce(&Stop) -> std::io::Result<()> + Send + 'static,
    ) -> Self {
        let stop = Stop::new().unwrap();
        let theirs = stop.clone();
        let thread = Some(thread::spawn(move || run(&theirs)));
        Self {
            address,
            stop,
            thread,
        }
    }

    /// Load on a path of this server: 100 requests, in a fifth of a second.
    pub(crate) fn load(&self, path: &str) -> LoadOptions {
        load(self.address, path)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // A server that reads no more must not hold a test for ever.
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Stops the server, and returns its result.
    pub(crate) fn finish(mut self) -> std::io::Result<()> {
        self.stop.raise();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn load(address: SocketAddr, path: &str) -> LoadOptions {
    let mut options =
        LoadOptions::new(LoadTarget::parse(&format!("http://{address}{path}")).unwrap());
    options.rate = 500.0;
    options.duration = Duration::from_millis(200);
    options.timeout = PATIENCE;
    options
}

/// Action of a scripted server after its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Then {
    /// Read the next request on the same connection.
    KeepAlive,
    /// Close properly.
    Close,
    /// Stay silent until the client gives up.
    Hold,
}

/// A server that answers every request head with the same bytes. Its threads end with the process.
pub(crate) fn scripted(answer: &'static [u8], then: Then) -> SocketAddr {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || play(stream, answer, then));
        }
    });
    address
}

fn play(mut stream: TcpStream, answer: &[u8], then: Then) {
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        while !seen.ends_with(b"\r\n\r\n") {
            match stream.read(&mut buffer) {
                Ok(count) if count > 0 => seen.extend_from_slice(&buffer[..count]),
                _ => return,
            }
        }
        seen.clear();
        if stream.write_all(answer).is_err() {
            return;
        }
        match then {
            Then::KeepAlive => {}
            Then::Close => return,
            Then::Hold => {
                let _ = stream.read(&mut buffer);
                return;
            }
        }
    }
}

/// Behaviour of a hostile server on one connection.
pub(crate) type Play = fn(TcpStream);

/// A server whose connections are played by `play`. Its threads end with the process.
pub(crate) fn stranger(play: Play) -> SocketAddr {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || play(stream));
        }
    });
    address
}

/// Sends bytes, ends the sending side and reads all that comes back.
pub(crate) fn exchange(mut stream: TcpStream, bytes: &[u8]) -> String {
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}
