//! The keep-alive race of HTTP/2: a server that answered well ends its connection after every byte of its next answer,
//! without GOAWAY. A cut answer never looks whole, a request that may have been processed is not repeated, and the next
//! caller is served.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use h2::client::SendRequest;
use http::{Method, Request};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use voile_xds::wire::{MutualTls, WireProtocol};

use super::frames::{DATA, END_STREAM, GO_AWAY, HEADERS, PREFACE, SETTINGS, frame, headers, until};
use crate::plan::Settings;
use crate::worker::tests::http2::{client, read};
use crate::worker::tests::{Stage, hear, listen, play};

const WHOLE: &[(&str, &str)] = &[(":status", "200"), ("content-length", "2")];

fn answer(stream: u32) -> Vec<u8> {
    let head = headers(stream, 0, WHOLE);
    [head, frame(DATA, END_STREAM, stream, b"ok")].concat()
}

/// Answers its first request well and the second as far as `cut`; later connections well. Counts what it was asked.
async fn server(go_away: bool, cut: usize, asked: Rc<Cell<usize>>) -> SocketAddr {
    let listener = listen().await;
    let address = listener.local_addr().expect("an address");
    tokio::task::spawn_local(async move {
        let mut first = true;
        while let Ok((stream, _)) = listener.accept().await {
            let cut = std::mem::take(&mut first).then_some(cut);
            tokio::task::spawn_local(serve(stream, go_away, cut, Rc::clone(&asked)));
        }
    });
    address
}

async fn serve(
    mut stream: TcpStream,
    go_away: bool,
    cut: Option<usize>,
    asked: Rc<Cell<usize>>,
) -> Option<()> {
    hear(&mut stream, PREFACE).await;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.ok()?;
    loop {
        let request = until(&mut stream, |frame| frame.kind == HEADERS).await?;
        asked.set(asked.get() + 1);
        let answer = answer(request.stream);
        match cut {
            Some(cut) if request.stream > 1 => {
                let last = [request.stream, 0].map(u32::to_be_bytes).concat();
                let farewell = match go_away {
                    true => frame(GO_AWAY, 0, 0, &last),
                    false => Vec::new(),
                };
                stream.write_all(&farewell).await.ok()?;
                stream.write_all(&answer[..cut]).await.ok()?;
                stream.shutdown().await.ok()?;
                until(&mut stream, |_| false).await;
                return None;
            }
            _ => stream.write_all(&answer).await.ok()?,
        }
    }
}

/// Returns true for a whole answer, and the answer.
async fn ask(client: &mut SendRequest<bytes::Bytes>, method: &Method) -> (bool, String) {
    let request = Request::builder()
        .method(method)
        .uri("http://server/")
        .body(());
    let sent = client.send_request(request.expect("a request"), true);
    let (response, _) = sent.expect("sent");
    match response.await {
        Err(error) => (false, format!("reset {:?}", error.reason())),
        Ok(response) => {
            let status = response.status().as_u16();
            let body = read(&mut response.into_body()).await;
            (status == 200 && body.is_ok(), format!("{status} {body:?}"))
        }
    }
}

#[test]
fn an_http2_answer_cut_at_any_byte_never_looks_whole_and_is_not_made_twice() {
    let (bytes, head) = (answer(3).len(), headers(3, 0, WHOLE).len());
    for method in [Method::GET, Method::POST] {
        for go_away in [false, true] {
            for cut in 0..=bytes {
                play(|| async {
                    let asked = Rc::new(Cell::new(0));
                    let server = server(go_away, cut, Rc::clone(&asked)).await;
                    let stage = Stage::new(Settings::default());
                    let address = stage
                        .inbound(WireProtocol::Http2, MutualTls::Disable, server)
                        .await;
                    let mut client = client(address).await;
                    let case = format!("{method}, GOAWAY {go_away}, cut at {cut}");
                    let (whole, got) = ask(&mut client, &method).await;
                    assert!(whole, "{case}: the first: {got}");
                    let (whole, got) = ask(&mut client, &method).await;
                    let again = asked.get() > 2;
                    assert_eq!(whole, again || cut == bytes, "{case}: {got}");
                    // A server that takes a request and says nothing may have processed it.
                    assert!(!again || method == Method::GET, "{case}: made twice");
                    assert!(!again || cut < head, "{case}: made twice after an answer");
                    let before = asked.get();
                    let (whole, got) = ask(&mut client, &method).await;
                    assert!(whole, "{case}: the next: {got}");
                    assert_eq!(asked.get(), before + 1, "{case}: the next, once");
                });
            }
        }
    }
}
