//! Generated policies at the server. All values but one are callers, paths and addresses that occur nowhere in the lab. The one,
//! first or last, is that of the experiment's requests.

use std::fmt::Write as _;

use super::{GeneratedAction, MatchedRule, PolicyEffect};

/// Writes policies: the number of counted objects, and the effect on the requests.
pub(crate) type Write = fn(u32, Option<PolicyEffect>) -> String;

/// Attributes of the requests of every experiment: caller, path, source address (loopback and the lab's own networks).
const CLIENT: &str = "cluster.local/ns/lab/sa/client";
const CLIENT_NAMESPACE: &str = "lab";
const PATH: &str = "/";
const ADDRESSES: &str = "0.0.0.0/1";

/// An AuthorizationPolicy of that name with these rules at the server; an ALLOW policy by default.
fn policy(name: &str, meeting: Option<PolicyEffect>, rules: &str) -> String {
    let (action, annotations) = match meeting.map(|meeting| meeting.action) {
        None | Some(GeneratedAction::Allow) => ("ALLOW", ""),
        Some(GeneratedAction::Deny) => ("DENY", ""),
        Some(GeneratedAction::DryRun) => {
            ("DENY", "  annotations:\n    istio.io/dry-run: \"true\"\n")
        }
    };
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata:\n  name: {name}\n  namespace: lab\n{annotations}spec:\n  \
         selector:\n    matchLabels:\n      app: server\n  action: {action}\n  rules:\n{rules}"
    )
}

/// Lets the experiment's requests pass, over HTTP and TCP, with and without certificates.
pub(super) fn passing() -> String {
    let rules = "  - from:\n    - source:\n        ipBlocks: [\"0.0.0.0/0\"]\n";
    policy("generated-passing", None, rules)
}

/// So many objects in order. The one that shall meet the requests is made by `met`, the others by `other`.
fn each<T>(
    number: u32,
    meeting: Option<PolicyEffect>,
    met: impl Fn() -> T,
    other: impl Fn(u32) -> T,
) -> Vec<T> {
    let hit = match meeting.map(|meeting| meeting.hit) {
        Some(MatchedRule::First) => Some(0),
        Some(MatchedRule::Last) => number.checked_sub(1),
        Some(MatchedRule::Miss) | None => None,
    };
    let one = |at| if Some(at) == hit { met() } else { other(at) };
    (0..number).map(one).collect()
}

/// One policy of one rule with so many values.
fn one_policy(
    (kind, place): (&str, &str),
    number: u32,
    meeting: Option<PolicyEffect>,
    met: &str,
    other: impl Fn(u32) -> String,
) -> String {
    let values = each(number, meeting, || met.to_owned(), other);
    let values: Vec<String> = values.iter().map(|value| format!("\"{value}\"")).collect();
    let rules = format!("{place}[{}]\n", values.join(", "));
    policy(&format!("generated-{kind}"), meeting, &rules)
}

/// So many policies of one rule each. Policies are asked in the order of their names.
fn many_policies(
    kind: &str,
    number: u32,
    meeting: Option<PolicyEffect>,
    met: &str,
    other: impl Fn(u32) -> String,
) -> String {
    let rules = each(number, meeting, || met.to_owned(), other);
    let numbered = rules.iter().enumerate();
    let policies = numbered.map(|(at, rule)| {
        let name = format!("generated-{kind}-{at:06}");
        policy(&name, meeting, rule)
    });
    policies.collect()
}

fn caller(at: u32) -> String {
    format!("cluster.local/ns/generated/sa/caller-{at}")
}

/// Addresses that are set aside for examples, and more of their neighbourhood.
fn address(at: u32) -> String {
    let [_, high, middle, low] = at.to_be_bytes();
    format!("203.{high}.{middle}.{low}/32")
}

