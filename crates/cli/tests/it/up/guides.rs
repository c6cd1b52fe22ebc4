//! The guides for one machine: their commands, read from the pages, in their order.

use tempfile::TempDir;

use crate::mesh::page_commands::End::{self, Eventually, Failure, Success};
use crate::mesh::page_commands::Page;
use crate::up::netns::start;
use crate::up::pair;

const STARTED: End = Success("ready after");
const DENIED: End = Failure("none of their rules matches");
const ENDED: (&str, End) = ("voile stop", Success("has ended"));

/// Runs a page in a folder of its own. A machine without namespaces skips it.
fn follow(name: &'static str, ports: &'static [(u16, &'static str)], commands: &[(&str, End)]) {
    let Some(possible) = start(pair, None) else {
        return;
    };
    drop(possible);
    let folder = TempDir::new().expect("a folder");
    let mut page = Page::open_here(name, folder.path().to_owned()).with_node_ports(ports);
    page.run(commands);
    page.ends();
}

#[test]
fn only_one_may_call_by_the_guide() {
    let ports = &[
        (30085, "policies/shop"),
        (30086, "policies/office"),
        (30087, "policies/stranger"),
    ];
    let stranger = "/ns/policies/sa/stranger";
    follow(
        "docs/guides/callers.md",
        ports,
        &[
            ("mkdir shop", Success("")),
            ("sed '/^---/,$d'", Success("")),
            ("voile up shop", Success("")),
            ("until grep", STARTED),
            ("curl -s http://127.0.0.1:30086/", Success("status\":200")),
            ("curl -s http://127.0.0.1:30087/", Success("status\":200")),
            ("cat >shop/office.policy.yaml", Success("")),
            ("until voile logs", Success(stranger)),
            ("sed -i /dry-run/d", Success("")),
            (
                "curl -s http://127.0.0.1:30087/",
                Eventually("status\":403,\"body\":\"RBAC: access denied"),
            ),
            ("curl -s http://127.0.0.1:30086/", Success("status\":200")),
            (
                "curl -s http://127.0.0.1:30085/",
                Success("RBAC: access denied"),
            ),
            ("voile tap --denied", Success("")),
            ("until grep", Success("from=policies/stranger")),
            ("voile explain --from policies/stranger", DENIED),
            ("voile who-can", Success(stranger)),
            ("cat >shop/strict.yaml", Success("")),
            (
                "curl -sS http://127.0.0.1:30085/",
                Eventually("Empty reply from server"),
            ),
            (
                "voile explain --to",
                Failure("peer authentication is STRICT"),
            ),
            ("cat >shop/deny-all.yaml", Success("")),
            (
                "curl -s http://127.0.0.1:30086/",
                Eventually("RBAC: access denied"),
            ),
            ("cat >shop/permissions.yaml", Success("")),
            (
                "curl -s http://127.0.0.1:30086/",
                Eventually("status\":200"),
            ),
            (
                "voile explain --from policies/stranger",
                Success("policies/namespace-sees-goods, rule 0"),
            ),
            ENDED,
        ],
    );
}

#[test]
fn a_new_version_is_for_some_by_the_guide() {
    follow(
        "docs/guides/canary.md",
        &[(30081, "canary/storefront")],
        &[
            ("cp -r examples/canary", Success("")),
            ("cat >canary/routes.yaml", Success("")),
            ("voile up canary", Success("")),
            ("until grep", STARTED),
            // 45 requests a second.
            ("voile load --rate 45", Success("")),
            ("voile edges", Eventually("canary/reviews-v2  http ")),
            ("voile routes", Eventually("routes.yaml:17")),
            ("voile load --rate 10", Success("")),
            (
                "voile routes",
                Eventually("canary/reviews  testers    reviews.canary:9080 subset=v2"),
            ),
            ("sed -i 's/weight: 90/", Success("")),
            ("voile edges", Eventually("reviews-v2  http      2")),
            ("sed -i 's/v1}, weight: 50/", Success("")),
            ("voile edges", Eventually("reviews-v2  http      4")),
            ("sed -i 's/v1}, weight: 0/", Success("")),
            ("voile edges", Eventually("reviews-v1  http      4")),
            ("cat >>canary/routes.yaml", Success("")),
            // Version 2 gets copies alone.
            ("voile edges", Eventually("canary/reviews-v2  http ")),
            ("cat >canary/routes.yaml", Success("")),
            (
                "voile routes",
                Eventually("canary/reviews.1  reviews-v2.canary:9080"),
            ),
            ("kill ", Success("failed                 0\n")),
            ENDED,
        ],
    );
}

#[test]
fn requests_are_limited_by_the_guide() {
    let ports = &[
        (30079, "limits/outside"),
        (30091, "limits/storefront"),
        (30092, "limits/robot"),
    ];
    follow(
        "docs/guides/rate-limits.md",
        ports,
        &[
            ("cp -r examples/rate-limits", Success("")),
            ("cat >limits/outside.yaml", Success("")),
            ("cat >limits/limits.yaml", Success("")),
            ("voile analyze limits", Success("0 errors")),
            ("voile up limits", Success("")),
            ("until grep", STARTED),
            ("curl -si ", Success("ratelimit: \"search\";r=2;")),
            ("curl -s -o /dev/null ", Success("200 200")),
            ("curl -si ", Success("retry-after: ")),
            ("curl -si ", Success("200 OK")),
            ("voile load --rate 100", Success("")),
            ("voile load --rate 5", Success("✓ errors<1%")),
            (
                "voile tap --denied",
                Success("local_rate_limited[limits/prices/rest]"),
            ),
            ("voile edges --wide", Success("limits/robot  limits/prices")),
            ("sed -i ", Success("")),
            ("curl -si ", Eventually("ratelimit: \"search\";r=5;")),
            ("voile explain", Success("6 in 60s, 6 at once, by identity")),
            ENDED,
        ],
    );
}

#[test]
fn calls_to_hosts_outside_are_listed_by_the_guide() {
    let logs = "voile logs egress.client-0.app";
    follow(
        "docs/guides/egress.md",
        &[],
        &[
            ("mkdir egress", Success("")),
            ("cat >egress/client.yaml", Success("")),
            ("voile up egress", Success("")),
            ("until grep", STARTED),
            (logs, Eventually("502 http://203.0.113.9/")),
            ("cat >egress/news.yaml", Success("")),
            (logs, Eventually("200 http://news.example/")),
            ("cat >egress/gateway.yaml", Success("")),
            ("until voile edges", Success("world/news-0")),
            (logs, Eventually("200 http://news.example/")),
            ("voile explain", DENIED),
            ("sed -i 's/GET/HEAD/'", Success("")),
            (logs, Eventually("403 http://news.example/")),
            ENDED,
        ],
    );
}
