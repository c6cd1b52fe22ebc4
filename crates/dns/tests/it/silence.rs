//! A resolver that says nothing: clients hear of it from us before they give up by themselves, and soon at once.

use std::net::UdpSocket;

use voile_dns::{ForwardError, Over, Upstreams};

/// `web` A IN.
const QUESTION: &[u8] =
    b"\xab\xcd\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03web\x00\x00\x01\x00\x01";

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn questions_after_the_first_unanswered_ones_are_not_kept_waiting() {
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let upstreams = Upstreams::fixed(silent.local_addr().expect("an address"));
    let both = (
        upstreams.forward(QUESTION, Over::Udp),
        upstreams.forward(QUESTION, Over::Udp),
    );
    let (first, second) = tokio::join!(both.0, both.1);
    assert!(matches!(first, Err(ForwardError::All(_))), "{first:?}");
    assert!(matches!(second, Err(ForwardError::All(_))), "{second:?}");
    let third = upstreams.forward(QUESTION, Over::Udp).await;
    assert!(matches!(third, Err(ForwardError::Silent)), "{third:?}");
}
