//! Check of DestinationRule: how a service is called, and by which of its clients (`exportTo`, `workloadSelector`).

mod origin;
mod success_rate;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::check::values::{self, Meta};
use crate::check::{intents, traffic_policy};
use crate::codes;
use crate::decode::{Fields, Report};
use crate::mesh::routing_intent::RoutingIntent;
use crate::mesh::traffic::ProxyProtocol;
use crate::mesh::{DestinationRule, PolicyLevel, Subset, TrafficPolicy, Visibility};
use crate::names::{CLUSTER_DOMAIN, Hostname, Namespace, ResourceName};
use crate::written::traffic::WrittenPolicyLevel;
use crate::written::{Text, TextMap, destination as written};

pub(in crate::check) fn destination_rule(
    (meta, annotations): (Meta, &TextMap),
    fields: &mut Fields<'_>,
    intents: &mut Vec<RoutingIntent>,
    report: &Report,
) -> Option<DestinationRule> {
    let written = report.required(written::DestinationRule::read(fields), &meta.at, "spec")?;
    let intent = intents::destination(&meta, &written, report);
    intents.extend(intent.map(|intent| RoutingIntent::Destination(intent.into())));
    let host = report
        .required(written.host.as_ref(), &written.at, "host")
        .and_then(|host| whole(host, &meta.name, report));
    let visibility = clients(&written, &meta.name.namespace, report);
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
    let rates = success_rate::read(annotations, report);
    let mut rule = DestinationRule {
        name: meta.name,
        source: meta.source,
        created: meta.created,
        host: host?,
        visibility,
        selector: values::selector(written.selector.as_ref(), report),
        policy,
        subsets,
        merged: Vec::new(),
    };
    if let Some((rate, at)) = rates {
        success_rate::compare(&mut rule, rate, &at, report);
    }
    Some(rule)
}

/// The clients of the rule. A selector selects workloads of the rule's own namespace; Istio then ignores other values
/// of `exportTo`.
fn clients(written: &written::DestinationRule, own: &Namespace, report: &Report) -> Visibility {
    if written.selector.is_none() {
        let mut visibility = values::visibility(&written.export_to, own, report);
        if let Visibility::Namespaces(list) = &mut visibility {
            list.sort_unstable();
            list.dedup();
        }
        return visibility;
    }
    let others = written.export_to.iter();
    for text in others.filter(|text| !["*", ".", own.as_str()].contains(&&*text.value)) {
        report.error(
            codes::CONTRADICTION,
            &text.at,
            format!(
                "`{}` in `exportTo` has no effect together with `workloadSelector`",
                text.value
            ),
            "remove one of the two: `workloadSelector` selects clients in the rule's own namespace",
        );
    }
    Visibility::Namespaces(vec![own.clone()])
}

/// A name without a dot is a Service of the rule's namespace, as in Istio.
pub(in crate::check) fn whole(
    host: &Text,
    rule: &ResourceName,
    report: &Report,
) -> Option<Hostname> {
    let name = values::hostname(host, report)?;
    if name.as_str().contains(['.', '*']) {
        return Some(name);
    }
    let namespace = &rule.namespace;
    Hostname::new(&format!("{name}.{namespace}.svc.{CLUSTER_DOMAIN}"))
}

fn policy(written: &written::TrafficPolicy, report: &Report) -> TrafficPolicy {
    let mut ports = BTreeMap::new();
    for settings in &written.ports {
        let number = report.required(settings.number.as_ref(), &settings.at, "port.number");
        let Some(port) = number.and_then(|number| report.port(number)) else {
            continue;
        };
        let level = level(&settings.level, settings.tls.as_ref(), report);
        if ports.insert(port, level).is_some() {
            let message = format!("port {port} is written twice");
            report.error(codes::DUPLICATE_KEY, &settings.at, message, "keep one");
        }
    }
    let budget = written.retry_budget.as_ref();
    let header = written.proxy_protocol.as_ref();
    TrafficPolicy {
        whole: PolicyLevel {
            retry_budget: budget.map(|budget| traffic_policy::retry_budget(budget, report)),
            proxy_protocol: header.and_then(|version| proxy_protocol(version.as_ref(), report)),
            ..level(&written.level, written.tls.as_ref(), report)
        },
        ports,
    }
}

fn level(
    written: &WrittenPolicyLevel,
    tls: Option<&written::ClientTls>,
    report: &Report,
) -> PolicyLevel {
    let (balancer, outliers) = (written.balancer.as_ref(), written.outliers.as_ref());
    let pool = written.pool.as_ref();
    PolicyLevel {
        balancer: balancer.map(|balancer| traffic_policy::balancer(balancer, report)),
        outliers: outliers.map(|outliers| traffic_policy::outliers(outliers, report)),
        pool: pool.and_then(|pool| traffic_policy::pool(pool, report)),
        retry_budget: None,
        proxy_protocol: None,
        tls: tls.and_then(|tls| origin::tls(tls, report)),
    }
}

/// Without a word it is the first version, as in Istio.
fn proxy_protocol(version: Option<&Text>, report: &Report) -> Option<ProxyProtocol> {
    const VERSIONS: [(&str, ProxyProtocol); 2] =
        [("V1", ProxyProtocol::V1), ("V2", ProxyProtocol::V2)];
    match version {
        None => Some(ProxyProtocol::V1),
        Some(text) => report.one_of(text, &VERSIONS),
    }
}
