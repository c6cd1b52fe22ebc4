//! Sidecars whose pages somebody watches, for a variant that says so: the figures that a dashboard shows, or requests as they end. A
//! thread for each sidecar asks as `voile dashboard` and `voile tap` do.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use voile_pages::Answer;

use crate::definition::WatchedPage;

/// Time between two looks at the figures: a twentieth of a dashboard's two seconds, so that their cost rises above the noise.
const FIGURES_INTERVAL: Duration = Duration::from_millis(100);
/// Time in which records of requests gather.
const GATHER: Duration = Duration::from_millis(100);
/// Longest time that a question for records waits, in seconds.
const WAIT_SECONDS: u64 = 1;
/// Longest silence of a sidecar, and largest page in bytes.
const PATIENCE: Duration = Duration::from_secs(5);
const MAX_PAGE_BYTES: usize = 16 * 1024 * 1024;

/// Watches one sidecar until it is dropped.
#[derive(Debug)]
pub(super) struct PageWatcher {
    page: WatchedPage,
    shared: Arc<WatcherState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct WatcherState {
    stop: AtomicBool,
    /// Pages or records that it was shown.
    shown: AtomicU64,
}

impl PageWatcher {
    pub(super) fn start(page: WatchedPage, admin: SocketAddr) -> Result<Self, String> {
        let shared = Arc::new(WatcherState::default());
        let state = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("watcher".to_owned())
            .spawn(move || watch(page, admin, &state))
            .map_err(|error| format!("cannot start a watcher: {error}"))?;
        Ok(Self {
            page,
            shared,
            thread: Some(thread),
        })
    }

    /// The page that it watches, and how many pages or records it was shown.
    pub(super) fn shown(&self) -> (WatchedPage, u64) {
        (self.page, self.shared.shown.load(Ordering::Relaxed))
    }
}

impl Drop for PageWatcher {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It has no result.
            let _ = thread.join();
        }
    }
}

fn watch(page: WatchedPage, admin: SocketAddr, state: &WatcherState) {
    let mut after = 0;
    while !state.stop.load(Ordering::Relaxed) {
        let (shown, pause) = match page {
            WatchedPage::Figures => {
                let page = ask(admin, "GET", "/stats/prometheus");
                (page.map_or(0, |_| 1), FIGURES_INTERVAL)
            }
            WatchedPage::Requests => {
                let path = format!("/tap?session=1&after={after}&wait={WAIT_SECONDS}");
                let page = ask(admin, "POST", &path).ok();
                let page = page.and_then(|body| serde_json::from_slice::<Value>(&body).ok());
                let page = page.unwrap_or_default();
                after = page["next"].as_u64().unwrap_or(after);
                (page["records"].as_array().map_or(0, Vec::len), GATHER)
            }
        };
        state.shown.fetch_add(shown as u64, Ordering::Relaxed);
        std::thread::park_timeout(pause);
    }
}

fn ask(admin: SocketAddr, method: &str, path: &str) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&admin, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )?;
    let answer = Answer::read(&mut stream, MAX_PAGE_BYTES)?;
    match answer.status() {
        200 => Ok(answer.into_body()),
        status => Err(io::Error::other(format!("{path}: status {status}"))),
    }
}
