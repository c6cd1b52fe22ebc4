//! Control groups that limit one process each (and its children) to a share of CPU and memory, and count its
//! throttling. Version 2, or version 1 where the controllers are there; each controller by itself, since some
//! machines split them.
//!
//! A group is below this process's own, so that limits on this process go on counting. It is removed when dropped.
//! Groups that a killed process left behind are removed by the next one ([`sweep`]).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Groups are named `voile-lab-PID-…`, by the process that made them.
const PREFIX: &str = "voile-lab-";
/// In each period so much time.
const PERIOD: Duration = Duration::from_millis(100);
/// The kernel lets go of a group a little after its last process has ended.
const REMOVE_BOUND: Duration = Duration::from_secs(2);

/// Limits of a control group.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CgroupLimits {
    /// Cores' worth of CPU time.
    pub cpu: Option<f64>,
    /// Memory limit; the kernel kills a process that needs more.
    pub memory_bytes: Option<u64>,
}

/// Counts of CPU throttling of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Periods in which it ran.
    pub periods: u64,
    /// Periods in which it used all it may, and had to wait.
    pub throttled: u64,
    /// Waiting time of its threads, added up.
    pub throttled_ns: u64,
}

impl Throttling {
    /// Returns the difference since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            periods: self.periods.saturating_sub(earlier.periods),
            throttled: self.throttled.saturating_sub(earlier.throttled),
            throttled_ns: self.throttled_ns.saturating_sub(earlier.throttled_ns),
        }
    }
}

/// Location of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ControllerPath {
    base: PathBuf,
    v2: bool,
}

/// Locations of the controllers: in version 2 one folder for all, in version 1 one for each.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CgroupHierarchy {
    cpu: Option<ControllerPath>,
    memory: Option<ControllerPath>,
}

/// A group.
#[derive(Debug, Default)]
pub struct Cgroup {
    /// One in version 2; one for each controller in version 1.
    folders: Vec<PathBuf>,
    /// The one that counts time, if any.
    cpu: Option<PathBuf>,
    /// True if that is of version 2.
    v2: bool,
}

impl Cgroup {
    /// Makes a group with these limits.
    ///
    /// # Errors
    /// When this machine has no control groups, or they are not ours to make; says which and why.
    pub fn create(name: &str, limits: CgroupLimits) -> io::Result<Self> {
        let name = format!("{PREFIX}{}-{name}", std::process::id());
        Self::within(&hierarchy()?, &name, limits)
    }

    /// Makes the group below these controllers. After a failure it removes the folders that it has made.
    fn within(there: &CgroupHierarchy, name: &str, limits: CgroupLimits) -> io::Result<Self> {
        let mut group = Self::default();
        let missing =
            |what: &str| io::Error::other(format!("no control group controller for {what}"));
        if let Some(cores) = limits.cpu {
            let place = there.cpu.as_ref().ok_or_else(|| missing("CPU time"))?;
            let folder = group.below(place, "cpu", name)?;
            let (quota, period) = (quota(cores), PERIOD.as_micros());
            if place.v2 {
                set(&folder.join("cpu.max"), &format!("{quota} {period}"))?;
            } else {
                set(&folder.join("cpu.cfs_period_us"), &period.to_string())?;
                set(&folder.join("cpu.cfs_quota_us"), &quota.to_string())?;
            }
            (group.cpu, group.v2) = (Some(folder), place.v2);
        }
        if let Some(bytes) = limits.memory_bytes {
            let place = there.memory.as_ref().ok_or_else(|| missing("memory"))?;
            let folder = group.below(place, "memory", name)?;
            if place.v2 {
                set(&folder.join("memory.max"), &bytes.to_string())?;
                let _ = fs::write(folder.join("memory.swap.max"), "0");
            } else {
                set(&folder.join("memory.limit_in_bytes"), &bytes.to_string())?;
            }
        }
        Ok(group)
    }

