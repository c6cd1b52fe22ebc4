//! Check of DestinationRule: how a service is called, and by which of its clients (`exportTo`, `workloadSelector`).
//! Analysis also sees a rule that is not in force because of its errors.

mod origin;
mod success_rate;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::check::traffic_policy;
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{Fields, Report, Text, TextMap};
use crate::mesh::routing_intent::{
    ClientTls, ClientTlsMode, Destination, DestinationSubset, RoutingIntent,
};
use crate::mesh::traffic::{self, ProxyProtocol};
use crate::mesh::{DestinationRule, Subset, TrafficPolicy, Visibility};
use crate::names::{CLUSTER_DOMAIN, Hostname, Namespace, Port, ResourceName};
use crate::source::Source;
use origin::TlsFields;

/// Istio's words for how clients speak.
const MODES: [(&str, ClientTlsMode); 4] = [
    ("DISABLE", ClientTlsMode::Disable),
    ("SIMPLE", ClientTlsMode::Simple),
    ("MUTUAL", ClientTlsMode::Mutual),
    ("ISTIO_MUTUAL", ClientTlsMode::IstioMutual),
];

/// What analysis wants to know of a policy besides its meaning.
#[derive(Default)]
struct PolicyPlaces {
    tls: Vec<ClientTls>,
    subsets: Vec<DestinationSubset>,
}

pub(in crate::check) fn destination_rule(
    (meta, annotations): (Meta, &TextMap),
    fields: &mut Fields<'_>,
    intents: &mut Vec<RoutingIntent>,
    report: &Report,
) -> Option<DestinationRule> {
    fields.ignore(&["status"]);
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let host = report.required(spec.text("host"), spec.at(), "host");
    let host = host.and_then(|host| whole(&host, &meta.name, report));
    let mut places = PolicyPlaces::default();
    let (policy, failover) = policy(&mut spec, None, &mut places);
    let subsets = subsets(&mut spec, &mut places);
    let export_to = spec.texts("exportTo");
    let selector = values::selector_labels(&mut spec, "workloadSelector", "matchLabels");
    let own = &meta.name.namespace;
    let [exported, visibility] = clients(&export_to, selector.is_some(), own, report);
    let selector = selector.filter(|labels| !labels.is_empty());
    spec.finish();
    let rates = success_rate::read(annotations, report);
    let host = host?;
    let intent = Destination {
        name: meta.name.clone(),
        source: meta.source.clone(),
        host: host.clone(),
        visibility: exported,
        selector: selector.clone(),
        subsets: places.subsets,
        tls: places.tls,
        failover_without_ejection: failover,
    };
    intents.push(RoutingIntent::Destination(intent.into()));
    let mut rule = DestinationRule {
        name: meta.name,
        source: meta.source,
        created: meta.created,
        host,
        visibility,
        selector,
        policy,
        subsets,
        merged: Vec::new(),
    };
    if let Some((rate, at)) = rates {
        success_rate::compare(&mut rule, rate, &at, report);
    }
    Some(rule)
}

/// The clients that `exportTo` names, and those of the rule. A selector selects workloads of the rule's own namespace;
/// Istio then ignores other values of `exportTo`.
fn clients(list: &[Text], selects: bool, own: &Namespace, report: &Report) -> [Visibility; 2] {
    if !selects {
        let mut visibility = values::visibility(list, own, report);
        if let Visibility::Namespaces(list) = &mut visibility {
            list.sort_unstable();
            list.dedup();
        }
        return [visibility.clone(), visibility];
    }
    let idle = |text: &&Text| !["*", ".", own.as_str()].contains(&&*text.value);
    for text in list.iter().filter(idle) {
        let message = format!(
            "`{}` in `exportTo` has no effect together with `workloadSelector`",
            text.value
        );
        let help =
            "remove one of the two: `workloadSelector` selects clients in the rule's own namespace";
        report.error(codes::CONTRADICTION, &text.at, message, help);
    }
    let exported = values::visibility(list, own, &Report::new("".into()));
    [exported, Visibility::Namespaces(vec![own.clone()])]
}

