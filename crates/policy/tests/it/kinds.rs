//! Policies of one kind in any number, with requests that hit the first, the last, or none: texts are as long among ten as
//! among ten thousand, so that costs can be compared.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde_json::{Map, Value, json};
use voile_model::Identity;
use voile_policy::authorization::{Action, Attribute, Facts, Http, Policy, PolicyName, Rule, Term};

/// What all rules of a set are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Path,
    PathPrefix,
    PathSuffix,
    PathTemplate,
    NotPath,
    Host,
    Method,
    Principal,
    Namespace,
    ServiceAccount,
    TrustDomain,
    SourceIp,
    RemoteIp,
    RequestPrincipal,
    Audience,
    Claim,
    HeaderValue,
    HeaderName,
    Sni,
    /// From, to and when, of several kinds each.
    Mixed,
}

/// All of them.
pub(crate) const KINDS: &[Kind] = &[
    Kind::Path,
    Kind::PathPrefix,
    Kind::PathSuffix,
    Kind::PathTemplate,
    Kind::NotPath,
    Kind::Host,
    Kind::Method,
    Kind::Principal,
    Kind::Namespace,
    Kind::ServiceAccount,
    Kind::TrustDomain,
    Kind::SourceIp,
    Kind::RemoteIp,
    Kind::RequestPrincipal,
    Kind::Audience,
    Kind::Claim,
    Kind::HeaderValue,
    Kind::HeaderName,
    Kind::Sni,
    Kind::Mixed,
];

fn address(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + number as u32)
}

fn term(attribute: Attribute, any: &str) -> Term {
    Term::parse(attribute, "shop", &[any], &[]).expect("good values")
}

impl Kind {
    fn rule(self, number: usize) -> Rule {
        let n = format!("{number:05}");
        let from = |attribute, any: String| Rule {
            from: vec![vec![term(attribute, &any)]],
            ..Rule::default()
        };
        let to = |attribute, any: String| Rule {
            to: vec![vec![term(attribute, &any)]],
            ..Rule::default()
        };
        let when = |attribute, any: String| Rule {
            when: vec![term(attribute, &any)],
            ..Rule::default()
        };
        match self {
            Self::Path => to(Attribute::Path, format!("/api/v1/resources/{n}")),
            Self::PathPrefix => to(Attribute::Path, format!("/api/v1/resources/{n}*")),
            Self::PathSuffix => to(Attribute::Path, format!("*/resources/{n}")),
            Self::PathTemplate => to(Attribute::Path, format!("/api/{{*}}/resources/{n}")),
            Self::NotPath => {
                let none = [format!("/api/v1/resources/{n}"), "/none".to_owned()];
                let term = Term::parse(Attribute::Path, "shop", &[], &none).expect("good values");
                Rule {
                    to: vec![vec![term]],
                    ..Rule::default()
                }
            }
            Self::Host => to(Attribute::Host, format!("h{n}.example.com")),
            Self::Method => to(Attribute::Method, format!("M{n}")),
            Self::Principal => from(
                Attribute::SourcePrincipal,
                format!("cluster.local/ns/shop/sa/a{n}"),
            ),
            Self::Namespace => from(Attribute::SourceNamespace, format!("n{n}")),
            Self::ServiceAccount => from(Attribute::SourceServiceAccount, format!("shop/a{n}")),
            Self::TrustDomain => from(Attribute::SourceTrustDomain, format!("td{n}.example")),
            Self::SourceIp => from(Attribute::SourceIp, address(number).to_string()),
            Self::RemoteIp => from(Attribute::RemoteIp, address(number).to_string()),
            Self::RequestPrincipal => from(
                Attribute::RequestPrincipal,
                format!("https://issuer.example/u{n}"),
            ),
            Self::Audience => when(Attribute::RequestAudiences, format!("aud{n}")),
            Self::Claim => when(
                Attribute::RequestClaim(["groups".into()].into()),
                format!("g{n}"),
            ),
            Self::HeaderValue => when(Attribute::RequestHeader("x-tenant".into()), format!("t{n}")),
            Self::HeaderName => when(
                Attribute::RequestHeader(format!("x-h{n}").into()),
                "yes".into(),
            ),
            Self::Sni => when(Attribute::Sni, format!("s{n}.example.com")),
            Self::Mixed => mixed(number),
        }
    }

