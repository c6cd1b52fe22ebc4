//! External services that decide about requests and connections, as one worker asks them: from its own runtime, over pools
//! of its own, so that questions of one worker share connections and wait for nobody else's.
//!
//! ```text
//! CUSTOM rule matches ─► question (gRPC │ HTTP) ─► endpoint ─► pool, or connect ─► answer, checked ─► allowed │ denied │ failed
//! ```
//! Whoever is asked may be slow, dead or lying: an answer has a deadline and a size, says only what may be said, and
//! what cannot be asked fails as its provider is configured to.

mod answer;
mod grpc;
mod http;
mod question;

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use voile_transport::Stream;

pub(crate) use answer::{Allowed, Answer};
pub(crate) use question::{About, Question};

use super::Worker;
use super::balance::Wish;
use super::endpoint::{InFlight, Manner};
use super::slots::ServiceState;
use crate::http::pool::{self, Pool};
use crate::http::{
    ConnectFailure, Exchange, Head, HttpRole, HttpTimeouts, Refusal, ResponseFlag, Route,
    UpstreamHttp,
};
use crate::http2::upstream::Upstreams;
use crate::plan::AuthorizerPlan;

/// How long an answer may take where the provider does not say: Istio's ten minutes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// Most questions that one worker has under way: each holds a request, a head and perhaps a body. One more is not asked.
const MAX_QUESTIONS: usize = 8 * 1024;

/// Largest body or message of an answer, in bytes: a page for people is allowed, a flood is not. Heads are bounded by the
/// engines.
const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// Times one question is put, where nobody has answered it: deciding twice about one request does no harm.
const MAX_ATTEMPTS: usize = 3;

/// Whom a worker asks.
pub(crate) struct Authorizer {
    /// The same as long as the same service is asked; never 0.
    id: u32,
    plan: AuthorizerPlan,
    service: Rc<ServiceState>,
    http1: Rc<Pool<u32, Stream>>,
    http2: Rc<Upstreams<u32>>,
    asking: Rc<Cell<usize>>,
}

