//! Cost of policy decisions and of token checks. Holds the record of rounds of decisions, by one rule up to ten thousand rules of
//! every kind, and the findings.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::head::RecordHead;
use crate::html;
use crate::page::{begin, end, table, with_plots, words};
use crate::plots::plot::{Plot, Section};
use crate::record::Estimate;
use crate::record::target_verdicts::TargetResult;
use crate::side_record::SideRecord;
use crate::statistics::{estimate, median, paired_ratio};
use crate::svg::{PlotBar, bars};
use crate::table::{Row, aligned};
use crate::words::{escape, interval, ratio};

const TITLE: &str =
    "Cost of a decision by the number of policies, and of a token by the number of issuers";
/// Largest cost of a decision, as a multiple of the cost with the smallest set.
pub const GROWTH: f64 = 1.2;
/// Most nanoseconds of a decision by rules of one kind, and by mixed ones.
const ONE_KIND_NS: f64 = 1_000.0;
const MIXED_NS: f64 = 3_000.0;
/// Most nanoseconds that a token takes which was seen before.
const WARM_NS: f64 = 2_000.0;
/// Largest cost of a token that was never seen before, as a multiple of the bare check of its signature.
const COLD: f64 = 1.2;
/// Prefix of the kinds whose rules are issuers of tokens.
const TOKENS: &str = "jwt-";
/// Most bytes that this many rules of paths may hold.
const PATHS_BYTES: u64 = 2_000_000;
const PATHS: u32 = 10_000;

/// A whole record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Decisions {
    /// Environment, time and command of the measurement.
    #[serde(flatten)]
    pub head: RecordHead,
    /// The measured sets of rules.
    pub sets: Vec<RuleSetSeries>,
    /// The measured decisions.
    pub cells: Vec<Cell>,
    /// What follows.
    pub findings: Vec<DecisionFinding>,
}

/// Rules of one kind in a number of policies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleSetSeries {
    /// Attribute that the rules match.
    pub kind: String,
    /// Number of rules.
    pub rules: u32,
    /// Number of policies that hold the rules.
    pub policies: u32,
    /// Time of compilation, in ns, by round.
    pub compile_ns: Vec<f64>,
    /// Heap memory of the compiled set, in bytes.
    pub bytes: u64,
}

/// Decisions by a set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// See [`RuleSetSeries`].
    pub kind: String,
    /// See [`RuleSetSeries`].
    pub rules: u32,
    /// See [`RuleSetSeries`].
    pub policies: u32,
    /// The rule that matches: `first`, `last`, `miss`, or `any` (a thousand requests that match different rules). For tokens:
    /// `cold` was never seen, `warm` was seen before, `none` is no token, and `bare` is the check of the signature alone.
    pub hit: String,
    /// Time of one decision, in ns, by round.
    pub ns: Vec<f64>,
    /// Instructions of one, counted by valgrind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<f64>,
}

/// The largest set of a series beside the smallest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DecisionFinding {
    /// The kind of rules.
    pub kind: String,
    /// The rule that matches.
    pub hit: String,
    /// The smaller set: rules and policies.
    pub few: (u32, u32),
    /// The larger one.
    pub many: (u32, u32),
    /// The other `hit` of the same set that stands in the place of the smaller set; empty if the comparison is with a smaller
    /// set.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub beside: String,
    /// Time of a decision by the larger set, in ns.
    pub ns: Option<Estimate>,
    /// Beside the smaller, paired within rounds.
    pub ratio: Option<Estimate>,
    /// Beside the smaller, by instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<f64>,
    /// The requirement, in words; empty if there is none.
    pub asked: String,
    /// Verdict on the requirement.
    pub outcome: Option<TargetResult>,
}

impl Cell {
    fn is(&self, kind: &str, hit: &str, (rules, policies): (u32, u32)) -> bool {
        self.kind == kind && self.hit == hit && (self.rules, self.policies) == (rules, policies)
    }

    fn size(&self) -> (u32, u32) {
        (self.rules, self.policies)
    }
}

