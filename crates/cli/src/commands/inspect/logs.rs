//! `voile logs`: what the processes of the running mesh write.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::runtime::Runtime;

use crate::commands::inspect::monitoring::runtime;
use crate::commands::inspect::running_mesh::MeshArgs;

/// Print what the processes of the mesh that runs on this machine have written.
///
/// NAME is a process as this command lists it without NAME (`shop.web-0.app`, `shop.web-0.sidecar`, `control`), a pod (`shop/web-0`,
/// `web-0`) for all of its processes, or a workload (`shop/web`) for all of its pods. Lines of several processes have the name of
/// the process before them. On a cluster use `kubectl logs`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code: 0, or 2 if no mesh runs or nothing has that name.")]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    mesh: MeshArgs,
    /// Go on until Ctrl-C, with lines as they are written.
    #[arg(long, short)]
    follow: bool,
    /// Only the last lines of each process.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    lines: usize,
    /// The processes; if left out their names are listed.
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

/// Between two looks for new lines.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Most that is read of the end of a log, in bytes.
const MAX_TAIL_BYTES: u64 = 16 << 20;

pub(crate) fn run(args: &LogsArgs) -> ExitCode {
    match print_logs(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("voile logs: {reason}");
            ExitCode::from(2)
        }
    }
}

fn print_logs(args: &LogsArgs) -> Result<(), String> {
    let runtime = runtime()?;
    let folder = args.mesh.need(&runtime)?.running.logs;
    let failed = |error: io::Error| format!("{}: {error}", folder.display());
    let mut all = processes(&folder).map_err(failed)?;
    let Some(name) = &args.name else {
        for process in all {
            println!("{process}");
        }
        return Ok(());
    };
    all.retain(|process| is_meant(process, name));
    if all.is_empty() {
        return Err(format!(
            "no process is called `{name}`; cure: voile logs lists them"
        ));
    }
    let named = all.len() > 1;
    let logs = all.into_iter().map(|process| {
        let path = folder.join(format!("{process}.log"));
        Log::open(&path, named.then_some(process), args.lines)
    });
    let mut logs = logs.collect::<io::Result<Vec<_>>>().map_err(failed)?;
    match follow(&mut logs, args.follow.then_some((&runtime, &*folder))) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(failed(error)),
        _ => Ok(()),
    }
}

/// Prints what there is, and goes on while the folder is there.
fn follow(logs: &mut [Log], wait: Option<(&Arc<Runtime>, &Path)>) -> io::Result<()> {
    loop {
        for log in &mut *logs {
            log.print_news()?;
        }
        match wait {
            Some((runtime, folder)) if folder.exists() => {
                runtime.block_on(async { tokio::time::sleep(LOOK_EVERY).await });
            }
            _ => return Ok(()),
        }
    }
}

/// The names of the processes that have a log.
fn processes(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in folder.read_dir()? {
        let name = PathBuf::from(entry?.file_name());
        let is_log = name.extension().is_some_and(|ending| ending == "log");
        let stem = name.file_stem().and_then(|stem| stem.to_str());
        names.extend(stem.filter(|_| is_log).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// The last lines of each process of a pod or workload, by its name.
pub(crate) fn last_lines(
    folder: &Path,
    name: &str,
    lines: usize,
) -> io::Result<Vec<(String, String)>> {
    let meant = processes(folder)?.into_iter();
    let meant = meant.filter(|process| is_meant(process, name));
    let logs = meant.map(|process| {
        let log = Log::open(&folder.join(format!("{process}.log")), None, lines)?;
        Ok((process, String::from_utf8_lossy(&log.rest).into_owned()))
    });
    logs.collect()
}

/// Whether a process, `NAMESPACE.POD.PART` or another name, is meant by a name that a person gives.
fn is_meant(process: &str, name: &str) -> bool {
    let mut parts = process.splitn(2, '.');
    let (Some(namespace), Some(rest)) = (parts.next(), parts.next()) else {
        return process == name;
    };
    let pod = rest.split('.').next().unwrap_or_default();
    let workload = pod.rsplit_once('-').map_or(pod, |(workload, _)| workload);
    let whole = |of: &str| name == of || name == format!("{namespace}/{of}");
    process == name || whole(pod) || whole(workload)
}

/// The log of a process, as far as it was printed.
struct Log {
    file: File,
    /// The name before each line.
    name: Option<String>,
    /// Bytes after the last whole line.
    rest: Vec<u8>,
}

impl Log {
    /// Opens it before its last lines.
    fn open(path: &Path, name: Option<String>, lines: usize) -> io::Result<Self> {
        use std::io::{Seek as _, SeekFrom};
        // In another user's mesh it may be a pipe, which would be waited for, or a link.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let length = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(length.saturating_sub(MAX_TAIL_BYTES)))?;
        let mut rest = Vec::new();
        (&file).take(MAX_TAIL_BYTES).read_to_end(&mut rest)?;
        let mut ends = rest.iter().enumerate().rev();
        // The end of the line before those that are wanted; the last byte ends the last line itself.
        let before = ends
            .by_ref()
            .filter(|(at, byte)| **byte == b'\n' && at + 1 < rest.len());
        let before = before.map(|(at, _)| at + 1).nth(lines.saturating_sub(1));
        rest.drain(..before.unwrap_or(0));
        Ok(Self { file, name, rest })
    }

    /// Prints the whole lines that were not printed yet.
    fn print_news(&mut self) -> io::Result<()> {
        self.file.read_to_end(&mut self.rest)?;
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(());
        };
        let mut out = io::stdout().lock();
        for line in self.rest[..end].split(|byte| *byte == b'\n') {
            if let Some(name) = &self.name {
                write!(out, "{name}: ")?;
            }
            out.write_all(line)?;
            out.write_all(b"\n")?;
        }
        self.rest.drain(..=end);
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_named_by_themselves_their_pod_or_their_workload() {
        let process = "shop.web-0.sidecar";
        for name in [process, "shop/web-0", "web-0", "shop/web", "web"] {
            assert!(is_meant(process, name), "{name}");
        }
        for name in ["shop", "shop.web-0", "web-1", "other/web", "eb", ""] {
            assert!(!is_meant(process, name), "{name}");
        }
        assert!(is_meant("control", "control") && !is_meant("control", "contro"));
    }

    #[test]
    fn pipes_and_links_are_no_logs_and_nobody_waits_for_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let [pipe, link] = ["pipe.log", "link.log"].map(|name| folder.path().join(name));
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, Mode::RUSR, 0).expect("a pipe");
        std::os::unix::fs::symlink("/etc/hostname", &link).expect("a link");
        for path in [pipe, link] {
            assert!(Log::open(&path, None, 5).is_err(), "{}", path.display());
        }
    }

    #[test]
    fn a_log_begins_at_its_last_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.log");
        for (text, lines, expected) in [
            ("one\ntwo\nthree\n", 2, "two\nthree\n"),
            ("one\ntwo\nthree\n", 9, "one\ntwo\nthree\n"),
            ("one\ntwo\nhal", 1, "hal"),
            ("", 5, ""),
        ] {
            std::fs::write(&path, text).expect("written");
            let log = Log::open(&path, None, lines).expect("opened");
            assert_eq!(String::from_utf8_lossy(&log.rest), expected, "{text:?}");
        }
    }
}
