//! A figure with its interval, as records keep it.

use serde::{Deserialize, Serialize};

/// A figure over rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Median over rounds.
    pub median: f64,
    /// Lower end of the 95 % interval; none with fewer than six rounds.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
    /// Rounds it rests on.
    pub rounds: u32,
}
