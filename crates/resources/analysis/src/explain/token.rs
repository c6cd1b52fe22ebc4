//! Examines a request's token with the engine that proxies use, and finds the location of the deciding rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use voile_model::Source;
use voile_model::mesh::{KeySource, Mesh, RequestAuthentication, TokenRule, token_rules};
use voile_policy::claims::Claims;
use voile_policy::tokens::{
    Cache, RuleKeys, Rules, TokenEdits, TokenErrorReason, TokenOutcome, TokenRequest, Verified,
    without_cookies,
};

use super::AccessQuestion;
use crate::subject::Subject;

/// The token of a request, and the data about it that the folder does not contain.
#[derive(Debug, Clone, Copy)]
pub struct PresentedToken<'a> {
    /// The token, put where the rules of its issuer look for it.
    pub token: &'a str,
    /// Key sets by issuer, for rules that have them fetched.
    pub keys: &'a BTreeMap<String, String>,
    /// Seconds since 1970.
    pub now: u64,
}

/// A workload's result for the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSaid {
    /// One sentence.
    pub why: String,
    /// `ISSUER/SUBJECT` of a good one, as policies name it.
    pub principal: Option<String>,
    /// The RequestAuthentication whose rule decides, if one does.
    pub policy: Option<String>,
    /// Location of that rule.
    pub source: Option<Source>,
}

fn lines(question: &AccessQuestion<'_>) -> Lines {
    let lines = question.headers.iter();
    lines
        .map(|(name, value)| (name.to_ascii_lowercase(), value.clone().into_bytes()))
        .collect()
}

/// The result if no RequestAuthentication applies.
pub(super) fn unlooked(question: &AccessQuestion<'_>) -> ExaminedTokens {
    let why = "no RequestAuthentication applies there: tokens are not verified";
    let lines = lines(question);
    ExaminedTokens {
        said: question.token.map(|_| said(why.to_owned(), None)),
        came: lines.clone(),
        headers: lines,
        ..ExaminedTokens::default()
    }
}

/// The outcome, for the policies.
#[derive(Default)]
pub(super) struct ExaminedTokens {
    pub(super) said: Option<TokenSaid>,
    /// The status that refuses the request, with the changes that would avoid it.
    pub(super) refused: Option<(u16, Vec<String>)>,
    pub(super) claims: Option<Claims>,
    /// As they came, the token among them: CUSTOM rules ask these, too.
    pub(super) came: Lines,
    /// As the rules let them go on.
    pub(super) headers: Lines,
}

pub(super) type Lines = Vec<(String, Vec<u8>)>;

/// Looks at the request as the workload's sidecar would.
pub(super) fn look(
    mesh: &Mesh,
    subject: &Subject<'_>,
    path: &str,
    question: &AccessQuestion<'_>,
) -> ExaminedTokens {
    let holding = mesh.request_authentication_for_labels(subject.namespace, subject.labels);
    look_by(holding, path, question)
}

/// Looks at it as these resources say.
pub(super) fn look_by(
    holding: Vec<&Arc<RequestAuthentication>>,
    path: &str,
    question: &AccessQuestion<'_>,
) -> ExaminedTokens {
    let written = token_rules(holding);
    if written.is_empty() {
        return unlooked(question);
    }
    let lines = lines(question);
    let none = BTreeMap::new();
    let keys = question.token.map_or(&none, |brought| brought.keys);
    let given = written.iter().map(|(_, rule)| RuleKeys {
        rule,
        keys: keys.get(&*rule.issuer).map(String::as_str),
    });
    let rules = Rules::new(given, None);
    let now = question.token.map_or(0, |brought| brought.now);
    let (outcome, mut lines) = match question.token {
        None => (examine(&rules, question.method, path, &lines, now), lines),
        Some(brought) => placed(&rules, &written, question.method, (path, &lines), brought),
    };
    let came = lines.clone();
    let owned = rules.owned_headers();
    lines.retain(|(name, _)| !owned.iter().any(|own| **own == **name));
    let mut looked = ExaminedTokens {
        came,
        headers: lines,
        ..ExaminedTokens::default()
    };
    match outcome {
        TokenOutcome::NoToken => {}
        TokenOutcome::Verified(verified) => good(&mut looked, &rules, &written, &verified),
        TokenOutcome::Refused(refusal) => {
            let issuer = question.token.and_then(|brought| issuer(brought.token));
            let rule = written.iter().find(|(_, rule)| match refusal.reason {
                TokenErrorReason::Missing => rule.required,
                _ => Some(&*rule.issuer) == issuer.as_deref(),
            });
            let why = format!("refused: {} ({})", refusal.text(), refusal.status());
            looked.said = Some(said(why, rule));
            let otherwise = otherwise(refusal.reason, &written, rule);
            looked.refused = Some((refusal.status(), otherwise));
            // Nothing was made of it.
            looked.headers.clone_from(&looked.came);
        }
    }
    looked
}

pub(super) type Written<'a> = (&'a RequestAuthentication, &'a TokenRule);

fn said(why: String, rule: Option<&Written<'_>>) -> TokenSaid {
    TokenSaid {
        why,
        principal: None,
        policy: rule.map(|(policy, _)| policy.name.to_string()),
        source: rule.map(|(_, rule)| rule.source.clone()),
    }
}

