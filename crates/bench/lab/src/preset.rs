//! Presets: experiments that re-test published claims, or requirements on Voile. They are part of the program, so they run from
//! anywhere. A preset is a committed definition, with its quick one beside it, and the claims that are judged by it.

use serde::Deserialize;
use voile_report::claims::Claim;

use crate::definition::{Definition, Isolation, WAYPOINT_MODE};
use crate::network::Network;
use crate::process_bounds;

/// Name, definition, quick definition.
type Committed = (&'static str, &'static str, &'static str);

macro_rules! committed {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../../../benchmarks/presets/", $name, ".toml")),
            include_str!(concat!(
                "../../../../benchmarks/presets/",
                $name,
                "-quick.toml"
            )),
        )
    };
}

const COMMITTED: [Committed; 6] = [
    committed!("best-practices"),
    committed!("protocol-detection"),
    committed!("data-planes"),
    committed!("performance-and-scalability"),
    committed!("security-policies"),
    committed!("routing"),
];

const CLAIMS: &str = include_str!("../../../../benchmarks/presets/claims.toml");

/// The experiments behind the curves of `voile plan`: sidecars, and node proxies where this machine can make network namespaces.
///
/// # Errors
/// If a committed definition is wrong.
pub fn curves() -> Result<Vec<Definition>, String> {
    let committed = [
        (
            "curves.toml",
            include_str!("../../../../benchmarks/curves.toml"),
        ),
        (
            "curves-node.toml",
            include_str!("../../../../benchmarks/curves-node.toml"),
        ),
    ];
    let parsed = committed
        .into_iter()
        .map(|(file, text)| Definition::parse(file, text).map_err(|e| e.to_string()));
    let mut definitions = parsed.collect::<Result<Vec<_>, _>>()?;
    if let Err(why) = Network::possible() {
        definitions.truncate(1);
        let missing = format!("node proxies and waypoints are not measured: {why}");
        definitions[0].missing.push(missing);
    }
    Ok(definitions)
}

/// The names of all presets, in the order `all` runs them.
#[must_use]
pub fn presets() -> Vec<&'static str> {
    COMMITTED.iter().map(|(name, ..)| *name).collect()
}

/// A preset's definition with its claims, whole or quick. If this machine cannot limit sidecars, they are not limited. If it
/// cannot make network namespaces, the preset runs on loopback without node proxies. The record states both.
///
/// # Errors
/// If there is no preset of that name.
pub fn preset(name: &str, quick: bool) -> Result<Definition, String> {
    let mut definition = as_committed(name, quick)?;
    if let (Some(limits), Err(why)) = (
        definition.limits,
        process_bounds::possible(&definition, false),
    ) {
        definition.limits = None;
        let limits = limits.in_words();
        definition
            .missing
            .push(format!("sidecars are not limited to {limits}: {why}"));
    }
    if definition.isolation == Isolation::Netns
        && let Err(why) = Network::possible()
    {
        definition = on_loopback(definition, &why);
    }
    Ok(definition)
}

/// The same without what needs networks of its own.
fn on_loopback(mut definition: Definition, why: &str) -> Definition {
    definition.isolation = Isolation::Loopback;
    let nodes = ["node", WAYPOINT_MODE];
    definition
        .cells
        .retain(|cell| !nodes.contains(&cell.mode.as_str()));
    let missing = format!(
        "modes {} are not measured, and everything else runs on loopback: {why}",
        nodes.join(" and ")
    );
    definition.missing.push(missing);
    definition
}

/// The definition as it is written.
fn as_committed(name: &str, quick: bool) -> Result<Definition, String> {
    let committed = COMMITTED.iter().find(|(known, ..)| *known == name);
    let Some((_, whole, short)) = committed else {
        return Err(format!(
            "there is no preset \"{name}\"; there are {}",
            presets().join(", ")
        ));
    };
    let (file, text) = if quick {
        (format!("{name}-quick.toml"), short)
    } else {
        (format!("{name}.toml"), whole)
    };
    let mut definition = Definition::parse(&file, text).map_err(|e| e.to_string())?;
    definition.claims = claims()?
        .into_iter()
        .filter(|claim| claim.preset == name)
        .collect();
    Ok(definition)
}