/// A question under way.
struct Asking(Rc<Cell<usize>>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Authorizer {
    /// Whom a plan says; the same pools as before where it is the same service.
    pub(crate) fn follow(
        worker: &Worker,
        before: Option<&Rc<Self>>,
        plan: &AuthorizerPlan,
    ) -> Rc<Self> {
        if let Some(before) = before.filter(|before| before.plan == *plan) {
            return Rc::clone(before);
        }
        let whom = |plan: &AuthorizerPlan| {
            let settings = &plan.settings;
            let over_http = settings.http.is_some();
            (
                settings.name.clone(),
                settings.service.clone(),
                settings.port,
                over_http,
            )
        };
        let same = before.filter(|before| whom(&before.plan) == whom(plan));
        let service = ServiceState::follow(worker, same.map(|same| &same.service), &plan.service);
        if let Some(same) = same {
            return Rc::new(Self {
                id: same.id,
                plan: plan.clone(),
                service,
                http1: Rc::clone(&same.http1),
                http2: Rc::clone(&same.http2),
                asking: Rc::clone(&same.asking),
            });
        }
        let timeouts = HttpTimeouts::default();
        let http1 = Pool::new(timeouts.upstream_idle);
        tokio::task::spawn_local(pool::keep(Rc::downgrade(&http1)));
        Rc::new(Self {
            id: worker.fresh_key().wrapping_add(1).max(1),
            plan: plan.clone(),
            service,
            http1,
            http2: Upstreams::new(worker.buffers.clone(), timeouts),
            asking: Rc::default(),
        })
    }

    /// Which service is asked: changes when it does.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Its provider's name.
    pub(crate) fn name(&self) -> &str {
        &self.plan.settings.name
    }

    /// Whether what it would be asked about passes while it cannot be.
    pub(crate) fn fails_open(&self) -> bool {
        self.plan.settings.fail_open
    }

    /// What clients are told when it cannot be asked.
    pub(crate) fn status_on_error(&self) -> u16 {
        self.plan.settings.status_on_error.unwrap_or(403)
    }

    /// Closes connections that carry nothing.
    pub(crate) fn relieve(&self) {
        self.http1.clear();
        self.http2.clear();
    }

    /// Asks, for as long as an answer may take.
    pub(crate) async fn ask(&self, worker: &Worker, question: Question) -> Answer {
        if self.asking.get() >= MAX_QUESTIONS {
            return Answer::failed("too many questions under way");
        }
        self.asking.set(self.asking.get() + 1);
        let _asking = Asking(Rc::clone(&self.asking));
        let limit = self.plan.settings.timeout.unwrap_or(ANSWER_TIMEOUT);
        let answered = tokio::time::timeout(limit, self.put(worker, question));
        let answer = match answered.await {
            Ok(answer) => answer,
            Err(_) => Answer::failed("no answer in time"),
        };
        if let Answer::Failed(why) | Answer::Unusable(why) = &answer {
            tracing::debug!(provider = self.name(), %why, "not decided");
        }
        answer
    }

    /// Puts the question to one endpoint after another, while nobody has answered it.
    async fn put(&self, worker: &Worker, question: Question) -> Answer {
        let mut tried = Vec::new();
        let mut last = "no healthy upstream".into();
        for _ in 0..MAX_ATTEMPTS {
            let wish = Wish {
                tried: &tried,
                ..Wish::default()
            };
            let Some((to, _)) = self.service.choose_other(worker, wish) else {
                break;
            };
            let endpoint = Rc::clone(&to.endpoint);
            let mut route = Route::new(endpoint.key, to);
            let manner = Manner::of(worker, &self.plan.service.traffic);
            route.connect_timeout = manner.timeout;
            route.to_sidecar = endpoint.plan.expected.is_some();
            let over_http2 = self.plan.service.protocol.is_http2();
            route.upstream = match &question {
                Question::Http(_) if !over_http2 => UpstreamHttp::Http1,
                Question::Grpc(..) | Question::Http(_) => UpstreamHttp::Http2,
            };
            let dialer = Dialer { worker, manner };
            let asked = match &question {
                Question::Grpc(asked, _) => {
                    grpc::ask(&self.http2, &dialer, &route, self, asked).await
                }
                Question::Http(asked) => http::ask(self, &dialer, &route, asked).await,
            };
            match asked {
                Ok(answer) => return answer,
                Err(Unanswered { why, again }) => {
                    last = why;
                    if !again {
                        break;
                    }
                    tried.push(route.key);
                }
            }
        }
        Answer::Failed(last)
    }
}

/// Why there is no answer.
struct Unanswered {
    why: Box<str>,
    /// Whether the same question may be put to somebody else, or on another connection.
    again: bool,
}

impl Unanswered {
    fn new(why: impl Into<Box<str>>) -> Self {
        Self {
            why: why.into(),
            again: false,
        }
    }

    fn again(why: impl Into<Box<str>>) -> Self {
        Self {
            why: why.into(),
            again: true,
        }
    }
}

/// Opens connections for the pools.
struct Dialer<'a> {
    worker: &'a Worker,
    manner: Manner,
}

impl HttpRole for Dialer<'_> {
    type Upstream = Stream;
    type Key = u32;
    type Ticket = InFlight;
    type Question = Infallible;

    fn route(&self, _: &Head<'_>) -> Result<Route<Self>, Refusal<Self>> {
        Err(Refusal::new(404, ResponseFlag::NoRoute, "nobody calls"))
    }

    async fn connect(&self, route: &Route<Self>) -> Result<Stream, ConnectFailure> {
        let inside = route.upstream.into();
        let connecting = Box::pin(
            route
                .ticket
                .endpoint
                .connect(self.worker, inside, self.manner),
        );
        connecting
            .await
            .map_err(|unreachable| ConnectFailure::new(unreachable.detail))
    }

    fn record(&self, _: Exchange<'_, Self>) {}
}
