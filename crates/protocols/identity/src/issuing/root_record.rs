//! The record of the root key that a state folder holds. It lies beside the folder, so that it outlives it: the authority compares
//! the two before it serves, and makes no second root by itself beside proxies that trust the first. It holds no secret.

use std::ffi::OsString;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::authority::{ROOT_CERT_FILE, ROOT_KEY_FILE};
use crate::keys::certificates_of;
use crate::state::{PUBLIC_MODE, StateDir};

/// Appended to the name of the state folder.
const SUFFIX: &str = ".root";
/// Largest record that is read, in bytes: ours have some 200.
const MAX_RECORD_BYTES: u64 = 4096;
const PREFIX: &str = "sha256:";
/// The flag that permits another root than the recorded one.
pub const NEW_ROOT_FLAG: &str = "--new-root";

/// SHA-256 of a root's public key (its SubjectPublicKeyInfo). A certificate that is made anew for the same key has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootFingerprint([u8; 32]);

impl RootFingerprint {
    pub(crate) fn of_public_key(spki: &[u8]) -> Self {
        Self(Sha256::digest(spki).into())
    }

    /// The fingerprint of the first certificate in `pem`; `None` where there is none that can be read.
    pub fn of_certificate(pem: &str) -> Option<Self> {
        let certificates = certificates_of(pem).ok()?;
        let (_, parsed) = X509Certificate::from_der(certificates.first()?.as_ref()).ok()?;
        Some(Self::of_public_key(parsed.public_key().raw))
    }
}

impl fmt::Display for RootFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for RootFingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not {PREFIX} and 64 hexadecimal digits");
        let digits = text.strip_prefix(PREFIX).ok_or_else(wrong)?.as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or_else(wrong);
            let value = digit(pair[0])? * 16 + digit(pair[1])?;
            *byte = u8::try_from(value).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

/// Which root an authority may serve with.
#[derive(Debug, Clone, Copy, Default)]
pub struct RootPolicy {
    /// The only root that is accepted, whatever is recorded.
    pub expected: Option<RootFingerprint>,
    /// Another root than the recorded one is accepted, and made where there is none.
    pub new_root: bool,
}

/// The state folder does not hold the root that proxies trust.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: {found}, but the proxies of this mesh trust the root {trusted} ({source_of_trust}) and would refuse any other. Restore the folder from a backup; \
     or, to use another root, start with {NEW_ROOT_FLAG} and give every proxy the new root certificate and a new token",
    .folder.display()
)]
pub struct RootLost {
    /// The state folder.
    pub folder: PathBuf,
    /// Content of the folder.
    pub found: String,
    /// The root that is missing.
    pub trusted: RootFingerprint,
    /// Source of that fingerprint.
    pub source_of_trust: String,
}

/// Compares the root in a state folder with the one that proxies trust, and changes nothing.
///
/// # Errors
/// The folder holds no root, or another one, and `policy` does not permit that.
pub fn check_root(folder: &Path, policy: &RootPolicy) -> Result<(), RootLost> {
    let Some((trusted, source_of_trust)) = trusted_root(folder, policy) else {
        return Ok(());
    };
    let found = match held_root(folder) {
        RecordedRoot::Root(held) if held == trusted => return Ok(()),
        RecordedRoot::Root(held) => format!("it has the root {held}"),
        RecordedRoot::Nothing if !folder.exists() => "the folder does not exist".to_owned(),
        RecordedRoot::Nothing => format!("it has no {ROOT_KEY_FILE}"),
        // The authority says what is wrong with them, or makes the certificate anew.
        RecordedRoot::Unclear => return Ok(()),
    };
    Err(RootLost {
        folder: folder.to_path_buf(),
        found,
        trusted,
        source_of_trust,
    })
}

/// The root that the folder must hold, and how that is known; `None` where any will do.
pub(crate) fn trusted_root(
    folder: &Path,
    policy: &RootPolicy,
) -> Option<(RootFingerprint, String)> {
    if let Some(expected) = policy.expected {
        return Some((expected, "it was served before".to_owned()));
    }
    let path = record_of(folder).filter(|_| !policy.new_root)?;
    let recorded = read_record(&path)?;
    Some((recorded, format!("recorded in {}", path.display())))
}

enum RecordedRoot {
    Root(RootFingerprint),
    /// No key.
    Nothing,
    /// There is a key, and no certificate that can be read.
    Unclear,
}

fn held_root(folder: &Path) -> RecordedRoot {
    if !folder.join(ROOT_KEY_FILE).exists() {
        return RecordedRoot::Nothing;
    }
    let Ok(state) = StateDir::open(folder) else {
        return RecordedRoot::Unclear;
    };
    let certificate = state.read_public(ROOT_CERT_FILE).ok().flatten();
    let held = certificate.and_then(|pem| RootFingerprint::of_certificate(&pem));
    held.map_or(RecordedRoot::Unclear, RecordedRoot::Root)
}

/// Path of the record of a state folder; `None` for a folder without a name, such as `/`.
fn record_of(folder: &Path) -> Option<PathBuf> {
    let folder = std::path::absolute(folder).ok()?;
    let mut name: OsString = folder.file_name()?.to_owned();
    name.push(SUFFIX);
    Some(folder.with_file_name(name))
}

/// A record of somebody else's is not believed: the parent folder may be open to others.
fn read_record(path: &Path) -> Option<RootFingerprint> {
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(no_follow).open(path).ok()?;
    let owner = file.metadata().ok()?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        tracing::warn!(record = %path.display(), owner, "the record of the root belongs to another user, and is ignored");
        return None;
    }
    let mut text = String::new();
    file.take(MAX_RECORD_BYTES).read_to_string(&mut text).ok()?;
    text.lines().find_map(|line| line.trim().parse().ok())
}

/// Records that this folder holds this root. If the parent folder cannot be written, the root is not recorded.
pub(crate) fn record(folder: &Path, root: &RootFingerprint) {
    let Some(path) = record_of(folder) else {
        return;
    };
    if read_record(&path) == Some(*root) {
        return;
    }
    let text = format!(
        "# The root key in {}, as the SHA-256 of its public key. By it the control plane notices that the folder was lost or replaced.\n{root}\n",
        folder.display()
    );
    if let Err(error) = replace(&path, &text) {
        tracing::warn!(record = %path.display(), %error, "cannot record the root: the next start will not notice a lost state folder");
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let draft = parent.join(format!(".voile-root.{:016x}", fastrand::u64(..)));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(PUBLIC_MODE);
    let written = options.open(&draft).and_then(|mut file| {
        io::Write::write_all(&mut file, text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, path)
    });
    // After the rename there is no draft.
    let _ = std::fs::remove_file(&draft);
    written
}
