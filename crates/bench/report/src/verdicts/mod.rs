//! Comparisons, verdicts and summaries.

pub mod claims;
pub mod compare;
pub mod findings;
pub mod gate;
pub mod headline;
pub mod ranks;
pub mod summarise;
pub mod targets;
