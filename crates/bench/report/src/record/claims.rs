//! Published claims as a record keeps them, and the cells that they speak of.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::record::CellKey;
use crate::shape::CellShape;

/// A published sentence, and how it is judged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Claim {
    /// The preset that re-tests it.
    pub preset: String,
    /// Source of the claim: author, place and date.
    pub source: String,
    /// The claim, in our words.
    pub claim: String,
    /// Method of the judgement, in words.
    pub judged: String,
    /// The figure, as in [`Summary`].
    pub figure: String,
    /// Contestants; each is judged by itself.
    pub of: Vec<String>,
    /// Cells that are judged: all that fit.
    pub cell: CellSelector,
    /// Judged is the ratio to the same figure there, paired within rounds.
    pub ratio_to: Option<CellSelector>,
    /// Judged is that ratio divided by the same ratio at this number of connections, within rounds: how it changes with them.
    pub than_at: Option<u32>,
    /// Judged is the difference to the same figure there, paired within rounds.
    pub more_than: Option<CellSelector>,
    /// Judged is how much more the figure rises from the second of these two cells to this one than from the first to the
    /// second, within rounds.
    pub rises_from: Vec<CellSelector>,
    /// Judged is how much steeper the figure rises over the upper half of these connections than over the lower: three.
    pub steeper_over: Vec<u32>,
    /// No less than this.
    pub low: Option<f64>,
    /// No more than this.
    pub high: Option<f64>,
    /// Missing feature, or a measurement that this preset does not make.
    pub needs: String,
}

/// Selector of cells. An unset field matches any value; in a compared cell, an unset field has the judged cell's value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CellSelector {
    /// As in [`crate::record::SliceRun`], and so on.
    pub contestant: Option<String>,
    /// …
    pub mode: Option<String>,
    /// …
    pub tls: Option<bool>,
    /// …
    pub protocol: Option<String>,
    /// …
    pub rate: Option<u32>,
    /// …
    pub connections: Option<u32>,
    /// Generated objects of the mesh by number, as in [`crate::shape::CellShape`]. If unset: none, or as in the compared cell.
    pub generated: Option<BTreeMap<String, u32>>,
    /// Effect of the policies on requests, as in [`crate::shape::CellShape`]. If unset: none, or as in the compared cell.
    pub verdict: Option<String>,
    /// The route that takes the requests, as in [`crate::shape::CellShape`]. If unset: none, or as in the compared cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit: Option<String>,
    /// Tokens of the requests, as in [`crate::shape::CellShape`]. If unset: none, or as in the compared cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// `cold` if processes start anew for each slice, as in [`crate::shape::CellShape`]. If unset: they run all the time, or as in
    /// the compared cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
}

impl CellSelector {
    pub(crate) fn fits(&self, cell: &CellKey) -> bool {
        fn says<T: PartialEq>(wanted: &Option<T>, is: &T) -> bool {
            wanted.as_ref().is_none_or(|wanted| wanted == is)
        }
        says(&self.contestant, &cell.contestant)
            && says(&self.mode, &cell.mode)
            && says(&self.tls, &cell.tls)
            && says(&self.protocol, &cell.protocol)
            && says(&self.rate, &cell.rate)
            && says(&self.connections, &cell.connections)
            && self.generated.clone().unwrap_or_default() == cell.shape.generated
            && self.verdict.clone().unwrap_or_default() == cell.shape.verdict
            && self.hit.clone().unwrap_or_default() == cell.shape.hit
            && self.token.clone().unwrap_or_default() == cell.shape.token
            && self.start.clone().unwrap_or_default() == cell.shape.start
    }

    /// The cell with the fields of this selector, and otherwise those of `cell`.
    pub(crate) fn beside(&self, cell: &CellKey) -> CellKey {
        let or = |said: &Option<String>, is: &String| said.clone().unwrap_or_else(|| is.clone());
        CellKey {
            contestant: or(&self.contestant, &cell.contestant),
            mode: or(&self.mode, &cell.mode),
            tls: self.tls.unwrap_or(cell.tls),
            protocol: or(&self.protocol, &cell.protocol),
            rate: self.rate.unwrap_or(cell.rate),
            connections: self.connections.unwrap_or(cell.connections),
            shape: CellShape {
                generated: self
                    .generated
                    .clone()
                    .unwrap_or_else(|| cell.shape.generated.clone()),
                verdict: or(&self.verdict, &cell.shape.verdict),
                hit: or(&self.hit, &cell.shape.hit),
                token: or(&self.token, &cell.shape.token),
                start: or(&self.start, &cell.shape.start),
                ..cell.shape.clone()
            },
            ..cell.clone()
        }
    }
}

/// `envoy, 100 connections, without generated configuration`.
impl fmt::Display for CellSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = self.tls.map(|tls| match tls {
            true => "mutual TLS".to_owned(),
            false => "plaintext".to_owned(),
        });
        let generated = self.generated.as_ref().map(|mesh| {
            let kinds: Vec<String> = mesh.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
            match kinds.is_empty() {
                true => "without generated configuration".to_owned(),
                false => kinds.join(" and "),
            }
        });
        let words = [
            self.contestant.clone(),
            self.mode.clone(),
            tls,
            self.protocol.clone(),
            self.rate.map(|rate| format!("{rate}/s")),
            self.connections.map(|n| format!("{n} connections")),
            generated,
            self.verdict.clone().filter(|word| !word.is_empty()),
            self.hit.as_ref().map(|word| match word.as_str() {
                "" => "without routes".to_owned(),
                word => format!("route hit: {word}"),
            }),
            self.token.as_ref().map(|word| match word.as_str() {
                "" => "no token".to_owned(),
                word => format!("token {word}"),
            }),
            self.start.as_ref().map(|word| match word.as_str() {
                "" => "running all the time".to_owned(),
                word => format!("{word} start"),
            }),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        f.write_str(&words.join(", "))
    }
}
