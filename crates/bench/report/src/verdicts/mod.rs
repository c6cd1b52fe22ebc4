//! Comparisons, verdicts and summaries.

pub mod claims;
pub mod compare;
pub mod findings;
pub mod gate;
pub mod headline;
pub mod ranks;
pub mod side_by_side;
pub mod summarise;
pub mod targets;
