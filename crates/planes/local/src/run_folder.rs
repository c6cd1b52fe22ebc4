//! The run's own folder: generated configuration, tokens, logs. Only its owner may look in; it goes when the run
//! goes.
//!
//! A run that was killed cannot clean up. The next run recognises its folder by a lock that no process holds any
//! more, and sweeps it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Attempts with another name when one is taken.
const NAMES_TRIED: u32 = 100;
const LOCK_FILE: &str = "lock";
/// The control socket.
const CONTROL_SOCKET: &str = "control.sock";
/// First part of the name of every run's folder; the user's number and the process's follow.
const FOLDER_PREFIX: &str = "voile-up-";
/// The folder of the sidecars' handover sockets; short, as their paths are bounded.
const HANDOVER: &str = "h";
/// Longest path of a socket, in bytes: the kernel's 107, less the suffix that a proxy appends until the new socket
/// replaces the old.
const MAX_SOCKET_PATH: usize = 90;

/// The folder of one run; dropping it removes it.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    _lock: File,
}

impl RunFolder {
    /// Makes a folder below `parent` (mode 0700), after sweeping the folders of killed runs.
    pub fn make(parent: &Path) -> io::Result<Self> {
        let user = rustix::process::geteuid().as_raw();
        let prefix = format!("{FOLDER_PREFIX}{user}-");
        sweep(parent, &prefix, user);
        let pid = std::process::id();
        for n in 0..NAMES_TRIED {
            let path = parent.join(format!("{prefix}{pid}-{n}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(at(&path)(error)),
            }
            let lock = lock(&path, true).map_err(at(&path))?;
            let folder = Self { path, _lock: lock };
            let empty = folder.empty();
            DirBuilder::new().create(&empty).map_err(at(&empty))?;
            fs::set_permissions(&empty, Permissions::from_mode(0o755)).map_err(at(&empty))?;
            for inner in ["config", HANDOVER, "logs", "resolvers", "tokens"] {
                let inner = folder.path.join(inner);
                DirBuilder::new()
                    .mode(0o700)
                    .create(&inner)
                    .map_err(at(&inner))?;
            }
            return Ok(folder);
        }
        Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("no free name {prefix}{pid}-N in {}", parent.display()),
        ))
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A folder that is and stays empty, and that all users may read.
    pub fn empty(&self) -> PathBuf {
        self.path.join("empty")
    }

    /// The folder of generated configuration.
    pub fn config(&self) -> PathBuf {
        self.path.join("config")
    }

    /// Returns the log of a process.
    pub fn log(&self, process: &str) -> PathBuf {
        self.path.join("logs").join(format!("{process}.log"))
    }

    /// Returns the token file of a pod.
    pub fn token(&self, pod: &str) -> PathBuf {
        self.path.join("tokens").join(pod)
    }

    /// Returns the socket by which the sidecar of the pod with this address hands over to its successor. Returns
    /// `None` if the path would be longer than the kernel allows.
    pub fn handover(&self, pod: Ipv4Addr) -> Option<PathBuf> {
        let [_, _, high, low] = pod.octets();
        let path = self.path.join(HANDOVER).join(format!("{high}.{low}"));
        (path.as_os_str().len() <= MAX_SOCKET_PATH).then_some(path)
    }

    /// Returns the control socket. Returns `None` if the path would be longer than the kernel allows.
    pub fn control_socket(&self) -> Option<PathBuf> {
        let path = self.path.join(CONTROL_SOCKET);
        (path.as_os_str().len() <= MAX_SOCKET_PATH).then_some(path)
    }

    /// The same of the node proxy.
    pub fn node_handover(&self) -> Option<PathBuf> {
        let path = self.path.join(HANDOVER).join("node");
        (path.as_os_str().len() <= MAX_SOCKET_PATH).then_some(path)
    }

    /// The resolv.conf of pods of a namespace that have a sidecar, or of those of any namespace that have none.
    pub fn resolver(&self, namespace: &str, captured: bool) -> PathBuf {
        // No namespace is called like that.
        let name = if captured { namespace } else { "_plain" };
        self.path.join("resolvers").join(name)
    }