    /// The group's folder where that controller is, made where it is not there yet.
    fn below(
        &mut self,
        place: &ControllerPath,
        controller: &str,
        name: &str,
    ) -> io::Result<PathBuf> {
        if place.v2 {
            enable(&place.base, controller)?;
        }
        self.folder(place.base.join(name))
    }

    fn folder(&mut self, folder: PathBuf) -> io::Result<PathBuf> {
        if !self.folders.contains(&folder) {
            make(&folder)?;
            self.folders.push(folder.clone());
        }
        Ok(folder)
    }

    /// Files in which a process writes "0" to move here.
    pub(crate) fn doors(&self) -> io::Result<Vec<File>> {
        let open = |folder: &PathBuf| {
            let path = folder.join("cgroup.procs");
            let opened = File::options().write(true).open(&path);
            opened.map_err(|e| at(&path, &e))
        };
        self.folders.iter().map(open).collect()
    }

    /// Returns the throttling since the group was made; zeros if CPU is not limited.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn throttling(&self) -> io::Result<Throttling> {
        let Some(folder) = &self.cpu else {
            return Ok(Throttling::default());
        };
        let path = folder.join("cpu.stat");
        let text = fs::read_to_string(&path).map_err(|e| at(&path, &e))?;
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            let found = lines.find(|(key, _)| *key == name);
            found
                .and_then(|(_, value)| value.trim().parse::<u64>().ok())
                .unwrap_or(0)
        };
        Ok(Throttling {
            periods: field("nr_periods"),
            throttled: field("nr_throttled"),
            throttled_ns: if self.v2 {
                field("throttled_usec") * 1000
            } else {
                field("throttled_time")
            },
        })
    }

    /// Returns true if the kernel killed one of its processes for want of memory.
    #[must_use]
    pub fn out_of_memory(&self) -> bool {
        let counted = |path: PathBuf| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let mut words = text
                .lines()
                .filter_map(|line| line.strip_prefix("oom_kill "));
            words.any(|number| number.trim() != "0")
        };
        self.folders.iter().any(|folder| {
            counted(folder.join("memory.events")) || counted(folder.join("memory.oom_control"))
        })
    }

    /// Returns its folders, for tests and people.
    #[must_use]
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for folder in &self.folders {
            remove(folder, REMOVE_BOUND);
        }
    }
}

/// Removes groups that processes which are gone left behind.
pub fn sweep() {
    let Ok(CgroupHierarchy { cpu, memory }) = hierarchy() else {
        return;
    };
    let mut bases: Vec<PathBuf> = cpu.into_iter().chain(memory).map(|at| at.base).collect();
    bases.dedup();
    for base in bases {
        for entry in fs::read_dir(base).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| {
                let rest = name.strip_prefix(PREFIX)?;
                rest.split('-').next()?.parse::<u32>().ok()
            });
            if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
                remove(&entry.path(), Duration::ZERO);
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "paces a loop with a deadline; the kernel does not tell when a group may be removed"
)]
fn remove(folder: &Path, bound: Duration) {
    let deadline = Instant::now() + bound;
    while fs::remove_dir(folder).is_err() && folder.exists() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Lets groups below this one have a controller, in version 2.
fn enable(base: &Path, controller: &str) -> io::Result<()> {
    let has = |file: &str| {
        let words = fs::read_to_string(base.join(file)).unwrap_or_default();
        words.split_whitespace().any(|word| word == controller)
    };
    if has("cgroup.subtree_control") {
        return Ok(());
    }
    let shown = base.display();
    if !has("cgroup.controllers") {
        let there = fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default();
        return Err(io::Error::other(format!(
            "{shown} has no controller {controller} to give to groups below it; it has: {}",
            if there.trim().is_empty() {
                "none"
            } else {
                there.trim()
            }
        )));
    }
    let path = base.join("cgroup.subtree_control");
    set(&path, &format!("+{controller}")).map_err(|error| {
        if error.kind() == io::ErrorKind::ResourceBusy {
            // Version 2 calls this the rule of no internal processes. The machine's own root is exempt, a container's
            // is not.
            return io::Error::other(format!(
                "{shown} has processes itself, so groups below it cannot have controllers; move the processes to a group of their own (in a container: from its root to a group below)"
            ));
        }
        error
    })
}

fn quota(cores: f64) -> u64 {
    (cores * PERIOD.as_micros() as f64).round().max(1000.0) as u64
}

fn make(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder).map_err(|e| at(folder, &e))
}

