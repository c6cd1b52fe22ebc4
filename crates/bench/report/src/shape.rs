//! Shape of a cell: sizes, workers, CPU set, policies, routes, tokens, cold start. With contestant, path and load it
//! distinguishes cells. An unset property has the value of the whole experiment. Records from before these properties existed
//! therefore keep their meaning.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The rest of a cell's description.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct CellShape {
    /// Bytes of each request's body; none of its own where it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_bytes: Option<u64>,
    /// Bytes of each answer's body; the experiment's `size_bytes` where it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_bytes: Option<u64>,
    /// Threads of each proxy; the experiment's `workers` where it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// The name of a CPU set: which process may run on which cores. Empty: all may run on all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cpus: String,
    /// The name of a hook: commands before and after each slice. Empty: none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hook: String,
    /// Generated objects of the mesh by number, beside those that the requests need: `services`, `policies`, `routes`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub generated: BTreeMap<String, u32>,
    /// Effect of the generated policies on requests: `allow-last`, `deny-miss`, `dry-run-first`, … Empty: the generated policies
    /// match no request, and one more policy allows all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub verdict: String,
    /// The generated route that takes the requests: `first`, `last`, or `miss` (a route behind all others, which takes
    /// everything). Empty: there are no routes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hit: String,
    /// Tokens of the requests: `same` (one for all), `fresh` (a new one each), `forged`. Empty: none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// `cold`: processes are started anew for each slice, and measured from their first request on. Empty: they run all the
    /// time, and each slice is warmed up.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub start: String,
}

/// Generated kind that is no configuration: servers, of which the last is slow.
pub const ENDPOINTS: &str = "endpoints";

/// Value of `start` for cells that are measured from the first request of their processes.
pub const COLD: &str = "cold";

impl CellShape {
    /// Returns true if no property is set.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if processes start anew for each slice.
    #[must_use]
    pub fn is_cold(&self) -> bool {
        self.start == COLD
    }

    /// Returns true if the load on generator and server is the same, for any properties of the proxies.
    #[must_use]
    pub fn same_load(&self, other: &Self) -> bool {
        let load = |shape: &Self| {
            let endpoints = shape.generated.get(ENDPOINTS).copied();
            (shape.request_bytes, shape.response_bytes, endpoints)
        };
        load(self) == load(other) && self.cpus == other.cpus && self.hook == other.hook
    }
}

/// `64 B requests, 16 KiB answers, 4 workers, CPU set split`; empty when it says nothing.
impl fmt::Display for CellShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            self.request_bytes.map(|n| format!("{} requests", bytes(n))),
            self.response_bytes.map(|n| format!("{} answers", bytes(n))),
            self.workers.map(|n| match n {
                1 => "1 worker".to_owned(),
                n => format!("{n} workers"),
            }),
            (!self.cpus.is_empty()).then(|| format!("CPU set {}", self.cpus)),
            (!self.hook.is_empty()).then(|| format!("hook {}", self.hook)),
        ];
        let mesh = self.generated.iter().map(|(kind, n)| format!("{n} {kind}"));
        let verdict = (!self.verdict.is_empty()).then(|| self.verdict.clone());
        let hit = match self.hit.as_str() {
            "" => None,
            "miss" => Some("none of them hit".to_owned()),
            one => Some(format!("{one} one hit")),
        };
        let token = match self.token.as_str() {
            "" => None,
            "fresh" => Some("fresh tokens".to_owned()),
            one => Some(format!("{one} token")),
        };
        let words = words
            .into_iter()
            .flatten()
            .chain(mesh)
            .chain(hit)
            .chain(verdict);
        let cold = self.is_cold().then(|| "cold start".to_owned());
        let words = words.chain(token).chain(cold);
        let words: Vec<String> = words.collect();
        f.write_str(&words.join(", "))
    }
}

/// Whole units only: 1000 stays 1000 B.
fn bytes(number: u64) -> String {
    match number {
        n if n > 0 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n > 0 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_told_in_words_and_a_plain_one_says_nothing() {
        let shape = CellShape {
            request_bytes: Some(64),
            response_bytes: Some(16 << 10),
            workers: Some(1),
            cpus: "split".to_owned(),
            hook: "cold".to_owned(),
            generated: BTreeMap::from([("paths".to_owned(), 1000)]),
            verdict: "deny-last".to_owned(),
            hit: "first".to_owned(),
            token: "same".to_owned(),
            start: COLD.to_owned(),
        };
        let words = "64 B requests, 16 KiB answers, 1 worker, CPU set split, hook cold, 1000 paths, first one hit, deny-last, same token, cold start";
        assert_eq!(shape.to_string(), words);
        assert_eq!(CellShape::default().to_string(), "");
        assert_eq!(
            serde_json::to_string(&CellShape::default()).expect("JSON"),
            "{}"
        );
    }

    #[test]
    fn workers_do_not_change_the_load_and_sizes_do() {
        let plain = CellShape::default();
        let workers = CellShape {
            workers: Some(4),
            ..CellShape::default()
        };
        let larger = CellShape {
            response_bytes: Some(9),
            ..CellShape::default()
        };
        assert!(plain.same_load(&workers) && !plain.same_load(&larger));
        let by_number = |kind: &str| CellShape {
            generated: BTreeMap::from([(kind.to_owned(), 10)]),
            ..CellShape::default()
        };
        assert!(plain.same_load(&by_number("routes")), "the same server");
        assert!(!plain.same_load(&by_number(ENDPOINTS)), "slower servers");
    }
}
