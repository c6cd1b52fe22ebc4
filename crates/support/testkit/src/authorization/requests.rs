//! Random requests that own what `Facts` borrows.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value, json};
use voile_model::Identity;
use voile_policy::authorization::{HttpFacts, RequestFacts};
use voile_policy::claims::Claims;

use super::words::{
    CLAIM_VALUES, HEADER_VALUES, HEADERS, ISSUERS, METHODS, PORTS, SERVER_NAMES, SUBJECTS, V4, V6,
    host, path, principal,
};
use super::{Random, Scope};

/// A request, or a connection that is not HTTP.
#[derive(Debug, Clone)]
pub struct Sent {
    /// The peer's identity.
    pub source: Option<Identity>,
    /// The address of the direct peer.
    pub source_ip: IpAddr,
    /// The address of the original client.
    pub remote_ip: IpAddr,
    /// Where to.
    pub destination: SocketAddr,
    /// The server name of the handshake.
    pub sni: Option<String>,
    /// The request.
    pub http: Option<SentHttp>,
}

/// An HTTP request.
#[derive(Debug, Clone)]
pub struct SentHttp {
    /// `Host`.
    pub authority: String,
    /// The method.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// Other headers, some of them twice.
    pub headers: Vec<(String, String)>,
    /// The claims of its token.
    pub claims: Option<Claims>,
}

impl Sent {
    /// Facts that a proxy would know of it.
    pub fn facts(&self) -> RequestFacts<'_> {
        let http = self.http.as_ref().map(|http| HttpFacts {
            authority: Some(http.authority.as_bytes()),
            method: http.method.as_bytes(),
            path: http.path.as_bytes(),
            headers: &http.headers,
            claims: http.claims.as_ref(),
        });
        RequestFacts {
            source: self.source.as_ref(),
            source_ip: self.source_ip,
            remote_ip: self.remote_ip,
            destination: self.destination,
            sni: self.sni.as_deref(),
            http,
        }
    }
}

/// A random request.
///
/// # Panics
/// When the vocabulary holds what is no address or identity.
pub fn request(random: &mut Random, scope: Scope) -> Sent {
    let source = (!random.one_in(4)).then(|| {
        let identity = format!("spiffe://{}", principal(random));
        identity.parse().expect("the vocabulary has identities")
    });
    let address = |random: &mut Random| -> IpAddr {
        let words = match scope.ipv6 && random.one_in(3) {
            true => V6,
            false => V4,
        };
        random
            .of(words)
            .parse()
            .expect("the vocabulary has addresses")
    };
    let source_ip = address(random);
    let remote_ip = match random.one_in(2) {
        true => source_ip,
        false => address(random),
    };
    let destination = SocketAddr::new(address(random), random.of(PORTS));
    let sni = random
        .one_in(2)
        .then(|| (random.of(SERVER_NAMES)).to_owned());
    let http = (!scope.tcp || !random.one_in(5)).then(|| http(random));
    Sent {
        source,
        source_ip,
        remote_ip,
        destination,
        sni,
        http,
    }
}

fn http(random: &mut Random) -> SentHttp {
    let mut headers = Vec::new();
    for _ in 0..random.below(4) {
        let mut name = (random.of(HEADERS)).to_owned();
        if random.one_in(3) {
            name = name.to_ascii_uppercase();
        }
        headers.push((name, (random.of(HEADER_VALUES)).to_owned()));
    }
    SentHttp {
        authority: host(random),
        method: (random.of(METHODS)).to_owned(),
        path: path(random, true),
        headers,
        claims: (!random.one_in(3)).then(|| claims(random)),
    }
}

/// A claim's value: a text, a list, a number, an object.
fn claim(random: &mut Random) -> Value {
    match random.below(8) {
        0 => json!(7),
        1 => json!(["one", 7, random.of(CLAIM_VALUES)]),
        2 | 3 => json!([random.of(CLAIM_VALUES), random.of(CLAIM_VALUES)]),
        4 => json!([]),
        _ => json!(random.of(CLAIM_VALUES)),
    }
}

fn claims(random: &mut Random) -> Claims {
    let mut claims = Map::new();
    let mut put = |name: &str, value| {
        claims.insert(name.to_owned(), value);
    };
    if !random.one_in(8) {
        put("iss", json!(random.of(ISSUERS)));
    }
    if !random.one_in(8) {
        put("sub", json!(random.of(SUBJECTS)));
    }
    for name in ["aud", "azp", "groups", "flat[x]"] {
        if random.one_in(2) {
            put(name, claim(random));
        }
    }
    if random.one_in(2) {
        let inner = json!({ "b": claim(random), "c": { "d": claim(random) } });
        put("a", inner);
    }
    Claims::of(&claims).expect("a handful of claims")
}
