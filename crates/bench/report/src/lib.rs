//! Records of the laboratory: measurements, findings, and reports. The only input is a record folder, so every report can be
//! drawn again, anywhere, later.
//!
//! ```text
//! record.json.gz runs[] ──► figures ──► summarise (medians, intervals, paired ratios, A/A) ──► report.html, results.csv, table
//! ```

pub mod events;
pub mod gzip;
pub mod history;
mod pages;
pub mod plots;
pub mod profile;
pub mod record;
pub mod scenes;
pub mod shape;
pub mod statistics;
mod svg;
mod verdicts;

use pages::columns;
pub use pages::{csv, html, picture, table, words};

pub use scenes::decisions;
pub use verdicts::{
    claims, compare, findings, gate, headline, ranks, side_by_side, summarise, targets,
};
