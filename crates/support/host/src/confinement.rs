//! Confinement of a pod's application: a user of its own, no capabilities, no way to gain any, and no folder that
//! holds keys. The mesh's runner prepares it; the child enters it between fork and exec. In its user namespace the
//! application sees the user that the pod asks for (`runAsUser`). The host's user of that number is never used.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount, move_mount, open_tree};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, UnshareFlags, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs, set_thread_gid, set_thread_groups, set_thread_uid,
    unshare_unsafe,
};

/// Paths that stay visible below folders that are closed to other users: the working folder and this program, and a few.
const MAX_SHOWN: usize = 8;
/// Permission of all users to list a folder and to pass through it.
const OTHERS_READ: u32 = 0o5;
/// Permission of all users to pass through a folder.
const OTHERS_PASS: u32 = 0o1;
/// Most processes and threads of one user, so of one pod: a fork bomb ends at it. Sixteen such pods fit into the kernel's
/// smallest default of process numbers (32,768).
pub const MAX_PROCESSES: u64 = 2_048;
const TMPFS: &CStr = c"mode=0755,size=1m";

/// A user and a group by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// The maps of a user namespace: the application's user and group, as it sees them.
#[derive(Debug, Clone)]
struct UserMap {
    users: CString,
    groups: CString,
}

/// A path that stays visible though a folder above it is covered.
#[derive(Debug, Clone)]
struct VisiblePath {
    path: CString,
    is_folder: bool,
    /// The folders from below the covered one down to `path`.
    parents: Vec<CString>,
    /// The folder itself is closed to other users: an overlay with this option opens it for reading.
    overlay: Option<CString>,
    /// True if a folder above it is covered.
    below_cover: bool,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Confinement {
    user: Option<User>,
    map: Option<UserMap>,
    covered: Vec<CString>,
    closed: Vec<CString>,
    shown: Vec<VisiblePath>,
    folder: Option<CString>,
}

impl Confinement {
    /// Creates a confinement under this process's user, or under another one, which needs root.
    #[must_use]
    pub fn new(user: Option<User>) -> Self {
        Self {
            user,
            ..Self::default()
        }
    }

    /// Makes the application see itself as this user, which may differ from its user on the host. Without a user of
    /// its own nothing changes.
    #[must_use]
    pub fn seen_as(mut self, seen: User) -> Self {
        if let Some(user) = self.user.filter(|user| *user != seen) {
            let map = |inside: u32, outside: u32| CString::new(format!("{inside} {outside} 1"));
            // Numbers have no NUL in them.
            if let (Ok(users), Ok(groups)) = (map(seen.uid, user.uid), map(seen.gid, user.gid)) {
                self.map = Some(UserMap { users, groups });
            }
        }
        self
    }

    /// Returns the application's user, if it is not the user of this process.
    #[must_use]
    pub fn user(&self) -> Option<User> {
        self.user
    }

    /// Covers a folder by an empty one.
    ///
    /// # Errors
    /// The path has a NUL in it.
    pub fn cover(mut self, folder: &Path) -> io::Result<Self> {
        self.covered.push(text(folder)?);
        Ok(self)
    }

