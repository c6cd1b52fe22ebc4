//! Files that are being written in place. `: > f; cat new > f`, `helm template > f` and a slow writer leave a file empty,
//! short or open for a while. Obeying that state would remove resources by mistake. The text in force stays until the
//! file is whole or quiet. Pure; time is an argument.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use voile_model::SourceFile;

/// A file that lost documents is taken when it did not change for this long: longer than a pause between two commands of
/// a script, short enough for a person who removed the documents on purpose.
pub const SHRUNK_QUIET: Duration = Duration::from_secs(3);
/// A file that is whole again, or lost only lines at its end, is taken when it did not change for this long.
pub const WHOLE_QUIET: Duration = Duration::from_secs(1);
/// No file is waited for longer than this. A writer that never closes its file has an end here.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Why a text may not be its writer's last word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnfinishedReason {
    /// So many documents of so many are gone.
    Lost(usize, usize),
    /// The old text is cut at its end; no document is gone.
    Cut,
    /// The writer has the file open.
    Open,
}

#[derive(Debug)]
struct FileWait {
    since: Instant,
    /// When its text was last seen to change.
    changed: Instant,
    text: Result<String, String>,
    state: Option<UnfinishedReason>,
    open: bool,
}

impl FileWait {
    fn due(&self) -> Instant {
        let longest = self.since + LONGEST_WAIT;
        let quiet = match self.state {
            _ if self.open => return longest,
            Some(UnfinishedReason::Lost(..)) => SHRUNK_QUIET,
            _ => WHOLE_QUIET,
        };
        longest.min(self.changed + quiet)
    }
}

/// The files of a folder that are waited for.
#[derive(Debug, Default)]
pub(crate) struct FileWaits {
    files: BTreeMap<PathBuf, FileWait>,
}

impl FileWaits {
    /// Returns true if the text that was read takes the place of the text in force. `open`: another process writes into
    /// the file. Notes are for people.
    pub(crate) fn admits(
        &mut self,
        (path, open): (&Path, bool),
        in_force: Option<&SourceFile>,
        read: &SourceFile,
        (now, notes): (Instant, &mut Vec<String>),
    ) -> bool {
        if in_force == Some(read) {
            if self.files.remove(path).is_some() {
                notes.push(format!("{} is unchanged again", read.name));
            }
            return true;
        }
        let state = judge(in_force, read, open);
        let Some(wait) = self.files.get_mut(path) else {
            let Some(why) = state else { return true };
            notes.push(waiting(&read.name, why, open));
            let wait = FileWait {
                since: now,
                changed: now,
                text: read.text.clone(),
                state,
                open,
            };
            self.files.insert(path.to_owned(), wait);
            return false;
        };
        if wait.text != read.text {
            wait.text = read.text.clone();
            wait.changed = now;
        }
        (wait.state, wait.open) = (state, open);
        if now < wait.due() {
            return false;
        }
        self.files.remove(path);
        notes.push(taken(&read.name, state));
        true
    }

    /// The file is gone, or another one has taken its place.
    pub(crate) fn forget(&mut self, path: &Path) {
        self.files.remove(path);
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.keys()
    }

    /// When the first of them is to be read again, even if nothing happens.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.files.values().map(FileWait::due).min()
    }
}

fn judge(in_force: Option<&SourceFile>, read: &SourceFile, open: bool) -> Option<UnfinishedReason> {
    let still_open = open.then_some(UnfinishedReason::Open);
    let Ok(new) = &read.text else {
        return still_open;
    };
    let Some(old) = in_force else {
        return still_open;
    };
    // A text that could not be read has no documents to lose.
    let Ok(old) = &old.text else {
        return still_open.filter(|_| !new.ends_with('\n'));
    };
    let of = documents(old);
    let lost = of.saturating_sub(documents(new));
    let cut = new.len() < old.len() && old.starts_with(new.trim_end());
    match lost {
        0 if cut => Some(UnfinishedReason::Cut),
        0 => still_open.filter(|_| !new.ends_with('\n')),
        _ if cut || open || lost * 2 > of => Some(UnfinishedReason::Lost(lost, of)),
        _ => None,
    }
}

/// Number of documents in a text that have a line that is neither blank nor a comment.
fn documents(text: &str) -> usize {
    let (mut count, mut inside) = (0, false);
    for line in text.lines() {
        if line.starts_with("---") || line.starts_with("...") {
            // `--- # a comment` and `--- {a: 1}` both begin a document.
            let rest = line[3..].trim();
            inside = !rest.is_empty() && !rest.starts_with('#');
            count += usize::from(inside);
            continue;
        }
        let line = line.trim();
        if !inside && !line.is_empty() && !line.starts_with('#') {
            inside = true;
            count += 1;
        }
    }
    count
}

