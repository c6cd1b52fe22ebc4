//! One process that should run for as long as its pod does: started again when it ends, with growing pauses, as Kubernetes'
//! `restartPolicy: Always` does it. Its output goes to a file of the run.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use voile_host::child::{ChildExit, LineSink, Output, Spec, SupervisedChild};
use voile_host::confinement::Confinement;
use voile_host::isolation::ProcessIsolation;
use voile_model::mesh::Restart;

/// Pause before the second restart; the first is at once. Kubernetes begins with 10 s, which is long for a user who
/// edits and looks.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Running time after which earlier ends no longer count.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);
/// Lines of a log that are shown when a process failed.
const SHOWN_LINES: usize = 3;
/// Bytes at the end of a log that are read when a process died.
const TAIL_BYTES: u64 = 16 * 1024;
/// Characters of a first error that are shown.
const ERROR_CHARS: usize = 240;

/// The pause before a process is started for the `restart`-th time in a row (from 0).
pub fn pause(restart: u32) -> Duration {
    match restart {
        0 => Duration::ZERO,
        n => FIRST_PAUSE
            .saturating_mul(1 << (n - 1).min(16))
            .min(LONGEST_PAUSE),
    }
}

/// Returns true if a process with this exit is started again.
fn starts_again(policy: Restart, exit: ChildExit, restarts: u32) -> bool {
    match policy {
        Restart::Always => true,
        Restart::Times(most) => !exit.is_success() && restarts < most,
        Restart::OnFailure => !exit.is_success(),
        Restart::Never => false,
    }
}

/// Description of a process, for every start of it.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// Name of the process and of its log.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables on top of ours.
    pub env: Vec<(String, String)>,
    /// Working folder.
    pub folder: Option<PathBuf>,
    /// Its log.
    pub log: PathBuf,
    /// True if its lines are shown too.
    pub show: bool,
    /// Place in which it runs, if it is not this program's own.
    pub place: Option<ProcessIsolation>,
    /// Policy for starting it again when it ends.
    pub restart: Restart,
}

/// One run of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessRun {
    /// When it began.
    pub since: Instant,
    /// Number of processes before it.
    pub number: u32,
}

impl Recipe {
    /// Another program in the same place, with the same variables. A path is meant from the working directory.
    pub fn beside(&self, mut words: impl Iterator<Item = String>) -> Self {
        let program = words.next().unwrap_or_default();
        let program = match &self.folder {
            Some(folder) if program.contains('/') => folder.join(program),
            _ => program.into(),
        };
        Self {
            program,
            args: words.collect(),
            ..self.clone()
        }
    }

    /// Returns the start parameters, without the output.
    pub fn spec(&self) -> Spec {
        let mut spec = Spec::new(&self.name, &self.program).args(&self.args);
        for (name, value) in &self.env {
            spec = spec.env(name, value);
        }
        if let Some(folder) = &self.folder {
            spec = spec.folder(folder);
        }
        if let Some(place) = &self.place {
            let place = place.clone();
            spec = spec.place(match &self.folder {
                Some(folder) => place.starting_in(folder),
                None => place,
            });
        }
        spec
    }

    /// Another user cannot write where our own home is; its container may have said where its home is.
    #[must_use]
    pub fn with_a_home(mut self) -> Self {
        let confinement = self.place.as_ref().and_then(ProcessIsolation::confinement);
        if confinement.and_then(Confinement::user).is_some() {
            self.env.insert(0, ("HOME".to_owned(), "/tmp".to_owned()));
        }
        self
    }

    /// The same, there.
    pub fn at(self, place: Option<ProcessIsolation>) -> Self {
        Self { place, ..self }
    }
}

/// A process and its history.
#[derive(Debug)]
pub struct Process {
    recipe: Recipe,
    child: Option<SupervisedChild>,
    /// A second one that is to take over from the first, as sidecars can.
    successor: Option<SupervisedChild>,
    started: Instant,
    /// Ends in a row, without a long life between.
    ends: u32,
    /// Length of its log when it was started.
    log_before: u64,
    /// First line of the last failed run that names an error.
    first_error: Option<String>,
    start_at: Instant,
    /// Number of restarts.
    pub restarts: u32,
    /// Time at which its remaining processes are killed for a new start.
    kill_at: Option<Instant>,
    /// It is to end for good.
    over: bool,
    /// Its final exit.
    finished: Option<ChildExit>,
}

