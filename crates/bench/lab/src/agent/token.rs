//! The secret that both ends of an agent's connection share. It never travels. Each end proves it by a code over a value that
//! only the two ends of this TLS connection know (RFC 9266's exporter), so that no relay in between can pass a proof on.

use std::fmt;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use aws_lc_rs::hmac;

/// A relay in between could guess a shorter secret offline.
const SHORTEST: usize = 32;
/// More is no token but a wrong file.
const LONGEST: usize = 1024;
/// Bytes of a token that we make.
const OURS_BYTES: usize = 32;
/// Bytes of the value that both ends of a connection derive from it.
pub(crate) const BINDING_BYTES: usize = 32;

/// The end that proves itself. A proof of one end must not serve the other.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SessionEnd {
    Near,
    Agent,
}

/// A shared secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// A new one: 256 random bits.
    ///
    /// # Errors
    /// When the kernel has none to give.
    pub fn generate() -> Result<Self, String> {
        let mut bytes = [0; OURS_BYTES];
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| "no random bytes for a token".to_owned())?;
        let mut text = String::new();
        for byte in bytes {
            let _ = write!(text, "{byte:02x}");
        }
        Ok(Self(text))
    }

    /// A token in the user's form.
    ///
    /// # Errors
    /// When it is too short to be a secret.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if !(SHORTEST..=LONGEST).contains(&text.len()) || text.contains(char::is_whitespace) {
            return Err(format!(
                "a token is one word of {SHORTEST} to {LONGEST} random characters (`openssl rand -hex 32` makes one)"
            ));
        }
        Ok(Self(text.to_owned()))
    }

    /// A token in a file that no other user can read.
    ///
    /// # Errors
    /// Says what is wrong with the file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let failed = |e: std::io::Error| format!("token file {}: {e}", path.display());
        let mode = std::fs::metadata(path)
            .map_err(failed)?
            .permissions()
            .mode();
        if mode & 0o077 != 0 {
            return Err(format!(
                "token file {}: other users can read it (mode {:o}); run chmod 600",
                path.display(),
                mode & 0o777
            ));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Self::parse(&text).map_err(|why| format!("token file {}: {why}", path.display()))
    }

    /// Text of the token, shown to the user who starts the agent.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.0.as_bytes())
    }

    /// Proof that this end of the connection knows the token.
    pub(crate) fn prove(&self, end: SessionEnd, binding: &[u8; BINDING_BYTES]) -> Vec<u8> {
        hmac::sign(&self.key(), &said(end, binding))
            .as_ref()
            .to_vec()
    }

    /// Returns true if the other end knows the token. Takes the same time for every wrong proof.
    pub(crate) fn proves(
        &self,
        end: SessionEnd,
        binding: &[u8; BINDING_BYTES],
        proof: &[u8],
    ) -> bool {
        hmac::verify(&self.key(), &said(end, binding), proof).is_ok()
    }
}

fn said(end: SessionEnd, binding: &[u8; BINDING_BYTES]) -> Vec<u8> {
    let label: &[u8] = match end {
        SessionEnd::Near => b"voile bench agent: near end\0",
        SessionEnd::Agent => b"voile bench agent: far end\0",
    };
    [label, binding].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_serves_one_end_of_one_connection_and_one_token() {
        let (one, other) = (
            Token::generate().expect("random"),
            Token::generate().expect("random"),
        );
        let (binding, elsewhere) = ([1; BINDING_BYTES], [2; BINDING_BYTES]);
        let proof = one.prove(SessionEnd::Near, &binding);
        assert!(one.proves(SessionEnd::Near, &binding, &proof));
        assert!(
            !one.proves(SessionEnd::Agent, &binding, &proof),
            "sent back"
        );
        assert!(
            !one.proves(SessionEnd::Near, &elsewhere, &proof),
            "passed on"
        );
        assert!(
            !other.proves(SessionEnd::Near, &binding, &proof),
            "wrong token"
        );
        assert!(!one.proves(SessionEnd::Near, &binding, &proof[1..]), "cut");
        assert!(!one.proves(SessionEnd::Near, &binding, &[]), "nothing");
        assert_eq!(format!("{one:?}"), "Token", "a log never shows it");
    }

    #[test]
    fn what_could_be_guessed_or_read_by_others_is_no_token() {
        for wrong in [
            "",
            "secret",
            "correct horse battery staple or so, thirty-two of it",
        ] {
            assert!(Token::parse(wrong).is_err(), "{wrong}");
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        let token = Token::generate().expect("random");
        std::fs::write(file.path(), format!("{}\n", token.reveal())).expect("written");
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(file.path(), mode(0o600)).expect("changed");
        assert_eq!(Token::read(file.path()), Ok(token));
        std::fs::set_permissions(file.path(), mode(0o644)).expect("changed");
        let why = Token::read(file.path()).expect_err("others may read it");
        assert!(why.contains("chmod 600"), "{why}");
    }
}
