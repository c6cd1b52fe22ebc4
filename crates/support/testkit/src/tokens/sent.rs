//! Random requests that carry tokens.

use super::ring::Ring;
use super::rules::{COOKIES, DrawnRule, HEADERS, OUTPUTS, PARAMS, Place};
use super::token::Mint;
use crate::authorization::Random;

/// A request with tokens in it.
#[derive(Debug, Clone)]
pub struct Carrying {
    /// The method.
    pub method: &'static str,
    /// The path and its query.
    pub target: String,
    /// Header lines without `host`.
    pub headers: Vec<(String, String)>,
    /// Oddities of the request, for the reader of a difference.
    pub odd: Vec<&'static str>,
}

/// A random request for a workload with these rules, at this time in seconds since 1970.
pub fn carrying(random: &mut Random, ring: &Ring, rules: &[DrawnRule], now: u64) -> Carrying {
    let mint = Mint { ring, rules, now };
    let mut sent = Carrying {
        method: "GET",
        target: random.of(&["/", "/a", "/a/b"]).to_owned(),
        headers: Vec::new(),
        odd: Vec::new(),
    };
    let mut query = Vec::new();
    let mut cookies = Vec::new();
    if random.one_in(3) {
        query.push(random.of(&["x=1", "q=a%20b", "y"]).to_owned());
    }
    if random.one_in(5) {
        cookies.push(random.of(&["theme=dark", "a=b", "lone"]).to_owned());
    }
    for number in 0..random.of(&[0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3]) {
        if number > 0 {
            sent.odd.push("another token");
        }
        let rule = &rules[random.below(rules.len())];
        let token = mint.token(random, rule, &mut sent.odd);
        let place = place(random, rule, rules, &mut sent.odd);
        carry(random, &mut sent, (&mut query, &mut cookies), &place, token);
    }
    if twice(PARAMS, &query) || twice(COOKIES, &cookies) {
        sent.odd.push("the same place twice");
    }
    if random.one_in(12) && cookies.len() > 1 {
        // Cookies may come in several lines.
        let rest = cookies.split_off(1);
        sent.headers.push(("cookie".to_owned(), rest.join(";")));
    }
    others(random, &mut sent, &mut query, &mut cookies);
    if !query.is_empty() {
        sent.target = format!("{}?{}", sent.target, query.join("&"));
    }
    if !cookies.is_empty() {
        sent.headers.push(("cookie".to_owned(), cookies.join("; ")));
    }
    sent
}

/// Returns true if two pairs have one of these names.
fn twice(names: &[&str], pairs: &[String]) -> bool {
    names.iter().any(|name| {
        let named = pairs
            .iter()
            .filter(|pair| pair.split('=').next() == Some(name));
        named.count() > 1
    })
}

/// One of the rule's places most often.
fn place(
    random: &mut Random,
    rule: &DrawnRule,
    rules: &[DrawnRule],
    odd: &mut Vec<&'static str>,
) -> Place {
    let of = |random: &mut Random, rule: &DrawnRule| {
        let places = rule.places();
        places[random.below(places.len())].clone()
    };
    match random.below(16) {
        0 => {
            let (name, prefix) = random.of(HEADERS);
            odd.push("any header");
            Place::Header(name.to_owned(), prefix.to_owned())
        }
        1 => {
            odd.push("any parameter");
            Place::Param(random.of(PARAMS).to_owned())
        }
        2 => {
            odd.push("any cookie");
            Place::Cookie(random.of(COOKIES).to_owned())
        }
        3 => {
            let other = random.below(rules.len());
            of(random, &rules[other])
        }
        _ => of(random, rule),
    }
}

/// Puts a token where it belongs, in a way that is odd now and then.
fn carry(
    random: &mut Random,
    sent: &mut Carrying,
    (query, cookies): (&mut Vec<String>, &mut Vec<String>),
    place: &Place,
    token: String,
) {
    let way = random.below(60);
    let odd = match place {
        Place::Header(name, prefix) => {
            let (value, odd) = match way {
                0 => (format!("{prefix}  {token}"), "more blanks"),
                1 => (
                    format!("{}{token}", prefix.to_ascii_lowercase()),
                    "prefix in lower case",
                ),
                2 => (format!("x {prefix}{token}"), "words before the prefix"),
                3 => (token.clone(), "no prefix"),
                4 => (format!("{prefix}{token}, x"), "words after the token"),
                5 => (format!("{prefix}{token} "), "blanks at the end"),
                6 => ((*prefix).trim().to_owned(), "no token behind the prefix"),
                7 => (format!("{prefix},{token}"), "a comma before the token"),
                _ => (format!("{prefix}{token}"), ""),
            };
            let name = match random.one_in(3) {
                true => name.to_ascii_uppercase(),
                false => name.clone(),
            };
            if way == 8 {
                sent.headers.push((name.clone(), value.clone()));
            }
            sent.headers.push((name, value));
            if way == 8 { "twice the same line" } else { odd }
        }
        Place::Param(name) => {
            let (value, odd) = match way {
                0 => (token.replacen('.', "%2E", 1), "a dot in percents"),
                1 => (format!("{token}%20"), "a blank behind the token"),
                2 => (String::new(), "an empty parameter"),
                3 => (token.replacen('.', "+", 1), "a plus for a dot"),
                _ => (token, ""),
            };
            if way == 5 {
                query.push(format!("{name}=x"));
            }
            query.push(format!("{name}={value}"));
            if way == 6 {
                query.push(format!("{name}=x"));
            }
            if matches!(way, 5 | 6) {
                "twice the same parameter"
            } else {
                odd
            }
        }
        Place::Cookie(name) => {
            let (value, odd) = match way {
                0 => (format!("\"{token}\""), "a cookie in quotes"),
                1 => (String::new(), "an empty cookie"),
                _ => (token, ""),
            };
            if way == 2 {
                cookies.push(format!("{name}=x"));
            }
            cookies.push(format!("{name}={value}"));
            if way == 3 {
                cookies.push(format!("{name}=x"));
            }
            odd
        }
    };
    if !odd.is_empty() {
        sent.odd.push(odd);
    }
}

/// Adds other parts of the request: forged output, preflights of browsers, more of the query.
fn others(
    random: &mut Random,
    sent: &mut Carrying,
    query: &mut Vec<String>,
    cookies: &mut Vec<String>,
) {
    if random.one_in(6) {
        let name = random.of(OUTPUTS).to_owned();
        sent.headers.push((name, "forged".to_owned()));
    }
    if random.one_in(8) {
        sent.headers.push(("x-other".to_owned(), "kept".to_owned()));
    }
    if random.one_in(6) {
        query.push(random.of(&["z=2", "z", "=", "%61=b"]).to_owned());
    }
    if random.one_in(8) {
        cookies.push("last=1".to_owned());
    }
    let browser = random.below(60);
    if browser < 4 {
        sent.method = "OPTIONS";
    }
    if matches!(browser, 0..=1 | 4) {
        sent.odd.push("origin");
        sent.headers
            .push(("origin".to_owned(), "https://site.example".to_owned()));
    }
    if matches!(browser, 0 | 2 | 4) {
        sent.odd.push("preflight");
        sent.headers
            .push(("access-control-request-method".to_owned(), "GET".to_owned()));
    }
}
