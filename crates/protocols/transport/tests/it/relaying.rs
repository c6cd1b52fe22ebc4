//! The opaque relay and the listener on real sockets.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};
use voile_transport::{DetectedProtocol, RelayEnd, TcpIo, TransportStream, read_prefix, relay};

const FOREVER: Duration = Duration::from_secs(20);

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
    (client.expect("connect"), server.expect("accept").0)
}

fn stream(tcp: TcpStream) -> TransportStream {
    TransportStream::Tcp(tcp.into())
}

#[tokio::test]
async fn half_close_travels_and_the_other_half_stays_open() {
    LocalSet::new()
        .run_until(async {
            let (mut client, downstream) = pair().await;
            let (upstream, mut server) = pair().await;
            let running = spawn_local(relay(
                stream(downstream),
                stream(upstream),
                FOREVER,
                std::future::pending(),
            ));
            client.write_all(b"question").await.expect("write");
            client.shutdown().await.expect("shutdown");
            let mut asked = String::new();
            server.read_to_string(&mut asked).await.expect("read");
            assert_eq!(asked, "question");
            server.write_all(b"a longer answer").await.expect("write");
            drop(server);
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.expect("read");
            assert_eq!(answer, "a longer answer");
            let outcome = running.await.expect("relay");
            assert!(matches!(outcome.end, RelayEnd::Finished), "{outcome:?}");
            assert_eq!((outcome.received, outcome.sent), (8, 15));
        })
        .await;
}

#[tokio::test]
async fn a_cut_upstream_is_a_reset_downstream_not_an_end() {
    LocalSet::new()
        .run_until(async {
            let (mut client, downstream) = pair().await;
            let (upstream, server) = pair().await;
            let running = spawn_local(relay(
                stream(downstream),
                stream(upstream),
                FOREVER,
                std::future::pending(),
            ));
            voile_transport::reset(&server);
            drop(server);
            let error = client
                .read_to_end(&mut Vec::new())
                .await
                .expect_err("reset");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            assert!(matches!(
                running.await.expect("relay").end,
                RelayEnd::UpstreamFailed(_)
            ));
        })
        .await;
}

#[tokio::test]
async fn megabytes_pass_unchanged_both_ways_at_once() {
    LocalSet::new()
        .run_until(async {
            let (client, downstream) = pair().await;
            let (upstream, server) = pair().await;
            spawn_local(relay(
                stream(downstream),
                stream(upstream),
                FOREVER,
                std::future::pending(),
            ));
            let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i ^ (i >> 8)) as u8).collect();
            let exchange = |stream: TcpStream, data: Vec<u8>| async move {
                let (mut read, mut write) = stream.into_split();
                let writing = tokio::spawn(async move {
                    write.write_all(&data).await.expect("write");
                    write.shutdown().await.expect("shutdown");
                });
                let mut got = Vec::new();
                read.read_to_end(&mut got).await.expect("read");
                writing.await.expect("writer");
                got
            };
            let (back, there) = tokio::join!(
                exchange(client, sent.clone()),
                exchange(server, sent.clone())
            );
            assert!(back == sent && there == sent);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_relay_ends_after_the_idle_timeout_and_not_while_bytes_pass() {
    LocalSet::new()
        .run_until(async {
            let (mut client, downstream) = pair().await;
            let (upstream, mut server) = pair().await;
            let idle = Duration::from_secs(10);
            let running = spawn_local(relay(
                stream(downstream),
                stream(upstream),
                idle,
                std::future::pending(),
            ));
            let begun = tokio::time::Instant::now();
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(7)).await;
                client.write_all(b"x").await.expect("write");
                server.read_u8().await.expect("read");
            }
            let outcome = running.await.expect("relay");
            assert!(matches!(outcome.end, RelayEnd::Idle), "{outcome:?}");
            assert!(
                begun.elapsed() >= Duration::from_secs(31),
                "{:?}",
                begun.elapsed()
            );
        })
        .await;
}

#[tokio::test]
async fn what_detection_read_comes_out_first() {
    let (mut client, mut accepted) = pair().await;
    client.write_all(b"SSH-2.0-x\r\n").await.expect("write");
    let mut prefix = Vec::new();
    let detected = read_prefix(&mut accepted, &mut prefix, Some(FOREVER))
        .await
        .expect("detect");
    assert_eq!(detected, DetectedProtocol::Opaque);
    assert!(!prefix.is_empty());
    client.write_all(b" and more").await.expect("write");
    drop(client);
    let mut all = String::new();
    TransportStream::Tcp(TcpIo::new(accepted, prefix))
        .read_to_string(&mut all)
        .await
        .expect("read");
    assert_eq!(all, "SSH-2.0-x\r\n and more");
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_told_apart_after_the_deadline() {
    let (_client, mut accepted) = pair().await;
    let mut prefix = Vec::new();
    let detected = read_prefix(&mut accepted, &mut prefix, Some(Duration::from_millis(100)))
        .await
        .expect("detect");
    assert_eq!((detected, prefix.len()), (DetectedProtocol::Undecided, 0));
}
