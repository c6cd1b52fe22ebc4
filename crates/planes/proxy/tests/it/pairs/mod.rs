//! How an exchange ends, for each pair of HTTP versions: the client's by the server's. Decision 0052 makes one loop of
//! the code behind the four pairs; these tables hold it to what it does today.
//!
//! A case is a request, a server, a limit and an event. An end is one line:
//!
//! ```text
//! 503 UC upstream_reset_before_response 5/31 1: 503, closed
//! │   │  │                              │    │  └ the client's status, and how its answer ended if not well
//! │   │  │                              │    └ attempts
//! │   │  │                              └ recorded bytes of the request's and the answer's body
//! └───┴──┴ recorded status, flag and details
//! ```
//! The bytes of a request are `*` where they depend on how fast they came. A gRPC call has `grpc 0 1/1` behind the
//! attempts: its recorded status, and its messages each way.
//!
//! Where pairs differ and nothing says why, the row has a comment that begins with `Unmeant`.

mod client;
mod crossing;
mod ends;
mod server;
mod terms;

use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::{AbortHandle, spawn_local};
use voile_proxy::http::HttpTimeouts;
use voile_traffic::{RetryPolicy, RetrySettings};

use crate::http::stage::{Manner, OTHER, Recorded, Stage, eventually, play};
use client::{Body, Request, ask_in_http1, ask_in_http2};
use server::{Server, scripts};

/// Versions of HTTP: the client's, and the server's.
const PAIRS: [&str; 4] = ["1→1", "1→2", "2→1", "2→2"];

/// Short, and far from every default.
const SHORT: Duration = Duration::from_millis(50);

/// The one limit of a case that is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    None,
    Connect,
    /// Of the head of an answer.
    Head,
    /// Of the head of an answer in each of two attempts.
    EachTry,
    /// Of the whole answer.
    Answer,
    /// Of a stream without bytes.
    Idle,
    /// Of a body that the server does not take.
    Upload,
    /// Of a body that comes too slowly.
    Rate,
    /// Of a tunnel without bytes.
    Tunnel,
}

/// What happens to an exchange from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    None,
    /// The client gives up once its request has arrived: it closes its connection of HTTP/1.1, or resets its stream of
    /// HTTP/2.
    Leaves,
    /// The same once it has half of the answer.
    LeavesWithin,
    /// The client's connection ends.
    Disconnects,
    DisconnectsWithin,
    /// The leave of the exchange is revoked.
    Revoked,
    RevokedWithin,
    /// The client gives up if the limit has not ended its exchange when it ended a later one.
    LeavesIfUnlimited,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    request: Request,
    server: Server,
    limit: Limit,
    event: Event,
    /// Conditions of one retry.
    retry: Option<&'static str>,
}

const POST: Request = Request {
    method: "POST",
    path: "/",
    grpc: false,
    body: Body::Sized,
};

/// A request that is answered.
const PLAIN: Case = Case {
    request: POST,
    server: Server::Answers,
    limit: Limit::None,
    event: Event::None,
    retry: None,
};

impl Case {
    fn request(self, request: Request) -> Self {
        Self { request, ..self }
    }

    fn server(self, server: Server) -> Self {
        Self { server, ..self }
    }

    fn limit(self, limit: Limit) -> Self {
        Self { limit, ..self }
    }

    fn event(self, event: Event) -> Self {
        Self { event, ..self }
    }

    fn retry(self, on: &'static str) -> Self {
        let retry = Some(on);
        Self { retry, ..self }
    }

    fn timeouts(&self) -> HttpTimeouts {
        let mut timeouts = HttpTimeouts::default();
        match self.limit {
            Limit::Head => timeouts.request = Some(SHORT),
            Limit::Idle => timeouts.stream_idle = SHORT,
            Limit::Upload => timeouts.upload_idle = SHORT,
            Limit::Tunnel => timeouts.tunnel_idle = SHORT,
            Limit::Rate => (timeouts.body_grace, timeouts.min_body_rate) = (SHORT, 1_000_000),
            Limit::None | Limit::Connect | Limit::EachTry | Limit::Answer => {}
        }
        timeouts
    }

    fn manner(&self, pair: &str) -> Manner {
        let short = |limit| (self.limit == limit).then_some(SHORT);
        let retry = self.retry.map(|word| RetrySettings {
            retries: 1,
            on: vec![word.into()],
            per_try_timeout: short(Limit::EachTry),
            backoff: None,
        });
        Manner {
            http2_clients: pair.starts_with('2'),
            http2_servers: pair.ends_with('2'),
            unreachable: self.server == Server::Unreachable,
            narrow: matches!(self.server, Server::Unreading | Server::StopsUnreading),
            connect_timeout: short(Limit::Connect),
            timeout: short(Limit::Answer),
            retry: retry.map(|settings| Rc::new(RetryPolicy::from(&settings))),
            ..Manner::default()
        }
    }

    /// The least that an exchange lasts which its limit ends.
    fn least(&self) -> Duration {
        match self.limit {
            Limit::None => Duration::ZERO,
            Limit::EachTry => 2 * SHORT,
            _ => SHORT,
        }
    }
}

/// A client with its request on the way.
struct Asking {
    answer: tokio::task::JoinHandle<String>,
    /// The task of an HTTP/2 client's connection.
    connection: Option<AbortHandle>,
}

