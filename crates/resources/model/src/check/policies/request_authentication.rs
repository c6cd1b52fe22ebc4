//! Check of RequestAuthentication. It refuses everything that Istio refuses. It also refuses two settings that Istio
//! accepts silently: rules that never verify a token (an issuer without findable keys), and claims that would rewrite
//! the request's framing.

use std::sync::Arc;
use std::time::Duration;

use crate::check::authorization::TargetFields;
use crate::check::values::Meta;
use crate::codes;
use crate::decode::{Cursor, FieldPath, Fields, Report, Text, is_within};
use crate::mesh::authorization::PolicyTarget;
use crate::mesh::request_authentication::{
    ClaimOutput, HeaderPlace, KeySource, RequestAuthentication, TokenRule, UNREADABLE_KEYS,
};
use crate::source::Source;

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
) -> RequestAuthentication {
    fields.ignore(&["status"]);
    let written = fields.mapping("spec", |spec| {
        let target = TargetFields::of(spec);
        let rules = spec.get("jwtRules");
        let rules = rules.map(|list| token_rules(&list, &meta.source));
        (target, rules.unwrap_or_default())
    });
    let (target, rules) = written.unzip();
    RequestAuthentication {
        target: target.map_or(PolicyTarget::Everything, |target| target.policy_target()),
        rules: rules.unwrap_or_default(),
        name: meta.name,
        source: meta.source,
        created: meta.created,
    }
}

fn token_rules(list: &Cursor<'_>, source: &Source) -> Vec<TokenRule> {
    let report = list.report();
    let items = list.items();
    let read = items.iter().filter_map(|item| {
        let mut rule = item.mapping(token_rule)?;
        if report.failed_within(&item.at().path) {
            rule.keys = unreadable_keys();
        }
        Some((item.at(), rule))
    });
    let read: Vec<(&FieldPath, TokenRule)> = read.collect();
    if let Some((at, _)) = read.get(MAX_RULES) {
        let message = format!("a resource has at most {MAX_RULES} rules");
        report.error(codes::LIMIT, at, message, "write several resources");
    }
    // An item of the list, or all of it, is no rule at all.
    let unread = report.failed_where(|field| {
        is_within(field, &list.at().path) && !read.iter().any(|(at, _)| is_within(field, &at.path))
    });
    let rules = read.into_iter().map(|(_, rule)| rule).take(MAX_RULES);
    let unreadable = unread.then(|| TokenRule::unreadable(source.clone()));
    rules.chain(unreadable).collect()
}

fn token_rule(fields: &mut Fields<'_>) -> TokenRule {
    let report = fields.report();
    let issuer = fields.text("issuer");
    let keys = keys(fields, issuer.as_ref());
    let from_cookies = fields.texts("fromCookies");
    for cookie in &from_cookies {
        let is_token = cookie.value.bytes().all(is_token_byte);
        if !is_token && !cookie.value.is_empty() {
            report.bad(cookie, " as the name of a cookie", "");
        }
    }
    let payload = fields.text("outputPayloadToHeader");
    let limit = fields.text("timeout");
    let presence = fields.text("presence");
    TokenRule {
        source: report.source(fields.at()),
        issuer: issuer.map_or_else(|| "".into(), |text| text.value),
        audiences: texts(&fields.texts("audiences"), "an audience", report),
        keys: keys.unwrap_or_else(unreadable_keys),
        from_headers: at_most(fields, "fromHeaders", place),
        from_params: texts(&fields.texts("fromParams"), "a parameter", report),
        from_cookies: texts(&from_cookies, "a cookie", report),
        forward_original: fields.flag("forwardOriginalToken"),
        output_payload_to_header: payload.and_then(|name| written_header(&name, report)),
        output_claims: at_most(fields, "outputClaimToHeaders", output),
        space_delimited_claims: texts(&fields.texts("spaceDelimitedClaims"), "a claim", report),
        timeout: limit
            .and_then(|text| timeout(&text, report))
            .unwrap_or(DEFAULT_TIMEOUT),
        required: presence.is_some_and(|text| is_required(&text, report)),
    }
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
fn keys(fields: &mut Fields<'_>, issuer: Option<&Text>) -> Option<KeySource> {
    let report = fields.report();
    // Istio takes an empty text for one that is not there.
    let mut said = |name| fields.text(name).filter(|text| !text.value.is_empty());
    let (jwks, uri) = (said("jwks"), said("jwksUri"));
    let issuer = issuer.filter(|text| !text.value.is_empty());
    match (jwks, uri) {
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
            if issuer.is_none() {
                // As Istio: only keys that are fetched may be those of any issuer.
                report.required(None::<()>, fields.at(), "issuer");
            }
            Some(KeySource::Inline(jwks.value))
        }
        (None, Some(uri)) => {
            let help = "write http://HOST/PATH or https://HOST/PATH";
            report.parsed(&uri, "the address of a key set", address, help)?;
            Some(KeySource::Uri(uri.value))
        }
        (None, None) if issuer.is_none() => {
            report.required(None::<()>, fields.at(), "issuer");
            None
        }
        (None, None) => {
            let help = "write `jwks` or `jwksUri`; OpenID discovery needs an issuer that is an https:// address";
            report.parsed(issuer?, "an issuer with OpenID discovery", address, help)?;
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

/// A list of mappings.
fn at_most<T>(
    fields: &mut Fields<'_>,
    name: &'static str,
    read: impl Fn(&mut Fields<'_>) -> Option<T>,
) -> Vec<T> {
    let report = fields.report();
    let entries = fields.mappings(name, |fields| Some((fields.at().clone(), read(fields))));
    limit(entries.iter().map(|(at, _)| at), report);
    entries.into_iter().filter_map(|(_, entry)| entry).collect()
}

fn place(fields: &mut Fields<'_>) -> Option<HeaderPlace> {
    let report = fields.report();
    let name = report.required(fields.text("name"), fields.at(), "name");
    let prefix = fields.text("prefix");
    let name = name?;
    if let Some(text) = &prefix
        && (text.value.len() > MAX_NAME_BYTES || text.value.chars().any(char::is_control))
    {
        report.bad(text, " before a token", "");
    }
    Some(HeaderPlace {
        name: header(&name, report)?,
        prefix: prefix.map_or_else(|| "".into(), |text| text.value),
    })
}

fn output(fields: &mut Fields<'_>) -> Option<ClaimOutput> {
    let report = fields.report();
    let name = report.required(fields.text("header"), fields.at(), "header");
    let claim = report.required(fields.text("claim"), fields.at(), "claim");
    let (name, claim) = (name?, claim?);
    if claim.value.is_empty() || claim.value.len() > 2 * MAX_NAME_BYTES {
        report.bad(&claim, " as a claim", "");
        return None;
    }
    Some(ClaimOutput {
        header: written_header(&name, report)?,
        claim: claim.value,
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
