//! Files and what was read of them. A file that did not change is not read again; however many there are, a list that follows on
//! another costs a look at each place, and what changed.

use std::collections::HashMap;
use std::sync::Arc;

use crate::check::checker::Turn;
use crate::check::{ReadFiles, document};
use crate::source::SourceFile;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::check) struct KnownFiles(Vec<ReadFile>);

/// A file and what was read of it.
#[derive(Debug, Clone)]
struct ReadFile {
    file: Arc<SourceFile>,
    read: Arc<ReadFiles>,
}

impl KnownFiles {
    /// The parsed contents of each file, in order.
    pub(in crate::check) fn reads(&self) -> impl Iterator<Item = &Arc<ReadFiles>> {
        self.0.iter().map(|known| &known.read)
    }

    /// Parses changed files; returns the old and new contents of each.
    pub(in crate::check) fn follow(&mut self, files: &[Arc<SourceFile>]) -> Vec<Turn<ReadFiles>> {
        let Steps { there, gone, came } = Steps::between(&self.0, files);
        let mut changed = Vec::new();
        for (at, now) in there {
            let known = &mut self.0[at];
            changed.extend(known.follow(&files[now]));
        }
        if gone.is_empty() && came.is_empty() {
            return changed;
        }
        let mut before: Vec<Option<ReadFile>> = self.0.drain(..).map(Some).collect();
        let gone = gone.into_iter().filter_map(|at| before[at].take());
        let mut gone: HashMap<Arc<str>, ReadFile> =
            gone.map(|known| (known.file.name.clone(), known)).collect();
        let mut staying = before.into_iter().flatten();
        let mut came = came.into_iter().peekable();
        for (now, file) in files.iter().enumerate() {
            let stays = match came.next_if_eq(&now) {
                Some(_) => None,
                None => staying.next(),
            };
            // In another place it is the same file still.
            let known = stays.or_else(|| {
                let mut moved = gone.remove(&file.name)?;
                changed.extend(moved.follow(file));
                Some(moved)
            });
            self.0.push(known.unwrap_or_else(|| {
                let known = ReadFile::of(file);
                changed.push((None, Some(known.read.clone())));
                known
            }));
        }
        changed.extend(gone.into_values().map(|gone| (Some(gone.read), None)));
        changed
    }
}

impl ReadFile {
    fn of(file: &Arc<SourceFile>) -> Self {
        let mut read = ReadFiles::default();
        document::read_file(file, &mut read);
        Self {
            file: file.clone(),
            read: read.into(),
        }
    }

    /// The old and new contents, if the file's text changed.
    fn follow(&mut self, file: &Arc<SourceFile>) -> Option<Turn<ReadFiles>> {
        if self.is(file) || self.file.text == file.text {
            self.file = file.clone();
            return None;
        }
        let before = std::mem::replace(self, Self::of(file));
        Some((Some(before.read), Some(self.read.clone())))
    }

    fn is(&self, file: &Arc<SourceFile>) -> bool {
        Arc::ptr_eq(&self.file, file)
    }
}

/// Differences between two lists of files, by their indexes: files in both lists that are not the same `Arc`, files
/// only in the first list, files only in the second.
#[derive(Default)]
struct Steps {
    there: Vec<(usize, usize)>,
    gone: Vec<usize>,
    came: Vec<usize>,
}

impl Steps {
    /// Number of entries that are searched ahead for a moved file. A file that is not found counts as removed and added
    /// again.
    const AHEAD: usize = 32;

    fn between(known: &[ReadFile], files: &[Arc<SourceFile>]) -> Self {
        let mut steps = Self::default();
        let (mut at, mut now) = (0, 0);
        while let (Some(one), Some(file)) = (known.get(at), files.get(now)) {
            if one.is(file) {
                (at, now) = (at + 1, now + 1);
                continue;
            }
            if one.file.name == file.name {
                steps.there.push((at, now));
                (at, now) = (at + 1, now + 1);
                continue;
            }
            let mut ahead = 1..=Self::AHEAD;
            let leads = |&far: &usize| {
                let later = known.get(at + far).is_some_and(|later| later.is(file));
                later || files.get(now + far).is_some_and(|later| one.is(later))
            };
            let Some(far) = ahead.find(leads) else {
                steps.gone.push(at);
                steps.came.push(now);
                (at, now) = (at + 1, now + 1);
                continue;
            };
            match known.get(at + far).is_some_and(|later| later.is(file)) {
                true => {
                    steps.gone.extend(at..at + far);
                    at += far;
                }
                false => {
                    steps.came.extend(now..now + far);
                    now += far;
                }
            }
        }
        steps.gone.extend(at..known.len());
        steps.came.extend(now..files.len());
        steps
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// Files appear, disappear, change, move and get new names, alone and all at once. The known files follow, and
    /// exactly the changed files are reported as changed.
    #[test]
    fn what_is_known_of_files_follows_them_wherever_they_stand() {
        let text = |random: &mut fastrand::Rng| {
            let number = random.u8(..5);
            format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: n{number}}}")
        };
        let (mut moves, mut all) = (0, 0);
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut known_files = KnownFiles::default();
            let mut files: Vec<Arc<SourceFile>> = Vec::new();
            for _ in 0..20 {
                for _ in 0..random.usize(..6) {
                    let at = random.usize(..=files.len());
                    match random.u8(..5) {
                        0 | 1 => {
                            let name = random.u8(..99).to_string();
                            let file = Arc::new(SourceFile::new(name, text(&mut random)));
                            if files.iter().all(|one| one.name != file.name) {
                                files.insert(at, file);
                            }
                        }
                        2 if at < files.len() => drop(files.remove(at)),
                        3 if at < files.len() => {
                            let changed =
                                SourceFile::new(files[at].name.clone(), text(&mut random));
                            files[at] = changed.into();
                        }
                        4 if at < files.len() => {
                            moves += 1;
                            let moved = files.remove(at);
                            files.insert(random.usize(..=files.len()), moved);
                        }
                        _ => {}
                    }
                }
                if random.u8(..10) == 0 {
                    all += 1;
                    files = files.iter().map(|one| Arc::new((**one).clone())).collect();
                }
                let before: BTreeMap<_, _> = texts(&known_files);
                let changed = known_files.follow(&files);
                let known: Vec<_> = known_files.0.iter().map(|one| one.file.clone()).collect();
                assert!(
                    known
                        .iter()
                        .zip(&files)
                        .all(|(one, other)| Arc::ptr_eq(one, other)),
                    "seed {seed}"
                );
                assert_eq!(known.len(), files.len(), "seed {seed}");
                for one in &known_files.0 {
                    assert_eq!(
                        one.read.good,
                        ReadFile::of(&one.file).read.good,
                        "seed {seed}"
                    );
                }
                let now = texts(&known_files);
                let names = before.keys().chain(now.keys()).collect::<BTreeSet<_>>();
                let others = names
                    .into_iter()
                    .filter(|name| before.get(*name) != now.get(*name));
                assert_eq!(changed.len(), others.count(), "seed {seed}");
            }
        }
        assert!(moves > 100 && all > 100, "{moves} {all}");
    }

    fn texts(known_files: &KnownFiles) -> BTreeMap<Arc<str>, Arc<SourceFile>> {
        let files = known_files.0.iter().map(|known| known.file.clone());
        files.map(|file| (file.name.clone(), file)).collect()
    }
}
