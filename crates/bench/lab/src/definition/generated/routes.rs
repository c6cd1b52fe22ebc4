//! Generated routes at the client's sidecar: one list, written as a VirtualService for Voile and as a route table for peers. One
//! route takes the experiment's requests and leads to the called host. All others lead to a service without servers. A request
//! that reaches the server has therefore found the one right route.
//!
//! ```text
//! hit "first"   taken → server   0 → elsewhere  1 → elsewhere  …
//! hit "last"    0 → elsewhere    1 → elsewhere  …  taken → server
//! hit "miss"    0 → elsewhere    1 → elsewhere  …  (everything else) → server
//! ```

use std::fmt::Write as _;

use super::{Generated, HITS, MatchedRule};

/// Where routes lead that no request of the experiment takes: a service without endpoints.
pub(crate) const ELSEWHERE: &str = "elsewhere.lab.svc.cluster.local";
/// What its requests are answered, and those that no route takes.
const NOBODY_SERVES: &str = "503";
const NO_ROUTE: &str = "404";
/// The header that routes by header look at.
const HEADER: &str = "x-generated";
/// How many of the other routes are tried, spread over all of them.
const TRIED: u32 = 5;

/// What a route looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Path,
    Prefix,
    Header,
}

/// By the kinds of a definition.
const KINDS: [(&str, By); 3] = [
    ("routes", By::Path),
    ("prefix_routes", By::Prefix),
    ("header_routes", By::Header),
];

/// So many routes of one kind, and the one that takes the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Routes {
    by: By,
    number: u32,
    hit: MatchedRule,
}

/// What a request asks for, where that is not `/`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Asks {
    path: Option<String>,
    /// One more header, and its value.
    pub(crate) header: Option<(&'static str, String)>,
    /// The status that it is to be answered; none is a good answer.
    pub(crate) answered: Option<&'static str>,
}

impl Asks {
    pub(crate) fn path(&self) -> &str {
        self.path.as_deref().unwrap_or("/")
    }
}

/// A request that the experiment does not send. Its answer shows that the routes are in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stray {
    /// What becomes of it, in words.
    pub(crate) claim: String,
    pub(crate) asks: Asks,
}

/// One route in order.
struct Route {
    /// The word in its path or header; none takes everything.
    word: Option<String>,
    to_server: bool,
}

impl Routes {
    /// Those of a mesh; none where it has none.
    pub(crate) fn of(generated: &Generated, hit: &str) -> Option<Self> {
        let kind = |(kind, by): &(&str, By)| Some((*by, *generated.get(*kind)?));
        let (by, number) = KINDS.iter().find_map(kind)?;
        let (_, hit) = HITS.iter().find(|(word, _)| *word == hit)?;
        Some(Self {
            by,
            number,
            hit: *hit,
        })
    }

    /// Number of the route that takes the requests.
    fn takes(self) -> Option<u32> {
        match self.hit {
            MatchedRule::First => Some(0),
            MatchedRule::Last => self.number.checked_sub(1),
            MatchedRule::Miss => None,
        }
    }

    fn in_order(self) -> impl Iterator<Item = Route> {
        let takes = self.takes();
        let one = move |at| Route {
            word: Some(match takes == Some(at) {
                true => TAKEN.to_owned(),
                false => other(at),
            }),
            to_server: takes == Some(at),
        };
        let rest = takes.is_none().then_some(Route {
            word: None,
            to_server: true,
        });
        (0..self.number).map(one).chain(rest)
    }

    /// A request with that word where the routes look for it.
    fn asks(self, word: &str) -> Asks {
        let mut asks = Asks::default();
        match self.by {
            By::Path => asks.path = Some(format!("/generated/{word}")),
            By::Prefix => asks.path = Some(format!("/generated/{word}/item")),
            By::Header => asks.header = Some((HEADER, word.to_owned())),
        }
        asks
    }

    /// What the experiment's requests ask for.
    pub(crate) fn taken(self) -> Asks {
        self.asks(match self.hit {
            MatchedRule::First | MatchedRule::Last => TAKEN,
            MatchedRule::Miss => "no-route",
        })
    }

