//! Whose a request is, by its token: asked before any policy, so that policies see what the token says and nothing that was
//! forged. What was verified is remembered by each worker for itself.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::time::SystemTime;

use serde_json::{Map, Value};
use smallvec::SmallVec;
use voile_policy::authorization::Headers;
use voile_policy::tokens::{
    Cache, Outcome, Refusal, Request, Rules, Verified, without_cookies, without_params,
};

use super::authorization::Denied;
use super::changes::Changes;
use super::{Worker, count};
use crate::http::{Head, Told};
use crate::tokens;

/// What is told of a token's scheme in a challenge: requests come out of TLS here.
const SCHEME: &str = "http";

/// The rules of one worker and what it remembers.
#[derive(Default)]
pub(crate) struct Tokens {
    rules: RefCell<Option<InForce>>,
    /// None before the first request that is asked for its token.
    cache: RefCell<Option<Box<Cache>>>,
}

struct InForce {
    tokens: tokens::Tokens,
    /// Headers that only tokens may write.
    owned: Vec<Cow<'static, str>>,
}

/// Requests of one worker.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    verified: Cell<u64>,
    refused: Cell<u64>,
    none: Cell<u64>,
}

/// A copy of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Figures {
    pub(crate) verified: u64,
    pub(crate) refused: u64,
    pub(crate) none: u64,
}

impl Counters {
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            verified: self.verified.get(),
            refused: self.refused.get(),
            none: self.none.get(),
        }
    }
}

impl Tokens {
    /// Obeys other rules; says whether they are.
    pub(crate) fn obey(&self, tokens: Option<&tokens::Tokens>) -> bool {
        let changed = {
            let held = self.rules.borrow();
            held.as_ref().map(|held| &held.tokens) != tokens
        };
        if changed {
            *self.rules.borrow_mut() = tokens.map(|tokens| {
                let owned = tokens.rules().map_or(&[][..], Rules::owned_headers);
                let owned = owned.iter().map(|name| Cow::Owned(name.to_string()));
                InForce {
                    tokens: tokens.clone(),
                    owned: owned.collect(),
                }
            });
            if tokens.is_none() {
                self.forget();
            }
        }
        changed
    }

    /// Gives back the memory of verified tokens.
    pub(crate) fn forget(&self) {
        *self.cache.borrow_mut() = None;
    }
}

/// What a request brought and what of it goes on.
pub(super) struct Presented {
    verified: Option<Verified>,
    changes: Changes,
    /// Parameters that go from the query.
    params: SmallVec<[Box<str>; 1]>,
}

impl Presented {
    /// The claims of a good token.
    pub(super) fn claims(&self) -> Option<&Map<String, Value>> {
        self.verified.as_ref().map(Verified::claims)
    }

    /// What of the head goes and comes.
    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The path without what the token came in, and the changes; `path` is what policies made of the path.
    pub(super) fn applied(
        self,
        head: &Head<'_>,
        path: Option<Box<str>>,
    ) -> (Option<Box<str>>, Changes) {
        if self.params.is_empty() {
            return (path, self.changes);
        }
        let names: SmallVec<[&str; 1]> = self.params.iter().map(|name| &**name).collect();
        let whole = path.as_deref().unwrap_or_else(|| head.path_and_query());
        let path = match without_params(whole.as_bytes(), &names) {
            Cow::Borrowed(_) => path,
            // Whole parameters of a text are gone, so it still is one.
            Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Into::into).or(path),
        };
        (path, self.changes)
    }
}

