//! `voile decide`: decides requests by generated policies and token issuers, and prints the time of each decision. `voile bench
//! policy` runs it, one process for each round: the lab uses the measured programs only by their command line.

mod tokens;

use std::fmt;
use std::hint::black_box;
use std::io::Write as _;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use serde_json::{Value, json};
use voile_policy::authorization::experiment::{RuleShape, SampleRequest};
use voile_policy::authorization::{Action, Engine, RequestFacts, Verdict};

use tokens::{Algorithm, Issuers};

/// Make policy decisions, and print the time of each; `voile bench policy` runs this.
///
/// Prints a line of JSON for each set (time to compile, memory) and for each set and hit (ns of one decision).
#[derive(Debug, clap::Args)]
pub(crate) struct DecideArgs {
    /// Print the kinds of rules, one per line; kinds whose rules are token issuers are marked.
    #[arg(long)]
    list: bool,
    /// Policy sets.
    #[arg(long, value_delimiter = ',', value_name = "KIND:RULES:POLICIES,…")]
    sets: Vec<Size>,
    /// Seed of the order of turns.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// For a counter of instructions: turns in order, 50 decisions each, between calls of `begin_counting` and `end_counting`.
    #[arg(long)]
    count: bool,
}

/// Most rules and policies of a set: more is no experiment, and the names of values have five digits.
const MAX_RULES: usize = 99_000;
/// Decisions of a turn: batches, and how many in each. The median batch tells.
const BATCHES: usize = 9;
const BATCH: usize = 1_000;
/// Decisions before each turn, to warm the caches.
const WARMUP: usize = 300;
/// Different requests of a turn that hits any rule.
const ANY: usize = 1_000;
/// Decisions that are counted.
pub(crate) const COUNTED: usize = 50;

/// Kind of rules in a set.
#[derive(Debug, Clone, Copy)]
enum DecisionInput {
    Policies(RuleShape),
    Tokens(Algorithm),
}

impl DecisionInput {
    fn name(self) -> &'static str {
        match self {
            Self::Policies(kind) => kind.name(),
            Self::Tokens(algorithm) => algorithm.kind(),
        }
    }

    fn all() -> impl Iterator<Item = Self> {
        let kinds = RuleShape::ALL.iter().copied().map(Self::Policies);
        kinds.chain(Algorithm::ALL.map(Self::Tokens))
    }
}

/// Word that follows the names of kinds with issuers as rules.
const ISSUERS: &str = "issuers";

/// A set as it is written.
#[derive(Debug, Clone, Copy)]
struct Size {
    kind: DecisionInput,
    rules: usize,
    policies: usize,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        let kind = DecisionInput::all().find(|kind| kind.name() == name);
        let kind =
            kind.ok_or_else(|| format!("`{name}` is not a kind of rules; --list prints them"))?;
        let mut number = || {
            let number = words.next()?.parse().ok()?;
            (1..=MAX_RULES).contains(&number).then_some(number)
        };
        let counts = number().zip(number());
        match counts.filter(|(rules, policies)| policies <= rules) {
            Some((rules, policies)) if words.next().is_none() => Ok(Self {
                kind,
                rules,
                policies,
            }),
            _ => Err(format!(
                "`{text}`: expected KIND:RULES:POLICIES, both from 1 to {MAX_RULES}, no more policies than rules"
            )),
        }
    }
}

/// Which rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MatchingRule {
    First,
    Last,
    Miss,
    /// A different one each time.
    Any,
}

impl MatchingRule {
    const ALL: [Self; 4] = [Self::First, Self::Last, Self::Miss, Self::Any];

    fn requests(
        self,
        kind: RuleShape,
        rules: usize,
        random: &mut fastrand::Rng,
    ) -> Vec<SampleRequest> {
        let mut any = || random.usize(..rules);
        let hits = match self {
            Self::First => vec![Some(0)],
            Self::Last => vec![Some(rules - 1)],
            Self::Miss => vec![None],
            Self::Any => (0..ANY).map(|_| Some(any())).collect(),
        };
        hits.into_iter().map(|hit| kind.request(hit)).collect()
    }
}

impl fmt::Display for MatchingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "first",
            Self::Last => "last",
            Self::Miss => "miss",
            Self::Any => "any",
        })
    }
}

