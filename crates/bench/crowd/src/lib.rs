//! Simulated proxies by the thousand in one process. Each is a real delta-ADS stream over TLS, with the code that a proxy uses
//! and a token of its own. None carries traffic. A program that changes the configuration announces it here (`changed`), and
//! learns when each proxy concerned got it (`report`).
//!
//! ```text
//! folder of YAML ─▶ proxies and their subscriptions ─▶ proxies ─▶ arrivals ─▶ ledger ─▶ report
//!                                        commands (a socket) ─ changed, report, synced ─▲
//!                                                             └ certify, rotate ─▶ certificates, asked for as proxies ask
//! ```

mod certificates;
mod commands;
mod discovery_stream;
mod plan;
mod propagation;
mod proxy;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::task::LocalSet;
use voile_identity::{StateDir, TOKEN_AUDIENCE, TokenKey, TokenSubject};

use certificates::CertificateRequesters;
pub use plan::{SimulatedProxy, plan};
pub use propagation::{Ledger, Report, Synced, now_ns};
use proxy::Simulated;

/// Lifetime of the proxies' tokens: longer than any measurement.
const TOKEN_TTL: Duration = Duration::from_secs(12 * 3600);

/// Settings of the simulated proxies.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `https://address:port` of each control plane.
    pub control: Vec<String>,
    /// Its state directory: the root to believe and the key of tokens.
    pub state: PathBuf,
    /// A folder with the proxies' tokens, in files `NAMESPACE_POD`: the cluster's, whose key no proxy has. Without it tokens are made
    /// with the key of the state directory.
    pub tokens: Option<PathBuf>,
    /// The folder of YAML that it reads, too.
    pub config: PathBuf,
    /// Number of proxies.
    pub proxies: usize,
    /// Services that each of them uses.
    pub services: usize,
    /// Of these, the number that is the same for all.
    pub shared: usize,
    /// A Unix socket on which a program listens that gives commands. Without it: until `stop`.
    pub commands: Option<PathBuf>,
}

/// Ledger that all simulated proxies share.
pub(crate) type Shared = Arc<Mutex<Ledger>>;

/// Runs the crowd on the current-thread runtime it is called in, until `stop`, or until the program that gives commands
/// is gone. `say` is given a line of JSON when all are in sync for the first time, and at the end.
///
/// # Errors The folder holds too few workloads or services, the state cannot be read, or the socket is not there.
pub async fn run(
    settings: Settings,
    stop: impl Future<Output = ()>,
    say: impl Fn(&str),
) -> Result<(), String> {
    let parts = plan::read(&settings)?;
    let source = TokenSource::open(&settings)?;
    let root = settings.state.join("root-cert.pem");
    let root_pem =
        std::fs::read_to_string(&root).map_err(|e| format!("{}: {e}", root.display()))?;
    let ledger: Shared = Arc::new(Mutex::new(Ledger::new(parts.len())));
    let (wires, control) = (
        discovery_stream::CrowdState::new(&root_pem)?,
        Rc::from(&settings.control[..]),
    );
    let began = now_ns();
    let (proxies, mut tokens) = (LocalSet::new(), Vec::new());
    for part in parts.into_iter().enumerate() {
        let token = source.token(&part.1)?;
        tokens.push(token.clone());
        let (control, wires) = (Rc::clone(&control), wires.clone());
        let proxy = Simulated::new(part, token, control, wires, ledger.clone());
        proxies.spawn_local(proxy.run());
    }
    let askers = Arc::new(CertificateRequesters {
        control: settings.control.first().cloned().unwrap_or_default(),
        root_pem,
        tokens,
        held: Mutex::default(),
    });
    let commanded = async {
        match &settings.commands {
            Some(socket) => commands::serve(socket, &ledger, &askers).await,
            None => {
                ledger_in_sync(&ledger, began, &say).await;
                std::future::pending().await
            }
        }
    };
    let ended = tokio::select! {
        () = proxies => Ok(()),
        ended = commanded => ended,
        () = stop => Ok(()),
    };
    let report = lock(&ledger).report();
    say(&serde_json::to_string(&report).unwrap_or_default());
    ended
}

/// The source of the proxies' tokens.
enum TokenSource<'a> {
    Key(TokenKey),
    Folder(&'a Path),
}

impl<'a> TokenSource<'a> {
    fn open(settings: &'a Settings) -> Result<Self, String> {
        if let Some(folder) = &settings.tokens {
            return Ok(Self::Folder(folder));
        }
        let state = StateDir::open(&settings.state).map_err(|e| e.to_string())?;
        TokenKey::open(&state)
            .map(Self::Key)
            .map_err(|e| e.to_string())
    }

    fn token(&self, proxy: &SimulatedProxy) -> Result<String, String> {
        match self {
            Self::Key(key) => {
                let subject = TokenSubject {
                    namespace: proxy.namespace.clone(),
                    service_account: proxy.service_account.clone(),
                    pod: Some(proxy.pod.clone()),
                };
                let token = key.mint(&subject, TOKEN_AUDIENCE, SystemTime::now(), TOKEN_TTL);
                token.map_err(|e| e.to_string())
            }
            Self::Folder(folder) => {
                let file = folder.join(format!("{}_{}", proxy.namespace, proxy.pod));
                let token = std::fs::read_to_string(&file);
                let token = token.map_err(|e| format!("{}: {e}", file.display()))?;
                Ok(token.trim().to_owned())
            }
        }
    }
}

pub(crate) fn lock(ledger: &Shared) -> std::sync::MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until all are in sync, and says so.
async fn ledger_in_sync(ledger: &Shared, began: u64, say: &impl Fn(&str)) {
    let news = lock(ledger).news();
    loop {
        let heard = news.notified();
        let synced = lock(ledger).synced(began);
        if synced.synced == synced.proxies {
            say(&serde_json::to_string(&synced).unwrap_or_default());
            return;
        }
        heard.await;
    }
}
