//! One random token: good for one of the rules, or wrong in one or more of the ways worth refusing.

use serde_json::{Map, Value, json};

use super::base64url;
use super::ring::{Ring, RingKey};
use super::rules::{AUDIENCES, DrawnRule};
use crate::authorization::Random;

/// Inputs of random tokens.
pub(super) struct Mint<'a> {
    pub(super) ring: &'a Ring,
    pub(super) rules: &'a [DrawnRule],
    /// Seconds since 1970.
    pub(super) now: u64,
}

/// Far from any edge that a slow machine could move: seconds inside and outside of a minute's skew.
const INSIDE: u64 = 20;
const OUTSIDE: u64 = 130;

impl Mint<'_> {
    /// A token for the rule with this number; what is odd about it is noted.
    pub(super) fn token(
        &self,
        random: &mut Random,
        rule: &DrawnRule,
        odd: &mut Vec<&'static str>,
    ) -> String {
        let claims = self.claims(random, rule, odd);
        let listed = random.of(&rule.listed.iter().collect::<Vec<_>>());
        let mut key = self.ring.key(listed.key);
        if random.one_in(12) {
            odd.push("another key");
            key = self.ring.key(random.below(self.ring.len()));
        }
        let mut algorithm = listed
            .algorithm
            .filter(|known| key.algorithms().contains(known))
            .unwrap_or_else(|| random.of(key.algorithms()));
        let confused: RingKey;
        match random.below(30) {
            0 => {
                odd.push("a public key as secret");
                (confused, algorithm) = (key.as_secret(), random.of(&["HS256", "HS384", "HS512"]));
                key = &confused;
            }
            1 => {
                odd.push("another algorithm");
                algorithm = random.of(&[
                    "none", "None", "HS256", "RS256", "RS512", "PS256", "ES256", "ES384", "EdDSA",
                    "RS1", "", "rs256", "ES256K",
                ]);
            }
            2 => {
                odd.push("another algorithm of the key");
                algorithm = random.of(key.algorithms());
            }
            _ => {}
        }
        if matches!(key, RingKey::Secret(_)) {
            odd.push("a secret");
        }
        let header = header(random, algorithm, listed.kid.as_deref(), odd);
        let mut payload = claims.to_string();
        if random.one_in(60) {
            odd.push("no claims");
            payload =
                (*random.of(&["[]", "null", "{", "\"x\"", "{\"iss\":\"c\"} x", ""])).to_owned();
        }
        let message = format!("{}.{}", base64url(header), base64url(&payload));
        let signature = key.sign(algorithm, message.as_bytes());
        finish(random, message, signature, odd)
    }

    fn claims(&self, random: &mut Random, rule: &DrawnRule, odd: &mut Vec<&'static str>) -> Value {
        let mut claims = Map::new();
        let other = random.below(self.rules.len());
        match random.below(40) {
            0 => odd.push("no issuer"),
            1 => drop(claims.insert("iss".to_owned(), json!("nobody"))),
            2 => drop(claims.insert("iss".to_owned(), json!(7))),
            3 => drop(claims.insert("iss".to_owned(), json!(&*self.rules[other].rule.issuer))),
            _ => drop(claims.insert("iss".to_owned(), json!(&*rule.rule.issuer))),
        }
        let mut put = |name: &str, value: Value| drop(claims.insert(name.to_owned(), value));
        match random.below(30) {
            0 => {}
            1 => put("sub", json!("")),
            2 => put("sub", json!(7)),
            _ => put("sub", json!(random.of(&["user", "admin", "*"]))),
        }
        if let Some(audience) = audience(random, rule) {
            put("aud", audience);
        }
        for name in ["exp", "nbf", "iat"] {
            if let Some(time) = self.time(random, name, odd) {
                put(name, time);
            }
        }
        for name in ["jti", "azp"] {
            match random.below(24) {
                0 => put(name, json!(7)),
                1..=6 => put(name, json!("some")),
                _ => {}
            }
        }
        for name in ["scope", "permission", "roles", "groups"] {
            if random.one_in(2) {
                put(name, blanks(random));
            }
        }
        others(random, &mut put);
        claims.into()
    }

    /// A time that is fine, one that is not, or one that is no time; none most often but for `exp`.
    fn time(&self, random: &mut Random, name: &str, odd: &mut Vec<&'static str>) -> Option<Value> {
        let past = name != "exp";
        if past && !random.one_in(4) {
            return None;
        }
        let (fine, skewed, wrong) = match past {
            true => (self.now - OUTSIDE, self.now + INSIDE, self.now + OUTSIDE),
            false => (self.now + OUTSIDE, self.now - INSIDE, self.now - OUTSIDE),
        };
        Some(match random.below(30) {
            0..=1 => json!(skewed),
            2..=3 => {
                odd.push("not now");
                json!(wrong)
            }
            4 => {
                odd.push("an odd time");
                random.of_values(&[
                    json!("soon"),
                    json!(-1),
                    json!(0),
                    json!(1e19),
                    json!(fine.to_string()),
                    json!(null),
                    json!([fine]),
                    json!(1.8e19),
                ])
            }
            5 => json!(fine as f64 + 0.5),
            6 if !past => return None,
            _ => json!(fine),
        })
    }
}

