//! Hooks of a definition: commands that are run before and after every slice of the cells that name them. A hook is a condition
//! under which cells are measured (caches dropped, a neighbour busy), so it is an axis as any other.

use std::collections::BTreeMap;
use std::time::Duration;

use toml::Spanned;

use super::written::{ComplaintLocation, Written};
use crate::definition::error::DefinitionError;

/// Cells without a hook.
pub(super) const NONE: &str = "none";
/// Default time limit of a hook's command.
const BOUND: Duration = Duration::from_secs(30);
/// The most that it may say, and the least that makes sense for a process that is started.
const BOUNDS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(600);

/// Commands around each slice of a cell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hook {
    /// Run before it; the slice does not begin when it fails.
    pub before: Vec<String>,
    /// Command after the slice. It runs after any result.
    pub after: Vec<String>,
    /// Time limit of either command.
    pub bound: Duration,
}

pub(super) fn hooks(
    place: &ComplaintLocation<'_>,
    written: &Written,
) -> Result<BTreeMap<String, Hook>, DefinitionError> {
    let mut hooks = BTreeMap::new();
    for (name, hook) in &written.hooks {
        let word = name.get_ref();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if word == NONE || word.is_empty() || !word.chars().all(plain) {
            let why = format!(
                "hook \"{word}\" needs a name of letters, digits and '-'; \"{NONE}\" means no hook"
            );
            return Err(place.error(name.span(), why));
        }
        let command = |what: &str, words: &Option<Spanned<Vec<String>>>| match words {
            None => Ok(Vec::new()),
            Some(words)
                if words
                    .get_ref()
                    .first()
                    .is_some_and(|first| !first.is_empty()) =>
            {
                Ok(words.get_ref().clone())
            }
            Some(words) => Err(place.error(
                words.span(),
                format!("{what} must be a command: [\"program\", \"argument\"]"),
            )),
        };
        let written = hook.get_ref();
        let found = Hook {
            before: command("before", &written.before)?,
            after: command("after", &written.after)?,
            bound: match &written.bound {
                Some(bound) => place.duration("bound", bound, BOUNDS)?,
                None => BOUND,
            },
        };
        if found.before.is_empty() && found.after.is_empty() {
            let why = format!("hook {word} does nothing: set before, after or both");
            return Err(place.error(hook.span(), why));
        }
        hooks.insert(word.clone(), found);
    }
    Ok(hooks)
}
