//! Results of a run: conditions, counts, samples, tables and formats.

pub mod comparison;
pub(crate) mod condition;
pub(crate) mod failures;
pub mod fortio;
pub mod outcome;
pub mod samples;
pub(crate) mod table;
pub(crate) mod tally;
pub mod trace;
pub(crate) mod units;
pub(crate) mod view;
