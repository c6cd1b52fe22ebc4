//! TLS termination of a gateway's server: the wanted settings and the effective ones. An unusable certificate leaves the last
//! good one.

use std::sync::Arc;

use rustls::ServerConfig;
use voile_identity::{OutsideTls, OutsideTlsError};
use voile_transport::alpn;
use voile_xds::wire::{GatewayFiles, GatewayTls};

use super::super::files::{FileContent, FileStore, Read};
use crate::plan::TlsPlan;

/// ALPN protocols of requests, preferred first.
const ALPN: [&[u8]; 2] = [alpn::PLAIN_HTTP2, alpn::PLAIN_HTTP11];

/// See the module.
#[derive(Debug)]
pub(super) struct Tls {
    said: GatewayTls,
    config: Option<Arc<ServerConfig>>,
    /// Why it is not as it was told.
    trouble: Option<String>,
    /// Content of the files at the last attempt, if TLS is made of files.
    tried: Option<Box<TlsFiles>>,
    /// Last good parts, of which `config` is made.
    good: Option<Box<TlsParts>>,
}

/// Content of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TlsFiles {
    certificate: Read,
    key: Read,
    authorities: Option<Read>,
    revocations: Option<Read>,
}

/// Parts of a TLS configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TlsParts {
    pair: (FileContent, FileContent),
    authorities: Option<FileContent>,
    revocations: Option<FileContent>,
}

impl Tls {
    pub(super) fn new(said: &GatewayTls) -> Self {
        let made = match &said.certificate {
            Err(missing) => Err(Some(missing.to_string())),
            // The proxy's own certificate is shown, or one that is not read yet.
            Ok(_) if said.mesh || said.files.is_some() => Err(None),
            Ok((certificates, private_key)) => {
                let believed = (&said.authorities[..], &said.revocations[..]);
                let made = made(said, (certificates, private_key), believed);
                made.map_err(|error| Some(format!("{}: {error}", said.all_credentials())))
            }
        };
        let (config, trouble) = match made {
            Ok(config) => (Some(config), None),
            Err(trouble) => (None, trouble),
        };
        Self {
            said: said.clone(),
            config,
            trouble,
            tried: None,
            good: None,
        }
    }

    pub(super) fn plan(&self) -> TlsPlan {
        TlsPlan {
            credential: self.said.credential.clone(),
            config: self.config.clone(),
            mesh: self.said.mesh,
            unverified: self.said.unverified,
        }
    }

    pub(super) fn is_of_files(&self) -> bool {
        self.said.files.is_some()
    }

