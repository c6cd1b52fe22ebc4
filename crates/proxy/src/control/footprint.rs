//! Starting takes far more code than serving: arguments, TLS set-up, the first configuration; and so does a connection's
//! beginning: detection, handshake, first labels. The kernel maps 64 KiB around each page that is touched and never takes
//! it back while memory is plenty. Those pages are the program's own file: they are let go once the proxy is ready and a
//! while after connections came, and the few that serving needs come back from the page cache.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use rustix::mm::{Advice, madvise};
use tokio::time::Instant;

/// Whoever connects has begun to be served after this long.
const SETTLE: Duration = Duration::from_secs(2);

/// Least time from one letting go to the next: it costs the requests after it about a hundred faults of a microsecond.
const INTERVAL: Duration = Duration::from_secs(5);

/// Lets go again after connections came. Without connections it does nothing and no timer runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Settling(Rc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    pending: Cell<bool>,
    last: Cell<Option<Instant>>,
}

impl Settling {
    /// A connection came.
    pub(super) fn arrived(&self) {
        if self.0.pending.replace(true) {
            return;
        }
        let at = due(self.0.last.get(), Instant::now());
        let shared = Rc::clone(&self.0);
        tokio::task::spawn_local(async move {
            tokio::time::sleep_until(at).await;
            release_cold_pages();
            shared.last.set(Some(Instant::now()));
            shared.pending.set(false);
        });
    }
}

/// When to let go for a connection that came now.
fn due(last: Option<Instant>, now: Instant) -> Instant {
    let soon = now + SETTLE;
    last.map_or(soon, |last| soon.max(last + INTERVAL))
}

/// Lets go of every page of program text and constants that is an unmodified copy of its file. Gives the bytes that
/// were resident there.
pub(super) fn release_cold_pages() -> usize {
    // Without /proc nothing is released: memory is all that is lost.
    let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else {
        return 0;
    };
    let mut released = 0;
    for mapping in unmodified(&smaps) {
        if release(&mapping.range) {
            released += mapping.resident;
        }
    }
    released
}

#[expect(unsafe_code, reason = "pages are given back to the kernel by address")]
fn release(range: &Range<usize>) -> bool {
    let start = std::ptr::without_provenance_mut(range.start);
    // SAFETY: the range is a whole mapping of a file that cannot be written and has no private copy of any page, so
    // whatever is touched again is read from the file as it was.
    unsafe { madvise(start, range.len(), Advice::LinuxDontNeed) }.is_ok()
}

/// A mapping whose every page is what its file says.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<usize>,
    resident: usize,
}

/// Reads `/proc/PID/smaps`: private mappings of files, not writable, without a page of their own.
fn unmodified(smaps: &str) -> Vec<Mapping> {
    let mut found = Vec::new();
    let mut current: Option<Mapping> = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), Some(second)) = (words.next(), words.next()) else {
            continue;
        };
        match first {
            "Rss:" => {
                if let Some(mapping) = &mut current {
                    mapping.resident = second.parse::<usize>().unwrap_or(0) * 1024;
                }
            }
            "Anonymous:" => {
                if let Some(mapping) = current.take()
                    && second == "0"
                {
                    found.push(mapping);
                }
            }
            _ if !first.ends_with(':') => {
                let file = words.nth(3).is_some_and(|path| path.starts_with('/'));
                let constant = second.starts_with('r') && second.as_bytes().get(1) == Some(&b'-');
                current = range(first)
                    .filter(|_| file && constant && second.ends_with('p'))
                    .map(|range| Mapping { range, resident: 0 });
            }
            _ => {}
        }
    }
    found
}

fn range(text: &str) -> Option<Range<usize>> {
    let (start, end) = text.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
1000-3000 r-xp 00001000 fe:00 7 /usr/bin/program
Rss:                   8 kB
Anonymous:             0 kB
VmFlags: rd ex
3000-4000 r--p 00003000 fe:00 7 /usr/bin/program
Rss:                   4 kB
Anonymous:             4 kB
4000-5000 rw-p 00004000 fe:00 7 /usr/bin/program
Rss:                   4 kB
Anonymous:             0 kB
5000-6000 r--p 00000000 00:00 0
Rss:                   4 kB
Anonymous:             0 kB
6000-7000 r--s 00000000 fe:00 9 /shared
Rss:                   4 kB
Anonymous:             0 kB
7000-8000 r-xp 00000000 00:00 0                                          [vdso]
Rss:                   4 kB
Anonymous:             0 kB
";

    #[test]
    fn only_unmodified_private_constant_file_mappings_are_let_go() {
        assert_eq!(
            unmodified(SMAPS),
            [Mapping {
                range: 0x1000..0x3000,
                resident: 8192
            }]
        );
        assert_eq!(unmodified("garbage\n- -\nRss: x\nAnonymous: 0 kB\n"), []);
    }

    #[test]
    fn it_settles_a_while_after_arrivals_and_not_too_often() {
        let now = Instant::now();
        assert_eq!(due(None, now), now + SETTLE);
        assert_eq!(due(Some(now), now + SETTLE), now + INTERVAL);
        assert_eq!(due(Some(now), now + INTERVAL), now + INTERVAL + SETTLE);
    }

    #[test]
    fn many_arrivals_are_one_letting_go() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        let tasks = tokio::task::LocalSet::new();
        let settling = Settling::default();
        tasks.block_on(&runtime, async {
            (0..100).for_each(|_| settling.arrived());
        });
        assert!(settling.0.pending.get());
        // Each that waits holds a share.
        assert_eq!(Rc::strong_count(&settling.0), 2);
    }

    #[test]
    fn a_process_goes_on_after_letting_go_of_its_text() {
        assert!(release_cold_pages() > 0);
        let again = format!("{:?}", unmodified(SMAPS));
        assert!(again.contains("8192"));
    }
}
