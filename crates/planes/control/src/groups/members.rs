//! Roll of the members that joined here: their streams, and the next action for each. No files, no clock: time is an
//! argument.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tonic::Status;

use super::claim::Claim;
use super::entry::Health;
use super::quota::Quotas;

/// Members that one control plane holds: each is a document of half a kilobyte that everybody reads.
pub(super) const MAX_MEMBERS: usize = 20_000;
/// Least time between two changes of a member's health. Each change is a push to all callers of the member. A member whose
/// health changes all the time says nothing.
pub(super) const CALM: Duration = Duration::from_secs(1);

/// `namespace/name` of a member.
pub(super) type Key = String;

/// Hears whether a member was taken in.
pub(super) type Answer = oneshot::Sender<Result<(), Status>>;

/// A workload that joined.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) claim: Claim,
    pub(super) health: Option<Health>,
    streams: BTreeSet<u64>,
    /// When its last stream ended.
    left: Option<Instant>,
    /// Until then no news of its health is written.
    calm: Option<Instant>,
    waiting: Vec<Answer>,
    /// The file that it has.
    pub(super) file: Option<String>,
}

/// Something to be done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MemberAction {
    /// Its document shall say what is known.
    Write(Key),
    /// It is gone, and so shall its file be.
    Remove(String),
    /// Look at what others wrote.
    Look,
}

/// See the module.
#[derive(Debug)]
pub(super) struct MemberList {
    grace: Duration,
    members: BTreeMap<Key, Member>,
    quotas: Quotas,
    streams: HashMap<u64, Key>,
    /// Those whose documents may not say what is known.
    changed: BTreeSet<Key>,
    look_at: Option<Instant>,
}

impl MemberList {
    pub(super) fn new(grace: Duration, now: Instant) -> Self {
        Self {
            grace,
            members: BTreeMap::new(),
            quotas: Quotas::default(),
            streams: HashMap::new(),
            changed: BTreeSet::new(),
            look_at: Some(now),
        }
    }

