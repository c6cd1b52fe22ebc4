//! Keeps a stream to the control plane open, for ever. Commands may come from any thread and are merged until the driver
//! takes them; responses are applied one by one by the handler, on the driver's task.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use prost::Message as _;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use voile_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Status};
use voile_proto::proxy::HealthFindings;
use voile_proto::type_url;

use super::backoff::Backoff;
use super::changes::PendingChanges;
use super::connect::{ClientConfig, ClientError, CredentialSource, connect, ways};
use super::replicas::Replicas;
use super::response_timeout::{ANSWER_TIMEOUT, ResponseTimeout};
use super::state::ClientState;
use super::subscriptions::{Rejection, Subscriptions, Update};
use crate::generated::ads::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;

/// Names one proxy may want, of all types: strangers' addresses are names too, and must not fill the memory.
const MAX_WANTED_NAMES: usize = 100_000;
/// Largest response that is taken, in bytes. Our control plane sends at most a few megabytes at once; istiod may send all it knows.
const MAX_RESPONSE_BYTES: usize = 200 * 1024 * 1024;
/// Time that an answering stream must last to count as a success. Without it the client would retry without a pause a server that
/// answers and then ends the stream at once. istiod does so for types that it withholds.
const STEADY: Duration = Duration::from_secs(1);
/// Requests waiting for the transport; one ACK per response and one merged change at a time need no more.
const REQUEST_QUEUE: usize = 16;

/// Applies an update, at once; returns what it cannot use.
pub type Handler = Box<dyn FnMut(&Update) -> Vec<Rejection> + Send>;

/// Why a subscription is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this proxy already subscribes to {MAX_WANTED_NAMES} names, the limit")]
pub struct SubscribeError;

/// A handle on the client. The client ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct XdsClient {
    inner: Arc<DriverInner>,
}

#[derive(Debug)]
struct DriverInner {
    commands: Arc<Commands>,
    state: watch::Receiver<ClientState>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for DriverInner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Code of a complaint about the application, as Istio's agent says it.
const UNWELL: i32 = 500;

/// Health of the application: healthy, or the text of its complaint.
pub type Health = Result<(), String>;

/// Changes nobody has sent yet.
#[derive(Debug, Default)]
struct Commands {
    changes: Mutex<PendingChanges>,
    health: Mutex<StreamState>,
    news: Notify,
}

/// A message that each stream sends once, if there is one.
#[derive(Debug)]
struct StreamHello<T> {
    word: Option<T>,
    told: bool,
}

impl<T> Default for StreamHello<T> {
    fn default() -> Self {
        Self {
            word: None,
            told: false,
        }
    }
}

impl<T> StreamHello<T> {
    fn take(&mut self) -> Option<&T> {
        let untold = !std::mem::replace(&mut self.told, true);
        self.word.as_ref().filter(|_| untold)
    }

    fn say(&mut self, word: T) {
        *self = Self {
            word: Some(word),
            told: false,
        };
    }
}

/// Messages to the open stream's server besides subscriptions.
#[derive(Debug, Default)]
struct StreamState {
    /// Health of the application, as far as it is known.
    health: StreamHello<Health>,
    /// Findings of HealthChecks.
    findings: StreamHello<HealthFindings>,
}

impl StreamState {
    /// Requests for the messages not yet sent on this stream.
    fn requests(&mut self) -> Vec<DeltaDiscoveryRequest> {
        let request = |type_url: &str, error_detail: Option<Status>| DeltaDiscoveryRequest {
            type_url: type_url.to_owned(),
            error_detail,
            ..DeltaDiscoveryRequest::default()
        };
        let health = self.health.take().map(|health| {
            let complaint = health.as_ref().err().map(|complaint| Status {
                code: UNWELL,
                message: complaint.clone(),
                details: Vec::new(),
            });
            request(type_url::HEALTH, complaint)
        });
        let findings = self.findings.take().map(|findings| {
            let details = prost_types::Any {
                type_url: type_url::HEALTH_FINDINGS.to_owned(),
                value: findings.encode_to_vec(),
            };
            let said = Status {
                code: UNWELL,
                message: String::new(),
                details: vec![details],
            };
            request(type_url::HEALTH_FINDINGS, Some(said))
        });
        health.into_iter().chain(findings).collect()
    }