const FROM_PRINCIPALS: &str = "  - from:\n    - source:\n        principals: ";
const FROM_NAMESPACES: &str = "  - from:\n    - source:\n        namespaces: ";
const FROM_TOKENS: &str = "  - from:\n    - source:\n        requestPrincipals: ";
const FROM_ADDRESSES: &str = "  - from:\n    - source:\n        ipBlocks: ";
const TO_PATHS: &str = "  - to:\n    - operation:\n        paths: ";

pub(super) fn principals(number: u32, meeting: Option<PolicyEffect>) -> String {
    let kind = ("principals", FROM_PRINCIPALS);
    one_policy(kind, number, meeting, CLIENT, caller)
}

/// Principals of tokens. The principal that meets the requests is that of their own tokens.
pub(super) fn request_principals(
    number: u32,
    meeting: Option<PolicyEffect>,
    principal: &str,
) -> String {
    let kind = ("request-principals", FROM_TOKENS);
    let other = |at| format!("https://issuer-000000.generated.example/caller-{at}");
    one_policy(kind, number, meeting, principal, other)
}

pub(super) fn namespaces(number: u32, meeting: Option<PolicyEffect>) -> String {
    let kind = ("namespaces", FROM_NAMESPACES);
    let other = |at| format!("generated-{at}");
    one_policy(kind, number, meeting, CLIENT_NAMESPACE, other)
}

pub(super) fn paths(number: u32, meeting: Option<PolicyEffect>) -> String {
    let kind = ("paths", TO_PATHS);
    let other = |at| format!("/generated/{at}");
    one_policy(kind, number, meeting, PATH, other)
}

pub(super) fn source_ips(number: u32, meeting: Option<PolicyEffect>) -> String {
    let kind = ("source-ips", FROM_ADDRESSES);
    one_policy(kind, number, meeting, ADDRESSES, address)
}

pub(super) fn path_policies(number: u32, meeting: Option<PolicyEffect>) -> String {
    let rule = |path: &str| format!("{TO_PATHS}[\"{path}\"]\n");
    let other = |at| rule(&format!("/generated/{at}"));
    many_policies("path", number, meeting, &rule(PATH), other)
}

pub(super) fn source_ip_policies(number: u32, meeting: Option<PolicyEffect>) -> String {
    let rule = |block: &str| format!("{FROM_ADDRESSES}[\"{block}\"]\n");
    let other = |at| rule(&address(at));
    many_policies("source-ip", number, meeting, &rule(ADDRESSES), other)
}

/// A rule of principal, method and path.
fn from_to(principal: &str, path: &str) -> String {
    format!(
        "{FROM_PRINCIPALS}[\"{principal}\"]\n    to:\n    - operation:\n        methods: [\"GET\", \"POST\"]\n        paths: [\"{path}\"]\n"
    )
}

pub(super) fn mixed_policies(number: u32, meeting: Option<PolicyEffect>) -> String {
    let other = |at| from_to(&caller(at), &format!("/generated/{at}/*"));
    many_policies("mixed", number, meeting, &from_to(CLIENT, PATH), other)
}

/// One policy of so many rules, each with a caller, an operation and a condition.
pub(super) fn rules(number: u32, meeting: Option<PolicyEffect>) -> String {
    let when = |list: &str, value: &str| {
        format!("    when:\n    - key: request.headers[x-generated]\n      {list}: [\"{value}\"]\n")
    };
    let met = || from_to(CLIENT, PATH) + &when("notValues", "never");
    let other = |at| {
        let value = format!("value-{at}");
        from_to(&caller(at), &format!("/generated/{at}/*")) + &when("values", &value)
    };
    let all = each(number, meeting, met, other);
    policy("generated-rules", meeting, &all.concat())
}

/// Each for workloads that are not there.
pub(super) fn peer_authentications(number: u32) -> String {
    let mut text = String::new();
    for at in 0..number {
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata:\n  name: generated-{at}\n  namespace: lab\n\
             spec:\n  selector:\n    matchLabels:\n      app: nobody-{at}\n  mtls:\n    mode: PERMISSIVE\n"
        );
    }
    text
}