    /// Problem with the wanted settings, and its consequence.
    pub(super) fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.as_ref()?;
        Some(match &self.config {
            Some(_) => format!("{trouble}; the previous certificate stays in use"),
            None => format!("{trouble}; the server admits no client"),
        })
    }

    /// The files that it is made of.
    pub(super) fn files(&self) -> impl Iterator<Item = &Arc<str>> {
        let files = self.said.files.iter();
        files.flat_map(|files| {
            [&files.certificate, &files.key]
                .into_iter()
                .chain(&files.authorities)
                .chain(&files.revocations)
        })
    }

    /// Returns true if both have the same terms for clients: verification and protocols.
    fn asks_as(&self, before: &Self) -> bool {
        let nothing: &Arc<str> = &Arc::from("");
        let terms = |said: &GatewayTls| {
            let files = said
                .files
                .as_deref()
                .filter(|one| one.authorities.is_some());
            let believed = |files: &GatewayFiles| {
                Box::new(GatewayFiles {
                    certificate: nothing.clone(),
                    key: nothing.clone(),
                    ..files.clone()
                })
            };
            GatewayTls {
                credential: nothing.clone(),
                certificate: Err(nothing.clone()),
                files: files.map(believed),
                more: Vec::new(),
                ..said.clone()
            }
        };
        terms(&self.said) == terms(&before.said)
    }

    /// Keeps the result of the same settings. An unusable certificate leaves the last good one of the same terms; a removed one
    /// leaves nothing.
    pub(super) fn follow(&mut self, before: &Self) {
        if self.said == before.said {
            self.config.clone_from(&before.config);
            self.trouble.clone_from(&before.trouble);
            self.tried.clone_from(&before.tried);
            self.good.clone_from(&before.good);
        } else if self.config.is_none() && self.said.certificate.is_ok() && self.asks_as(before) {
            self.config.clone_from(&before.config);
            self.good.clone_from(&before.good);
        }
    }

    /// Reads the files again. Each part falls back to its last good content by itself. An authority that is no longer trusted
    /// therefore goes, even if the certificate beside it cannot be read. Returns true if anything changed.
    pub(super) fn look(&mut self, files: &FileStore, server: &str) -> bool {
        let Some(paths) = self.said.files.clone() else {
            return false;
        };
        let now = TlsFiles {
            certificate: files.of(&paths.certificate),
            key: files.of(&paths.key),
            authorities: paths.authorities.as_ref().map(|path| files.of(path)),
            revocations: paths.revocations.as_ref().map(|path| files.of(path)),
        };
        if self.tried.as_deref() == Some(&now) {
            return false;
        }
        let trouble = self.try_parts(&now, &paths).err();
        match &trouble {
            None => {
                let certificate = &paths.certificate;
                tracing::info!(server, %certificate, "loaded a certificate from a file");
            }
            Some(_) if trouble == self.trouble => {}
            Some(_) => {
                self.trouble.clone_from(&trouble);
                let trouble = self.trouble().unwrap_or_default();
                tracing::error!(server, trouble, "cannot load a certificate from a file");
            }
        }
        self.trouble = trouble;
        self.tried = Some(Box::new(now));
        true
    }

    /// Makes TLS from the usable files and the last good parts.
    fn try_parts(&mut self, now: &TlsFiles, paths: &GatewayFiles) -> Result<(), String> {
        let first = match now.parts() {
            Ok(parts) => match self.make(parts) {
                Ok(()) => return Ok(()),
                Err(error) => of_file(&error, paths),
            },
            Err(why) => why.to_string(),
        };
        // Some files are unusable. Each usable part of certificate, authorities and revocation lists is used; `first` states the
        // problem.
        let pair = now.certificate.clone().ok().zip(now.key.clone().ok());
        if let (Some(pair), Some(good)) = (pair, self.good.as_deref().cloned()) {
            self.make(TlsParts { pair, ..good }).ok();
        }
        let believed = now.authorities.clone().and_then(Result::ok);
        if let (Some(_), Some(good)) = (&believed, self.good.as_deref().cloned()) {
            let authorities = believed;
            self.make(TlsParts {
                authorities,
                ..good
            })
            .ok();
        }
        let lists = now.revocations.clone().and_then(Result::ok);
        if let (Some(_), Some(good)) = (&lists, self.good.as_deref().cloned()) {
            let revocations = lists;
            self.make(TlsParts {
                revocations,
                ..good
            })
            .ok();
        }
        Err(first)
    }

    fn make(&mut self, parts: TlsParts) -> Result<(), OutsideTlsError> {
        if self.config.is_some() && self.good.as_deref() == Some(&parts) {
            return Ok(());
        }
        let (certificate, key) = &parts.pair;
        let believed = [&parts.authorities, &parts.revocations]
            .map(|one| one.as_ref().map_or(&[][..], |one| &one.0));
        self.config = Some(made(&self.said, (&certificate.0, &key.0), believed.into())?);
        self.good = Some(Box::new(parts));
        Ok(())
    }
}

impl TlsFiles {
    fn parts(&self) -> Result<TlsParts, Arc<str>> {
        Ok(TlsParts {
            pair: (self.certificate.clone()?, self.key.clone()?),
            authorities: self.authorities.clone().transpose()?,
            revocations: self.revocations.clone().transpose()?,
        })
    }
}

fn made(
    said: &GatewayTls,
    (certificates, private_key): (&[u8], &[u8]),
    (authorities, revocations): (&[u8], &[u8]),
) -> Result<Arc<ServerConfig>, OutsideTlsError> {
    let tls = OutsideTls {
        certificates: certificates.to_vec(),
        private_key: private_key.to_vec(),
        more: said
            .more
            .iter()
            .map(|(_, certificates, key)| (certificates.clone(), key.clone()))
            .collect(),
        authorities: authorities.to_vec(),
        revocations: revocations.to_vec(),
        anonymous: said.anonymous,
        unverified: said.unverified,
        tls12: said.tls12,
        tls13: said.tls13,
        suites: said.suites.clone(),
    };
    tls.server(&ALPN)
}

/// Which file an error is about, and the error.
fn of_file(error: &OutsideTlsError, paths: &GatewayFiles) -> String {
    let path = match error {
        OutsideTlsError::Key | OutsideTlsError::Mismatch => &paths.key,
        OutsideTlsError::Authorities(_) => paths.authorities.as_ref().unwrap_or(&paths.certificate),
        OutsideTlsError::Revocations(_) => paths.revocations.as_ref().unwrap_or(&paths.certificate),
        OutsideTlsError::Certificate(_)
        | OutsideTlsError::Name(_)
        | OutsideTlsError::Suite(_)
        | OutsideTlsError::Refused(_) => &paths.certificate,
    };
    format!("{path}: {error}")
}
