//! Confinement of a pod's application: it cannot reach other users' files, the mesh's keys or other processes. As root,
//! each pod has a user of its own, in a network namespace and on loopback addresses alike. Without root all run as the user
//! who started the mesh, who needs a namespace to hide anything.

use std::io;
use std::time::Duration;

use voile_host::child::Spec;
use voile_host::confinement::{Confinement, User, is_mapped};
use voile_host::isolation::{Privileges, ProcessIsolation};
use voile_host::netns::Namespace;
use voile_model::mesh::SecurityContext;

use crate::application::ApplicationContext;
use crate::expand::PodPlan;

/// The first user of pods: beyond people, services, and the ranges that containers are given.
const FIRST_USER: u32 = 1_900_000_000;
/// The first where only 65,536 users are known, as in a container.
const FIRST_USER_OF_FEW: u32 = 30_000;
/// Number of users in either range. The lower half of a pod's address selects its user.
const USERS: u32 = 30_000;

/// Builds the confinement of a container: its hidden paths and its user.
pub(crate) fn confinement(
    around: &ApplicationContext<'_>,
    pod: &PodPlan,
    wanted: &SecurityContext,
) -> io::Result<Confinement> {
    let user = rustix::process::geteuid().is_root().then(|| user(pod));
    let user = user.flatten();
    let mut confinement = Confinement::new(user);
    if let Some(own) = user {
        confinement = confinement.seen_as(User {
            uid: wanted.user.unwrap_or(own.uid),
            gid: wanted.group.unwrap_or(own.gid),
        });
    }
    for path in [around.run.path(), around.state] {
        // If the keys are beside the working folder, covering them would hide the folder, too. The keys' file mode
        // protects them then.
        if !around.folder.starts_with(path) {
            confinement = confinement.cover(path)?;
        }
    }
    let empty = around.run.empty();
    for path in [around.folder, around.voile] {
        confinement = confinement.show(path, &empty)?;
    }
    Ok(confinement)
}

/// Time that a process needs at most to say that it can be confined.
const PROBE_TIME: Duration = Duration::from_secs(10);

/// The place of applications on loopback addresses. None without root: they have the user of the mesh and its files.
///
/// # Errors
/// This machine does not let root confine a process, as in some containers.
pub(crate) fn loopback_place() -> io::Result<Option<ProcessIsolation>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let place = ProcessIsolation::new(Namespace::current()?, Privileges::ApplicationOnHost);
    let confined = place.clone().confined(Confinement::default());
    let probe = Spec::new("containment", "/proc/self/exe").arg("--version");
    let started = probe.place(confined).start();
    let mut probe = started.map_err(|error| io::Error::other(error.to_string()))?;
    match probe.wait(PROBE_TIME) {
        Some(exit) if exit.is_success() => Ok(Some(place)),
        exit => Err(io::Error::other(format!(
            "a confined process ended by {exit:?}"
        ))),
    }
}

/// Returns the pod's user on the host. It is never the user that the pod names: that may be a person's, a service's
/// or another pod's. Meshes on loopback addresses see each other's processes, so each block of addresses has users of its own.
fn user(pod: &PodPlan) -> Option<User> {
    let [first, block, high, low] = pod.address.octets();
    let number = u32::from(u16::from_be_bytes([high, low])) % USERS;
    let apart = match first {
        127 => (1 + u32::from(block)) * USERS,
        _ => 0,
    };
    let own = [FIRST_USER + apart + number, FIRST_USER_OF_FEW + number];
    let uid = own.into_iter().find(|uid| is_mapped(*uid))?;
    Some(User { uid, gid: uid })
}
