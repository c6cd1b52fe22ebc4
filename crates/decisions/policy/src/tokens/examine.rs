//! The decision about a request's tokens, as Envoy's filter makes it for Istio's translation of these rules. The
//! request passes by the first rule, by issuer, for which every token in its places is valid. A request without any
//! token passes without a principal. Every other request is refused.
//!
//! If a rule demands a token (`presence: REQUIRED`), the request passes by all rules together: the places of such a rule
//! have valid tokens, and those of the others valid ones or none. The last rule gives the principal, and a rule does not
//! see a token that one before it takes out of the request.

use std::sync::Arc;

use smallvec::SmallVec;

use super::cache::{Cache, Strangers};
use super::claims::{Token, audiences, in_time};
use super::keys::{KeySet, SignatureCheck};
use super::limits::MAX_SIGNATURE_CHECKS;
use super::outcome::{TokenErrorReason, TokenOutcome, TokenRefusal, Verified};
use super::parse::Unverified;
use super::places::{AllFound, TokenRequest};
use super::rules::{CompiledTokenRule, Rules};

/// A token as far as it is known.
enum ExaminedToken<'a> {
    /// Its signature held before.
    Good(Arc<Token>),
    /// Not yet verified.
    New(Box<Unverified<'a>>),
    Bad(TokenErrorReason),
}

/// A token of this request.
struct ExaminedRequest<'a> {
    place: u16,
    hash: u64,
    text: &'a [u8],
    known: ExaminedToken<'a>,
    /// Keys that did not make its signature.
    strangers: Strangers,
}

impl ExaminedRequest<'_> {
    fn issuer(&self) -> Result<&str, TokenErrorReason> {
        match &self.known {
            ExaminedToken::Good(token) => Ok(token.issuer()),
            ExaminedToken::New(read) => Ok(read.issuer()),
            ExaminedToken::Bad(reason) => Err(*reason),
        }
    }
}

struct TokenExamination<'a> {
    now: u64,
    cache: &'a mut Cache,
    /// Number of signature checks that are still allowed.
    left: usize,
}

impl Rules {
    /// Finds the tokens in a request and verifies them. `now` is in seconds since 1970.
    pub fn examine(&self, request: &TokenRequest<'_>, now: u64, cache: &mut Cache) -> TokenOutcome {
        if self.is_empty() || is_preflight(request) {
            return TokenOutcome::NoToken;
        }
        let found = match self.places.find(request) {
            Ok(found) if found.is_empty() && !self.required => return TokenOutcome::NoToken,
            Ok(found) => found,
            Err(reason) => return TokenOutcome::Refused(TokenRefusal { reason }),
        };
        let mut examining = TokenExamination {
            now,
            cache,
            left: MAX_SIGNATURE_CHECKS,
        };
        match self.judge(&found, &mut examining) {
            Ok(verified) => TokenOutcome::Verified(verified),
            Err(reason) => TokenOutcome::Refused(TokenRefusal { reason }),
        }
    }

