//! AuthorizationPolicies and RequestAuthentications in Envoy's configuration: the same resources that Voile is given, translated by
//! `voile export envoy-filters`, in front of the router of each listener that the experiment's requests go through.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::contestants::contestant::{ExpectedOutput, RecordedOutput};
use crate::contestants::programs::command_output::output;
use crate::definition::{
    FORGED, MatchedRule, PeerFeatures, PolicyAction, RefusalKind, generated_resources,
};
use crate::machine::instance::CONTROL;
use crate::plan::{ContestantSetup, RequestPath};
use crate::shared_processes::Lab;

/// Deadline of the translation. A hundred thousand rules take some seconds.
const EXPORT_BOUND: Duration = Duration::from_secs(60);

/// Said of an Envoy with policies.
pub(super) const TERMS: &str = "AuthorizationPolicies and RequestAuthentications as Istio translates the same resources: RBAC and jwt_authn filters; paths are normalised if rules have paths; no token cache, as under Istio";

/// The router as the template writes it, once with a name by which other listeners have the same.
const ANCHORED: &str = "          http_filters: &filters\n";
const SAME: &str = "          http_filters: *filters\n";
const FILTERS: &str = "          http_filters:\n";
const ROUTER: &str = "          - name: envoy.filters.http.router
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
";
const CODEC: &str = "          codec_type:";
const CHAIN: &str = "    - filters:\n";

/// The server's template with the outfit's policies in the listeners of the lab's ways.
pub(super) fn with(
    template: &str,
    features: &PeerFeatures,
    lab: &Lab<'_>,
    folder: &Path,
) -> Result<String, String> {
    if features.detection {
        return Err("the lab has no policies for an Envoy that detects protocols".to_owned());
    }
    if lab.far.is_some() {
        return Err(
            "policies are files of the peer, which an agent does not accept: measured on one machine only"
                .to_owned(),
        );
    }
    let config = folder.join("policies");
    std::fs::create_dir_all(&config).map_err(|e| format!("{}: {e}", config.display()))?;
    let text = generated_resources(&lab.outfit.generated, &lab.outfit.verdict);
    crate::record_folder::write(&config.join("generated.yaml"), &text)?;
    let mut exported = BTreeMap::new();
    let own = lab.ways.iter();
    for way in own.filter(|way| way.contestant == features.contestant && way.mode != "clientonly") {
        let layer = if way.protocol == "tcp" { "tcp" } else { "http" };
        if !exported.contains_key(layer) {
            exported.insert(layer, export(lab, &config, layer)?);
        }
    }
    inserted(template, &features.contestant, &lab.ways, &exported)
}

/// The filters as their own program translates them, one text each.
fn export(lab: &Lab<'_>, config: &Path, layer: &str) -> Result<Vec<String>, String> {
    let spec = lab
        .process(CONTROL, "envoy-filters", &lab.voile)?
        .args(["export", "envoy-filters"])
        .arg(config)
        .args(["--namespace", "lab", "--label", "app=server"])
        .args(["--layer", layer]);
    let text = output(lab, spec, EXPORT_BOUND)?;
    let filters: Vec<Value> = serde_json::from_str(&text)
        .map_err(|e| format!("voile export envoy-filters: its answer is not JSON: {e}"))?;
    if filters.is_empty() {
        return Err("voile export envoy-filters found nothing for the server".to_owned());
    }
    Ok(filters.iter().map(Value::to_string).collect())
}

/// The name of the listener that a way's requests come in by.
fn listener(way: &RequestPath) -> String {
    let protocol = match way.ports() {
        "http1" => "",
        "grpc" => "grpc_",
        _ => "tcp_",
    };
    let how = if way.tls { "tls" } else { "plain" };
    format!("  - name: inbound_{protocol}{how}\n")
}

fn inserted(
    template: &str,
    contestant: &str,
    ways: &[RequestPath],
    filters: &BTreeMap<&str, Vec<String>>,
) -> Result<String, String> {
    if !template.contains(ANCHORED) {
        return Err("Envoy's template has no shared filters".to_owned());
    }
    let same = format!("{FILTERS}{ROUTER}");
    let mut text = template.replace(ANCHORED, FILTERS).replace(SAME, &same);
    let mut done: Vec<String> = Vec::new();
    for way in ways
        .iter()
        .filter(|way| way.contestant == contestant && way.mode != "clientonly")
    {
        let name = listener(way);
        if done.contains(&name) {
            continue;
        }
        let tcp = way.protocol == "tcp";
        let own = &filters[if tcp { "tcp" } else { "http" }];
        let from = text
            .find(&name)
            .ok_or_else(|| format!("Envoy's template has no listener {:?}", name.trim()))?;
        let section = text.split_off(from);
        let (before, indent) = if tcp { (CHAIN, 4) } else { (FILTERS, 10) };
        let list: String = own
            .iter()
            .map(|filter| {
                format!(
                    "{:indent$}- {filter}\n",
                    "",
                    indent = indent + if tcp { 2 } else { 0 }
                )
            })
            .collect();
        let section = section.replacen(before, &format!("{before}{list}"), 1);
        // Istio's default; Envoy's own is to take paths as they come.
        text += &match tcp {
            true => section,
            false => section.replacen(
                CODEC,
                &format!("          normalize_path: true\n{CODEC}"),
                1,
            ),
        };
        done.push(name);
    }
    Ok(text)
}