    /// Marks all messages as not sent: the server of a new stream may be another one.
    fn begin(&mut self) {
        self.health.told = false;
        // That nothing was found is no news to somebody new.
        let some = |found: &HealthFindings| !found.findings.is_empty();
        self.findings.told = !self.findings.word.as_ref().is_some_and(some);
    }
}

impl Commands {
    fn lock(&self) -> std::sync::MutexGuard<'_, PendingChanges> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, subscriptions: &mut Subscriptions) -> Vec<DeltaDiscoveryRequest> {
        std::mem::take(&mut *self.lock()).apply(subscriptions)
    }

    /// First requests of a new stream: its server may be another one than before.
    fn first(&self, subscriptions: &mut Subscriptions) -> Vec<DeltaDiscoveryRequest> {
        self.apply(subscriptions);
        self.told().begin();
        let mut first = subscriptions.open();
        // Only on a stream that says who we are: that is what a type's first request does.
        if !first.is_empty() {
            first.extend(self.told().requests());
        }
        first
    }

    /// Requests for everything new since the last call.
    fn news(&self, subscriptions: &mut Subscriptions) -> Vec<DeltaDiscoveryRequest> {
        let mut news = self.apply(subscriptions);
        news.extend(self.told().requests());
        news
    }

    fn told(&self) -> std::sync::MutexGuard<'_, StreamState> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl XdsClient {
    /// Starts the client on a runtime. It connects at once and for ever again; `handler` is called for each response.
    pub fn start(
        config: ClientConfig,
        credentials: Arc<dyn CredentialSource>,
        handler: Handler,
        runtime: &tokio::runtime::Handle,
    ) -> Self {
        Self::start_after(
            std::future::ready(()),
            config,
            credentials,
            handler,
            runtime,
        )
    }

    /// As [`Self::start`], but connects only once `begin` is there: who has no credential yet need not try.
    pub fn start_after(
        begin: impl Future<Output = ()> + Send + 'static,
        config: ClientConfig,
        credentials: Arc<dyn CredentialSource>,
        handler: Handler,
        runtime: &tokio::runtime::Handle,
    ) -> Self {
        let commands = Arc::new(Commands::default());
        let (publish, state) = watch::channel(ClientState::default());
        let driver = Driver {
            subscriptions: Subscriptions::new(config.node.clone()),
            config,
            credentials,
            handler,
            commands: commands.clone(),
            publish,
            backoff: Backoff::default(),
            replicas: Replicas::default(),
            address: String::new(),
            ways: 0,
            answered: None,
        };
        Self {
            inner: Arc::new(DriverInner {
                commands,
                state,
                task: runtime.spawn(async move {
                    begin.await;
                    driver.run().await;
                }),
            }),
        }
    }

    /// Asks for names of a type (`*` for all). Names already asked for are no news.
    pub fn subscribe<I>(&self, type_url: &str, names: I) -> Result<(), SubscribeError>
    where
        I: IntoIterator,
        I::Item: Into<Arc<str>>,
    {
        self.change(type_url, names, true)
    }

    /// Asks no more for names of a type. The caller forgets these resources itself; the control plane then tells which
    /// others came only along with them.
    pub fn unsubscribe<I>(&self, type_url: &str, names: I)
    where
        I: IntoIterator,
        I::Item: Into<Arc<str>>,
    {
        // Wanting less is never refused.
        let _ = self.change(type_url, names, false);
    }

    fn change<I>(&self, type_url: &str, names: I, wanted: bool) -> Result<(), SubscribeError>
    where
        I: IntoIterator,
        I::Item: Into<Arc<str>>,
    {
        let type_url: Arc<str> = type_url.into();
        let mut changes = self.inner.commands.lock();
        for name in names {
            if wanted && changes.len() >= MAX_WANTED_NAMES {
                return Err(SubscribeError);
            }
            match wanted {
                true => changes.want(&type_url, name.into()),
                false => changes.let_go(&type_url, name.into()),
            }
        }
        drop(changes);
        self.inner.commands.news.notify_one();
        Ok(())
    }

    /// Tells how the application is: now, and on each stream to come, until it is told otherwise.
    pub fn tell_health(&self, health: Health) {
        self.inner.commands.told().health.say(health);
        self.inner.commands.news.notify_one();
    }