    fn judge(
        &self,
        found: &AllFound<'_>,
        examining: &mut TokenExamination<'_>,
    ) -> Result<Verified, TokenErrorReason> {
        let tokens = found.iter().map(|one| {
            let hash = examining.cache.hash(&one.text);
            let remembered = examining.cache.get(hash, &one.text);
            let (known, strangers) = match remembered {
                Some((token, strangers)) => (ExaminedToken::Good(token), strangers),
                None => match Unverified::read(&one.text, &examining.cache.headers) {
                    Ok(read) => (ExaminedToken::New(Box::new(read)), Strangers::new()),
                    Err(reason) => (ExaminedToken::Bad(reason), Strangers::new()),
                },
            };
            ExaminedRequest {
                place: one.place,
                hash,
                text: &one.text,
                known,
                strangers,
            }
        });
        let mut tokens: SmallVec<[ExaminedRequest<'_>; 2]> = tokens.collect();
        if self.required {
            return self.accept_all(tokens, examining);
        }
        let mut refused: SmallVec<[(u32, TokenErrorReason); 2]> = SmallVec::new();
        for number in self.candidates(&tokens) {
            match self.accept(number, &mut tokens, examining) {
                Ok(verified) => return Ok(verified),
                Err(reason) => refused.push((number, reason)),
            }
        }
        Err(self.reason(&tokens, &refused))
    }

    /// Rules that believe the issuer of a token in one of their places, in order.
    fn candidates(&self, tokens: &[ExaminedRequest<'_>]) -> SmallVec<[u32; 4]> {
        let mut all = SmallVec::new();
        for token in tokens {
            let Ok(issuer) = token.issuer() else { continue };
            for rules in self.believing(issuer) {
                let look_there = rules.iter().filter(|number| {
                    let places = &self.rules[**number as usize].places;
                    places.contains(&token.place)
                });
                all.extend(look_there.copied());
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Verifies the tokens by every rule in whose places there are some.
    fn accept_all(
        &self,
        mut tokens: SmallVec<[ExaminedRequest<'_>; 2]>,
        examining: &mut TokenExamination<'_>,
    ) -> Result<Verified, TokenErrorReason> {
        let mut last: Option<Verified> = None;
        for (rule, number) in self.rules.iter().zip(0..) {
            if !tokens
                .iter()
                .any(|token| rule.places.contains(&token.place))
            {
                match rule.required {
                    true => return Err(TokenErrorReason::Missing),
                    false => continue,
                }
            }
            let mut good = self.accept(number, &mut tokens, examining)?;
            if !rule.forward {
                tokens.retain(|token| !good.places.contains(&token.place));
            }
            if let Some(mut before) = last.take() {
                good.others = std::mem::take(&mut before.others);
                good.others.push(before);
            }
            last = Some(good);
        }
        last.ok_or(TokenErrorReason::Missing)
    }

    /// Verifies all tokens in a rule's places. The token in the first place gives the request's principal.
    fn accept(
        &self,
        number: u32,
        tokens: &mut [ExaminedRequest<'_>],
        examining: &mut TokenExamination<'_>,
    ) -> Result<Verified, TokenErrorReason> {
        let rule = &self.rules[number as usize];
        let mut places = SmallVec::new();
        let mut first = None;
        let own = tokens.iter_mut().rev();
        for token in own.filter(|token| rule.places.contains(&token.place)) {
            if !rule.believes(token.issuer()?) {
                return Err(TokenErrorReason::Issuer);
            }
            first = Some(examining.check(rule, token)?);
            if !places.contains(&token.place) {
                places.push(token.place);
            }
        }
        Ok(Verified {
            token: first.ok_or(TokenErrorReason::Issuer)?,
            rule: number as usize,
            places,
            others: Vec::new(),
        })
    }

    /// Which of several reasons is told: that of the first rule that saw a token, if it says more than that the issuer is another's,
    /// else the last that does.
    fn reason(
        &self,
        tokens: &[ExaminedRequest<'_>],
        refused: &[(u32, TokenErrorReason)],
    ) -> TokenErrorReason {
        let exhausted =
            |(_, reason): &(u32, TokenErrorReason)| *reason == TokenErrorReason::Exhausted;
        if refused.iter().any(exhausted) {
            return TokenErrorReason::Exhausted;
        }
        let telling = |reason: &TokenErrorReason| *reason != TokenErrorReason::Issuer;
        let first = tokens.iter().map(|token| self.places.first(token.place));
        let first = first.min().unwrap_or(u32::MAX);
        let by_first = refused.iter().find(|(number, _)| *number == first);
        let by_first = by_first.map(|(_, reason)| *reason).filter(telling);
        let by_last = refused
            .iter()
            .rev()
            .map(|(_, reason)| *reason)
            .find(telling);
        let unread = tokens.iter().rev().find_map(|token| token.issuer().err());
        by_first
            .or(unread)
            .or(by_last)
            .unwrap_or(TokenErrorReason::Issuer)
    }
}

impl TokenExamination<'_> {
    /// Verifies a token by a rule that trusts its issuer.
    fn check(
        &mut self,
        rule: &CompiledTokenRule,
        token: &mut ExaminedRequest<'_>,
    ) -> Result<Arc<Token>, TokenErrorReason> {
        match &token.known {
            ExaminedToken::Good(good) => {
                good.in_time(self.now)?;
                good.audience(rule)?;
                if good.profile == rule.profile {
                    return Ok(good.clone());
                }
            }
            ExaminedToken::New(read) => {
                in_time(read.not_before, read.expiry, self.now)?;
                rule.takes_audience(audiences(&read.claims))?;
            }
            ExaminedToken::Bad(reason) => return Err(*reason),
        }
        let keys = rule.keys.as_ref().map_err(|reason| *reason)?;
        let mut before = token.strangers.iter();
        if let Some((_, reason)) = before.find(|(known, _)| *known == keys.fingerprint) {
            return Err(*reason);
        }
        let good = self.verify(rule, keys, token)?;
        token.known = ExaminedToken::Good(good.clone());
        Ok(good)
    }

    /// Checks the signature and remembers a good token.
    fn verify(
        &mut self,
        rule: &CompiledTokenRule,
        keys: &KeySet,
        token: &mut ExaminedRequest<'_>,
    ) -> Result<Arc<Token>, TokenErrorReason> {
        let mut again;
        let read = match &mut token.known {
            ExaminedToken::New(read) => &mut **read,
            // It was good by other keys, or other things were made of it.
            ExaminedToken::Good(_) | ExaminedToken::Bad(_) => {
                again = Unverified::read(token.text, &self.cache.headers)?;
                &mut again
            }
        };
        let signed = &read.text.as_bytes()[..read.signed];
        let header = &read.header;
        let id = header.key_id.as_deref();
        let left = &mut self.left;
        let reason = match keys.check(header.algorithm, id, signed, &read.signature, left) {
            SignatureCheck::Holds => {
                self.cache.headers.keep(read.header_text(), header);
                let good = Arc::new(Token::new(read, rule)?);
                let strangers = std::mem::take(&mut token.strangers);
                self.cache.insert(token.hash, good.clone(), strangers);
                return Ok(good);
            }
            SignatureCheck::Exhausted => return Err(TokenErrorReason::Exhausted),
            SignatureCheck::Fails => TokenErrorReason::Signature,
            SignatureCheck::NoKey => TokenErrorReason::NoKey,
        };
        let stranger = (keys.fingerprint, reason);
        token.strangers.push(stranger);
        if let ExaminedToken::Good(good) = &token.known {
            self.cache.add_stranger(token.hash, good, stranger);
        }
        Err(reason)
    }
}

/// A browser asks before it sends anything: no credentials are in it (Fetch, "CORS-preflight fetch").
fn is_preflight(request: &TokenRequest<'_>) -> bool {
    if request.method != b"OPTIONS" {
        return false;
    }
    let (mut origin, mut asked) = (false, false);
    request.headers.each(&mut |name, value| {
        origin |= name.eq_ignore_ascii_case(b"origin") && !value.is_empty();
        asked |= name.eq_ignore_ascii_case(b"access-control-request-method") && !value.is_empty();
    });
    origin && asked
}
