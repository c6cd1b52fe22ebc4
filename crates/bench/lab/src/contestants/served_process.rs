//! A process that the agent starts for the near end, and the files that it gets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use voile_host::child::SupervisedChild;
use voile_host::ready::Probe;

/// A process, and how it is asked.
pub(crate) struct ServedProcess {
    pub(crate) process: SupervisedChild,
    pub(crate) probe: Probe,
    /// Requests that the process has carried by its own count; none if it keeps no count.
    pub(crate) count: Count,
    /// TLS parameters that the process reports.
    pub(crate) tls: Box<dyn Fn() -> Option<String>>,
    /// Address of the page that reports the certificate and takes the order to renew it; none if the process has no such page.
    pub(crate) certificates: Option<SocketAddr>,
    /// Removes what it leaves outside its folder.
    pub(crate) tidy: Box<dyn Fn()>,
}

impl ServedProcess {
    /// A process that reports nothing.
    pub(super) fn silent(process: SupervisedChild, probe: Probe) -> Self {
        Self {
            process,
            probe,
            count: Box::new(|_| Ok(None)),
            tls: Box::new(|| None),
            certificates: None,
            tidy: Box::new(|| {}),
        }
    }
}

/// The name that the second server's answers carry.
pub(crate) const SECOND: &str = "second";

/// Names that a template may ask for are the only ones that ports may have.
pub(super) fn known(
    ports: &BTreeMap<String, u16>,
    is_known: impl Fn(&str) -> bool,
) -> Result<(), String> {
    match ports.keys().find(|name| !is_known(name)) {
        Some(_) => Err("a listener has an unknown name".to_owned()),
        None => Ok(()),
    }
}

/// Writes what was checked into the session's folder.
pub(super) fn place(folder: &Path, name: &str, text: &str) -> Result<PathBuf, String> {
    let path = folder.join(name);
    std::fs::write(&path, text).map_err(|e| format!("writing {}: {e}", path.display()))?;
    Ok(path)
}

pub(super) type Count = Box<dyn Fn(&str) -> Result<Option<u64>, String>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_port_that_could_leave_the_template_is_refused() {
        let ports = BTreeMap::from([("PORT}".to_owned(), 1)]);
        assert!(known(&ports, |name| name == "PORT").is_err());
    }
}
