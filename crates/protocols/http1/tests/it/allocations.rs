//! A counting allocator proves that a request and its response cost no heap allocation once buffers have grown.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use voile_http1::{
    Body, RequestEdit, RequestIndex, RequestSummary, ResponseEdit, ResponseIndex, Version,
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

#[test]
fn a_request_and_its_response_allocate_nothing() {
    let request = b"POST /p?q HTTP/1.1\r\nHost: x\r\nConnection: foo\r\nFoo: 1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: v\r\n\r\n";
    let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    let (mut asks, mut answers) = (RequestIndex::default(), ResponseIndex::default());
    let mut out = Vec::new();
    let mut round = || {
        out.clear();
        asks.reset();
        asks.parse(request).unwrap();
        let head = asks.head(request);
        head.write_forwarded(&RequestEdit::default(), &mut out);
        let mut body = Body::new(head.framing());
        body.accept(&request[asks.head_len()..]).unwrap();
        assert!(body.is_done() && head.header("foo").is_some());
        answers.reset();
        answers.parse(response, RequestSummary::default()).unwrap();
        answers.head(response).write_forwarded(
            &ResponseEdit {
                client: Version::Http11,
                persist: true,
            },
            &mut out,
        );
    };
    round();
    let before = COUNT.get();
    for _ in 0..1000 {
        round();
    }
    assert_eq!(COUNT.get() - before, 0);
}
