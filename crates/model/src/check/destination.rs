//! Check of DestinationRule. Policies are told to clients by service, the same to all of them; what only some clients are
//! to obey (a rule in a namespace that is not the service's, `exportTo`) is refused by name and not widened.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::H2_UPGRADE_POLICIES;
use super::intents;
use super::values::{self, Meta};
use crate::codes;
use crate::decode::{Fields, Report};
use crate::mesh::intent::Intent;
use crate::mesh::{ConnectionPool, DestinationRule, Subset, TrafficPolicy};
use crate::names::{CLUSTER_DOMAIN, Hostname, ResourceName};
use crate::written::{Text, destination as written};

pub(super) fn destination_rule(
    meta: Meta,
    fields: &mut Fields<'_>,
    intents: &mut Vec<Intent>,
    report: &Report,
) -> Option<DestinationRule> {
    let written = report.required(written::DestinationRule::read(fields), &meta.at, "spec")?;
    let intent = intents::destination(&meta, &written, report);
    intents.extend(intent.map(|intent| Intent::Destination(intent.into())));
    let host = report
        .required(written.host.as_ref(), &written.at, "host")
        .and_then(|host| whole(host, &meta.name, report));
    for text in written.export_to.iter().filter(|text| &*text.value != "*") {
        report.error(
            codes::NOT_YET,
            &text.at,
            "`exportTo` is not yet supported in a DestinationRule, and would not be in force",
            "a rule holds for all clients of its service",
        );
    }
    let policy = policy(&written.policy, report);
    let mut subsets = BTreeMap::new();
    for subset in &written.subsets {
        let name = report.required(subset.name.as_ref(), &subset.at, "name");
        let Some(name) = name.and_then(|name| values::label_name(name, "a subset", report)) else {
            continue;
        };
        let made = Subset {
            labels: values::labels(&subset.labels, report),
            policy: self::policy(&subset.policy, report),
        };
        if subsets.insert(Arc::clone(&name), made).is_some() {
            let message = format!("subset `{name}` is written twice");
            report.error(codes::DUPLICATE_KEY, &subset.at, message, "keep one");
        }
    }
    Some(DestinationRule {
        name: meta.name,
        source: meta.source,
        created: meta.created,
        host: host?,
        policy,
        subsets,
    })
}

/// A name without a dot is a Service of the rule's namespace, as in Istio.
pub(super) fn whole(host: &Text, rule: &ResourceName, report: &Report) -> Option<Hostname> {
    let name = values::hostname(host, report)?;
    if name.as_str().contains(['.', '*']) {
        return Some(name);
    }
    let namespace = &rule.namespace;
    Hostname::new(&format!("{name}.{namespace}.svc.{CLUSTER_DOMAIN}"))
}

fn policy(written: &written::TrafficPolicy, report: &Report) -> TrafficPolicy {
    let pool = |pool: &Option<_>| pool.as_ref().and_then(|pool| self::pool(pool, report));
    let mut ports = BTreeMap::new();
    for settings in &written.ports {
        let number = report.required(settings.number.as_ref(), &settings.at, "port.number");
        let Some(port) = number.and_then(|number| report.port(number)) else {
            continue;
        };
        if ports.insert(port, pool(&settings.pool)).is_some() {
            let message = format!("port {port} is written twice");
            report.error(codes::DUPLICATE_KEY, &settings.at, message, "keep one");
        }
    }
    TrafficPolicy {
        pool: pool(&written.pool),
        ports,
    }
}

fn pool(written: &written::ConnectionPool, report: &Report) -> Option<ConnectionPool> {
    let [keep, upgrade] = H2_UPGRADE_POLICIES.map(|(word, value)| (word, Some(value)));
    let words = [("DEFAULT", None), keep, upgrade];
    let http2_upgrade = match &written.h2_upgrade_policy {
        Some(text) => report.one_of(text, &words)?,
        None => None,
    };
    let use_client_protocol = written.use_client_protocol.as_ref();
    Some(ConnectionPool {
        http2_upgrade,
        use_client_protocol: use_client_protocol.is_some_and(|flag| flag.value),
    })
}
