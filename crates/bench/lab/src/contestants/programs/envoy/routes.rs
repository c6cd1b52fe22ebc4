//! Routes by number in Envoy's configuration: the client's route tables, of the listeners that the lab's ways go through.

use crate::definition::{PeerFeatures, Routes};
use crate::plan::RequestPath;

/// Said of an Envoy with routes.
pub(super) const TERMS: &str = "generated routes in its route table, the same and in the same order as in the VirtualService, as Istio translates them";

/// The cluster of routes that no request takes: it has no endpoints.
const ELSEWHERE: &str = "elsewhere";
const CLUSTERS: &str = "  clusters:\n";
/// The one route of each listener in the template.
const TABLE: &str = "              routes:\n";
const ALL: &str = "              - match: {prefix: \"/\"}\n                route: {cluster: ";
const END: &str = ", timeout: 0s}\n";
const INDENT: &str = "              ";

/// The client's template with these routes in the listeners in use, and nowhere else.
pub(super) fn with(
    template: &str,
    routes: Routes,
    features: &PeerFeatures,
    ways: &[RequestPath],
) -> Result<String, String> {
    if features.detection {
        return Err("the lab has no routes for an Envoy that detects protocols".to_owned());
    }
    let mut text = template.to_owned();
    let mut done: Vec<String> = Vec::new();
    let own = ways.iter();
    for way in own.filter(|way| way.contestant == features.contestant && way.mode != "serveronly") {
        let name = listener(way);
        if done.contains(&name) {
            continue;
        }
        let from = text
            .find(&name)
            .ok_or_else(|| format!("Envoy's template has no listener {:?}", name.trim()))?;
        let section = text.split_off(from);
        text += &routed(&section, routes).ok_or_else(|| {
            format!(
                "{} of Envoy's template does not have exactly one route",
                name.trim()
            )
        })?;
        done.push(name);
    }
    let elsewhere =
        format!("{CLUSTERS}  - name: {ELSEWHERE}\n    type: STATIC\n    connect_timeout: 1s\n");
    Ok(text.replacen(CLUSTERS, &elsewhere, 1))
}

/// The name of the listener that a way's requests go out by.
fn listener(way: &RequestPath) -> String {
    let protocol = match way.ports() {
        "grpc" => "grpc_",
        _ => "",
    };
    let how = match (way.mode.as_str(), way.tls) {
        ("clientonly", _) => "direct",
        (_, true) => "tls",
        (_, false) => "plain",
    };
    format!("  - name: outbound_{protocol}{how}\n")
}

/// Replaces the one route of the listener at the start of `section`.
fn routed(section: &str, routes: Routes) -> Option<String> {
    let (before, rest) = section.split_once(&format!("{TABLE}{ALL}"))?;
    let (cluster, after) = rest.split_once(END)?;
    // The route of the listener itself, not of the next one.
    let own = before.matches("\n  - name: ").count() == 0 && !cluster.contains('\n');
    own.then(|| {
        let table = routes.envoy(INDENT, cluster, ELSEWHERE);
        format!("{before}{TABLE}{table}{after}")
    })
}

#[cfg(test)]
mod tests {
    use super::super::CLIENT_TEMPLATE;
    use super::*;
    use crate::definition::Generated;
    use crate::plan::ContestantSetup;

    fn way(mode: &str, tls: bool, protocol: &str) -> RequestPath {
        RequestPath {
            contestant: "envoy".to_owned(),
            mode: mode.to_owned(),
            tls,
            protocol: protocol.to_owned(),
            outfit: ContestantSetup::default(),
        }
    }

    #[test]
    fn routes_stand_in_the_tables_of_the_listeners_in_use_and_lead_to_their_clusters() {
        let generated = Generated::from([("routes".to_owned(), 3)]);
        let routes = Routes::of(&generated, "last").expect("known");
        let (_, features) = PeerFeatures::of("envoy").expect("known");
        let ways = [
            way("both", true, "http1"),
            way("clientonly", false, "http2"),
            way("serveronly", false, "http1"),
        ];
        let text = with(CLIENT_TEMPLATE, routes, &features, &ways).expect("the template fits");
        for (name, cluster) in [
            ("outbound_tls", Some("tls")),
            ("outbound_grpc_direct", Some("grpc_direct")),
            ("outbound_plain", None),
            ("outbound_direct", None),
            ("outbound_stage", None),
            ("outbound_grpc_tls", None),
        ] {
            let from = text
                .find(&format!("  - name: {name}\n"))
                .expect("a listener");
            let section = &text[from + 4..];
            let section = &section[..section.find("\n  - name: ").unwrap_or(section.len())];
            let Some(cluster) = cluster else {
                assert!(!section.contains("/generated/"), "{name}: {section}");
                continue;
            };
            assert_eq!(
                section.matches("cluster: elsewhere,").count(),
                2,
                "{section}"
            );
            let taken = format!(
                "- match: {{path: \"/generated/taken\"}}\n                route: {{cluster: {cluster}, timeout: 0s}}\n"
            );
            assert!(section.contains(&taken), "{name}: {section}");
            assert!(!section.contains("prefix: \"/\""), "{name}: {section}");
        }
        assert_eq!(text.matches("- name: elsewhere\n").count(), 1);
    }
}
