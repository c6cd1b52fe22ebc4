//! Feeding the rules to the kernel, by whichever tool this machine has.

use std::env;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::thread::{CapabilitySet, LinkNameSpaceType, capabilities, move_into_link_name_space};

use super::{MARK_ANSWER, MARK_INWARD, Rules, SOURCE_INWARD_V6, SidecarMatch, restore, script};
use crate::isolation::keep_capabilities;
use crate::netns::{Namespace, link};

/// Folders of administrators' programs, which an ordinary user's PATH often lacks.
const SYSTEM_FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];

/// The tool that is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tool {
    /// `nft`.
    Nft(PathBuf),
    /// `iptables-restore` and `ip6tables-restore`.
    Iptables(PathBuf, PathBuf),
}

/// Why rules cannot be set.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// There is none.
    #[error(
        "neither `nft` nor `iptables-restore` is on this machine; install the package `nftables` (or `iptables`)"
    )]
    Missing,
    /// This process may not set any.
    #[error("this process lacks the capability NET_ADMIN")]
    Capability,
    /// The kernel cannot bring back answers to a foreign address.
    #[error("callers' addresses cannot be kept (interceptionMode TPROXY): {0}")]
    Source(io::Error),
    /// A sidecar without marks needs an address of its own on `lo`.
    #[error("cannot give lo the address {SOURCE_INWARD_V6}: {0}")]
    Loopback(io::Error),
    /// It cannot be run.
    #[error("cannot run {}: {error}", program.display())]
    Run {
        /// Which.
        program: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It, or the kernel behind it, refused.
    #[error("{} refused the redirect rules: {said}", program.display())]
    Refused {
        /// Which.
        program: PathBuf,
        /// Its message.
        said: String,
    },
}

impl Tool {
    /// Finds one, `nft` first.
    ///
    /// # Errors
    /// When there is none.
    pub fn find() -> Result<Self, ToolError> {
        Self::all().into_iter().next().ok_or(ToolError::Missing)
    }

    /// All there are, the best first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let nft = program("nft").map(Self::Nft);
        let iptables = || {
            Some(Self::Iptables(
                program("iptables-restore")?,
                program("ip6tables-restore")?,
            ))
        };
        nft.into_iter().chain(iptables()).collect()
    }

    /// Its name, for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Nft(_) => "nftables",
            Self::Iptables(..) => "iptables",
        }
    }
}

/// Replaces all rules in `namespace`; each family's as a whole.
///
/// # Errors
/// The tool's message.
pub fn apply(tool: &Tool, namespace: &Namespace, rules: &Rules, v6: bool) -> Result<(), ToolError> {
    let prepared = namespace.run(|| prepare(rules, v6));
    prepared.map_err(ToolError::Source)??;
    load(tool, Some(namespace), rules, v6)
}

/// Replaces all rules in the namespace that this process is in, where it may be without the privilege to enter one.
///
/// # Errors
/// The tool's message.
pub fn apply_here(tool: &Tool, rules: &Rules, v6: bool) -> Result<(), ToolError> {
    let may = capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::NET_ADMIN));
    if !may {
        return Err(ToolError::Capability);
    }
    prepare(rules, v6)?;
    load(tool, None, rules, v6)
}

/// Makes what the rules presuppose in the calling thread's namespace.
fn prepare(rules: &Rules, v6: bool) -> Result<(), ToolError> {
    let sidecar = rules.capture.as_ref().is_some_and(|c| c.keeps_source);
    let node = rules.node.is_some_and(|node| node.keeps_source);
    if sidecar {
        // The rules of a node proxy mark the answers themselves.
        link::mark_answers().map_err(ToolError::Source)?;
    }
    let marks = [(sidecar, MARK_INWARD), (node, MARK_ANSWER)];
    for (_, mark) in marks.into_iter().filter(|(keeps, _)| *keeps) {
        link::turn_back(mark, v6).map_err(ToolError::Source)?;
    }
    let is_by_user = |capture: &super::PodCapture| capture.sidecar != SidecarMatch::Marks;
    if v6 && rules.capture.as_ref().is_some_and(is_by_user) {
        link::add_to_loopback(SOURCE_INWARD_V6.into()).map_err(ToolError::Loopback)?;
    }
    Ok(())
}

fn load(
    tool: &Tool,
    namespace: Option<&Namespace>,
    rules: &Rules,
    v6: bool,
) -> Result<(), ToolError> {
    match tool {
        Tool::Nft(nft) => {
            let text = script(rules, v6);
            feed(nft, &["-f", "-"], namespace, &text)
        }
        Tool::Iptables(restore_v4, restore_v6) => {
            feed(restore_v4, &["-w"], namespace, &restore(rules, false))?;
            if v6 {
                feed(restore_v6, &["-w"], namespace, &restore(rules, true))?;
            }
            Ok(())
        }
    }
}

pub(super) fn feed(
    program: &Path,
    args: &[&str],
    inside: Option<&Namespace>,
    text: &str,
) -> Result<(), ToolError> {
    let failed = |error| ToolError::Run {
        program: program.to_owned(),
        error,
    };
    let mut command = Command::new(program);
    command
        .args(args)
        // The classic tool locks a file that only root may open; each of our namespaces has one writer.
        .env("XTABLES_LOCKFILE", "/dev/null")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    enter(&mut command, inside.cloned());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the program ends early, its standard error says why.
        let _ = stdin.write_all(text.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let said = if said.is_empty() {
        output.status.to_string()
    } else {
        said
    };
    Err(ToolError::Refused {
        program: program.to_owned(),
        said,
    })
}

#[expect(
    unsafe_code,
    reason = "a child enters its namespace between fork and exec"
)]
fn enter(command: &mut Command, inside: Option<Namespace>) {
    // SAFETY: system calls only; the descriptor stays open, since the closure owns it.
    unsafe {
        command.pre_exec(move || {
            use std::os::fd::AsFd;
            if let Some(inside) = &inside {
                move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network))?;
            }
            keep_capabilities(CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW)
        });
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM_FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}