    pub(super) fn member(&self, key: &Key) -> Option<&Member> {
        self.members.get(key)
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// A stream says that it is a member's.
    pub(super) fn joins(&mut self, stream: u64, claim: Claim, answer: Answer, now: Instant) {
        let key = format!("{}/{}", claim.group.namespace, claim.member());
        if self.members.len() >= MAX_MEMBERS && !self.members.contains_key(&key) {
            // The caller that waits for the answer may be gone.
            let _ = answer.send(Err(Status::resource_exhausted(format!(
                "WorkloadGroup {}: {MAX_MEMBERS} workloads have joined at this control plane, the limit",
                claim.group
            ))));
            return;
        }
        let is_new = !self.members.contains_key(&key);
        if let Err(why) = self.quotas.join(&claim, is_new, now) {
            let refusal = format!("WorkloadGroup {}: {why}", claim.group);
            let _ = answer.send(Err(Status::resource_exhausted(refusal)));
            return;
        }
        let member = self.members.entry(key.clone()).or_insert_with(|| Member {
            claim: claim.clone(),
            health: None,
            streams: BTreeSet::new(),
            left: None,
            calm: None,
            waiting: Vec::new(),
            file: None,
        });
        member.claim = claim;
        member.left = None;
        member.calm = None;
        member.streams.insert(stream);
        member.waiting.push(answer);
        self.streams.insert(stream, key.clone());
        self.changed.insert(key);
    }

    /// A stream says how its application is. Of streams that are no member's it means nothing.
    pub(super) fn is(&mut self, stream: u64, health: Health) {
        let Some(key) = self.streams.get(&stream) else {
            return;
        };
        if let Some(member) = self.members.get_mut(key)
            && member.health.as_ref() != Some(&health)
        {
            member.health = Some(health);
            self.changed.insert(key.clone());
        }
    }

    /// A stream ended.
    pub(super) fn ended(&mut self, stream: u64, now: Instant) {
        let Some(key) = self.streams.remove(&stream) else {
            return;
        };
        if let Some(member) = self.members.get_mut(&key) {
            member.streams.remove(&stream);
            if member.streams.is_empty() {
                member.left = Some(now);
            }
        }
    }

    /// Groups may say something else now.
    pub(super) fn groups_changed(&mut self) {
        self.changed.extend(self.members.keys().cloned());
    }

    /// Other control planes may have written documents: schedules a look at the folder.
    pub(super) fn others_changed(&mut self, now: Instant) {
        let soon = now + self.grace;
        self.look_at = Some(self.look_at.map_or(soon, |at| at.min(soon)));
    }

    /// These files are there: whoever has a stream here and none of them needs one.
    pub(super) fn looked(&mut self, files: &BTreeSet<String>, next: Option<Instant>) {
        self.look_at = next;
        for (key, member) in &self.members {
            if member
                .file
                .as_ref()
                .is_some_and(|file| !files.contains(file))
            {
                self.changed.insert(key.clone());
            }
        }
    }

    /// The next action that is due now.
    pub(super) fn next(&mut self, now: Instant) -> Option<MemberAction> {
        let is_over = |member: &Member| member.left.is_some_and(|left| left + self.grace <= now);
        let over = self.members.iter().find(|(_, member)| is_over(member));
        if let Some(key) = over.map(|(key, _)| key.clone()) {
            self.changed.remove(&key);
            let member = self.members.remove(&key);
            member
                .iter()
                .for_each(|member| self.quotas.leave(&member.claim));
            if let Some(file) = member.and_then(|member| member.file) {
                return Some(MemberAction::Remove(file));
            }
            return self.next(now);
        }
        let calm = |key: &Key| {
            let calm = self.members.get(key).and_then(|member| member.calm);
            calm.is_none_or(|until| until <= now)
        };
        if let Some(key) = self.changed.iter().find(|key| calm(key)).cloned() {
            self.changed.remove(&key);
            return Some(MemberAction::Write(key));
        }
        self.look_at
            .take_if(|at| *at <= now)
            .map(|_| MemberAction::Look)
    }

    /// When something is to be done next, if nobody says anything before.
    pub(super) fn due(&self) -> Option<Instant> {
        let left = self.members.values();
        let left = left.filter_map(|member| Some(member.left? + self.grace));
        let changed = self.changed.iter();
        let calm = changed.filter_map(|key| self.members.get(key)?.calm);
        left.chain(calm).chain(self.look_at).min()
    }

    /// Nothing will be done any more: who waits hears that nobody answers.
    pub(super) fn give_up(&mut self) {
        self.members
            .values_mut()
            .for_each(|member| member.waiting.clear());
    }

    /// A member's document was written, to this file, or taken away; or why not.
    pub(super) fn wrote(&mut self, key: &Key, wrote: Result<Option<String>, Status>, now: Instant) {
        let Some(member) = self.members.get_mut(key) else {
            return;
        };
        let answers = std::mem::take(&mut member.waiting);
        let answer = wrote.as_ref().map(drop).map_err(Status::clone);
        let is_new = !answers.is_empty();
        for waiting in answers {
            let _ = waiting.send(answer.clone());
        }
        match wrote {
            Ok(file) => {
                member.file = file;
                member.calm = Some(now + CALM);
            }
            // A refused member belongs to no one: drops it and its streams.
            Err(_) if is_new && member.file.is_none() => {
                let member = self.members.remove(key);
                member
                    .iter()
                    .for_each(|member| self.quotas.leave(&member.claim));
                let streams = member.into_iter().flat_map(|member| member.streams);
                streams.for_each(|stream| drop(self.streams.remove(&stream)));
            }
            // Once more, later.
            Err(_) => {
                member.calm = Some(now + self.grace.max(CALM));
                self.changed.insert(key.clone());
            }
        }
    }
}
