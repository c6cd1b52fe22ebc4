//! Reads the local files that the configuration names, again and again while it names them. The files are polled and not watched:
//! a path may lead through links into other folders, or to a remote disk, which report no changes. Without named files this
//! module never wakes up.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::control::discovery::state::Control;
use crate::registry::files::{FileContent, Read};

/// Longest time that a change may go unseen: certificates live for hours, and a look costs some reads of the
/// page cache.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The largest file that is read: a thousand authorities take less.
const MAX_FILE_BYTES: u64 = 4 << 20;

impl Control {
    /// Reads named files that were not read before, so that the next publication has them.
    pub(in crate::control) fn read_new_files(&mut self, now: Instant) {
        let mut shared = self.shared();
        let wanted = shared.registry.files_wanted();
        let new = wanted.iter().filter(|path| !shared.registry.has_read(path));
        let new: BTreeMap<Arc<str>, Read> = new.map(|path| (path.clone(), read(path))).collect();
        shared.registry.files_read(&wanted, new);
        drop(shared);
        self.files_next = match wanted.is_empty() {
            true => None,
            false => self.files_next.or(Some(now + LOOK_EVERY)),
        };
    }

    /// Looks at all of them when it is time to, and publishes what follows.
    pub(in crate::control) fn look_at_files(&mut self, now: Instant) {
        if self.files_next.is_none_or(|at| at > now) {
            return;
        }
        self.files_next = Some(now + LOOK_EVERY);
        let changed = {
            let registry = &mut self.shared().registry;
            let wanted = registry.files_wanted();
            let all = wanted.iter().map(|path| (path.clone(), read(path)));
            let all = all.collect();
            registry.files_read(&wanted, all)
        };
        if changed {
            self.publish();
        }
    }
}

/// Content of a regular file, or an error that reveals nothing of the content.
fn read(path: &str) -> Read {
    let because = |error: std::io::Error| Arc::<str>::from(error.to_string());
    let mut options = OpenOptions::new();
    // A pipe without a writer would block the read for ever.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    options.read(true).custom_flags(flags.bits().cast_signed());
    let file = options.open(path).map_err(because)?;
    if !file.metadata().map_err(because)?.is_file() {
        return Err("it is not a regular file".into());
    }
    let mut content = Vec::new();
    let most = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content);
    match most.map_err(because)? as u64 {
        much if much > MAX_FILE_BYTES => {
            Err(format!("it has more than {MAX_FILE_BYTES} bytes").into())
        }
        _ => Ok(FileContent(content.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_certificate_is_not_read_and_nobody_waits_for_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| {
            let path = folder.path().join(name);
            path.into_os_string().into_string().expect("text")
        };
        let whole = vec![b'a'; usize::try_from(MAX_FILE_BYTES).expect("small")];
        std::fs::write(path("whole"), &whole).expect("written");
        std::fs::write(path("more"), [&whole[..], b"a"].concat()).expect("written");
        std::os::unix::fs::symlink("whole", path("link")).expect("a link");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let pipe = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), pipe, mode, 0).expect("a pipe");
        for (name, expected) in [
            ("whole", None),
            ("link", None),
            ("more", Some("more than")),
            ("pipe", Some("not a regular file")),
            ("", Some("not a regular file")),
            ("nothing", Some("No such file")),
        ] {
            match (read(&path(name)), expected) {
                (Ok(content), None) => assert_eq!(*content.0, *whole, "{name}"),
                (Err(why), Some(expected)) => assert!(why.contains(expected), "{name}: {why}"),
                (other, _) => panic!("{name}: {other:?}"),
            }
        }
    }
}
