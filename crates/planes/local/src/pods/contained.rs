//! Confinement of a pod's application in a namespace: it cannot reach other users' files, the mesh's keys or other
//! processes. As root, each pod has a user of its own; without root all run as the user who started the mesh.

use std::io;

use voile_host::confinement::{Confinement, User, is_mapped};
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

/// Returns the pod's user on the host. It is never the user that the pod names: that may be a person's, a service's
/// or another pod's.
fn user(pod: &PodPlan) -> Option<User> {
    let [_, _, high, low] = pod.address.octets();
    let number = u32::from(u16::from_be_bytes([high, low])) % USERS;
    let own = [FIRST_USER + number, FIRST_USER_OF_FEW + number];
    let uid = own.into_iter().find(|uid| is_mapped(*uid))?;
    Some(User { uid, gid: uid })
}
