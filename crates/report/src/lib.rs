//! Records of the laboratory: measurements, findings, and reports. The only input is a record folder, so every report can be
//! drawn again, anywhere, later.
//!
//! ```text
//! record.json runs[] ──► figures ──► summarise (medians, intervals, paired ratios, A/A) ──► report.html, results.csv, table
//! ```

pub mod agreement;
pub mod claims;
mod columns;
pub mod compare;
pub mod control_plane;
pub mod csv;
pub mod decisions;
pub mod events;
pub mod findings;
pub mod gate;
pub mod generators;
pub mod graph;
pub mod head;
pub mod history;
pub mod html;
mod page;
pub mod picture;
pub mod plots;
pub mod profile;
pub mod ranks;
pub mod record;
pub mod shape;
pub mod side_by_side;
pub mod statistics;
pub mod summarise;
mod svg;
pub mod table;
pub mod targets;
pub mod words;
