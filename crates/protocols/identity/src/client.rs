//! The proxy's side of certification: get the first certificate by token, then keep it fresh, for as long as the
//! proxy lives and however long the control plane is away. The only module here that sleeps.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost_types::value::Kind;
use prost_types::{Struct, Value};
use rustls_pki_types::UnixTime;
use tokio::sync::{Semaphore, watch};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity as TlsIdentity};
use tonic::{Code, Request, Status};
use voile_model::{Identity, TrustDomain, with_causes};
use voile_proto::certificate::IstioCertificateRequest;

use crate::authority::DEFAULT_TTL;
use crate::chain::verify_server_chain;
use crate::external::IDENTITY_METADATA;
use crate::generated::certificate_service::istio_certificate_service_client::IstioCertificateServiceClient;
use crate::keys::{Keys, WorkloadCertificate};
use crate::refresh::{MIN_REFRESH, next_refresh, retry_delay};
use crate::service::IMPERSONATED_IDENTITY;
use crate::store::{CertificateStore, TrustBundle};
use crate::token::{MAX_TOKEN_BYTES, unverified_identity};

/// Longest wait after a join token was refused: only a new file helps, and whoever writes one may wait so long, or start the
/// proxy again.
const USED_UP_WAIT: Duration = Duration::from_secs(300);
/// Longest wait for a connection to the control plane.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for a certificate once connected.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which the proxies of a mesh renew their certificates after another authority has begun to sign, each at its own instant.
const NEW_ISSUER_SPREAD: Duration = Duration::from_secs(60);
/// Largest root file read, in bytes.
const MAX_ROOT_BYTES: usize = 256 * 1024;

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A token or root file cannot be read.
    #[error("{}: cannot read: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Nothing is configured by which to prove who we are, and no certificate is held.
    #[error("neither a token file nor a valid certificate: create a token with `voile token`")]
    NoCredential,
    /// The token names no service account, so the request cannot name one.
    #[error("the token names no service account")]
    NamesNobody,
    /// There is nobody to ask.
    #[error("no control plane address is given")]
    NoControl,
    /// The address of the control plane is wrong, or it cannot be reached.
    #[error("cannot reach the control plane at {control}: {reason}")]
    Connect {
        /// Its address.
        control: String,
        /// Why.
        reason: String,
    },
    /// The authority refused.
    #[error("the certificate authority refused ({:?}): {}", .0.code(), .0.message())]
    Refused(Box<Status>),
    /// The answer cannot be used.
    #[error("invalid response of the certificate authority: {0}")]
    Answer(String),
}

/// By what a certificate is asked for.
#[derive(Clone)]
pub enum Credential {
    /// A service-account token or join token.
    Bearer(String),
    /// The client certificate of the channel.
    Certificate,
}

impl fmt::Debug for Credential {
    /// Never the token: whoever reads a log must not become the workload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bearer(_) => "Bearer(..)",
            Self::Certificate => "Certificate",
        })
    }
}

/// Address of the authority, and the credentials for it.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// The control planes, `https://HOST:PORT` each. Any will do: one is asked, by chance, and another when it is away.
    pub control: Vec<String>,
    /// The root that its certificate must lead to.
    pub root_cert: PathBuf,
    /// A service-account token; read anew for each request, since others rewrite it.
    pub token_file: Option<PathBuf>,
    /// A join token, for the first certificate only.
    pub join_token_file: Option<PathBuf>,
    /// The lifetime to ask for; `None` leaves it to the authority.
    pub ttl: Option<Duration>,
}

impl ClientSettings {
    /// The same towards an authority beside the control plane, such as istio-csr: it signs only requests that name the caller, and
    /// gives no lifetime of its own.
    #[must_use]
    pub fn at_authority(self, address: String) -> Self {
        Self {
            control: vec![address],
            ttl: Some(DEFAULT_TTL),
            ..self
        }
    }
}

/// The endpoint of the control plane, over TLS that trusts `root_pem` only; with `certificate` as client certificate
/// if given. The discovery client uses it too.
///
/// # Errors
/// The address is no `https://` URI, or the PEM cannot be used.
pub fn control_endpoint(
    control: &str,
    root_pem: &str,
    certificate: Option<&WorkloadCertificate>,
) -> Result<Endpoint, ClientError> {
    let failed = |reason: String| ClientError::Connect {
        control: control.to_owned(),
        reason,
    };
    let endpoint =
        Endpoint::from_shared(control.to_owned()).map_err(|error| failed(error.to_string()))?;
    if endpoint.uri().scheme_str() != Some("https") {
        return Err(failed("the address must begin with https://".into()));
    }
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(root_pem));
    if let Some(host) = endpoint.uri().host() {
        // rustls knows IPv6 addresses without the URI's brackets.
        tls = tls.domain_name(host.trim_start_matches('[').trim_end_matches(']'));
    }
    if let Some(own) = certificate {
        tls = tls.identity(TlsIdentity::from_pem(
            own.chain_pem(),
            own.private_key_pem(),
        ));
    }
    let endpoint = endpoint
        .tls_config(tls)
        .map_err(|error| failed(with_causes(&error)))?;
    Ok(endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true))
}

