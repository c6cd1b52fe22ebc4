//! The cells of a definition: each group is a cross product of contestants, feature sets, modes, TLS, protocols, arrivals,
//! rates, connections, sizes, workers, CPU sets, hooks and starts. A combination that cannot be (the baseline behind a proxy) is left
//! out of a group that has others of that contestant, and a mistake in one that has none.

use std::ops::Range;

use toml::Spanned;
use voile_report::record::{CellKey, ValueKind};
use voile_report::shape::COLD;

use super::ENVOY_XDS;
use super::features::{self, FEATURES};
use super::generated::{
    self, FORGED, Generated, HITS, KINDS, MOST, MatchedRule, SAME, TOKENS, USUAL_HIT, VERDICTS,
    believed, refusal,
};
use super::hooks::NONE;
use super::suggestions::meant;
use super::written::{ComplaintLocation, Written, WrittenCells, WrittenControl};
use super::{
    ARRIVALS, CONTESTANTS, GATEWAYS, MAX_CONNECTIONS, MAX_RATE, MAX_SIZE_BYTES, MAX_WORKERS, MODES,
    NODES, PROTOCOLS, Variant, WAYPOINT_MODE, WAYPOINTS, peers,
};
use crate::definition::error::DefinitionError;

/// Endpoints of a cell: listeners of one server, each with an address of its own.
const MOST_ENDPOINTS: u32 = 100;

/// In a definition: processes run all the time, which a cell need not say.
const WARM: &str = "warm";

/// Cells that the groups ask for.
pub(super) struct CellOptions {
    pub(super) cells: Vec<CellKey>,
    /// Requested features that are not built, in words.
    pub(super) missing: Vec<String>,
}

/// All of them, or the first that cannot be. Feature sets that are asked for become variants.
pub(super) fn cells(
    place: &ComplaintLocation<'_>,
    written: &Written,
    variants: &mut Vec<Variant>,
) -> Result<CellOptions, DefinitionError> {
    let mut asked = CellOptions {
        cells: Vec::new(),
        missing: Vec::new(),
    };
    for group in &written.cells {
        for cell in expand(place, written, group, variants, &mut asked.missing)? {
            if asked.cells.contains(&cell) {
                let at = group.contestants.first().map_or(0..0, Spanned::span);
                return Err(place.error(at, format!("cell {cell} appears twice")));
            }
            asked.cells.push(cell);
        }
    }
    let bulk = |cell: &CellKey| cell.kind == ValueKind::Bulk;
    let other_tcp = |cell: &CellKey| cell.protocol == "tcp" && !bulk(cell);
    if asked.cells.iter().any(bulk) && asked.cells.iter().any(other_tcp) {
        let why = "bulk and other TCP cells need different servers: use two definitions";
        return Err(place.error(0..0, why));
    }
    if asked.cells.is_empty() {
        let why = match asked.missing.as_slice() {
            [] => "there is no cell: add [[cells]] with contestants, modes and arrivals".to_owned(),
            missing => format!("nothing can be measured: {}", missing.join("; ")),
        };
        return Err(place.error(0..0, why));
    }
    Ok(asked)
}

/// One place on every axis so far, times each of `values`.
fn cross<T>(cells: &[CellKey], values: &[T], set: impl Fn(&mut CellKey, &T)) -> Vec<CellKey> {
    let with = |cell: &CellKey, value: &T| {
        let mut cell = cell.clone();
        set(&mut cell, value);
        cell
    };
    cells
        .iter()
        .flat_map(|cell| values.iter().map(move |value| (cell, value)))
        .map(|(cell, value)| with(cell, value))
        .collect()
}

