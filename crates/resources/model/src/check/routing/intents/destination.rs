//! A DestinationRule with the parts of it that are not in force yet.

use std::sync::Arc;

use crate::check::destination::whole;
use crate::check::values::{self, Meta};
use crate::decode::Report;
use crate::mesh::routing_intent::{ClientTls, ClientTlsMode, Destination, DestinationSubset};
use crate::names::Port;
use crate::written::destination as written;

/// Istio's words for how clients speak.
const MODES: [(&str, ClientTlsMode); 4] = [
    ("DISABLE", ClientTlsMode::Disable),
    ("SIMPLE", ClientTlsMode::Simple),
    ("MUTUAL", ClientTlsMode::Mutual),
    ("ISTIO_MUTUAL", ClientTlsMode::IstioMutual),
];

/// None when it does not say for which host it is.
pub(in crate::check) fn destination(
    meta: &Meta,
    written: &written::DestinationRule,
    report: &Report,
) -> Option<Destination> {
    // Not through `report`: the check of the resource in force reports its errors.
    let silent = Report::new("".into());
    let host = whole(written.host.as_ref()?, &meta.name, &silent)?;
    let mut tls = Vec::new();
    let subsets = written.subsets.iter().filter_map(|subset| {
        let name = subset.name.as_ref()?.value.clone();
        Some(DestinationSubset {
            labels: values::labels(&subset.labels, &silent),
            source: report.source(&subset.at),
            name,
        })
    });
    let subsets: Vec<_> = subsets.collect();
    all_tls(&written.policy, None, &mut tls, report);
    for subset in &written.subsets {
        let name = subset.name.as_ref().map(|name| name.value.clone());
        all_tls(&subset.policy, name, &mut tls, report);
    }
    let policy = &written.policy;
    let failover = policy
        .failover
        .as_ref()
        .filter(|_| policy.level.outliers.is_none());
    Some(Destination {
        name: meta.name.clone(),
        source: meta.source.clone(),
        host,
        visibility: values::visibility(&written.export_to, &meta.name.namespace, &silent),
        selector: values::selector(written.selector.as_ref(), report),
        subsets,
        tls,
        failover_without_ejection: failover.map(|at| report.source(at)),
    })
}

fn all_tls(
    policy: &written::TrafficPolicy,
    subset: Option<Arc<str>>,
    all: &mut Vec<ClientTls>,
    report: &Report,
) {
    let mut add = |tls: &Option<written::ClientTls>, port: Option<Port>| {
        let Some(tls) = tls else { return };
        // Without a mode it is plaintext, as in Istio.
        let mode = match &tls.mode {
            Some(text) => report.one_of(text, &MODES),
            None => Some(ClientTlsMode::Disable),
        };
        let Some(mode) = mode else { return };
        all.push(ClientTls {
            source: report.source(&tls.at),
            mode,
            port,
            subset: subset.clone(),
            credential: tls.credential_name.as_ref().map(|text| text.value.clone()),
            unverified: tls.insecure.as_ref().is_some_and(|flag| flag.value),
        });
    };
    add(&policy.tls, None);
    for settings in &policy.ports {
        let number = settings.number.as_ref();
        let port = number.and_then(|n| u16::try_from(n.value).ok().and_then(Port::new));
        if port.is_some() {
            add(&settings.tls, port);
        }
    }
}
