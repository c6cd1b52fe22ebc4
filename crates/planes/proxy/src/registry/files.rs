//! Local files that the configuration names: certificates, keys, authorities. The control module reads them. This module keeps
//! their content as of the last read, and its consequences.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use voile_model::mesh::traffic::{Authorities, ClientTls, TlsOrigin};

use super::Registry;

/// Content of a file. `Debug` does not show it: it may be a key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct FileContent(pub(crate) Arc<[u8]>);

impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({} bytes)", self.0.len())
    }
}

/// That, or why it cannot be read.
pub(crate) type Read = Result<FileContent, Arc<str>>;

/// See the module; by path.
#[derive(Debug, Default)]
pub(crate) struct FileStore {
    held: BTreeMap<Arc<str>, Read>,
}

impl FileStore {
    /// Content of a file, or an error; both name the file.
    pub(super) fn of(&self, path: &Arc<str>) -> Read {
        match self.held.get(path) {
            None => Err(format!("{path} has not been read yet").into()),
            Some(Err(why)) => Err(format!("{path}: {why}").into()),
            Some(Ok(content)) if content.0.is_empty() => Err(format!("{path} is empty").into()),
            Some(Ok(content)) => Ok(content.clone()),
        }
    }
}

/// Files of TLS origination, in the order certificate, key, authorities, revocation lists.
pub(super) fn of_origin(origin: &TlsOrigin) -> [Option<&Arc<str>>; 4] {
    let pair = origin.certificate.as_ref().filter(|_| origin.mutual);
    let authorities = match &origin.authorities {
        Authorities::File(path) => Some(path),
        Authorities::System | Authorities::Pem(_) => None,
    };
    [
        pair.map(|(certificate, _)| certificate),
        pair.map(|(_, key)| key),
        authorities,
        origin.revocations.as_ref(),
    ]
}

impl Registry {
    /// Files that the settings of this proxy and of its destinations name.
    pub(crate) fn files_wanted(&self) -> BTreeSet<Arc<str>> {
        let policies = self.policies.values().map(|held| &held.value);
        let traffic = policies.flat_map(|policy| {
            let parts = policy.subsets.values();
            let parts = parts.flat_map(|part| part.ports.values().map(|port| &port.traffic));
            let ports = policy.ports.values().map(|port| &port.traffic);
            ports.chain(parts)
        });
        let origins = traffic.filter_map(|traffic| match &traffic.tls {
            Some(ClientTls::Originate(origin)) => Some(&**origin),
            _ => None,
        });
        let towards = origins.flat_map(|origin| of_origin(origin).into_iter().flatten());
        towards.chain(self.gateway.files()).cloned().collect()
    }

    /// For people with a question: each file, and why it cannot be read.
    pub(crate) fn files_shown(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let all = self.files.held.iter();
        all.map(|(path, read)| (&**path, read.as_ref().err().map(|why| &**why)))
    }

    /// Returns true if the file was read before.
    pub(crate) fn has_read(&self, path: &Arc<str>) -> bool {
        self.files.held.contains_key(path)
    }

    /// Stores the content of all wanted files, or of new ones; returns true if anything depends on the
    /// change.
    pub(crate) fn files_read(
        &mut self,
        wanted: &BTreeSet<Arc<str>>,
        new: BTreeMap<Arc<str>, Read>,
    ) -> bool {
        let held = &mut self.files.held;
        let before = held.len();
        held.retain(|path, _| wanted.contains(path));
        let mut changed = held.len() != before;
        for (path, read) in new {
            if held.get(&path) != Some(&read) {
                changed = true;
                held.insert(path, read);
            }
        }
        // New settings need new TLS, whether or not their files changed.
        self.gateway.look(&self.files) || changed
    }
}
