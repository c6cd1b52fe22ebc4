//! Subscriptions beside an Address that is asked for by address or host, while the name of its service is unknown. ServicePolicy
//! and ServiceRoutes are asked for by the same question, so that all answers take one round trip. Resources that come count under
//! their own names, which are subscribed to from then on. Absence counts only if it was stated for the service's name, in the
//! version that also named the service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use voile_proto::type_url;
use voile_xds::client::Update;
use voile_xds::wire::SEARCH;

use crate::plan::CapturedDestination;
use crate::registry::Registry;

/// The types that are.
pub(crate) const ALONG: [&str; 2] = [type_url::SERVICE_ROUTES, type_url::SERVICE_POLICY];

/// Names, and the version of the mesh that they were said of.
type Said = (Arc<str>, BTreeSet<Arc<str>>);

/// One question, and its answers.
#[derive(Debug, Default)]
pub(in crate::registry) struct PathQuestion {
    /// The types of which it is asked still.
    asked: BTreeSet<&'static str>,
    /// Names of the services or workloads found.
    meant: Option<Said>,
    /// Names without a resource, by type.
    lacking: BTreeMap<&'static str, Said>,
}

impl PathQuestion {
    fn hear(&mut self, question: &Arc<str>, kind: &'static str, update: &Update) {
        let said = |names| (Arc::clone(&update.version), names);
        if kind == type_url::ADDRESS {
            let answers = update.added.iter();
            let answers = answers.filter(|one| one.aliases.contains(question));
            let meant: BTreeSet<_> = answers.map(|one| Arc::clone(&one.name)).collect();
            if !meant.is_empty() {
                self.meant = Some(said(meant));
            }
        } else if ALONG.contains(&kind) && update.removed.contains(question) {
            // A resource that was held may be removed for other reasons: the subscription ended, or the control plane does
            // not know these questions.
            let lacking = update.never_held.iter().cloned();
            match self.lacking.get_mut(kind) {
                Some((then, names)) if *then == update.version => names.extend(lacking),
                _ => drop(self.lacking.insert(kind, said(lacking.collect()))),
            }
        }
    }

    fn lacks(&self, kind: &str, name: &Arc<str>) -> bool {
        let (Some((then, meant)), Some((version, lacking))) = (&self.meant, self.lacking.get(kind))
        else {
            return false;
        };
        let of_one_moment = !version.is_empty() && then == version;
        of_one_moment && meant.contains(name) && lacking.contains(name)
    }
}

/// Returns true if the name is a question that Addresses answer, and no resource's own name.
pub(in crate::registry) fn is_question(name: &str) -> bool {
    name.starts_with('/') || name.starts_with(SEARCH)
}

impl Registry {
    /// Begins the subscriptions beside the Address of a target. Returns `true` if they are new, so that the
    /// caller must send them.
    #[must_use]
    pub(crate) fn begin_along(
        &mut self,
        target: &CapturedDestination,
        question: &Arc<str>,
    ) -> bool {
        if self.is_told(target) || self.along.contains_key(question) {
            return false;
        }
        let begun = PathQuestion {
            asked: ALONG.into(),
            ..PathQuestion::default()
        };
        self.along.insert(Arc::clone(question), begun);
        true
    }

    /// Questions that ended, by type: no target uses them any more, or the answer is known by its own name.
    pub(crate) fn told_along<'a>(
        &mut self,
        targets: impl Iterator<Item = (&'a CapturedDestination, Arc<str>)>,
    ) -> Vec<(&'static str, Arc<str>)> {
        let mut over = Vec::new();
        if self.along.is_empty() {
            return over;
        }
        let mut open = BTreeSet::new();
        for (target, question) in targets.filter(|(_, name)| self.along.contains_key(name)) {
            let untold = ALONG.into_iter();
            let untold = untold.filter(|kind| !self.is_told_by_name(kind, target));
            open.extend(untold.map(|kind| (kind, Arc::clone(&question))));
        }
        self.along.retain(|question, along| {
            along.asked.retain(|kind| {
                let ended = (*kind, Arc::clone(question));
                let is_open = open.contains(&ended);
                over.extend((!is_open).then_some(ended));
                is_open
            });
            !along.asked.is_empty()
        });
        over
    }

    /// Returns true if the resources of this type have answers under their own names.
    fn is_told_by_name(&self, kind: &'static str, target: &CapturedDestination) -> bool {
        let is_held = |name: &Arc<str>| match kind {
            type_url::SERVICE_POLICY => self.policies.contains_key(name),
            _ => {
                let routed = self.routes.contains_key(name);
                routed || self.held_back.contains_key(name) || !crate::registry::is_service(name)
            }
        };
        let is_told = |name: &Arc<str>| is_held(name) || self.is_absent(kind, name);
        self.is_told(target) && self.policies_wanted(target).iter().all(is_told)
    }

    /// Learns from a response which names the questions stand for, and which resources do not exist.
    pub(in crate::registry) fn hear_along(&mut self, kind: &'static str, update: &Update) {
        for (question, along) in &mut self.along {
            along.hear(question, kind, update);
        }
    }

    /// Returns true if an answer stated, beside the service, that no resource of this type exists for it.
    pub(in crate::registry) fn is_lacking(&self, kind: &str, name: &Arc<str>) -> bool {
        self.along.values().any(|along| along.lacks(kind, name))
    }

    /// Forgets that an answer stated the absence of a name.
    pub(in crate::registry) fn forget_lacking(&mut self, kind: &str, name: &Arc<str>) {
        let said = self.along.values_mut();
        for (_, lacking) in said.filter_map(|along| along.lacking.get_mut(kind)) {
            lacking.remove(name);
        }
    }
}
