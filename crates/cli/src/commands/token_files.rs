//! Files of tokens, as people hand them over: a token among the options, where every process of the machine can read it,
//! is refused; a file that everybody can read is warned of, with the words that mend it.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// First characters of JSON Web Tokens: `{"` in base64url.
const JWT_PREFIX: &str = "eyJ";

/// Permission bits of all users but the owner and its group.
const OTHERS: u32 = 0o007;

/// Permission bits of all users but the owner.
const NOT_OWNER: u32 = 0o077;

/// Why a file's name is none, if it looks like what should be in the file. Does not repeat it.
pub(super) fn refusal(option: &str, path: &Path) -> Option<String> {
    let text = path.to_string_lossy();
    let is_token =
        text.starts_with(voile_identity::join::JOIN_TOKEN_PREFIX) || text.starts_with(JWT_PREFIX);
    is_token.then(|| {
        format!(
            "{option} expects the name of a file, but this is a token: every user of this machine can read it on the command line (`ps`). Create another token, write it to a file with mode 600 (`umask 077`), and give the name of that file"
        )
    })
}

/// Warns of a token's file that others can use. One that is not there yet is none of our business.
pub(super) fn warn_of_open(path: &Path) {
    let Ok(metadata) = std::fs::metadata(path) else {
        return;
    };
    if metadata.is_file() && metadata.mode() & OTHERS != 0 {
        tracing::warn!(
            path = %path.display(),
            mode = format_args!("{:o}", metadata.mode() & 0o7777),
            "every user of this machine can read this token and act as this workload: run chmod 600, and create token files with `umask 077`"
        );
    }
}

/// Warning for a token that was just written to a file that other users can read.
pub(super) fn warning_of_output(stdout: &Metadata) -> Option<String> {
    let open = stdout.is_file() && stdout.mode() & NOT_OWNER != 0;
    open.then(|| {
        format!(
            "the output file of the token has mode {:o}: run chmod 600, or create it with `umask 077`",
            stdout.mode() & 0o7777
        )
    })
}