pub(crate) fn run(args: &DecideArgs) -> ExitCode {
    let done = if args.list { list() } else { decide(args) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader closed the pipe, so it has what it wants.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("voile decide: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for kind in DecisionInput::all() {
        match kind {
            DecisionInput::Policies(kind) => writeln!(out, "{}", kind.name())?,
            DecisionInput::Tokens(algorithm) => writeln!(out, "{} {ISSUERS}", algorithm.kind())?,
        }
    }
    Ok(())
}

/// Compiled form of a set.
enum CompiledSet {
    Policies(RuleShape, Box<Engine>),
    Tokens(Box<Issuers>),
}

/// Writes one line: the set and further members.
fn line(out: &mut impl std::io::Write, size: Size, more: Value) -> std::io::Result<()> {
    let mut line = json!({
        "kind": size.kind.name(), "rules": size.rules, "policies": size.policies,
    });
    if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
    writeln!(out, "{line}")
}

/// Compiles a set.
fn made_of(size: Size, count: bool) -> (CompiledSet, u64, usize) {
    match size.kind {
        DecisionInput::Policies(kind) => {
            let policies = kind.policies(size.rules, size.policies, &Action::Allow);
            let began = Instant::now();
            let engine = Engine::new(&policies);
            let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let bytes = engine.memory();
            (CompiledSet::Policies(kind, Box::new(engine)), took, bytes)
        }
        DecisionInput::Tokens(algorithm) => {
            let issuers = Issuers::new(algorithm, size.rules, count);
            let (took, bytes) = (issuers.compile_ns, issuers.bytes);
            (CompiledSet::Tokens(Box::new(issuers)), took, bytes)
        }
    }
}

fn decide(args: &DecideArgs) -> std::io::Result<()> {
    let mut random = fastrand::Rng::with_seed(args.seed);
    let mut out = std::io::stdout().lock();
    let mut sets = Vec::new();
    let mut turns: Vec<(usize, Option<MatchingRule>)> = Vec::new();
    for (at, size) in args.sets.iter().enumerate() {
        let (made, took, bytes) = made_of(*size, args.count);
        let told = json!({ "compile_ns": took, "bytes": bytes });
        line(&mut out, *size, told)?;
        let hits = match &made {
            CompiledSet::Policies(..) => MatchingRule::ALL.map(Some).to_vec(),
            // Its turns belong together: a token is first new, then known.
            CompiledSet::Tokens(_) => vec![None],
        };
        turns.extend(hits.into_iter().map(|hit| (at, hit)));
        sets.push((*size, made));
    }
    if !args.count {
        random.shuffle(&mut turns);
    }
    for (at, hit) in turns {
        let (size, made) = &sets[at];
        match (made, hit) {
            (CompiledSet::Policies(kind, engine), Some(hit)) => {
                let requests = hit.requests(*kind, size.rules, &mut random);
                let facts: Vec<RequestFacts<'_>> =
                    requests.iter().map(SampleRequest::facts).collect();
                let ns = match args.count {
                    true => counted(engine, &facts, hit),
                    false => timed(engine, &facts, hit),
                };
                let told = json!({ "hit": hit.to_string(), "ns": ns });
                line(&mut out, *size, told)?;
            }
            (CompiledSet::Tokens(issuers), _) => {
                let took = match args.count {
                    true => issuers.counted(),
                    false => issuers.timed(),
                };
                for (turn, ns) in took {
                    let told = json!({ "hit": turn.to_string(), "ns": ns });
                    line(&mut out, *size, told)?;
                }
            }
            (CompiledSet::Policies(..), None) => {}
        }
    }
    out.flush()
}

/// One decision, and whether it is the one that is wanted.
fn made(engine: &Engine, facts: &RequestFacts<'_>, hit: MatchingRule) {
    let verdict = engine.decide(black_box(facts)).verdict;
    let allowed = matches!(verdict, Verdict::Allowed(_));
    assert!(
        allowed == (hit != MatchingRule::Miss),
        "invariant: requests are made for their rules"
    );
}

/// Time of one decision in ns: the median of batches.
fn timed(engine: &Engine, facts: &[RequestFacts<'_>], hit: MatchingRule) -> f64 {
    let mut turn = facts.iter().cycle();
    let mut batch = |size: usize| {
        let began = Instant::now();
        for facts in turn.by_ref().take(size) {
            made(engine, facts, hit);
        }
        began.elapsed().as_secs_f64() * 1e9 / size as f64
    };
    batch(WARMUP);
    let mut batches: Vec<f64> = (0..BATCHES).map(|_| batch(BATCH)).collect();
    batches.sort_unstable_by(f64::total_cmp);
    batches[BATCHES / 2]
}

/// Decisions for a counter; they are not timed.
fn counted(engine: &Engine, facts: &[RequestFacts<'_>], hit: MatchingRule) -> f64 {
    begin_counting();
    for facts in facts.iter().cycle().take(COUNTED) {
        made(engine, facts, hit);
    }
    end_counting();
    0.0
}

/// A counter forgets what it counted when this is called. Its body is not its opposite's, or an optimiser makes one function of both.
#[inline(never)]
fn begin_counting() {
    black_box("begin");
}

/// A counter writes down what it counted when this is called.
#[inline(never)]
fn end_counting() {
    black_box("end");
}
