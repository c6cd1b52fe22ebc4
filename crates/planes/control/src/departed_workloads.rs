//! Workloads that left the mesh: their proxies get time to finish, then the mesh is none of their business, however long
//! their tokens and certificates are good for. It is remembered in the state directory with who was there, since whoever
//! holds a certificate renews it by itself: one restart of the control plane, and a workload that left would stay for ever.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use voile_model::{Identity, Namespace};

use crate::snapshot::MeshSnapshot;
use crate::state_file::StateFile;

/// Most that are remembered of each kind; the first to leave is forgotten first.
const MAX_DEPARTED: usize = 10_000;

/// Name in the state directory.
const FILE: &str = "workloads.json";

type Pod = (Namespace, Arc<str>);

/// Workloads in the mesh: the pods, and the identities that at least one workload has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MeshMembers {
    pods: HashSet<Pod>,
    identities: HashSet<Identity>,
}

impl MeshMembers {
    pub(crate) fn of(snapshot: &MeshSnapshot) -> Self {
        let all = || snapshot.configurations.values();
        Self {
            pods: all()
                .filter(|private| !private.joined)
                .map(|private| (private.owner.namespace.clone(), private.pod.clone()))
                .collect(),
            // An identity that a WorkloadGroup invites has not left: a workload may join with it at any time.
            identities: all()
                .map(|private| &private.owner)
                .chain(&*snapshot.invited)
                .cloned()
                .collect(),
        }
    }
}

/// See the module. Each with the moment at which its streams end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DepartedWorkloads {
    pods: HashMap<Pod, Instant>,
    /// Identities that no workload has any more.
    identities: HashMap<Identity, Instant>,
}

impl DepartedWorkloads {
    /// Computes the departed workloads after the mesh changed from `before` to `after`.
    pub(crate) fn follow(&self, before: &MeshMembers, after: &MeshMembers, end: Instant) -> Self {
        Self {
            pods: gone(&self.pods, &before.pods, &after.pods, end),
            identities: gone(&self.identities, &before.identities, &after.identities, end),
        }
    }

    /// Returns true if an identity belonged to the mesh and no workload has it any more.
    pub(crate) fn includes(&self, identity: &Identity) -> bool {
        self.identities.contains_key(identity)
    }

    /// Name under which streams of a caller are notified when its `farewell` changes.
    pub(crate) fn called(caller: &voile_identity::AuthenticatedCaller) -> Arc<str> {
        match &caller.pod {
            Some(pod) => called_pod(&caller.identity.namespace, pod),
            None => caller.identity.to_string().into(),
        }
    }

    /// Names of the callers that the two registers treat differently.
    pub(crate) fn differences(&self, other: &Self) -> Vec<Arc<str>> {
        let pods = differing(&self.pods, &other.pods);
        let identities = differing(&self.identities, &other.identities);
        pods.map(|(namespace, pod)| called_pod(namespace, pod))
            .chain(identities.map(|identity| identity.to_string().into()))
            .collect()
    }

    /// When this caller's streams end, if it left.
    pub(crate) fn farewell(&self, caller: &voile_identity::AuthenticatedCaller) -> Option<Instant> {
        let end = match &caller.pod {
            Some(pod) => {
                let key = (caller.identity.namespace.clone(), pod.as_str().into());
                self.pods.get(&key)
            }
            None => self.identities.get(&caller.identity),
        };
        end.copied()
    }
}

fn called_pod(namespace: &Namespace, pod: &str) -> Arc<str> {
    format!("{namespace}/{pod}").into()
}

fn differing<'a, K: Eq + Hash>(
    one: &'a HashMap<K, Instant>,
    other: &'a HashMap<K, Instant>,
) -> impl Iterator<Item = &'a K> {
    let changed = one.iter().filter(|(key, end)| other.get(key) != Some(end));
    let new = other.keys().filter(|key| !one.contains_key(key));
    changed.map(|(key, _)| key).chain(new)
}

fn gone<K: Clone + Eq + Hash>(
    known: &HashMap<K, Instant>,
    before: &HashSet<K>,
    after: &HashSet<K>,
    end: Instant,
) -> HashMap<K, Instant> {
    let mut all = known.clone();
    for key in before {
        all.entry(key.clone()).or_insert(end);
    }
    all.retain(|key, _| !after.contains(key));
    if all.len() > MAX_DEPARTED {
        let mut ends: Vec<Instant> = all.values().copied().collect();
        ends.sort_unstable();
        let oldest = ends[all.len() - MAX_DEPARTED];
        all.retain(|_, end| *end >= oldest);
    }
    all
}

/// Content of the file: each name, and for each departed name the second since 1970 at which its streams end.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    /// `namespace/name`.
    pods: BTreeMap<String, Option<u64>>,
    /// SPIFFE IDs.
    identities: BTreeMap<String, Option<u64>>,
}

