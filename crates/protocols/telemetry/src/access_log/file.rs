//! Lines into a file or onto standard output, by a thread of its own. A file that was moved or removed is opened anew
//! under its name, as log rotation expects.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use crate::outbox::{Inbox, Outbox, outbox};

/// Time for which lines are gathered after the first, before they are written. A busy proxy writes ten times a
/// second, an idle one never wakes.
pub(super) const GATHER_LINES: Duration = Duration::from_millis(100);

/// Most lines of one write.
const MAX_LINES_PER_WRITE: usize = 1024;

/// Time for which an ending process waits for a slow disk or a reader that does not read.
pub const LAST_LINES: Duration = Duration::from_secs(1);

/// The sending end. Cheap to clone, one per worker.
#[derive(Debug, Clone)]
pub struct FileLog {
    lines: Outbox<String>,
    reopen: Arc<AtomicBool>,
}

/// The writing thread. Dropping this leaves it to itself.
#[derive(Debug)]
pub struct WriterThread {
    ended: Receiver<()>,
    thread: std::thread::Thread,
}

impl FileLog {
    /// Opens `path` (`/dev/stdout`, `/dev/stderr` or a file, appended to) and starts the writing thread.
    ///
    /// # Errors
    /// When the file cannot be opened or the thread not started.
    pub fn start(path: &str) -> io::Result<(Self, WriterThread)> {
        let reopen = Arc::new(AtomicBool::new(false));
        let target = match path {
            "/dev/stdout" => LogTarget::Stream(Box::new(io::stdout())),
            "/dev/stderr" => LogTarget::Stream(Box::new(io::stderr())),
            path => LogTarget::File {
                file: append(path)?,
                path: path.into(),
                reopen: Arc::clone(&reopen),
            },
        };
        let (lines, inbox) = outbox();
        let (at_end, ended) = sync_channel::<()>(0);
        let handle = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || write_lines(inbox, target, &at_end))?;
        let thread = handle.thread().clone();
        Ok((Self { lines, reopen }, WriterThread { ended, thread }))
    }

    /// Queues a line, or drops it when there is no room.
    pub fn write(&self, line: String) {
        let bytes = line.len();
        self.lines.send(line, bytes);
    }

    /// Lines dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.lines.dropped()
    }

    /// The next line goes to a newly opened file.
    pub fn reopen(&self) {
        self.reopen.store(true, Ordering::Relaxed);
    }
}

impl WriterThread {
    /// Waits until everything is written: at most [`LAST_LINES`], and only of use once every [`FileLog`] is dropped.
    /// Says whether it is.
    #[must_use]
    pub fn finish(&self) -> bool {
        self.thread.unpark();
        self.ended.recv_timeout(LAST_LINES) == Err(RecvTimeoutError::Disconnected)
    }
}

enum LogTarget {
    Stream(Box<dyn Write + Send>),
    File {
        file: File,
        path: PathBuf,
        reopen: Arc<AtomicBool>,
    },
}

impl LogTarget {
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        self.follow()?;
        match self {
            Self::Stream(stream) => stream.write_all(lines).and_then(|()| stream.flush()),
            Self::File { file, .. } => file.write_all(lines),
        }
    }

    /// Opens the file anew on request, or when its name leads elsewhere.
    fn follow(&mut self) -> io::Result<()> {
        let Self::File { file, path, reopen } = self else {
            return Ok(());
        };
        let asked = reopen.swap(false, Ordering::Relaxed);
        let place = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let there = std::fs::metadata(&*path).map(place).ok();
        if asked || there != Some(place(file.metadata()?)) {
            *file = append(path)?;
        }
        Ok(())
    }
}

fn append(path: impl AsRef<std::path::Path>) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Writes the queued lines in one go, then waits for more; ends when every sender is gone.
fn write_lines(mut inbox: Inbox<String>, mut target: LogTarget, _at_end: &SyncSender<()>) {
    let mut bytes = String::new();
    while let Ok(first) = inbox.wait() {
        std::thread::park_timeout(GATHER_LINES);
        let mut lines = vec![first];
        while !lines.is_empty() {
            inbox.take(&mut lines, MAX_LINES_PER_WRITE);
            bytes.clear();
            lines.iter().for_each(|line| bytes.push_str(line));
            // A full disk must not stop the proxy; the next lines try again.
            if let Err(error) = target.write(bytes.as_bytes()) {
                inbox.lost(lines.len() as u64);
                tracing::debug!(%error, "cannot write the access log");
            }
            let more = lines.len() == MAX_LINES_PER_WRITE;
            lines.clear();
            inbox.take(&mut lines, usize::from(more));
        }
    }
}
