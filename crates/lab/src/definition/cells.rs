//! The cells of a definition: each group is a cross product of contestants, modes, arrivals, rates and connections.

use toml::Spanned;
use voile_report::record::{CellKey, Kind};

use super::written::{Place, Written, WrittenCells, WrittenControl};
use super::{
    ARRIVALS, CONTESTANTS, DefinitionError, MAX_CONNECTIONS, MAX_RATE, MODES, PROTOCOLS, Variant,
};

/// All of them, or the first that cannot be.
pub(super) fn cells(
    place: &Place<'_>,
    written: &Written,
    variants: &[Variant],
) -> Result<Vec<CellKey>, DefinitionError> {
    let mut cells = Vec::new();
    for group in &written.cells {
        for cell in expand(place, written, group, variants)? {
            if cells.contains(&cell) {
                let at = group.contestants.first().map_or(0..0, Spanned::span);
                return Err(place.error(at, format!("cell {cell} is there twice")));
            }
            cells.push(cell);
        }
    }
    let bulk = |cell: &CellKey| cell.kind == Kind::Bulk;
    if cells.iter().any(bulk)
        && cells
            .iter()
            .any(|cell| cell.protocol == "tcp" && !bulk(cell))
    {
        let why = "bulk and other TCP cells need different servers: two definitions";
        return Err(place.error(0..0, why));
    }
    if cells.is_empty() {
        return Err(place.error(
            0..0,
            "there is no cell: add [[cells]] with contestants, modes and arrivals",
        ));
    }
    Ok(cells)
}

fn expand(
    place: &Place<'_>,
    written: &Written,
    group: &WrittenCells,
    variants: &[Variant],
) -> Result<Vec<CellKey>, DefinitionError> {
    let known: Vec<&str> = CONTESTANTS
        .into_iter()
        .chain(variants.iter().map(|variant| variant.name.as_str()))
        .collect();
    let protocol = group.protocol.as_ref().unwrap_or(&written.load.protocol);
    let protocol = place.word("protocol", protocol, &PROTOCOLS)?;
    let mut cells = Vec::new();
    for contestant in &group.contestants {
        let name = place.word("contestant", contestant, &known)?;
        for mode in &group.modes {
            let mode_name = place.word("mode", mode, &MODES)?;
            possible(place, mode, &name, &mode_name, group, &protocol)?;
            for arrival in arrivals(place, group)? {
                for (rate, connections) in loads(place, written, group)? {
                    cells.push(CellKey {
                        contestant: name.clone(),
                        mode: mode_name.clone(),
                        tls: group.tls,
                        kind: group.kind,
                        protocol: protocol.clone(),
                        arrival: arrival.clone(),
                        rate,
                        connections,
                    });
                }
            }
        }
    }
    Ok(cells)
}

fn possible(
    place: &Place<'_>,
    mode: &Spanned<String>,
    name: &str,
    mode_name: &str,
    group: &WrittenCells,
    protocol: &str,
) -> Result<(), DefinitionError> {
    if (name == "baseline") != (mode_name == "baseline") {
        let why = format!(
            "mode \"{mode_name}\" does not go with contestant \"{name}\": baseline has no proxy"
        );
        return Err(place.error(mode.span(), why));
    }
    if group.tls && (mode_name != "both" || name == "relay") {
        let why = format!(
            "tls needs a sidecar on both sides that speaks it: not {name} in mode {mode_name}"
        );
        return Err(place.error(mode.span(), why));
    }
    if group.kind == Kind::Bulk && protocol != "tcp" {
        return Err(place.error(mode.span(), "kind \"bulk\" needs protocol \"tcp\""));
    }
    if group.kind == Kind::Idle && name == "baseline" {
        return Err(place.error(mode.span(), "kind \"idle\" needs a proxy: not baseline"));
    }
    Ok(())
}

fn arrivals(place: &Place<'_>, group: &WrittenCells) -> Result<Vec<String>, DefinitionError> {
    match &group.arrivals {
        // Only a schedule has an arrival.
        _ if group.kind != Kind::Latency => Ok(vec![ARRIVALS[0].to_owned()]),
        None => Ok(vec![ARRIVALS[0].to_owned()]),
        Some(arrivals) => arrivals
            .iter()
            .map(|arrival| place.word("arrival", arrival, &ARRIVALS))
            .collect(),
    }
}

/// Rates and connections of a group, the definition's where it says none.
fn loads(
    place: &Place<'_>,
    written: &Written,
    group: &WrittenCells,
) -> Result<Vec<(u32, u32)>, DefinitionError> {
    let own = |values: &Option<Vec<Spanned<u32>>>, otherwise: &Spanned<u32>| match values {
        Some(values) => values.clone(),
        None => vec![otherwise.clone()],
    };
    let rates = match group.kind {
        Kind::Latency => own(&group.rates, &written.load.rate)
            .iter()
            .map(|rate| place.number("rate", rate, 1..=MAX_RATE))
            .collect::<Result<Vec<_>, _>>()?,
        _ => vec![0],
    };
    let least = u32::from(group.kind != Kind::Idle);
    let connections = own(&group.connections, &written.load.connections)
        .iter()
        .map(|number| place.number("connections", number, least..=MAX_CONNECTIONS))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(rates
        .iter()
        .flat_map(|rate| connections.iter().map(|connections| (*rate, *connections)))
        .collect())
}

/// The cell that is measured twice: the first that has all that is said of it.
pub(super) fn control(
    place: &Place<'_>,
    written: Option<&Spanned<WrittenControl>>,
    cells: &[CellKey],
) -> Result<Option<CellKey>, DefinitionError> {
    let Some(spanned) = written else {
        return Ok(None);
    };
    let written = spanned.get_ref();
    let meant = |cell: &&CellKey| {
        (&cell.contestant, &cell.mode, cell.tls, &cell.arrival)
            == (
                &written.contestant,
                &written.mode,
                written.tls,
                &written.arrival,
            )
            && written.kind.is_none_or(|kind| kind == cell.kind)
            && written
                .protocol
                .as_ref()
                .is_none_or(|p| *p == cell.protocol)
            && written.rate.is_none_or(|rate| rate == cell.rate)
            && written.connections.is_none_or(|c| c == cell.connections)
    };
    match cells.iter().find(meant) {
        Some(cell) => Ok(Some(cell.clone())),
        None => Err(place.error(
            spanned.span(),
            format!(
                "control {} {} is not one of the cells",
                written.contestant, written.mode
            ),
        )),
    }
}
