//! Check of PeerAuthentication. An invalid setting never weakens security. An invalid mode counts as STRICT; an invalid
//! port makes the whole resource STRICT. An invalid label drops out of the selector, which then selects more.

use std::collections::BTreeMap;

use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{Fields, Report};
use crate::mesh::{MutualTlsMode, PeerAuthentication, PortMode};
use crate::names::Port;
use crate::text::clip;
use crate::written::{Selector, Text, security as written};

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
    let written = written::PeerAuthentication::read(fields);
    let mode = |text: Option<&Text>| text.map_or(Some(None), |text| report.one_of(text, &MODES));
    let mut of_workload = mode(written.mode.as_ref()).unwrap_or(Some(MutualTlsMode::Strict));
    let mut port_modes = BTreeMap::new();
    for (key, text) in &written.ports {
        let help = "the key is the number of a port of the workload, 1 to 65535";
        let port = report.parsed(
            key,
            "a port",
            |text| text.parse().ok().and_then(Port::new),
            help,
        );
        if port.is_none() {
            // The port is unreadable and may be any.
            of_workload = Some(MutualTlsMode::Strict);
        }
        let mode_of_port = mode(text.as_ref()).unwrap_or(Some(MutualTlsMode::Strict));
        if let (Some(port), mode) = (port, mode_of_port)
            && port_modes
                .insert(
                    port,
                    PortMode {
                        mode,
                        source: report.source(&key.at),
                    },
                )
                .is_some()
        {
            report.error(
                codes::DUPLICATE_KEY,
                &key.at,
                format!("port {port} is written twice"),
                "",
            );
        }
    }
    let selector = values::selector(written.selector.as_ref(), report);
    if let Some(at) = written
        .ports_at
        .as_ref()
        .filter(|_| written.ports.is_empty())
    {
        let help = "write a port and its mode, or remove it";
        report.error(codes::BAD_VALUE, at, "`portLevelMtls` is empty", help);
    }
    let names_labels = |selector: &Selector| !selector.labels.is_empty();
    let selects = written.selector.as_ref().is_some_and(names_labels);
    if !selects && !report.failed_where(|field| field.contains(".selector")) {
        for (key, _) in &written.ports {
            let message = format!(
                "the mode of port {} is not enforced: Istio rejects portLevelMtls without a selector",
                clip(&key.value)
            );
            let help = "add spec.selector with the labels of the workloads that have the port";
            report.error(codes::PORT_LEVEL_WITHOUT_SELECTOR, &key.at, message, help);
        }
    }
    PeerAuthentication {
        name: meta.name,
        source: meta.source,
        created: meta.created,
        selector,
        mode: of_workload,
        port_modes,
    }
}