impl Decisions {
    /// Tokens never seen before beside the check of their signature, in the largest set of each kind.
    fn unseen(&self) -> Vec<DecisionFinding> {
        let bare = self.cells.iter().filter(|cell| cell.hit == BARE);
        let largest = bare.filter(|cell| {
            let own = |other: &&Cell| other.hit == BARE && other.kind == cell.kind;
            let most = self.cells.iter().filter(own).map(Cell::size).max();
            most == Some(cell.size())
        });
        let finding = |cell: &Cell| {
            let size = cell.size();
            self.finding(&cell.kind, (COLD_HIT, size), (BARE, size))
        };
        largest.map(finding).collect()
    }

    fn finding(
        &self,
        kind: &str,
        (hit, many): (&str, (u32, u32)),
        (other, few): (&str, (u32, u32)),
    ) -> DecisionFinding {
        let of = |hit: &str, size| self.cells.iter().find(|cell| cell.is(kind, hit, size));
        let (found, beside) = (of(hit, many), of(other, few));
        let rounds = |cell: Option<&Cell>| cell.map_or_else(Vec::new, |cell| cell.ns.clone());
        let pairs: Vec<(f64, f64)> = rounds(found).into_iter().zip(rounds(beside)).collect();
        let counted = |cell: Option<&Cell>| cell.and_then(|cell| cell.instructions);
        let instructions = counted(found)
            .zip(counted(beside))
            .map(|(many, few)| many / few);
        let (ns, ratio) = (estimate(&rounds(found)), paired_ratio(&pairs));
        let beside = if other == hit { "" } else { other };
        let (asked, outcome) = judged(
            (kind, hit, beside),
            ns.as_ref(),
            ratio.as_ref(),
            instructions,
        );
        DecisionFinding {
            kind: kind.to_owned(),
            hit: hit.to_owned(),
            few,
            many,
            beside: beside.to_owned(),
            ns,
            ratio,
            instructions,
            asked,
            outcome,
        }
    }

    /// Rules of paths that hold more memory than was promised.
    fn heavy(&self) -> impl Iterator<Item = &RuleSetSeries> {
        let paths = |set: &&RuleSetSeries| set.kind.contains("path") && set.rules == PATHS;
        let sets = self.sets.iter().filter(paths);
        sets.filter(|set| set.bytes > PATHS_BYTES)
    }

    /// Reports if all requirements are met.
    fn holds(&self) -> bool {
        let missed = |finding: &DecisionFinding| finding.outcome == Some(TargetResult::Missed);
        !self.cells.is_empty() && !self.findings.iter().any(missed) && self.heavy().next().is_none()
    }

    fn has(&self, series: Series) -> bool {
        let mut cells = self.cells.iter();
        cells.any(|cell| Series::of(&cell.kind, cell.policies) == series)
    }

