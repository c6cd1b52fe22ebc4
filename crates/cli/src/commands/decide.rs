//! `voile decide`: makes decisions by policies made for the purpose and tells what each took. What `voile bench policy` runs, a
//! process for each round, since the laboratory meets what it measures by command line only.

use std::fmt;
use std::hint::black_box;
use std::io::Write as _;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use voile_policy::authorization::experiment::{Kind, Request};
use voile_policy::authorization::{Action, Engine, Facts, Verdict};

/// Make decisions by policies made for the purpose, and tell what each took: what `voile bench policy` runs.
///
/// Prints a line of JSON for each set (what it took to compile, what it holds) and for each set and hit (ns of one decision).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the kinds of rules, one a line.
    #[arg(long)]
    list: bool,
    /// What to decide by.
    #[arg(long, value_delimiter = ',', value_name = "KIND:RULES:POLICIES,…")]
    sets: Vec<Size>,
    /// The order of turns follows from it.
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
/// Decisions before each turn, so that what it needs is where it is needed.
const WARMUP: usize = 300;
/// Different requests of a turn that hits any rule.
const ANY: usize = 1_000;
/// Decisions that are counted.
pub(crate) const COUNTED: usize = 50;

/// A set as it is written.
#[derive(Debug, Clone, Copy)]
struct Size {
    kind: Kind,
    rules: usize,
    policies: usize,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        let kind = Kind::ALL.iter().find(|kind| kind.name() == name);
        let kind =
            *kind.ok_or_else(|| format!("`{name}` is no kind of rules; --list names them"))?;
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
enum Hit {
    First,
    Last,
    Miss,
    /// A different one each time.
    Any,
}

impl Hit {
    const ALL: [Self; 4] = [Self::First, Self::Last, Self::Miss, Self::Any];

    fn requests(self, size: Size, random: &mut fastrand::Rng) -> Vec<Request> {
        let mut any = || random.usize(..size.rules);
        let hits = match self {
            Self::First => vec![Some(0)],
            Self::Last => vec![Some(size.rules - 1)],
            Self::Miss => vec![None],
            Self::Any => (0..ANY).map(|_| Some(any())).collect(),
        };
        hits.into_iter().map(|hit| size.kind.request(hit)).collect()
    }
}

impl fmt::Display for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "first",
            Self::Last => "last",
            Self::Miss => "miss",
            Self::Any => "any",
        })
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = if args.list { list() } else { decide(args) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read us has what it wants.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("voile decide: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for kind in Kind::ALL {
        writeln!(out, "{}", kind.name())?;
    }
    Ok(())
}

fn decide(args: &Args) -> std::io::Result<()> {
    let mut random = fastrand::Rng::with_seed(args.seed);
    let mut out = std::io::stdout().lock();
    let mut engines = Vec::new();
    for size in &args.sets {
        let policies = size
            .kind
            .policies(size.rules, size.policies, &Action::Allow);
        let began = Instant::now();
        let engine = Engine::new(&policies);
        let took = began.elapsed().as_nanos();
        let line = serde_json::json!({
            "kind": size.kind.name(),
            "rules": size.rules,
            "policies": size.policies,
            "compile_ns": u64::try_from(took).unwrap_or(u64::MAX),
            "bytes": engine.memory(),
        });
        writeln!(out, "{line}")?;
        engines.push((*size, engine));
    }
    let sets = 0..engines.len();
    let mut turns: Vec<(usize, Hit)> = sets.flat_map(|at| Hit::ALL.map(|hit| (at, hit))).collect();
    if !args.count {
        random.shuffle(&mut turns);
    }
    for (at, hit) in turns {
        let (size, engine) = &engines[at];
        let requests = hit.requests(*size, &mut random);
        let facts: Vec<Facts<'_>> = requests.iter().map(Request::facts).collect();
        let ns = match args.count {
            true => counted(engine, &facts, hit),
            false => timed(engine, &facts, hit),
        };
        let line = serde_json::json!({
            "kind": size.kind.name(),
            "rules": size.rules,
            "policies": size.policies,
            "hit": hit.to_string(),
            "ns": ns,
        });
        writeln!(out, "{line}")?;
    }
    out.flush()
}

/// One decision, and whether it is the one that is wanted.
fn made(engine: &Engine, facts: &Facts<'_>, hit: Hit) {
    let verdict = engine.decide(black_box(facts)).verdict;
    let allowed = matches!(verdict, Verdict::Allowed(_));
    assert!(
        allowed == (hit != Hit::Miss),
        "invariant: requests are made for their rules"
    );
}

/// What one decision takes, ns: the median of batches.
fn timed(engine: &Engine, facts: &[Facts<'_>], hit: Hit) -> f64 {
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
fn counted(engine: &Engine, facts: &[Facts<'_>], hit: Hit) -> f64 {
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