/// Register of present and departed workloads that the state directory keeps between two runs of the control plane.
#[derive(Debug)]
pub(crate) struct Register {
    file: StateFile,
}

impl Register {
    pub(crate) fn new(state: &Path) -> Self {
        Self {
            file: StateFile::new(state, FILE),
        }
    }

    /// Loads the present and departed workloads as written last. Returns empty sets if the file cannot be read, and logs that.
    pub(crate) fn load(&self) -> (MeshMembers, DepartedWorkloads) {
        let written = match self.file.read() {
            Ok(Some(text)) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
            Ok(None) => Ok(Written::default()),
            Err(error) => Err(error.to_string()),
        };
        let written = written.unwrap_or_else(|error| {
            tracing::warn!(path = %self.file.path().display(), error, "cannot read the record of removed workloads; removed workloads may renew the certificates that they still hold");
            Written::default()
        });
        let clock = (Instant::now(), SystemTime::now());
        let pod = |name: &str| {
            let (namespace, pod) = name.split_once('/')?;
            Some((Namespace::new(namespace)?, pod.into()))
        };
        let (pods, left_pods) = read(&written.pods, pod, clock);
        let (identities, left_identities) =
            read(&written.identities, |name| name.parse().ok(), clock);
        let present = MeshMembers { pods, identities };
        let departed = DepartedWorkloads {
            pods: left_pods,
            identities: left_identities,
        };
        (present, departed)
    }

    /// Writes them down, beside those that another control plane on the same directory saw leave. Failing is no reason to stop:
    /// it is said.
    pub(crate) fn keep(&self, present: &MeshMembers, departed: &DepartedWorkloads) {
        let clock = (Instant::now(), SystemTime::now());
        let pod = |(namespace, pod): &Pod| format!("{namespace}/{pod}");
        let mut written = Written {
            pods: write(&present.pods, &departed.pods, pod, clock),
            identities: write(
                &present.identities,
                &departed.identities,
                Identity::to_string,
                clock,
            ),
        };
        let kept = self.file.update(|there| {
            let there: Written = there
                .and_then(|text| serde_json::from_slice(&text).ok())
                .unwrap_or_default();
            adopt(&mut written.pods, there.pods);
            adopt(&mut written.identities, there.identities);
            // Names and numbers: there is nothing in them that could not be written.
            serde_json::to_vec(&written).unwrap_or_default()
        });
        if let Err(error) = kept {
            tracing::warn!(path = %self.file.path().display(), %error, "cannot write the record of removed workloads; the next start will not know them");
        }
    }
}

/// Takes over departed workloads that another replica knows, as far as there is room. Entries of this replica win over the
/// other's.
fn adopt(ours: &mut BTreeMap<String, Option<u64>>, theirs: BTreeMap<String, Option<u64>>) {
    let left = ours.values().filter(|end| end.is_some()).count();
    let mut theirs: Vec<(String, u64)> = theirs
        .into_iter()
        .filter_map(|(name, end)| Some((name, end?)))
        .filter(|(name, _)| !ours.contains_key(name))
        .collect();
    theirs.sort_by_key(|(_, end)| std::cmp::Reverse(*end));
    theirs.truncate(MAX_DEPARTED.saturating_sub(left));
    ours.extend(theirs.into_iter().map(|(name, end)| (name, Some(end))));
}

/// One moment by both clocks.
type Clock = (Instant, SystemTime);

fn read<K: Eq + Hash>(
    written: &BTreeMap<String, Option<u64>>,
    key: impl Fn(&str) -> Option<K>,
    (now, wall): Clock,
) -> (HashSet<K>, HashMap<K, Instant>) {
    let (mut present, mut left) = (HashSet::new(), HashMap::new());
    for (name, end) in written {
        let Some(key) = key(name) else {
            continue;
        };
        match end {
            None => {
                present.insert(key);
            }
            Some(seconds) => {
                let end = UNIX_EPOCH.checked_add(Duration::from_secs(*seconds));
                let wait = end.and_then(|end| end.duration_since(wall).ok());
                // A moment that is over, or that no clock knows, is now.
                let end = wait.and_then(|wait| now.checked_add(wait));
                left.insert(key, end.unwrap_or(now));
            }
        }
    }
    (present, left)
}

