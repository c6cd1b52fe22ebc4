//! Clients of HTTP/3 that want a gateway to hold much memory: heads that never end, on many streams of several connections.

use std::time::{Duration, Instant};

use quinn::SendStream;
use voile_proxy::http2::limits::MAX_HEADS_OF_ALL;

use super::quic::{self, Dialed};
use crate::gateway::Edge;
use crate::gateway::http3::{as_anybody, get_at, simple_as};
use crate::mesh::{Client, memory, memory_before_attack, wait_until};

/// Connections of an attack, streams of each, and bytes of each stream's head.
const HEADS: (usize, usize, usize) = (4, 300, 50_000);
const STREAMS: (usize, usize, usize) = (16, 1_000, 20);

/// Memory of connections and streams beside the heads: QUIC's state and the tasks of 1,200 requests.
const BESIDE: u64 = 24 << 20;

/// Time in which a burst is given back.
const GIVEN_BACK: Duration = Duration::from_secs(10);

/// Sends heads of so many bytes without their last ones. Gives the streams, which stay open.
async fn attack(to: &Dialed, streams_of_each: usize, head: usize) -> Vec<SendStream> {
    let mut frame = voile_http3::head_frame(&vec![0; head]);
    frame.truncate(head - 10);
    let mut streams = Vec::new();
    for _ in 0..streams_of_each {
        let (mut send, _) = to.connection.open_bi().await.expect("a stream");
        // The gateway may refuse it meanwhile.
        let _ = send.write_all(&frame).await;
        streams.push(send);
    }
    streams
}

fn held(edge: &Edge) -> u64 {
    memory(edge.gateway_pid(), "VmRSS:")
}

fn attacked(
    arguments: &[&str],
    (connections, streams_of_each, head): (usize, usize, usize),
    most: impl Fn(u64) -> u64,
) {
    let how = Client {
        everywhere: arguments.iter().map(ToString::to_string).collect(),
        ..Client::default()
    };
    let (edge, _) = simple_as(how);
    let before = memory_before_attack(edge.gateway_pid());
    quic::run(async {
        let (mut dialed, mut streams) = (Vec::new(), Vec::new());
        for _ in 0..connections {
            let to = as_anybody(&edge, "a.example").await.expect("connected");
            streams.extend(attack(&to, streams_of_each, head).await);
            dialed.push(to);
            let other = as_anybody(&edge, "a.example").await.expect("connected");
            let answer = get_at(&other, "a.example", "/").await.expect("served");
            assert_eq!(answer.status, 200);
        }
        let peak = memory(edge.gateway_pid(), "VmHWM:");
        println!("{} MiB before, {} MiB at most", before >> 20, peak >> 20);
        assert!(peak <= most(before), "{peak} bytes");
    });
    let began = Instant::now();
    wait_until("the memory of the burst was given back", || {
        held(&edge) < before + before / 2
    });
    let took = began.elapsed();
    println!("given back after {took:?}");
    assert!(took <= GIVEN_BACK, "{took:?}");
}

#[test]
fn heads_of_http3_that_never_end_are_bounded_over_all_connections_and_given_back() {
    // All come from one address, which gets half of the budget; a buffer that grows is up to twice as large as its content.
    attacked(&[], HEADS, |before| {
        before + MAX_HEADS_OF_ALL as u64 + BESIDE
    });
}

#[test]
fn the_memory_limit_holds_under_heads_of_http3_that_never_end() {
    attacked(&["--memory-limit", "64M"], HEADS, |_| 64 << 20);
}

#[test]
fn the_memory_limit_holds_under_streams_of_http3_without_a_head() {
    attacked(&["--memory-limit", "64M"], STREAMS, |_| 64 << 20);
}