fn claims() -> Result<Vec<Claim>, String> {
    #[derive(Deserialize)]
    struct File {
        claims: Vec<Claim>,
    }
    let file: File = toml::from_str(CLAIMS).map_err(|e| format!("claims.toml: {e}"))?;
    Ok(file.claims)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::SlicePlan;

    /// Length of a quick preset, for which this project's developers have to wait. Policies have many kinds and numbers.
    fn quick_seconds(name: &str) -> u64 {
        match name {
            "security-policies" => 490,
            // Telemetry needs cells of its own, and a mesh has four modes.
            "performance-and-scalability" => 480,
            _ => 300,
        }
    }

    #[test]
    fn quick_takes_minutes_and_each_preset_judges_something() {
        for name in presets() {
            let quick = as_committed(name, true).expect("it is committed");
            let whole = as_committed(name, false).expect("it is committed");
            let takes = |definition| SlicePlan::new(definition, &|_| true).duration().as_secs();
            assert!(
                takes(&quick) <= quick_seconds(name),
                "{name}: {} s",
                takes(&quick)
            );
            assert!(takes(&quick) < takes(&whole), "{name}");
            let asks = quick.claims.len().max(quick.targets.len());
            assert!(asks > 3, "{name}");
            assert_eq!(quick.claims, whole.claims);
        }
        assert!(preset("policies", true).is_err());
    }

    #[test]
    fn without_namespaces_all_but_node_proxies_is_measured_and_that_is_said() {
        let whole = as_committed("performance-and-scalability", true).expect("it is committed");
        let cells = whole.cells.len();
        let less = on_loopback(whole, "needs root");
        assert_eq!(less.isolation, Isolation::Loopback);
        assert!(less.cells.len() < cells);
        let nodes = less.cells.iter().find(|cell| cell.mode.starts_with("node"));
        assert_eq!(nodes, None);
        let missing = less.missing.join("; ");
        let said = "modes node and node+waypoint are not measured, and everything else runs on loopback: needs root";
        assert!(missing.contains(said), "{missing}");
    }

    /// A claim that fits no cell would be "not measured" for ever, and an unknown key would judge nothing.
    #[test]
    fn every_claim_has_cells_and_bounds_or_says_what_it_needs() {
        let known: BTreeSet<&str> = presets().into_iter().collect();
        for claim in claims().expect("readable") {
            assert!(known.contains(claim.preset.as_str()), "{}", claim.preset);
            assert!(
                !claim.of.is_empty() && !claim.source.is_empty(),
                "{}",
                claim.claim
            );
            if !claim.needs.is_empty() {
                continue;
            }
            assert!(
                claim.low.is_some() || claim.high.is_some(),
                "{}",
                claim.claim
            );
            assert!(
                !claim.judged.is_empty() && !claim.figure.is_empty(),
                "{}",
                claim.claim
            );
            for quick in [true, false] {
                let definition = as_committed(&claim.preset, quick).expect("it is committed");
                for contestant in &claim.of {
                    let fits = definition.cells.iter().any(|cell| {
                        cell.contestant == *contestant && claim.cells(cell, &definition.cells)
                    });
                    assert!(fits, "{} (quick: {quick}): {contestant}", claim.claim);
                }
            }
        }
        let table: toml::Table = toml::from_str(CLAIMS).expect("TOML");
        let keys = table["claims"].as_array().expect("claims").iter();
        let keys: BTreeSet<&String> = keys
            .flat_map(|claim| claim.as_table().expect("a table").keys())
            .collect();
        let read = serde_json::to_value(Claim::default()).expect("JSON");
        for key in keys {
            assert!(read.get(key).is_some(), "nobody reads \"{key}\"");
        }
    }
}
