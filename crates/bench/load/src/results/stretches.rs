//! Counts of each second of a run, or of shorter stretches. A set of samples takes tens of kilobytes while it can grow, and a run may
//! last for days, so only the stretches that were counted in last can grow; the others are packed.

use std::collections::VecDeque;

use super::samples::{PackedSamples, Samples};

/// Stretches whose samples can grow. Answers come to the second in which they were due, so this is how many seconds late they may
/// be before samples are packed and unpacked for them.
const OPEN: usize = 64;

/// Counts of one stretch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stretch {
    pub(crate) sent: u64,
    pub(crate) ok: u64,
    pub(crate) errors: u64,
    latency: StretchSamples,
}

#[derive(Debug, Clone)]
enum StretchSamples {
    Open(Samples),
    Packed(PackedSamples),
}

impl Default for StretchSamples {
    fn default() -> Self {
        Self::Packed(PackedSamples::default())
    }
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stretches {
    all: Vec<Stretch>,
    /// Places of those that are open, the one opened first at the front.
    open: VecDeque<usize>,
}

impl Stretch {
    pub(crate) fn latency(&self) -> Samples {
        match &self.latency {
            StretchSamples::Open(samples) => samples.clone(),
            StretchSamples::Packed(packed) => packed.unpack(),
        }
    }
}

impl Stretches {
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Stretch> {
        self.all.iter()
    }

    /// Adds a latency to a stretch, and gives its other counts.
    pub(crate) fn record(&mut self, at: u64, latency: u64) -> &mut Stretch {
        let at = at as usize;
        if self.all.len() <= at {
            self.all.resize_with(at + 1, Stretch::default);
        }
        if matches!(self.all[at].latency, StretchSamples::Packed(_)) {
            self.open(at);
        }
        let stretch = &mut self.all[at];
        if let StretchSamples::Open(samples) = &mut stretch.latency {
            samples.record(latency);
        }
        stretch
    }

    fn open(&mut self, at: usize) {
        if self.open.len() >= OPEN
            && let Some(first) = self.open.pop_front()
        {
            let stretch = &mut self.all[first];
            stretch.latency = StretchSamples::Packed(stretch.latency().pack());
        }
        let stretch = &mut self.all[at];
        stretch.latency = StretchSamples::Open(stretch.latency());
        self.open.push_back(at);
    }

    /// Adds the counts of another thread.
    pub(crate) fn merge(&mut self, other: &Self) {
        let length = self.all.len().max(other.all.len());
        self.all.resize_with(length, Stretch::default);
        for (mine, theirs) in self.all.iter_mut().zip(&other.all) {
            mine.sent += theirs.sent;
            mine.ok += theirs.ok;
            mine.errors += theirs.errors;
            let mut latency = mine.latency();
            latency.merge(&theirs.latency());
            mine.latency = StretchSamples::Packed(latency.pack());
        }
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    #[test]
    fn a_long_run_keeps_few_stretches_open_and_loses_no_sample() {
        let mut stretches = Stretches::default();
        for second in 0..1000 {
            stretches.record(second, MILLISECOND).ok += 1;
            // An answer that comes late, to a stretch that is packed.
            let late = second.saturating_sub(2 * OPEN as u64);
            stretches.record(late, 3 * MILLISECOND).errors += 1;
        }
        let open = |stretch: &&Stretch| matches!(stretch.latency, StretchSamples::Open(_));
        assert_eq!(stretches.iter().filter(open).count(), OPEN);
        let packed = stretches.iter().map(|stretch| match &stretch.latency {
            StretchSamples::Open(_) => 0,
            StretchSamples::Packed(packed) => packed.bytes(),
        });
        assert!(packed.max() < Some(100), "bytes of two samples");
        let mut whole = stretches.clone();
        whole.merge(&stretches);
        for (all, factor) in [(&stretches, 1), (&whole, 2)] {
            let sums = all.iter().fold([0; 3], |[ok, errors, samples], one| {
                [
                    ok + one.ok,
                    errors + one.errors,
                    samples + one.latency().count(),
                ]
            });
            assert_eq!(sums, [1000, 1000, 2000].map(|sum| sum * factor));
        }
        let fifth = whole.iter().nth(5).expect("a second").latency().summary();
        assert_eq!((fifth.count, fifth.p50, fifth.max), (4, 1000, 3001));
    }
}
