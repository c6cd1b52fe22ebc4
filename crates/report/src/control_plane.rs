//! What a control plane costs and how soon its proxies are told: a record of figures, each beside the bound that was asked for.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::head::Head;

/// A whole record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ControlPlaneRecord {
    /// Where, when and how.
    #[serde(flatten)]
    pub head: Head,
    /// Services of the mesh.
    pub services: u32,
    /// Workloads.
    pub workloads: u32,
    /// Simulated proxies.
    pub proxies: u32,
    /// Services that each of them uses.
    pub used: u32,
    /// What was seen, in the order in which it was measured.
    pub figures: Vec<Figure>,
}

/// One figure.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What was done.
    pub what: String,
    /// What was measured of it, such as `p99`.
    pub measure: String,
    /// What was seen, in `unit`.
    pub seen: f64,
    /// `ms`, `s`, `µs`, `cores`, `MB`, or empty for a number.
    pub unit: String,
    /// At most this is asked for; none: it is only shown.
    pub asked: Option<f64>,
    /// What else was counted.
    #[serde(default)]
    pub beside: BTreeMap<String, f64>,
}

impl Figure {
    /// Whether it is as asked; none when nothing was.
    #[must_use]
    pub fn holds(&self) -> Option<bool> {
        self.asked.map(|asked| self.seen <= asked)
    }
}

impl ControlPlaneRecord {
    /// Adds a figure.
    pub fn add(
        &mut self,
        what: &str,
        measure: &str,
        (seen, unit): (f64, &str),
        asked: Option<f64>,
    ) {
        self.figures.push(Figure {
            what: what.to_owned(),
            measure: measure.to_owned(),
            seen,
            unit: unit.to_owned(),
            asked,
            beside: BTreeMap::new(),
        });
    }

    /// Whether every bound holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.figures
            .iter()
            .all(|figure| figure.holds() != Some(false))
    }

    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// The table, for people.
    #[must_use]
    pub fn in_words(&self) -> String {
        let mut text = format!(
            "{} services, {} workloads, {} simulated proxies that use {} services each\n\n",
            self.services, self.workloads, self.proxies, self.used
        );
        let rows: Vec<[String; 4]> = self.figures.iter().map(row).collect();
        let heading = ["figure", "asked", "seen", ""].map(str::to_owned);
        let width = |column: usize| {
            let all = rows.iter().chain([&heading]);
            all.map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths = [width(0), width(1), width(2)];
        for row in [&heading].into_iter().chain(&rows) {
            let pad = |at: usize| widths[at].saturating_sub(row[at].chars().count());
            // Writing into a String cannot fail.
            let _ = writeln!(
                text,
                "{}{}  {}{}  {}{}  {}",
                row[0],
                " ".repeat(pad(0)),
                " ".repeat(pad(1)),
                row[1],
                " ".repeat(pad(2)),
                row[2],
                row[3]
            );
        }
        text
    }

    /// The table in Markdown.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut found = String::from("| figure | asked | seen | |\n|---|---|---|---|\n");
        for [what, asked, seen, verdict] in self.figures.iter().map(row) {
            // Writing into a String cannot fail.
            let _ = writeln!(found, "| {what} | {asked} | {seen} | {verdict} |");
        }
        self.head.to_markdown("What a control plane costs", &found)
    }
}

fn row(figure: &Figure) -> [String; 4] {
    let verdict = match figure.holds() {
        Some(true) => "reached",
        Some(false) => "NOT REACHED",
        None => "",
    };
    [
        format!("{}: {}", figure.what, figure.measure),
        figure.asked.map_or_else(String::new, |asked| {
            format!("≤ {}", shown(asked, &figure.unit))
        }),
        shown(figure.seen, &figure.unit),
        verdict.to_owned(),
    ]
}

fn shown(value: f64, unit: &str) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        value if value < 1.0 => 3,
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    match unit {
        "" => format!("{value:.digits$}"),
        _ => format!("{value:.digits$} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_was_asked_seen_and_reached() {
        let mut record = ControlPlaneRecord::default();
        record.add("start", "until ready", (0.5, "s"), Some(1.0));
        record.add("churn", "CPU", (0.3, "cores"), Some(0.2));
        record.add("memory", "RSS", (88.25, "MB"), None);
        let text = record.in_words();
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip(3)
            .map(|line| {
                line.split("  ")
                    .map(str::trim)
                    .filter(|w| !w.is_empty())
                    .collect()
            })
            .collect();
        assert_eq!(
            rows,
            [
                vec!["start: until ready", "≤ 1.00 s", "0.500 s", "reached"],
                vec!["churn: CPU", "≤ 0.200 cores", "0.300 cores", "NOT REACHED"],
                vec!["memory: RSS", "88.2 MB"],
            ]
        );
        assert!(!record.holds());
        let again: ControlPlaneRecord = serde_json::from_str(&record.to_json()).expect("JSON");
        assert_eq!(again, record);
    }
}