    /// Tells what HealthChecks found: now, if it is something else than before, and on each stream to come.
    pub fn tell_findings(&self, found: HealthFindings) {
        let mut told = self.inner.commands.told();
        let nothing = HealthFindings::default();
        if *told.findings.word.as_ref().unwrap_or(&nothing) != found {
            told.findings.say(found);
            drop(told);
            self.inner.commands.news.notify_one();
        }
    }

    /// The state, to look at or to wait on.
    pub fn state(&self) -> watch::Receiver<ClientState> {
        self.inner.state.clone()
    }

    /// Returns true if there was a control plane and is none now. The client still waits for one that was never there.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let state = self.state();
        let state = state.borrow();
        !state.connected && state.connections > 0
    }
}

struct Driver {
    config: ClientConfig,
    credentials: Arc<dyn CredentialSource>,
    handler: Handler,
    commands: Arc<Commands>,
    subscriptions: Subscriptions,
    publish: watch::Sender<ClientState>,
    backoff: Backoff,
    replicas: Replicas,
    /// Address of the open stream's control plane, or of the last one.
    address: String,
    /// Number of addresses to draw from.
    ways: u32,
    /// Since when the open stream, or the last one, answers.
    answered: Option<Instant>,
}

impl Driver {
    async fn run(mut self) {
        loop {
            let error = self.stream().await;
            self.subscriptions.closed();
            self.report(&error);
            match error {
                ClientError::Again { .. } => self.replicas.sent_away(),
                _ => self.replicas.failed(),
            }
            let steady = |since: Instant| since.elapsed() >= STEADY;
            if self.answered.take().is_some_and(steady) {
                self.backoff.reset();
            }
            // Several are tried in the time in which one would be.
            let wait = self.backoff.wait(random()) / self.ways.max(1);
            tracing::debug!(?wait, "reconnecting to the control plane");
            tokio::time::sleep(wait).await;
        }
    }

    /// Tells of a new trouble once; the same again only to those who debug.
    fn report(&mut self, error: &ClientError) {
        let text = error.to_string();
        if matches!(error, ClientError::Again { .. }) {
            tracing::info!("{text}");
            self.publish.send_modify(|state| state.connected = false);
            return;
        }
        self.publish.send_modify(|state| {
            if self.replicas.has_others() {
                tracing::info!("{text}; trying another control plane");
            } else if state.last_error.as_ref() != Some(&text) || state.connected {
                tracing::warn!("{text}; the current configuration stays in force");
            } else {
                tracing::debug!("{text}");
            }
            state.connected = false;
            state.last_error = Some(text);
        });
    }

    /// One stream from its opening to its end.
    async fn stream(&mut self) -> ClientError {
        let (channel, bearer) = match self.open().await {
            Ok(connected) => connected,
            Err(error) => return error,
        };
        let (requests, queue) = mpsc::channel(REQUEST_QUEUE);
        // istiod answers headers only after the first request, so that must be under way before we wait for headers.
        for request in self.commands.first(&mut self.subscriptions) {
            if requests.try_send(request).is_err() {
                return self.broken("more resource types than a stream allows");
            }
        }
        let mut responses = match self.begin(channel, bearer, queue).await {
            Ok(responses) => responses,
            Err(error) => return error,
        };
        self.connected();
        let commands = self.commands.clone();
        let mut patience = ResponseTimeout::default();
        let mut asked = self.subscriptions.turn();
        if self.subscriptions.wanted() > 0 {
            patience.asked(asked, Instant::now());
        }
        loop {
            let next = tokio::select! {
                response = responses.message() => match response {
                    Ok(Some(response)) => {
                        self.answered.get_or_insert_with(Instant::now);
                        let answer = self.apply(response);
                        let oldest = self.subscriptions.unanswered().map(|name| name.turn);
                        patience.heard(oldest, Instant::now());
                        vec![answer]
                    }
                    Ok(None) => return self.broken("it ended the stream"),
                    Err(status)
                        if self.answered.is_some()
                            && status.code() == tonic::Code::Unauthenticated =>
                    {
                        return ClientError::Again {
                            address: self.address.clone(),
                            reason: status.message().to_owned(),
                        };
                    }
                    Err(status) => return self.refused(&status),
                },
                () = commands.news.notified() => commands.news(&mut self.subscriptions),
                () = patience.lost() => return self.unanswered(),
            };
            if self.subscriptions.wanted() > MAX_WANTED_NAMES {
                tracing::warn!(names = self.subscriptions.wanted(), "{SubscribeError}");
            }
            for request in next {
                // A name that only goes along need not be answered.
                if self.subscriptions.turn() > asked {
                    asked = self.subscriptions.turn();
                    patience.asked(asked, Instant::now());
                }
                let sent = tokio::time::timeout(ANSWER_TIMEOUT, requests.send(request)).await;
                if !matches!(sent, Ok(Ok(()))) {
                    return self.broken("it accepts no more requests");
                }
            }
        }
    }

