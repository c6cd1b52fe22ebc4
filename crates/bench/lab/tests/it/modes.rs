//! Modes of several roles: the contestants that have them, and impossible combinations.

use voile_lab::Definition;

use crate::definitions::GOOD;

const TLS: &str = "tls = true";
const PLAIN: &str = "tls = false";

/// Contestant, mode, other fields of the group, isolation, and the error message.
const IMPOSSIBLE: &[(&str, &str, &str, &str, &str)] = &[
    (
        "voile",
        "node",
        TLS,
        "loopback",
        "mode \"node\" needs isolation = \"netns\"",
    ),
    (
        "voile",
        "gateway",
        PLAIN,
        "netns",
        "mode \"gateway\" needs isolation = \"loopback\"",
    ),
    (
        "voile",
        "node",
        PLAIN,
        "netns",
        "mode \"node\" is mutual TLS always",
    ),
    (
        "voile",
        "gateway",
        TLS,
        "loopback",
        "mode \"gateway\" is in plaintext",
    ),
    (
        "envoy",
        "node",
        TLS,
        "netns",
        "has contestants voile, ztunnel: not envoy",
    ),
    (
        "voile",
        "node+waypoint",
        TLS,
        "loopback",
        "mode \"node+waypoint\" needs isolation = \"netns\"",
    ),
    (
        "envoy",
        "node+waypoint",
        PLAIN,
        "netns",
        "mode \"node+waypoint\" is mutual TLS always",
    ),
    (
        "ztunnel",
        "node+waypoint",
        TLS,
        "netns",
        "has contestants voile, envoy: not ztunnel",
    ),
    (
        "envoy",
        "node+waypoint",
        "tls = true\nfeatures = [\"demo\"]",
        "netns",
        "has no feature sets yet: not envoy+demo",
    ),
    (
        "envoy-xds",
        "node+waypoint",
        TLS,
        "netns",
        "has contestants voile, envoy: not envoy-xds",
    ),
    (
        "envoy-xds",
        "gateway",
        PLAIN,
        "loopback",
        "haproxy, pipy: not envoy-xds",
    ),
    (
        "relay",
        "gateway",
        PLAIN,
        "loopback",
        "haproxy, pipy: not relay",
    ),
    (
        "voile",
        "node",
        "tls = true\nfeatures = [\"demo\"]",
        "netns",
        "has no feature sets yet: not voile+demo",
    ),
    (
        "voile",
        "node",
        "tls = true\npolicies = [9]",
        "netns",
        "does not support generated policies, routes",
    ),
];

/// Cells of a definition with this second group, or its error.
fn cells_of(words: &str, isolation: &str) -> Result<Vec<String>, String> {
    let isolation = format!("rounds = 8\nisolation = \"{isolation}\"");
    let text = GOOD.replace("rounds = 8", &isolation);
    let text = text.replace("contestants = [\"relay\"]\nmodes = [\"both\"]", words);
    let definition = Definition::parse("mine.toml", &text).map_err(|e| e.to_string())?;
    let cells = definition.cells.iter().skip(1);
    let words = cells.map(|cell| format!("{} {} {}", cell.contestant, cell.mode, cell.tls));
    Ok(words.collect())
}

#[test]
fn node_proxies_and_gateways_are_modes_of_those_who_have_them() {
    let both = "contestants = [\"voile\", \"ztunnel\", \"envoy\"]\nmodes = [\"both\", \"node\", \"node+waypoint\"]\ntls = true";
    let wanted = "voile both true, voile node true, voile node+waypoint true, ztunnel both true, ztunnel node true, \
                  envoy both true, envoy node+waypoint true";
    assert_eq!(cells_of(both, "netns").expect("good").join(", "), wanted);
    let gates = "contestants = [\"voile\", \"nginx\", \"envoy\"]\nmodes = [\"gateway\"]";
    let wanted = "voile gateway false, nginx gateway false, envoy gateway false";
    assert_eq!(
        cells_of(gates, "loopback").expect("good").join(", "),
        wanted
    );
    for (name, mode, more, isolation, told) in IMPOSSIBLE {
        let words = format!("contestants = [\"{name}\"]\nmodes = [\"{mode}\"]\n{more}");
        let error = cells_of(&words, isolation).expect_err(told);
        assert!(error.contains(told), "{words}: {error}");
    }
}