fn expand(
    place: &ComplaintLocation<'_>,
    written: &Written,
    group: &WrittenCells,
    variants: &mut Vec<Variant>,
    missing: &mut Vec<String>,
) -> Result<Vec<CellKey>, DefinitionError> {
    let loads = loads(place, written, group)?;
    let meshes = meshes(place, group)?;
    let modes = modes(place, group)?;
    let features = features(place, group)?;
    let known: Vec<String> = CONTESTANTS
        .iter()
        .map(|name| (*name).to_owned())
        .chain(variants.iter().map(|variant| variant.name.clone()))
        .collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let mut cells = Vec::new();
    for contestant in &group.contestants {
        let name = place.word("contestant", contestant, &known)?;
        let names = with_features(&name, &features, variants, missing);
        let own = CellKey {
            contestant: name.clone(),
            kind: group.kind,
            ..CellKey::default()
        };
        let own = cross(&[own], &names, |cell, name| {
            cell.contestant.clone_from(name);
        });
        let own = cross(&own, &modes, |cell, (mode, _)| {
            cell.mode.clone_from(mode);
        });
        let own = cross(&own, &group.tls.all(), |cell, tls| {
            cell.tls = *tls;
        });
        let mut first_no = None;
        let all: Vec<CellKey> = cross(&own, &loads, |cell, load| {
            let path = (cell.contestant.clone(), cell.mode.clone(), cell.tls);
            *cell = load.clone();
            (cell.contestant, cell.mode, cell.tls) = path;
            if cell.is_baseline() {
                cell.shape.workers = None;
            }
        });
        let is_told = variants.iter().any(|variant| names.contains(&variant.name))
            || ["voile", ENVOY_XDS].contains(&name.as_str());
        let meshes = made_for(&name, is_told, &meshes, missing);
        let all = cross(&all, &meshes, |cell, mesh| {
            cell.shape.generated.clone_from(mesh);
        });
        let all = routed(place, group, &all)?;
        let all = judged(place, group, &all)?;
        let all = carrying(place, group, &all)?;
        let mut possible: Vec<CellKey> = Vec::new();
        for cell in all {
            match impossible(&cell, &name) {
                // The baseline has no workers and no token, so several of them make one cell of it.
                None if cell.is_baseline()
                    && possible.contains(&cell)
                    && (group.workers.is_some() || group.tokens.is_some()) => {}
                None => possible.push(cell),
                Some(why) => {
                    let at = modes.iter().find(|(mode, _)| *mode == cell.mode);
                    first_no.get_or_insert((at.map_or(0..0, |(_, at)| at.clone()), why));
                }
            }
        }
        if let (true, Some((at, why))) = (possible.is_empty(), first_no) {
            return Err(place.error(at, why));
        }
        cells.extend(possible);
    }
    Ok(cells)
}

/// Contestants of that name with each of these sets: Voile's become variants, peers know theirs by name.
fn with_features(
    name: &str,
    features: &[String],
    variants: &mut Vec<Variant>,
    missing: &mut Vec<String>,
) -> Vec<String> {
    let base = variants
        .iter()
        .find(|variant| variant.name == name)
        .cloned();
    let base = base.or_else(|| (name == "voile").then(|| Variant::plain(name)));
    let mut names = Vec::new();
    for feature in features {
        let no = |why: &str| format!("{name} with feature set {feature}: {why}");
        match (&base, feature.as_str()) {
            (_, "default") => names.push(name.to_owned()),
            // A baseline or bare relay has no features.
            (None, _) if ["baseline", "relay"].contains(&name) => {
                if !names.iter().any(|known| known == name) {
                    names.push(name.to_owned());
                }
            }
            (None, set) if peers::has(name, set) => names.push(format!("{name}+{set}")),
            (None, _) => note(missing, no("the lab has no such configuration")),
            (Some(base), _) => match features::with_all(base, feature) {
                Ok(variant) => {
                    names.push(variant.name.clone());
                    if !variants.contains(&variant) {
                        variants.push(variant);
                    }
                }
                Err(why) => note(missing, no(why)),
            },
        }
    }
    names
}

fn note(missing: &mut Vec<String>, words: String) {
    if !missing.contains(&words) {
        missing.push(words);
    }
}