fn set(path: &Path, value: &str) -> io::Result<()> {
    fs::write(path, value).map_err(|e| at(path, &e))
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn hierarchy() -> io::Result<CgroupHierarchy> {
    let read = |path: &str| fs::read_to_string(path).map_err(|e| at(Path::new(path), &e));
    let found = find(
        &read("/proc/self/mounts")?,
        &read("/proc/self/cgroup")?,
        &|folder| fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default(),
    );
    found.ok_or_else(|| io::Error::other("this machine has no control groups for CPU and memory"))
}

/// From `/proc/self/mounts` and `/proc/self/cgroup`; `controllers` says which version 2 has in a folder.
fn find(mounts: &str, own: &str, controllers: &dyn Fn(&Path) -> String) -> Option<CgroupHierarchy> {
    let mounted = |kind: &str, with: &str| {
        mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, folder, its_kind, options, ..] = fields.as_slice() else {
                return None;
            };
            let has = with.is_empty() || options.split(',').any(|option| option == with);
            (*its_kind == kind && has).then(|| PathBuf::from(folder))
        })
    };
    let below = |base: PathBuf, controller: &str| {
        let path = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let names = fields.next()?;
            let path = fields.next()?;
            (names.split(',').any(|name| name == controller)).then_some(path)
        });
        let own = base.join(path.unwrap_or("/").trim_start_matches('/'));
        if own.is_dir() { own } else { base }
    };
    let unified = mounted("cgroup2", "");
    let unified = unified.map(|base| (controllers(&base), base));
    let place = |controller: &str| {
        let in_v2 = unified.as_ref().filter(|(has, _)| {
            let mut words = has.split_whitespace();
            words.any(|word| word == controller)
        });
        if let Some((_, base)) = in_v2 {
            // Version 2 wants processes at leaves only, so a sibling of ours it must be: below the root.
            let base = base.clone();
            return Some(ControllerPath { base, v2: true });
        }
        let base = below(mounted("cgroup", controller)?, controller);
        Some(ControllerPath { base, v2: false })
    };
    let (cpu, memory) = (place("cpu"), place("memory"));
    (cpu.is_some() || memory.is_some()).then_some(CgroupHierarchy { cpu, memory })
}

#[cfg(test)]
mod tests {
    use voile_testkit::prerequisites::{Prerequisite, require, skip};

    use super::*;
    use crate::child::Spec;

    #[test]
    fn both_versions_are_found_where_their_controllers_are() {
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        let both = |_: &Path| "cpuset cpu io memory pids".to_owned();
        let none = |_: &Path| String::new();
        let cpu_alone = |_: &Path| "cpu hugetlb".to_owned();
        let place = |base: &str, v2| {
            let base = PathBuf::from(base);
            Some(ControllerPath { base, v2 })
        };
        let found = |cpu, memory| Some(CgroupHierarchy { cpu, memory });
        let root = "/sys/fs/cgroup";
        assert_eq!(
            find(v2, "0::/user\n", &both),
            found(place(root, true), place(root, true))
        );
        assert_eq!(find(v2, "0::/user\n", &none), None);
        let hybrid = "cgroup /c/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup /c/memory cgroup rw,memory 0 0\n\
                      cgroup2 /c/unified cgroup2 rw 0 0\n";
        let own = "4:memory:/no/such\n1:cpu,cpuacct:/\n0::/\n";
        let memory = || place("/c/memory", false);
        assert_eq!(
            find(hybrid, own, &none),
            found(place("/c/cpu,cpuacct", false), memory())
        );
        // A controller that version 2 has is in no other.
        assert_eq!(
            find(hybrid, own, &cpu_alone),
            found(place("/c/unified", true), memory())
        );
        assert_eq!(find("proc /proc proc rw 0 0\n", "", &both), None);
    }