    /// Sizes of a series in order.
    fn sizes(&self, of: impl Fn(&Cell) -> bool) -> Vec<(u32, u32)> {
        let mut sizes: Vec<_> = self
            .cells
            .iter()
            .filter(|cell| of(cell))
            .map(Cell::size)
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Decisions of a series as rows: a heading, then a row for each kind and hit.
    fn series(&self, series: Series) -> Vec<Vec<String>> {
        let sizes = self.sizes(|cell| Series::of(&cell.kind, cell.policies) == series);
        let counted = self.cells.iter().any(|cell| cell.instructions.is_some());
        let mut rows = vec![vec!["kind".to_owned(), "hit".to_owned()]];
        rows[0].extend(sizes.iter().map(|(rules, policies)| match series {
            Series::OnePolicy => rules.to_string(),
            Series::ManyPolicies => format!("{policies} × {}", rules / policies),
            Series::Tokens => format!("{rules} issuers"),
        }));
        rows[0].push("largest ÷ smallest".to_owned());
        if counted {
            rows[0].push("by instructions".to_owned());
        }
        rows[0].extend(["asked".to_owned(), "so".to_owned()]);
        let own = |finding: &&DecisionFinding| Series::of(&finding.kind, finding.many.1) == series;
        for finding in self.findings.iter().filter(own) {
            let hit = match finding.beside.as_str() {
                "" => finding.hit.clone(),
                beside => format!("{} ÷ {beside}", finding.hit),
            };
            let mut row = vec![finding.kind.clone(), hit];
            for size in &sizes {
                let cell = |cell: &&Cell| cell.is(&finding.kind, &finding.hit, *size);
                let cell = self.cells.iter().find(cell);
                let middle = cell.and_then(|cell| median(&cell.ns));
                row.push(middle.map_or_else(|| "–".to_owned(), nanoseconds));
            }
            let told = finding.ratio.as_ref().map(|found| interval(found, ratio));
            row.push(told.unwrap_or_else(|| "–".to_owned()));
            if counted {
                row.push(finding.instructions.map_or_else(|| "–".to_owned(), ratio));
            }
            row.push(finding.asked.clone());
            row.push(
                finding
                    .outcome
                    .map_or("", TargetResult::in_words)
                    .to_owned(),
            );
            rows.push(row);
        }
        rows
    }

    /// Compile time and memory of the sets, as rows.
    fn holdings(&self) -> Vec<Vec<String>> {
        let mut rows: Vec<Vec<String>> = vec![
            [
                "kind",
                "rules",
                "policies",
                "compiled in",
                "bytes",
                "bytes a rule",
            ]
            .map(str::to_owned)
            .into(),
        ];
        for set in &self.sets {
            let took = estimate(&set.compile_ns);
            rows.push(vec![
                set.kind.clone(),
                set.rules.to_string(),
                set.policies.to_string(),
                took.map_or_else(|| "–".to_owned(), |took| interval(&took, nanoseconds)),
                set.bytes.to_string(),
                format!("{:.0}", set.bytes as f64 / f64::from(set.rules.max(1))),
            ]);
        }
        rows
    }
}

impl SideRecord for Decisions {
    const FILES: &'static [&'static str] = &["decisions.json"];

    fn head(&self) -> &RecordHead {
        &self.head
    }

    /// Fills `findings` from `cells`: for each kind and hit the largest set beside the smallest, of one policy and of many.
    fn conclude(&mut self) {
        let mut findings: Vec<DecisionFinding> = self.unseen();
        for cell in &self.cells {
            let alike = |other: &&Cell| {
                other.kind == cell.kind
                    && other.hit == cell.hit
                    && (other.policies == 1) == (cell.policies == 1)
            };
            let known = |finding: &DecisionFinding| {
                finding.kind == cell.kind
                    && finding.hit == cell.hit
                    && finding.beside.is_empty()
                    && (finding.many.1 == 1) == (cell.policies == 1)
            };
            if findings.iter().any(known) {
                continue;
            }
            let series = self.cells.iter().filter(alike).map(Cell::size);
            let Some(many) = series.max() else { continue };
            let few = match cell.policies {
                1 => self.cells.iter().filter(alike).map(Cell::size).min(),
                // Many policies beside one that has as many rules as each of them.
                _ => Some((many.0 / many.1, 1)),
            };
            let bare = cell.hit == BARE;
            if let Some(few) = few.filter(|few| *few != many && !bare) {
                let found = (cell.hit.as_str(), many);
                findings.push(self.finding(&cell.kind, found, (&cell.hit, few)));
            }
        }
        self.findings = findings;
    }

    fn for_terminal(&self) -> String {
        let mut text = String::new();
        for (series, title) in Series::ALL {
            if self.has(series) {
                let apart = if text.is_empty() { "" } else { "\n" };
                let mut rows = vec![Row::Title(format!("{apart}{title}"))];
                rows.extend(self.series(series).into_iter().map(Row::Cells));
                text += &aligned(&rows);
            }
        }
        let mut rows = vec![Row::Title("\nSets".to_owned())];
        rows.extend(self.holdings().into_iter().map(Row::Cells));
        text + &aligned(&rows)
    }