fn features(
    place: &ComplaintLocation<'_>,
    group: &WrittenCells,
) -> Result<Vec<String>, DefinitionError> {
    let Some(features) = &group.features else {
        return Ok(vec!["default".to_owned()]);
    };
    features
        .iter()
        .map(|feature| {
            let words = feature.get_ref();
            let unknown = words.split('+').find(|word| !FEATURES.contains(word));
            match unknown.filter(|word| word.len() < words.len()) {
                Some(word) => {
                    let why = format!("feature set \"{word}\" of \"{words}\" is unknown");
                    Err(place.error(feature.span(), why))
                }
                None if words.contains('+') => Ok(words.clone()),
                None => place.word("feature set", feature, &FEATURES),
            }
        })
        .collect()
}

/// The group's modes, and where each is written.
fn modes(
    place: &ComplaintLocation<'_>,
    group: &WrittenCells,
) -> Result<Vec<(String, Range<usize>)>, DefinitionError> {
    let modes = group.modes.iter();
    modes
        .map(|mode| Ok((place.word("mode", mode, &MODES)?, mode.span())))
        .collect()
}

/// Reason why the cell cannot be measured.
fn impossible(cell: &CellKey, name: &str) -> Option<String> {
    let mode = &cell.mode;
    if (name == "baseline") != cell.is_baseline() {
        return Some(format!(
            "mode \"{mode}\" does not go with contestant \"{name}\": baseline has no proxy"
        ));
    }
    if let Some(why) = cannot_be_in_mode(cell, name) {
        return Some(why);
    }
    let mutual = ["both", "node", WAYPOINT_MODE].contains(&mode.as_str());
    if cell.tls && (!mutual || name == "relay") {
        return Some(format!(
            "tls needs sidecars with TLS on both sides, which {name} in mode {mode} does not have"
        ));
    }
    if name == "ztunnel" && mode == "both" && !cell.tls {
        return Some("two ztunnels always speak mutual TLS to each other: tls = true".to_owned());
    }
    if cell.kind == ValueKind::Bulk && cell.protocol != "tcp" {
        return Some("kind \"bulk\" needs protocol \"tcp\"".to_owned());
    }
    if cell.shape.is_cold() && name == "baseline" {
        return Some("start \"cold\" needs a proxy to start: not baseline".to_owned());
    }
    if cell.shape.is_cold() && ![ValueKind::Latency, ValueKind::Saturation].contains(&cell.kind) {
        return Some(
            "start \"cold\" needs requests: kind \"latency\" or \"saturation\"".to_owned(),
        );
    }
    if cell.kind == ValueKind::Idle && name == "baseline" {
        return Some("kind \"idle\" needs a proxy: not baseline".to_owned());
    }
    let no = cannot_be_routed(cell).or_else(|| cannot_be_balanced(cell));
    let no = no.or_else(|| cannot_be_believed(cell));
    if let Some(why) = no.or_else(|| cannot_be_judged(cell)) {
        return Some(why);
    }
    let echoes = ["tcp", "grpc"].contains(&cell.protocol.as_str());
    if echoes && cell.shape.request_bytes.is_some() {
        return Some(format!(
            "over {} the server echoes: set response_sizes only, requests have the same sizes",
            cell.protocol
        ));
    }
    None
}

/// Reason why the cell cannot be measured through node proxies, or through a gateway.
fn cannot_be_in_mode(cell: &CellKey, name: &str) -> Option<String> {
    let mode = cell.mode.as_str();
    let able: &[&str] = match mode {
        "node" => &NODES,
        WAYPOINT_MODE => &WAYPOINTS,
        "gateway" => &GATEWAYS,
        _ => return None,
    };
    let why = if !able.contains(&name) {
        format!("has contestants {}: not {name}", able.join(", "))
    } else if mode != "gateway" && !cell.tls {
        "is mutual TLS always: tls = true".to_owned()
    } else if mode == "gateway" && cell.tls {
        "is in plaintext, from outside and to the server: tls = false".to_owned()
    } else if cell.contestant != name {
        format!("has no feature sets yet: not {}", cell.contestant)
    } else if !cell.shape.generated.is_empty() {
        "does not support generated policies, routes, tokens, endpoints or services yet".to_owned()
    } else {
        return None;
    };
    Some(format!("mode \"{mode}\" {why}"))
}

