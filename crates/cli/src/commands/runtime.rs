//! What commands share while they run: a runtime of their own, and writing that survives a closed pipe.

/// Runs a command that asks a cluster, on a runtime of its own. `failed` makes the error of a runtime that does not start.
pub(super) fn on_runtime<T, E>(
    command: impl Future<Output = Result<T, E>>,
    failed: fn(String) -> E,
) -> Result<T, E> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    match runtime.enable_all().build() {
        Ok(runtime) => runtime.block_on(command),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Writes the text; ignores a closed pipe.
pub(super) fn told(to: &mut dyn std::io::Write, words: std::fmt::Arguments<'_>) {
    let _ = to.write_fmt(words).and_then(|()| to.flush());
}

/// Writes the requested output; a closed pipe is no failure.
pub(super) fn print(text: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    match std::io::stdout().write_all(text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}
