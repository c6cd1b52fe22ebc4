//! Check of RequestAuthentication. It refuses everything that Istio refuses. It also refuses two settings that Istio
//! accepts silently: rules that never verify a token (an issuer without findable keys), and claims that would rewrite
//! the request's framing.

use std::sync::Arc;
use std::time::Duration;

use crate::check::authorization::target;
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{FieldPath, Fields, Report, is_within};
use crate::mesh::request_authentication::{
    ClaimOutput, HeaderPlace, KeySource, RequestAuthentication, TokenRule, UNREADABLE_KEYS,
};
use crate::written::{Text, request_authentication as written};

/// Default time limit of one request for keys: Istio's default.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Most rules of one resource: a thousand issuers are a lot already, and each is held by every proxy it is for.
const MAX_RULES: usize = 2_000;
/// Longest key set in bytes, the same as for one that is fetched: a few hundred keys.
pub(in crate::check) const MAX_KEY_SET_BYTES: usize = 256 * 1024;
/// Most places, audiences, claims of one rule, each.
const MAX_ENTRIES: usize = 100;
/// Longest name of a header, parameter, cookie or claim, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// Headers that say how a message is framed or where it goes: no claim may write them.
const RESERVED: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "cookie",
];

/// Always returns a resource: an invalid one keeps at least its target.
pub(in crate::check) fn request_authentication(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> RequestAuthentication {
    let written = written::RequestAuthentication::read(fields);
    if let Some(one) = written.rules.get(MAX_RULES) {
        let message = format!("a resource has at most {MAX_RULES} rules");
        report.error(codes::LIMIT, &one.at, message, "write several resources");
    }
    let rules = written.rules.iter().take(MAX_RULES);
    let mut rules: Vec<TokenRule> = rules.map(|rule| token_rule(rule, report)).collect();
    if let Some(spec) = &written.at
        && is_item_unread(
            &values::join(&spec.path, "jwtRules"),
            &written.rules,
            report,
        )
    {
        rules.push(TokenRule::unreadable(meta.source.clone()));
    }
    RequestAuthentication {
        target: target(&written.target, written.at.as_ref(), report),
        rules,
        name: meta.name,
        source: meta.source,
        created: meta.created,
    }
}

/// Returns true if an item of `list`, or all of it, is no rule at all.
fn is_item_unread(list: &str, rules: &[written::TokenRule], report: &Report) -> bool {
    report.failed_where(|field| {
        is_within(field, list) && !rules.iter().any(|rule| is_within(field, &rule.at.path))
    })
}

fn token_rule(written: &written::TokenRule, report: &Report) -> TokenRule {
    let issuer = written.issuer.as_ref().map_or("", |text| &*text.value);
    let keys = keys(written, issuer, report);
    let lists = [
        (&written.audiences, "an audience"),
        (&written.from_params, "a parameter"),
        (&written.from_cookies, "a cookie"),
        (&written.space_delimited_claims, "a claim"),
    ];
    let [audiences, from_params, from_cookies, space_delimited_claims] =
        lists.map(|(list, what)| texts(list, what, report));
    for cookie in &written.from_cookies {
        let is_token = cookie.value.bytes().all(is_token_byte);
        if !is_token && !cookie.value.is_empty() {
            report.bad(cookie, " as the name of a cookie", "");
        }
    }
    limit(written.from_headers.iter().map(|one| &one.at), report);
    limit(written.output_claims.iter().map(|one| &one.at), report);
    let places = written.from_headers.iter();
    let claims = written.output_claims.iter();
    let payload = written.output_payload_to_header.as_ref();
    let mut rule = TokenRule {
        source: report.source(&written.at),
        issuer: issuer.into(),
        audiences,
        keys: keys.unwrap_or_else(unreadable_keys),
        from_headers: places.filter_map(|one| place(one, report)).collect(),
        from_params,
        from_cookies,
        forward_original: written.forward_original.as_ref().is_some_and(|b| b.value),
        output_payload_to_header: payload.and_then(|name| written_header(name, report)),
        output_claims: claims.filter_map(|one| output(one, report)).collect(),
        space_delimited_claims,
        timeout: written
            .timeout
            .as_ref()
            .and_then(|text| timeout(text, report))
            .unwrap_or(DEFAULT_TIMEOUT),
        required: written
            .presence
            .as_ref()
            .is_some_and(|text| is_required(text, report)),
    };
    if report.failed_within(&written.at.path) {
        rule.keys = unreadable_keys();
    }
    rule
}

/// Keys of an invalid rule, which verify no token.
fn unreadable_keys() -> KeySource {
    KeySource::Inline(UNREADABLE_KEYS.into())
}

/// `presence`. One that cannot be read may be REQUIRED.
fn is_required(text: &Text, report: &Report) -> bool {
    let words = [("OPTIONAL", false), ("REQUIRED", true)];
    report.one_of(text, &words).unwrap_or(true)
}

/// The source of the keys: `jwks` or `jwksUri`, or else the issuer's address.
fn keys(written: &written::TokenRule, issuer: &str, report: &Report) -> Option<KeySource> {
    // Istio takes an empty text for one that is not there.
    let said = |text: &'_ Option<Text>| text.clone().filter(|text| !text.value.is_empty());
    match (said(&written.jwks), said(&written.jwks_uri)) {
        (Some(jwks), Some(_)) => {
            let message = "`jwks` and `jwksUri` exclude each other";
            report.error(codes::CONTRADICTION, &jwks.at, message, "keep one");
            None
        }
        (Some(jwks), None) => {
            if jwks.value.len() > MAX_KEY_SET_BYTES {
                let message = format!("a key set has at most {MAX_KEY_SET_BYTES} bytes");
                report.error(codes::LIMIT, &jwks.at, message, "");
                return None;
            }
            if issuer.is_empty() {
                // As Istio: only keys that are fetched may be those of any issuer.
                report.required(None::<()>, &written.at, "issuer");
            }
            Some(KeySource::Inline(jwks.value))
        }
        (None, Some(uri)) => {
            let help = "write http://HOST/PATH or https://HOST/PATH";
            report.parsed(&uri, "the address of a key set", address, help)?;
            Some(KeySource::Uri(uri.value))
        }
        (None, None) if issuer.is_empty() => {
            report.required(None::<()>, &written.at, "issuer");
            None
        }
        (None, None) => {
            let issuer = written.issuer.as_ref()?;
            let help = "write `jwks` or `jwksUri`; OpenID discovery needs an issuer that is an https:// address";
            report.parsed(issuer, "an issuer with OpenID discovery", address, help)?;
            Some(KeySource::Discovery)
        }
    }
}

/// An address of HTTP with a host: nothing else is ever fetched.
fn address(text: &str) -> Option<()> {
    const MAX_ADDRESS_BYTES: usize = 2048;
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"))?;
    let authority = rest.split(['/', '?']).next()?;
    let plain = text.bytes().all(|b| b.is_ascii_graphic()) && !text.contains('#');
    let host = !authority.is_empty() && !authority.starts_with(':') && !authority.contains('@');
    let port = match authority.rsplit_once(':') {
        Some((_, port)) if !port.ends_with(']') => port.parse().is_ok_and(|port: u16| port > 0),
        _ => true,
    };
    (plain && host && port && text.len() <= MAX_ADDRESS_BYTES).then_some(())
}

fn texts(list: &[Text], what: &str, report: &Report) -> Vec<Arc<str>> {
    limit(list.iter().map(|text| &text.at), report);
    let one = |text: &Text| {
        let good = !text.value.is_empty() && text.value.len() <= 2 * MAX_NAME_BYTES;
        if !good {
            report.bad(text, &format!(" as {what}"), "");
        }
        good.then(|| text.value.clone())
    };
    list.iter().filter_map(one).collect()
}

fn limit<'a>(mut entries: impl Iterator<Item = &'a FieldPath>, report: &Report) {
    if let Some(at) = entries.nth(MAX_ENTRIES) {
        let message = format!("a list of a rule has at most {MAX_ENTRIES} entries");
        report.error(codes::LIMIT, at, message, "");
    }
}

