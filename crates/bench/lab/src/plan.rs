//! Schedule of an experiment: every cell once per round, in an order shuffled anew each round, so that no cell profits from its
//! place in the order. The last cell of a round is never the first of the next one.

use std::fmt;
use std::time::Duration;

use voile_host::machine::descriptor_limit;
use voile_report::record::{CellKey as Cell, ValueKind};

use crate::definition::{
    Asks, Definition, FRESH, Generated, PolicyEffect, RefusalKind, Routes, believed, endpoints,
    has_policies, meeting, refusal,
};

/// The most cells of one experiment that are profiled.
pub(crate) const MAX_PROFILED_CELLS: usize = 24;

/// Time of a slice beside its load: starting the generator, reading samplers. Measured, rounded up.
const SLICE_OVERHEAD: Duration = Duration::from_millis(120);
/// Time of a slice with processes of its own, beside its load: starting and ending them; and time to open one idle connection.
/// Measured, rounded up.
const ANEW_OVERHEAD: Duration = Duration::from_secs(1);
const IDLE_CONNECTION: Duration = Duration::from_micros(700);
/// Time of a profiled slice beside its load: the tools start, and report their samples. Measured, rounded up.
const LOOK_OVERHEAD: Duration = Duration::from_millis(700);
/// Signing one token before a slice. Measured on a busy machine, rounded up.
const TOKEN_SIGNED: Duration = Duration::from_millis(1);
/// Starting, proving and stopping one contestant.
const CONTESTANT_OVERHEAD: Duration = Duration::from_secs(3);

/// Path of a cell's requests, for any load: the unit that is started, routed and proven.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestPath {
    pub(crate) contestant: String,
    pub(crate) mode: String,
    pub(crate) tls: bool,
    pub(crate) protocol: String,
    pub(crate) outfit: ContestantSetup,
}

/// Properties for which processes of one contestant start separately.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ContestantSetup {
    /// Threads of each proxy; none is the experiment's number.
    pub(crate) workers: Option<u32>,
    /// The CPU set; empty is all cores.
    pub(crate) cpus: String,
    /// Generated objects of the mesh by number.
    pub(crate) generated: Generated,
    /// Effect of the generated policies on requests; empty is none.
    pub(crate) verdict: String,
    /// The generated route that takes the requests; empty is no routes.
    pub(crate) hit: String,
    /// Tokens of the requests; empty is none. Proxies remember tokens, so cells with other tokens have their own proxies.
    pub(crate) token: String,
}

impl ContestantSetup {
    /// Returns true if the outfit has AuthorizationPolicies.
    pub(crate) fn has_policies(&self) -> bool {
        has_policies(&self.generated)
    }

    /// Returns true if the outfit has issuers of tokens.
    pub(crate) fn believes(&self) -> bool {
        believed(&self.generated) > 0
    }

    /// Effect of the policies on requests.
    pub(crate) fn meeting(&self) -> Option<PolicyEffect> {
        meeting(&self.generated, &self.verdict, &self.token)
    }

    /// Number of the outfit's own servers; none if it uses the shared server.
    pub(crate) fn endpoints(&self) -> Option<u32> {
        endpoints(&self.generated)
    }

    /// Its routes by number.
    pub(crate) fn routes(&self) -> Option<Routes> {
        Routes::of(&self.generated, &self.hit)
    }

    /// Path and expected status of the requests.
    pub(crate) fn asks(&self) -> Asks {
        self.routes().map_or_else(Asks::default, Routes::taken)
    }

    /// Refusal that every request must get; none if all are let in.
    pub(crate) fn refusal(&self) -> Option<RefusalKind> {
        refusal(&self.generated, &self.verdict, &self.token)
    }

    pub(crate) fn of(cell: &Cell) -> Self {
        Self {
            workers: cell.shape.workers,
            cpus: cell.shape.cpus.clone(),
            generated: cell.shape.generated.clone(),
            verdict: cell.shape.verdict.clone(),
            hit: cell.shape.hit.clone(),
            token: cell.shape.token.clone(),
        }
    }

    /// A name for its folder.
    pub(crate) fn folder(&self) -> String {
        let workers = self.workers.map_or(String::new(), |n| n.to_string());
        let mesh = self
            .generated
            .iter()
            .map(|(kind, n)| format!("-{n}-{kind}"));
        let mesh: String = mesh.collect();
        let (verdict, hit, token) = (&self.verdict, &self.hit, &self.token);
        format!(
            "outfit-{workers}-{}{mesh}-{verdict}-{hit}-{token}",
            self.cpus
        )
    }
}

impl RequestPath {
    pub(crate) fn of(cell: &Cell) -> Self {
        Self {
            outfit: ContestantSetup::of(cell),
            contestant: cell.contestant.clone(),
            mode: cell.mode.clone(),
            tls: cell.tls,
            protocol: cell.protocol.clone(),
        }
    }
}

