//! Head of every record of a comparison: environment, time and command of the measurement, and the notes that the reader must
//! know first.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::record::Environment;

/// The head of such a record; its fields stand in the record itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordHead {
    /// Version of the record's layout: 1.
    pub format: u32,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// Duration of the whole comparison.
    pub took_seconds: f64,
    /// The command that ran it.
    pub command: String,
    /// The machine and its software.
    pub environment: Environment,
    /// Notes that the reader must know.
    pub notes: Vec<String>,
}

impl RecordHead {
    /// The beginning of a small report in Markdown: title, environment and time, notes, and the findings, a line each.
    pub(crate) fn to_markdown(&self, title: &str, found: &str) -> String {
        let environment = &self.environment;
        let versions: Vec<String> = environment
            .versions
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        let mut text = format!(
            "# {title}\n\n{} · {} · {} cores · {} · {} · profile {}\n\n",
            self.started_at,
            environment.cpu,
            environment.cores,
            environment.kernel,
            versions.join(", "),
            environment.profile
        );
        for note in &self.notes {
            let _ = writeln!(text, "> {note}\n");
        }
        for line in found.lines() {
            let _ = writeln!(text, "- {line}");
        }
        text
    }
}