/// Number of requests that the filters have judged as the outfit requires, by Envoy's statistics. Empty if no statistic shows it.
pub(crate) fn judged(
    outfit: &ContestantSetup,
    statistics: &BTreeMap<String, u64>,
) -> Vec<RecordedOutput> {
    let tokens = match outfit.token.as_str() {
        FORGED => ("jwt_authn.denied", "requests refused for their token"),
        "" => ("jwt_authn.allowed", "requests without a token"),
        _ => ("jwt_authn.allowed", "requests with a good token"),
    };
    let all = [outfit.believes().then_some(tokens), by_policies(outfit)];
    let one = |(ends, what): (&str, &str)| {
        let counted = statistics.iter().filter(|(name, _)| name.ends_with(ends));
        RecordedOutput {
            what: format!("{what}, by the server-sidecar's statistics"),
            count: counted.map(|(_, count)| count).sum(),
            expected: ExpectedOutput::OneOf(1),
        }
    };
    all.into_iter().flatten().map(one).collect()
}

/// Counter of policy decisions: the end of the counter's name, and the counted requests.
fn by_policies(outfit: &ContestantSetup) -> Option<(&'static str, &'static str)> {
    // A request whose token is refused reaches no policy.
    if !outfit.has_policies() || outfit.refusal() == Some(RefusalKind::Unknown) {
        return None;
    }
    match outfit.meeting() {
        Some(meeting) if meeting.action == PolicyAction::DryRun => {
            let what = "requests that dry-run policies would have refused";
            (meeting.hit != MatchedRule::Miss).then_some(("shadow_denied", what))
        }
        Some(meeting) if meeting.denies() => {
            Some(("rbac.denied", "requests that policies refused"))
        }
        _ => Some(("rbac.allowed", "requests that policies let in")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::SERVER_TEMPLATE;
    use super::*;

    fn way(tls: bool, protocol: &str) -> RequestPath {
        RequestPath {
            contestant: "envoy".to_owned(),
            mode: "both".to_owned(),
            tls,
            protocol: protocol.to_owned(),
            outfit: ContestantSetup::default(),
        }
    }

    #[test]
    fn filters_stand_before_the_router_of_the_listeners_in_use_and_nowhere_else() {
        let filters = BTreeMap::from([
            (
                "http",
                vec![
                    "{\"name\":\"deny\"}".to_owned(),
                    "{\"name\":\"allow\"}".to_owned(),
                ],
            ),
            ("tcp", vec!["{\"name\":\"allow\"}".to_owned()]),
        ]);
        let ways = [
            way(true, "http1"),
            way(true, "http2"),
            way(true, "grpc"),
            way(false, "tcp"),
        ];
        let text = inserted(SERVER_TEMPLATE, "envoy", &ways, &filters).expect("the template fits");
        let both = "          - {\"name\":\"deny\"}\n          - {\"name\":\"allow\"}\n          - name: envoy.filters.http.router\n";
        assert_eq!(text.matches(both).count(), 2, "{text}");
        assert_eq!(text.matches("{\"name\":\"deny\"}").count(), 2);
        assert_eq!(text.matches("normalize_path: true").count(), 2);
        let tcp = "    - filters:\n      - {\"name\":\"allow\"}\n      - name: envoy.filters.network.tcp_proxy\n";
        assert_eq!(text.matches(tcp).count(), 1, "{text}");
        for (name, has) in [
            ("inbound_plain", false),
            ("inbound_tls", true),
            ("inbound_tcp_plain", true),
            ("inbound_tcp_tls", false),
            ("inbound_grpc_plain", false),
            ("inbound_grpc_tls", true),
        ] {
            let from = text
                .find(&format!("  - name: {name}\n"))
                .expect("a listener");
            let section = &text[from + 4..];
            let section = &section[..section.find("\n  - name: ").unwrap_or(section.len())];
            assert_eq!(section.contains("{\"name\":"), has, "{name}: {section}");
        }
        assert!(!text.contains("*filters") && !text.contains("&filters"));
    }
}