fn subsets(spec: &mut Fields<'_>, places: &mut PolicyPlaces) -> BTreeMap<Arc<str>, Subset> {
    let report = spec.report();
    let mut subsets = BTreeMap::new();
    spec.mappings("subsets", |fields| {
        let text = report.required(fields.text("name"), fields.at(), "name");
        let labels = values::labels(&fields.text_map("labels"), report);
        let called = text.as_ref().map(|name| name.value.clone());
        let (policy, _) = policy(fields, called.clone(), places);
        places.subsets.push(DestinationSubset {
            name: called?,
            labels: labels.clone(),
            source: report.source(fields.at()),
        });
        let name = values::label_name(&text?, "a subset", report)?;
        let subset = Subset { labels, policy };
        if subsets.insert(Arc::clone(&name), subset).is_some() {
            let message = format!("subset `{name}` is written twice");
            report.error(codes::DUPLICATE_KEY, fields.at(), message, "keep one");
        }
        Some(())
    });
    subsets
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

/// `trafficPolicy`, and the place of a failover without outlier detection, which alone would trigger it.
fn policy(
    parent: &mut Fields<'_>,
    subset: Option<Arc<str>>,
    places: &mut PolicyPlaces,
) -> (TrafficPolicy, Option<Source>) {
    let report = parent.report();
    let policy = parent.mapping("trafficPolicy", |fields| {
        let mut ports = BTreeMap::new();
        let first = places.tls.len();
        let mut whole = traffic_policy::level(fields);
        whole.retry_budget = fields.mapping("retryBudget", traffic_policy::retry_budget);
        fields.mappings("portLevelSettings", |fields| {
            let number = fields.mapping("port", |port| port.integer("number"));
            let number = report.required(number.flatten(), fields.at(), "port.number");
            let port = number.and_then(|number| report.port(&number));
            let mut level = traffic_policy::level(fields);
            let place = port.map(|port| (places.tls.len(), Some(port)));
            level.tls = tls(fields, &subset, place, places);
            if ports.insert(port?, level).is_some() {
                let message = format!("port {} is written twice", port?);
                report.error(codes::DUPLICATE_KEY, fields.at(), message, "keep one");
            }
            Some(())
        });
        whole.tls = tls(fields, &subset, Some((first, None)), places);
        whole.proxy_protocol = fields.mapping("proxyProtocol", proxy_protocol).flatten();
        let failover = failover(fields).filter(|_| whole.outliers.is_none());
        fields.not_yet(&["tunnel"]);
        (TrafficPolicy { whole, ports }, failover)
    });
    policy.unwrap_or_default()
}

/// `tls` of a port or of all ports, which gets a place among those that analysis wants to know.
fn tls(
    fields: &mut Fields<'_>,
    subset: &Option<Arc<str>>,
    place: Option<(usize, Option<Port>)>,
    places: &mut PolicyPlaces,
) -> Option<traffic::ClientTls> {
    let report = fields.report();
    let tls = fields.mapping("tls", |fields| {
        let tls = TlsFields::read(fields);
        // Without a mode it is plaintext, as in Istio.
        let mode = match &tls.mode {
            Some(text) => report.one_of(text, &MODES)?,
            None => ClientTlsMode::Disable,
        };
        if let Some((place, port)) = place {
            let known = ClientTls {
                source: report.source(&tls.at),
                mode,
                port,
                subset: subset.clone(),
                credential: tls.credential_name.as_ref().map(|text| text.value.clone()),
                unverified: tls.unverified,
            };
            places.tls.insert(place, known);
        }
        origin::tls(&tls, mode, report)
    });
    tls.flatten()
}

/// Without a word it is the first version, as in Istio.
fn proxy_protocol(fields: &mut Fields<'_>) -> Option<ProxyProtocol> {
    const VERSIONS: [(&str, ProxyProtocol); 2] =
        [("V1", ProxyProtocol::V1), ("V2", ProxyProtocol::V2)];
    match fields.text("version") {
        None => Some(ProxyProtocol::V1),
        Some(text) => fields.report().one_of(&text, &VERSIONS),
    }
}

/// Location of the failover setting of a `loadBalancer`.
fn failover(policy: &mut Fields<'_>) -> Option<Source> {
    let mut locality = policy.inner("loadBalancer")?.inner("localityLbSetting")?;
    let disabled = locality.boolean("enabled").is_some_and(|flag| !flag.value);
    let asked = ["failover", "failoverPriority"]
        .into_iter()
        .find_map(|field| locality.get(field))?;
    (!disabled).then(|| policy.report().source(asked.at()))
}