fn write<K>(
    present: &HashSet<K>,
    left: &HashMap<K, Instant>,
    name: impl Fn(&K) -> String,
    (now, wall): Clock,
) -> BTreeMap<String, Option<u64>> {
    let seconds = |end: &Instant| {
        let end = wall + end.saturating_duration_since(now);
        end.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    };
    let there = present.iter().map(|key| (name(key), None));
    let gone = left
        .iter()
        .map(|(key, end)| (name(key), Some(seconds(end))));
    there.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(pods: &[&str]) -> MeshMembers {
        let shop = Namespace::new("shop").expect("a namespace");
        let identity = |pod: &&str| {
            let identity = format!("spiffe://cluster.local/ns/shop/sa/{pod}");
            identity.parse().expect("an identity")
        };
        MeshMembers {
            pods: pods
                .iter()
                .map(|pod| (shop.clone(), (*pod).into()))
                .collect(),
            identities: pods.iter().map(identity).collect(),
        }
    }

    fn left(departed: &DepartedWorkloads) -> Vec<String> {
        let mut names: Vec<String> = departed
            .pods
            .keys()
            .map(|(_, pod)| pod.to_string())
            .collect();
        names.sort();
        assert_eq!(departed.identities.len(), names.len());
        names
    }

    #[test]
    fn who_left_before_or_during_a_restart_has_left_after_it() {
        let state = tempfile::tempdir().expect("a folder");
        let register = Register::new(state.path());
        assert_eq!(
            register.load(),
            (MeshMembers::default(), DepartedWorkloads::default())
        );
        let end = Instant::now() + Duration::from_secs(100);
        let (first, second) = (present(&["a", "b", "c"]), present(&["b", "c"]));
        let departed = DepartedWorkloads::default().follow(&first, &second, end);
        assert_eq!(left(&departed), ["a"]);
        register.keep(&second, &departed);

        // The next run finds `c` gone, too, and `a` back.
        let (known, departed) = Register::new(state.path()).load();
        assert_eq!(known, second);
        assert_eq!(left(&departed), ["a"]);
        let kept = departed.pods.values().all(|kept| {
            let off = kept.max(&end).duration_since(*kept.min(&end));
            off <= Duration::from_secs(2)
        });
        assert!(kept, "its time goes on");
        let now = departed.follow(&known, &present(&["b"]), end);
        assert_eq!(left(&now), ["a", "c"]);
        let back = now.follow(&present(&["b"]), &present(&["a", "b"]), end);
        assert_eq!(left(&back), ["c"]);
    }

    #[test]
    fn who_left_before_the_eyes_of_another_control_plane_is_not_forgotten() {
        let state = tempfile::tempdir().expect("a folder");
        let (ours, theirs) = (Register::new(state.path()), Register::new(state.path()));
        let end = Instant::now() + Duration::from_secs(100);
        let (with, without) = (present(&["a", "b", "c"]), present(&["b", "c"]));
        theirs.keep(
            &without,
            &DepartedWorkloads::default().follow(&with, &without, end),
        );
        // We never saw `a`, and `c` left before ours.
        let now = present(&["b"]);
        ours.keep(
            &now,
            &DepartedWorkloads::default().follow(&without, &now, end),
        );
        let (known, departed) = Register::new(state.path()).load();
        assert_eq!(known, now);
        assert_eq!(left(&departed), ["a", "c"]);
        // They have not read that `c` is gone, and `a` is back: what each sees is what counts.
        theirs.keep(&with, &DepartedWorkloads::default());
        let (known, departed) = Register::new(state.path()).load();
        assert_eq!((known, left(&departed)), (with, Vec::new()));
    }

    #[test]
    fn a_register_that_is_damaged_or_strange_remembers_what_it_can() {
        let state = tempfile::tempdir().expect("a folder");
        let register = Register::new(state.path());
        for (text, expected) in [
            ("", &[][..]),
            ("[]", &[]),
            (r#"{"pods": 7, "identities": {}}"#, &[]),
            (
                r#"{"pods": {"shop/a": 1, "b": 1, "UP/c": 1, "shop/d": 18446744073709551615},
                    "identities": {"spiffe://x/ns/shop/sa/a": 0, "x": 1, "spiffe://x/ns/shop/sa/d": 1}}"#,
                &["a", "d"],
            ),
        ] {
            std::fs::write(state.path().join(FILE), text).expect("written");
            let (known, departed) = register.load();
            assert_eq!(known, MeshMembers::default(), "{text}");
            assert_eq!(left(&departed), expected, "{text}");
            assert!(departed.pods.values().all(|end| *end <= Instant::now()));
        }
    }

    #[test]
    fn of_too_many_the_first_to_leave_are_forgotten() {
        let now = Instant::now();
        let known: HashMap<usize, Instant> = (0..MAX_DEPARTED)
            .map(|at| (at, now + Duration::from_secs(at as u64)))
            .collect();
        let before = HashSet::from([MAX_DEPARTED]);
        let end = now + Duration::from_secs(1 << 20);
        let all = gone(&known, &before, &HashSet::new(), end);
        assert_eq!(all.len(), MAX_DEPARTED);
        assert!(!all.contains_key(&0) && all.contains_key(&MAX_DEPARTED));
    }
}
