//! Proofs by the kernel about a connection that ended: did the peer close before it received the bytes written here?

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use voile_transport::{SocketEvents, TransportStream};

/// Action of a peer between the exchange before and the bytes in question, and after them.
#[derive(Debug, Clone, Copy)]
enum Peer {
    /// Closes first; then the bytes go out.
    ClosesFirst,
    /// Resets first.
    ResetsFirst,
    /// Takes the bytes, then closes.
    ReadsAndCloses,
    /// Takes one byte, then closes, which resets.
    ReadsOneAndCloses,
    /// Has them in its kernel, and closes without a look.
    ClosesUnread,
    /// Takes them, then resets.
    ReadsAndResets,
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
    (client.expect("connect"), server.expect("accept").0)
}

/// Gives (news before writing, proof after the end).
async fn play(peer: Peer, writes: usize) -> (bool, bool) {
    let (client, mut server) = pair().await;
    let mut client = TransportStream::Tcp(client.into());
    // An exchange before, so that the connection is not new.
    client.write_all(b"first").await.expect("write");
    server.read_exact(&mut [0; 5]).await.expect("read");
    server.write_all(b"answer").await.expect("write");
    client.read_exact(&mut [0; 6]).await.expect("read");
    let mark = client.written();
    assert_eq!(client.news(), SocketEvents::None);
    let mut server = Some(server);
    match peer {
        Peer::ClosesFirst => server = None,
        Peer::ResetsFirst => {
            voile_transport::reset(server.as_ref().expect("there"));
            server = None;
        }
        _ => {}
    }
    let news = client.news() == SocketEvents::End;
    for _ in 0..writes {
        // Fails once the peer's reset is here.
        let _ = client.write_all(b"bytes").await;
    }
    if let Some(mut server) = server {
        let take = match peer {
            Peer::ReadsOneAndCloses => 1,
            Peer::ReadsAndCloses | Peer::ReadsAndResets => 5 * writes,
            _ => 0,
        };
        server.readable().await.expect("they arrive");
        server
            .read_exact(&mut vec![0; take])
            .await
            .expect("they are taken");
        if matches!(peer, Peer::ReadsAndResets) {
            voile_transport::reset(&server);
        }
    }
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
    (news, client.closed_before(mark))
}

#[tokio::test]
async fn only_a_close_before_the_first_byte_is_a_proof() {
    let table = [
        (Peer::ClosesFirst, true, true),
        (Peer::ResetsFirst, true, false),
        (Peer::ReadsAndCloses, false, false),
        (Peer::ReadsOneAndCloses, false, false),
        (Peer::ClosesUnread, false, false),
        (Peer::ReadsAndResets, false, false),
    ];
    for (peer, news, proof) in table {
        for writes in [1, 2, 3] {
            assert_eq!(play(peer, writes).await, (news, proof), "{peer:?} {writes}");
        }
    }
    assert_eq!(play(Peer::ClosesFirst, 0).await, (true, true));
}
