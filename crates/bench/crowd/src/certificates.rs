//! Certificates, asked for as proxies ask for them: a new key and a request each time, by the certificate that is held. As many as the
//! authority signs on a few connections that stay, and one for every proxy within a time, each over a connection of its own, as
//! `voile proxy` renews.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;
use voile_identity::client::Credential;
use voile_identity::{WorkloadCertificate, control_endpoint, new_certificate};
use voile_model::with_causes;

use crate::propagation::{durations, milliseconds};

/// First certificates that are asked for at once: enough to keep the authority busy, few enough to be no storm.
const AT_ONCE: usize = 16;

/// Proxies that ask for certificates.
#[derive(Debug)]
pub(crate) struct CertificateRequesters {
    /// `https://address:port` of the control plane that certifies: the first that was named.
    pub(crate) control: String,
    /// Its root, as PEM.
    pub(crate) root_pem: String,
    /// A token of each proxy.
    pub(crate) tokens: Vec<String>,
    /// The first certificates of as many of them as have one.
    pub(crate) held: Mutex<Vec<Arc<WorkloadCertificate>>>,
}

/// Result of a run of requests.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CertificateResult {
    /// Requests that were made, and that were answered with a certificate of the same identity.
    pub(crate) asked: u64,
    pub(crate) certified: u64,
    /// Why the first of the others were not.
    pub(crate) failures: Vec<String>,
    /// Time for all requests, in seconds.
    pub(crate) seconds: f64,
    /// From when it was due (or sent) to the certificate, in milliseconds.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

/// Failures that the report gives in words.
const TOLD: usize = 5;

/// Results of one asker: the time of each certificate, or the reason for its failure.
type Answers = Vec<Result<u64, String>>;

/// `number` proxies get their first certificates, by their tokens.
pub(crate) async fn hold(askers: &Arc<CertificateRequesters>, number: usize) -> CertificateResult {
    let began = Instant::now();
    let had = lock(askers).len();
    let mut left = askers.tokens.iter().take(number).skip(had);
    let (mut tasks, mut answers) = (JoinSet::new(), Answers::new());
    loop {
        while tasks.len() < AT_ONCE
            && let Some(token) = left.next()
        {
            let (askers, by) = (askers.clone(), Credential::Bearer(token.clone()));
            tasks.spawn(async move {
                let sent = Instant::now();
                let first = obtain(&askers, &by, None).await?;
                lock(&askers).push(Arc::new(first));
                Ok(nanoseconds(sent.elapsed()))
            });
        }
        let Some(done) = tasks.join_next().await else {
            return CertificateResult::of(answers, began);
        };
        answers.push(done.unwrap_or_else(|broken| Err(broken.to_string())));
    }
}

fn lock(
    askers: &CertificateRequesters,
) -> std::sync::MutexGuard<'_, Vec<Arc<WorkloadCertificate>>> {
    askers.held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `connections` that ask one after the other for `time`, by mutual TLS: each as a proxy that holds a certificate, in turn.
pub(crate) async fn certify(
    askers: &Arc<CertificateRequesters>,
    connections: usize,
    time: Duration,
) -> CertificateResult {
    let held = lock(askers).clone();
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for held in held.into_iter().cycle().take(connections) {
        let askers = askers.clone();
        tasks.spawn(async move {
            let mut answers = Answers::new();
            let endpoint = control_endpoint(&askers.control, &askers.root_pem, Some(&held));
            let channel = match endpoint {
                Ok(endpoint) => endpoint.connect().await.map_err(|e| with_causes(&e)),
                Err(error) => Err(error.to_string()),
            };
            let channel = match channel {
                Ok(channel) => channel,
                Err(why) => return vec![Err(why)],
            };
            while began.elapsed() < time {
                let sent = Instant::now();
                let came = new_certificate(channel.clone(), &Credential::Certificate, None).await;
                answers.push(judged(came.map_err(|e| e.to_string()), &held, sent));
            }
            answers
        });
    }
    gather(tasks, began).await
}

/// Every proxy that holds a certificate renews it once, spread over that time: by it, over a connection of its own.
pub(crate) async fn rotate(
    askers: &Arc<CertificateRequesters>,
    time: Duration,
) -> CertificateResult {
    let held = lock(askers).clone();
    let mut tasks = JoinSet::new();
    let (began, all) = (Instant::now(), held.len().max(1));
    for (number, held) in held.into_iter().enumerate() {
        let askers = askers.clone();
        let due = began + time.mul_f64(number as f64 / all as f64);
        tasks.spawn(async move {
            tokio::time::sleep_until(due).await;
            let renewed = obtain(&askers, &Credential::Certificate, Some(&held)).await;
            vec![judged(renewed, &held, due)]
        });
    }
    gather(tasks, began).await
}

/// One certificate over a connection of its own.
async fn obtain(
    askers: &CertificateRequesters,
    by: &Credential,
    held: Option<&WorkloadCertificate>,
) -> Result<WorkloadCertificate, String> {
    let endpoint = control_endpoint(&askers.control, &askers.root_pem, held);
    let channel = endpoint
        .map_err(|e| e.to_string())?
        .connect()
        .await
        .map_err(|e| with_causes(&e))?;
    let came = new_certificate(channel, by, None).await;
    came.map_err(|e| e.to_string())
}

/// Time of a request, if the certificate has the expected identity.
fn judged(
    came: Result<WorkloadCertificate, String>,
    held: &WorkloadCertificate,
    since: Instant,
) -> Result<u64, String> {
    let took = since.elapsed();
    let new = came?;
    if new.identity() != held.identity() {
        return Err(format!(
            "the certificate of {} was renewed as {}",
            held.identity(),
            new.identity()
        ));
    }
    match new.serial() == held.serial() {
        true => Err("the control plane returned the old certificate".to_owned()),
        false => Ok(nanoseconds(took)),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

async fn gather(mut tasks: JoinSet<Answers>, began: Instant) -> CertificateResult {
    let mut all = Answers::new();
    while let Some(answers) = tasks.join_next().await {
        all.extend(answers.unwrap_or_else(|broken| vec![Err(broken.to_string())]));
    }
    CertificateResult::of(all, began)
}

impl CertificateResult {
    fn of(answers: Answers, began: Instant) -> Self {
        let (mut found, mut took) = (Self::default(), durations());
        for answer in answers {
            found.asked += 1;
            match answer {
                Ok(time) => took.saturating_record(time),
                Err(why) if found.failures.len() < TOLD => found.failures.push(why),
                Err(_) => {}
            }
        }
        Self {
            certified: took.len(),
            seconds: began.elapsed().as_secs_f64(),
            p50_ms: milliseconds(took.value_at_quantile(0.5)),
            p99_ms: milliseconds(took.value_at_quantile(0.99)),
            max_ms: milliseconds(took.max()),
            ..found
        }
    }
}
