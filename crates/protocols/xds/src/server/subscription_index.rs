//! Index of streams by the names that they depend on, so that a change wakes the streams concerned and no others. A stream
//! registers the names it asked for and the names they resolved to. A publisher lists the names that changed.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Instant;

use tokio::sync::{Notify, oneshot};

use super::by_type::ByType;
use super::names::Names;
use super::stream::SentResource;

/// Changes between two snapshots, by the names that streams asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedNames {
    everything: bool,
    types: BTreeSet<&'static str>,
    names: BTreeMap<&'static str, HashSet<Arc<str>>>,
    /// When the sources changed.
    at: Option<Instant>,
}

/// Names of this "type" are callers, as `Snapshot::known_as` calls them.
pub const CALLER: &str = "";
/// People who ask at once what one stream's caller holds.
const MAX_QUESTIONS: usize = 16;
/// Publications that wait to be told; more are one that concerns everybody. They wait for the time in which a thread turns round.
const MAX_ANNOUNCED: usize = 64;
/// A stream that asked for everything of a type.
const STAR: &str = "*";

impl ChangedNames {
    /// Everybody must look again.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            everything: true,
            ..Self::default()
        }
    }

    /// Says when the sources changed.
    #[must_use]
    pub fn at(self, at: Option<Instant>) -> Self {
        Self { at, ..self }
    }

    /// Every stream that asked for this type must look again.
    pub fn touch_type(&mut self, type_url: &'static str) {
        self.types.insert(type_url);
    }

    /// Every stream that asked for this name, or whose request resolved to it, must look again.
    pub fn touch(&mut self, type_url: &'static str, name: Arc<str>) {
        self.names.entry(type_url).or_default().insert(name);
    }

    /// Returns true if a stream that asked for this name, or whose request resolved to it, must look again.
    #[must_use]
    pub fn concerns(&self, type_url: &str, name: &str) -> bool {
        let named = || {
            self.names
                .get(type_url)
                .is_some_and(|names| names.contains(name))
        };
        self.everything || self.types.contains(type_url) || named()
    }

    /// Number of changed names, by type.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, usize)> {
        let real = self.names.iter().filter(|(of, _)| **of != CALLER);
        real.map(|(of, names)| (*of, names.len()))
    }

    /// Nobody need look.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.everything && self.types.is_empty() && self.names.is_empty()
    }
}

/// Names that a stream must look at again.
#[derive(Debug, Default)]
pub(super) struct StreamNews {
    /// There is something.
    any: bool,
    pub(super) everything: bool,
    /// By type the names it is known by; none: all of them. Types are few.
    pub(super) types: Vec<(Arc<str>, Option<Names>)>,
    /// When the sources changed, for the oldest of it.
    pub(super) at: Option<Instant>,
    /// Somebody wants to know what the stream's caller holds.
    pub(super) questions: Vec<oneshot::Sender<Vec<SentResource>>>,
}

impl StreamNews {
    fn happened(&mut self, at: Option<Instant>) {
        self.at = earlier(self.at, at);
    }

