//! Verdicts on targets as a record keeps them.

use serde::{Deserialize, Serialize};

/// Verdict on a target in one cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetVerdict {
    /// Subject of the target.
    pub row: String,
    /// The cell: path and load.
    pub cell: String,
    /// The figure's name.
    pub figure: String,
    /// The required value, in words.
    pub wanted: String,
    /// The measured value, in words.
    pub seen: String,
    /// The compared value, in words.
    pub beside: String,
    /// Verdict on the target.
    pub outcome: TargetResult,
}

/// Verdict on a target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetResult {
    /// The whole interval lies on the good side.
    Reached,
    /// The whole interval lies on the bad side.
    Missed,
    /// The bound lies inside the interval, or there is none: measure longer, or on a quieter machine.
    #[default]
    CannotTell,
    /// Something that it needs was not measured.
    NotMeasured,
}

impl TargetResult {
    /// For people.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Reached => "reached",
            Self::Missed => "missed",
            Self::CannotTell => "cannot tell",
            Self::NotMeasured => "not measured",
        }
    }

    /// The worse of two outcomes: the outcome of a target with several parts.
    pub(crate) fn and(self, other: Self) -> Self {
        let rank = |outcome| match outcome {
            Self::Missed => 0,
            Self::NotMeasured => 1,
            Self::CannotTell => 2,
            Self::Reached => 3,
        };
        if rank(self) <= rank(other) {
            self
        } else {
            other
        }
    }
}
