//! Waiting for the word on a name from whoever knows more.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// How long to wait for the word on a name that nobody asked for before. Clients ask again after 5 s.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is `known`, which is looked at again whenever something was `heard`. None when nothing is in time, or nobody is there to say it.
pub async fn told<T>(
    heard: &Notify,
    known: impl Fn() -> Option<T>,
    is_lost: impl Fn() -> bool,
) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let news = heard.notified();
        tokio::pin!(news);
        // What is heard from here on wakes us, also while we look.
        news.as_mut().enable();
        if let Some(known) = known() {
            return Some(known);
        }
        if is_lost() || timeout_at(deadline, news).await.is_err() {
            return None;
        }
    }
}