/// Asks for a certificate; the answer is the chain, leaf first, root bundle last.
///
/// # Errors
/// The status of the authority, or of the transport.
pub async fn request_certificate(
    channel: Channel,
    credential: &Credential,
    csr_pem: String,
    ttl: Option<Duration>,
) -> Result<Vec<String>, Status> {
    request_for(channel, credential, csr_pem, ttl, None).await
}

/// The same, in the name of `subject` if it is not the caller's own.
async fn request_for(
    channel: Channel,
    credential: &Credential,
    csr_pem: String,
    ttl: Option<Duration>,
    subject: Option<&Identity>,
) -> Result<Vec<String>, Status> {
    let validity_duration = ttl.map_or(0, |ttl| i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX));
    let mut request = Request::new(IstioCertificateRequest {
        csr: csr_pem,
        validity_duration,
        metadata: subject.map(|subject| {
            let kind = Some(Kind::StringValue(subject.to_string()));
            let value = Value { kind };
            let fields = BTreeMap::from([(IMPERSONATED_IDENTITY.to_owned(), value)]);
            Struct { fields }
        }),
    });
    request.set_timeout(REQUEST_TIMEOUT);
    if let Credential::Bearer(token) = credential {
        let mut header: MetadataValue<Ascii> = format!("Bearer {token}").parse().map_err(|_| {
            Status::invalid_argument("the token has characters that are invalid in a header")
        })?;
        header.set_sensitive(true);
        request.metadata_mut().insert("authorization", header);
    }
    let mut client = IstioCertificateServiceClient::new(channel);
    Ok(client
        .create_certificate(request)
        .await?
        .into_inner()
        .cert_chain)
}

/// Requests a certificate for a new key on `channel`. Its acceptance by peers is not checked.
///
/// # Errors
/// The authority refused, or its answer does not belong to the key.
pub async fn new_certificate(
    channel: Channel,
    credential: &Credential,
    ttl: Option<Duration>,
) -> Result<WorkloadCertificate, ClientError> {
    certificate_for(channel, credential, ttl, (None, None)).await
}

/// The identity that a refused request should have named.
fn identity_to_name(status: &Status) -> Option<Identity> {
    let told = status.metadata().get(IDENTITY_METADATA)?;
    told.to_str().ok()?.parse().ok()
}

async fn certificate_for(
    channel: Channel,
    credential: &Credential,
    ttl: Option<Duration>,
    (subject, own): (Option<&Identity>, Option<Identity>),
) -> Result<WorkloadCertificate, ClientError> {
    let unusable = |error: &dyn fmt::Display| ClientError::Answer(error.to_string());
    let keys = Keys::generate().map_err(|error| unusable(&error))?;
    let named = subject.or(own.as_ref());
    let csr = keys.request(named).map_err(|error| unusable(&error))?;
    let mut chain = request_for(channel.clone(), credential, csr, ttl, subject).await;
    // An external authority signs what the request says, so the control plane tells who we are.
    if let Err(status) = &chain
        && let Some(own) = identity_to_name(status)
    {
        let csr = keys.request(Some(&own)).map_err(|error| unusable(&error))?;
        chain = request_for(channel, credential, csr, ttl, subject).await;
    }
    let chain = chain.map_err(|status| ClientError::Refused(Box::new(status)))?;
    let certificate = keys.certify(&chain).map_err(|error| unusable(&error))?;
    if let Some(named) = named.filter(|named| *named != certificate.identity()) {
        let found = certificate.identity();
        let text = format!("the certificate is for {found}, not for {named}");
        return Err(ClientError::Answer(text));
    }
    Ok(certificate)
}

/// Keeps a [`CertificateStore`] supplied.
#[derive(Debug)]
pub struct CertificateClient {
    settings: ClientSettings,
    store: Arc<CertificateStore>,
    subject: Option<Identity>,
    /// Trust domain of the own identity, where requests name it.
    names_itself: Option<TrustDomain>,
    turns: Option<Arc<Semaphore>>,
    published: watch::Sender<Option<Arc<WorkloadCertificate>>>,
}

