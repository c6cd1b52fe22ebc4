//! docs/reference/proxy.md names every reason for which work is refused and every fixed limit, with the values that hold.

use std::path::Path;

use voile_http1 as head;

use crate::http::limits;
use crate::worker::Overload;
use crate::worker::listeners::captured_listeners::MAX_PARKED;

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/proxy.md");
    std::fs::read_to_string(path).expect("the page is there")
}

fn kibi(bytes: usize) -> usize {
    bytes / 1024
}

#[test]
fn the_page_on_the_proxy_tells_reasons_and_limits() {
    let page = page();
    for why in Overload::ALL {
        let row = format!("| `{}` | {} | ", why.name(), why.flag().code());
        assert!(page.contains(&row), "{row}");
    }
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
            "| server that takes no more of a body | {} s",
            limits::UPLOAD_IDLE.as_secs()
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

#[test]
fn the_page_on_the_proxy_tells_the_bounds_of_early_answers_and_of_added_fields() {
    let page = page();
    for row in [
        format!(
            "| client that was answered before its body was over | {} MiB, {} s without a byte and {} s in all:",
            kibi(voile_transport::LINGER_BYTES) / 1024,
            limits::LINGER.as_secs(),
            voile_transport::LINGER_TIMEOUT.as_secs()
        ),
        format!(
            "| body that is missing when its answer is written, for the connection to be kept | {} KiB of a body",
            limits::MAX_REMAINDER / 1024
        ),
        format!(
            "| connections of a process that linger so | {} (at most {} MiB) |",
            voile_transport::MAX_LINGERING,
            kibi(voile_transport::MAX_LINGERING_BYTES) / 1024
        ),
        format!(
            "| fields that proxies on the way add | {}; the mesh's next proxy takes {} in all |",
            head::MAX_ADDED_HEADERS,
            head::MAX_FORWARDED_HEADERS
        ),
    ] {
        assert!(page.contains(&row), "{row}");
    }
}
