//! docs/reference/proxy.md names every reason for which work is refused and every fixed limit, with the values that hold.

use std::path::Path;

use voile_http1 as head;

use crate::http::limits;
use crate::worker::Overload;
use crate::worker::captured::MAX_PARKED;

#[test]
fn the_page_on_the_proxy_tells_reasons_and_limits() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/proxy.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    for why in Overload::ALL {
        let row = format!("| `{}` | {} | ", why.name(), why.flag().code());
        assert!(page.contains(&row), "{row}");
    }
    let kibi = |bytes: usize| bytes / 1024;
    for row in [
        format!(
            "| request head | {} KiB, {} fields, {} KiB for its first line |",
            kibi(head::MAX_HEAD_BYTES),
            head::MAX_HEADERS,
            kibi(head::MAX_REQUEST_LINE_BYTES)
        ),
        format!(
            "| time for a request head | {} s |",
            limits::HEADER_TIMEOUT.as_secs()
        ),
        format!(
            "| buffer of a connection that moves | {} KiB |",
            kibi(limits::BUFFER_BYTES)
        ),
        format!(
            "| free buffers kept by a worker | {} |",
            limits::MAX_FREE_BUFFERS
        ),
        format!(
            "| unfinished head that waits | {} KiB |",
            kibi(limits::MAX_PARKED_BYTES)
        ),
        format!(
            "| trailers | {} KiB |",
            kibi(head::MAX_TRAILER_BYTES as usize)
        ),
        format!(
            "| idle downstream connection | {} s |",
            limits::DOWNSTREAM_IDLE.as_secs()
        ),
        format!(
            "| client that takes or brings nothing | {} s |",
            limits::STREAM_IDLE.as_secs()
        ),
        format!(
            "| body at any speed | {} s | then {} bytes a second",
            limits::BODY_GRACE.as_secs(),
            limits::MIN_BODY_RATE
        ),
        format!("| silent tunnel | {} s |", limits::TUNNEL_IDLE.as_secs()),
        format!(
            "| idle upstream connection | {} s |",
            limits::UPSTREAM_IDLE.as_secs()
        ),
        format!(
            "| idle upstream connections | {} a key, {} a pool |",
            limits::MAX_IDLE_PER_KEY,
            limits::MAX_IDLE_PER_POOL
        ),
        format!("| captured connections that wait for word | {MAX_PARKED} a worker |"),
    ] {
        assert!(page.contains(&row), "{row}");
    }
}