impl CertificateClient {
    /// A client that publishes into `store`.
    pub fn new(settings: ClientSettings, store: Arc<CertificateStore>) -> Self {
        Self {
            settings,
            store,
            subject: None,
            names_itself: None,
            turns: None,
            published: watch::Sender::new(None),
        }
    }

    /// Requests certificates in the name of `subject`, always with the token. The token belongs to another identity: a
    /// node's, which stands for its workloads. A certificate for any identity but `subject` is not published.
    #[must_use]
    pub fn in_the_name_of(mut self, subject: Identity) -> Self {
        self.subject = Some(subject);
        self
    }

    /// Names its own identity in each request: the service account of its token, in this trust domain. An authority beside the control
    /// plane demands it.
    #[must_use]
    pub fn naming_itself(mut self, trust_domain: TrustDomain) -> Self {
        self.names_itself = Some(trust_domain);
        self
    }

    /// Asks only while it has one of these permits, which it shares with others: each question has a connection of its own.
    #[must_use]
    pub fn taking_turns(mut self, turns: &Arc<Semaphore>) -> Self {
        self.turns = Some(Arc::clone(turns));
        self
    }

    /// Tells of each new certificate; `None` until the first.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<WorkloadCertificate>>> {
        self.published.subscribe()
    }

    /// Obtains and renews until `shutdown` resolves. Never gives up: a certificate in hand is used to its end, and
    /// failures are retried with growing, jittered waits.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        tokio::select! {
            () = shutdown => {}
            () = self.keep_fresh() => {}
        }
    }

    async fn keep_fresh(&self) {
        let mut failures: u32 = 0;
        let mut said: Option<String> = None;
        loop {
            // Asking takes kilobytes, for a moment; waiting for the next time, most of a day, takes next to nothing.
            let wait = match Box::pin(self.obtain_in_turn()).await {
                Ok(certificate) => {
                    failures = 0;
                    said = None;
                    self.store.set_trouble(None);
                    next_refresh(SystemTime::now(), certificate.not_after(), fastrand::f64())
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    self.store.set_trouble(Some(error.to_string()));
                    let mut wait = retry_delay(failures, fastrand::f64());
                    if self.is_used_up(&error) {
                        wait = wait.saturating_mul(1 << failures.min(16)).min(USED_UP_WAIT);
                    }
                    let wait_ms = wait.as_millis();
                    // The same trouble is said once.
                    let text = error.to_string();
                    if said.as_ref() == Some(&text) {
                        tracing::debug!(%error, failures, wait_ms, "cannot renew the certificate (again)");
                    } else {
                        tracing::warn!(%error, failures, wait_ms, "cannot renew the certificate");
                        said = Some(text);
                    }
                    wait
                }
            };
            self.until_due(wait).await;
        }
    }

    /// Waits for the time of the next certificate: sooner where it is asked for, or where another authority signs now.
    async fn until_due(&self, wait: Duration) {
        let until = tokio::time::Instant::now() + wait;
        loop {
            let soon = self.store.issuer_changed();
            let soon = soon.then(|| NEW_ISSUER_SPREAD.mul_f64(fastrand::f64()).max(MIN_REFRESH));
            let due = soon.map_or(until, |soon| until.min(tokio::time::Instant::now() + soon));
            tokio::select! {
                () = tokio::time::sleep_until(due) => return,
                () = self.store.asked_to_renew() => return,
                () = self.store.roots_told() => {}
            }
        }
    }

    /// Returns true if a join token is our only credential and was refused: a repeated request would not make it good.
    fn is_used_up(&self, error: &ClientError) -> bool {
        let refused =
            matches!(error, ClientError::Refused(status) if status.code() == Code::Unauthenticated);
        refused && self.settings.token_file.is_none() && self.store.current().is_none()
    }

    async fn obtain_in_turn(&self) -> Result<Arc<WorkloadCertificate>, ClientError> {
        let turn = match &self.turns {
            // Nobody closes it; if somebody did, nobody would have to wait.
            Some(turns) => turns.acquire().await.ok(),
            None => None,
        };
        let obtained = self.obtain().await;
        drop(turn);
        obtained
    }

    /// Gets and publishes one certificate now.
    ///
    /// # Errors
    /// There is nothing to prove ourselves by, the control plane is away, or it refused.
    pub async fn obtain(&self) -> Result<Arc<WorkloadCertificate>, ClientError> {
        let mut last = ClientError::NoCredential;
        for credential in self.credentials() {
            match credential {
                Ok(credential) => match self.obtain_by(&credential).await {
                    Err(ClientError::Refused(status)) if status.code() == Code::Unauthenticated => {
                        // A stale token file must not cost us a renewal that the certificate would get.
                        last = ClientError::Refused(status);
                    }
                    done => return done,
                },
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Credentials to try, best first: the token file, the held certificate, and a join token while no certificate is held.
    fn credentials(&self) -> Vec<Result<Credential, ClientError>> {
        let held = self
            .store
            .current()
            // A certificate speaks for itself only, and nobody renews in another's name by it.
            .filter(|held| self.subject.is_none() && held.not_after() > SystemTime::now());
        let bearer = |path: &PathBuf| {
            read_limited(path, MAX_TOKEN_BYTES)
                .map(|text| Credential::Bearer(text.trim().to_owned()))
        };
        let mut found: Vec<_> = self.settings.token_file.iter().map(bearer).collect();
        match held {
            Some(_) => found.push(Ok(Credential::Certificate)),
            None => found.extend(self.settings.join_token_file.iter().map(bearer)),
        }
        found
    }

    /// Asks one control plane after another, until one is there to answer.
    async fn obtain_by(
        &self,
        credential: &Credential,
    ) -> Result<Arc<WorkloadCertificate>, ClientError> {
        let all = &self.settings.control;
        let mut last = ClientError::NoControl;
        let first = fastrand::usize(..all.len().max(1));
        for at in 0..all.len() {
            match self
                .obtain_at(&all[(first + at) % all.len()], credential)
                .await
            {
                Err(error) if is_away(&error) => last = error,
                done => return done,
            }
        }
        Err(last)
    }

    /// The own identity, where the request must name it.
    fn own_identity(&self, credential: &Credential) -> Result<Option<Identity>, ClientError> {
        let (Some(domain), None) = (&self.names_itself, &self.subject) else {
            return Ok(None);
        };
        let own = match credential {
            Credential::Bearer(token) => unverified_identity(token, domain),
            Credential::Certificate => self.store.current().map(|held| held.identity().clone()),
        };
        own.map(Some).ok_or(ClientError::NamesNobody)
    }

    async fn obtain_at(
        &self,
        control: &str,
        credential: &Credential,
    ) -> Result<Arc<WorkloadCertificate>, ClientError> {
        let root_pem = read_limited(&self.settings.root_cert, MAX_ROOT_BYTES)?;
        let held = match credential {
            Credential::Certificate => self.store.current(),
            Credential::Bearer(_) => None,
        };
        let endpoint = control_endpoint(control, &root_pem, held.as_deref())?;
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| ClientError::Connect {
                control: control.to_owned(),
                reason: with_causes(&error),
            })?;
        let unusable = |error: &dyn fmt::Display| ClientError::Answer(error.to_string());
        let (ttl, subject) = (self.settings.ttl, self.subject.as_ref());
        let own = self.own_identity(credential)?;
        let certificate = certificate_for(channel, credential, ttl, (subject, own)).await?;
        check_usable(&certificate, SystemTime::now())?;
        if let Some(before) = self
            .store
            .current()
            .filter(|b| b.identity() != certificate.identity())
        {
            tracing::warn!(before = %before.identity(), now = %certificate.identity(), "the identity of the certificate changed");
        }
        let certificate = self
            .store
            .publish(certificate)
            .map_err(|error| unusable(&error))?;
        tracing::info!(identity = %certificate.identity(), serial = certificate.serial(), "new certificate");
        self.published.send_replace(Some(Arc::clone(&certificate)));
        Ok(certificate)
    }
}

/// Returns true if another control plane may succeed: all of them refuse the same requests.
fn is_away(error: &ClientError) -> bool {
    match error {
        ClientError::Connect { .. } => true,
        ClientError::Refused(status) => matches!(
            status.code(),
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown
        ),
        _ => false,
    }
}

/// Refuses a certificate that no peer would accept: better to keep the old one.
fn check_usable(certificate: &WorkloadCertificate, now: SystemTime) -> Result<(), ClientError> {
    let unusable = |error: &dyn fmt::Display| ClientError::Answer(error.to_string());
    let own = certificate.identity().trust_domain.clone();
    let trust = TrustBundle::new(own, Vec::new(), certificate.roots().to_vec())
        .map_err(|error| unusable(&error))?;
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let now = UnixTime::since_unix_epoch(since);
    verify_server_chain(&trust, &certificate.certified_key().cert, now)
        .map(drop)
        .map_err(|error| unusable(&error))
}

/// A small text file, read anew.
fn read_limited(path: &Path, limit: usize) -> Result<String, ClientError> {
    let failed = |source| ClientError::File {
        path: path.to_path_buf(),
        source,
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    file.take(limit as u64 + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    match text.len() > limit {
        true => Err(failed(std::io::Error::other(format!(
            "larger than {limit} bytes"
        )))),
        false => Ok(text),
    }
}
