//! Positions of boxes and lines (Sugiyama's method). Calls that close a circle are reversed, and every service gets the
//! level of its longest path from an entry. Lines over several levels get a bend on each, and levels are ordered for few
//! crossings.

use crate::model::Graph;
use crate::weigh::calls;

/// Sweeps that order levels: more change little.
const SWEEPS: usize = 12;
/// Sweeps that move boxes towards what they are joined with.
const PULLS: usize = 24;

/// A service, or the bend of a line that passes its level.
#[derive(Debug, Clone)]
pub(super) struct LayoutNode {
    /// The service; none for a bend.
    pub(super) service: Option<usize>,
    pub(super) level: usize,
    /// Middle, in rows from 0.
    pub(super) row: f64,
    before: Vec<usize>,
    after: Vec<usize>,
}

/// The way of the calls from one service to another, over spots; `turned` when it was laid from callee to caller.
#[derive(Debug, Clone)]
pub(super) struct EdgePath {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) spots: Vec<usize>,
    pub(super) turned: bool,
}

#[derive(Debug)]
pub(super) struct GraphLayout {
    pub(super) spots: Vec<LayoutNode>,
    pub(super) lines: Vec<EdgePath>,
    pub(super) levels: usize,
}

pub(super) fn layout(graph: &Graph) -> GraphLayout {
    let calls: Vec<Vec<usize>> = calls(graph)
        .into_iter()
        .map(|own| own.into_iter().map(|(callee, _)| callee).collect())
        .collect();
    let turned = turned(&calls, &graph.entries());
    let level = levels(&calls, &turned);
    let mut layout = spots(&calls, &turned, &level);
    order(&mut layout);
    pull(&mut layout);
    layout
}

/// Calls (caller, callee) that lead back to where a depth-first walk from the entries came from.
fn turned(calls: &[Vec<usize>], entries: &[usize]) -> std::collections::BTreeSet<(usize, usize)> {
    #[derive(Clone, Copy, PartialEq)]
    enum VisitState {
        No,
        OnWay,
        Done,
    }
    let mut seen = vec![VisitState::No; calls.len()];
    let mut turned = std::collections::BTreeSet::new();
    for root in entries.iter().copied().chain(0..calls.len()) {
        if seen[root] != VisitState::No {
            continue;
        }
        let mut way = vec![(root, 0)];
        seen[root] = VisitState::OnWay;
        while let Some((service, looked)) = way.pop() {
            let Some(&callee) = calls[service].get(looked) else {
                seen[service] = VisitState::Done;
                continue;
            };
            way.push((service, looked + 1));
            match seen[callee] {
                VisitState::OnWay => {
                    turned.insert((service, callee));
                }
                VisitState::No => {
                    seen[callee] = VisitState::OnWay;
                    way.push((callee, 0));
                }
                VisitState::Done => {}
            }
        }
    }
    turned
}

/// Longest way to each service, without the turned calls.
fn levels(calls: &[Vec<usize>], turned: &std::collections::BTreeSet<(usize, usize)>) -> Vec<usize> {
    let mut waits = vec![0usize; calls.len()];
    let forward = |caller: usize| {
        let own = calls[caller].iter().copied();
        own.filter(move |&callee| !turned.contains(&(caller, callee)))
    };
    for caller in 0..calls.len() {
        for callee in forward(caller) {
            waits[callee] += 1;
        }
    }
    let mut level = vec![0; calls.len()];
    let mut free: Vec<usize> = (0..calls.len())
        .filter(|&place| waits[place] == 0)
        .collect();
    while let Some(caller) = free.pop() {
        for callee in forward(caller) {
            level[callee] = level[callee].max(level[caller] + 1);
            waits[callee] -= 1;
            if waits[callee] == 0 {
                free.push(callee);
            }
        }
    }
    level
}

fn spots(
    calls: &[Vec<usize>],
    turned: &std::collections::BTreeSet<(usize, usize)>,
    level: &[usize],
) -> GraphLayout {
    let spot = |service, level| LayoutNode {
        service,
        level,
        row: 0.0,
        before: Vec::new(),
        after: Vec::new(),
    };
    let mut spots: Vec<LayoutNode> = level
        .iter()
        .enumerate()
        .map(|(place, &level)| spot(Some(place), level))
        .collect();
    let mut lines = Vec::new();
    for (from, own) in calls.iter().enumerate() {
        for &to in own {
            let back = turned.contains(&(from, to));
            let (left, right) = if back { (to, from) } else { (from, to) };
            let mut way = vec![left];
            for between in level[left] + 1..level[right] {
                way.push(spots.len());
                spots.push(spot(None, between));
            }
            way.push(right);
            if left != right {
                for pair in way.windows(2) {
                    spots[pair[0]].after.push(pair[1]);
                    spots[pair[1]].before.push(pair[0]);
                }
            }
            lines.push(EdgePath {
                from,
                to,
                spots: way,
                turned: back,
            });
        }
    }
    let levels = spots.iter().map(|spot| spot.level + 1).max().unwrap_or(0);
    GraphLayout {
        spots,
        lines,
        levels,
    }
}

