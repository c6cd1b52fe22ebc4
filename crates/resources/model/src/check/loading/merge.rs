//! Merges DestinationRules of one namespace for one host and the same clients, as Istio does: all subsets, and the
//! oldest `trafficPolicy`. Parts that Istio drops silently are errors with a location: a subset whose name an older
//! rule has, a second policy, clients with two rules.

use std::collections::HashMap;
use std::sync::Arc;

use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::mesh::{DestinationRule, TrafficPolicy, Visibility};
use crate::names::{Hostname, Labels, Namespace};

/// Merges the rules. `rules` are in order of age, and stay so.
pub(in crate::check) fn merge(
    rules: &mut Vec<Arc<DestinationRule>>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    type Clients = (Visibility, Option<Labels>);
    let mut places: HashMap<(Namespace, Hostname, Clients), usize> = HashMap::new();
    let mut groups: Vec<Vec<Arc<DestinationRule>>> = Vec::new();
    for rule in rules.drain(..) {
        let clients = (rule.visibility.clone(), rule.selector.clone());
        let key = (rule.name.namespace.clone(), rule.host.clone(), clients);
        let place = *places.entry(key).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.push(rule),
            None => groups.push(vec![rule]),
        }
    }
    let one = |group: Vec<Arc<DestinationRule>>| match &*group {
        [alone] => Arc::clone(alone),
        several => together(several, diagnostics).into(),
    };
    rules.extend(groups.into_iter().map(one));
    // A rule for all is no rival of one that names some.
    let mut naming: HashMap<(&Namespace, &Hostname), Vec<&DestinationRule>> = HashMap::new();
    for rule in rules.iter() {
        if rule.visibility == Visibility::Public || rule.selector.is_some() {
            continue;
        }
        let of_host = naming.entry((&rule.name.namespace, &rule.host));
        let of_host = of_host.or_default();
        diagnostics.extend(of_host.iter().find_map(|older| rivals(older, rule)));
        of_host.push(rule);
    }
}

/// Reports the parts of a rule that are not in force because an older rule for the same host names the same clients.
fn rivals(older: &DestinationRule, rule: &DestinationRule) -> Option<Diagnostic> {
    let (Visibility::Namespaces(known), Visibility::Namespaces(named)) =
        (&older.visibility, &rule.visibility)
    else {
        return None;
    };
    let both = named.iter().find(|namespace| known.contains(namespace))?;
    let message = format!(
        "DestinationRule {} is not in force for clients of namespace {both}: {} in {} is older and is also exported to it",
        rule.name, older.name, older.source
    );
    let diagnostic = Diagnostic::error(codes::CLASH, rule.source.clone(), message);
    let help = "export the rules for one host to different namespaces, or all to the same namespaces, which merges them";
    Some(diagnostic.field("spec.exportTo").help(help))
}

/// The one that several make, the oldest first.
fn together(rules: &[Arc<DestinationRule>], diagnostics: &mut Vec<Diagnostic>) -> DestinationRule {
    let mut idle = |what: String, of: &DestinationRule, held: &DestinationRule, field, help| {
        let message = format!(
            "{what} of DestinationRule {} is not in force: {} in {} is older and has one for {}",
            of.name, held.name, held.source, of.host
        );
        let diagnostic = Diagnostic::error(codes::CLASH, of.source.clone(), message);
        diagnostics.push(diagnostic.field(field).help(help));
    };
    let mut made = DestinationRule::clone(&rules[0]);
    let mut of_policy: Option<&DestinationRule> = None;
    let mut of_subset: HashMap<&str, &DestinationRule> = HashMap::new();
    for rule in rules {
        if rule.policy != TrafficPolicy::default() {
            match of_policy {
                None => {
                    made.policy.clone_from(&rule.policy);
                    of_policy = Some(rule);
                }
                Some(held) => {
                    let help = "write `trafficPolicy` in one rule for each host: it applies to all subsets";
                    let what = "`trafficPolicy`".to_owned();
                    idle(what, rule, held, "spec.trafficPolicy", help);
                }
            }
        }
        for (name, subset) in &rule.subsets {
            if let Some(held) = of_subset.get(&**name) {
                let help = "give one of the two subsets another name, or keep one of them";
                idle(format!("subset `{name}`"), rule, held, "spec.subsets", help);
                continue;
            }
            of_subset.insert(name, rule);
            made.subsets.insert(Arc::clone(name), subset.clone());
        }
    }
    let others = rules[1..].iter();
    made.merged = others
        .map(|rule| (rule.name.clone(), rule.source.clone()))
        .collect();
    made
}
