//! Limits of a connection to a server: how old it grows, and how many streams it carries at once.

use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Instant;

use voile_proxy::http::{HttpTimeouts, UpstreamTerms};

use super::server::{Server, scripts};
use super::{PAIRS, PLAIN, POST, SHORT, ask};
use crate::http::stage::{Manner, Stage, Step, eventually, play};

/// The script of a server that answers one request, and what it hears before it does.
fn answers(http2: bool) -> (Vec<Step>, usize) {
    let script = scripts(Server::Answers, http2, &POST).remove(0);
    let heard = if http2 { 3 } else { 1 };
    (script, heard)
}

async fn stage(pair: &str, scripts: Vec<Vec<Step>>, terms: UpstreamTerms) -> (Rc<Stage>, Manner) {
    let manner = Manner {
        terms,
        ..PLAIN.manner(pair)
    };
    let stage = Stage::behaving(scripts, HttpTimeouts::default(), manner.clone()).await;
    (Rc::new(stage), manner)
}

fn some_old() -> UpstreamTerms {
    UpstreamTerms {
        age: NonZeroU32::new(SHORT.as_millis() as u32),
        ..UpstreamTerms::default()
    }
}

#[test]
fn an_idle_connection_is_closed_at_its_age() {
    for pair in PAIRS {
        play(|| async {
            let (script, _) = answers(pair.ends_with('2'));
            let (stage, manner) = stage(pair, vec![script], some_old()).await;
            let begin = Instant::now();
            let first = ask(&stage, &manner, POST).await;
            assert_eq!(first.answer.await.unwrap(), "200", "{pair}");
            eventually("it is closed", || stage.closed() == 1).await;
            assert!(begin.elapsed() >= SHORT, "{pair}");
            let second = ask(&stage, &manner, POST).await;
            assert_eq!(second.answer.await.unwrap(), "200", "{pair}");
            assert_eq!(stage.role.connects.get(), 2, "{pair}");
        });
    }
}

#[test]
fn a_request_is_served_to_its_end_by_a_connection_that_grew_old_and_takes_no_other() {
    for pair in PAIRS {
        play(|| async {
            let (script, heard) = answers(pair.ends_with('2'));
            let mut slow = script.clone();
            slow.insert(heard, Step::Wait);
            let (stage, manner) = stage(pair, vec![slow, script], some_old()).await;
            let first = ask(&stage, &manner, POST).await;
            let arrived = || stage.heard(0).contains("hello");
            eventually("the request arrives", arrived).await;
            let since = Instant::now();
            eventually("it is too old", || since.elapsed() >= SHORT).await;
            let second = ask(&stage, &manner, POST).await;
            assert_eq!(second.answer.await.unwrap(), "200", "{pair}");
            assert_eq!(stage.closed(), 0, "{pair}");
            stage.go.notify_one();
            assert_eq!(first.answer.await.unwrap(), "200", "{pair}");
            eventually("both are closed", || stage.closed() == 2).await;
            assert_eq!(stage.role.connects.get(), 2, "{pair}");
        });
    }
}

#[test]
fn so_many_streams_share_a_connection_and_no_more() {
    for (streams, connections) in [(1, 2), (2, 1)] {
        play(|| async {
            let (mut one, heard) = answers(true);
            let hear = one[heard - 1].clone();
            // The server of two streams answers none before it has both.
            let more = (streams == 2).then_some(hear);
            one.splice(heard..heard, more.into_iter().chain([Step::Wait]));
            let terms = UpstreamTerms {
                streams: NonZeroU32::new(streams),
                ..UpstreamTerms::default()
            };
            let (stage, manner) = stage("2→2", vec![one], terms).await;
            let mut all = Vec::new();
            for _ in 0..2 {
                all.push(ask(&stage, &manner, POST).await);
            }
            let bodies = || {
                let heard = stage.heard.borrow();
                let count = |bytes: &Vec<u8>| bytes.windows(5).filter(|w| w == b"hello").count();
                heard.iter().map(count).sum::<usize>()
            };
            eventually("both requests arrive", || bodies() == 2).await;
            assert_eq!(stage.role.connects.get(), connections, "{streams}");
        });
    }
}
