//! Results for a request with tokens: by Envoy's answer, and by our engine.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use voile_policy::tokens::{
    Cache, Rules, TokenEdits, TokenErrorReason, TokenOutcome, TokenRequest, without_cookies,
    without_params,
};
use voile_testkit::tokens::Carrying;

use crate::stock::Answer;

/// The claims that authorization saw, as the application of the test gets them.
pub(super) const SEEN: &str = "x-seen-claims";

/// Headers that a token may be in, may be written to, or that must stay.
pub(super) const COMPARED: [&str; 10] = [
    "authorization",
    "x-jwt-assertion",
    "x-token",
    "cookie",
    "x-payload",
    "x-claim-a",
    "x-claim-b",
    "x-claim-c",
    "x-other",
    "origin",
];

/// Result for a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Became {
    /// Refused with this status and text.
    Refused {
        status: u16,
        text: String,
        /// Ours only.
        reason: Option<TokenErrorReason>,
    },
    /// It reaches the application.
    Passed(Passed),
}

/// A request as it reaches the application.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Passed {
    pub(super) path: String,
    pub(super) headers: BTreeMap<String, Vec<String>>,
    /// Claims that authorization saw; null without a token.
    pub(super) claims: Value,
}

/// A value as it is compared: what is JSON in base64, by what it says.
fn plain(value: &str) -> String {
    let decoded = STANDARD.decode(value).ok();
    let json = decoded.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    match json {
        Some(json @ (Value::Object(_) | Value::Array(_))) => json.to_string(),
        _ => value.to_owned(),
    }
}

/// Lines by name, names in lower case.
fn by_name(lines: impl Iterator<Item = (String, String)>) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in lines {
        let name = name.to_ascii_lowercase();
        if COMPARED.contains(&&*name) {
            all.entry(name).or_default().push(plain(value.trim()));
        }
    }
    // Envoy joins them.
    if let Some(lines) = all.get_mut("authorization") {
        *lines = vec![lines.join(",")];
    }
    all
}

pub(super) fn envoys(answer: &Answer) -> Became {
    if answer.status != 200 {
        return Became::Refused {
            status: answer.status,
            text: answer.body.clone(),
            reason: None,
        };
    }
    let mut lines = answer.body.lines();
    let first = lines.next().unwrap_or_default();
    // A part of the query that Envoy decodes may contain a blank.
    let path = first
        .split_once(' ')
        .and_then(|(_, rest)| rest.strip_suffix(" HTTP/1.1"));
    let lines = lines.filter_map(|line| line.split_once(':'));
    let all: Vec<(String, String)> = lines
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let seen = all.iter().find(|(name, _)| name == SEEN);
    let claims = seen.and_then(|(_, value)| serde_json::from_str(value).ok());
    Became::Passed(Passed {
        path: path.unwrap_or_default().to_owned(),
        headers: by_name(all.into_iter()),
        claims: doubles(claims.unwrap_or(Value::Null)),
    })
}

/// The request as our proxy would forward it.
pub(super) fn ours(rules: &Rules, sent: &Carrying, now: u64, cache: &mut Cache) -> Became {
    // A codec takes the blanks around values away.
    let lines = sent.headers.iter();
    let lines: Vec<(&str, &str)> = lines.map(|(name, value)| (&**name, value.trim())).collect();
    let request = TokenRequest {
        method: sent.method.as_bytes(),
        path: sent.target.as_bytes(),
        headers: &lines,
    };
    let outcome = rules.examine(&request, now, cache);
    let (edits, claims) = match &outcome {
        TokenOutcome::Refused(refusal) => {
            return Became::Refused {
                status: refusal.status(),
                text: refusal.text(),
                reason: Some(refusal.reason),
            };
        }
        TokenOutcome::NoToken => (TokenEdits::default(), Value::Null),
        TokenOutcome::Verified(good) => (good.edits(rules), good.claims().to_map().into()),
    };
    let goes = |name: &str| {
        let owned = rules.owned_headers().iter().any(|owned| **owned == *name);
        owned || edits.remove.contains(&name)
    };
    let mut kept = Vec::new();
    for (name, value) in &sent.headers {
        let lower = name.to_ascii_lowercase();
        if goes(&lower) {
            continue;
        }
        let value = match &*lower {
            "cookie" => text(&without_cookies(value.as_bytes(), &edits.cookies)),
            _ => value.clone(),
        };
        if lower != "cookie" || !value.is_empty() {
            kept.push((lower, value));
        }
    }
    let added = edits.add.iter();
    kept.extend(added.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    Became::Passed(Passed {
        path: text(&without_params(sent.target.as_bytes(), &edits.params)),
        headers: by_name(kept.into_iter()),
        claims: doubles(claims),
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Numbers are doubles to Envoy.
fn doubles(value: Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(list) => list.into_iter().map(doubles).collect(),
        Value::Object(object) => {
            let entries = object.into_iter();
            let entries = entries.map(|(name, value)| (name, doubles(value)));
            Value::Object(entries.collect())
        }
        value => value,
    }
}
