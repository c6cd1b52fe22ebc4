//! Revisions of a control plane, by which several share a cluster.

/// Name of a revision that nobody named.
pub const DEFAULT_REVISION: &str = "default";
/// Label with the revision, or a tag of it, that a namespace or a Pod uses, and with that of an object of a control plane.
pub(crate) const REVISION: &str = "istio.io/rev";

/// `name`, with the revision behind it where it is not the default one, as Istio names what belongs to a revision.
pub(crate) fn of_revision(name: &str, revision: &str) -> String {
    match revision {
        "" | DEFAULT_REVISION => name.to_owned(),
        revision => format!("{name}-{revision}"),
    }
}

/// The label of a revision; the default one may have no name.
pub(crate) fn label_of(revision: &str) -> &str {
    if revision.is_empty() {
        DEFAULT_REVISION
    } else {
        revision
    }
}
