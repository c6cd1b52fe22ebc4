//! Profile of a request's time and CPU. The lab takes it in slices of their own, after all rounds, because profiling costs. No
//! figure includes it; it explains figures.
//!
//! ```text
//! generator ─▶ client's sidecar ─▶ server's sidecar ─▶ server
//!           hop 1             hop 2                hop 3        a capture times each hop's answers:
//! generator's share = its latency − hop 1, client's sidecar's = hop 1 − hop 2, …, server's = hop 3
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::record::CellKey;

/// Profile of one cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Profile {
    /// The profiled cell.
    pub cell: CellKey,
    /// Median latency of the generator's requests while hops were watched, in µs from when they were sent.
    pub service_p50_us: Option<f64>,
    /// Each hop, in the order of the path.
    pub hops: Vec<HopSeen>,
    /// System calls by role.
    pub syscalls: BTreeMap<String, Syscalls>,
    /// CPU time by function.
    pub flames: Vec<Flame>,
    /// Profiles that could not be taken, and the reasons.
    pub missing: Vec<String>,
}

/// Capture of one hop.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HopSeen {
    /// Name of the listening process.
    pub to: String,
    /// True if the hop carries mutual TLS.
    pub tls: bool,
    /// Answers that were timed: none where several requests share a connection.
    pub answers: u64,
    /// From a request's last segment to its answer's first: median, 90th and 99th percentile.
    pub p50_us: Option<f64>,
    /// See `p50_us`.
    pub p90_us: Option<f64>,
    /// See `p50_us`.
    pub p99_us: Option<f64>,
    /// Both ways, from the IP header on, acknowledgements included.
    pub wire_bytes_per_request: f64,
    /// Both ways, as the device carried them.
    pub packets_per_request: f64,
}

/// System calls of one role.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Syscalls {
    /// All of them.
    pub per_request: f64,
    /// The commonest by name.
    pub by_name: BTreeMap<String, f64>,
}

/// Sampled stacks of one role.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Flame {
    /// Role of the process.
    pub role: String,
    /// Samples of CPU time.
    pub samples: u64,
    /// Names of functions; those of the kernel end with `_[k]`.
    pub frames: Vec<String>,
    /// Those of the same functions as one.
    pub stacks: Vec<Stack>,
}

/// A stack, in a record written `0;4;17 12`: places of functions from the outermost inwards, then the samples.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Stack {
    /// Places in [`Flame::frames`].
    pub functions: Vec<u32>,
    /// Number of samples.
    pub samples: u64,
}

impl From<Stack> for String {
    fn from(stack: Stack) -> Self {
        let places: Vec<Self> = stack.functions.iter().map(ToString::to_string).collect();
        format!("{} {}", places.join(";"), stack.samples)
    }
}

impl TryFrom<String> for Stack {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let wrong = |_| format!("\"{text}\" is not a stack: expected PLACE;PLACE SAMPLES");
        let (places, samples) = text.rsplit_once(' ').unwrap_or(("", &text));
        let places = places.split(';').filter(|place| !place.is_empty());
        let functions: Result<Vec<u32>, _> = places.map(str::parse).collect();
        Ok(Self {
            functions: functions.map_err(wrong)?,
            samples: samples.parse().map_err(wrong)?,
        })
    }
}

/// A part of a request's time.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeShare {
    /// Part of the path.
    pub of: String,
    /// Median, in µs.
    pub us: f64,
}

impl Profile {
    /// Splits the median latency into shares: the generator's, then one for each timed hop. A process between two timed hops
    /// shares its part with the process before it. Empty if the first hop could not be timed. The shares add up to the whole.
    #[must_use]
    pub fn shares(&self) -> Vec<TimeShare> {
        let mut hops = self.hops.iter().peekable();
        let first = hops.peek().and_then(|hop| hop.p50_us);
        let (Some(first), Some(whole)) = (first, self.service_p50_us) else {
            return Vec::new();
        };
        let mut shares = vec![TimeShare {
            of: "generator and its kernel".to_owned(),
            us: whole - first,
        }];
        while let Some(hop) = hops.next() {
            let mut of = hop.to.clone();
            while let Some(untimed) = hops.next_if(|next| next.p50_us.is_none()) {
                of = format!("{of} and {}", untimed.to);
            }
            let rest = hops.peek().and_then(|next| next.p50_us).unwrap_or(0.0);
            shares.push(TimeShare {
                of,
                us: hop.p50_us.unwrap_or(0.0) - rest,
            });
        }
        shares
    }
}

impl Flame {
    /// Builds a flame from stacks as text, outermost function first. Equal stacks are added up. The deepest and the rarest stacks
    /// are cut so that a record stays small. Samples of a cut inner end are charged to the function that remains.
    #[must_use]
    pub fn of(role: &str, stacks: impl IntoIterator<Item = Vec<String>>) -> Self {
        Self::counted(role, stacks.into_iter().map(|stack| (stack, 1)))
    }

    fn counted(role: &str, stacks: impl IntoIterator<Item = (Vec<String>, u64)>) -> Self {
        let mut names: BTreeMap<String, u32> = BTreeMap::new();
        let mut counts: BTreeMap<Vec<u32>, u64> = BTreeMap::new();
        let mut frames = Vec::new();
        let mut samples = 0;
        for (stack, seen) in stacks {
            samples += seen;
            let places = stack.into_iter().take(MAX_DEPTH).map(|name| {
                let name: String = name.chars().take(MAX_NAME).collect();
                *names.entry(name).or_insert_with_key(|name| {
                    frames.push(name.clone());
                    frames.len() as u32 - 1
                })
            });
            *counts.entry(places.collect()).or_default() += seen;
        }
        Self {
            role: role.to_owned(),
            samples,
            frames,
            stacks: counts
                .into_iter()
                .map(|(functions, samples)| Stack { functions, samples })
                .collect(),
        }
    }