impl Process {
    /// Not yet started; the first [`Self::tick`] does it.
    pub fn new(recipe: Recipe) -> Self {
        let now = Instant::now();
        Self {
            recipe,
            child: None,
            successor: None,
            started: now,
            ends: 0,
            log_before: 0,
            first_error: None,
            start_at: now,
            restarts: 0,
            kill_at: None,
            over: false,
            finished: None,
        }
    }

    /// Name of the process.
    pub fn name(&self) -> &str {
        &self.recipe.name
    }

    /// Changes the words with which it is started the next time.
    pub fn change_args(&mut self, change: impl FnOnce(&mut Vec<String>)) {
        change(&mut self.recipe.args);
    }

    /// Returns true if it runs.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Looks after it: starts it when it is time, notices its end. Returns a message for the user.
    pub fn tick(&mut self, now: Instant) -> Option<String> {
        if self.finished.is_some() {
            return None;
        }
        let Some(child) = &mut self.child else {
            if let Some(successor) = self.successor.take() {
                return self.succeed(successor, now);
            }
            return if now >= self.start_at {
                self.start(now)
            } else {
                None
            };
        };
        if self.kill_at.is_some_and(|at| now >= at) {
            child.stop(Duration::ZERO);
        }
        let Some(exit) = child.try_exit() else {
            let exit = self.successor.as_mut()?.try_exit()?;
            self.successor = None;
            let name = self.name();
            return Some(format!("the new {name} {exit}; the old one keeps serving"));
        };
        self.child = None;
        self.kill_at = None;
        self.first_error = match exit.is_success() {
            true => None,
            false => first_error(&self.recipe.log, self.log_before),
        };
        if let Some(successor) = self.successor.take() {
            return self.succeed(successor, now);
        }
        if now.duration_since(self.started) >= FORGIVEN_AFTER {
            self.ends = 0;
        }
        if self.over || !starts_again(self.recipe.restart, exit, self.restarts) {
            self.finished = Some(exit);
            let mut text = format!("{} {exit}", self.name());
            if !exit.is_success() && !self.over {
                self.add_last_lines(&mut text);
            }
            return Some(text);
        }
        Some(self.ended(now, &exit.to_string(), exit))
    }

    /// The old one has ended, as it should when another has taken over.
    fn succeed(&mut self, successor: SupervisedChild, now: Instant) -> Option<String> {
        self.child = Some(successor);
        self.started = now;
        Some(format!("{} is replaced", self.name()))
    }

    /// Starts a second process that is to take over from the running one; the recipe says how they find each other. Without
    /// a running one nothing is done: the next start is a new process anyway.
    pub fn replace(&mut self) -> Result<(), String> {
        if self.child.is_none() || self.successor.is_some() {
            return Ok(());
        }
        let started = self.spec(false).start().map_err(|error| error.to_string());
        self.successor = Some(started?);
        Ok(())
    }

    /// Returns true if a successor is taking over.
    pub fn is_being_replaced(&self) -> bool {
        self.successor.is_some()
    }

    fn start(&mut self, now: Instant) -> Option<String> {
        let first = self.ends == 0 && self.restarts == 0;
        let spec = self.spec(first);
        self.log_before = fs::metadata(&self.recipe.log).map_or(0, |log| log.len());
        match spec.start() {
            Ok(child) => {
                self.child = Some(child);
                self.started = now;
                if !first {
                    self.restarts += 1;
                }
                None
            }
            Err(error) => {
                let mut how = error.to_string();
                let place = self.recipe.place.as_ref();
                let confinement = place.and_then(ProcessIsolation::confinement);
                let user = confinement.and_then(Confinement::user);
                if let Some(user) = user.filter(|_| error.is_forbidden()) {
                    let hint = format!(
                        " (it runs as user {}, who cannot read folders such as /root: put its programs and files into the mesh's folder or into one that every user can read)",
                        user.uid
                    );
                    how.push_str(&hint);
                }
                Some(self.ended(now, &how, ChildExit::Code(127)))
            }
        }
    }

