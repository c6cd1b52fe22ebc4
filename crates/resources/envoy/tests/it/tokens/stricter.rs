//! Allowed differences between our engine and a stock Envoy for requests with tokens. They are listed here and in decision 0015:
//! ours refuses more, or tells the application less.

use std::collections::BTreeMap;

use voile_policy::tokens::TokenErrorReason;
use voile_testkit::tokens::{Carrying, DrawnRule};

use super::became::{Became, COMPARED, Passed};

type ByName = BTreeMap<String, Vec<String>>;

/// Envoy's rules change the request while they look at it, and what a rule has taken out the next does not see, even when
/// the first one then fails. Ours change it once it is decided.
const NOTHING_AWAY: &str = "a rule that fails takes nothing away";

/// One comparison.
pub(super) struct Case<'a> {
    pub(super) rules: &'a [DrawnRule],
    pub(super) sent: &'a Carrying,
}

impl Case<'_> {
    fn odd(&self, what: &str) -> bool {
        self.sent.odd.contains(&what)
    }

    /// Returns true if one rule may see two tokens, or two rules one each.
    fn has_several(&self) -> bool {
        let several = [
            "another token",
            "the same place twice",
            "twice the same line",
        ];
        several.iter().any(|what| self.odd(what))
    }

    /// Returns true if Envoy may take a token out of a request for a rule that then fails.
    fn may_strip(&self) -> bool {
        let strips = |one: &DrawnRule| !one.rule.forward_original;
        self.rules.len() > 1 && self.rules.iter().any(strips)
    }

    /// Returns true if one of the tokens may be refused by our engine alone.
    fn has_listed(&self) -> bool {
        let listed = [
            "a secret",
            "crit",
            "a spoilt form",
            "a blank behind the token",
            "another algorithm",
            "a spoilt signature",
            "an odd time",
            "the same place twice",
        ];
        listed.iter().any(|what| self.odd(what))
    }

    /// The common result, or the listed difference; an error if they differ otherwise.
    pub(super) fn compared(&self, ours: &Became, theirs: &Became) -> Result<String, &'static str> {
        match (ours, theirs) {
            (Became::Refused { status, reason, .. }, Became::Refused { status: other, .. }) => {
                // An engine with more reasons to refuse may find another one first.
                let listed = reason.is_some_and(|reason| self.refused_by_us(reason).is_some());
                match status == other || listed || self.has_several() {
                    true => Ok(status.to_string()),
                    false => Err("another status"),
                }
            }
            (Became::Refused { reason, .. }, Became::Passed(_)) => {
                let reason = reason.ok_or("no reason")?;
                let listed = self.refused_by_us(reason).ok_or("refused by us alone")?;
                Ok(match listed {
                    NOTHING_AWAY => listed.to_owned(),
                    listed => format!("stricter: {listed}"),
                })
            }
            (Became::Passed(_), Became::Refused { .. }) => {
                match self.has_several() && self.may_strip() {
                    true => Ok(NOTHING_AWAY.to_owned()),
                    false => Err("refused by Envoy alone"),
                }
            }
            (Became::Passed(ours), Became::Passed(theirs)) => {
                let compared = self.both_passed(ours, theirs);
                // If our engine refuses one token, the next may count.
                match compared.is_err() && self.has_several() && self.has_listed() {
                    true => Ok("stricter: another token counts".to_owned()),
                    false => compared.map(str::to_owned),
                }
            }
        }
    }

    fn both_passed(&self, ours: &Passed, theirs: &Passed) -> Result<&'static str, &'static str> {
        if ours.claims != theirs.claims {
            return Err("other claims");
        }
        let by_path = self.by_path(&ours.path, &theirs.path)?;
        let by_headers = self.by_headers(&ours.headers, &theirs.headers)?;
        let nothing = match ours.claims.is_null() {
            true => "nobody's",
            false => "believed",
        };
        Ok(by_path.or(by_headers).unwrap_or(nothing))
    }

    /// Why a request may be refused here that Envoy lets pass.
    fn refused_by_us(&self, reason: TokenErrorReason) -> Option<&'static str> {
        if self.odd("the same place twice") {
            return Some("all parameters and cookies of a name are looked at");
        }
        // With several tokens or rules another one may be that of the reason.
        let several = self.odd("another token");
        let any = several || self.rules.len() > 1;
        let why = |reasons: &[TokenErrorReason], odd: &str| {
            self.odd(odd) && (any || reasons.contains(&reason))
        };
        let unfit = [
            TokenErrorReason::Algorithm,
            TokenErrorReason::NoUsableKey,
            TokenErrorReason::NoKey,
            TokenErrorReason::Signature,
        ];
        let encoding = [
            TokenErrorReason::HeaderEncoding,
            TokenErrorReason::PayloadEncoding,
            TokenErrorReason::SignatureEncoding,
        ];
        if why(&unfit, "a secret") {
            Some("a secret that both sides know verifies nothing")
        } else if why(&[TokenErrorReason::Critical], "crit") {
            Some("what crit asks for is not understood")
        } else if why(&[TokenErrorReason::Form], "a spoilt form") {
            Some("a token has three parts")
        } else if why(&encoding, "a spoilt form") || why(&encoding, "a blank behind the token") {
            Some("base64 has one spelling")
        } else if why(&unfit, "another algorithm") {
            Some("the algorithm is the key's")
        } else if why(&unfit, "a spoilt signature") {
            Some("a signature has its length")
        } else if why(&[TokenErrorReason::Expired], "an odd time") {
            Some("a time of 0 is a time")
        } else if several && self.may_strip() {
            Some(NOTHING_AWAY)
        } else {
            None
        }
    }

    /// Envoy writes a query anew when it takes a token out of it.
    fn by_path(&self, ours: &str, theirs: &str) -> Result<Option<&'static str>, &'static str> {
        let (mine, theirs) = (parameters(ours), parameters(theirs));
        if mine == theirs {
            return Ok(None);
        }
        let less = mine.0 == theirs.0 && theirs.1.iter().all(|pair| mine.1.contains(pair));
        match less && self.has_several() && self.may_strip() {
            true => Ok(Some(NOTHING_AWAY)),
            false => Err("another path"),
        }
    }

    fn by_headers(
        &self,
        ours: &ByName,
        theirs: &ByName,
    ) -> Result<Option<&'static str>, &'static str> {
        let mut difference = None;
        for name in COMPARED {
            let lines = |all: &ByName| all.get(name).cloned().unwrap_or_default();
            let (mine, theirs) = (lines(ours), lines(theirs));
            if mine == theirs {
                continue;
            }
            let output = name.starts_with("x-claim") || name == "x-payload";
            difference = Some(if name == "cookie" && are_fewer(&mine, &theirs) {
                "stricter: a token goes from the cookies"
            } else if output && theirs.ends_with(&mine) && self.has_several() {
                "stricter: one token is written to headers"
            } else if !output && theirs.is_empty() && self.has_several() && self.may_strip() {
                NOTHING_AWAY
            } else {
                return Err("other headers");
            });
        }
        Ok(difference)
    }
}

/// The path, and its parameters decoded and in order.
fn parameters(path: &str) -> (String, Vec<String>) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    // The generator encodes only these.
    let pairs = pairs.map(|pair| {
        let pair = pair.replace("%61", "a").replace("%20", " ");
        pair.replace("%2E", ".").trim_end_matches('=').to_owned()
    });
    let mut pairs: Vec<String> = pairs.collect();
    pairs.sort();
    (path.to_owned(), pairs)
}

/// Returns true if these cookie headers only lack some cookies.
fn are_fewer(mine: &[String], theirs: &[String]) -> bool {
    let cookies = |lines: &[String]| -> Vec<String> {
        let all = lines.iter().flat_map(|line| line.split(';'));
        let all = all.map(|pair| pair.trim().to_owned());
        all.filter(|pair| !pair.is_empty()).collect()
    };
    let (mine, theirs) = (cookies(mine), cookies(theirs));
    mine.len() < theirs.len() && mine.iter().all(|pair| theirs.contains(pair))
}