    /// The flame without its rarest stacks, so that its text has about so many bytes.
    #[must_use]
    pub fn within(mut self, bytes: usize) -> Self {
        self.stacks
            .sort_by_key(|stack| std::cmp::Reverse(stack.samples));
        let mut named = vec![false; self.frames.len()];
        let mut written = 0;
        let kept = self.stacks.iter().take_while(|stack| {
            written += String::from((*stack).clone()).len() + PUNCTUATION_BYTES;
            for place in stack.functions.iter().map(|place| *place as usize) {
                if !std::mem::replace(&mut named[place], true) {
                    written += self.frames[place].len() + PUNCTUATION_BYTES;
                }
            }
            written <= bytes
        });
        let kept = kept.count();
        let stacks = std::mem::take(&mut self.stacks).into_iter().take(kept);
        let name = |place: &u32| self.frames[*place as usize].clone();
        let all = stacks.map(|stack| (stack.functions.iter().map(name).collect(), stack.samples));
        Self {
            samples: self.samples,
            ..Self::counted(&self.role, all.collect::<Vec<_>>())
        }
    }

    /// The stacks in the form of other tools: `outer;inner;innermost COUNT`, one stack a line.
    #[must_use]
    pub fn folded(&self) -> String {
        let mut text = String::new();
        for Stack { functions, samples } in &self.stacks {
            let names: Vec<&str> = functions
                .iter()
                .filter_map(|at| self.frames.get(*at as usize))
                .map(String::as_str)
                .collect();
            text += &format!("{} {samples}\n", names.join(";"));
        }
        text
    }
}

/// A flame graph as a file of its own.
#[must_use]
pub fn svg(flame: &Flame) -> String {
    let title = format!("{}: {} samples of CPU time", flame.role, flame.samples);
    crate::svg::flame(&title, flame)
}

/// Functions of a stack that are kept.
const MAX_DEPTH: usize = 96;
/// Bytes around a word, where it is written.
const PUNCTUATION_BYTES: usize = 4;
/// Letters of a name that are kept.
const MAX_NAME: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(to: &str, p50: Option<f64>) -> HopSeen {
        HopSeen {
            to: to.to_owned(),
            p50_us: p50,
            ..HopSeen::default()
        }
    }

    #[test]
    fn what_does_not_fit_is_the_rarest_and_no_name_of_it_is_kept() {
        let stack = |names: &str| names.split(';').map(str::to_owned).collect::<Vec<_>>();
        let often = (0..30).map(|_| stack("main;serve"));
        let seldom = (0..5).map(|number| stack(&format!("main;{number}{}", "x".repeat(90))));
        let flame = Flame::of("server", often.chain(seldom));
        assert_eq!(flame.clone().within(10_000).folded().lines().count(), 6);
        let small = flame.within(200);
        assert_eq!(small.samples, 35, "what was seen is told");
        assert!(
            small.folded().starts_with("main;serve 30\n"),
            "{}",
            small.folded()
        );
        let lines = small.folded().lines().count();
        assert!((2..6).contains(&lines), "{lines}");
        assert_eq!(small.frames.len(), lines + 1);
        assert!(small.folded().len() < 400);
    }

    #[test]
    fn the_parts_of_a_latency_add_up_to_it() {
        let mut profile = Profile {
            service_p50_us: Some(200.0),
            hops: vec![
                hop("client-sidecar", Some(180.0)),
                hop("server-sidecar", Some(100.0)),
                hop("server", Some(30.0)),
            ],
            ..Profile::default()
        };
        let shares = profile.shares();
        let parts: Vec<f64> = shares.iter().map(|share| share.us).collect();
        assert_eq!(parts, [20.0, 80.0, 70.0, 30.0]);
        assert_eq!(parts.iter().sum::<f64>(), 200.0);
        profile.hops[1].p50_us = None;
        let shares = profile.shares();
        let parts: Vec<(&str, f64)> = shares.iter().map(|s| (s.of.as_str(), s.us)).collect();
        let both = "client-sidecar and server-sidecar";
        let rest = [(both, 150.0), ("server", 30.0)];
        assert_eq!(parts[1..], rest, "a hop was not timed");
        profile.hops[0].p50_us = None;
        assert!(profile.shares().is_empty(), "the first hop was not timed");
        assert!(Profile::default().shares().is_empty());
    }

    #[test]
    fn equal_stacks_are_one_and_folded_text_has_each_once() {
        let stack = |text: &str| text.split(';').map(str::to_owned).collect::<Vec<_>>();
        let flame = Flame::of("server", [stack("a;b"), stack("a;c"), stack("a;b")]);
        assert_eq!((flame.samples, flame.frames.len()), (3, 3));
        assert_eq!(flame.folded(), "a;b 2\na;c 1\n");
        let text = serde_json::to_string(&flame).expect("JSON");
        assert!(text.contains("\"0;1 2\""), "{text}");
        assert_eq!(
            serde_json::from_str::<Flame>(&text).expect("a flame"),
            flame
        );
        for wrong in ["\"0;x 2\"", "\"0;1\"", "\"\""] {
            assert!(serde_json::from_str::<Stack>(wrong).is_err(), "{wrong}");
        }
    }
}
