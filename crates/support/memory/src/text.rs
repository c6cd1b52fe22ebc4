//! Starting takes far more code than serving: arguments, TLS set-up, the first configuration; and so does a connection's
//! beginning: detection, handshake, first labels. The kernel maps 64 KiB around each page that is touched and never takes
//! it back while memory is plenty. Those pages are the program's own file: they are let go once the proxy is ready and a
//! while after connections came, and the few that serving needs come back from the page cache.

use std::cell::Cell;
use std::ffi::CStr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use rustix::mm::{Advice, madvise};
use tokio::time::Instant;

use crate::heap::give_back;

/// Time after which a new connection has begun to be served.
const SETTLE: Duration = Duration::from_secs(2);

/// Time after which every waiter knows of the end of the start: letting go is the last step of the start.
const START: Duration = Duration::from_secs(1);

/// A connection or news within this time before a letting go may have touched pages after it.
const LATE: Duration = Duration::from_secs(1);

/// Least time from one letting go to the next: it costs the requests after it about a hundred faults of a microsecond.
const INTERVAL: Duration = Duration::from_secs(5);

/// Lets go at the end of the start and again after connections or news came. Without them it does nothing and no timer runs.
/// Of one thread, inside a `LocalSet` of tokio.
#[derive(Debug, Clone, Default)]
pub struct TextSettling(Rc<TextState>);

#[derive(Debug, Default)]
struct TextState {
    /// The heap is let go of, too.
    freed: Cell<bool>,
    begun: Cell<bool>,
    pending: Cell<bool>,
    last: Cell<Option<Instant>>,
    /// When the last connection came, or the last news.
    newest: Cell<Option<Instant>>,
}

impl TextSettling {
    /// The proxy is ready, and says so now.
    pub fn begun(&self) {
        self.0.begun.set(true);
        self.let_go_at(Instant::now() + START);
    }

    /// Notes news of the mesh. News before the end of the start belongs to the start.
    pub fn told(&self) {
        if self.0.begun.get() {
            self.arrived();
        }
    }

    /// Notes that much of the heap is free, or will be by the next letting go.
    pub fn freed(&self) {
        self.0.freed.set(true);
        self.arrived();
    }

    /// A connection came.
    pub fn arrived(&self) {
        let now = Instant::now();
        self.0.newest.set(Some(now));
        self.let_go_at(due(self.0.last.get(), now));
    }

    fn let_go_at(&self, mut at: Instant) {
        if self.0.pending.replace(true) {
            return;
        }
        let shared = Rc::clone(&self.0);
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep_until(at).await;
                release_cold_pages();
                if shared.freed.take() {
                    give_back();
                }
                let now = Instant::now();
                shared.last.set(Some(now));
                if !was_late(shared.newest.get(), now) {
                    break;
                }
                at = due(Some(now), now);
            }
            shared.pending.set(false);
        });
    }
}

/// Returns true if something came so shortly before now that it may touch pages yet.
fn was_late(newest: Option<Instant>, now: Instant) -> bool {
    newest.is_some_and(|newest| newest + LATE > now)
}

/// When to let go for a connection that came now.
fn due(last: Option<Instant>, now: Instant) -> Instant {
    let soon = now + SETTLE;
    last.map_or(soon, |last| soon.max(last + INTERVAL))
}

/// Lets go of every page of program text and constants. Gives the bytes of address space that were let go, resident or not.
pub fn release_cold_pages() -> usize {
    let mut released = 0;
    for_each_constant(&mut |range| {
        if release(&range) {
            released += range.len();
        }
    });
    released
}

#[expect(unsafe_code, reason = "pages are given back to the kernel by address")]
fn release(range: &Range<usize>) -> bool {
    let start = std::ptr::without_provenance_mut(range.start);
    // SAFETY: the range is part of a mapping of a file that cannot be written and has no private copy of any page, so
    // that a page that is touched again is read from the file as it was.
    unsafe { madvise(start, range.len(), Advice::LinuxDontNeed) }.is_ok()
}

type Visit<'a> = &'a mut dyn FnMut(Range<usize>);

/// Visits every part of the program and its libraries that is equal to its file. It asks the loader and not the
/// kernel: the loader knows at once what `smaps` finds by a look at every page, which took longer than a minute of
/// idling may.
#[expect(unsafe_code, reason = "the loader calls back with pointers")]
fn for_each_constant(mut visit: Visit<'_>) {
    // SAFETY: the callback gets the pointer that it takes for a visitor. The loader holds its lock meanwhile, so that no
    // file is unmapped under us.
    unsafe { libc::dl_iterate_phdr(Some(each_object), (&raw mut visit).cast()) };
}