    fn ended(&mut self, now: Instant, how: &str, exit: ChildExit) -> String {
        let pause = pause(self.ends);
        self.ends = self.ends.saturating_add(1);
        self.start_at = now + pause;
        let when = if pause.is_zero() {
            "at once".to_owned()
        } else {
            format!("in {pause:?}")
        };
        let mut text = format!("{} {how}; starting it again {when}", self.name());
        if !exit.is_success() {
            self.add_last_lines(&mut text);
        }
        text
    }

    /// The ends in a row and the first error of the last one, while the process has not run for long since.
    pub fn crash_loop(&self, now: Instant) -> Option<String> {
        let lasts = self.child.is_some() && now.duration_since(self.started) >= FORGIVEN_AFTER;
        let error = self.first_error.as_ref()?;
        let ends = self.ends;
        (ends > 1 && !lasts)
            .then(|| format!("{} ended {ends} times in a row: {error}", self.name()))
    }

    fn add_last_lines(&self, text: &mut String) {
        let last = tail(&self.recipe.log, SHOWN_LINES);
        let first = self.first_error.iter().filter(|line| !last.contains(line));
        for line in first.chain(&last) {
            text.push_str("\n    ");
            text.push_str(line);
        }
    }

    /// Ends it for good, in good order.
    pub fn end(&mut self) {
        if !self.over {
            self.over = true;
            self.begin_stop();
        }
    }

    /// Ends it, with so much time for it to do so itself; whether it is started again is as when it ends by itself.
    pub fn restart(&mut self, now: Instant, grace: Duration) {
        if let (Some(child), None) = (&self.child, self.kill_at) {
            child.begin_stop();
            self.kill_at = Some(now + grace);
        }
    }

    /// Its present run, unless it is being ended.
    pub fn life(&self) -> Option<ProcessRun> {
        let runs = self.child.is_some() && self.kill_at.is_none();
        runs.then_some(ProcessRun {
            since: self.started,
            number: self.restarts,
        })
    }

    /// Returns its exit, if it is not started again.
    pub fn finished(&self) -> Option<ChildExit> {
        self.finished
    }

    fn spec(&self, first: bool) -> Spec {
        let recipe = &self.recipe;
        let spec = recipe.spec();
        if recipe.show {
            return spec.stdout(self.shown()).stderr(self.shown());
        }
        // Both streams append, so that neither overwrites the other; the first start begins a new file.
        if first {
            let _ = fs::remove_file(&recipe.log);
        }
        // An application that opens /dev/stdout again opens the log.
        let confinement = recipe
            .place
            .as_ref()
            .and_then(ProcessIsolation::confinement);
        if let Some(user) = confinement.and_then(Confinement::user) {
            let _ = fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(&recipe.log);
            let _ = std::os::unix::fs::chown(&recipe.log, Some(user.uid), Some(user.gid));
        }
        spec.stdout(Output::Append(recipe.log.clone()))
            .stderr(Output::Append(recipe.log.clone()))
    }

    fn shown(&self) -> Output {
        let name = self.recipe.name.clone();
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.recipe.log)
            .ok();
        let sink: LineSink = Box::new(move |line| {
            use io::Write as _;
            // A log that cannot be written is still shown.
            if let Some(file) = &mut file {
                let _ = writeln!(file, "{line}");
            }
            let _ = writeln!(io::stderr(), "[{name}] {line}");
        });
        Output::Lines(sink)
    }

    /// SIGTERM, without waiting.
    pub fn begin_stop(&self) {
        for child in self.child.iter().chain(&self.successor) {
            child.begin_stop();
        }
    }

    /// Returns true if it has ended after [`Self::begin_stop`]; it is not started again.
    pub fn has_stopped(&mut self) -> bool {
        let children = self.child.iter_mut().chain(&mut self.successor);
        // Each is asked, so that each is reaped.
        let running = children.filter_map(|child| child.try_exit().is_none().then_some(()));
        running.count() == 0
    }

    /// Ends it now.
    pub fn kill(&mut self) {
        for child in self.child.iter_mut().chain(&mut self.successor) {
            child.stop(Duration::ZERO);
        }
    }

    /// The end of its log.
    pub fn last_lines(&self, count: usize) -> Vec<String> {
        tail(&self.recipe.log, count)
    }
}

