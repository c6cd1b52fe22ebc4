//! Values of options that several commands take.

use std::time::Duration;

/// A duration as resources write it: 5s, 1m30s, 250ms.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    voile_model::parse_duration(text)
        .ok_or_else(|| format!("`{text}`: expected a number with a unit, such as 5s"))
}

/// Form of an answer, as text or JSON.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct OutputArgs {
    /// Output format.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Output,
    /// The older word for `-o json`.
    #[arg(long, hide = true, conflicts_with = "output")]
    json: bool,
}

impl OutputArgs {
    pub(crate) fn is_json(self) -> bool {
        self.json || self.output == Output::Json
    }
}

/// Form of an answer, by `-o`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}
