//! Paces the making of views: a view is made at once after a response. With a subscription to everything, views take
//! only a small part of the time, however large the mesh is and however often it changes. Responses that arrive in
//! the pause are in the next view.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use voile_proto::type_url;
use voile_xds::client::{Rejection, Update};

use crate::registry::{Registry, RegistryView};

/// So many times as long as it took to make a view none is made.
const REST: u32 = 9;

/// The longest that an address waits for the next view.
const MAX_REST: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug)]
pub(crate) struct ViewUpdates {
    registry: Arc<Mutex<Registry>>,
    publish: watch::Sender<Arc<RegistryView>>,
    /// Told after every response that is in force.
    heard: Arc<Notify>,
    pace: Mutex<UpdatePace>,
}

#[derive(Debug, Default)]
struct UpdatePace {
    /// When the next view may be made.
    next: Option<Instant>,
    /// Something came that no view has.
    waits: bool,
}

impl ViewUpdates {
    pub(crate) fn new(
        registry: Arc<Mutex<Registry>>,
        publish: watch::Sender<Arc<RegistryView>>,
        heard: Arc<Notify>,
    ) -> Arc<Self> {
        Arc::new(Self {
            registry,
            publish,
            heard,
            pace: Mutex::default(),
        })
    }

    /// Applies a response; returns the resources that cannot be used.
    pub(crate) fn take(self: &Arc<Self>, update: &Update) -> Vec<Rejection> {
        let (in_vain, may_rest, rejections) = {
            let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
            let in_vain = registry.is_of_searches(update);
            // Policies never wait: once a policy is acknowledged, it is in force. Earlier resources take effect with
            // it.
            let may_rest = registry.is_told_all() && *update.type_url == *type_url::ADDRESS;
            (in_vain, may_rest, registry.apply(update))
        };
        if in_vain {
            self.heard.notify_waiters();
        } else if !may_rest || !self.rest() {
            self.tell();
        }
        rejections
    }

    /// Returns true if it is too early for another view. The next view is then made once the pause ends.
    fn rest(self: &Arc<Self>) -> bool {
        let mut pace = self.pace();
        let Some(next) = pace.next.filter(|next| Instant::now() < *next) else {
            return false;
        };
        if !std::mem::replace(&mut pace.waits, true) {
            let news = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep_until(next.into()).await;
                if news.pace().waits {
                    news.tell();
                }
            });
        }
        true
    }

    /// Makes a view of the current state, and publishes it.
    fn tell(&self) {
        let began = Instant::now();
        self.pace().waits = false;
        let view = {
            let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
            registry.view()
        };
        self.publish.send_replace(Arc::new(view));
        self.heard.notify_waiters();
        let now = Instant::now();
        self.pace().next = Some(now + rest_after(now - began));
    }

    fn pace(&self) -> std::sync::MutexGuard<'_, UpdatePace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the pause after a view that took `took`.
fn rest_after(took: Duration) -> Duration {
    took.saturating_mul(REST).min(MAX_REST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Subscription;
    use crate::registry::tests::{told, workload};

    /// Of so many workloads a view takes long enough to be seen.
    const MANY: u8 = 200;

    #[tokio::test]
    async fn of_many_responses_in_a_row_few_views_are_made_and_the_last_has_all() {
        let registry = Registry::subscribed_to(Subscription::All);
        let (publish, mut view) = watch::channel(Arc::new(RegistryView::default()));
        let news = ViewUpdates::new(
            Arc::new(Mutex::new(registry)),
            publish,
            Arc::new(Notify::new()),
        );
        let mut made = 0;
        for last in 0..MANY {
            let name = format!("pod-{last}");
            let rejections = news.take(&told(vec![workload(&name, last)]));
            assert!(rejections.is_empty(), "{rejections:?}");
            if view.has_changed().expect("it is published") {
                drop(view.borrow_and_update());
                made += 1;
            }
            if last == 0 {
                assert_eq!(made, 1, "the first is told at once");
            }
        }
        assert!(made < MANY / 2, "{made} views were made in a moment");
        let all = view.wait_for(|view| view.workloads().len() == usize::from(MANY));
        all.await.expect("it is published");
    }

    #[test]
    fn the_rest_grows_with_the_mesh_and_has_an_end() {
        for (took, rest) in [(0, 0), (1, 9), (20, 180), (1_000, 500)] {
            let rested = rest_after(Duration::from_millis(took));
            assert_eq!(rested, Duration::from_millis(rest), "{took} ms");
        }
    }
}
