//! Tokens of requests. The worker verifies a token before any policy but CUSTOM decides, so that policies see its claims and
//! nothing forged. Each worker remembers verified tokens for itself.

mod examination;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};

use voile_model::mesh::TokenRule;
use voile_policy::tokens::{Cache, Rules, masked_params};

use crate::http::HttpHead;
use crate::tokens;
pub(in crate::worker) use examination::{PresentedTokens, examine, now, tally, unforged};

/// Rules of one worker, and its cache.
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
pub(crate) struct TokenCounters {
    verified: Cell<u64>,
    refused: Cell<u64>,
    none: Cell<u64>,
}

/// A copy of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TokenFigures {
    pub(crate) verified: u64,
    pub(crate) refused: u64,
    pub(crate) none: u64,
}

impl TokenCounters {
    pub(crate) fn figures(&self) -> TokenFigures {
        TokenFigures {
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

    /// Returns true if rules about tokens exist.
    pub(crate) fn is_ruled(&self) -> bool {
        self.rules.borrow().is_some()
    }

    /// Gives back the memory of verified tokens.
    pub(crate) fn forget(&self) {
        *self.cache.borrow_mut() = None;
    }
}

/// Path for logs and spans, without the tokens in its query. Also without rules: `access_token` is a token by its name (RFC
/// 6750), and a caller's sidecar does not know the rules of the called service.
pub(in crate::worker) fn told_path<'a>(
    tokens: Option<&Tokens>,
    head: Option<&HttpHead<'a>>,
) -> Cow<'a, str> {
    let path = head.map(HttpHead::path_and_query).unwrap_or_default();
    if !path.contains('?') {
        return Cow::Borrowed(path);
    }
    let held = tokens.map(|tokens| tokens.rules.borrow());
    let held = held.as_ref().and_then(|held| held.as_ref());
    let rules = held.and_then(|held| held.tokens.rules());
    let masked = masked_params(path.as_bytes(), |name| {
        name == TokenRule::DEFAULT_PARAM.as_bytes()
            || rules.is_some_and(|rules| rules.reads_param(name))
    });
    match masked {
        Cow::Borrowed(_) => Cow::Borrowed(path),
        // Whole values of a text are gone, so it still is one.
        Cow::Owned(bytes) => String::from_utf8(bytes).map_or(Cow::Borrowed("/"), Cow::Owned),
    }
}
