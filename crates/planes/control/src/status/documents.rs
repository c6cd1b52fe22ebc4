//! Documents that are not in force, as an operator sees them: the error of each, its location, and the resource that serves
//! instead.

use serde::Serialize;
use voile_model::{Diagnostic, codes};

/// Documents shown: a page is read by people, and `voile analyze` shows all.
const SHOWN: usize = 100;

/// Of one reading, or of one that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Documents {
    /// Why nothing could be read; what was read before serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<RefusedDocument>,
    /// Those that are not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<usize>,
    /// Valid resources that cannot be put into force.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

/// A document, or a field of it, that is not in force; or what serves in place of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct RefusedDocument {
    /// `file:line:column`.
    at: String,
    code: &'static str,
    message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    field: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    help: String,
    /// It is not wrong: it says what serves in place of what is.
    serves: bool,
}

impl Documents {
    /// Collects the results of a reading, sorted by location.
    pub(crate) fn of(diagnostics: &[Diagnostic], problems: &[String]) -> Self {
        let told = |one: &&Diagnostic| one.is_error() || one.code == codes::LAST_GOOD;
        let refused = |one: &Diagnostic| RefusedDocument {
            at: one.source.to_string(),
            code: one.code,
            message: one.message.clone(),
            field: one.field.clone(),
            help: one.help.clone(),
            serves: one.code == codes::LAST_GOOD,
        };
        let all = diagnostics.iter().filter(told);
        Self {
            unreadable: None,
            more: all
                .clone()
                .count()
                .checked_sub(SHOWN)
                .filter(|more| *more > 0),
            refused: all.take(SHOWN).map(refused).collect(),
            problems: problems.iter().take(SHOWN).cloned().collect(),
        }
    }

    /// The same, of a folder that cannot be read any more.
    pub(crate) fn unreadable(self, why: String) -> Self {
        Self {
            unreadable: Some(why),
            ..self
        }
    }

    pub(super) fn is_well(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use voile_model::SourceFile;

    use super::*;

    #[test]
    fn what_is_wrong_and_what_serves_instead_is_told_and_no_more_than_people_read() {
        let service = |name: &str, port: &str| {
            format!(
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{ports: [{{port: {port}}}]}}\n"
            )
        };
        let files = |port: &str| {
            let many: String = (0..SHOWN)
                .map(|n| service(&format!("s{n}"), port))
                .collect();
            [SourceFile::new("a.yaml", service("web", port) + &many)]
        };
        let (mesh, problems) = voile_model::check(&files("80"), None);
        let good = Documents::of(&problems, &[]);
        assert!(good.is_well(), "{good:?}");
        let (_, problems) = voile_model::check(&files("0"), Some(&mesh));
        let found = Documents::of(&problems, &["a problem".to_owned()]);
        assert!(!found.is_well());
        // Of each what is wrong, and what serves.
        assert_eq!((found.refused.len(), found.more), (SHOWN, Some(SHOWN + 2)));
        let [wrong, instead] = [false, true].map(|serves| {
            let mut all = found.refused.iter();
            all.find(|one| one.serves == serves).expect("one")
        });
        assert!(wrong.at.starts_with("a.yaml:"), "{wrong:?}");
        assert!(
            instead
                .message
                .contains("last good version of Service shop/web"),
            "{instead:?}"
        );
        assert_eq!(found.problems, ["a problem"]);
        let gone = found.unreadable("gone".to_owned());
        assert_eq!(gone.unreadable.as_deref(), Some("gone"));
        assert!(!gone.refused.is_empty(), "what was wrong before still is");
    }
}
