//! The watch on a real folder: intermediate states of writers are not obeyed, and deliberate changes are.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use voile_watch::{FolderWatch, SHRUNK_QUIET};

const WHOLE: &str = "kind: A\nname: a\n---\nkind: B\nname: b\n---\nkind: C\nname: c\n";
/// More than any wait of the tests takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

struct Watched {
    _root: tempfile::TempDir,
    file: PathBuf,
    watch: FolderWatch,
    texts: Vec<String>,
}

impl Watched {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let file = root.path().join("all.yaml");
        fs::write(&file, WHOLE).expect("written");
        fs::write(root.path().join("other.yaml"), "kind: D\n").expect("written");
        let folder = root.path().to_owned();
        let watch = FolderWatch::new(&[folder]).expect("watched");
        let mut watched = Self {
            _root: root,
            file,
            watch,
            texts: Vec::new(),
        };
        watched.load();
        assert_eq!(watched.in_force().as_deref(), Some(WHOLE));
        watched
    }

    fn load(&mut self) {
        let files = self.watch.load().expect("read");
        let named = files.iter().filter(|file| file.name.ends_with("all.yaml"));
        self.texts = named.map(|file| file.text.clone().expect("text")).collect();
    }

    fn in_force(&self) -> Option<String> {
        self.texts.first().cloned()
    }

    /// Follows the folder for this long; every text that came into force in that time.
    async fn follow(&mut self, time: Duration) -> Vec<Option<String>> {
        let mut seen = Vec::new();
        let end = tokio::time::Instant::now() + time;
        while let Ok(()) = tokio::time::timeout_at(end, self.watch.changed()).await {
            self.load();
            if seen.last() != Some(&self.in_force()) {
                seen.push(self.in_force());
            }
        }
        seen
    }

    async fn until(&mut self, wanted: Option<&str>) -> Duration {
        let start = Instant::now();
        while self.in_force().as_deref() != wanted {
            let changed = tokio::time::timeout(DEADLINE, self.watch.changed()).await;
            changed.expect("something changes before the deadline");
            self.load();
        }
        start.elapsed()
    }
}

#[tokio::test]
async fn a_file_that_is_empty_or_short_for_a_while_keeps_its_text() {
    for gap in [0, 20, 50, 500, 2000] {
        let gap = Duration::from_millis(gap);
        let mut watched = Watched::new();
        fs::write(&watched.file, "").expect("emptied");
        let mut seen = watched.follow(gap).await;
        fs::write(&watched.file, WHOLE).expect("written");
        seen.extend(watched.follow(Duration::from_millis(500)).await);
        let whole = Some(WHOLE.to_owned());
        assert!(seen.iter().all(|text| *text == whole), "{gap:?}: {seen:?}");
    }
}

/// Line by line with a pause after each, by one writer or by one for each line.
async fn write_slowly(
    watched: &mut Watched,
    text: &str,
    one_writer: bool,
    pause: Duration,
) -> Vec<Option<String>> {
    let append = |file: &Path| OpenOptions::new().append(true).open(file).expect("opened");
    fs::write(&watched.file, "").expect("emptied");
    let mut writer = append(&watched.file);
    let mut seen = Vec::new();
    for line in text.split_inclusive('\n') {
        if !one_writer {
            writer = append(&watched.file);
        }
        writer.write_all(line.as_bytes()).expect("written");
        if !one_writer {
            writer = fs::File::open(&watched.file).expect("opened");
        }
        seen.extend(watched.follow(pause).await);
    }
    seen
}

#[tokio::test]
async fn a_slow_writer_is_read_when_it_is_done() {
    let new = WHOLE.replace("name: ", "label: ");
    for one_writer in [true, false] {
        let mut watched = Watched::new();
        let pause = Duration::from_millis(400);
        let seen = write_slowly(&mut watched, &new, one_writer, pause).await;
        let part =
            |text: &Option<String>| *text != Some(WHOLE.to_owned()) && *text != Some(new.clone());
        assert!(!seen.iter().any(part), "{one_writer}: {seen:?}");
        watched.until(Some(&new)).await;
        assert!(!watched.watch.take_notes().is_empty());
    }
}

#[tokio::test]
async fn a_new_file_that_is_open_is_read_when_it_is_closed() {
    let mut watched = Watched::new();
    fs::remove_file(&watched.file).expect("removed");
    watched.until(None).await;
    let mut writer = fs::File::create(&watched.file).expect("made");
    writer.write_all(b"kind: A\nna").expect("written");
    let seen = watched.follow(Duration::from_millis(2500)).await;
    assert!(seen.iter().all(Option::is_none), "{seen:?}");
    writer.write_all(b"me: a\n").expect("written");
    drop(writer);
    watched.until(Some("kind: A\nname: a\n")).await;
}

#[tokio::test]
async fn a_removed_or_renamed_file_counts_at_once_and_an_emptied_one_when_it_stays_so() {
    let mut watched = Watched::new();
    let draft = watched.file.with_extension("draft");
    fs::write(&draft, "kind: A\n").expect("written");
    fs::rename(&draft, &watched.file).expect("renamed");
    let took = watched.until(Some("kind: A\n")).await;
    assert!(took < SHRUNK_QUIET / 2, "a rename took {took:?}");
    fs::remove_file(&watched.file).expect("removed");
    let took = watched.until(None).await;
    assert!(took < SHRUNK_QUIET / 2, "a removal took {took:?}");

    let mut watched = Watched::new();
    fs::write(&watched.file, "").expect("emptied");
    let took = watched.until(Some("")).await;
    assert!(took >= SHRUNK_QUIET && took < DEADLINE, "it took {took:?}");
    let notes = watched.watch.take_notes().join("\n");
    assert!(
        notes.contains("it lost 3 of 3 documents while it is being written"),
        "{notes}"
    );
}
