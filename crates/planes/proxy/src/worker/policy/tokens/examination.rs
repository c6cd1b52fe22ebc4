//! Verification of a request's token by the rules in force, and the changes that remove its secrets.

use std::borrow::Cow;
use std::time::SystemTime;

use smallvec::SmallVec;
use voile_policy::claims::Claims;
use voile_policy::tokens::{
    Cache, Rules, TokenOutcome, TokenRefusal, TokenRequest, Verified, without_cookies,
    without_params,
};

use super::Tokens;
use crate::http::ExternalReply;
use crate::worker::policy::denial::Denied;
use crate::worker::policy::request_changes::PlanChanges;
use crate::worker::policy::request_view::RequestView;
use crate::worker::{Worker, count};

/// Scheme in the challenge for a token: requests come out of TLS here.
const SCHEME: &str = "http";

/// Verified token of a request, and the changes that remove its secrets.
pub(in crate::worker) struct PresentedTokens {
    verified: Option<Verified>,
    changes: PlanChanges,
    /// Parameters that go from the query.
    params: SmallVec<[Box<str>; 1]>,
}

impl PresentedTokens {
    /// The claims of a good token.
    pub(in crate::worker) fn claims(&self) -> Option<&Claims> {
        self.verified.as_ref().map(Verified::claims)
    }

    /// The good token itself.
    pub(in crate::worker) fn take(&mut self) -> Option<Verified> {
        self.verified.take()
    }

    /// Changes of the request's head.
    pub(in crate::worker) fn changes(&self) -> &PlanChanges {
        &self.changes
    }

    /// Path without the token's parameters, and the changes. `path` is the policies' form of the path `stands`.
    pub(in crate::worker) fn applied(
        self,
        stands: &str,
        path: Option<Box<str>>,
    ) -> (Option<Box<str>>, PlanChanges) {
        if self.params.is_empty() {
            return (path, self.changes);
        }
        let names: SmallVec<[&str; 1]> = self.params.iter().map(|name| &**name).collect();
        let whole = path.as_deref().unwrap_or(stands);
        let path = match without_params(whole.as_bytes(), &names) {
            Cow::Borrowed(_) => path,
            // Whole parameters of a text are gone, so it still is one.
            Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Into::into).or(path),
        };
        (path, self.changes)
    }
}

/// Present time, if rules need it.
pub(in crate::worker) fn now(tokens: &Tokens) -> u64 {
    if tokens.rules.borrow().is_none() {
        return 0;
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// Changes of a request whose token nothing has verified: fields that only tokens may write are removed.
pub(in crate::worker) fn unforged(tokens: &Tokens) -> PlanChanges {
    let held = tokens.rules.borrow();
    held.as_ref()
        .map_or_else(PlanChanges::default, |held| without(&held.owned))
}

/// Result of a token's verification. Nothing if no rule holds.
pub(in crate::worker) type Examined = Result<Option<PresentedTokens>, Denied>;

/// Looks at a request's token by these rules, as of a moment.
pub(in crate::worker) fn examine(
    worker: &Worker,
    tokens: &Tokens,
    seen: &RequestView<'_>,
    now: u64,
) -> Examined {
    let held = tokens.rules.borrow();
    let Some(held) = held.as_ref() else {
        return Ok(None);
    };
    let Some(rules) = held.tokens.rules() else {
        return Err(unreadable());
    };
    let request = TokenRequest {
        method: seen.head.method().as_bytes(),
        path: seen.path().as_bytes(),
        headers: seen,
    };
    let outcome = {
        let mut cache = tokens.cache.borrow_mut();
        let cache = cache.get_or_insert_with(|| Box::new(Cache::new(worker.random())));
        rules.examine(&request, now, cache)
    };
    match outcome {
        TokenOutcome::NoToken => Ok(Some(PresentedTokens {
            verified: None,
            changes: without(&held.owned),
            params: SmallVec::new(),
        })),
        TokenOutcome::Verified(verified) => Ok(Some(presented(rules, &held.owned, seen, verified))),
        TokenOutcome::Refused(refusal) => Err(denied(worker, refusal, seen)),
    }
}

/// Counts it, once for each request.
pub(in crate::worker) fn tally(worker: &Worker, examined: &Examined) {
    let counters = &worker.counters.tokens;
    match examined {
        Ok(None) => {}
        Ok(Some(PresentedTokens { verified: None, .. })) => count(&counters.none),
        Ok(Some(_)) => count(&counters.verified),
        Err(_) => count(&counters.refused),
    }
}

/// Removes the fields that only tokens may write.
fn without(owned: &[Cow<'static, str>]) -> PlanChanges {
    let mut changes = PlanChanges::default();
    for name in owned {
        changes.leave_out(name.clone());
    }
    changes
}

fn presented(
    rules: &Rules,
    owned: &[Cow<'static, str>],
    seen: &RequestView<'_>,
    verified: Verified,
) -> PresentedTokens {
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
        let lines = seen.lines("cookie");
        let left: Vec<Cow<'_, [u8]>> = lines
            .map(|value| without_cookies(value, &said.cookies))
            .filter(|left| !left.is_empty())
            .collect();
        if !left.is_empty() {
            changes.add("cookie", &left.join(&b"; "[..]));
        }
    }
    let params = said.params.iter().map(|name| Box::from(*name)).collect();
    drop(said);
    PresentedTokens {
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

fn denied(worker: &Worker, refusal: TokenRefusal, seen: &RequestView<'_>) -> Denied {
    let authority = seen.head.authority().unwrap_or_default().as_bytes();
    let policies = worker.authorization.borrow();
    // As it would go on.
    let path = policies
        .as_ref()
        .and_then(|held| held.normalized(seen.path()));
    let path = path.unwrap_or(Cow::Borrowed(seen.path()));
    let path = path.as_bytes();
    let (status, text) = (refusal.status(), refusal.text());
    let mut told = ExternalReply {
        body: Some(text.clone().into_bytes()),
        ..ExternalReply::default()
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
    let reason = "the RequestAuthentication rules are invalid";
    Denied::new(403, "jwt_authn_rules_unreadable", reason)
}
