//! A counting allocator on the worker's thread: a steady request on a kept connection allocates nothing of ours.
//!
//! Client and server are blocking threads, so that only the engine (and the runtime under it) is counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::thread;

use voile_proxy::http::{
    Buffers, ConnectFailure, Drain, Exchange, HttpHead, HttpRole, HttpTimeouts, HttpWorker,
    RequestRoute, RoleRefusal, serve_connection,
};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending counts nothing.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

#[expect(unsafe_code, reason = "an allocator can only be counted by being one")]
// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Requests before counting begins, and requests counted.
const WARM_UP: usize = 50;
const COUNTED: usize = 1000;

/// Notes the allocation count at each record.
struct QuietRole {
    upstream: SocketAddr,
    records: Cell<usize>,
    at_start: Cell<u64>,
    at_end: Cell<u64>,
}

impl HttpRole for QuietRole {
    type Upstream = tokio::net::TcpStream;
    type Key = SocketAddr;
    type Ticket = ();
    type Question = ();

    fn route(&self, _: &HttpHead<'_>) -> Result<RequestRoute<Self>, RoleRefusal<Self>> {
        Ok(RequestRoute::new(self.upstream, ()))
    }

    async fn connect(
        &self,
        route: &RequestRoute<Self>,
    ) -> Result<tokio::net::TcpStream, ConnectFailure> {
        let stream = tokio::net::TcpStream::connect(route.key).await;
        stream.map_err(|_| ConnectFailure::new("connect"))
    }

    fn record(&self, exchange: Exchange<'_, Self>) {
        assert_eq!(exchange.record.status, 200);
        self.records.set(self.records.get() + 1);
        match self.records.get() {
            WARM_UP => self.at_start.set(COUNT.get()),
            at if at == WARM_UP + COUNTED => self.at_end.set(COUNT.get()),
            _ => {}
        }
    }
}

fn read_through(stream: &mut TcpStream, end: &[u8]) -> bool {
    let mut room = [0; 4096];
    let mut filled = 0;
    while !room[..filled].ends_with(end) {
        match stream.read(&mut room[filled..]) {
            Ok(0) | Err(_) => return false,
            Ok(read) => filled += read,
        }
    }
    true
}

fn allocations_of(
    request: &'static [u8],
    request_end: &'static [u8],
    answer: &'static [u8],
    answer_end: &'static [u8],
) -> u64 {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = server.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        while read_through(&mut stream, request_end) && stream.write_all(answer).is_ok() {}
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let role = Rc::new(QuietRole {
        upstream,
        records: Cell::new(0),
        at_start: Cell::new(0),
        at_end: Cell::new(0),
    });
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = listener.local_addr().unwrap();
        let client = thread::spawn(move || {
            let mut stream = TcpStream::connect(proxy).unwrap();
            stream.set_nodelay(true).unwrap();
            for _ in 0..WARM_UP + COUNTED {
                stream.write_all(request).unwrap();
                assert!(read_through(&mut stream, answer_end));
            }
        });
        let worker = HttpWorker::new(Buffers::new(), Drain::new(), HttpTimeouts::default());
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        serve_connection(&worker, &*role, stream, b"").await;
        client.join().unwrap();
    });
    assert_eq!(role.records.get(), WARM_UP + COUNTED);
    role.at_end.get() - role.at_start.get()
}

#[test]
fn a_steady_get_allocates_nothing() {
    let got = allocations_of(
        b"GET /p HTTP/1.1\r\nHost: x\r\nUser-Agent: t\r\nAccept: */*\r\n\r\n",
        b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\ndone",
        b"done",
    );
    assert_eq!(got, 0, "allocations in {COUNTED} requests");
}

#[test]
fn a_steady_chunked_post_allocates_nothing() {
    let got = allocations_of(
        b"POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nT: done\r\n\r\n",
        b"done\r\n\r\n",
    );
    assert_eq!(got, 0, "allocations in {COUNTED} requests");
}

/// Largest size of an idle connection's task, in bytes: ten thousand of them are 20 MB at most.
const MAX_TASK_BYTES: usize = 2048;

#[test]
fn an_idle_connection_is_a_small_task() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = listener.local_addr().unwrap();
        let role = QuietRole {
            upstream,
            records: Cell::new(0),
            at_start: Cell::new(0),
            at_end: Cell::new(0),
        };
        let worker = HttpWorker::new(Buffers::new(), Drain::new(), HttpTimeouts::default());
        let stream = tokio::net::TcpStream::connect(upstream).await.unwrap();
        let size = size_of_val(&serve_connection(&worker, &role, stream, b""));
        assert!(size <= MAX_TASK_BYTES, "{size} bytes");
    });
}
