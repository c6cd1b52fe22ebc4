//! `report.html`.

use crate::record::Record;

/// Draws the report.
#[must_use]
pub fn render(record: &Record) -> String {
    record.experiment.name.clone()
}