/// The first line from an offset of a log on that names an error, or else that says anything.
fn first_error(log: &Path, from: u64) -> Option<String> {
    const WORDS: [&str; 9] = [
        "error",
        "fatal",
        "panic",
        "exception",
        "failed",
        "cannot",
        "refused",
        "denied",
        "no such",
    ];
    let mut file = fs::File::open(log).ok()?;
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let names_error = |line: &&str| {
        let line = line.to_lowercase();
        WORDS.iter().any(|word| line.contains(word))
    };
    let found = lines.clone().find(names_error).or_else(|| lines.next());
    // It stays on the screen: no command to the terminal, and no page of text.
    let printable = |c: char| match c.is_control() {
        true => char::REPLACEMENT_CHARACTER,
        false => c,
    };
    found.map(|line| line.chars().take(ERROR_CHARS).map(printable).collect())
}

fn tail(log: &Path, count: usize) -> Vec<String> {
    let read = || -> io::Result<String> {
        let mut file = fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let mut lines = VecDeque::new();
    for line in read().unwrap_or_default().lines() {
        if lines.len() == count {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }
    lines.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_from_none_to_a_minute() {
        let seconds: Vec<_> = [0, 1, 2, 3, 6, 7, 8, 1000]
            .map(|n| pause(n).as_secs())
            .into();
        assert_eq!(seconds, [0, 1, 2, 4, 32, 60, 60, 60]);
    }

    /// A process that runs this and is started again.
    fn shell(name: &str, script: &str, log: PathBuf) -> Process {
        Process::new(Recipe {
            name: name.to_owned(),
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: vec![],
            folder: None,
            log,
            show: false,
            place: None,
            restart: Restart::Always,
        })
    }

    #[test]
    fn a_process_that_ends_is_reported_with_its_last_lines_and_started_again() {
        let log =
            std::env::temp_dir().join(format!("voile-process-test-{}.log", std::process::id()));
        let mut process = shell("app", "echo one; echo two >&2; exit 3", log.clone());
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut said = Vec::new();
        while said.len() < 2 {
            assert!(Instant::now() < deadline, "said only {said:?}");
            said.extend(process.tick(Instant::now()));
            std::thread::yield_now();
        }
        assert_eq!(
            said[0],
            "app ended with code 3; starting it again at once\n    one\n    two"
        );
        assert_eq!(
            said[1],
            "app ended with code 3; starting it again in 1s\n    two\n    one\n    two"
        );
        assert_eq!(process.restarts, 1);
        assert!(
            process.tick(Instant::now()).is_none() && !process.is_running(),
            "it must wait"
        );
        fs::remove_file(log).expect("the log was written");
    }

    #[test]
    fn a_process_that_ends_again_and_again_keeps_its_first_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let lines = "starting; Error: no such table; at a; at b; at c; at d";
        let script = format!("echo '{}'; exit 3", lines.replace("; ", "\n"));
        let mut process = shell("shop/web app", &script, folder.path().join("log"));
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut said = Vec::new();
        while said.len() < 2 {
            assert!(Instant::now() < deadline, "said only {said:?}");
            assert_eq!(process.crash_loop(Instant::now()), None);
            said.extend(process.tick(Instant::now()));
            std::thread::yield_now();
        }
        assert_eq!(
            said[1],
            "shop/web app ended with code 3; starting it again in 1s\n    Error: no such table\n    at b\n    at c\n    at d"
        );
        assert_eq!(
            process.crash_loop(Instant::now()).as_deref(),
            Some("shop/web app ended 2 times in a row: Error: no such table")
        );
    }

    #[test]
    fn a_successor_that_ends_changes_nothing_and_one_that_stays_takes_the_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        // The first waits until `over` is there; so does each later one, or ends at once while `broken` is.
        let script = "[ -e $0/broken ] && exit 4; touch $0/began; while [ ! -e $0/over ]; do sleep 0.01; done";
        let mut process = Process::new(Recipe {
            name: "sidecar".to_owned(),
            program: "/bin/sh".into(),
            args: vec![
                "-c".to_owned(),
                script.to_owned(),
                folder.path().to_string_lossy().into(),
            ],
            env: vec![],
            folder: None,
            log: path("log"),
            show: false,
            place: None,
            restart: Restart::Always,
        });
        let wait = |process: &mut Process| {
            let deadline = Instant::now() + Duration::from_secs(20);
            loop {
                assert!(Instant::now() < deadline, "nothing is said");
                if let Some(said) = process.tick(Instant::now()) {
                    return said;
                }
                std::thread::yield_now();
            }
        };
        process.tick(Instant::now());
        let deadline = Instant::now() + Duration::from_secs(20);
        while !path("began").exists() {
            assert!(Instant::now() < deadline, "it never began");
            std::thread::yield_now();
        }
        fs::write(path("broken"), "").expect("written");
        process.replace().expect("started");
        assert_eq!(
            wait(&mut process),
            "the new sidecar ended with code 4; the old one keeps serving"
        );
        fs::remove_file(path("broken")).expect("removed");
        process.replace().expect("started");
        assert!(process.is_being_replaced());
        // The old one alone ends: it is asked to, as a successor would.
        process.child.as_ref().expect("it runs").begin_stop();
        assert_eq!(wait(&mut process), "sidecar is replaced");
        assert!(process.is_running() && !process.is_being_replaced());
        assert_eq!(process.restarts, 0);
        process.kill();
        assert!(process.has_stopped());
    }

    #[test]
    fn what_hangs_is_ended_by_force_and_begins_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let began = folder.path().join("began");
        let script = "trap '' TERM; touch $0/began; while :; do sleep 0.01; done";
        let path = folder.path().to_string_lossy().into_owned();
        let mut process = Process::new(Recipe {
            name: "app".to_owned(),
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned(), path],
            env: vec![],
            folder: None,
            log: folder.path().join("log"),
            show: false,
            place: None,
            restart: Restart::Always,
        });
        assert_eq!(process.tick(Instant::now()), None);
        let life = process.life().expect("it runs");
        let deadline = Instant::now() + Duration::from_secs(20);
        while !began.exists() {
            assert!(Instant::now() < deadline, "it never began");
            std::thread::yield_now();
        }
        let (now, grace) = (Instant::now(), Duration::from_secs(30));
        process.restart(now, grace);
        assert_eq!(process.life(), None, "it is on its way out");
        assert_eq!(process.tick(now), None, "it has time");
        assert!(process.is_running());
        let said = process.tick(now + grace).expect("it is said");
        let expected = "app was ended by signal 9; starting it again at once";
        assert!(said.starts_with(expected), "{said}");
        assert_eq!(process.tick(now + grace), None);
        assert!(process.life().is_some_and(|next| next != life));
        process.kill();
    }

    #[test]
    fn the_policy_says_who_is_started_again() {
        for (policy, good, bad) in [
            (Restart::Times(3), false, true),
            (Restart::Times(2), false, false),
            (Restart::Always, true, true),
            (Restart::OnFailure, false, true),
            (Restart::Never, false, false),
        ] {
            let again = |exit| starts_again(policy, exit, 2);
            let all = (
                again(ChildExit::Code(0)),
                again(ChildExit::Code(1)),
                again(ChildExit::Signal(9)),
            );
            assert_eq!(all, (good, bad, bad), "{policy:?}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let mut process = Process::new(Recipe {
            name: "app".to_owned(),
            program: "/nonexistent/program".into(),
            args: vec![],
            env: vec![],
            folder: None,
            log: "/nonexistent/log".into(),
            show: true,
            place: None,
            restart: Restart::Always,
        });
        let said = process.tick(Instant::now()).expect("said at once");
        assert!(said.contains("/nonexistent/program"), "{said}");
    }
}
