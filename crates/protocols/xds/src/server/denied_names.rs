//! Names that a caller asks for and may not have, as the log tells of them: how many, and one of them. A line for each would let
//! whoever has a credential write the log.

use std::sync::Arc;

/// Characters of a name that a line shows.
const SHOWN_CHARS: usize = 200;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RefusedNames {
    pub(super) type_url: Arc<str>,
    /// The first.
    pub(super) name: String,
    pub(super) reason: String,
    /// Number of refused names.
    pub(super) names: usize,
}

impl RefusedNames {
    /// Adds one more.
    pub(super) fn add(all: &mut Option<Self>, type_url: &str, name: &str, reason: &str) {
        match all {
            Some(all) => all.names += 1,
            None => {
                *all = Some(Self {
                    type_url: type_url.into(),
                    name: name.chars().take(SHOWN_CHARS).collect(),
                    reason: reason.chars().take(SHOWN_CHARS).collect(),
                    names: 1,
                });
            }
        }
    }

    /// Adds those of another type.
    pub(super) fn join(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let more = other.as_ref().map_or(0, |other| other.names);
        match one {
            None => other,
            Some(one) => Some(Self {
                names: one.names + more,
                ..one
            }),
        }
    }
}
