//! Check of PeerAuthentication. An invalid setting never weakens security. An invalid mode counts as STRICT; an invalid
//! port makes the whole resource STRICT. An invalid label drops out of the selector, which then selects more.

use std::collections::BTreeMap;

use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{Cursor, Fields, Report, Text};
use crate::mesh::{MutualTlsMode, PeerAuthentication, PortMode};
use crate::names::Port;
use crate::text::clip;

const MODES: [(&str, Option<MutualTlsMode>); 4] = [
    ("UNSET", None),
    ("DISABLE", Some(MutualTlsMode::Disable)),
    ("PERMISSIVE", Some(MutualTlsMode::Permissive)),
    ("STRICT", Some(MutualTlsMode::Strict)),
];

pub(in crate::check) fn peer_authentication(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> PeerAuthentication {
    let mut policy = PeerAuthentication {
        name: meta.name,
        source: meta.source,
        created: meta.created,
        selector: None,
        mode: None,
        port_modes: BTreeMap::new(),
    };
    fields.ignore(&["status"]);
    let ports = fields.mapping("spec", |spec| {
        policy.selector = values::selected(spec, "selector", "matchLabels");
        policy.mode = spec.mapping("mtls", mode).flatten();
        spec.get("portLevelMtls")
            .map(|ports| port_modes(&ports, &mut policy))
    });
    // A selector may stand in a field that is not known, too.
    if policy.selector.is_none() && !report.failed_where(|field| field.contains(".selector")) {
        for key in ports.flatten().unwrap_or_default() {
            let message = format!(
                "the mode of port {} is not enforced: Istio rejects portLevelMtls without a selector",
                clip(&key.value)
            );
            let help = "add spec.selector with the labels of the workloads that have the port";
            report.error(codes::PORT_LEVEL_WITHOUT_SELECTOR, &key.at, message, help);
        }
    }
    policy
}

/// `mode`; one that is not allowed counts as STRICT.
fn mode(fields: &mut Fields<'_>) -> Option<MutualTlsMode> {
    let text = fields.text("mode")?;
    let mode = fields.report().one_of(&text, &MODES);
    mode.unwrap_or(Some(MutualTlsMode::Strict))
}

/// Reads `portLevelMtls` and returns its keys.
fn port_modes(ports: &Cursor<'_>, policy: &mut PeerAuthentication) -> Vec<Text> {
    let report = ports.report();
    let entries = ports.entries();
    if entries.is_empty() {
        let help = "write a port and its mode, or remove it";
        report.error(
            codes::BAD_VALUE,
            ports.at(),
            "`portLevelMtls` is empty",
            help,
        );
    }
    let mut keys = Vec::new();
    for (key, fields) in entries {
        let parse = |text: &str| text.parse().ok().and_then(Port::new);
        let help = "the key is the number of a port of the workload, 1 to 65535";
        let port = report.parsed(&key, "a port", parse, help);
        let mode = PortMode {
            mode: fields.mapping(mode).flatten(),
            source: report.source(&key.at),
        };
        match port {
            // The port is unreadable and may be any.
            None => policy.mode = Some(MutualTlsMode::Strict),
            Some(port) => {
                if policy.port_modes.insert(port, mode).is_some() {
                    let message = format!("port {port} is written twice");
                    report.error(codes::DUPLICATE_KEY, &key.at, message, "");
                }
            }
        }
        keys.push(key);
    }
    keys
}