/// Every load of a group, as cells without a path; the definition's own values where it says none.
fn loads(
    place: &ComplaintLocation<'_>,
    written: &Written,
    group: &WrittenCells,
) -> Result<Vec<CellKey>, DefinitionError> {
    let own = |values: &Option<Vec<Spanned<u32>>>, otherwise: &Spanned<u32>| match values {
        Some(values) => values.clone(),
        None => vec![otherwise.clone()],
    };
    let rates = match group.kind {
        ValueKind::Latency => own(&group.rates, &written.load.rate)
            .iter()
            .map(|rate| place.number("rate", rate, 1..=MAX_RATE))
            .collect::<Result<Vec<_>, _>>()?,
        _ => vec![0],
    };
    let least = u32::from(group.kind != ValueKind::Idle);
    let connections = own(&group.connections, &written.load.connections)
        .iter()
        .map(|number| place.number("connections", number, least..=MAX_CONNECTIONS))
        .collect::<Result<Vec<_>, _>>()?;
    let sizes = |field: &str, values: &Option<Vec<Spanned<u64>>>| match values {
        None => Ok(vec![None]),
        Some(values) => values
            .iter()
            .map(|size| Ok(Some(place.number(field, size, 0..=MAX_SIZE_BYTES)?)))
            .collect::<Result<Vec<_>, _>>(),
    };
    let requests = sizes("request_sizes", &group.request_sizes)?;
    let responses = sizes("response_sizes", &group.response_sizes)?;
    let cell = CellKey {
        kind: group.kind,
        ..CellKey::default()
    };
    let cells = cross(
        &[cell],
        &protocols(place, written, group)?,
        |cell, protocol| {
            cell.protocol.clone_from(protocol);
        },
    );
    let cells = cross(&cells, &arrivals(place, group)?, |cell, arrival| {
        cell.arrival.clone_from(arrival);
    });
    let cells = cross(&cells, &rates, |cell, rate| {
        cell.rate = *rate;
    });
    let cells = cross(&cells, &connections, |cell, number| {
        cell.connections = *number;
    });
    let cells = cross(&cells, &requests, |cell, size| {
        cell.shape.request_bytes = *size;
    });
    let cells = cross(&cells, &responses, |cell, size| {
        cell.shape.response_bytes = *size;
    });
    on_processes(place, written, group, &cells)
}

/// Each of these loads on every kind of processes that the group names.
fn on_processes(
    place: &ComplaintLocation<'_>,
    written: &Written,
    group: &WrittenCells,
    loads: &[CellKey],
) -> Result<Vec<CellKey>, DefinitionError> {
    let cells = cross(loads, &workers(place, group)?, |cell, n| {
        cell.shape.workers = *n;
    });
    let sets: Vec<&Spanned<String>> = written.cpus.keys().collect();
    let sets = tables(
        place,
        "CPU set",
        "all",
        ("cpus", &sets),
        group.cpus.as_ref(),
    )?;
    let cells = cross(&cells, &sets, |cell, set| {
        cell.shape.cpus.clone_from(set);
    });
    let hooks: Vec<&Spanned<String>> = written.hooks.keys().collect();
    let hooks = tables(place, "hook", NONE, ("hooks", &hooks), group.hooks.as_ref())?;
    let cells = cross(&cells, &hooks, |cell, hook| {
        cell.shape.hook.clone_from(hook);
    });
    Ok(cross(&cells, &starts(place, group)?, |cell, start| {
        cell.shape.start.clone_from(start);
    }))
}

/// Start modes of the group: processes that run all the time, processes that start anew for each slice, or both in turn.
fn starts(
    place: &ComplaintLocation<'_>,
    group: &WrittenCells,
) -> Result<Vec<String>, DefinitionError> {
    let Some(starts) = &group.starts else {
        return Ok(vec![String::new()]);
    };
    let one = |start| {
        let word = place.word("start", start, &[WARM, COLD])?;
        Ok(if word == WARM { String::new() } else { word })
    };
    starts.iter().map(one).collect()
}