#[expect(unsafe_code, reason = "the loader speaks in pointers")]
unsafe extern "C" fn each_object(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    visit: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the loader gives a whole object; `for_each_constant` gives a visitor.
    let (object, visit) = unsafe { (&*object, &mut *visit.cast::<Visit<'_>>()) };
    if object.dlpi_phdr.is_null() || !is_file(object) {
        return 0;
    }
    // SAFETY: the loader says where they are and how many.
    let segments =
        unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let page = rustix::param::page_size();
    for segment in segments {
        let constant = segment.p_type == libc::PT_LOAD && segment.p_flags & libc::PF_W == 0;
        let start = (object.dlpi_addr as usize).wrapping_add(segment.p_vaddr as usize);
        if let Some(range) = whole_pages(start, segment.p_memsz as usize, page).filter(|_| constant)
        {
            visit(range);
        }
    }
    0
}

/// The program has no name, libraries have a path; the kernel's own object has a name that is none.
#[expect(unsafe_code, reason = "the loader speaks in pointers")]
fn is_file(object: &libc::dl_phdr_info) -> bool {
    if object.dlpi_name.is_null() {
        return true;
    }
    // SAFETY: the loader gives a text that ends with a zero.
    let name = unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes();
    name.is_empty() || name.starts_with(b"/")
}

/// Returns the pages that lie wholly in a segment. A segment that is not writable has no private page. Relocations,
/// and data made read-only after them, lie in writable segments (64-bit linkers refuse relocations in text).
fn whole_pages(start: usize, bytes: usize, page: usize) -> Option<Range<usize>> {
    let end = start.checked_add(bytes)? / page * page;
    let start = start.checked_next_multiple_of(page)?;
    (start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_of_a_segment_are_let_go() {
        let table = [
            ((0x1000, 0x2000), Some(0x1000..0x3000)),
            ((0x1080, 0x2000), Some(0x2000..0x3000)),
            ((0x1000, 0xfff), None),
            ((0x1080, 0x1000), None),
            ((usize::MAX - 1, 1), None),
            ((usize::MAX, 2), None),
        ];
        for ((start, bytes), expected) in table {
            assert_eq!(whole_pages(start, bytes, 0x1000), expected, "{start:x}");
        }
    }

    /// Returns the kernel's view of the mappings: range, and if every page is equal to its file.
    fn mappings() -> Vec<(Range<usize>, bool)> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let mut found: Vec<(Range<usize>, bool)> = Vec::new();
        for line in smaps.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            if words[0] == "Anonymous:" {
                let last = found.last_mut().expect("a mapping");
                last.1 &= words[1] == "0";
            } else if let Some((start, end)) = words[0].split_once('-') {
                let number = |text| usize::from_str_radix(text, 16).expect("a number");
                let file = words.get(5).is_some_and(|path| path.starts_with('/'));
                let constant = words[1].as_bytes()[1] == b'-' && words[1].ends_with('p');
                found.push((number(start)..number(end), file && constant));
            }
        }
        found
    }

    #[test]
    fn what_is_let_go_is_what_its_file_says_by_the_kernels_word() {
        let mappings = mappings();
        let mut count = 0;
        for_each_constant(&mut |range| {
            let around = mappings
                .iter()
                .find(|(all, _)| all.start <= range.start && range.end <= all.end);
            assert!(around.is_some_and(|(_, sound)| *sound), "{range:x?}");
            count += 1;
        });
        // Text and constants of the program; a static one has no libraries.
        assert!(count >= 2, "{count}");
    }

    #[test]
    fn it_settles_a_while_after_arrivals_and_not_too_often() {
        let now = Instant::now();
        assert_eq!(due(None, now), now + SETTLE);
        assert_eq!(due(Some(now), now + SETTLE), now + INTERVAL);
        assert_eq!(due(Some(now), now + INTERVAL), now + INTERVAL + SETTLE);
        assert!(!was_late(None, now));
        assert!(was_late(Some(now), now));
        assert!(!was_late(Some(now), now + LATE));
    }

    /// Returns the process's own allocations, in kilobytes.
    fn anonymous() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("a status");
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
        number.and_then(|text| text.parse().ok()).expect("a number")
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn what_was_freed_goes_back_where_that_was_said_and_not_otherwise() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, async {
            // Sixty megabytes in small pieces, below one that stays: the allocator gives nothing back by itself.
            let pieces: Vec<Box<[u8; 1024]>> = (0..60_000).map(|_| Box::new([1; 1024])).collect();
            let stays = Box::new([1; 1024]);
            let full = anonymous();
            drop(pieces);
            let settling = TextSettling::default();
            settling.arrived();
            tokio::time::sleep(SETTLE * 2).await;
            assert!(
                anonymous() + 20_000 > full,
                "nobody said that much was freed"
            );
            settling.freed();
            tokio::time::sleep(INTERVAL * 2).await;
            let left = anonymous();
            assert!(left + 40_000 < full, "{left} kB of {full}");
            drop(stays);
        });
    }

    #[test]
    fn many_arrivals_are_one_letting_go() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        let tasks = tokio::task::LocalSet::new();
        let settling = TextSettling::default();
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
        assert_eq!(whole_pages(0, 8, 4), Some(0..8));
    }
}