    /// Keeps `path` readable for another user, even if folders above it are closed to others: those are covered, and
    /// hold nothing else. `empty` is an empty folder that all users may read.
    ///
    /// # Errors
    /// The path is not there, has a NUL in it, or is one too many.
    pub fn show(mut self, path: &Path, empty: &Path) -> io::Result<Self> {
        if self.user.is_none() {
            return Ok(self);
        }
        let metadata = fs::metadata(path)?;
        let closed = closed_ancestor(path)?;
        let unreadable = metadata.is_dir() && metadata.mode() & OTHERS_READ != OTHERS_READ;
        let overlay = unreadable.then(|| {
            let escaped = |path: &Path| {
                path.to_string_lossy()
                    .replace('\\', "\\\\")
                    .replace(':', "\\:")
            };
            CString::new(format!("lowerdir={}:{}", escaped(empty), escaped(path)))
        });
        if closed.is_none() && overlay.is_none() {
            return Ok(self);
        }
        if self.shown.len() == MAX_SHOWN {
            let text = format!(
                "{}: no more than {MAX_SHOWN} paths can be shown",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let above = closed.as_deref();
        let parents = path.ancestors().skip(1);
        let parents = parents.take_while(|parent| above.is_some_and(|above| *parent != above));
        let mut parents: Vec<CString> = match above {
            Some(_) => parents.map(text).collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        parents.reverse();
        if let Some(above) = above {
            let above = text(above)?;
            if !self.closed.contains(&above) {
                self.closed.push(above);
            }
        }
        self.shown.push(VisiblePath {
            path: text(path)?,
            is_folder: metadata.is_dir(),
            parents,
            overlay: overlay.transpose()?,
            below_cover: closed.is_some(),
        });
        Ok(self)
    }

    /// Sets the application's working folder, as it sees it.
    ///
    /// # Errors
    /// The path has a NUL in it.
    pub fn folder(mut self, folder: &Path) -> io::Result<Self> {
        self.folder = Some(text(folder)?);
        Ok(self)
    }

    /// Hides files and processes of others, in a mount namespace of its own. Between fork and exec: system calls
    /// only.
    pub(crate) fn hide(&self) -> io::Result<()> {
        for shown in &self.shown {
            if let Some(option) = &shown.overlay {
                let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
                mount(
                    c"overlay",
                    &*shown.path,
                    c"overlay",
                    flags,
                    option.as_c_str(),
                )?;
            }
        }
        let mut trees: [Option<OwnedFd>; MAX_SHOWN] = Default::default();
        for (shown, tree) in self.shown.iter().zip(&mut trees) {
            if shown.below_cover {
                let flags = OpenTreeFlags::OPEN_TREE_CLONE
                    | OpenTreeFlags::OPEN_TREE_CLOEXEC
                    | OpenTreeFlags::AT_RECURSIVE;
                *tree = Some(open_tree(CWD, &*shown.path, flags)?);
            }
        }
        for folder in self.covered.iter().chain(&self.closed) {
            cover(folder)?;
        }
        for (shown, tree) in self.shown.iter().zip(&trees) {
            let Some(tree) = tree else { continue };
            for parent in &shown.parents {
                existing(rustix::fs::mkdir(&**parent, Mode::from_raw_mode(0o755)))?;
            }
            if shown.is_folder {
                existing(rustix::fs::mkdir(&*shown.path, Mode::from_raw_mode(0o755)))?;
            } else {
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
                let mode = Mode::from_raw_mode(0o644);
                existing(rustix::fs::open(&*shown.path, flags, mode).map(drop))?;
            }
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            move_mount(tree, c"", CWD, &*shown.path, flags)?;
        }
        // Hides the processes of other users, and all their entries. If the kernel does not allow a new mount, the
        // old one stays; its files are closed to another user all the same.
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let hidden = |option: &CStr| mount(c"proc", c"/proc", c"proc", flags, option);
        // Kernels before 5.8 know the weaker word only, which shows everything to the group 0.
        let _ = hidden(c"hidepid=ptraceable").or_else(|_| hidden(c"hidepid=2"));
        if let Some(folder) = &self.folder {
            rustix::process::chdir(&**folder)?;
        }
        Ok(())
    }

    /// Gives up every privilege but these for good. In a user namespace of its own there are none to keep. Between fork and
    /// exec: system calls only.
    pub(crate) fn drop_privileges(&self, kept: CapabilitySet) -> io::Result<()> {
        close_inherited()?;
        let kept = match &self.map {
            Some(_) => CapabilitySet::empty(),
            None => kept,
        };
        empty_bounding_set(kept);
        if let Some(user) = self.user {
            let most = Rlimit {
                current: Some(MAX_PROCESSES),
                maximum: Some(MAX_PROCESSES),
            };
            setrlimit(Resource::Nproc, most)?;
            set_keep_capabilities(!kept.is_empty())?;
            set_thread_groups(&[])?;
            set_thread_gid(Gid::from_raw(user.gid))?;
            set_thread_uid(Uid::from_raw(user.uid))?;
            // The kernel forgets it when the user changes.
            set_parent_process_death_signal(Some(Signal::KILL))?;
        }
        leave_keyring()?;
        if let Some(map) = &self.map {
            map.enter()?;
            // A new user namespace begins with a full set.
            empty_bounding_set(CapabilitySet::empty());
        }
        let _ = clear_ambient_capability_set();
        let mut sets = capabilities(None)?;
        let kept = kept & sets.permitted;
        sets.inheritable = kept;
        sets.effective = kept;
        sets.permitted = kept;
        set_capabilities(None, sets)?;
        for capability in kept.iter() {
            configure_capability_in_ambient_set(capability, true)?;
        }
        Ok(set_no_new_privs(true)?)
    }
}

impl UserMap {
    /// Moves the calling process into a user namespace with these maps. Between fork and exec: system calls only.
    #[expect(unsafe_code, reason = "a user namespace for one child")]
    fn enter(&self) -> io::Result<()> {
        // Files of its own in /proc are root's after a change of user, until it may be looked into again.
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        // SAFETY: NEWUSER unshares no memory and no descriptors; the child has one thread.
        unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?;
        write_whole(c"/proc/self/setgroups", c"deny")?;
        write_whole(c"/proc/self/uid_map", &self.users)?;
        write_whole(c"/proc/self/gid_map", &self.groups)
    }
}

fn write_whole(path: &CStr, text: &CStr) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    let written = rustix::io::write(&file, text.to_bytes())?;
    match written == text.to_bytes().len() {
        true => Ok(()),
        false => Err(Errno::IO.into()),
    }
}

/// Closes descriptors that the starter of the mesh left open: they are not the application's.
#[expect(unsafe_code, reason = "neither std nor rustix has close_range")]
fn close_inherited() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: it marks descriptors, and touches no memory.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    match done {
        0 => Ok(()),
        // Kernels before 5.11.
        _ if matches!(errno(), libc::ENOSYS | libc::EINVAL) => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Joins a session keyring of its own: a process with the keyring of the mesh's user may read the keys in it, under
/// any user.
#[expect(unsafe_code, reason = "neither std nor rustix has keyctl")]
fn leave_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    let anonymous = std::ptr::null::<libc::c_char>();
    // SAFETY: without a name the kernel reads no memory of ours.
    let done = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, anonymous) };
    match done {
        0.. => Ok(()),
        // A kernel without keys, or a container that forbids the call to the application, too.
        _ if matches!(errno(), libc::ENOSYS | libc::EPERM) => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Keeps programs that are executed later from getting a capability other than `kept`, whatever their files say.
fn empty_bounding_set(kept: CapabilitySet) {
    // Without the right to change the set there is nothing to be kept from either: exec drops all.
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if kept.contains(capability) {
            continue;
        }
        if remove_capability_from_bounding_set(capability) == Err(Errno::INVAL) {
            break;
        }
    }
}

fn text(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Covers a folder, if it is there.
fn cover(folder: &CStr) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    match mount(c"tmpfs", folder, c"tmpfs", flags, TMPFS) {
        Err(Errno::NOENT) => Ok(()),
        done => Ok(done?),
    }
}

fn existing(made: Result<(), Errno>) -> io::Result<()> {
    match made {
        Err(Errno::EXIST) => Ok(()),
        other => Ok(other?),
    }
}

/// The topmost folder above `path` that other users may not pass.
fn closed_ancestor(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut found = None;
    for parent in path
        .ancestors()
        .skip(1)
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        if fs::metadata(parent)?.mode() & OTHERS_PASS == 0 {
            found = Some(parent.to_owned());
        }
    }
    Ok(found)
}

/// Returns true if root here can become this user: a container may know a few users only.
#[must_use]
pub fn is_mapped(uid: u32) -> bool {
    let Ok(map) = fs::read_to_string("/proc/self/uid_map") else {
        return false;
    };
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        (first..first + count).contains(&u64::from(uid))
    })
}
