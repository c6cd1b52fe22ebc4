//! The last good version of a resource stays in force while its current text is bad. A resource that is missing from a
//! readable file is removed.

use crate::check::{ReadFiles, ResourceId, Resources, StoredResource, fail_closed};
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::source::Source;

/// Adds to the good resources those that were good before and cannot be read now, and says so.
pub(in crate::check) fn keep(read: &mut ReadFiles, previous: &Resources) {
    for (id, stored) in previous {
        if read.good.contains_key(id) {
            continue;
        }
        // Bad by name; or its file now holds something that has lost its name, which may be this one; or some file holds what may be
        // any resource of a security kind.
        let of_file = read.lost.get(&stored.source.file);
        let lost = of_file.and_then(|all| all.iter().find(|one| one.may_be(id)));
        let place = read.bad.get(id);
        let place = place.or_else(|| lost.map(|one| &one.source));
        if let Some(place) = place.or_else(|| read.may_be.get(id.kind)).cloned() {
            if !read.bad.contains_key(id) {
                // The document without a name is this resource, which is in force. So no other resource is kept for it.
                read.broken
                    .retain(|id, broken| broken.source != place || !fail_closed::is_unnamed(id));
            }
            read.diagnostics.push(note(id, stored, place));
            read.good.insert(id.clone(), stored.clone());
        }
    }
}

fn note(id: &ResourceId, stored: &StoredResource, place: Source) -> Diagnostic {
    let message = format!(
        "keeping the last good version of {id}, from {}",
        stored.source
    );
    Diagnostic::warning(codes::LAST_GOOD, place, message)
        .help("it stays in force until the resource is corrected or removed")
}