    fn in_words(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let (Some(ns), Some(times)) = (&finding.ns, &finding.ratio) else {
                continue;
            };
            let of_tokens = finding.kind.starts_with(TOKENS);
            let _ = write!(
                text,
                "{}, {}: {} by {}, {} of {}",
                finding.kind,
                match &*finding.hit {
                    "miss" => "missed".to_owned(),
                    "none" if of_tokens => "no token".to_owned(),
                    hit if of_tokens => format!("{hit} token"),
                    hit => format!("{hit} hit"),
                },
                interval(ns, nanoseconds),
                size(of_tokens, finding.many),
                interval(times, ratio),
                match finding.beside.as_str() {
                    "" => size(of_tokens, finding.few),
                    beside => format!("the {beside} check of the signature"),
                },
            );
            if let Some(times) = finding.instructions {
                let _ = write!(text, ", {} by instructions", ratio(times));
            }
            let _ = match finding.outcome {
                Some(outcome) => {
                    writeln!(text, ". Asked: {}: {}.", finding.asked, outcome.in_words())
                }
                None => writeln!(text, "."),
            };
        }
        for set in self.heavy() {
            let _ = writeln!(
                text,
                "{} rules of {} take {} bytes; the bound is {PATHS_BYTES}.",
                set.rules, set.kind, set.bytes
            );
        }
        text
    }

    fn sections(&self) -> Vec<Section> {
        let series = |hit: &str| {
            let own = |finding: &&DecisionFinding| finding.hit == hit && finding.many.1 == 1;
            let rows = self.findings.iter().filter(own).filter_map(|finding| {
                Some(PlotBar {
                    label: finding.kind.clone(),
                    class: "c-voile",
                    value: finding.ns?,
                })
            });
            let rows: Vec<PlotBar> = rows.collect();
            let title = match hit {
                "miss" => "A decision that no rule matches, by the largest set".to_owned(),
                hit => format!("A decision that the {hit} rule matches, by the largest set"),
            };
            (!rows.is_empty()).then(|| {
                let svg = bars(&title, &rows, nanoseconds);
                Plot::new(hit, title, svg)
            })
        };
        with_plots(vec![Section {
            title: "By kind of rule",
            words: "Medians over rounds with 95 % intervals.",
            plots: ["first", "last", "miss"]
                .into_iter()
                .filter_map(series)
                .collect(),
            folded: false,
        }])
    }

    fn to_html(&self) -> String {
        let mut page = begin(TITLE, &self.head);
        words(&mut page, &self.in_words());
        html::draw(&mut page, &self.sections());
        let own = Series::ALL.iter().filter(|(series, _)| self.has(*series));
        let tables = own.map(|(series, title)| (*title, self.series(*series)));
        for (title, rows) in tables.chain([("Sets", self.holdings())]) {
            let _ = writeln!(page, "<h2>{title}</h2>");
            let escaped = |row: &Vec<String>| row.iter().map(|cell| escape(cell)).collect();
            if let Some((first, rest)) = rows.split_first() {
                let headings: Vec<&str> = first.iter().map(String::as_str).collect();
                let rest: Vec<Vec<String>> = rest.iter().map(escaped).collect();
                table(&mut page, &headings, &rest);
            }
        }
        end(&mut page, &self.head, self.file());
        page
    }

    fn to_markdown(&self) -> String {
        let mut text = self.head.to_markdown(TITLE, &self.in_words());
        let _ = writeln!(
            text,
            "\nMedians over rounds with 95 % intervals; ratios paired within rounds. `decisions.json` holds every round. `{}`",
            self.head.command
        );
        text
    }

    fn shortcoming(&self) -> Option<&'static str> {
        (!self.holds()).then_some("a bound is missed")
    }
}

/// The hits of tokens that are set beside each other.
const BARE: &str = "bare";
const COLD_HIT: &str = "cold";