impl RequestPath {
    /// Protocol whose ports the requests use: HTTP/2 uses those of gRPC.
    pub(crate) fn ports(&self) -> &str {
        match self.protocol.as_str() {
            "http2" => "grpc",
            other => other,
        }
    }
}

impl fmt::Display for RequestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mode == "baseline" {
            return write!(f, "baseline {}", self.protocol);
        }
        let tls = if self.tls { "mutual TLS" } else { "plaintext" };
        let Self {
            contestant,
            mode,
            protocol,
            outfit,
            ..
        } = self;
        write!(f, "{contestant} {mode} {tls} {protocol}{outfit}")
    }
}

impl fmt::Display for ContestantSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(workers) = self.workers {
            write!(f, " {workers} workers")?;
        }
        if !self.cpus.is_empty() {
            write!(f, " CPU set {}", self.cpus)?;
        }
        for (kind, number) in &self.generated {
            write!(f, " {number} {kind}")?;
        }
        if !self.hit.is_empty() {
            write!(f, " hit {}", self.hit)?;
        }
        if !self.verdict.is_empty() {
            write!(f, " {}", self.verdict)?;
        }
        if !self.token.is_empty() {
            write!(f, " token {}", self.token)?;
        }
        Ok(())
    }
}

/// One slice of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedSlice {
    pub(crate) round: u32,
    pub(crate) cell: Cell,
    /// The second half of the A/A control.
    pub(crate) control: bool,
}

/// All slices in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlicePlan {
    pub(crate) slices: Vec<PlannedSlice>,
    /// Length of each slice.
    durations: Vec<Duration>,
    contestants: u32,
}

impl SlicePlan {
    /// Lays out the rounds for the cells that can run.
    #[must_use]
    pub fn new(definition: &Definition, runnable: &dyn Fn(&Cell) -> bool) -> Self {
        let mut random = fastrand::Rng::with_seed(definition.seed);
        let mut cells: Vec<(Cell, bool)> = definition
            .cells
            .iter()
            .filter(|cell| runnable(cell))
            .map(|cell| (cell.clone(), false))
            .collect();
        if let Some(control) = definition.control.as_ref().filter(|cell| runnable(cell)) {
            cells.push((control.clone(), true));
        }
        let mut slices: Vec<PlannedSlice> = Vec::new();
        for round in 1..=definition.rounds {
            random.shuffle(&mut cells);
            let last = slices.last().map(|planned| planned.cell.clone());
            if cells.len() > 1 && last.is_some_and(|last| last == cells[0].0) {
                cells.rotate_left(1);
            }
            slices.extend(cells.iter().map(|(cell, control)| PlannedSlice {
                round,
                cell: cell.clone(),
                control: *control,
            }));
        }
        let names: std::collections::BTreeSet<(&str, ContestantSetup)> = cells
            .iter()
            .map(|(cell, _)| (cell.contestant.as_str(), ContestantSetup::of(cell)))
            .collect();
        Self {
            contestants: names.len() as u32,
            durations: slices
                .iter()
                .map(|planned| slice_takes(definition, &planned.cell))
                .collect(),
            slices,
        }
    }

    /// About how long it will take.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.left(0) + CONTESTANT_OVERHEAD * self.contestants
    }

    /// About how long it takes to look at the cells more closely, after all rounds.
    #[must_use]
    pub fn looking(definition: &Definition) -> Duration {
        let cells = definition.cells.iter();
        let looked_at = cells.filter(|cell| !is_started_anew(cell)).count();
        let looked_at = looked_at.min(MAX_PROFILED_CELLS) as u32;
        (definition.warmup + definition.slice + LOOK_OVERHEAD) * 3 * looked_at
    }

    /// Number of slices before that round.
    pub(crate) fn before_round(&self, round: u32) -> usize {
        self.slices
            .iter()
            .take_while(|planned| planned.round < round)
            .count()
    }

    /// About how long the slices after the first `done` will take.
    pub(crate) fn left(&self, done: usize) -> Duration {
        self.durations.iter().skip(done).sum()
    }

    /// In words, for `--dry-run`.
    #[must_use]
    pub fn describe(&self) -> String {
        use std::fmt::Write as _;
        let mut text = String::new();
        let cells: std::collections::BTreeMap<(&Cell, bool), usize> =
            self.slices
                .iter()
                .fold(Default::default(), |mut cells, planned| {
                    *cells.entry((&planned.cell, planned.control)).or_default() += 1;
                    cells
                });
        for ((cell, control), count) in cells {
            let note = if control {
                " (again, as A/A control)"
            } else {
                ""
            };
            let _ = writeln!(text, "  {count} slices of {cell}{note}");
        }
        if self
            .slices
            .iter()
            .any(|planned| !planned.cell.shape.hook.is_empty())
        {
            text.push_str("  the duration of hooks is unknown and not counted\n");
        }
        let _ = writeln!(
            text,
            "  {} slices in all, about {} s",
            self.slices.len(),
            self.duration().as_secs()
        );
        text
    }
}