    /// So many rules of this kind, in so many policies.
    pub(crate) fn policies(self, rules: usize, policies: usize, action: &Action) -> Vec<Policy> {
        let all: Vec<Rule> = (0..rules).map(|number| self.rule(number)).collect();
        let chunks = all.chunks(rules.div_ceil(policies));
        let policy = |(number, rules): (usize, &[Rule])| Policy {
            name: PolicyName {
                namespace: "shop".into(),
                name: format!("p{number}").into(),
            },
            origin: None,
            action: action.clone(),
            dry_run: false,
            rules: rules.to_vec(),
        };
        chunks.enumerate().map(policy).collect()
    }

    /// A request that the rule of that number matches; any other for `None`.
    pub(crate) fn request(self, number: Option<usize>) -> Request {
        let mut request = Request::new(self, number.unwrap_or(99_999));
        if self == Self::NotPath {
            request.path = match number {
                Some(_) => "/api/v1/resources/99999".to_owned(),
                None => "/none".to_owned(),
            };
        }
        request
    }
}

/// Sources of three kinds, operations of three, conditions of three, and excluded paths.
fn mixed(number: usize) -> Rule {
    let n = format!("{number:05}");
    let source = match number % 3 {
        0 => term(
            Attribute::SourcePrincipal,
            &format!("cluster.local/ns/shop/sa/a{n}"),
        ),
        1 => term(Attribute::SourceNamespace, "n99999"),
        _ => term(Attribute::SourceIp, "10.0.0.0/8"),
    };
    let path = match number % 4 {
        0 => format!("/api/v1/resources/{n}"),
        1 => format!("/api/v1/resources/{n}*"),
        2 => format!("/api/{{*}}/resources/{n}"),
        _ => format!("*/resources/{n}"),
    };
    let mut operation = vec![term(Attribute::Path, &path)];
    if number.is_multiple_of(2) {
        operation.push(term(Attribute::Method, "GET"));
    }
    let none = ["/api/v1/resources/none"];
    let condition = match number % 5 {
        0 => term(
            Attribute::RequestHeader("x-tenant".into()),
            &format!("t{n}"),
        ),
        1 => term(
            Attribute::RequestClaim(["groups".into()].into()),
            &format!("g{n}"),
        ),
        2 => Term::parse(Attribute::Path, "shop", &[], &none).expect("good values"),
        _ => term(Attribute::Sni, "*.example.com"),
    };
    Rule {
        from: vec![vec![source]],
        to: vec![operation],
        when: vec![condition],
    }
}

/// A request with a value of every kind; those of the others match no rule.
pub(crate) struct Request {
    source: Identity,
    source_ip: IpAddr,
    sni: String,
    host: String,
    method: String,
    pub(crate) path: String,
    headers: Vec<(String, String)>,
    claims: Map<String, Value>,
}

impl Request {
    fn new(kind: Kind, number: usize) -> Self {
        let n = format!("{number:05}");
        let domain = match kind {
            Kind::TrustDomain => format!("td{n}.example"),
            _ => "cluster.local".to_owned(),
        };
        let namespace = match kind {
            Kind::Namespace => format!("n{n}"),
            Kind::Mixed if number % 3 == 1 => "n99999".to_owned(),
            _ => "shop".to_owned(),
        };
        let source = format!("spiffe://{domain}/ns/{namespace}/sa/a{n}");
        let method = match kind {
            Kind::Method => format!("M{n}"),
            _ => "GET".to_owned(),
        };
        let Value::Object(claims) = json!({
            "iss": "https://issuer.example",
            "sub": format!("u{n}"),
            "aud": ["other", format!("aud{n}")],
            "groups": ["all", format!("g{n}")],
        }) else {
            unreachable!("an object")
        };
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Self {
            source: source.parse().expect("an identity"),
            source_ip: address(number).into(),
            sni: format!("s{n}.example.com"),
            host: format!("h{n}.example.com"),
            method,
            path: format!("/api/v1/resources/{n}"),
            headers: vec![
                header("user-agent", "curl/8.5.0"),
                header("accept", "*/*"),
                header("x-request-id", "7e0d3f4c-9ad4-4a0e-8a9f-3d61a9f7c1b2"),
                header("x-tenant", &format!("t{n}")),
                header(&format!("X-H{n}"), "yes"),
            ],
            claims,
        }
    }

    /// As the engine is asked.
    pub(crate) fn facts(&self) -> Facts<'_> {
        Facts {
            source: Some(&self.source),
            source_ip: self.source_ip,
            remote_ip: self.source_ip,
            destination: SocketAddr::from(([10, 9, 9, 9], 8080)),
            sni: Some(&self.sni),
            http: Some(Http {
                authority: Some(self.host.as_bytes()),
                method: self.method.as_bytes(),
                path: self.path.as_bytes(),
                headers: &self.headers,
                claims: Some(&self.claims),
            }),
        }
    }
}