/// Returns the requirement in words, and the verdict.
fn judged(
    (kind, hit, beside): (&str, &str, &str),
    ns: Option<&Estimate>,
    ratio: Option<&Estimate>,
    instructions: Option<f64>,
) -> (String, Option<TargetResult>) {
    // Instruction counts have no noise. If the record has counts, they decide about growth.
    let growth = match instructions {
        Some(times) if times <= GROWTH => TargetResult::Reached,
        Some(_) => TargetResult::Missed,
        None => below(ratio, GROWTH),
    };
    let within = |most: f64| {
        let asked = format!("{} µs and {GROWTH} ×", most / 1e3);
        (asked, Some(growth.and(below(ns, most))))
    };
    match (hit, kind) {
        // This cell shows the cost of memory beside the decision. It has no bound.
        ("any", _) => (String::new(), None),
        // Valgrind's processor checks signatures by other instructions than this one, so that only time can tell.
        (COLD_HIT, _) if beside == BARE => {
            (format!("{COLD} × the bare check"), Some(below(ratio, COLD)))
        }
        // The signature check makes up this cost; the arm above holds the bound.
        (COLD_HIT, _) => (String::new(), None),
        (_, "mixed") => {
            let asked = format!("{} µs", MIXED_NS / 1e3);
            (asked, Some(below(ns, MIXED_NS)))
        }
        (_, kind) if kind.starts_with(TOKENS) => within(WARM_NS),
        _ => within(ONE_KIND_NS),
    }
}

/// Group of sets that share one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Series {
    OnePolicy,
    ManyPolicies,
    Tokens,
}

