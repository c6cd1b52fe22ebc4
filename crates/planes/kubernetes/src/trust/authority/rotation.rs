//! The order in which a change of the authority takes effect, so that no peer refuses a certificate:
//!
//! ```text
//! 1. the new roots are trusted, beside the old ones
//! 2. after an overlap, in which everybody hears of them, the new key signs
//! 3. when the last certificate of the old key has ended, the old roots go
//! ```
//! Pure: the time is an argument.

use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use voile_identity::{Authority, AuthorityFiles};

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// A change of the authority.
pub(super) struct Rotation {
    /// The signer and the roots in force.
    in_force: AuthorityFiles,
    /// Those of the Secret. They have proved themselves.
    wanted: AuthorityFiles,
    /// Roots in force that are new, and since when.
    new_roots: Vec<(CertificateDer<'static>, Instant)>,
    /// End of the last certificate that an earlier signer signed.
    old_until: Option<Instant>,
    overlap: Duration,
    /// Longest life of a workload's certificate.
    longest: Duration,
}

impl Rotation {
    /// Roots of `files` are known to everybody.
    pub(super) fn new(files: AuthorityFiles, overlap: Duration, longest: Duration) -> Self {
        Self {
            in_force: files.clone(),
            wanted: files,
            new_roots: Vec::new(),
            old_until: None,
            overlap,
            longest,
        }
    }

    /// Changes to these files, which have proved themselves. Returns true if they are other ones.
    pub(super) fn want(&mut self, files: AuthorityFiles) -> bool {
        let changes = self.wanted != files;
        self.wanted = files;
        changes
    }

    /// Does what is due. Returns the authority that is in force then, if it is another one.
    ///
    /// # Errors
    /// The authority cannot sign. It stays as it is.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        clock: SystemTime,
    ) -> Result<Option<Authority>, String> {
        self.new_roots
            .retain(|(_, since)| *since + self.overlap > now);
        self.old_until = self.old_until.filter(|until| *until > now);
        let may_sign = self.waits() && (self.is_trusted(clock) || !self.still_signs(clock));
        let mut next = match may_sign {
            true => self.wanted.clone(),
            false => self.in_force.clone(),
        };
        let old_until = match may_sign {
            true => Some(now + self.longest),
            false => self.old_until,
        };
        let waits = !is_same_signer(&next, &self.wanted);
        next.roots = match waits || old_until.is_some() {
            true => both(&self.wanted.roots, &self.in_force.roots),
            false => self.wanted.roots.clone(),
        };
        if next == self.in_force {
            return Ok(None);
        }
        let authority = Authority::from_files(&next, clock)?;
        let known = certificates(&self.in_force.roots);
        let new = authority.roots().iter().filter(|one| !known.contains(one));
        self.new_roots.extend(new.map(|one| (one.clone(), now)));
        self.old_until = old_until;
        self.in_force = next;
        Ok(Some(authority))
    }

    /// When something is due next.
    pub(super) fn due(&self) -> Option<Instant> {
        let trusted = self
            .new_roots
            .iter()
            .map(|(_, since)| *since + self.overlap);
        trusted.chain(self.old_until).min()
    }

    /// Returns true if another key is to sign than does.
    pub(super) fn waits(&self) -> bool {
        !is_same_signer(&self.in_force, &self.wanted)
    }

    /// Returns true if old roots are trusted that the Secret does not have.
    pub(super) fn keeps_old_roots(&self) -> bool {
        let wanted = certificates(&self.wanted.roots);
        let all = certificates(&self.in_force.roots);
        !all.iter().all(|one| wanted.contains(one))
    }

    /// Returns true if everybody trusts what the new signer signs.
    fn is_trusted(&self, clock: SystemTime) -> bool {
        let is_new =
            |root: &CertificateDer<'static>| self.new_roots.iter().any(|(new, _)| new == root);
        let known: String = blocks(&self.in_force.roots)
            .filter(|(root, _)| !is_new(root))
            .map(|(_, text)| text.to_owned() + "\n")
            .collect();
        let files = AuthorityFiles {
            roots: known,
            ..self.wanted.clone()
        };
        Authority::from_files(&files, clock).is_ok()
    }

    /// Returns true if the signer in force is of use: an expired one is not waited for.
    fn still_signs(&self, clock: SystemTime) -> bool {
        Authority::from_files(&self.in_force, clock).is_ok()
    }
}

fn is_same_signer(one: &AuthorityFiles, other: &AuthorityFiles) -> bool {
    let roots = String::new();
    AuthorityFiles {
        roots: roots.clone(),
        ..one.clone()
    } == AuthorityFiles {
        roots,
        ..other.clone()
    }
}

/// Certificates of a PEM text, each with its own text.
fn blocks(text: &str) -> impl Iterator<Item = (CertificateDer<'static>, &str)> {
    text.match_indices(BEGIN).filter_map(|(begin, _)| {
        let end = begin + text[begin..].find(END)? + END.len();
        let block = &text[begin..end];
        let certificate = CertificateDer::from_pem_slice(block.as_bytes()).ok()?;
        Some((certificate, block))
    })
}

pub(super) fn certificates(text: &str) -> Vec<CertificateDer<'static>> {
    blocks(text).map(|(certificate, _)| certificate).collect()
}

/// The first roots as they are written, and those of the second that are not among them.
pub(super) fn both(first: &str, second: &str) -> String {
    let known = certificates(first);
    let mut text = first.to_owned();
    for (certificate, block) in blocks(second) {
        if known.contains(&certificate) {
            continue;
        }
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(block);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests;