fn place(written: &written::HeaderPlace, report: &Report) -> Option<HeaderPlace> {
    let name = report.required(written.name.as_ref(), &written.at, "name")?;
    let prefix = written.prefix.as_ref();
    if let Some(text) = prefix
        && (text.value.len() > MAX_NAME_BYTES || text.value.chars().any(char::is_control))
    {
        report.bad(text, " before a token", "");
    }
    Some(HeaderPlace {
        name: header(name, report)?,
        prefix: prefix.map_or_else(|| "".into(), |text| text.value.clone()),
    })
}

fn output(written: &written::ClaimOutput, report: &Report) -> Option<ClaimOutput> {
    let name = report.required(written.header.as_ref(), &written.at, "header");
    let claim = report.required(written.claim.as_ref(), &written.at, "claim");
    let (name, claim) = (name?, claim?);
    if claim.value.is_empty() || claim.value.len() > 2 * MAX_NAME_BYTES {
        report.bad(claim, " as a claim", "");
        return None;
    }
    Some(ClaimOutput {
        header: written_header(name, report)?,
        claim: claim.value.clone(),
    })
}

/// The name of a header in lower case.
fn header(text: &Text, report: &Report) -> Option<Arc<str>> {
    let name = text.value.to_ascii_lowercase();
    let well_formed = !name.is_empty() && name.len() <= MAX_NAME_BYTES;
    if !well_formed || !name.bytes().all(is_token_byte) {
        let help = "letters, digits and `-`";
        report.bad(text, " as the name of a header", help);
        return None;
    }
    Some(name.into())
}

/// The name of a header that is written from a token.
fn written_header(text: &Text, report: &Report) -> Option<Arc<str>> {
    let name = header(text, report)?;
    if RESERVED.contains(&&*name) {
        let help =
            "this header controls the transport of the request; use another name such as x-token";
        report.bad(text, " as a header for claims", help);
        return None;
    }
    Some(name)
}

/// Bytes allowed in names of headers and cookies (RFC 9110 section 5.6.2).
pub(in crate::check) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn timeout(text: &Text, report: &Report) -> Option<Duration> {
    let duration = report.duration(text)?;
    // Go's durations below a millisecond are refused by Istio too.
    if duration < Duration::from_millis(1) {
        report.bad(text, " as a timeout", "write at least 1ms");
        return None;
    }
    Some(duration)
}
