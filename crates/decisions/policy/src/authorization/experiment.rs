//! Policies for measurements of the cost of decisions: any number of one kind, with requests that hit a chosen rule or
//! none. Texts have the same length among ten and among ten thousand rules, so that costs can be compared.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::claims::Claims;
use serde_json::json;
use voile_model::Identity;

use super::attribute::Attribute;
use super::facts::{HttpFacts, RequestFacts};
use super::policy::{Action, Policy, PolicyName, PolicyRule, Term};

/// The kind of condition that all rules of a generated set use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuleShape {
    /// Whole paths.
    Path,
    /// Paths that end with a star.
    PathPrefix,
    /// Paths that begin with one.
    PathSuffix,
    /// Paths with `{*}`.
    PathTemplate,
    /// `notPaths`, nothing else.
    NotPath,
    /// Hosts.
    Host,
    /// Methods.
    Method,
    /// Ports; there are 65,535.
    Port,
    /// Principals of peers.
    Principal,
    /// Their namespaces.
    Namespace,
    /// Their service accounts.
    ServiceAccount,
    /// Their trust domains.
    TrustDomain,
    /// Addresses of peers.
    SourceIp,
    /// Addresses of first clients.
    RemoteIp,
    /// Issuer and subject of tokens.
    RequestPrincipal,
    /// Audiences of tokens.
    Audience,
    /// Values of one claim.
    Claim,
    /// One value of claims of so many names.
    ClaimName,
    /// Values of one header.
    HeaderValue,
    /// One value of headers of so many names.
    HeaderName,
    /// The presence of headers of so many names.
    HeaderPresent,
    /// Server names.
    Sni,
    /// From, to and when, of several kinds each.
    Mixed,
}

fn address(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + number as u32)
}

fn port(number: usize) -> u16 {
    1 + (number % 65_535) as u16
}

fn term(attribute: Attribute, any: &str) -> Term {
    Term::parse(attribute, "shop", &[any], &[]).expect("invariant: a good value of its attribute")
}

fn excluding(paths: &[&str]) -> Term {
    let term = Term::parse(Attribute::Path, "shop", &[], paths);
    term.expect("invariant: good paths")
}

