//! Clients of the table: one request in the words of either version, and what came of it.

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http::stage::{Stage, eventually};

/// Marks a body's beginning at the server.
const HELLO: &str = "hello";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    None,
    /// With its length.
    Sized,
    /// Without.
    Unsized,
    /// With its length, and longer than the windows of a server that only reads; the rest fits into a socket.
    Large,
    /// Less than its length, and no end.
    Unfinished,
    /// A good beginning, and then bytes that break its framing.
    Broken,
}

/// A request of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) grpc: bool,
    pub(super) body: Body,
}

impl Request {
    /// The sized body, or the beginning that is sent of another.
    fn content(&self) -> String {
        match (self.body, self.grpc) {
            (Body::None, _) => String::new(),
            (Body::Large, _) => HELLO.repeat(20_000),
            (_, true) => format!("\0\0\0\0\u{5}{HELLO}"),
            (_, false) => HELLO.to_owned(),
        }
    }

    fn length(&self) -> Option<usize> {
        match self.body {
            Body::Sized | Body::Large => Some(self.content().len()),
            Body::Unfinished => Some(self.content().len() + 4),
            _ => None,
        }
    }

    /// The last bytes that an HTTP/1.1 server hears before it acts.
    pub(super) fn end_in_http1(&self) -> &'static [u8] {
        match self.body {
            Body::None => b"\r\n\r\n",
            Body::Unsized => b"\r\n0\r\n\r\n",
            _ => HELLO.as_bytes(),
        }
    }

    fn in_http1(&self) -> String {
        let (target, end) = match self.method {
            "CONNECT" => ("a.test:443", ""),
            _ => (self.path, "Connection: close\r\n"),
        };
        let kind = if self.grpc {
            "Content-Type: application/grpc\r\n"
        } else {
            ""
        };
        let content = self.content();
        let (framing, body) = match (self.length(), self.body) {
            (Some(length), _) => (format!("Content-Length: {length}\r\n"), content),
            (None, Body::None) => Default::default(),
            (None, body) => {
                let end = if body == Body::Unsized {
                    "0\r\n\r\n"
                } else {
                    ""
                };
                let chunk = format!("{:x}\r\n{content}\r\n{end}", content.len());
                ("Transfer-Encoding: chunked\r\n".to_owned(), chunk)
            }
        };
        let method = self.method;
        format!("{method} {target} HTTP/1.1\r\nHost: a.test:443\r\n{kind}{end}{framing}\r\n{body}")
    }

    fn in_http2(&self) -> http::Request<()> {
        let uri = match self.method {
            "CONNECT" => "a.test:443".to_owned(),
            _ => format!("http://a.test:443{}", self.path),
        };
        let mut request = http::Request::builder().method(self.method).uri(uri);
        if self.grpc {
            request = request.header("content-type", "application/grpc");
        }
        let broken = (self.body == Body::Broken).then_some(self.content().len() + 4);
        if let Some(length) = self.length().or(broken) {
            request = request.header("content-length", length);
        }
        request.body(()).unwrap()
    }

    /// Waits until the server has the beginning of the body.
    async fn arrival(&self, stage: &Stage) {
        eventually("the beginning arrives", || stage.heard(0).contains(HELLO)).await;
    }
}

/// Sends the request in HTTP/1.1. Gives the answer's status, and how it ended if not well.
pub(super) async fn ask_in_http1(stage: &Stage, mut client: TcpStream, request: Request) -> String {
    client
        .write_all(request.in_http1().as_bytes())
        .await
        .unwrap();
    if request.body == Body::Broken {
        request.arrival(stage).await;
        client.write_all(b"zz\r\n").await.unwrap();
    }
    let (mut answer, mut room) = (Vec::new(), [0; 4096]);
    let how = loop {
        match client.read(&mut room).await {
            Ok(0) => break "closed",
            Ok(read) => answer.extend_from_slice(&room[..read]),
            Err(_) => break "reset",
        }
        if answer.ends_with(b"half") || answer.ends_with(b"half\r\n") {
            stage.half();
        }
    };
    let answer = String::from_utf8_lossy(&answer);
    // Interim answers have no body.
    let last = answer
        .rfind("HTTP/1.1 ")
        .map(|at| answer[at..].split_at(9).1);
    let Some((head, body)) = last.and_then(|last| last.split_once("\r\n\r\n")) else {
        return how.to_owned();
    };
    let (status, head) = (&head[..3], head.to_ascii_lowercase());
    let length = head
        .split_once("\r\ncontent-length: ")
        .map(|(_, rest)| rest);
    let length = length.and_then(|rest| rest.split("\r\n").next()?.parse::<usize>().ok());
    let whole = match length {
        Some(length) => body.len() == length,
        None => body.ends_with("\r\n\r\n"),
    };
    match whole {
        true => status.to_owned(),
        false => format!("{status}, {how}"),
    }
}

/// The same in HTTP/2.
pub(super) async fn ask_in_http2(
    stage: &Stage,
    mut client: h2::client::SendRequest<Bytes>,
    request: Request,
) -> String {
    let ended = |error: h2::Error| match error.reason() {
        Some(reason) => format!("{reason:?}"),
        None => "closed".to_owned(),
    };
    let sent = client.send_request(
        request.in_http2(),
        request.body == Body::None && request.method != "CONNECT",
    );
    let (response, mut body) = sent.unwrap();
    if request.body != Body::None {
        let end = matches!(request.body, Body::Sized | Body::Large | Body::Unsized);
        body.send_data(request.content().into(), end).unwrap();
    }
    if request.body == Body::Broken {
        request.arrival(stage).await;
        body.send_data(Bytes::new(), true).unwrap();
    }
    let mut response = match response.await {
        Ok(response) => response,
        Err(error) => return ended(error),
    };
    let status = response.status().as_u16();
    while let Some(data) = response.body_mut().data().await {
        match data {
            Ok(data) if data.ends_with(b"half") => stage.half(),
            Ok(_) => {}
            Err(error) => return format!("{status}, {}", ended(error)),
        }
    }
    status.to_string()
}