/// Selects the meshes that this contestant can be configured with. Contestants of `voile control` (`is_told`) get all. Envoy gets
/// those of policies, issuers and routes. Other peers get none.
fn made_for(
    name: &str,
    is_told: bool,
    meshes: &[Generated],
    missing: &mut Vec<String>,
) -> Vec<Generated> {
    if is_told {
        return meshes.to_vec();
    }
    let can = |mesh: &&Generated| match name {
        "envoy" => generated::translates(mesh),
        _ => mesh.is_empty(),
    };
    let mut made: Vec<Generated> = meshes.iter().filter(can).cloned().collect();
    if made.len() < meshes.len() && name != "baseline" {
        let words = match name {
            "envoy" => "it supports generated policies, issuers, routes and endpoints only",
            _ => "generated configuration is supported for voile, envoy-xds and envoy only",
        };
        note(missing, format!("{name}: {words}"));
    }
    if made.is_empty() && !meshes.is_empty() {
        made.push(Generated::new());
    }
    made
}

/// Each cell that has routes times which of them takes its requests; those without are there once.
fn routed(
    place: &ComplaintLocation<'_>,
    group: &WrittenCells,
    cells: &[CellKey],
) -> Result<Vec<CellKey>, DefinitionError> {
    let known = HITS.map(|(word, _)| word);
    let words: Vec<String> = match &group.hits {
        None => vec![USUAL_HIT.to_owned()],
        Some(hits) => {
            let one = |hit| place.word("hit", hit, &known);
            hits.iter().map(one).collect::<Result<_, _>>()?
        }
    };
    let each = cells.iter().flat_map(|cell| {
        let cell = std::slice::from_ref(cell);
        match generated::kinds_of_routes(&cell[0].shape.generated) {
            0 => cell.to_vec(),
            _ => cross(cell, &words, |cell, word| {
                cell.shape.hit.clone_from(word);
            }),
        }
    });
    Ok(each.collect())
}

/// Each cell that has policies times what becomes of its requests; those without are there once.
fn judged(
    place: &ComplaintLocation<'_>,
    group: &WrittenCells,
    cells: &[CellKey],
) -> Result<Vec<CellKey>, DefinitionError> {
    let Some(verdicts) = &group.verdicts else {
        return Ok(cells.to_vec());
    };
    let known: Vec<&str> = VERDICTS.iter().map(|(word, _)| *word).collect();
    let words = verdicts.iter();
    let words: Vec<String> = words
        .map(|verdict| place.word("verdict", verdict, &known))
        .collect::<Result<_, _>>()?;
    let mut all: Vec<CellKey> = Vec::new();
    for cell in cells {
        if generated::has_policies(&cell.shape.generated) {
            all.extend(cross(std::slice::from_ref(cell), &words, |cell, word| {
                cell.shape.verdict.clone_from(word);
            }));
        } else {
            all.push(cell.clone());
        }
    }
    Ok(all)
}

/// Each cell times the tokens that its requests carry. The group may set them. By default all requests carry one token if the
/// mesh has issuers or asks about tokens. The baseline carries none.
fn carrying(
    place: &ComplaintLocation<'_>,
    group: &WrittenCells,
    cells: &[CellKey],
) -> Result<Vec<CellKey>, DefinitionError> {
    let words = match &group.tokens {
        Some(tokens) => tokens
            .iter()
            .map(|token| place.word("token", token, &TOKENS))
            .collect::<Result<_, _>>()?,
        None if group.issuers.is_some() || group.request_principals.is_some() => {
            vec![SAME.to_owned()]
        }
        None => return Ok(cells.to_vec()),
    };
    Ok(cross(cells, &words, |cell, word| {
        if word != TOKENS[0] && !cell.is_baseline() {
            cell.shape.token.clone_from(word);
        }
    }))
}