/// Values are not `Copy`.
trait OfValues {
    fn of_values(&mut self, all: &[Value]) -> Value;
}

impl OfValues for Random {
    fn of_values(&mut self, all: &[Value]) -> Value {
        all[self.below(all.len())].clone()
    }
}

fn audience(random: &mut Random, rule: &DrawnRule) -> Option<Value> {
    let known: Vec<&str> = rule.rule.audiences.iter().map(AsRef::as_ref).collect();
    let one = |random: &mut Random| match known.is_empty() || random.one_in(6) {
        true => random.of(AUDIENCES).to_owned(),
        false => random.of(&known).to_owned(),
    };
    match random.below(16) {
        0 => None,
        1 if known.is_empty() => None,
        2 => Some(random.of_values(&[
            json!(7),
            json!(["api", 7]),
            json!([]),
            json!({}),
            json!(null),
        ])),
        3 => {
            // The same without or with a scheme and a slash.
            let one = one(random);
            let bare = one
                .trim_start_matches("https://")
                .trim_end_matches('/')
                .to_owned();
            Some(json!(random.of_values(&[
                json!(bare),
                json!(format!("http://{bare}")),
                json!(format!("{bare}/")),
                json!(bare.to_ascii_uppercase()),
            ])))
        }
        4..=7 => Some(json!([one(random), one(random)])),
        _ => Some(json!(one(random))),
    }
}

/// A claim that may be a list written with blanks.
fn blanks(random: &mut Random) -> Value {
    random.of_values(&[
        json!("admin user"),
        json!("admin"),
        json!(" admin  user "),
        json!(""),
        json!("admin\tuser"),
        json!(["admin", "user"]),
        json!(["admin user"]),
        json!(7),
    ])
}

/// Claims of every kind that a header may be made of.
fn others(random: &mut Random, put: &mut impl FnMut(&str, Value)) {
    let all = [
        ("a", json!({ "b": "two words", "c": { "d": [1, "x"] } })),
        ("a", json!("flat")),
        ("dotted.name", json!("x")),
        ("yes", json!(true)),
        ("no", json!(false)),
        ("count", json!(7)),
        ("ratio", json!(0.25)),
        ("huge", json!(9_007_199_254_740_991_u64)),
        ("negative", json!(-3)),
        ("nothing", json!(null)),
        ("unicode", json!("ü€")),
        ("empty", json!("")),
        ("a", json!({ "b": 3, "c": { "d": true } })),
        ("a", json!({ "b": -1.5, "c": {} })),
    ];
    for (name, value) in all {
        if random.one_in(3) {
            put(name, value);
        }
    }
}

fn header(
    random: &mut Random,
    algorithm: &str,
    kid: Option<&str>,
    odd: &mut Vec<&'static str>,
) -> String {
    let mut header = json!({ "alg": algorithm });
    if random.one_in(2) {
        header["typ"] = json!(random.of(&["JWT", "at+jwt", "x"]));
    }
    if let Some(kid) = kid.filter(|_| !random.one_in(10)) {
        header["kid"] = json!(kid);
    }
    match random.below(80) {
        0..=4 => {
            odd.push("another kid");
            header["kid"] = json!(random.of(&["key-0", "key-1", "unknown"]));
        }
        5 => header["kid"] = json!(""),
        6 => {
            odd.push("no text as kid");
            header["kid"] = json!(7);
        }
        7 => {
            odd.push("crit");
            (header["crit"], header["exp"]) = (json!(["exp"]), json!(7));
        }
        8 => {
            odd.push("crit");
            (header["crit"], header["b64"]) = (json!(["b64"]), json!(false));
        }
        9 => {
            odd.push("no text as alg");
            header["alg"] = json!(7);
        }
        10 => {
            odd.push("no alg");
            header = json!({ "typ": "JWT" });
        }
        11 => {
            odd.push("twice the same name");
            return format!("{{\"alg\":\"none\",\"alg\":\"{algorithm}\"}}");
        }
        12 => {
            odd.push("no header");
            return (*random.of(&["[]", "", "{", "null"])).to_owned();
        }
        _ => {}
    }
    header.to_string()
}

/// The whole token, its signature or its form spoilt now and then.
fn finish(
    random: &mut Random,
    message: String,
    mut signature: Vec<u8>,
    odd: &mut Vec<&'static str>,
) -> String {
    let spoilt = random.below(100);
    if spoilt < 4 {
        odd.push("a spoilt signature");
    } else if spoilt < 10 {
        odd.push("a spoilt form");
    }
    let last = signature.len() - 1;
    match spoilt {
        0 => signature[last / 2] ^= 1,
        1 => signature.truncate(last),
        2 => signature.push(0),
        3 => signature.clear(),
        _ => {}
    }
    let signature = base64url(signature);
    let whole = format!("{message}.{signature}");
    match spoilt {
        4 => format!("{whole}="),
        5 => format!("{whole}."),
        6 => format!(".{whole}"),
        7 => whole.replacen('.', "..", 1),
        8 => message,
        9 => (*random.of(&[
            "x",
            "a.b.c",
            "....",
            "e30.e30.e30",
            "eyJhbGciOiJub25lIn0.e30.",
        ]))
        .to_owned(),
        _ => whole,
    }
}
