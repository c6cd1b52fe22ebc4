//! Record of a control plane's cost and of the delay until its proxies are updated. Each figure stands beside its required bound,
//! for one mesh or for several sizes. The memory and cost of real sidecars is a record of the same kind.

mod growth;
mod page;
mod plots;

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::head::RecordHead;
use crate::plots::plot::Section;
use crate::side_record::SideRecord;

/// A whole record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ControlPlaneRecord {
    /// Environment, time and command of the measurement.
    #[serde(flatten)]
    pub head: RecordHead,
    /// Services of the mesh.
    pub services: u32,
    /// Workloads.
    pub workloads: u32,
    /// Simulated proxies.
    pub proxies: u32,
    /// Services that each of them uses.
    pub used: u32,
    /// Real sidecars, where those were measured.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sidecars: u32,
    /// Pods of a node whose proxy was measured, where one was.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nodes: u32,
    /// Changes a second while it churned.
    #[serde(default)]
    pub churn: f64,
    /// Figures, in the order of measurement.
    pub figures: Vec<Figure>,
    /// The same of meshes of other sizes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<Size>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A mesh of another size, measured in the same way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Size {
    /// As in the record.
    pub services: u32,
    /// As in the record.
    pub workloads: u32,
    /// As in the record.
    pub proxies: u32,
    /// As in the record.
    pub churn: f64,
    /// As in the record.
    pub figures: Vec<Figure>,
}

/// One figure.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The measured action.
    pub what: String,
    /// The measure of the action, such as `p99`.
    pub measure: String,
    /// Key of the same figure in the records of other meshes; empty if no other record is compared.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The measured value, in `unit`.
    pub seen: f64,
    /// `ms`, `s`, `µs`, `cores`, `MB`, or empty for a number.
    pub unit: String,
    /// At most this is asked for; none: it is only shown.
    pub asked: Option<f64>,
    /// `asked` is the least, not the most.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
}

impl Figure {
    /// Reports if the figure is within its bound; none if it has no bound.
    #[must_use]
    pub fn holds(&self) -> Option<bool> {
        self.asked.map(|asked| match self.at_least {
            true => self.seen >= asked,
            false => self.seen <= asked,
        })
    }

    /// Lets the same figure of another mesh be found by this word.
    pub fn key(&mut self, key: &str) -> &mut Self {
        key.clone_into(&mut self.key);
        self
    }

    /// Makes the bound a minimum.
    pub fn at_least(&mut self) -> &mut Self {
        self.at_least = true;
        self
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
    ) -> &mut Figure {
        let at = self.figures.len();
        self.figures.push(Figure {
            what: what.to_owned(),
            measure: measure.to_owned(),
            seen,
            unit: unit.to_owned(),
            asked,
            ..Figure::default()
        });
        &mut self.figures[at]
    }

    /// The mesh, in words.
    fn mesh(&self) -> String {
        let each = format!("that use {} services each", self.used);
        if self.nodes > 0 {
            return format!(
                "{} pods of one node, which call a server on another",
                self.nodes
            );
        }
        match self.sidecars {
            0 => format!(
                "{} services, {} workloads, {} simulated proxies {each}",
                self.services, self.workloads, self.proxies
            ),
            sidecars => format!(
                "{} services, {sidecars} real sidecars {each}",
                self.services
            ),
        }
    }
}

impl SideRecord for ControlPlaneRecord {
    const FILES: &'static [&'static str] = &["control-plane.json", "sidecars.json", "nodes.json"];

    fn file(&self) -> &'static str {
        match (self.sidecars, self.nodes) {
            (0, 0) => "control-plane.json",
            (0, _) => "nodes.json",
            _ => "sidecars.json",
        }
    }

    fn head(&self) -> &RecordHead {
        &self.head
    }

    fn in_words(&self) -> String {
        let mut text = self.mesh() + "\n\n";
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
        let grown = self.growth_in_words();
        if !grown.is_empty() {
            text = text + "\n" + &grown;
        }
        text
    }

    fn to_markdown(&self) -> String {
        let mut found = String::from("| figure | asked | seen | |\n|---|---|---|---|\n");
        for [what, asked, seen, verdict] in self.figures.iter().map(row) {
            // Writing into a String cannot fail.
            let _ = writeln!(found, "| {what} | {asked} | {seen} | {verdict} |");
        }
        let mut text = self.head.to_markdown(self.title(), "");
        let _ = writeln!(text, "{}.\n\n{found}", self.mesh());
        for line in self.growth_in_words().lines() {
            let _ = writeln!(text, "- {line}");
        }
        text
    }

    fn sections(&self) -> Vec<Section> {
        self.plots()
    }

    fn to_html(&self) -> String {
        self.page()
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
            let sign = if figure.at_least { "≥" } else { "≤" };
            format!("{sign} {}", shown(asked, &figure.unit))
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
        let least = record.add("certificates", "signed", (1900.0, ""), Some(2000.0));
        least.at_least();
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
                vec!["certificates: signed", "≥ 2000", "1900", "NOT REACHED"],
            ]
        );
        let json = serde_json::to_value(&record).expect("JSON");
        let again: ControlPlaneRecord = serde_json::from_value(json).expect("a record");
        assert_eq!(again, record);
    }
}