/// Reason why requests of the cell cannot go by its routes.
fn cannot_be_routed(cell: &CellKey) -> Option<String> {
    let (generated, verdict) = (&cell.shape.generated, &cell.shape.verdict);
    let has = |kinds: &[&str]| kinds.iter().any(|kind| generated.contains_key(*kind));
    let why = match generated::kinds_of_routes(generated) {
        0 => return None,
        1 if cell.mode == "serveronly" => {
            "routes need the client's sidecar, which mode serveronly does not have"
        }
        1 if !["http1", "http2"].contains(&cell.protocol.as_str()) => {
            "routes match paths and headers, which the lab's requests have over http1 and http2 only"
        }
        1 if cell.kind == ValueKind::Idle && cell.connections > 0 => {
            "kind \"idle\" opens connections with requests that match no route: use connections = [0]"
        }
        1 if generated::PolicyEffect::of(verdict)
            .is_some_and(|meeting| meeting.hit != MatchedRule::Miss)
            && has(&["paths", "path_policies", "policies", "rules"]) =>
        {
            "requests for generated routes have their own paths, which rules with paths do not match"
        }
        1 => return None,
        _ => {
            "one kind of routes at a time: a request matches one of routes, prefix_routes, header_routes"
        }
    };
    Some(why.to_owned())
}