/// Orders each level by the middle of its spots' neighbours, forth and back, and keeps the order with fewest crossings.
fn order(layout: &mut GraphLayout) {
    let mut by_level: Vec<Vec<usize>> = vec![Vec::new(); layout.levels];
    // Depth first, so that a tree is without crossings from the start.
    let mut seen = vec![false; layout.spots.len()];
    let roots = (0..layout.spots.len()).filter(|&spot| layout.spots[spot].before.is_empty());
    let mut way: Vec<usize> = roots.collect();
    way.reverse();
    while let Some(spot) = way.pop() {
        if !std::mem::replace(&mut seen[spot], true) {
            by_level[layout.spots[spot].level].push(spot);
            way.extend(layout.spots[spot].after.iter().rev());
        }
    }
    number(layout, &by_level);
    let mut best = (crossings(layout, &by_level), by_level.clone());
    for sweep in 0..SWEEPS {
        if best.0 == 0 {
            break;
        }
        let forth = sweep % 2 == 0;
        let order: Vec<usize> = match forth {
            true => (0..layout.levels).collect(),
            false => (0..layout.levels).rev().collect(),
        };
        for level in order {
            let mut keyed: Vec<(f64, usize)> = by_level[level]
                .iter()
                .map(|&spot| (middle(layout, spot, forth), spot))
                .collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            by_level[level] = keyed.into_iter().map(|(_, spot)| spot).collect();
            number(layout, &by_level[level..=level]);
        }
        let found = crossings(layout, &by_level);
        if found < best.0 {
            best = (found, by_level.clone());
        }
    }
    number(layout, &best.1);
}

fn number(layout: &mut GraphLayout, by_level: &[Vec<usize>]) {
    for level in by_level {
        for (row, &spot) in level.iter().enumerate() {
            layout.spots[spot].row = row as f64;
        }
    }
}

fn middle(layout: &GraphLayout, spot: usize, forth: bool) -> f64 {
    let spot = &layout.spots[spot];
    let joined = if forth { &spot.before } else { &spot.after };
    if joined.is_empty() {
        return spot.row;
    }
    joined
        .iter()
        .map(|&other| layout.spots[other].row)
        .sum::<f64>()
        / joined.len() as f64
}

/// Pairs of lines that cross between neighbouring levels. Counted by inversions; levels are short.
fn crossings(layout: &GraphLayout, by_level: &[Vec<usize>]) -> usize {
    /// Lines between two levels beyond which counting would take longer than drawing.
    const MOST: usize = 3_000;
    let mut crossings = 0;
    for level in by_level {
        let mut ends = Vec::new();
        for &spot in level {
            let mut rows: Vec<f64> = layout.spots[spot]
                .after
                .iter()
                .map(|&other| layout.spots[other].row)
                .collect();
            rows.sort_by(f64::total_cmp);
            ends.extend(rows);
        }
        if ends.len() > MOST {
            continue;
        }
        for (place, end) in ends.iter().enumerate() {
            crossings += ends[place + 1..]
                .iter()
                .filter(|later| *later < end)
                .count();
        }
    }
    crossings
}

/// Moves spots towards the middle of their neighbours, keeping the order and one row between them.
fn pull(layout: &mut GraphLayout) {
    let mut by_level: Vec<Vec<usize>> = vec![Vec::new(); layout.levels];
    for (place, spot) in layout.spots.iter().enumerate() {
        by_level[spot.level].push(place);
    }
    for level in &mut by_level {
        level.sort_by(|&a, &b| layout.spots[a].row.total_cmp(&layout.spots[b].row));
    }
    for round in 0..PULLS {
        let back = round % 2 == 0;
        let order: Vec<usize> = match back {
            true => (0..layout.levels).rev().collect(),
            false => (0..layout.levels).collect(),
        };
        for level in order {
            let wanted: Vec<f64> = by_level[level]
                .iter()
                .map(|&spot| middle(layout, spot, !back))
                .collect();
            for (&spot, row) in by_level[level]
                .iter()
                .zip(apart(layout, &by_level[level], &wanted))
            {
                layout.spots[spot].row = row;
            }
        }
    }
    let least = layout
        .spots
        .iter()
        .map(|spot| spot.row)
        .fold(f64::INFINITY, f64::min);
    for spot in &mut layout.spots {
        spot.row -= least;
    }
}

/// The rows nearest to those wanted (least squares) that keep the distance: blocks that meet are merged (pool adjacent violators).
fn apart(layout: &GraphLayout, level: &[usize], wanted: &[f64]) -> Vec<f64> {
    // Half of the rows that a box needs; a bend needs less.
    let room = |spot: usize| {
        if layout.spots[spot].service.is_some() {
            0.5
        } else {
            0.25
        }
    };
    let mut offsets = Vec::with_capacity(level.len());
    let mut offset = 0.0;
    for (place, &spot) in level.iter().enumerate() {
        if place > 0 {
            offset += room(level[place - 1]) + room(spot);
        }
        offsets.push(offset);
    }
    // (sum of wanted start, how many)
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    for (want, offset) in wanted.iter().zip(&offsets) {
        blocks.push((want - offset, 1));
        while let [.., a, b] = blocks[..] {
            if a.0 / a.1 as f64 <= b.0 / b.1 as f64 {
                break;
            }
            blocks.truncate(blocks.len() - 2);
            blocks.push((a.0 + b.0, a.1 + b.1));
        }
    }
    let starts = blocks
        .iter()
        .flat_map(|&(sum, count)| std::iter::repeat_n(sum / count as f64, count));
    starts
        .zip(offsets)
        .map(|(start, offset)| start + offset)
        .collect()
}