    #[test]
    fn a_process_that_wants_more_than_its_share_is_held_back_and_its_group_goes_with_it() {
        let limits = CgroupLimits {
            cpu: Some(0.1),
            memory_bytes: Some(64 << 20),
        };
        let Some(group) = require(Prerequisite::Cgroups, Cgroup::create("test", limits)) else {
            return;
        };
        let spec = Spec::new("busy", "sh").args(["-c", "while :; do :; done"]);
        let spec = spec.cgroup(&group).expect("its doors open");
        let mut child = spec.start().expect("sh starts");
        let deadline = Instant::now() + Duration::from_secs(20);
        while group.throttling().expect("told").throttled < 2 {
            assert!(Instant::now() < deadline, "never held back: {group:?}");
            thread::yield_now();
        }
        let folders = group.folders().to_vec();
        assert!(!folders.is_empty() && folders.iter().all(|folder| folder.is_dir()));
        child.stop(Duration::from_secs(1));
        drop(group);
        assert!(!folders.iter().any(|folder| folder.exists()), "{folders:?}");
    }

    /// Returns the mount point of version 2, whatever controllers it has. Here it is often beside version 1, which
    /// has them all.
    fn mounted_v2() -> Option<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let line = mounts
            .lines()
            .find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
        line.split(' ').nth(1).map(PathBuf::from)
    }

    #[test]
    fn a_group_of_version_2_takes_a_process_and_goes_with_it() {
        let Some(base) = mounted_v2() else {
            return skip(Prerequisite::Cgroups, "version 2 is not mounted");
        };
        let name = format!("{PREFIX}{}-real", std::process::id());
        let mut group = Cgroup::default();
        let made = group.folder(base.join(name));
        if require(Prerequisite::Cgroups, made).is_none() {
            return;
        }
        let spec = Spec::new("waits", "sleep").arg("1000");
        let mut child = spec
            .cgroup(&group)
            .expect("its doors open")
            .start()
            .expect("sleep starts");
        let members = fs::read_to_string(group.folders()[0].join("cgroup.procs")).expect("told");
        assert_eq!(members.trim(), child.pid().to_string());
        assert_eq!(group.throttling().expect("told"), Throttling::default());
        child.stop(Duration::from_secs(1));
        let folder = group.folders()[0].clone();
        drop(group);
        assert!(!folder.exists());
    }

    #[test]
    fn a_hierarchy_of_version_2_without_a_controller_is_refused_by_name_and_leaves_nothing() {
        let Some(base) = mounted_v2() else {
            return skip(Prerequisite::CgroupHybrid, "version 2 is not mounted");
        };
        let controllers = fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default();
        if controllers.split_whitespace().any(|word| word == "cpu") {
            let why = "version 2 has the controllers here, and the other tests use it";
            return skip(Prerequisite::CgroupHybrid, why);
        }
        let limits = CgroupLimits {
            cpu: Some(1.0),
            memory_bytes: None,
        };
        let name = format!("{PREFIX}{}-refused", std::process::id());
        let cpu = Some(ControllerPath {
            base: base.clone(),
            v2: true,
        });
        let there = CgroupHierarchy { cpu, memory: None };
        let why = Cgroup::within(&there, &name, limits).expect_err("it has none");
        assert!(why.to_string().contains("has no controller cpu"), "{why}");
        assert!(!base.join(name).exists());
    }

    #[test]
    fn groups_of_the_dead_are_swept_and_those_of_the_living_stay() {
        let limits = CgroupLimits {
            cpu: Some(1.0),
            memory_bytes: None,
        };
        let Some(mine) = require(Prerequisite::Cgroups, Cgroup::create("sweep", limits)) else {
            return;
        };
        // No process has the largest number that ids can have.
        let dead = mine.folders()[0].with_file_name(format!("{PREFIX}4194304-left"));
        fs::create_dir(&dead).expect("as we made ours");
        sweep();
        assert!(!dead.exists() && mine.folders()[0].exists());
    }
}
