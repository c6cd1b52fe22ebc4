//! Selects the DestinationRule of a client: from its own namespace, else from the service's, else from the root
//! namespace. Only rules exported to the client count. A rule that is not for a client does not exist for it, so it
//! never hides another rule.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::DestinationRule;
use crate::mesh::{Mesh, MeshService, Visibility, Workload};
use crate::names::{Labels, Namespace};

/// A client, as far as rules distinguish clients. The default is a client that no rule names.
#[derive(Debug, Clone, Copy, Default)]
pub struct RuleClient<'a> {
    /// Its namespace.
    pub namespace: Option<&'a Namespace>,
    /// Its labels; without labels no selector matches.
    pub labels: Option<&'a Labels>,
}

impl<'a> RuleClient<'a> {
    /// A workload.
    #[must_use]
    pub fn of(workload: &'a Workload) -> Self {
        Self {
            namespace: Some(&workload.key.namespace),
            labels: Some(&workload.labels),
        }
    }

    /// A client of a namespace that no rule selects.
    #[must_use]
    pub fn within(namespace: Option<&'a Namespace>) -> Self {
        Self {
            namespace,
            labels: None,
        }
    }
}

impl Mesh {
    /// The rule that a client obeys when it calls a service. In each namespace that is the one for its very name, else the longest
    /// pattern; of one host one that selects the client, else one that names its namespace, and then the oldest.
    pub fn destination_rule(
        &self,
        service: &MeshService,
        client: RuleClient<'_>,
    ) -> Option<&Arc<DestinationRule>> {
        let root = &self.config.root_namespace;
        let of = |namespace: &Namespace, kept_in: bool| {
            let covering = self.destination_rules.covering(&service.key.hostname);
            let mut holding = covering.filter(|rule| {
                rule.name.namespace == *namespace
                    && (!kept_in || rule.visibility != Visibility::Public)
                    && rule.is_for(client)
            });
            let first = holding.next()?;
            Some(
                holding.fold(first, |best, rule| match rule.rank() > best.rank() {
                    true => rule,
                    false => best,
                }),
            )
        };
        // For clients in the root namespace, too, the rules of that namespace for all clients come last.
        let own = client.namespace;
        let own = own.and_then(|namespace| of(namespace, namespace == root));
        let of_service = || of(&service.key.namespace, false);
        own.or_else(of_service).or_else(|| of(root, false))
    }

    /// Namespaces whose clients may get another rule than clients that no rule names.
    pub fn namespaces_apart(&self, service: &MeshService) -> BTreeSet<&Namespace> {
        let own = [&service.key.namespace, &self.config.root_namespace];
        let mut apart = BTreeSet::new();
        for rule in self.destination_rules.covering(&service.key.hostname) {
            let home = &rule.name.namespace;
            let for_all = rule.visibility == Visibility::Public && own.contains(&home);
            if for_all {
                continue;
            }
            apart.insert(home);
            if let Visibility::Namespaces(list) = &rule.visibility {
                apart.extend(list);
            }
        }
        apart
    }

    /// The rules that some clients of a namespace obey because they are selected, the first that selects a client first.
    pub fn selecting_rules(
        &self,
        service: &MeshService,
        namespace: &Namespace,
    ) -> Vec<&Arc<DestinationRule>> {
        let holds = |rule: &&Arc<DestinationRule>| {
            let of = rule.name.namespace == *namespace && rule.selector.is_some();
            let client = RuleClient {
                namespace: Some(namespace),
                labels: rule.selector.as_ref(),
            };
            let holding = || self.destination_rule(service, client);
            of && holding().is_some_and(|one| Arc::ptr_eq(one, rule))
        };
        let covering = self.destination_rules.covering(&service.key.hostname);
        let mut all: Vec<_> = covering.filter(holds).collect();
        all.sort_by_key(|rule| std::cmp::Reverse(rule.rank()));
        all
    }

    /// All rules that some client obeys when it calls a service, in the order in which they go before each other.
    pub fn destination_rules_of(&self, service: &MeshService) -> Vec<&Arc<DestinationRule>> {
        let apart = self.namespaces_apart(service).into_iter();
        let apart = apart.flat_map(|namespace| {
            let mut all = self.selecting_rules(service, namespace);
            all.extend(self.destination_rule(service, RuleClient::within(Some(namespace))));
            all
        });
        let general = self.destination_rule(service, RuleClient::default());
        let obeyed: Vec<_> = apart.chain(general).collect();
        let is_obeyed =
            |rule: &&Arc<DestinationRule>| obeyed.iter().any(|one| Arc::ptr_eq(one, rule));
        let covering = self.destination_rules.covering(&service.key.hostname);
        let mut all: Vec<_> = covering.filter(is_obeyed).collect();
        all.sort_by_key(|rule| std::cmp::Reverse(rule.rank()));
        all
    }

    /// Returns true if the service has a subset of this name for the client. Without the client's labels, one client of
    /// its namespace with the subset is enough.
    pub fn has_subset(&self, service: &MeshService, name: &str, client: RuleClient<'_>) -> bool {
        let has = |rule: &Arc<DestinationRule>| rule.subsets.contains_key(name);
        if self.destination_rule(service, client).is_some_and(has) {
            return true;
        }
        let unsaid = client.namespace.filter(|_| client.labels.is_none());
        unsaid.is_some_and(|namespace| {
            let mut all = self.selecting_rules(service, namespace).into_iter();
            all.any(has)
        })
    }
}

impl DestinationRule {
    /// Returns true if the rule applies to the client.
    fn is_for(&self, client: RuleClient<'_>) -> bool {
        let seen = match (&self.visibility, client.namespace) {
            (Visibility::Public, _) => true,
            (visibility, Some(namespace)) => visibility.includes(namespace),
            (Visibility::Namespaces(_), None) => false,
        };
        let selects = |selector: &Labels| client.labels.is_some_and(|own| selector.selects(own));
        seen && self.selector.as_ref().is_none_or(selects)
    }

    /// Precedence among rules of one namespace.
    fn rank(&self) -> (bool, usize, bool, bool) {
        let names_clients = self.visibility != Visibility::Public;
        let (host, selects) = (&self.host, self.selector.is_some());
        let length = host.as_str().len();
        (!host.is_wildcard(), length, selects, names_clients)
    }
}
