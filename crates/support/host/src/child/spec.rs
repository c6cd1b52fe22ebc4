//! Description of a child process: program, arguments, environment, and targets of its output. Starting it makes a
//! `Supervised`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use super::SupervisedChild;
use super::spawn::{confine, die_with_parent, spawn_from_lasting_thread, start_in};
use crate::cgroup::Cgroup;
use crate::isolation::ProcessIsolation;

/// The longest line that is handed to a line sink; a longer one is cut into pieces of this many bytes, so that a child
/// that never ends its line cannot fill our memory.
pub const LINE_LIMIT_BYTES: usize = 64 * 1024;

/// Receiver of a child's output, line by line, without the line's end. Called from a thread of its own.
pub type LineSink = Box<dyn FnMut(&str) + Send>;

/// Target of one of a child's output streams.
pub enum Output {
    /// Nowhere.
    Null,
    /// This process's own stream.
    Inherit,
    /// Into this file, made anew (its folder must exist).
    File(PathBuf),
    /// At the end of this file.
    Append(PathBuf),
    /// Line by line into this function.
    Lines(LineSink),
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Inherit => f.write_str("Inherit"),
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Append(path) => write!(f, "Append({})", path.display()),
            Self::Lines(_) => f.write_str("Lines"),
        }
    }
}

/// Description of a child process to start.
#[derive(Debug)]
pub struct Spec {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    clear_env: bool,
    folder: Option<PathBuf>,
    place: Option<ProcessIsolation>,
    cores: Vec<usize>,
    doors: Vec<File>,
    stdout: Output,
    stderr: Output,
}

impl Spec {
    /// Describes a program; `name` is its name in messages. Its output goes nowhere until told otherwise.
    #[must_use]
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            clear_env: false,
            folder: None,
            place: None,
            cores: Vec::new(),
            doors: Vec::new(),
            stdout: Output::Null,
            stderr: Output::Null,
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets one environment variable on top of those inherited.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env
            .push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Inherits no environment variable: the child sees only those set by [`Spec::env`].
    #[must_use]
    pub fn clear_env(mut self) -> Self {
        self.clear_env = true;
        self
    }

    /// Starts it in this folder.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Starts it there instead of where we are.
    #[must_use]
    pub fn place(mut self, place: ProcessIsolation) -> Self {
        self.place = Some(place);
        self
    }

    /// Limits it and its children to these cores; none means all cores of this process.
    #[must_use]
    pub fn cores(mut self, cores: &[usize]) -> Self {
        self.cores = cores.to_vec();
        self
    }

    /// Starts it inside this group.
    ///
    /// # Errors
    /// When the group may not be entered.
    pub fn cgroup(mut self, group: &Cgroup) -> io::Result<Self> {
        self.doors.extend(group.doors()?);
        Ok(self)
    }

    /// Sets the target of its standard output.
    #[must_use]
    pub fn stdout(mut self, output: Output) -> Self {
        self.stdout = output;
        self
    }

    /// Sets the target of its standard error.
    #[must_use]
    pub fn stderr(mut self, output: Output) -> Self {
        self.stderr = output;
        self
    }

    /// The command line, as one would type it (for messages and records).
    #[must_use]
    pub fn command_line(&self) -> String {
        let mut line = self.program.display().to_string();
        for arg in &self.args {
            let arg = arg.to_string_lossy();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c);
            line.push(' ');
            if !arg.is_empty() && arg.chars().all(plain) {
                line.push_str(&arg);
            } else {
                line.push('\'');
                line.push_str(&arg.replace('\'', r"'\''"));
                line.push('\'');
            }
        }
        line
    }

    /// Starts it.
    ///
    /// # Errors
    /// When the program cannot be run or an output file cannot be made; the message names both.
    pub fn start(self) -> Result<SupervisedChild, StartError> {
        let command_line = self.command_line();
        let Self {
            name,
            program,
            args,
            env,
            clear_env,
            folder,
            place,
            cores,
            doors,
            stdout,
            stderr,
        } = self;
        let failed = |doing: &'static str, path: &Path, source| StartError {
            name: name.clone(),
            doing,
            path: path.to_owned(),
            source,
        };
        let mut command = Command::new(&program);
        command.args(args).stdin(Stdio::null()).process_group(0);
        if clear_env {
            command.env_clear();
        }
        command.envs(env);
        if let Some(folder) = &folder {
            command.current_dir(folder);
        }
        let (out, out_sink) =
            stdio(stdout).map_err(|(path, e)| failed("open the output file", &path, e))?;
        let (err, err_sink) =
            stdio(stderr).map_err(|(path, e)| failed("open the output file", &path, e))?;
        command.stdout(out).stderr(err);
        // Before the move: afterwards the groups may be out of reach.
        confine(&mut command, doors, &cores);
        if let Some(place) = place {
            start_in(&mut command, place);
        }
        // After the move: a change of privileges would forget it.
        die_with_parent(&mut command);
        let mut child =
            spawn_from_lasting_thread(command).map_err(|e| failed("run", &program, e))?;
        let mut readers = Vec::new();
        if let (Some(pipe), Some(sink)) = (child.stdout.take(), out_sink) {
            readers.push(read_lines(pipe, sink));
        }
        if let (Some(pipe), Some(sink)) = (child.stderr.take(), err_sink) {
            readers.push(read_lines(pipe, sink));
        }
        Ok(SupervisedChild {
            name,
            command_line,
            child,
            exit: None,
            readers,
        })
    }
}

/// A child could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {name}: cannot {doing} {}: {source}", path.display())]
pub struct StartError {
    name: String,
    doing: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl StartError {
    /// Returns true if the program itself does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    /// Returns true if the process's user may not run the program, or not reach it.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.doing == "run" && self.source.kind() == io::ErrorKind::PermissionDenied
    }
}

fn stdio(output: Output) -> Result<(Stdio, Option<LineSink>), (PathBuf, io::Error)> {
    Ok(match output {
        Output::Null => (Stdio::null(), None),
        Output::Inherit => (Stdio::inherit(), None),
        Output::File(path) => (File::create(&path).map_err(|e| (path, e))?.into(), None),
        Output::Append(path) => (
            File::options()
                .create(true)
                .append(true)
                .open(&path)
                .map_err(|e| (path, e))?
                .into(),
            None,
        ),
        Output::Lines(sink) => (Stdio::piped(), Some(sink)),
    })
}

fn read_lines(pipe: impl Read + Send + 'static, mut sink: LineSink) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        loop {
            line.clear();
            match pipe
                .by_ref()
                .take(LINE_LIMIT_BYTES as u64)
                .read_until(b'\n', &mut line)
            {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    while line
                        .last()
                        .is_some_and(|byte| matches!(byte, b'\n' | b'\r'))
                    {
                        line.pop();
                    }
                    sink(&String::from_utf8_lossy(&line));
                }
            }
        }
    })
}
