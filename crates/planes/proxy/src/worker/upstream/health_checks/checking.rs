//! The checks themselves: due times, questions over HTTP, gRPC or TCP, and their results.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;

use voile_model::mesh::health_check::CheckQuestion;
use voile_traffic::EndpointHealth;

use super::{CheckTransport, Checker, UnderWay};
use crate::clock;
use crate::health::Checks;
use crate::http::UpstreamHttp;
use crate::plan::{ServicePlan, SharedPart};
use crate::worker::policy::external_call::{CallFailure, Dialer, Lines};
use crate::worker::upstream::endpoint::{ConnectionManner, Endpoint, InFlight, InnerTraffic};
use crate::worker::{FromWorker, Worker};

/// Largest number of looks for due checks in an interval. Checks that became due meanwhile start together, since a look costs
/// something for each endpoint.
const LOOKS: u32 = 64;

/// The same where there is no place for another question.
const WAIT_FOR_PLACE: Duration = Duration::from_millis(10);

/// Times one question is put where a connection that was kept broke before an answer: that is news of the connection alone.
const ATTEMPTS: usize = 2;

/// User agent of health checks, so that endpoints can leave them out of their logs. Envoy's is `Envoy/HC`.
const USER_AGENT: &str = "Voile/HC";

const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthResponse {
    /// 1 is SERVING.
    #[prost(int32, tag = "1")]
    status: i32,
}

impl Checker {
    /// Joins or creates the health checker of these endpoints, if a HealthCheck names them. All users of the same health state
    /// share one checker.
    pub(crate) fn join(
        worker: &Worker,
        before: Option<&Rc<Self>>,
        plan: &ServicePlan,
        cluster: &str,
        endpoints: &[Rc<Endpoint>],
    ) -> Option<Rc<Self>> {
        let SharedPart(watch) = plan.traffic.watch.as_ref()?;
        watch.checks.as_ref()?;
        let http2 = plan.protocol.is_http2() || plan.http2_upgrade;
        let way = CheckTransport {
            cluster: cluster.into(),
            authority: plan.service.host.as_str().into(),
            manner: ConnectionManner::of(worker, &plan.traffic),
            upstream: match http2 {
                true => UpstreamHttp::Http2,
                false => UpstreamHttp::Http1,
            },
        };
        if let Some(known) = worker.checkers.of(watch) {
            // Reached as the youngest word says.
            *known.endpoints.borrow_mut() = endpoints.to_vec();
            *known.way.borrow_mut() = way;
            return Some(known);
        }
        let checker = Rc::new(Self {
            watch: Arc::clone(watch),
            endpoints: RefCell::new(endpoints.to_vec()),
            way: RefCell::new(way),
            lines: before.map_or_else(|| Lines::new(worker), |before| before.lines.clone()),
            task: Cell::new(None),
        });
        let asking = ask_for_ever(Rc::downgrade(&checker), worker.me.clone());
        let task = tokio::task::spawn_local(asking).abort_handle();
        checker.task.set(Some(task));
        let mut all = worker.checkers.all.borrow_mut();
        all.push(Rc::downgrade(&checker));
        Some(checker)
    }

    /// Starts the checks that are due and that no other worker has claimed; returns the time until the next
    /// one.
    fn put(self: &Rc<Self>, worker: &Rc<Worker>) -> Duration {
        let Some(checks) = &self.watch.checks else {
            return Duration::MAX;
        };
        let now = clock::now();
        let longest = now + checks.said.terms.interval;
        let least = checks.said.terms.interval / LOOKS;
        let mut next = longest;
        for (place, endpoint) in self.endpoints.borrow().iter().enumerate() {
            // An endpoint that may never receive traffic needs no health check.
            if !endpoint.plan.available {
                continue;
            }
            let Some(under_way) = worker.checkers.place() else {
                return WAIT_FOR_PLACE;
            };
            match checks.claim(place, now, worker.random()) {
                Err(due) => next = next.min(due),
                Ok(()) => {
                    let asking = check(
                        Rc::clone(worker),
                        Rc::clone(self),
                        (place, Rc::clone(endpoint)),
                        under_way,
                    );
                    tokio::task::spawn_local(asking);
                }
            }
        }
        next.saturating_sub(now).max(least)
    }
}

