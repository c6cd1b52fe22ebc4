//! Watches folders of configuration files for `voile control` and `voile up`, and reads changed files. A file that
//! shrinks while another process writes it keeps its last text until the writer is done.

mod folders;
mod settle;
mod unfinished;

pub use folders::{FolderWatch, WatchError, digest_of};
pub use unfinished::{LONGEST_WAIT, SHRUNK_QUIET, WHOLE_QUIET};
