//! Waits for the first answer on a name.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Time to wait for the first answer on a name. Clients ask again after 5 s.
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits for `known`, which is evaluated again whenever something was `heard`. Returns None when it has no value in
/// time, or the source is lost.
pub async fn told<T>(
    heard: &Notify,
    known: impl Fn() -> Option<T>,
    is_lost: impl Fn() -> bool,
) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let news = heard.notified();
        tokio::pin!(news);
        // A notification from here on wakes this task, also during the evaluation.
        news.as_mut().enable();
        if let Some(known) = known() {
            return Some(known);
        }
        if is_lost() || timeout_at(deadline, news).await.is_err() {
            return None;
        }
    }
}
