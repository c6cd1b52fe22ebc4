//! Requests to an agent by near ends that know its token, and by strangers: real sockets, no contestants.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use super::serve::serve_agent;
use super::session::AgentSettings;
use crate::agent::link::{Link, TimedSocket};
use crate::agent::messages::profile;
use crate::agent::messages::{
    AgentProgram, AgentReply, AgentRequest, AgentWelcome, FRAME_BYTES, Hello, PROTOCOL,
    StartCommand, VoileOrder,
};
use crate::agent::token::Token;
use crate::find::peers;
use crate::network::Echo;
use crate::process_bounds::ProcessBound;

/// `serve_agent` asks a function, so agents of tests take turns.
static TURN: Mutex<()> = Mutex::new(());
static STOP: AtomicBool = AtomicBool::new(false);

fn stopped() -> bool {
    STOP.load(Ordering::Acquire)
}

/// Runs an agent while `task` talks to it; returns the agent's lines.
fn with_agent(task: impl FnOnce(SocketAddr, &Token)) -> Vec<String> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    STOP.store(false, Ordering::Release);
    let settings = AgentSettings {
        listen: ([127, 0, 0, 1], 0).into(),
        token: Token::generate().expect("random"),
        once: false,
        voile: "/bin/false".into(),
        found: peers(&[]).expect("looked for"),
        builds: Vec::new(),
    };
    let said = Mutex::new(Vec::new());
    let say = |line: &str| {
        said.lock().expect("no panic").push(line.to_owned());
    };
    let (listening, at) = mpsc::channel();
    thread::scope(|scope| {
        let agent = scope.spawn(|| {
            let mut tell = |address| listening.send(address).expect("heard");
            serve_agent(&settings, &mut tell, &say, stopped)
        });
        let at = at.recv().expect("it listens");
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            task(at, &settings.token);
        }));
        STOP.store(true, Ordering::Release);
        agent.join().expect("no panic").expect("it listened");
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
    said.into_inner().expect("no panic")
}

fn call(at: SocketAddr) -> Link {
    let stream = TcpStream::connect(at).expect("it listens");
    let socket = TimedSocket::new(stream, || false).expect("a socket");
    Link::call(socket).expect("TLS")
}

fn hello() -> Hello {
    Hello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        profile: profile().to_owned(),
    }
}

fn enter(at: SocketAddr, token: &Token) -> Link {
    let mut link = call(at);
    link.prove(token).expect("the token is right");
    link.send(&hello()).expect("sent");
    link.allow(FRAME_BYTES);
    let welcome: AgentWelcome = link.receive().expect("received").expect("an answer");
    assert_eq!(welcome.refused, "");
    link
}

fn ask(link: &mut Link, request: &AgentRequest) -> AgentReply {
    link.send(request).expect("sent");
    link.receive().expect("received").expect("an answer")
}

#[test]
fn who_does_not_know_the_token_is_told_so_and_no_more() {
    let said = with_agent(|at, _| {
        let why = call(at).prove(&Token::generate().expect("random"));
        assert_eq!(why, Err("wrong token".to_owned()));
        // Requests in place of a proof are none.
        let mut link = call(at);
        link.send(&AgentRequest::Ports(1)).expect("sent");
        let answer = link.receive::<serde_json::Value>();
        assert!(
            !matches!(&answer, Ok(Some(value)) if value.get("Ports").is_some()),
            "{answer:?}"
        );
    });
    assert!(
        said.iter()
            .any(|line| line.ends_with("is refused: wrong token")),
        "{said:?}"
    );
    assert!(
        !said.iter().any(|line| line.contains("session started")),
        "{said:?}"
    );
}

#[test]
fn another_version_or_build_is_named_by_both() {
    with_agent(|at, token| {
        for (other, words) in [
            (
                Hello {
                    protocol: PROTOCOL + 1,
                    ..hello()
                },
                "both must be the same",
            ),
            (
                Hello {
                    version: "99.0".to_owned(),
                    ..hello()
                },
                "the near end voile 99.0",
            ),
            (
                Hello {
                    profile: "odd".to_owned(),
                    ..hello()
                },
                "the near end a odd build",
            ),
        ] {
            let mut link = call(at);
            link.prove(token).expect("the token is right");
            link.send(&other).expect("sent");
            link.allow(FRAME_BYTES);
            let welcome: AgentWelcome = link.receive().expect("received").expect("an answer");
            assert!(welcome.refused.contains(words), "{}", welcome.refused);
        }
    });
}

fn start(what: AgentProgram) -> StartCommand {
    StartCommand {
        what,
        echo: None,
        workers: 1,
        bound: ProcessBound::default(),
    }
}