/// Reason why requests of the cell cannot be balanced over its endpoints.
fn cannot_be_balanced(cell: &CellKey) -> Option<String> {
    let number = generated::endpoints(&cell.shape.generated)?;
    if !(2..=MOST_ENDPOINTS).contains(&number) {
        return Some(format!(
            "endpoints is {number}; it must lie between 2 and {MOST_ENDPOINTS}, of which the last is slow"
        ));
    }
    let why = if cell.mode != "clientonly" {
        "endpoints are servers without sidecars, balanced by the client's sidecar: use mode clientonly"
    } else if cell.protocol == "tcp" {
        "slow endpoints need requests: use http1, http2 or grpc"
    } else if cell.kind == ValueKind::Idle {
        "endpoints are selected per request: use kind \"latency\" or \"saturation\""
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// Reason why requests of the cell cannot carry its token, or why its mesh cannot ask about the token.
fn cannot_be_believed(cell: &CellKey) -> Option<String> {
    let (token, believes) = (&cell.shape.token, believed(&cell.shape.generated) > 0);
    if token.is_empty() && !believes {
        return None;
    }
    let why = if cell.protocol == "tcp" {
        "tokens are request headers: use http1, http2 or grpc"
    } else if token == FORGED && !believes {
        "token \"forged\" needs issuers or request_principals, which refuse it"
    } else if cell.mode == "clientonly" && believes {
        "tokens are verified by the server's sidecar, which mode clientonly does not have"
    } else if token.is_empty() && generated::asks_more_than_tokens(&cell.shape.generated) {
        "token \"none\": with other policies beside request_principals the verdict is not determined"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// Reason why requests cannot meet the policies of the cell as its verdict says.
fn cannot_be_judged(cell: &CellKey) -> Option<String> {
    let (generated, verdict) = (&cell.shape.generated, &cell.shape.verdict);
    let meeting = generated::meeting(generated, verdict, &cell.shape.token)?;
    if cell.mode == "clientonly" {
        return Some(format!(
            "verdict \"{verdict}\" needs the server's sidecar, which mode clientonly does not have"
        ));
    }
    if cell.protocol == "tcp" && refusal(generated, verdict, "").is_some() {
        return Some(format!(
            "verdict \"{verdict}\" refuses requests, and over tcp a refusal has no answer: use http1, http2 or grpc"
        ));
    }
    let has = |kinds: &[&str]| kinds.iter().any(|kind| generated.contains_key(*kind));
    let hits = meeting.hit != MatchedRule::Miss;
    let http = ["http1", "http2"].contains(&cell.protocol.as_str());
    if hits && !http && has(&["paths", "path_policies", "policies", "rules"]) {
        return Some(format!(
            "verdict \"{verdict}\": rules with paths match requests over http1 and http2 only"
        ));
    }
    if hits && !cell.tls && has(&["principals", "namespaces", "policies", "rules"]) {
        return Some(format!(
            "verdict \"{verdict}\": the caller's identity is known over mutual TLS only: use tls = true"
        ));
    }
    None
}

/// Generated objects of each mesh of the group; an empty entry has none.
fn meshes(
    place: &ComplaintLocation<'_>,
    group: &WrittenCells,
) -> Result<Vec<Generated>, DefinitionError> {
    let mut meshes = vec![Generated::new()];
    for (kind, _) in &KINDS {
        let Some(numbers) = group.numbers(kind) else {
            continue;
        };
        let one = |number| place.number(kind, number, 0..=MOST);
        let wanted: Vec<u32> = numbers.iter().map(one).collect::<Result<_, _>>()?;
        let with = |mesh: &Generated, number: u32| {
            let mut mesh = mesh.clone();
            if number > 0 {
                mesh.insert((*kind).to_owned(), number);
            }
            mesh
        };
        let all = meshes
            .iter()
            .flat_map(|mesh| wanted.iter().map(move |n| with(mesh, *n)));
        meshes = all.collect();
    }
    Ok(meshes)
}

fn protocols(
    place: &ComplaintLocation<'_>,
    written: &Written,
    group: &WrittenCells,
) -> Result<Vec<String>, DefinitionError> {
    let several = match (&group.protocols, &group.protocol) {
        (Some(_), Some(one)) => {
            return Err(place.error(one.span(), "use protocol or protocols, not both"));
        }
        (Some(several), None) => several.clone(),
        (None, one) => vec![one.as_ref().unwrap_or(&written.load.protocol).clone()],
    };
    several
        .iter()
        .map(|protocol| place.word("protocol", protocol, &PROTOCOLS))
        .collect()
}

fn arrivals(
    place: &ComplaintLocation<'_>,
    group: &WrittenCells,
) -> Result<Vec<String>, DefinitionError> {
    // Only a schedule has an arrival.
    let arrivals = group
        .arrivals
        .as_ref()
        .filter(|_| group.kind == ValueKind::Latency);
    let Some(arrivals) = arrivals else {
        return Ok(vec![ARRIVALS[0].to_owned()]);
    };
    arrivals
        .iter()
        .map(|arrival| place.word("arrival", arrival, &ARRIVALS))
        .collect()
}

fn workers(
    place: &ComplaintLocation<'_>,
    group: &WrittenCells,
) -> Result<Vec<Option<u32>>, DefinitionError> {
    let Some(workers) = &group.workers else {
        return Ok(vec![None]);
    };
    let one = |number| Ok(Some(place.number("workers", number, 1..=MAX_WORKERS)?));
    workers.iter().map(one).collect()
}

/// Names of a group's list that are tables of the definition; `plain` is to have none of them, and empty.
fn tables(
    place: &ComplaintLocation<'_>,
    what: &str,
    plain: &str,
    (table, defined): (&str, &[&Spanned<String>]),
    wanted: Option<&Vec<Spanned<String>>>,
) -> Result<Vec<String>, DefinitionError> {
    let Some(wanted) = wanted else {
        return Ok(vec![String::new()]);
    };
    let defined = defined.iter().map(|name| name.get_ref().as_str());
    let known: Vec<&str> = [plain].into_iter().chain(defined).collect();
    let mut names = Vec::new();
    for one in wanted {
        let name = one.get_ref();
        if !known.contains(&name.as_str()) {
            let near = meant(name, known.iter().copied());
            let why = format!(
                "{what} \"{name}\" is unknown; known: {}; define others as tables [{table}.NAME]{near}",
                known.join(", ")
            );
            return Err(place.error(one.span(), why));
        }
        names.push(if name == plain {
            String::new()
        } else {
            name.clone()
        });
    }
    Ok(names)
}

/// The cell of the A/A control: the first that has all properties in the definition.
pub(super) fn control(
    place: &ComplaintLocation<'_>,
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