impl Series {
    const ALL: [(Self, &'static str); 3] = [
        (Self::OnePolicy, "A decision, by rules in one policy"),
        (
            Self::ManyPolicies,
            "A decision, by policies × rules in each",
        ),
        (Self::Tokens, "A token, by issuers"),
    ];

    fn of(kind: &str, policies: u32) -> Self {
        match policies {
            _ if kind.starts_with(TOKENS) => Self::Tokens,
            1 => Self::OnePolicy,
            _ => Self::ManyPolicies,
        }
    }
}

fn size(of_tokens: bool, (rules, policies): (u32, u32)) -> String {
    match policies {
        1 if of_tokens => format!("{rules} issuers"),
        1 => format!("{rules} rules"),
        policies => format!("{rules} rules in {policies} policies"),
    }
}

/// Nanoseconds with their unit.
fn nanoseconds(ns: f64) -> String {
    match ns {
        ns if ns < 9_999.5 => format!("{ns:.0} ns"),
        ns if ns < 9_999_500.0 => format!("{:.0} µs", ns / 1e3),
        ns => format!("{:.0} ms", ns / 1e6),
    }
}

fn below(found: Option<&Estimate>, bound: f64) -> TargetResult {
    match found {
        None => TargetResult::NotMeasured,
        Some(found) => match (found.low, found.high) {
            (_, Some(most)) if most <= bound => TargetResult::Reached,
            (Some(least), _) if least > bound => TargetResult::Missed,
            _ => TargetResult::CannotTell,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(rules: u32, policies: u32, hit: &str, ns: f64) -> Cell {
        Cell {
            kind: "paths".to_owned(),
            rules,
            policies,
            hit: hit.to_owned(),
            ns: vec![ns; 6],
            instructions: None,
        }
    }

    fn record(cells: Vec<Cell>) -> Decisions {
        let mut record = Decisions {
            cells,
            ..Decisions::default()
        };
        record.conclude();
        record
    }

    #[test]
    fn the_largest_set_is_held_against_the_smallest() {
        let flat = |ns| {
            record(vec![
                cell(10, 1, "last", 50.0),
                cell(1_000, 1, "last", 50.0),
                cell(10_000, 1, "last", ns),
            ])
        };
        let table = [
            (55.0, Some(TargetResult::Reached), true),
            (61.0, Some(TargetResult::Missed), false),
        ];
        for (ns, outcome, holds) in table {
            let record = flat(ns);
            let [finding] = record.findings.as_slice() else {
                panic!("{:?}", record.findings)
            };
            assert_eq!((finding.few, finding.many), ((10, 1), (10_000, 1)));
            assert_eq!((finding.outcome, record.holds()), (outcome, holds), "{ns}");
        }
        let slow = record(vec![
            cell(10, 1, "last", 990.0),
            cell(10_000, 1, "last", 1_100.0),
        ]);
        assert_eq!(slow.findings[0].outcome, Some(TargetResult::Missed));
    }

    #[test]
    fn counts_say_whether_it_grows_where_times_shake() {
        let mut cells = vec![cell(10, 1, "miss", 50.0), cell(10_000, 1, "miss", 80.0)];
        cells[0].instructions = Some(400.0);
        cells[1].instructions = Some(440.0);
        let record = record(cells);
        assert_eq!(record.findings[0].outcome, Some(TargetResult::Reached));
        assert!(
            record.for_terminal().contains("1.10"),
            "{}",
            record.for_terminal()
        );
    }

    /// A token never seen is held against its bare check, one that was seen against one issuer's.
    #[test]
    fn tokens_are_held_against_the_check_of_their_signature_and_against_one_issuer() {
        let token = |issuers, hit: &str, ns| Cell {
            kind: "jwt-rs256".to_owned(),
            ..cell(issuers, 1, hit, ns)
        };
        for (cold, warm, asked) in [
            (
                22_000.0,
                700.0,
                [TargetResult::Reached, TargetResult::Reached],
            ),
            (
                26_000.0,
                2_100.0,
                [TargetResult::Missed, TargetResult::Missed],
            ),
        ] {
            let mut cells = vec![cell(10, 1, "miss", 50.0), cell(10_000, 1, "miss", 50.0)];
            for issuers in [1, 1_000] {
                cells.push(token(issuers, "bare", 20_000.0));
                cells.push(token(issuers, "cold", cold));
                cells.push(token(issuers, "warm", warm));
            }
            let record = record(cells);
            let of = |hit: &str, beside: &str| {
                let own = |one: &&DecisionFinding| one.hit == hit && one.beside == beside;
                record.findings.iter().find(own).expect("a finding")
            };
            let found = [of("cold", "bare"), of("warm", "")].map(|one| one.outcome);
            assert_eq!(found, asked.map(Some));
            assert_eq!(of("cold", "bare").many, (1_000, 1));
            assert_eq!(of("cold", "").outcome, None, "the signature's");
            assert!(!record.findings.iter().any(|one| one.hit == "bare"));
            let table = record.for_terminal();
            for words in [
                "1000 issuers",
                "cold ÷ bare",
                "1.2 × the bare check",
                "10000",
            ] {
                assert!(table.contains(words), "{words}: {table}");
            }
            assert!(
                record
                    .in_words()
                    .contains("the bare check of the signature")
            );
        }
    }

    #[test]
    fn many_policies_are_held_against_one_of_them() {
        let record = record(vec![
            cell(5, 1, "miss", 50.0),
            cell(10, 1, "miss", 50.0),
            cell(50, 10, "miss", 50.0),
            cell(10_000, 2_000, "miss", 70.0),
        ]);
        let many = record.findings.iter().find(|finding| finding.many.1 > 1);
        let many = many.expect("a finding");
        assert_eq!((many.few, many.many), ((5, 1), (10_000, 2_000)));
        assert_eq!(many.outcome, Some(TargetResult::Missed));
        assert!(
            record.for_terminal().contains("2000 × 5"),
            "{}",
            record.for_terminal()
        );
    }

    #[test]
    fn a_set_that_holds_too_much_is_named() {
        let mut record = record(vec![cell(10, 1, "any", 50.0), cell(10_000, 1, "any", 90.0)]);
        assert!(record.holds(), "nothing is asked of it");
        record.sets.push(RuleSetSeries {
            kind: "path-prefixes".to_owned(),
            rules: 10_000,
            policies: 1,
            compile_ns: vec![3e7; 6],
            bytes: 2_100_000,
        });
        assert!(!record.holds());
        assert!(record.in_words().contains("2100000 bytes"));
        assert!(
            record.for_terminal().contains("30 ms"),
            "{}",
            record.for_terminal()
        );
    }
}
