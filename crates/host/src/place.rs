//! Where a child process runs, other than where we do: in a pod's network, with files of its own in place of the host's,
//! and without the privileges by which it could step out of its pod's redirection.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, UnshareFlags, capabilities,
    configure_capability_in_ambient_set, move_into_link_name_space,
    remove_capability_from_bounding_set, set_capabilities, unshare_unsafe,
};

use crate::netns::Namespace;

/// What an application is not given: to change the network and its rules, to mark packets, to enter other namespaces.
const WITHHELD: [CapabilitySet; 3] = [
    CapabilitySet::NET_ADMIN,
    CapabilitySet::NET_RAW,
    CapabilitySet::SYS_ADMIN,
];

/// What a process may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privileges {
    /// As an application in a container: nothing that would let it leave its pod's network or mark its packets.
    Application,
    /// As a sidecar: it marks its packets.
    Sidecar,
    /// As the proxy of a node: it enters pods' networks, too.
    NodeProxy,
}

/// A place for processes.
#[derive(Debug, Clone)]
pub struct Place {
    network: Namespace,
    privileges: Privileges,
    files: Vec<(CString, CString)>,
}

impl Place {
    /// Inside this network.
    #[must_use]
    pub fn new(network: Namespace, privileges: Privileges) -> Self {
        Self {
            network,
            privileges,
            files: Vec::new(),
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

    /// Moves the calling process there. Between fork and exec: system calls only, no allocation.
    pub(crate) fn enter(&self) -> io::Result<()> {
        move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))?;
        if !self.files.is_empty() {
            self.mount()?;
        }
        match self.privileges {
            Privileges::Sidecar => keep_capabilities(CapabilitySet::NET_ADMIN),
            Privileges::NodeProxy => {
                keep_capabilities(CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN)
            }
            Privileges::Application => {
                for capability in WITHHELD {
                    // Without the right to change the set there is nothing to be kept from either: exec drops all.
                    let _ = remove_capability_from_bounding_set(capability);
                }
                Ok(())
            }
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
        Ok(())
    }
}

/// Lets what is executed next have these, though it is not root's: the ambient set survives `exec`.
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
