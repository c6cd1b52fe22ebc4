//! Large bodies in bounded memory, draining, and the cost of a steady request.

use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use voile_proxy::http::ConnectionEnd;

use super::stage::{Stage, Step, eventually, play, read_all, read_until, say};

const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Far more than buffers and sockets hold together.
const LARGE: usize = 24 * 1024 * 1024;

#[test]
fn a_large_upload_waits_for_a_slow_server_and_arrives_whole() {
    play(|| async {
        let script = vec![Step::Head, Step::Wait, Step::Read(LARGE), say(OK)];
        let stage = Stage::set(vec![script]).await;
        let client = stage.client().await;
        let (mut from, mut to) = client.into_split();
        let sent = Rc::new(std::cell::Cell::new(0));
        let counted = sent.clone();
        tokio::task::spawn_local(async move {
            let head = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGE}\r\n\r\n");
            to.write_all(head.as_bytes()).await.unwrap();
            for number in 0..LARGE / 4096 {
                to.write_all(&[number as u8; 4096]).await.unwrap();
                counted.set(counted.get() + 4096);
            }
            std::future::pending::<()>().await;
        });
        // The sender comes to a stop: no proxy in between takes bytes that the server does not.
        let mut last = usize::MAX;
        while last != sent.get() {
            last = sent.get();
            for _ in 0..2000 {
                tokio::task::yield_now().await;
            }
        }
        assert!(
            last < LARGE,
            "{last} bytes were taken while the server read none"
        );
        stage.go.notify_one();
        let mut answer = vec![0; OK.len()];
        from.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, OK.as_bytes());
        let heard = stage.heard.borrow()[0].clone();
        let body = &heard[heard.len() - LARGE..];
        assert!(
            body.chunks(4096)
                .enumerate()
                .all(|(number, chunk)| chunk.iter().all(|byte| *byte == number as u8))
        );
        assert_eq!(stage.last().request_body, LARGE as u64);
        assert!(stage.buffers.free() <= 8, "buffers were reused");
    });
}

#[test]
fn a_large_download_waits_for_a_slow_client_and_arrives_whole() {
    play(|| async {
        let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").into_bytes();
        let head = answer.len();
        answer.extend((0..LARGE / 4096).flat_map(|number| [number as u8; 4096]));
        let stage = Stage::set(vec![vec![Step::Head, Step::Say(answer.clone()), Step::Eof]]).await;
        let mut client = stage.client().await;
        client.write_all(GET.as_bytes()).await.unwrap();
        let mut got = vec![0; answer.len()];
        client.read_exact(&mut got[..head]).await.unwrap();
        for _ in 0..5000 {
            tokio::task::yield_now().await;
        }
        assert!(
            stage.role.records.borrow().is_empty(),
            "nobody took the body for the client"
        );
        client.read_exact(&mut got[head..]).await.unwrap();
        assert!(got == answer);
        eventually("it is recorded", || !stage.role.records.borrow().is_empty()).await;
        assert_eq!(stage.last().response_body, LARGE as u64);
        eventually("the upstream is pooled", || {
            stage.worker.idle_upstreams() == 1
        })
        .await;
    });
}

#[test]
fn a_server_may_stream_back_while_the_client_still_sends() {
    play(|| async {
        let script = vec![
            Step::Until(b"3\r\nabc\r\n"),
            say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"),
            Step::Until(b"0\r\n\r\n"),
            say("0\r\n\r\n"),
        ];
        let stage = Stage::set(vec![script]).await;
        let mut client = stage.client().await;
        client
            .write_all(
                b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            )
            .await
            .unwrap();
        read_until(&mut client, "3\r\nabc\r\n").await;
        client.write_all(b"0\r\n\r\n").await.unwrap();
        assert_eq!(read_all(&mut client).await, "0\r\n\r\n");
    });
}

#[test]
fn idle_connections_hold_no_buffers() {
    play(|| async {
        let script = std::iter::repeat_n([Step::Head, say(OK)], 20)
            .flatten()
            .collect();
        let stage = Stage::set(vec![script]).await;
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = stage.client().await;
            client.write_all(GET.as_bytes()).await.unwrap();
            read_until(&mut client, "ok").await;
            clients.push(client);
        }
        eventually("buffers come back", || stage.buffers.free() == 2).await;
        assert_eq!(stage.drain.connections(), 20);
    });
}

#[test]
fn draining_closes_idle_connections_and_finishes_the_others() {
    play(|| async {
        let stage = Stage::set(vec![vec![Step::Head, Step::Wait, say(OK), Step::Eof]]).await;
        let mut idle = stage.client().await;
        let mut busy = stage.client().await;
        busy.write_all(GET.as_bytes()).await.unwrap();
        eventually("the request arrives", || {
            stage.heard(0) == GET && stage.drain.connections() == 2
        })
        .await;
        stage.drain.start();
        assert_eq!(read_all(&mut idle).await, "");
        stage.go.notify_one();
        assert_eq!(
            read_all(&mut busy).await,
            OK.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
        );
        eventually("both ended", || {
            *stage.ends.borrow() == [ConnectionEnd::Clean; 2]
        })
        .await;
        assert_eq!(stage.drain.connections(), 0);
    });
}

#[test]
fn unfinished_heads_hold_no_buffers_and_are_still_served() {
    play(|| async {
        let script = std::iter::repeat_n([Step::Head, say(OK)], 20)
            .flatten()
            .collect();
        let stage = Stage::set(vec![script]).await;
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = stage.client().await;
            client.write_all(b"GET / HT").await.unwrap();
            clients.push(client);
        }
        eventually("all wait", || stage.drain.connections() == 20).await;
        eventually("buffers come back", || stage.buffers.free() > 0).await;
        for client in &mut clients {
            client.write_all(b"TP/1.1\r").await.unwrap();
            tokio::task::yield_now().await;
            client.write_all(b"\nHost: x\r\n\r\n").await.unwrap();
            assert_eq!(read_until(client, "ok").await, OK);
        }
        assert_eq!(stage.heard(0), GET.repeat(20));
        assert!(
            stage.buffers.free() <= 4,
            "{} buffers were needed",
            stage.buffers.free()
        );
    });
}