impl RuleShape {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Path,
        Self::PathPrefix,
        Self::PathSuffix,
        Self::PathTemplate,
        Self::NotPath,
        Self::Host,
        Self::Method,
        Self::Port,
        Self::Principal,
        Self::Namespace,
        Self::ServiceAccount,
        Self::TrustDomain,
        Self::SourceIp,
        Self::RemoteIp,
        Self::RequestPrincipal,
        Self::Audience,
        Self::Claim,
        Self::ClaimName,
        Self::HeaderValue,
        Self::HeaderName,
        Self::HeaderPresent,
        Self::Sni,
        Self::Mixed,
    ];

    /// In tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Path => "paths",
            Self::PathPrefix => "path-prefixes",
            Self::PathSuffix => "path-suffixes",
            Self::PathTemplate => "path-templates",
            Self::NotPath => "not-paths",
            Self::Host => "hosts",
            Self::Method => "methods",
            Self::Port => "ports",
            Self::Principal => "principals",
            Self::Namespace => "namespaces",
            Self::ServiceAccount => "service-accounts",
            Self::TrustDomain => "trust-domains",
            Self::SourceIp => "source-ips",
            Self::RemoteIp => "remote-ips",
            Self::RequestPrincipal => "request-principals",
            Self::Audience => "audiences",
            Self::Claim => "claim-values",
            Self::ClaimName => "claim-names",
            Self::HeaderValue => "header-values",
            Self::HeaderName => "header-names",
            Self::HeaderPresent => "headers-present",
            Self::Sni => "server-names",
            Self::Mixed => "mixed",
        }
    }

    fn rule(self, number: usize) -> PolicyRule {
        let mut rule = PolicyRule::default();
        match self {
            Self::NotPath => {
                let own = format!("/api/v1/resources/{number:05}");
                rule.to = vec![vec![excluding(&[&own, "/none"])]];
            }
            Self::Mixed => rule = mixed(number),
            _ => {
                let (attribute, value) = self.asked(number);
                let term = term(attribute, &value);
                match term.attribute {
                    Attribute::Path
                    | Attribute::Host
                    | Attribute::Method
                    | Attribute::DestinationPort => rule.to = vec![vec![term]],
                    Attribute::RequestAudiences
                    | Attribute::RequestClaim(_)
                    | Attribute::RequestHeader(_)
                    | Attribute::Sni => rule.when = vec![term],
                    _ => rule.from = vec![vec![term]],
                }
            }
        }
        rule
    }

    /// The attribute that rule `number` tests, and the value it requires.
    fn asked(self, number: usize) -> (Attribute, String) {
        let n = format!("{number:05}");
        let header = |name: &str| Attribute::RequestHeader(name.into());
        let claim = |name: &str| Attribute::RequestClaim([name.into()].into());
        match self {
            Self::Path | Self::NotPath | Self::Mixed => {
                (Attribute::Path, format!("/api/v1/resources/{n}"))
            }
            Self::PathPrefix => (Attribute::Path, format!("/api/v1/resources/{n}*")),
            Self::PathSuffix => (Attribute::Path, format!("*/resources/{n}")),
            Self::PathTemplate => (Attribute::Path, format!("/api/{{*}}/resources/{n}")),
            Self::Host => (Attribute::Host, format!("h{n}.example.com")),
            Self::Method => (Attribute::Method, format!("M{n}")),
            Self::Port => (Attribute::DestinationPort, port(number).to_string()),
            Self::Principal => {
                let principal = format!("cluster.local/ns/shop/sa/a{n}");
                (Attribute::SourcePrincipal, principal)
            }
            Self::Namespace => (Attribute::SourceNamespace, format!("n{n}")),
            Self::ServiceAccount => (Attribute::SourceServiceAccount, format!("shop/a{n}")),
            Self::TrustDomain => (Attribute::SourceTrustDomain, format!("td{n}.example")),
            Self::SourceIp => (Attribute::SourceIp, address(number).to_string()),
            Self::RemoteIp => (Attribute::RemoteIp, address(number).to_string()),
            Self::RequestPrincipal => {
                let principal = format!("https://issuer.example/u{n}");
                (Attribute::RequestPrincipal, principal)
            }
            Self::Audience => (Attribute::RequestAudiences, format!("aud{n}")),
            Self::Claim => (claim("groups"), format!("g{n}")),
            Self::ClaimName => (claim(&format!("c{n}")), "yes".to_owned()),
            Self::HeaderValue => (header("x-tenant"), format!("t{n}")),
            Self::HeaderName => (header(&format!("x-h{n}")), "yes".to_owned()),
            Self::HeaderPresent => (header(&format!("x-h{n}")), "*".to_owned()),
            Self::Sni => (Attribute::Sni, format!("s{n}.example.com")),
        }
    }

    /// So many rules of this kind, in so many policies.
    pub fn policies(self, rules: usize, policies: usize, action: &Action) -> Vec<Policy> {
        let all: Vec<PolicyRule> = (0..rules).map(|number| self.rule(number)).collect();
        let chunks = all.chunks(rules.div_ceil(policies));
        let policy = |(number, rules): (usize, &[PolicyRule])| Policy {
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
    pub fn request(self, number: Option<usize>) -> SampleRequest {
        let mut request = SampleRequest::new(self, number.unwrap_or(99_999));
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
fn mixed(number: usize) -> PolicyRule {
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
    let condition = match number % 5 {
        0 => term(
            Attribute::RequestHeader("x-tenant".into()),
            &format!("t{n}"),
        ),
        1 => term(
            Attribute::RequestClaim(["groups".into()].into()),
            &format!("g{n}"),
        ),
        2 => excluding(&["/api/v1/resources/none"]),
        _ => term(Attribute::Sni, "*.example.com"),
    };
    PolicyRule {
        from: vec![vec![source]],
        to: vec![operation],
        when: vec![condition],
    }
}

/// A request with a value of every kind; those of the others match no rule.
#[derive(Debug, Clone)]
pub struct SampleRequest {
    source: Identity,
    source_ip: IpAddr,
    port: u16,
    sni: String,
    host: String,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    claims: Claims,
}

impl SampleRequest {
    fn new(kind: RuleShape, number: usize) -> Self {
        let n = format!("{number:05}");
        let domain = match kind {
            RuleShape::TrustDomain => format!("td{n}.example"),
            _ => "cluster.local".to_owned(),
        };
        let namespace = match kind {
            RuleShape::Namespace => format!("n{n}"),
            RuleShape::Mixed if number % 3 == 1 => "n99999".to_owned(),
            _ => "shop".to_owned(),
        };
        let source = format!("spiffe://{domain}/ns/{namespace}/sa/a{n}");
        let method = match kind {
            RuleShape::Method => format!("M{n}"),
            _ => "GET".to_owned(),
        };
        let claims = [
            ("iss".to_owned(), json!("https://issuer.example")),
            ("sub".to_owned(), json!(format!("u{n}"))),
            ("aud".to_owned(), json!(["other", format!("aud{n}")])),
            ("groups".to_owned(), json!(["all", format!("g{n}")])),
            (format!("c{n}"), json!("yes")),
        ];
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Self {
            source: source.parse().expect("invariant: an identity"),
            source_ip: address(number).into(),
            port: match kind {
                RuleShape::Port => port(number),
                _ => 8080,
            },
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
            claims: Claims::of(&claims.into_iter().collect())
                .expect("invariant: five claims are within the limits"),
        }
    }

    /// As the engine is asked.
    pub fn facts(&self) -> RequestFacts<'_> {
        RequestFacts {
            source: Some(&self.source),
            source_ip: self.source_ip,
            remote_ip: self.source_ip,
            destination: SocketAddr::from(([10, 9, 9, 9], self.port)),
            sni: Some(&self.sni),
            http: Some(HttpFacts {
                authority: Some(self.host.as_bytes()),
                method: self.method.as_bytes(),
                path: self.path.as_bytes(),
                headers: &self.headers,
                claims: Some(&self.claims),
            }),
        }
    }
}