async fn ask(stage: &Rc<Stage>, manner: &Manner, request: Request) -> Asking {
    let stream = stage.client().await;
    let stage = Rc::clone(stage);
    if !manner.http2_clients {
        return Asking {
            answer: spawn_local(async move { ask_in_http1(&stage, stream, request).await }),
            connection: None,
        };
    }
    let (send, connection) = h2::client::handshake::<TcpStream>(stream).await.unwrap();
    // The connection's streams see its end.
    let connection = spawn_local(async move { drop(connection.await) });
    Asking {
        answer: spawn_local(async move { ask_in_http2(&stage, send, request).await }),
        connection: Some(connection.abort_handle()),
    }
}

impl Asking {
    fn leave(&self) {
        self.answer.abort();
    }

    fn disconnect(&self) {
        self.connection.iter().for_each(AbortHandle::abort);
        self.leave();
    }
}

impl Event {
    /// Lets it happen.
    async fn happen(self, stage: &Rc<Stage>, manner: &Manner, asking: &Asking) {
        match self {
            Self::None => return,
            Self::Leaves | Self::Disconnects | Self::Revoked => {
                let arrived = || stage.heard(0).contains("hello") || stage.role.waits.get();
                eventually("the request arrives", arrived).await;
            }
            Self::LeavesWithin | Self::DisconnectsWithin | Self::RevokedWithin => {
                eventually("half of the answer comes", || stage.is_half.get()).await;
            }
            Self::LeavesIfUnlimited => {
                let arrived = || !stage.heard(0).is_empty() || stage.role.waits.get();
                eventually("the request arrives", arrived).await;
                let other = Request {
                    path: OTHER,
                    body: Body::Unfinished,
                    ..POST
                };
                ask(stage, manner, other).await.answer.await.unwrap();
                let is_other = |record: &Recorded| record.path.as_deref() == Some(OTHER);
                let records = &stage.role.records;
                eventually("the later one is over", || {
                    records.borrow().iter().any(is_other)
                })
                .await;
                if !records.borrow().iter().all(is_other) {
                    return;
                }
            }
        }
        match self {
            Self::Disconnects | Self::DisconnectsWithin => asking.disconnect(),
            Self::Revoked | Self::RevokedWithin => {
                stage.role.revoked.set(true);
                stage.drain.judge_again();
            }
            _ => asking.leave(),
        }
    }
}

fn line(case: &Case, record: &Recorded, answer: &str) -> String {
    let sent = match case.request.body {
        Body::Large => "*".to_owned(),
        _ => record.request_body.to_string(),
    };
    let (flag, details) = (record.flag.code(), record.details);
    let grpc = record.grpc.map(|grpc| {
        let status = grpc
            .status
            .map_or("-".to_owned(), |status| status.to_string());
        let (up, down) = (grpc.request_messages, grpc.response_messages);
        format!(" grpc {status} {up}/{down}")
    });
    format!(
        "{} {flag} {details} {sent}/{} {}{}: {answer}",
        record.status,
        record.response_body,
        record.attempts,
        grpc.unwrap_or_default(),
    )
}

/// Plays the case, and compares its end.
fn check(pair: &str, case: &Case, expected: &str) -> Result<(), String> {
    let got = std::cell::RefCell::default();
    play(|| async {
        let manner = case.manner(pair);
        let script = scripts(case.server, manner.http2_servers, &case.request);
        let stage = Rc::new(Stage::behaving(script, case.timeouts(), manner.clone()).await);
        if case.server == Server::Missing {
            stage.unplug().await;
        }
        if case.server == Server::ClosesUsed {
            let first = Request {
                path: "/first",
                ..POST
            };
            let first = ask(&stage, &manner, first).await.answer.await;
            assert_eq!(first.unwrap(), "200");
        }
        let asking = ask(&stage, &manner, case.request).await;
        case.event.happen(&stage, &manner, &asking).await;
        let answer = asking.answer.await.unwrap_or_else(|_| "left".to_owned());
        let recorded = || {
            let records = stage.role.records.borrow();
            let own =
                |record: &&Recorded| !matches!(record.path.as_deref(), Some(OTHER | "/first"));
            records.iter().find(own).cloned()
        };
        eventually("it is recorded", || recorded().is_some()).await;
        let record = recorded().unwrap();
        assert!(
            record.duration >= case.least(),
            "{pair:?} {case:?}: {record:?}"
        );
        assert!(record.from_head, "{pair:?} {case:?}: {record:?}");
        got.replace(line(case, &record, &answer));
    });
    let got = got.into_inner();
    match got == expected {
        true => Ok(()),
        false => Err(format!("{pair}\n  expected {expected}\n  got      {got}")),
    }
}

/// A case by name, and its ends: each line has some pairs, or all, and their end. Pairs without a line do not know the
/// case.
type Row = (&'static str, Case, &'static str);

fn check_table(table: &[Row]) {
    let mut wrong = Vec::new();
    for (name, case, ends) in table {
        for line in ends.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (pairs, end) = line.split_once(" | ").expect("pairs and their end");
            let pairs = match pairs.trim() {
                "all" => PAIRS.to_vec(),
                some => some.split(' ').collect(),
            };
            for pair in pairs {
                assert!(PAIRS.contains(&pair), "{pair} is a pair");
                let difference = check(pair, case, end).err();
                wrong.extend(difference.map(|difference| format!("{name}: {difference}")));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