    /// Replaces a file as a whole, readable by its owner only: a reader sees the old text or the new, never a part.
    pub fn replace(&self, path: &Path, text: &str) -> io::Result<()> {
        self.replace_with_mode(path, text, 0o600)
    }

    /// The same, for a file that an application may read under any user.
    pub fn replace_readable(&self, path: &Path, text: &str) -> io::Result<()> {
        self.replace_with_mode(path, text, 0o644)
    }

    fn replace_with_mode(&self, path: &Path, text: &str, mode: u32) -> io::Result<()> {
        let draft = self.path.join("draft");
        let write = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(mode)
                .open(&draft)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&draft, path)
        };
        write().map_err(at(path))
    }
}

/// A mesh of `voile up` that runs on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningMesh {
    /// True if it runs as this user, false if only root may reach it.
    pub own: bool,
    /// Number of the process that was started.
    pub pid: u32,
    /// Its folder of logs.
    pub logs: PathBuf,
    /// Its control socket.
    pub socket: PathBuf,
}

/// Returns the meshes of `voile up` that run on this machine and that this user may reach: its own first, and as root those of
/// others.
pub fn running_meshes() -> Vec<RunningMesh> {
    let entries = fs::read_dir(std::env::temp_dir());
    let mut all: Vec<_> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let name = name.to_str()?.strip_prefix(FOLDER_PREFIX)?;
            let pid = name.split('-').nth(1)?.parse().ok()?;
            let folder = entry.path();
            let (logs, socket) = (folder.join("logs"), folder.join(CONTROL_SOCKET));
            // Links are not followed, and nobody else can write into a folder of another user's.
            let user = entry.metadata().ok()?.uid();
            let own_user = rustix::process::geteuid().as_raw();
            let may = [user, 0].contains(&own_user);
            // The socket of a run that was killed has no listener.
            (may && is_listened_to(&socket)).then_some(RunningMesh {
                own: user == own_user,
                pid,
                logs,
                socket,
            })
        })
        .collect();
    all.sort_by_key(|mesh| (!mesh.own, mesh.pid));
    all
}

/// Returns true if a process listens at this socket. It never waits: another user's listener may let its queue be full.
fn is_listened_to(socket: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connected = SocketAddrUnix::new(socket).and_then(|address| {
        let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&stream, &address)
    });
    matches!(connected, Ok(()) | Err(Errno::AGAIN))
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // The next run sweeps files that cannot be removed now.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn lock(folder: &Path, create: bool) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .open(folder.join(LOCK_FILE))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

fn sweep(parent: &Path, prefix: &str, user: u32) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let named = entry.file_name().to_string_lossy().starts_with(prefix);
        // Links are not followed, so that no other user can lead the sweep to a folder that is not its own.
        let ours = entry
            .metadata()
            .is_ok_and(|m| m.is_dir() && m.uid() == user);
        if named
            && ours
            && let Ok(_held) = lock(&entry.path(), false)
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_removes_its_folder_and_sweeps_those_of_killed_runs_but_no_living_ones() {
        let parent =
            std::env::temp_dir().join(format!("voile-run-folder-test-{}", std::process::id()));
        fs::create_dir_all(&parent).expect("the parent");
        let living = RunFolder::make(&parent).expect("made");
        let user = rustix::process::geteuid().as_raw();
        let killed = parent.join(format!("voile-up-{user}-1-0"));
        fs::create_dir_all(killed.join("logs")).expect("made");
        fs::write(killed.join(LOCK_FILE), "").expect("written");
        let foreign = parent.join("something-else");
        fs::create_dir_all(&foreign).expect("made");
        let second = RunFolder::make(&parent).expect("made");
        assert!(!killed.exists(), "a killed run's folder stays");
        assert!(living.path().exists() && foreign.exists());
        let path = second.config().join("mesh.json");
        second.replace(&path, "text").expect("written");
        let mode = fs::metadata(&path).expect("there").mode() & 0o777;
        assert_eq!(
            (
                mode,
                fs::metadata(second.path()).expect("there").mode() & 0o777
            ),
            (0o600, 0o700)
        );
        drop((living, second));
        let left: Vec<_> = fs::read_dir(&parent)
            .expect("read")
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        assert_eq!(left, ["something-else"]);
        fs::remove_dir_all(&parent).expect("cleaned");
    }
}