async fn ask_for_ever(checker: Weak<Checker>, worker: Weak<Worker>) {
    loop {
        let (Some(checker), Some(worker)) = (checker.upgrade(), worker.upgrade()) else {
            return;
        };
        let wait = checker.put(&worker);
        drop((checker, worker));
        tokio::time::sleep(wait).await;
    }
}

/// Checks one endpoint, and stores the result.
async fn check(
    worker: Rc<Worker>,
    checker: Rc<Checker>,
    (place, endpoint): (usize, Rc<Endpoint>),
    _under_way: UnderWay,
) {
    let Some(checks) = &checker.watch.checks else {
        return;
    };
    let way = checker.way.borrow().clone();
    let asked = ask(&worker, &checker, (&way, checks), (place, &endpoint));
    let limit = checks.said.terms.timeout;
    let answer = match tokio::time::timeout(limit, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {limit:?}").into()),
    };
    let (cluster, endpoint) = (&*way.cluster, endpoint.plan.address);
    let news = checks.heard(place, &answer);
    if news.is_some() {
        worker.tell(FromWorker::Found);
    }
    match (news, &answer) {
        (Some(EndpointHealth::Unwell), Err(why)) => {
            tracing::warn!(cluster, %endpoint, %why, "endpoint is unhealthy: it takes no traffic");
        }
        (Some(_), _) => {
            tracing::info!(cluster, %endpoint, "endpoint is healthy: it takes traffic again");
        }
        (None, Err(why)) => tracing::debug!(cluster, %endpoint, %why, "health check failed"),
        (None, Ok(())) => {}
    }
}

async fn ask(
    worker: &Worker,
    checker: &Checker,
    (way, checks): (&CheckTransport, &Checks),
    (place, endpoint): (usize, &Rc<Endpoint>),
) -> Result<(), Box<str>> {
    if checks.said.terms.question == CheckQuestion::Tcp {
        let connecting = endpoint.connect(worker, InnerTraffic::Bytes, way.manner);
        let mut stream = connecting.await.map_err(|why| Box::from(why.detail))?;
        // A clean shutdown, so that the endpoint does not log an attack; it may get lost.
        let _ = stream.shutdown().await;
        return Ok(());
    }
    let mut last = "no attempt was made".into();
    for _ in 0..ATTEMPTS {
        match once(worker, checker, (way, checks), (place, endpoint)).await {
            Ok(()) => return Ok(()),
            Err(CallFailure { why, again: true }) => last = why,
            Err(CallFailure { why, .. }) => return Err(why),
        }
    }
    Err(last)
}

async fn once(
    worker: &Worker,
    checker: &Checker,
    (way, checks): (&CheckTransport, &Checks),
    (place, endpoint): (usize, &Rc<Endpoint>),
) -> Result<(), CallFailure> {
    let dialer = Dialer::new(worker, way.manner);
    let to = InFlight::begin(endpoint, u32::try_from(place).unwrap_or(u32::MAX), None);
    match &checks.said.terms.question {
        CheckQuestion::Tcp => Ok(()),
        CheckQuestion::Http {
            path,
            host,
            expected,
        } => {
            let route = dialer.route(to, way.upstream);
            let host = host.as_deref().unwrap_or(&way.authority);
            let question =
                format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: {USER_AGENT}\r\n\r\n");
            let asked = checker
                .lines
                .exchange((&dialer, &route), question.as_bytes(), false);
            let status = asked.await?.head().status();
            match expected.iter().any(|range| range.contains(&status)) {
                true => Ok(()),
                false => Err(CallFailure::new(format!("GET {path} is answered {status}"))),
            }
        }
        CheckQuestion::Grpc { service } => {
            let route = dialer.route(to, UpstreamHttp::Http2);
            let question = HealthRequest {
                service: service.to_string(),
            };
            let asked = checker
                .lines
                .call((&dialer, &route), &way.authority, HEALTH, &question);
            let answer: HealthResponse = asked.await?;
            match answer.status {
                1 => Ok(()),
                other => Err(CallFailure::new(format!(
                    "the health status is {other}, not SERVING"
                ))),
            }
        }
    }
}
