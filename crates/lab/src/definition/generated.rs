//! Configuration by number: so many services (policies, routes) that no request of the experiment is for, so that what they
//! cost is seen against their number. A kind that is here and cannot be made yet is named as missing.
//!
//! A new kind is a line in [`KINDS`] with the function that writes its resources; definitions then have a list of that name.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Of each kind how many.
pub type Generated = BTreeMap<String, u32>;

/// Writes that many resources.
type Write = fn(u32) -> String;

/// What can be made by number, or why it cannot yet.
pub(super) const KINDS: [(&str, Result<Write, &str>); 6] = [
    ("services", Ok(services)),
    ("policies", Ok(policies)),
    ("principals", Ok(principals)),
    ("paths", Ok(paths)),
    ("source_ips", Ok(source_ips)),
    (
        "routes",
        Err("needs routes by VirtualService, which issue 7 (traffic) brings"),
    ),
];

/// The most of a kind: ten times what Istio's largest published tests had.
pub(super) const MOST: u32 = 100_000;

/// Resources for all of that, as one file of the mesh; empty for nothing.
pub(crate) fn resources(generated: &Generated) -> String {
    let mut text = String::new();
    for (kind, number) in generated {
        let known = KINDS.iter().find(|(name, _)| name == kind);
        if let Some((_, Ok(write))) = known {
            text += &write(*number);
        }
    }
    text
}

/// An AuthorizationPolicy of that name that allows by these rules at the server.
fn policy(name: &str, rules: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata:\n  name: {name}\n  namespace: lab\nspec:\n  \
         selector:\n    matchLabels:\n      app: server\n  action: ALLOW\n  rules:\n{rules}"
    )
}

/// The rule that lets the experiment's requests pass, over HTTP and TCP, with and without certificates.
fn passing() -> String {
    policy(
        "generated-passing",
        "  - from:\n    - source:\n        ipBlocks: [\"0.0.0.0/0\"]\n",
    )
}

/// Policies of one rule each that match nobody here, and one that lets the requests pass: so many in all.
fn policies(number: u32) -> String {
    let mut text = String::new();
    for at in 1..number {
        text += &policy(
            &format!("generated-{at}"),
            &format!(
                "  - from:\n    - source:\n        principals: [\"cluster.local/ns/generated/sa/caller-{at}\"]\n    to:\n    \
                 - operation:\n        methods: [\"GET\"]\n        paths: [\"/generated/{at}/*\"]\n"
            ),
        );
    }
    text + &passing()
}

/// One policy with so many values of a kind, none of which is here, and one that lets the requests pass.
fn one_policy(place: &str, number: u32, value: impl Fn(u32) -> String) -> String {
    let values: Vec<String> = (0..number).map(|at| format!("\"{}\"", value(at))).collect();
    policy("generated", &format!("{place}[{}]\n", values.join(", "))) + &passing()
}

fn principals(number: u32) -> String {
    let place = "  - from:\n    - source:\n        principals: ";
    one_policy(place, number, |at| {
        format!("cluster.local/ns/generated/sa/caller-{at}")
    })
}

fn paths(number: u32) -> String {
    let place = "  - to:\n    - operation:\n        paths: ";
    one_policy(place, number, |at| format!("/generated/{at}"))
}

fn source_ips(number: u32) -> String {
    let place = "  - from:\n    - source:\n        ipBlocks: ";
    one_policy(place, number, |at| {
        let [_, high, middle, low] = at.to_be_bytes();
        format!("203.{high}.{middle}.{low}/32")
    })
}

/// Services of the mesh that nobody calls, each with an endpoint.
fn services(number: u32) -> String {
    let mut text = String::new();
    for at in 0..number {
        let [_, high, middle, low] = (at + 1).to_be_bytes();
        let _ = write!(
            text,
            "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata:\n  name: generated-{at}\n  namespace: lab\nspec:\n  \
             hosts:\n  - generated-{at}.lab.internal\n  location: MESH_INTERNAL\n  resolution: STATIC\n  ports:\n  - number: 8000\n    \
             name: http-generated\n    protocol: HTTP\n  endpoints:\n  - address: 127.{}.{middle}.{low}\n",
            128 + high
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_resources_are_written_and_none_twice() {
        let generated = Generated::from([("services".to_owned(), 300)]);
        let text = resources(&generated);
        assert_eq!(text.matches("kind: ServiceEntry").count(), 300);
        let addresses: std::collections::BTreeSet<&str> = text
            .lines()
            .filter(|line| line.contains("- address:"))
            .collect();
        assert_eq!(addresses.len(), 300);
        assert_eq!(resources(&Generated::new()), "");
        for (kind, number, documents) in [
            ("policies", 40, 40),
            ("principals", 40, 2),
            ("paths", 40, 2),
            ("source_ips", 40, 2),
        ] {
            let text = resources(&Generated::from([(kind.to_owned(), number)]));
            let count = text.matches("kind: AuthorizationPolicy").count();
            assert_eq!(count, documents, "{kind}");
            assert_eq!(text.matches("generated-passing").count(), 1, "{kind}");
        }
    }
}