/// Most tokens that are signed for a slice. A proxy can remember only a fraction of them, so it has forgotten the first when the
/// list starts again.
const MAX_FRESH_TOKENS: usize = 20_000;

/// Number of tokens, new to the proxies, that a load of this rate and length needs. Rate 0 is as fast as possible.
pub(crate) fn fresh_tokens(rate: u32, load: Duration) -> usize {
    match rate {
        0 => MAX_FRESH_TOKENS,
        rate => ((f64::from(rate) * load.as_secs_f64()).ceil() as usize).clamp(1, MAX_FRESH_TOKENS),
    }
}

/// Returns true if the cell's processes start for each of its slices, and end after it.
pub(crate) fn is_started_anew(cell: &Cell) -> bool {
    cell.kind == ValueKind::Idle || cell.shape.is_cold()
}

/// Estimated length of a slice of the cell.
fn slice_takes(definition: &Definition, cell: &Cell) -> Duration {
    if cell.kind != ValueKind::Idle {
        let before = match cell.shape.is_cold() {
            true => ANEW_OVERHEAD,
            false => definition.warmup,
        };
        let load = before + definition.slice;
        let signed = match cell.shape.token == FRESH {
            true => fresh_tokens(cell.rate, load),
            false => 0,
        };
        return load + SLICE_OVERHEAD + TOKEN_SIGNED * signed as u32;
    }
    let opening = IDLE_CONNECTION * possible(cell.connections);
    definition.slice + ANEW_OVERHEAD + settling(cell.connections) + opening
}

/// Time that a slice waits until the processes are idle.
pub(crate) fn settling(connections: u32) -> Duration {
    if connections == 0 {
        REST
    } else {
        SETTLE * 2 + REST
    }
}

/// As many of these connections as the descriptor limit lets a sidecar hold. A sidecar has two sockets for each.
pub(crate) fn possible(connections: u32) -> u32 {
    let limit = descriptor_limit().unwrap_or(u64::MAX);
    let most = limit.saturating_sub(OTHER_DESCRIPTORS) / PER_CONNECTION;
    connections.min(u32::try_from(most).unwrap_or(u32::MAX))
}

/// Time after which an idle process has released the memory of its start.
pub(crate) const SETTLE: Duration = Duration::from_millis(1500);
/// Further time after which a process has done all its one-time work, so that only permanent work is measured. A node proxy
/// releases pages two seconds after it learned of its pods, which costs as much as minutes of idling.
pub(crate) const REST: Duration = Duration::from_millis(2500);

/// Descriptors that a process needs beside those of its connections, and how many it needs for each.
pub(crate) const OTHER_DESCRIPTORS: u64 = 400;
pub(crate) const PER_CONNECTION: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::quick;

    #[test]
    fn each_round_holds_each_cell_once_and_the_control_twice() {
        let definition = quick();
        let plan = SlicePlan::new(&definition, &|_| true);
        for round in 1..=definition.rounds {
            let cells: Vec<&PlannedSlice> = plan
                .slices
                .iter()
                .filter(|planned| planned.round == round)
                .collect();
            assert_eq!(cells.len(), definition.cells.len() + 1, "round {round}");
            for cell in &definition.cells {
                let expected = if definition.control.as_ref() == Some(cell) {
                    2
                } else {
                    1
                };
                assert_eq!(
                    cells.iter().filter(|planned| planned.cell == *cell).count(),
                    expected,
                    "{cell}"
                );
            }
        }
    }

    #[test]
    fn the_order_differs_between_rounds_and_is_the_same_for_a_seed() {
        let definition = quick();
        let plan = SlicePlan::new(&definition, &|_| true);
        assert_eq!(plan, SlicePlan::new(&definition, &|_| true));
        let order = |round| {
            plan.slices
                .iter()
                .filter(move |p| p.round == round)
                .map(|p| &p.cell)
                .collect::<Vec<_>>()
        };
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn quick_takes_two_minutes_alone_and_four_beside_envoy() {
        let definition = quick();
        let alone = SlicePlan::new(&definition, &|cell| cell.contestant != "envoy").duration();
        let beside = SlicePlan::new(&definition, &|_| true).duration();
        assert!((90..=150).contains(&alone.as_secs()), "{alone:?}");
        assert!((180..=250).contains(&beside.as_secs()), "{beside:?}");
    }

    #[test]
    fn no_more_connections_are_opened_than_a_sidecar_may_hold() {
        assert_eq!(possible(0), 0);
        let most = u64::from(possible(u32::MAX));
        if let Some(limit) = descriptor_limit() {
            assert!(most * PER_CONNECTION < limit, "{most} of {limit}");
        }
    }
}