fn waiting(name: &str, why: UnfinishedReason, open: bool) -> String {
    let until = match why {
        _ if open => format!(
            "it is read when its writer closes it, after {} s at the latest",
            LONGEST_WAIT.as_secs()
        ),
        UnfinishedReason::Lost(..) => {
            format!(
                "it is read after {} s without a change",
                SHRUNK_QUIET.as_secs()
            )
        }
        _ => format!(
            "it is read after {} s without a change",
            WHOLE_QUIET.as_secs()
        ),
    };
    let what = match why {
        UnfinishedReason::Lost(lost, of) => {
            format!("it lost {lost} of {of} documents while it is being written")
        }
        UnfinishedReason::Cut => "its end is missing while it is being written".to_owned(),
        UnfinishedReason::Open => "it is being written".to_owned(),
    };
    format!("waiting for {name}: {what}; {until}")
}

fn taken(name: &str, state: Option<UnfinishedReason>) -> String {
    match state {
        Some(UnfinishedReason::Lost(lost, of)) => {
            format!("{name} is read as it is, without {lost} of {of} documents")
        }
        _ => format!("{name} is read as it is now"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: &str = "a: 1\n---\nb: 2\n---\nc: 3\n";

    #[test]
    fn documents_are_counted_without_comments_and_empty_ones() {
        for (text, count) in [
            ("", 0),
            ("# only\n\n", 0),
            ("---\n---\n", 0),
            ("a: 1", 1),
            ("---\na: 1\n", 1),
            ("# head\n---\na: 1\n--- # next\nb: 2\n...\n", 2),
            ("--- {a: 1}\n--- {b: 1}\n", 2),
            (THREE, 3),
        ] {
            assert_eq!(documents(text), count, "{text:?}");
        }
    }

    #[test]
    fn a_shrunk_cut_or_open_file_is_unfinished_and_any_other_edit_is_not() {
        use UnfinishedReason::{Cut, Lost, Open};
        for (old, new, open, expected) in [
            (Some(THREE), "", false, Some(Lost(3, 3))),
            (Some(THREE), "a: 1\n", false, Some(Lost(2, 3))),
            (Some(THREE), "a: 1\n---\nb: 2\n", false, Some(Lost(1, 3))),
            (Some(THREE), "a: 9\n---\nb: 2\n", true, Some(Lost(1, 3))),
            (Some(THREE), "a: 1\n---\nc: 3\n", false, None),
            (Some(THREE), "a: 9\n---\nb: 2\n---\nc: 3\n", true, None),
            (Some(THREE), "a: 9\n---\nb: 2\n---\nc:", true, Some(Open)),
            (Some(THREE), "a: 9\n---\nb: 2\n---\nc: 3", false, None),
            (Some("a:\n  b: 1\n"), "a:\n", false, Some(Cut)),
            (Some("a:\n  b: 1\n"), "a:\n  b: 12\n", false, None),
            (None, "a: 1\n", true, Some(Open)),
            (None, "a: 1\n", false, None),
        ] {
            let old = old.map(|text| SourceFile::new("f", text));
            let found = judge(old.as_ref(), &SourceFile::new("f", new), open);
            assert_eq!(found, expected, "{new:?} {open}");
        }
    }

    /// Steps are (milliseconds, text read, open, taken).
    fn check(old: &str, steps: &[(u64, &str, bool, bool)]) {
        let (start, path) = (Instant::now(), Path::new("f"));
        let old = SourceFile::new("f", old);
        let (mut waits, mut notes) = (FileWaits::default(), Vec::new());
        for (at, text, open, expected) in steps {
            let now = start + Duration::from_millis(*at);
            let read = SourceFile::new("f", *text);
            let taken = waits.admits((path, *open), Some(&old), &read, (now, &mut notes));
            assert_eq!(taken, *expected, "at {at} ms of {steps:?}: {notes:?}");
        }
    }

    #[test]
    fn a_file_is_waited_for_until_it_is_whole_or_quiet_and_never_for_ever() {
        // Emptied, and written again with the same text.
        check(
            THREE,
            &[
                (0, "", false, false),
                (2999, "", false, false),
                (2999, THREE, false, true),
            ],
        );
        // Emptied on purpose.
        check(THREE, &[(0, "", false, false), (3000, "", false, true)]);
        // Written line by line, each by another process, with another text.
        check(
            THREE,
            &[
                (0, "", false, false),
                (2900, "x: 1\n", false, false),
                (5800, "x: 1\n---\ny: 2\n", false, false),
                (8700, "x: 1\n---\ny: 2\n---\nz:\n", false, false),
                (9600, "x: 1\n---\ny: 2\n---\nz:\n w: 3\n", false, false),
                (10_600, "x: 1\n---\ny: 2\n---\nz:\n w: 3\n", false, true),
            ],
        );
        // A writer that never closes.
        check(
            THREE,
            &[
                (0, "", true, false),
                (29_999, "", true, false),
                (30_000, "", true, true),
            ],
        );
    }
}
