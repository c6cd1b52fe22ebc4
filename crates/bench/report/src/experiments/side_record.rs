//! What the records of side experiments have in common: a file, findings that follow from it, and drawings. The lab writes and
//! draws them through this trait; `voile bench` prints them.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::head::RecordHead;
use crate::plots::plot::Section;

/// A record of a side experiment.
pub trait SideRecord: Serialize + DeserializeOwned {
    /// File names of records of this type. A folder has one of them.
    const FILES: &'static [&'static str];

    /// File name of this record.
    fn file(&self) -> &'static str {
        Self::FILES[0]
    }

    /// Environment, time and command.
    fn head(&self) -> &RecordHead;

    /// Computes the findings anew from what was measured.
    fn conclude(&mut self) {}

    /// The findings in lines, for the head of the report.
    fn in_words(&self) -> String;

    /// The findings, for a terminal.
    fn for_terminal(&self) -> String {
        self.in_words()
    }

    /// The plots.
    fn sections(&self) -> Vec<Section>;

    /// `report.html`.
    fn to_html(&self) -> String;

    /// `report.md`.
    fn to_markdown(&self) -> String;

    /// Further drawings: names of their files, and contents.
    fn more_files(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The missed requirement for which the command fails; none if it does not.
    fn shortcoming(&self) -> Option<&'static str> {
        None
    }
}
