//! Both ends against each other in memory: however the bytes are cut, requests and answers arrive whole; and in steady
//! state neither end allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use super::{
    Http2Client, Http2Server, PREFACE, Reply, RequestProgress, RequestShape, ResponseBody,
};
use crate::wire::{HttpResponse, PreparedRequest, WireEvent};

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

/// Allocations of this thread so far.
pub(crate) fn allocations() -> u64 {
    COUNT.with(Cell::get)
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A client and a server, and how many bytes travel at once.
struct Pair {
    client: Http2Client,
    server: Http2Server,
    piece: usize,
    preface: usize,
    answered: Vec<HttpResponse>,
    reply: fn(&mut Http2Server, usize),
}

fn requests(shape: RequestShape) -> Arc<[PreparedRequest]> {
    let request = PreparedRequest {
        shape,
        ..PreparedRequest::default()
    };
    Arc::new([request])
}

impl Pair {
    fn new(
        shape: RequestShape,
        lanes: usize,
        piece: usize,
        reply: fn(&mut Http2Server, usize),
    ) -> Self {
        Self {
            client: Http2Client::new(requests(shape), lanes),
            server: Http2Server::new(false),
            piece,
            preface: PREFACE.len(),
            answered: Vec::with_capacity(1000),
            reply,
        }
    }

    /// Carries bytes until both are silent.
    fn carry(&mut self) {
        loop {
            let there = self.client.unsent().len().min(self.piece);
            if there > 0 {
                let skipped = self.preface.min(there);
                self.preface -= skipped;
                let mut bytes = &self.client.unsent()[skipped..there];
                while let Some(asked) = self
                    .server
                    .next(&mut bytes)
                    .expect("invariant: the client is honest")
                {
                    match asked {
                        RequestProgress::Head(lane) => self.server.stream(lane).keep = true,
                        RequestProgress::Piece(lane) | RequestProgress::Whole(lane) => {
                            (self.reply)(&mut self.server, lane);
                        }
                    }
                }
                self.client.wrote(there);
            }
            let back = self.server.unsent().len().min(self.piece);
            if back > 0 {
                let mut bytes = &self.server.unsent()[..back];
                while let Some(event) = self
                    .client
                    .next(&mut bytes)
                    .expect("invariant: the server is honest")
                {
                    match event {
                        WireEvent::Answered(_, answer) => self.answered.push(answer),
                        WireEvent::Ready | WireEvent::Started(_) | WireEvent::First(_) => {}
                        WireEvent::Failed(..) | WireEvent::Unsolicited | WireEvent::Close => {
                            panic!("{event:?}")
                        }
                    }
                }
                self.server.wrote(back);
            }
            if there + back == 0 {
                return;
            }
        }
    }
}

fn shape(body: usize, grpc: bool) -> RequestShape {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/voile.echo.v1.Echo/Unary?size=7"),
        (":authority", "shop.example:8080"),
        ("user-agent", "test"),
        (
            "content-type",
            if grpc {
                "application/grpc"
            } else {
                "text/plain"
            },
        ),
    ];
    let mut bytes = Vec::new();
    if grpc {
        crate::grpc::put_message(&mut bytes, &vec![b'x'; body]);
    } else {
        bytes.resize(body, b'x');
    }
    RequestShape {
        fields: fields
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        body: bytes,
        grpc,
        messages: 1,
        interleave: None,
        head: false,
    }
}

fn send_back(server: &mut Http2Server, lane: usize) {
    let grpc = server.stream(lane).grpc.then_some((0, ""));
    let reply = Reply {
        status: 200,
        content_type: if grpc.is_some() {
            "application/grpc"
        } else {
            "text/plain"
        },
        content: ResponseBody::Kept,
        grpc,
        ..Reply::default()
    };
    server.answer(lane, &reply);
}

#[test]
fn requests_and_answers_arrive_whole_however_they_are_cut() {
    for (body, grpc) in [
        (0, false),
        (1, false),
        (100, true),
        (0, true),
        (40_000, false),
        (200_000, true),
    ] {
        for piece in [1, 2, 3, 8, 9, 10, 100, 16_393, 65_536] {
            let mut pair = Pair::new(shape(body, grpc), 3, piece, send_back);
            for _ in 0..2 {
                for lane in 0..3 {
                    assert!(pair.client.open(lane, 0));
                }
                pair.carry();
            }
            let expected = (6, if grpc { 0 } else { 200 });
            let bodies = pair
                .answered
                .iter()
                .filter(|answer| answer.body == body as u64);
            let statuses: Vec<_> = pair.answered.iter().map(|answer| answer.status).collect();
            assert_eq!(bodies.count(), 6, "{body} bytes by {piece}");
            assert_eq!(
                statuses,
                vec![Some(expected.1); expected.0],
                "{body} bytes by {piece}"
            );
        }
    }
}

#[test]
fn a_request_and_its_answer_allocate_nothing() {
    for (body, grpc) in [(0, false), (1024, false), (1024, true)] {
        let mut pair = Pair::new(shape(body, grpc), 4, 65_536, send_back);
        let round = |pair: &mut Pair| {
            for lane in 0..4 {
                pair.client.open(lane, 0);
            }
            pair.carry();
        };
        for _ in 0..10 {
            round(&mut pair);
        }
        let before = COUNT.with(Cell::get);
        for _ in 0..100 {
            round(&mut pair);
        }
        let allocated = COUNT.with(Cell::get) - before;
        assert_eq!(
            (pair.answered.len(), allocated),
            (440, 0),
            "{body} bytes, gRPC {grpc}"
        );
    }
}