fn good(looked: &mut ExaminedTokens, rules: &Rules, written: &[Written<'_>], verified: &Verified) {
    let edits: TokenEdits<'_> = verified.edits(rules);
    let lines = &mut looked.headers;
    lines.retain(|(name, _)| !edits.remove.contains(&name.as_str()));
    for (name, value) in lines.iter_mut() {
        if name == "cookie" {
            *value = without_cookies(value, &edits.cookies).into_owned();
        }
    }
    for (name, value) in &edits.add {
        lines.push(((*name).to_owned(), value.as_bytes().to_vec()));
    }
    let principal = verified.token().principal();
    let of = principal
        .as_deref()
        .unwrap_or("no principal (it lacks `iss` or `sub`)");
    looked.said = Some(TokenSaid {
        principal: principal.clone(),
        ..said(format!("good, of {of}"), written.get(verified.rule()))
    });
    looked.claims = Some(verified.claims().clone());
}

fn examine(rules: &Rules, method: &str, path: &str, lines: &Lines, now: u64) -> TokenOutcome {
    let headers: Vec<(&str, &[u8])> = lines
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    let request = TokenRequest {
        method: method.as_bytes(),
        path: path.as_bytes(),
        headers: &headers,
    };
    // Nothing is remembered between two questions.
    rules.examine(&request, now, &mut Cache::new(0))
}

/// The token in each of the places that rules name, until one is where the rules of its issuer look.
fn placed(
    rules: &Rules,
    written: &[Written<'_>],
    method: &str,
    (path, lines): (&str, &Lines),
    brought: PresentedToken<'_>,
) -> (TokenOutcome, Lines) {
    let token = brought.token;
    let mut last = None;
    for (_, rule) in written {
        let (mut lines, mut path) = (lines.clone(), path.to_owned());
        let mut line = |name: &str, value: String| {
            lines.push((name.to_owned(), value.into_bytes()));
        };
        if let Some(place) = rule.from_headers.first() {
            line(&place.name, format!("{}{token}", place.prefix));
        } else if let Some(name) = rule.from_params.first() {
            let mark = if path.contains('?') { '&' } else { '?' };
            path.push_str(&format!("{mark}{name}={token}"));
        } else if let Some(name) = rule.from_cookies.first() {
            line("cookie", format!("{name}={token}"));
        } else {
            let (name, prefix) = TokenRule::DEFAULT_HEADER;
            line(name, format!("{prefix}{token}"));
        }
        let outcome = examine(rules, method, &path, &lines, brought.now);
        let elsewhere = matches!(
            &outcome,
            TokenOutcome::Refused(refusal) if refusal.reason == TokenErrorReason::Issuer
        );
        let here = (outcome, lines);
        if !elsewhere {
            return here;
        }
        last.get_or_insert(here);
    }
    last.unwrap_or_else(|| (TokenOutcome::NoToken, lines.clone()))
}

/// `iss` of an unverified token.
fn issuer(token: &str) -> Option<String> {
    use base64::Engine as _;
    let payload = token.split('.').nth(1)?;
    let payload = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(payload);
    let claims: Value = serde_json::from_slice(&payload.ok()?).ok()?;
    claims.get("iss")?.as_str().map(str::to_owned)
}

/// The tokens without which these rules let no request pass, in words.
pub(super) fn required_tokens<'a>(rules: impl IntoIterator<Item = Written<'a>>) -> Vec<String> {
    let rules = rules.into_iter().filter(|(_, rule)| rule.required);
    rules
        .map(|(_, rule)| match &*rule.issuer {
            "" => "a token is there".to_owned(),
            issuer => format!("a token of {issuer} is there"),
        })
        .collect()
}

/// Changes that would make the token acceptable.
fn otherwise(
    reason: TokenErrorReason,
    written: &[Written<'_>],
    rule: Option<&Written<'_>>,
) -> Vec<String> {
    const SHOWN: usize = 5; // more is no answer
    match (reason, rule) {
        (TokenErrorReason::Issuer, _) => {
            let mut issuers: Vec<&Arc<str>> =
                written.iter().map(|(_, rule)| &rule.issuer).collect();
            issuers.dedup();
            let shown: Vec<&str> = issuers
                .iter()
                .take(SHOWN)
                .map(|issuer| &***issuer)
                .collect();
            let more = if issuers.len() > SHOWN { ", …" } else { "" };
            vec![format!("believed there: {}{more}", shown.join(", "))]
        }
        (TokenErrorReason::Missing, _) => required_tokens(written.iter().copied()),
        (TokenErrorReason::NoKeySet, Some((_, rule))) => {
            let place = match &rule.keys {
                KeySource::Uri(uri) => uri.to_string(),
                KeySource::Discovery | KeySource::Inline(_) => {
                    format!("the discovery document of {}", rule.issuer)
                }
            };
            vec![format!(
                "its keys come from {place}, which this command does not fetch: pass them with --jwks {}=FILE",
                rule.issuer
            )]
        }
        (TokenErrorReason::Audience, Some((_, rule))) => {
            vec![format!(
                "`aud` would have to hold one of {}",
                rule.audiences.join(", ")
            )]
        }
        _ => Vec::new(),
    }
}
