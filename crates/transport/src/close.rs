//! Ways to end a connection: lingering, so that a refused client reads its answer instead of a reset, and resetting,
//! so that a cut stream is never mistaken for a finished one.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::limits::{LINGER_BYTES, LINGER_TIMEOUT};
use crate::stream::Stream;

/// Ends our side, then reads and drops what the client still sends, until it closes or patience ends. Closing with
/// unread bytes would make the kernel send a reset, and the reset would overtake the answer.
pub async fn linger(mut stream: Stream) {
    let mut scratch = [0u8; 2048];
    let drain = async {
        stream.shutdown().await?;
        let mut dropped = 0;
        while dropped < LINGER_BYTES {
            match stream.read(&mut scratch).await? {
                0 => break,
                count => dropped += count,
            }
        }
        std::io::Result::Ok(())
    };
    // Whatever happens, the stream is closed next; there is nobody left to tell.
    let _ = tokio::time::timeout(LINGER_TIMEOUT, drain).await;
}

/// Makes closing this socket send a reset, which tells the peer that the stream was cut, not finished.
pub fn reset(tcp: &TcpStream) {
    // Failing means that the socket is already gone.
    let _ = socket2::SockRef::from(tcp).set_linger(Some(std::time::Duration::ZERO));
}
