//! Memory as the control thread sees it: how much there may be, and giving back to the kernel what the allocator keeps.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::footprint::release_cold_pages;
use super::state::Control;
use crate::worker::{Level, ToWorker};

/// How long workers get to close what is idle before what they freed is given back.
const RELIEF_TIME: Duration = Duration::from_millis(200);

/// Between two lines in the log about it, while it lasts.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// A limit at least this large is none: version 1 writes "no limit" as a number near this one.
const NO_LIMIT: u64 = 1 << 60;

/// The least limit of the cgroups this process is in, in bytes; none without one.
pub(super) fn cgroup_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    least_limit(&groups, Path::new("/sys/fs/cgroup"))
}

/// Reads `/proc/PID/cgroup` and the limits of each group named there and of those around it.
fn least_limit(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or("-"), parts.next().unwrap_or(""));
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        around(&root, path)
            .iter()
            .filter_map(|group| limit(&group.join(file)))
            .collect()
    });
    limits.min()
}

/// A group's folder and those of all groups around it. A path that leads out (another namespace's) counts as the root.
fn around(root: &Path, path: &str) -> Vec<PathBuf> {
    let mut folders = vec![root.to_owned()];
    let mut folder = root.to_owned();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        if part == ".." {
            break;
        }
        folder.push(part);
        folders.push(folder.clone());
    }
    folders
}

fn limit(file: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.trim().parse().ok().filter(|limit| *limit < NO_LIMIT)
}

/// Memory is short: everybody closes what is idle, and what that frees goes back to the kernel.
pub(super) fn relieve(control: &Rc<RefCell<Control>>) {
    if control.borrow().giving_back {
        return; // Somebody said so a moment ago.
    }
    control.borrow().dispatcher.broadcast(|| ToWorker::Relieve);
    let now = Instant::now();
    let said = control.borrow().said_short;
    if said.is_none_or(|then| now.duration_since(then) >= SAID_EVERY) {
        control.borrow_mut().said_short = Some(now);
        tracing::warn!("memory is short: idle connections are closed");
    }
    give_back_soon(control);
}

/// Gives freed memory back when those who are freeing it had a moment, once for all who ask meanwhile.
pub(super) fn give_back_soon(control: &Rc<RefCell<Control>>) {
    if std::mem::replace(&mut control.borrow_mut().giving_back, true) {
        return;
    }
    let control = Rc::clone(control);
    tokio::task::spawn_local(async move {
        tokio::time::sleep(RELIEF_TIME).await;
        let mut control = control.borrow_mut();
        control.giving_back = false;
        control.dispatcher.ledger().forget_unused();
        give_back();
        let ceiling = &control.dispatcher.ledger().ceiling;
        // The program's own pages are resident, too. Those that are needed come back from the page cache; the others would
        // keep a proxy with a narrow limit from taking anybody ever again.
        if ceiling.look() > Level::Free {
            release_cold_pages();
            ceiling.look();
        }
    });
}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "malloc_trim has no safe wrapper")]
pub(super) fn give_back() {
    // SAFETY: glibc locks each arena itself; nothing in use moves.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
pub(super) fn give_back() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_both_versions_and_all_groups_around_counts() {
        let folder = std::env::temp_dir().join(format!("voile-cgroup-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        write("a/memory.max", "max\n");
        write("a/b/memory.max", "4096\n");
        write("a/b/c/memory.max", "8192\n");
        write("memory/x/memory.limit_in_bytes", "2048\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        let table = [
            ("0::/a\n", None),
            ("0::/a/b/c\n", Some(4096)),
            ("0::/../a/b\n", None),
            ("3:cpu,memory:/x\n0::/\n", Some(2048)),
            ("3:cpu:/x\n", None),
            ("garbage\n", None),
        ];
        for (groups, expected) in table {
            assert_eq!(least_limit(groups, &folder), expected, "{groups}");
        }
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
