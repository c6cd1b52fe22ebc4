//! Which control plane to ask, where there are several: they are equals, so each proxy begins with any of them, leaves one that
//! fails for another, and draws anew when one sends it away for its age. So a crowd spreads, survives the end of one, and finds a
//! newcomer within the age of a connection, without anybody who counts.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

/// A way to one control plane: an address as written, and one of those that its name stands for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ControlPlaneReplica {
    /// `https://host:port`, as written.
    pub(super) address: String,
    /// Of a name; a written address needs none.
    pub(super) resolved: Option<SocketAddr>,
}

impl fmt::Display for ControlPlaneReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.resolved {
            None => f.write_str(&self.address),
            Some(resolved) => write!(f, "{} ({resolved})", self.address),
        }
    }
}

impl ControlPlaneReplica {
    /// Its address, then the others of the same name.
    pub(super) fn addresses(&self, ways: &[Self]) -> Vec<SocketAddr> {
        let same = |way: &&Self| way.address == self.address && way.resolved != self.resolved;
        let others = ways.iter().filter(same).filter_map(|way| way.resolved);
        self.resolved.into_iter().chain(others).collect()
    }
}

/// State of the replicas.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    /// Those that failed since one was last left in good order, or since all had failed.
    failed: BTreeSet<ControlPlaneReplica>,
    /// The one that is asked.
    current: Option<ControlPlaneReplica>,
    /// Ways that have not failed and are not asked.
    others: usize,
}

impl Replicas {
    /// Draws one of those that have not failed; one of all, when all have. `random` is 0 to 1.
    pub(super) fn draw(
        &mut self,
        ways: &[ControlPlaneReplica],
        random: f64,
    ) -> Option<ControlPlaneReplica> {
        // Forgets failed addresses that the name no longer resolves to.
        self.failed.retain(|way| ways.contains(way));
        if ways.iter().all(|way| self.failed.contains(way)) {
            self.failed.clear();
        }
        let good: Vec<&ControlPlaneReplica> = ways
            .iter()
            .filter(|way| !self.failed.contains(*way))
            .collect();
        let drawn = (random.clamp(0.0, 1.0) * good.len() as f64) as usize;
        let way = good.get(drawn.min(good.len().saturating_sub(1)))?;
        self.others = good.len() - 1;
        self.current = Some((*way).clone());
        self.current.clone()
    }

    /// Another than the one that was drawn has answered.
    pub(super) fn answered(&mut self, way: ControlPlaneReplica) {
        self.current = Some(way);
    }

    /// The one that is asked fails.
    pub(super) fn failed(&mut self) {
        self.failed.extend(self.current.take());
    }

    /// The one that is asked sent us away in good order: whoever failed before may be well by now.
    pub(super) fn sent_away(&mut self) {
        self.current = None;
        self.failed.clear();
    }

    /// Returns true if there is another address to try.
    pub(super) fn has_others(&self) -> bool {
        self.others > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(names: &[&str]) -> Vec<ControlPlaneReplica> {
        let way = |name: &&str| ControlPlaneReplica {
            address: (*name).to_owned(),
            resolved: None,
        };
        names.iter().map(way).collect()
    }

    fn drawn(replicas: &mut Replicas, ways: &[ControlPlaneReplica], random: f64) -> String {
        replicas.draw(ways, random).expect("a way").address
    }

    #[test]
    fn chance_decides_who_is_first_and_everybody_can_be() {
        let ways = ways(&["a", "b", "c", "d"]);
        let first = |random| drawn(&mut Replicas::default(), &ways, random);
        let all = [0.0, 0.25, 0.5, 0.75, 1.0].map(first);
        assert_eq!(all, ["a", "b", "c", "d", "d"]);
        assert_eq!(Replicas::default().draw(&[], 0.5), None);
    }

    #[test]
    fn each_is_tried_before_one_is_tried_again() {
        let ways = ways(&["a", "b", "c"]);
        let mut replicas = Replicas::default();
        for round in 0..3 {
            let mut tried = BTreeSet::new();
            for left in (0..3).rev() {
                tried.insert(drawn(&mut replicas, &ways, 0.6));
                assert_eq!(replicas.has_others(), left > 0, "round {round}");
                replicas.failed();
            }
            assert_eq!(tried.len(), 3, "round {round}");
        }
    }

    #[test]
    fn one_that_failed_is_passed_over_until_another_sends_us_away() {
        let first = ways(&["a", "b"]);
        let mut replicas = Replicas::default();
        assert_eq!(drawn(&mut replicas, &first, 0.0), "a");
        replicas.failed();
        assert_eq!(drawn(&mut replicas, &first, 0.0), "b");
        replicas.sent_away();
        assert_eq!(drawn(&mut replicas, &first, 0.0), "a", "it may be back");
        replicas.failed();
        // A name that stands for something else now begins anew.
        let others = ways(&["c", "d"]);
        assert_eq!(drawn(&mut replicas, &others, 0.9), "d");
        assert!(replicas.failed.is_empty());
    }
}
