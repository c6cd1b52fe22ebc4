//! Place of a child process: a pod's network, files of its own in place of the host's, and none of the privileges by
//! which it could leave its pod's redirection.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, UnshareFlags, capabilities,
    configure_capability_in_ambient_set, move_into_link_name_space, set_capabilities,
    unshare_unsafe,
};

use crate::confinement::Confinement;
use crate::netns::Namespace;

/// Privileges of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privileges {
    /// As an application in a container: none at all, and no way to gain any.
    Application,
    /// As an application in the host's network, where ports below 1024 need a capability: that one, and no way to gain others.
    ApplicationOnHost,
    /// As a sidecar: it marks its packets.
    Sidecar,
    /// As the proxy of a node: it enters pods' networks, too.
    NodeProxy,
}

/// A place for processes.
#[derive(Debug, Clone)]
pub struct ProcessIsolation {
    network: Namespace,
    privileges: Privileges,
    files: Vec<(CString, CString)>,
    confinement: Option<Confinement>,
}

impl ProcessIsolation {
    /// Inside this network.
    #[must_use]
    pub fn new(network: Namespace, privileges: Privileges) -> Self {
        Self {
            network,
            privileges,
            files: Vec::new(),
            confinement: None,
        }
    }

    /// Its network.
    #[must_use]
    pub fn network(&self) -> &Namespace {
        &self.network
    }

    /// Shows `content` where the host has `target`; both must exist.
    ///
    /// # Errors
    /// When a path has a NUL in it.
    pub fn file(mut self, content: &Path, target: &Path) -> io::Result<Self> {
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes());
        self.files.push((text(content)?, text(target)?));
        Ok(self)
    }

    /// Hides the files of others from an application.
    #[must_use]
    pub fn confined(self, confinement: Confinement) -> Self {
        Self {
            confinement: Some(confinement),
            ..self
        }
    }

    /// Sets the process's working folder, as it sees it.
    #[must_use]
    pub fn starting_in(mut self, folder: &Path) -> Self {
        // A path with a NUL in it is no folder; the process is refused it before this.
        self.confinement = self
            .confinement
            .map(|confinement| confinement.clone().folder(folder).unwrap_or(confinement));
        self
    }

    /// Returns the confinement, if there is one.
    #[must_use]
    pub fn confinement(&self) -> Option<&Confinement> {
        self.confinement.as_ref()
    }

    /// Moves the calling process there. Between fork and exec: system calls only, no allocation.
    pub(crate) fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))?;
        if !self.files.is_empty() || self.confinement.is_some() {
            self.mount()?;
        }
        match self.privileges {
            Privileges::Sidecar => keep_capabilities(CapabilitySet::NET_ADMIN),
            Privileges::NodeProxy => {
                keep_capabilities(CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN)
            }
            Privileges::Application => self.drop_privileges(CapabilitySet::empty()),
            Privileges::ApplicationOnHost => self.drop_privileges(CapabilitySet::NET_BIND_SERVICE),
        }
    }

    fn drop_privileges(&self, kept: CapabilitySet) -> io::Result<()> {
        match &self.confinement {
            Some(confinement) => confinement.drop_privileges(kept),
            None => Confinement::default().drop_privileges(kept),
        }
    }

    #[expect(unsafe_code, reason = "a mount namespace for one child")]
    fn mount(&self) -> io::Result<()> {
        // SAFETY: NEWNS unshares no memory and no descriptors.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
        mount_change(
            c"/",
            MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
        )?;
        for (content, target) in &self.files {
            mount_bind(content.as_c_str(), target.as_c_str())?;
        }
        match &self.confinement {
            Some(confinement) => confinement.hide(),
            None => Ok(()),
        }
    }
}

/// Gives the next executed program these capabilities, though it is not root's: the ambient set survives `exec`.
pub(crate) fn keep_capabilities(wanted: CapabilitySet) -> io::Result<()> {
    let mut sets = capabilities(None)?;
    let wanted = wanted & sets.permitted;
    sets.inheritable |= wanted;
    set_capabilities(None, sets)?;
    for capability in wanted.iter() {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}
