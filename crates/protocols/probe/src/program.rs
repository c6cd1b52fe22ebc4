//! A program that is asked: it ends with code 0, in time.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Failure;

/// Pause between two checks of its end. A check costs a system call; probes run at most once a second.
const LOOK: Duration = Duration::from_millis(20);

/// Runs it; one that takes longer than `timeout` is ended.
///
/// # Errors
/// Says why the answer is not good.
pub fn run(command: &[impl AsRef<str>], timeout: Duration) -> Result<(), Failure> {
    let failed = |why: String| Failure {
        status: None,
        refused: false,
        why,
    };
    let mut words = command.iter().map(AsRef::as_ref);
    let Some(program) = words.next() else {
        return Err(failed("no program is named".to_owned()));
    };
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(format!("`{program}`: {error}")))?;
    let until = Instant::now() + timeout;
    loop {
        match child.try_wait() {
            Ok(Some(exit)) if exit.success() => return Ok(()),
            Ok(Some(exit)) => return Err(failed(format!("`{program}`: {exit}"))),
            Ok(None) if Instant::now() < until => pause(),
            Ok(None) => {
                // It may end by itself just now.
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(format!("`{program}` takes longer than {timeout:?}")));
            }
            Err(error) => return Err(failed(format!("`{program}`: {error}"))),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the pause between two looks at a process that has a deadline"
)]
fn pause() {
    std::thread::sleep(LOOK);
}
