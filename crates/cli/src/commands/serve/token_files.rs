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

/// Permission bits by which users other than the owner may write.
const OTHERS_WRITE: u32 = 0o022;

/// Only the owner of a file may replace it in a folder with this bit.
const STICKY: u32 = 0o1000;

/// The link to the current version of a volume's files, which a kubelet replaces as a whole.
const KUBELET_LINK: &str = "..data";

/// Why a file's name is none, if it looks like what should be in the file. Does not repeat it.
pub(crate) fn refusal(option: &str, path: &Path) -> Option<String> {
    let text = path.to_string_lossy();
    let is_token =
        text.starts_with(voile_identity::join::JOIN_TOKEN_PREFIX) || text.starts_with(JWT_PREFIX);
    is_token.then(|| {
        format!(
            "{option} expects the name of a file, but this is a token: every user of this machine can read it on the command line (`ps`). Create another token, write it to a file with mode 600 (`umask 077`), and give the name of that file"
        )
    })
}

/// Warns of a token's file that others can use. The file may be written later.
pub(crate) fn warn_of_open(path: &Path) {
    let Ok(metadata) = std::fs::metadata(path) else {
        return;
    };
    if metadata.is_file() && metadata.mode() & OTHERS != 0 && !is_projected(path, &metadata) {
        tracing::warn!(
            path = %path.display(),
            mode = format_args!("{:o}", metadata.mode() & 0o7777),
            "every user of this machine can read this token and act as this workload: run chmod 600, and create token files with `umask 077`"
        );
    }
}

/// Returns true if the file is in a volume that a kubelet writes, and only root or we can replace it.
///
/// Every user of the containers that mount the volume may read such a token (mode 0644, or 0640 with an `fsGroup`). The mode is
/// the kubelet's choice, and those containers are the workload already. The danger is a replaced token, by which the proxy would
/// become another workload. So neither the token, nor its folder, nor the link to the folder may be another user's.
fn is_projected(path: &Path, token: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let is_owned = |metadata: &Metadata| [0, own].contains(&metadata.uid());
    let is_safe = |metadata: &Metadata| is_owned(metadata) && metadata.mode() & OTHERS_WRITE == 0;
    let check = || {
        let folder = path.parent()?;
        let data = folder.join(KUBELET_LINK);
        let link = data.symlink_metadata().ok()?;
        let current = data.canonicalize().ok()?;
        let is_in_volume = path.canonicalize().ok()?.parent() == Some(&*current);
        let mount = folder.metadata().ok()?;
        let is_kept = is_safe(&mount) || is_owned(&mount) && mount.mode() & STICKY != 0;
        let is_link = link.is_symlink() && is_owned(&link);
        let is_current = is_safe(&current.metadata().ok()?);
        Some(is_in_volume && is_kept && is_link && is_current && is_safe(token))
    };
    check().unwrap_or(false)
}

/// Warning for a token that was just written to a file that other users can read.
pub(crate) fn warning_of_output(stdout: &Metadata) -> Option<String> {
    let open = stdout.is_file() && stdout.mode() & NOT_OWNER != 0;
    open.then(|| {
        format!(
            "the output file of the token has mode {:o}: run chmod 600, or create it with `umask 077`",
            stdout.mode() & 0o7777
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use super::*;

    /// A volume as a kubelet writes it, and the token in it.
    fn volume() -> (tempfile::TempDir, PathBuf) {
        let volume = tempfile::tempdir().expect("a folder");
        let at = |name: &str| volume.path().join(name);
        fs::create_dir(at("..2026_11_28")).expect("the current version");
        fs::write(at("..2026_11_28/istio-token"), "token").expect("the token");
        symlink("..2026_11_28", at("..data")).expect("the link to the version");
        symlink("..data/istio-token", at("istio-token")).expect("the link to the token");
        set_mode(&at("..2026_11_28"), 0o755);
        set_mode(&at("istio-token"), 0o644);
        set_mode(volume.path(), 0o1777);
        let token = at("istio-token");
        (volume, token)
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("our file");
    }

    fn is_accepted(token: &Path) -> bool {
        is_projected(token, &fs::metadata(token).expect("the token"))
    }

    #[test]
    fn a_readable_token_is_accepted_in_a_volume_of_a_kubelet_alone() {
        let (_volume, token) = volume();
        assert!(is_accepted(&token));
        set_mode(&token, 0o640);
        assert!(is_accepted(&token), "with an fsGroup");
        let plain = tempfile::tempdir().expect("a folder");
        let file = plain.path().join("istio-token");
        fs::write(&file, "token").expect("the token");
        assert!(!is_accepted(&file), "no volume");
        // A link out of the volume.
        symlink(&file, token.with_file_name("other")).expect("a link");
        assert!(!is_accepted(&token.with_file_name("other")));
    }

    #[test]
    fn a_token_that_others_may_replace_is_not_accepted() {
        for (name, mode) in [
            ("istio-token", 0o666),
            ("istio-token", 0o664),
            ("..data", 0o777),
            ("", 0o777),
        ] {
            let (volume, token) = volume();
            set_mode(&volume.path().join(name), mode);
            assert!(!is_accepted(&token), "{name} {mode:o}");
        }
    }
}