/// The time, where anybody asks for it.
pub(super) fn now(worker: &Worker) -> u64 {
    if worker.tokens.rules.borrow().is_none() {
        return 0;
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// Looks at a request's token, as of a moment. Nothing where no rule holds.
pub(super) fn examine(
    worker: &Worker,
    head: &Head<'_>,
    now: u64,
) -> Result<Option<Presented>, Denied> {
    let held = worker.tokens.rules.borrow();
    let Some(held) = held.as_ref() else {
        return Ok(None);
    };
    let Some(rules) = held.tokens.rules() else {
        count(&worker.counters.tokens.refused);
        return Err(unreadable());
    };
    let request = Request {
        method: head.method().as_bytes(),
        path: head.path_and_query().as_bytes(),
        headers: &Lines(head),
    };
    let outcome = {
        let mut cache = worker.tokens.cache.borrow_mut();
        let cache = cache.get_or_insert_with(|| Box::new(Cache::new(worker.random())));
        rules.examine(&request, now, cache)
    };
    let counters = &worker.counters.tokens;
    match outcome {
        Outcome::NoToken => {
            count(&counters.none);
            Ok((!held.owned.is_empty()).then(|| Presented {
                verified: None,
                changes: without(&held.owned),
                params: SmallVec::new(),
            }))
        }
        Outcome::Verified(verified) => {
            count(&counters.verified);
            Ok(Some(presented(rules, &held.owned, head, verified)))
        }
        Outcome::Refused(refusal) => {
            count(&counters.refused);
            Err(denied(refusal, head))
        }
    }
}

/// Takes off what only tokens may write.
fn without(owned: &[Cow<'static, str>]) -> Changes {
    let mut changes = Changes::default();
    for name in owned {
        changes.leave_out(name.clone());
    }
    changes
}

fn presented(
    rules: &Rules,
    owned: &[Cow<'static, str>],
    head: &Head<'_>,
    verified: Verified,
) -> Presented {
    let said = verified.edits(rules);
    let mut changes = without(owned);
    for name in &said.remove {
        changes.leave_out(kept_name(name));
    }
    for (name, value) in &said.add {
        changes.add(name, value.as_bytes());
    }
    if !said.cookies.is_empty() {
        changes.leave_out("cookie");
        let lines = head.headers();
        let lines = lines.filter(|(name, _)| name.eq_ignore_ascii_case("cookie"));
        let left: Vec<Cow<'_, [u8]>> = lines
            .map(|(_, value)| without_cookies(value, &said.cookies))
            .filter(|left| !left.is_empty())
            .collect();
        if !left.is_empty() {
            changes.add("cookie", &left.join(&b"; "[..]));
        }
    }
    let params = said.params.iter().map(|name| Box::from(*name)).collect();
    drop(said);
    Presented {
        changes,
        params,
        verified: Some(verified),
    }
}

/// The header that nearly all tokens come in costs nothing to name.
fn kept_name(name: &str) -> Cow<'static, str> {
    match name {
        "authorization" => Cow::Borrowed("authorization"),
        name => Cow::Owned(name.to_owned()),
    }
}

fn denied(refusal: Refusal, head: &Head<'_>) -> Denied {
    let authority = head.authority().unwrap_or_default().as_bytes();
    let path = head.path_and_query().as_bytes();
    let (status, text) = (refusal.status(), refusal.text());
    let mut told = Told {
        lines: Vec::new(),
        body: text.clone().into_bytes(),
    };
    if status == 401 {
        let challenge = refusal.challenge(SCHEME, authority, path);
        told.lines = format!("www-authenticate: {challenge}\r\n").into_bytes();
    }
    Denied {
        told: Some(told.into()),
        ..Denied::new(status, refusal.details(), text)
    }
}

fn unreadable() -> Denied {
    let reason = "the rules about tokens cannot be read";
    Denied::new(403, "jwt_authn_rules_unreadable", reason)
}

/// The field lines of a head as they came.
struct Lines<'a>(&'a Head<'a>);

impl Headers for Lines<'_> {
    fn each<'a>(&'a self, show: &mut dyn FnMut(&'a [u8], &'a [u8])) {
        for (name, value) in self.0.headers() {
            show(name.as_bytes(), value);
        }
    }
}