    /// Requests that do not come to the server: by some of the other routes, and by none.
    pub(crate) fn strays(self) -> Vec<Stray> {
        let of_others = u64::from(self.number - u32::from(self.takes().is_some()));
        let tried = of_others.min(u64::from(TRIED));
        let first = u64::from(self.hit == MatchedRule::First);
        // From the first of them to the last.
        let at = |step| first + step * (of_others - 1) / (tried - 1).max(1);
        let by_others = (0..tried).map(|step| {
            let word = other(at(step) as u32);
            Stray {
                claim: format!(
                    "a request by {word} is answered {NOBODY_SERVES}: it leads to a service that nobody serves"
                ),
                asks: Asks {
                    answered: Some(NOBODY_SERVES),
                    ..self.asks(&word)
                },
            }
        });
        let by_none = (self.hit != MatchedRule::Miss).then(|| Stray {
            claim: format!("a request that no route takes is answered {NO_ROUTE}"),
            asks: Asks {
                answered: Some(NO_ROUTE),
                ..self.asks("no-route")
            },
        });
        by_others.chain(by_none).collect()
    }

    /// The routes as VirtualServices, one for each of these hosts. All requests to their port `stage` are let through, too: the
    /// lab puts servers of its own there.
    pub(crate) fn resources(self, hosts: &[String], stage: u16) -> String {
        // Its selector matches no pod.
        let mut text = "apiVersion: v1\nkind: Service\nmetadata:\n  name: elsewhere\n  namespace: lab\nspec:\n  \
                        selector:\n    app: nobody\n  ports:\n  - name: http\n    port: 80\n"
            .to_owned();
        for host in hosts {
            // Writing into a String cannot fail.
            let _ = write!(
                text,
                "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata:\n  name: generated-{}\n  namespace: lab\n\
                 spec:\n  hosts:\n  - {host}\n  http:\n",
                host.split('.').next().unwrap_or_default()
            );
            for route in self.in_order() {
                let to = if route.to_server { host } else { ELSEWHERE };
                let to = format!("route: [{{destination: {{host: {to}}}}}]\n");
                let _ = match (route.word, self.by) {
                    (None, _) => write!(text, "  - {to}"),
                    (Some(word), By::Path) => write!(
                        text,
                        "  - match: [{{uri: {{exact: /generated/{word}}}}}]\n    {to}"
                    ),
                    (Some(word), By::Prefix) => write!(
                        text,
                        "  - match: [{{uri: {{prefix: /generated/{word}/}}}}]\n    {to}"
                    ),
                    (Some(word), By::Header) => write!(
                        text,
                        "  - match: [{{headers: {{{HEADER}: {{exact: {word}}}}}}}]\n    {to}"
                    ),
                };
            }
            let _ = write!(
                text,
                "  - match: [{{port: {stage}}}]\n    route: [{{destination: {{host: {host}}}}}]\n"
            );
        }
        text
    }

    /// The routes as Envoy's, in this order; `indent` stands before each line. `server` and `elsewhere` are clusters.
    pub(crate) fn envoy(self, indent: &str, server: &str, elsewhere: &str) -> String {
        let mut text = String::new();
        for route in self.in_order() {
            let cluster = if route.to_server { server } else { elsewhere };
            let matched = match (route.word, self.by) {
                (None, _) => "prefix: \"/\"".to_owned(),
                (Some(word), By::Path) => format!("path: \"/generated/{word}\""),
                (Some(word), By::Prefix) => format!("prefix: \"/generated/{word}/\""),
                (Some(word), By::Header) => format!(
                    "prefix: \"/\", headers: [{{name: {HEADER}, string_match: {{exact: \"{word}\"}}}}]"
                ),
            };
            let _ = write!(
                text,
                "{indent}- match: {{{matched}}}\n{indent}  route: {{cluster: {cluster}, timeout: 0s}}\n"
            );
        }
        text
    }
}

/// The word of the route that takes the experiment's requests.
const TAKEN: &str = "taken";