    /// A connection to a control plane, and the metadata to send along.
    async fn open(&mut self) -> Result<(Channel, Option<MetadataValue<Ascii>>), ClientError> {
        let ways = ways(&self.config.addresses).await;
        self.ways = u32::try_from(ways.len()).unwrap_or(1);
        let Some(way) = self.replicas.draw(&ways, random()) else {
            return Err(self.broken("no address is configured"));
        };
        self.address = way.to_string();
        let others = self.replicas.has_others();
        let connecting = connect(&self.config, &way, &ways, others, &self.credentials);
        let connected = connecting.await?;
        self.address = connected.way.to_string();
        self.replicas.answered(connected.way);
        Ok((connected.channel, connected.bearer))
    }

    /// Tells whoever asks that a stream is open, and to whom.
    fn connected(&self) {
        self.publish.send_modify(|state| {
            state.connections += 1;
            state.address = Some(self.address.clone());
            state.connected_since = Some(SystemTime::now());
        });
    }

    async fn begin(
        &mut self,
        channel: Channel,
        bearer: Option<MetadataValue<Ascii>>,
        queue: mpsc::Receiver<DeltaDiscoveryRequest>,
    ) -> Result<Streaming<DeltaDiscoveryResponse>, ClientError> {
        let mut client = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(MAX_RESPONSE_BYTES);
        let mut request = tonic::Request::new(ReceiverStream::new(queue));
        if let Some(bearer) = bearer {
            request.metadata_mut().insert("authorization", bearer);
        }
        let begun = client.delta_aggregated_resources(request);
        match tokio::time::timeout(ANSWER_TIMEOUT, begun).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.refused(&status)),
            Err(_) => Err(self.broken("it does not answer")),
        }
    }

    fn apply(&mut self, response: DeltaDiscoveryResponse) -> DeltaDiscoveryRequest {
        let update = self.subscriptions.receive(response);
        let type_url = update.type_url.clone();
        let rejections = (self.handler)(&update);
        let request = self.subscriptions.finish(update, rejections);
        let now = SystemTime::now();
        let held = self.subscriptions.held(&type_url);
        self.publish.send_modify(|state| {
            if !state.connected {
                tracing::info!(address = self.address, "connected to the control plane");
            }
            state.connected = true;
            let kind = state.types.entry(type_url.clone()).or_default();
            kind.last_update = Some(now);
            kind.updates += 1;
            kind.held = held;
            if let Some(error) = &request.error_detail {
                tracing::error!(%type_url, "configuration refused: {}", error.message);
                kind.last_rejection = Some((now, error.message.clone()));
            }
        });
        request
    }

    /// Patience is lost, and with what.
    fn unanswered(&self) -> ClientError {
        match self.subscriptions.unanswered() {
            Some(first) => self.broken(&format!(
                "it does not answer a subscription ({} `{}`)",
                first.type_url, first.name
            )),
            None => self.broken("it does not answer"),
        }
    }

    fn broken(&self, status: &str) -> ClientError {
        ClientError::Stream {
            address: self.address.clone(),
            status: status.to_owned(),
        }
    }

    fn refused(&self, status: &tonic::Status) -> ClientError {
        match std::error::Error::source(status) {
            Some(source) => self.broken(&format!("the connection was lost: {}", innermost(source))),
            None => self.broken(&format!("{:?}: {}", status.code(), status.message())),
        }
    }
}

/// Text of the innermost error, without its outer layers and without rustls's advice for programmers.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let last = std::iter::successors(Some(error), |error| error.source()).last();
    let text = last.unwrap_or(error).to_string();
    match text.split_once(": https://") {
        Some((what, _)) => what.to_owned(),
        None => text,
    }
}

/// A number from 0 to 1, different in each process: the standard hasher's keys are random, and jitter needs no more.
fn random() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    let bits = RandomState::new().hash_one(0u8) >> 11;
    bits as f64 / (1u64 << 53) as f64
}
