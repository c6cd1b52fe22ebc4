//! The last good version of a resource stays in force while what is written now is bad. A resource that is gone from a
//! file that reads well is gone.

use super::{Read, ResourceId, Resources, Stored};
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::source::Source;

/// Adds to the good resources those that were good before and cannot be read now, and says so.
pub(super) fn keep(read: &mut Read, previous: &Resources) {
    for (id, stored) in previous {
        if read.good.contains_key(id) {
            continue;
        }
        // Bad by name; or its file now holds something that has lost its name, which may be this one.
        let place = read
            .bad
            .get(id)
            .or_else(|| read.nameless.get(&stored.source.file));
        if let Some(place) = place.cloned() {
            if !read.bad.contains_key(id) {
                // If it is a policy, this is the one that has lost its name.
                read.nameless_policies
                    .retain(|(kind, source)| *kind != id.kind || source.file != stored.source.file);
            }
            read.diagnostics.push(note(id, stored, place));
            read.good.insert(id.clone(), stored.clone());
        }
    }
}

fn note(id: &ResourceId, stored: &Stored, place: Source) -> Diagnostic {
    let message = format!(
        "keeping the last good version of {id}, from {}",
        stored.source
    );
    Diagnostic::warning(codes::LAST_GOOD, place, message)
        .help("it stays in force until what is written is right again or removed")
}
