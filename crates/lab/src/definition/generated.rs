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
pub(super) const KINDS: [(&str, Result<Write, &str>); 3] = [
    ("services", Ok(services)),
    (
        "policies",
        Err("needs the authorization engine, which issue 5 (identity and policy) brings"),
    ),
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
        let generated = Generated::from([("services".to_owned(), 300), ("policies".to_owned(), 0)]);
        let text = resources(&generated);
        assert_eq!(text.matches("kind: ServiceEntry").count(), 300);
        let addresses: std::collections::BTreeSet<&str> = text
            .lines()
            .filter(|line| line.contains("- address:"))
            .collect();
        assert_eq!(addresses.len(), 300);
        assert_eq!(resources(&Generated::new()), "");
    }
}