/// The word of another.
fn other(at: u32) -> String {
    format!("route-{at:06}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(kind: &str, number: u32, hit: &str) -> Routes {
        let generated = Generated::from([(kind.to_owned(), number)]);
        Routes::of(&generated, hit).expect("known")
    }

    /// Routes in order by where they lead, as the text says it.
    fn leads(text: &str, server: &str) -> Vec<bool> {
        let to = text.lines().filter(|line| line.contains("route: "));
        to.map(|line| line.contains(server)).collect()
    }

    #[test]
    fn exactly_one_route_leads_to_the_server_and_stands_where_it_should() {
        for (kind, word) in [
            ("routes", "/generated/"),
            ("prefix_routes", "/generated/"),
            ("header_routes", HEADER),
        ] {
            for (hit, at, all) in [("first", 0, 40), ("last", 39, 40), ("miss", 40, 41)] {
                let routes = routes(kind, 40, hit);
                let host = "server.lab.svc.cluster.local".to_owned();
                let yaml = routes.resources(std::slice::from_ref(&host), 9);
                let envoy = routes.envoy("  ", "tls", "elsewhere");
                assert_eq!(yaml.matches(word).count(), 40, "{kind} {hit}: {yaml}");
                assert_eq!(envoy.matches(word).count(), 40, "{kind} {hit}: {envoy}");
                let mut leads_there = leads(&yaml, &host);
                assert_eq!(leads_there.pop(), Some(true), "the lab's own port");
                assert_eq!(leads_there, leads(&envoy, "cluster: tls"), "{kind} {hit}");
                let to_server = leads_there.iter().filter(|there| **there).count();
                assert_eq!((leads_there.len(), to_server), (all, 1), "{kind} {hit}");
                assert!(leads_there[at], "{kind} {hit}: {leads_there:?}");
            }
        }
    }

    #[test]
    fn strays_are_tried_from_the_first_other_route_to_the_last_and_where_there_is_none() {
        for (number, hit, expected) in [
            (1, "first", vec!["no-route"]),
            (1, "last", vec!["no-route"]),
            (1, "miss", vec!["route-000000"]),
            (2, "first", vec!["route-000001", "no-route"]),
            (2, "last", vec!["route-000000", "no-route"]),
            (
                3,
                "miss",
                vec!["route-000000", "route-000001", "route-000002"],
            ),
            (
                10_000,
                "last",
                vec![
                    "route-000000",
                    "route-002499",
                    "route-004999",
                    "route-007498",
                    "route-009998",
                    "no-route",
                ],
            ),
            (
                10_000,
                "first",
                vec![
                    "route-000001",
                    "route-002500",
                    "route-005000",
                    "route-007499",
                    "route-009999",
                    "no-route",
                ],
            ),
        ] {
            let routes = routes("routes", number, hit);
            let strays = routes.strays();
            let paths: Vec<&str> = strays.iter().map(|stray| stray.asks.path()).collect();
            let expected: Vec<String> = expected
                .iter()
                .map(|word| format!("/generated/{word}"))
                .collect();
            assert_eq!(paths, expected, "{number} {hit}");
            for stray in &strays {
                let status = if stray.asks.path().ends_with("no-route") {
                    NO_ROUTE
                } else {
                    NOBODY_SERVES
                };
                assert_eq!(stray.asks.answered, Some(status));
                assert_ne!(stray.asks.path(), routes.taken().path());
            }
        }
    }

    #[test]
    fn requests_have_what_the_routes_look_at() {
        for (kind, hit, path, header) in [
            ("routes", "last", "/generated/taken", None),
            ("routes", "miss", "/generated/no-route", None),
            ("prefix_routes", "first", "/generated/taken/item", None),
            ("header_routes", "last", "/", Some("taken")),
            ("header_routes", "miss", "/", Some("no-route")),
        ] {
            let asks = routes(kind, 9, hit).taken();
            assert_eq!(asks.path(), path, "{kind} {hit}");
            let value = asks.header.map(|(_, value)| value);
            assert_eq!(value.as_deref(), header, "{kind} {hit}");
            assert_eq!(asks.answered, None);
        }
        assert_eq!(Asks::default().path(), "/");
        assert_eq!(Routes::of(&Generated::new(), "last"), None);
    }
}
