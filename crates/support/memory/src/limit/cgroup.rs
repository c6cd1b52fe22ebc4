//! Memory limit by the cgroups of the process.

use std::path::{Path, PathBuf};

/// A limit at least this large is none: version 1 writes "no limit" as a number near this one.
const NO_LIMIT: u64 = 1 << 60;

/// The least limit of the cgroups this process is in, in bytes; none without one.
pub fn cgroup_limit() -> Option<u64> {
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