fn order() -> VoileOrder {
    VoileOrder {
        contestant: "voile".to_owned(),
        other_build: false,
        control: ([127, 0, 0, 1], 1).into(),
        root: "-----BEGIN CERTIFICATE-----\n".to_owned(),
        token: "x".to_owned(),
    }
}

fn sample(role: &str, seconds: f64) -> AgentRequest {
    AgentRequest::Sample(vec![(role.to_owned(), vec![1])], seconds)
}

/// Requests beyond a bound, or about things outside the session, and the answers to them.
fn beyond(at: SocketAddr) -> Vec<(AgentRequest, &'static str)> {
    let elsewhere: SocketAddr = ([192, 0, 2, 1], 80).into();
    let stranger = Echo {
        http: elsewhere,
        tcp: elsewhere,
    };
    let relay = |workers, echo| {
        AgentRequest::Start(Box::new(StartCommand {
            workers,
            echo,
            ..start(AgentProgram::Relay { tcp: true })
        }))
    };
    vec![
        (AgentRequest::Ports(u16::MAX), "at once are allowed"),
        (AgentRequest::Ready(7), "no process 7"),
        (AgentRequest::Pids(1), "no process 1"),
        (AgentRequest::Look(vec![vec![1]]), "no process 1"),
        (AgentRequest::Look(vec![Vec::new(); 100_000]), "are allowed"),
        (
            AgentRequest::Watch(vec![(elsewhere, true)], "m".to_owned()),
            "not an address that the agent may capture",
        ),
        (
            AgentRequest::Watch(vec![(at, true)], "m".repeat(1000)),
            "hops can be captured",
        ),
        (AgentRequest::Seen, "no capture is running"),
        (AgentRequest::Answers(1), "no process 1"),
        (AgentRequest::Renew(1), "no process 1"),
        (AgentRequest::Sampled, "no sampling is running"),
        (sample("server", 1e9), "sampled for at most"),
        (sample("server", -1.0), "sampled for at most"),
        (sample(&"r".repeat(1000), 1.0), "a single word"),
        (relay(100_000, None), "workers"),
        (relay(1, Some(stranger)), "not a server of the agent"),
    ]
}

/// Sidecars of Voile that an agent does not start.
fn strange_sidecars() -> Vec<(AgentRequest, &'static str)> {
    let orders = [
        (
            VoileOrder {
                control: ([192, 0, 2, 1], 80).into(),
                ..order()
            },
            "the agent was called from 127.0.0.1",
        ),
        (
            VoileOrder {
                contestant: "../../etc/x".to_owned(),
                ..order()
            },
            "a contestant's name",
        ),
        (
            VoileOrder {
                contestant: "old".to_owned(),
                other_build: true,
                ..order()
            },
            "--contestant old=PATH",
        ),
        (
            VoileOrder {
                token: "a b".to_owned(),
                ..order()
            },
            "one word of ASCII",
        ),
        (
            VoileOrder {
                root: "load_module /x.so;".to_owned(),
                ..order()
            },
            "must be PEM",
        ),
    ];
    let request =
        |order| AgentRequest::Start(Box::new(start(AgentProgram::Voile(Box::new(order)))));
    orders
        .into_iter()
        .map(|(order, words)| (request(order), words))
        .collect()
}

#[test]
fn requests_beyond_their_bounds_fail_one_by_one_and_the_session_goes_on() {
    with_agent(|at, token| {
        let mut link = enter(at, token);
        for (request, words) in beyond(at).into_iter().chain(strange_sidecars()) {
            match ask(&mut link, &request) {
                AgentReply::Failed(why) => assert!(why.contains(words), "{request:?}: {why}"),
                other => panic!("{request:?} is answered by {other:?}"),
            }
        }
        let ports = ask(&mut link, &AgentRequest::Ports(3));
        assert!(matches!(ports, AgentReply::Ports(ports) if ports.len() == 3));
    });
}

#[test]
fn words_that_are_none_end_the_session_and_not_the_agent() {
    let said = with_agent(|at, token| {
        let mut link = enter(at, token);
        link.send(&"rm -rf /").expect("sent");
        let end = link.receive::<AgentReply>();
        assert!(matches!(end, Ok(None) | Err(_)), "{end:?}");
        let mut link = enter(at, token);
        link.allow(usize::MAX);
        let _ = link.send(&"x".repeat(FRAME_BYTES));
        let end = link.receive::<AgentReply>();
        assert!(matches!(end, Ok(None) | Err(_)), "{end:?}");
        let mut link = enter(at, token);
        assert!(matches!(
            ask(&mut link, &AgentRequest::Ports(1)),
            AgentReply::Ports(_)
        ));
    });
    for words in ["not a message of this protocol", "a frame of"] {
        assert!(
            said.iter().any(|line| line.contains(words)),
            "{words}: {said:?}"
        );
    }
}
