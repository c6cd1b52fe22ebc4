//! Reading ahead: a reader that waits for bytes that are here already is woken, whatever the socket says.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use voile_transport::{SocketEvents, TcpIo, TransportStream};

/// A record of TLS.
const RECORD: usize = 16_406;

#[tokio::test]
async fn what_lies_here_is_readable_though_nothing_more_comes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut sender = TcpStream::connect(address).await.expect("a listener");
    let (accepted, _) = listener.accept().await.expect("a caller");
    let mut stream = TransportStream::Tcp(TcpIo::from(accepted));
    stream.read_ahead();
    // Enough to begin with it, then less than it reads at a time; and silence.
    let all: Vec<u8> = (0..7 * RECORD + 5).map(|index| index as u8).collect();
    sender.write_all(&all).await.expect("taken");
    let mut heard = Vec::new();
    let mut seen_here = false;
    while heard.len() < all.len() {
        let waiting = tokio::time::timeout(Duration::from_secs(10), stream.readable());
        waiting.await.expect("there is more").expect("a socket");
        let mut room = vec![0; RECORD];
        let count = stream.read(&mut room).await.expect("bytes");
        heard.extend_from_slice(&room[..count]);
        if heard.len() < all.len() {
            assert!(stream.is_readable(), "after {} bytes", heard.len());
            assert_eq!(
                stream.news(),
                SocketEvents::Bytes,
                "after {} bytes",
                heard.len()
            );
            seen_here |= !has_bytes(&stream);
        }
    }
    assert!(heard == all);
    assert!(seen_here, "nothing was read ahead");
    assert_eq!(stream.news(), SocketEvents::None);
}

/// Returns true if the kernel holds bytes for the stream. Bytes that it does not hold were read.
fn has_bytes(stream: &TransportStream) -> bool {
    let TransportStream::Tcp(io) = stream else {
        return false;
    };
    let mut byte = [0; 1];
    let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
    rustix::net::recv(io.tcp(), &mut byte, flags).is_ok()
}