    fn add(&mut self, type_url: &Arc<str>, name: Option<&Arc<str>>) {
        let Some((_, names)) = self.types.iter_mut().find(|(of, _)| of == type_url) else {
            let names = name.cloned().map(Names::One);
            // Mostly no other follows.
            self.types.reserve_exact(1);
            self.types.push((type_url.clone(), names));
            return;
        };
        match (name, &mut *names) {
            (Some(name), Some(names)) => names.insert(name.clone()),
            (None, _) => *names = None,
            (Some(_), None) => {}
        }
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[derive(Debug, Default)]
struct Mailbox {
    /// Waker of the task that serves the stream.
    waker: Option<Waker>,
    news: StreamNews,
    /// Its caller has perhaps not been told of all that was published.
    busy: bool,
}

impl Mailbox {
    /// Wakes whoever serves the stream; adds it to those who are `busy`.
    fn ring(&mut self, busy: &mut usize) {
        self.news.any = true;
        *busy += usize::from(!std::mem::replace(&mut self.busy, true));
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

/// Numbers of streams are ours and follow each other: nobody can choose them so that they collide. Those that follow each other lie
/// next to each other, so that streams are woken in the order in which they came: what was made together is read together.
#[derive(Debug, Default, Clone, Copy)]
struct ByNumber(u64);

/// Position of the seven bits by which hash tables tell neighbouring entries apart.
const TAG: u32 = 57;

impl Hasher for ByNumber {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let number = self.0.rotate_left(8) ^ number;
        self.0 = number ^ (number << TAG);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Numbered = BuildHasherDefault<ByNumber>;
type Ids = HashSet<u64, Numbered>;

#[derive(Debug, Default)]
struct InterestInner {
    streams: HashMap<u64, Mailbox, Numbered>,
    /// Streams by type and name.
    interested: HashMap<Arc<str>, HashMap<Arc<str>, Ids>>,
    /// Streams that are busy.
    busy: usize,
}

/// See the module. One for all streams of a control plane.
#[derive(Debug, Default)]
pub struct SubscriptionIndex {
    inner: Mutex<InterestInner>,
    /// Changes that `herald` has not delivered yet.
    announced: Mutex<Vec<ChangedNames>>,
    bell: Notify,
    /// Publications that are not announced yet, and those that the herald is telling.
    publishing: AtomicUsize,
}

/// A publication is under way until this is dropped.
#[derive(Debug)]
pub struct Publishing<'a>(&'a AtomicUsize);

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl SubscriptionIndex {
    fn lock(&self) -> MutexGuard<'_, InterestInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announced(&self) -> MutexGuard<'_, Vec<ChangedNames>> {
        self.announced
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A publication begins: until it is announced and this is dropped nobody is up to date.
    pub fn publishing(&self) -> Publishing<'_> {
        self.publishing.fetch_add(1, Ordering::SeqCst);
        Publishing(&self.publishing)
    }

    /// Returns true if every stream has looked at the last publication and has sent all that is due.
    pub fn is_quiet(&self) -> bool {
        // In the order in which news travels, so that none is passed on behind our back.
        self.publishing.load(Ordering::SeqCst) == 0
            && self.announced().is_empty()
            && self.publishing.load(Ordering::SeqCst) == 0
            && self.lock().busy == 0
    }

    /// Has whom it concerns woken by `herald`. To be called when the snapshot is there for all to see.
    pub fn announce(&self, touched: ChangedNames) {
        let mut announced = self.announced();
        if announced.len() >= MAX_ANNOUNCED {
            let at = announced.iter().map(|one| one.at).fold(None, earlier);
            *announced = vec![ChangedNames::everything().at(at)];
        }
        announced.push(touched);
        drop(announced);
        self.bell.notify_one();
    }

    /// Tells what is announced, for ever, on the thread that serves the streams: a thread that wakes thousands of another's asks the
    /// kernel to do so each time.
    pub async fn herald(&self) {
        loop {
            self.bell.notified().await;
            let (announced, _telling) = {
                let mut announced = self.announced();
                (std::mem::take(&mut *announced), self.publishing())
            };
            announced.iter().for_each(|touched| self.publish(touched));
        }
    }

    /// Wakes whom it concerns, at once. To be called when the snapshot is there for all to see.
    pub fn publish(&self, touched: &ChangedNames) {
        let InterestInner {
            streams,
            interested,
            busy,
        } = &mut *self.lock();
        if touched.everything {
            for mailbox in streams.values_mut() {
                mailbox.news.everything = true;
                mailbox.news.happened(touched.at);
                mailbox.ring(busy);
            }
            return;
        }
        let mut tell = |type_url: &Arc<str>, name: Option<&Arc<str>>, ids: &Ids| {
            for id in ids {
                if let Some(mailbox) = streams.get_mut(id) {
                    mailbox.news.add(type_url, name);
                    mailbox.news.happened(touched.at);
                    mailbox.ring(busy);
                }
            }
        };
        for (type_url, by_name) in &*interested {
            if touched.types.contains(&**type_url) {
                by_name.values().for_each(|ids| tell(type_url, None, ids));
                continue;
            }
            let Some(names) = touched.names.get(&**type_url) else {
                continue;
            };
            for name in names {
                let ids = by_name.get_key_value(name).into_iter();
                ids.for_each(|(name, ids)| tell(type_url, Some(name), ids));
            }
            let all = by_name.get(STAR).into_iter();
            all.for_each(|ids| tell(type_url, None, ids));
        }
    }

    /// Asks a stream what its caller holds; none when there is no such stream. One that ends meanwhile does not answer.
    pub fn ask(&self, id: StreamId) -> Option<oneshot::Receiver<Vec<SentResource>>> {
        let InterestInner { streams, busy, .. } = &mut *self.lock();
        let mailbox = streams.get_mut(&id.0)?;
        // Of several who ask at once all get the same answer; more than a few are none of ours.
        if mailbox.news.questions.len() >= MAX_QUESTIONS {
            return None;
        }
        let (answer, answered) = oneshot::channel();
        mailbox.news.questions.push(answer);
        mailbox.ring(busy);
        Some(answered)
    }

    /// A stream that wants to be woken.
    pub(super) fn join(self: &Arc<Self>, id: u64) -> Membership {
        self.lock().streams.insert(id, Mailbox::default());
        Membership {
            interest: self.clone(),
            id,
            known: ByType::default(),
        }
    }
}

/// One stream's place. Dropping it forgets the stream.
#[derive(Debug)]
pub(super) struct Membership {
    interest: Arc<SubscriptionIndex>,
    id: u64,
    /// Names that the stream is registered by.
    known: ByType<BTreeSet<Arc<str>>>,
}

impl Membership {
    /// News since the last call, if there is any. Wakes the task when there is more.
    pub(super) fn news(&self, context: &Context<'_>) -> Option<StreamNews> {
        let mut inner = self.interest.lock();
        let mailbox = inner.streams.get_mut(&self.id)?;
        match &mut mailbox.waker {
            Some(waker) => waker.clone_from(context.waker()),
            None => mailbox.waker = Some(context.waker().clone()),
        }
        mailbox.news.any.then(|| std::mem::take(&mut mailbox.news))
    }

    /// The caller is about to be told what was published.
    pub(super) fn begin(&self) {
        let InterestInner { streams, busy, .. } = &mut *self.interest.lock();
        if let Some(mailbox) = streams.get_mut(&self.id) {
            *busy += usize::from(!std::mem::replace(&mut mailbox.busy, true));
        }
    }

    /// The caller was sent the publication, unless more news came meanwhile. Returns true if this was the last busy stream.
    pub(super) fn done(&self) -> bool {
        let InterestInner { streams, busy, .. } = &mut *self.interest.lock();
        match streams.get_mut(&self.id) {
            Some(mailbox) if mailbox.busy && !mailbox.news.any => {
                mailbox.busy = false;
                *busy -= 1;
                *busy == 0
            }
            _ => false,
        }
    }

    /// Says what the stream is to be known by; whether there is something new among it.
    pub(super) fn know(&mut self, type_url: &Arc<str>, names: &BTreeSet<Arc<str>>) -> bool {
        let known = self.known.of(type_url);
        if known == names {
            return false;
        }
        let mut inner = self.interest.lock();
        let by_name = inner.interested.entry(type_url.clone()).or_default();
        let mut new = BTreeSet::new();
        let mut more = false;
        for name in names {
            if let Some(kept) = known.take(name) {
                new.insert(kept);
                continue;
            }
            more = true;
            // All streams share one copy of a name.
            let name = match by_name.get_key_value(name) {
                Some((shared, _)) => shared.clone(),
                None => name.clone(),
            };
            by_name.entry(name.clone()).or_default().insert(self.id);
            new.insert(name);
        }
        for name in std::mem::replace(known, new) {
            leave(by_name, name, self.id);
        }
        more
    }
}

fn leave(by_name: &mut HashMap<Arc<str>, Ids>, name: Arc<str>, id: u64) {
    if let Entry::Occupied(mut ids) = by_name.entry(name) {
        ids.get_mut().remove(&id);
        if ids.get().is_empty() {
            ids.remove();
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut inner = self.interest.lock();
        let left = inner.streams.remove(&self.id);
        inner.busy -= usize::from(left.is_some_and(|mailbox| mailbox.busy));
        for (type_url, names) in self.known.iter_mut() {
            if let Some(by_name) = inner.interested.get_mut(type_url) {
                for name in std::mem::take(names) {
                    leave(by_name, name, self.id);
                }
            }
        }
    }
}

/// Number of a stream, unique in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    const TYPE: &str = "thing";

    fn known(names: &[&str]) -> BTreeSet<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    fn told(member: &Membership) -> String {
        let context = Context::from_waker(Waker::noop());
        match member.news(&context) {
            None => String::new(),
            Some(news) if news.everything => "everything".to_owned(),
            Some(news) => {
                let types: Vec<&str> = news.types.iter().map(|(of, _)| &**of).collect();
                types.join(",")
            }
        }
    }

    #[test]
    fn a_change_is_told_to_who_asked_and_to_nobody_else() {
        let interest = Arc::new(SubscriptionIndex::default());
        let of: Arc<str> = TYPE.into();
        let mut one = interest.join(1);
        let mut all = interest.join(2);
        let other = interest.join(3);
        assert!(one.know(&of, &known(&["a", "b"])));
        assert!(!one.know(&of, &known(&["a", "b"])), "nothing new");
        assert!(all.know(&of, &known(&["*"])));
        let touch = |name: &str| {
            let mut touched = ChangedNames::default();
            touched.touch(TYPE, name.into());
            interest.publish(&touched);
        };
        for (name, expected) in [("a", TYPE), ("c", "")] {
            touch(name);
            assert_eq!((told(&one).as_str(), told(&all).as_str()), (expected, TYPE));
            assert_eq!(told(&other), "");
        }
        assert!(!one.know(&of, &known(&["b"])), "less is not more");
        touch("a");
        assert_eq!(told(&one), "");
        assert!(one.know(&of, &known(&["b", "c"])));
        touch("c");
        assert_eq!(told(&one), TYPE);
        let mut touched = ChangedNames::default();
        touched.touch_type(TYPE);
        interest.publish(&touched);
        assert_eq!((told(&one).as_str(), told(&other).as_str()), (TYPE, ""));
        interest.publish(&ChangedNames::everything());
        assert_eq!(told(&other), "everything");
        drop((one, all, other));
        let inner = interest.lock();
        assert!(inner.streams.is_empty());
        assert!(inner.interested.values().all(HashMap::is_empty));
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn what_is_announced_is_told_by_the_herald_and_a_flood_concerns_everybody() {
        let interest = Arc::new(SubscriptionIndex::default());
        let (mut one, other) = (interest.join(1), interest.join(2));
        one.know(&TYPE.into(), &known(&["a"]));
        let woken = Arc::new(CountingWaker::default());
        let waker = Waker::from(woken.clone());
        assert!(one.news(&Context::from_waker(&waker)).is_none());
        let mut touched = ChangedNames::default();
        touched.touch(TYPE, "a".into());
        for (announced, expected) in [
            (1, (TYPE, "")),
            (MAX_ANNOUNCED + 1, ("everything", "everything")),
        ] {
            for _ in 0..announced {
                interest.announce(touched.clone());
            }
            assert_eq!(told(&one), "", "nobody has told it");
            let mut herald = pin!(interest.herald());
            let told_all = herald
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            assert!(told_all.is_pending());
            assert_eq!((told(&one).as_str(), told(&other).as_str()), expected);
        }
        assert_eq!(
            woken.0.load(Ordering::Relaxed),
            0,
            "another waker took its place"
        );
        assert!(one.news(&Context::from_waker(&waker)).is_none());
        interest.publish(&touched);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    }
}
