//! Clusters kept for callers that refused routes. A caller that refuses listeners or routes still uses the older ones, which lead
//! to clusters that may be gone by now. The stream keeps all clusters the caller had at the refusal. They stay until the caller
//! has accepted a newer version of everything it refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use voile_proto::type_url;

/// Names of resources.
pub(super) type Names = BTreeSet<Arc<str>>;

/// See the module. Bounded by what there ever was at once: nothing is added for a name that is refused again.
#[derive(Debug, Clone, Default)]
pub(super) struct RefusalLog {
    /// Names in the response under way, by type.
    told: BTreeMap<Arc<str>, Names>,
    /// Refused names of which no newer version was accepted since, by type.
    refused: BTreeMap<Arc<str>, Names>,
    /// The clusters that stay.
    kept: Names,
}

impl RefusalLog {
    /// A response tells of these: they are there, or gone.
    pub(super) fn tell(&mut self, type_url: &Arc<str>, names: Names) {
        self.told.insert(type_url.clone(), names);
    }

    /// It was answered, by who has these clusters. True when nothing is refused any more, and something was.
    pub(super) fn answered<'a>(
        &mut self,
        type_url: &str,
        taken: bool,
        clusters: impl Iterator<Item = &'a Arc<str>>,
    ) -> bool {
        let Some((of, told)) = self.told.remove_entry(type_url) else {
            return false;
        };
        if taken {
            return self.end(type_url, |name| told.contains(name));
        }
        let refused = self.refused.entry(of).or_default();
        let before = refused.len();
        refused.extend(told);
        if refused.len() > before {
            self.kept.extend(clusters.cloned());
        }
        false
    }

    /// Of these nothing is refused any more. True when that is all of it, and something was.
    pub(super) fn end(&mut self, type_url: &str, is_over: impl Fn(&Arc<str>) -> bool) -> bool {
        let Some(refused) = self.refused.get_mut(type_url) else {
            return false;
        };
        refused.retain(|name| !is_over(name));
        if refused.is_empty() {
            self.refused.remove(type_url);
        }
        if !self.refused.is_empty() {
            return false;
        }
        self.kept.clear();
        true
    }
}

/// Removed names that a response does not report as removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeepRule<'a> {
    Nothing,
    /// These, for as long as something is in doubt.
    These(&'a Names),
    /// For now.
    Everything,
}

impl<'a> KeepRule<'a> {
    /// Of a type: everything, or what doubts keep.
    pub(super) fn of(everything: bool, type_url: &str, doubts: Option<&'a RefusalLog>) -> Self {
        let kept = doubts.map(|doubts| &doubts.kept);
        match kept.filter(|kept| !kept.is_empty() && *type_url == *type_url::CLUSTER) {
            _ if everything => Self::Everything,
            Some(kept) => Self::These(kept),
            None => Self::Nothing,
        }
    }

    pub(super) fn includes(self, name: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::These(names) => names.contains(name),
            Self::Everything => true,
        }
    }
}
