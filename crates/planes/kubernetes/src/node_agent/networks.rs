//! Finds the networks of pods that started before the agent: by the control groups of the node's processes, whose paths have the
//! pods' uids.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use voile_host::netns::Namespace;

/// The node's own network.
///
/// # Errors
/// `proc` is not the node's, or the agent lacks SYS_PTRACE.
pub(super) fn of_node(proc: &Path) -> io::Result<Namespace> {
    Namespace::open(&proc.join("1/ns/net"))
}

/// The networks of the pods with these uids, as far as they have a process. `proc` is the node's.
pub(super) fn find(proc: &Path, wanted: &BTreeSet<&str>) -> BTreeMap<String, Namespace> {
    let mut found = BTreeMap::new();
    if wanted.is_empty() {
        return found;
    }
    let node = of_node(proc).and_then(|network| network.id()).ok();
    for entry in fs::read_dir(proc).into_iter().flatten().flatten() {
        let process = entry.path();
        let Ok(groups) = fs::read_to_string(process.join("cgroup")) else {
            continue;
        };
        let Some(uid) = wanted.iter().find(|uid| is_of_pod(&groups, uid)) else {
            continue;
        };
        if found.contains_key(*uid) {
            continue;
        }
        // A process that has ended meanwhile has none. One in the node's network is no pod that can be enrolled.
        if let Ok(network) = Namespace::open(&process.join("ns/net"))
            && network.id().is_ok_and(|id| Some(id) != node)
        {
            found.insert((*uid).to_owned(), network);
        }
    }
    found
}

/// Returns true if a process with these control groups is of the pod: `pod` and its uid, with `_` for `-` where systemd makes the
/// groups.
fn is_of_pod(groups: &str, uid: &str) -> bool {
    let names = [format!("pod{uid}"), format!("pod{}", uid.replace('-', "_"))];
    groups.split(['/', '\n']).any(|part| {
        let part = part.strip_suffix(".slice").unwrap_or(part);
        names.iter().any(|name| {
            let rest = part.strip_suffix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('-'))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_belongs_to_the_pod_that_its_control_groups_name() {
        let uid = "0f6b2a1c-1111-2222-3333-444455556666";
        for (groups, is_of_pod) in [
            (
                "5:memory:/kubepods/burstable/pod0f6b2a1c-1111-2222-3333-444455556666/8a1f\n",
                true,
            ),
            (
                "0::/../../pod0f6b2a1c-1111-2222-3333-444455556666/8a1f\n",
                true,
            ),
            (
                "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0f6b2a1c_1111_2222_3333_444455556666.slice/cri-containerd-8a.scope\n",
                true,
            ),
            (
                "0::/kubepods/pod0f6b2a1c-1111-2222-3333-444455556667/8a1f\n",
                false,
            ),
            (
                "0::/system.slice/notpod0f6b2a1c-1111-2222-3333-444455556666\n",
                false,
            ),
            ("0::/\n", false),
        ] {
            assert_eq!(super::is_of_pod(groups, uid), is_of_pod, "{groups}");
        }
    }

    #[test]
    fn a_process_in_the_network_of_the_node_is_no_pod() {
        let proc = Path::new("/proc");
        let groups = fs::read_to_string("/proc/self/cgroup").expect("control groups");
        assert!(!is_of_pod(&groups, "nothing"));
        assert!(find(proc, &BTreeSet::from(["nothing"])).is_empty());
    }
}
