//! Checks the callers that policies name, and reports impossible ones. An ALLOW rule with a misspelt caller allows no
//! request. A DENY rule with one denies no request, which is worse and goes unnoticed.

use std::collections::BTreeSet;
use std::sync::Arc;

use voile_model::mesh::Mesh;
use voile_model::mesh::authorization::{
    AuthorizationAction, AuthorizationPolicy, Matches, PolicyTarget, ServiceAccountName,
    SourceMatch, StringMatch, WhenCondition,
};
use voile_model::{Diagnostic, Source, did_you_mean, nearest, nearest_name};

use crate::codes;
use crate::view::ClientView;

/// The service account that every namespace has.
const DEFAULT: &str = "default";

/// All possible callers.
struct Callers<'a> {
    accounts: BTreeSet<(&'a str, &'a str)>,
    namespaces: BTreeSet<&'a str>,
    domains: BTreeSet<&'a str>,
}

/// Checks the callers that AuthorizationPolicies name, and whether a DENY policy leaves an ALLOW policy nothing.
pub(crate) fn check(view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
    let callers = Callers::of(view);
    for policy in view.mesh.authorization_policies.values() {
        let mut said = BTreeSet::new();
        for rule in &policy.rules {
            let mut say = |wrong: UnknownCaller, excluded: bool| {
                if said.insert((wrong.what.clone(), excluded)) {
                    found.push(unknown(policy, &rule.source, &wrong, excluded));
                }
            };
            for from in &rule.from {
                callers.source(from, &mut say);
            }
            for when in &rule.when {
                callers.condition(when, &mut say);
            }
        }
    }
    denied_anyway(view.mesh, found);
}

/// A caller that cannot exist.
struct UnknownCaller {
    /// One clause.
    what: String,
    /// The value that was probably meant.
    meant: Option<String>,
    /// The missing resource.
    lacks: Option<String>,
}

fn unknown(
    policy: &AuthorizationPolicy,
    at: &Source,
    wrong: &UnknownCaller,
    excluded: bool,
) -> Diagnostic {
    let effect = match (&policy.action, excluded) {
        (AuthorizationAction::Allow, false) => "no caller matches, so it allows none",
        (AuthorizationAction::Deny, false) => "no caller matches, so it denies none",
        (AuthorizationAction::Audit | AuthorizationAction::Custom(_), false) => "no caller matches",
        (_, true) => "no caller is excepted",
    };
    let said = format!(
        "AuthorizationPolicy {}: {}; {effect}",
        policy.name, wrong.what
    );
    let correct = "declare the ServiceAccount, or correct the name: TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT";
    let diagnostic = Diagnostic::warning(codes::UNKNOWN_PRINCIPAL, at.clone(), said);
    let help = did_you_mean(wrong.meant.as_ref(), correct);
    let mut diagnostic = diagnostic.field("spec.rules").help(help);
    diagnostic.lacks = wrong.lacks.as_deref().map(Into::into);
    diagnostic
}

impl<'a> Callers<'a> {
    fn of(view: &ClientView<'a>) -> Self {
        let mesh = view.mesh;
        let mut callers = Self {
            accounts: BTreeSet::new(),
            namespaces: BTreeSet::new(),
            domains: BTreeSet::new(),
        };
        for name in mesh.service_accounts.keys() {
            callers
                .accounts
                .insert((name.namespace.as_str(), &name.name));
        }
        for subject in &view.subjects {
            let account = (subject.namespace.as_str(), &**subject.service_account);
            callers.accounts.insert(account);
        }
        let declared = mesh.namespaces.keys().map(AsRef::as_ref);
        callers.namespaces.extend(declared);
        let inhabited = callers.accounts.iter().map(|(namespace, _)| *namespace);
        let inhabited: Vec<&str> = inhabited.collect();
        callers.namespaces.extend(inhabited);
        for namespace in mesh.services.keys() {
            callers.namespaces.insert(namespace.namespace.as_str());
        }
        let config = &mesh.config;
        callers.domains.insert(config.trust_domain.as_str());
        callers
            .domains
            .extend(config.trust_domain_aliases.iter().map(AsRef::as_ref));
        // Policies write this domain for the mesh's own, independent of its name.
        callers.domains.insert("cluster.local");
        callers
    }

    fn source(&self, from: &SourceMatch, say: &mut impl FnMut(UnknownCaller, bool)) {
        self.principals(&from.principals, say);
        self.names(&from.namespaces, say);
        self.accounts(&from.service_accounts, say);
        self.trust_domains(&from.trust_domains, say);
    }

    fn condition(&self, when: &WhenCondition, say: &mut impl FnMut(UnknownCaller, bool)) {
        match when {
            WhenCondition::SourcePrincipal(all) => self.principals(all, say),
            WhenCondition::SourceNamespace(all) => self.names(all, say),
            WhenCondition::SourceServiceAccount(all) => self.accounts(all, say),
            WhenCondition::SourceTrustDomain(all) => self.trust_domains(all, say),
            _ => {}
        }
    }

    fn principals(&self, all: &Matches<StringMatch>, say: &mut impl FnMut(UnknownCaller, bool)) {
        for (one, excluded) in both(all) {
            let StringMatch::Exact(text) = one else {
                continue;
            };
            let parts: Vec<&str> = text.split('/').collect();
            let [domain, "ns", namespace, "sa", account] = parts[..] else {
                let what = format!("`{text}` is no identity of a workload");
                let (meant, lacks) = (None, None);
                say(UnknownCaller { what, meant, lacks }, excluded);
                continue;
            };
            // Other meshes' callers come with other trust domains; of those nothing is known here.
            if !self.domains.contains(domain) {
                continue;
            }
            let whole =
                |namespace: &str, account: &str| format!("{domain}/ns/{namespace}/sa/{account}");
            self.account((namespace, account), whole, excluded, say);
        }
    }

    fn accounts(
        &self,
        all: &Matches<ServiceAccountName>,
        say: &mut impl FnMut(UnknownCaller, bool),
    ) {
        for (one, excluded) in both(all) {
            let whole = |namespace: &str, account: &str| format!("{namespace}/{account}");
            self.account((&one.namespace, &one.name), whole, excluded, say);
        }
    }

    fn account(
        &self,
        (namespace, account): (&str, &str),
        whole: impl Fn(&str, &str) -> String,
        excluded: bool,
        say: &mut impl FnMut(UnknownCaller, bool),
    ) {
        let own_default = account == DEFAULT && self.namespaces.contains(namespace);
        if !own_default && !self.accounts.contains(&(namespace, account)) {
            let what = format!("there is no service account {namespace}/{account}");
            let known = self.accounts.iter().copied();
            let meant = nearest_name((namespace, account), known);
            let meant = meant.map(|(namespace, account)| whole(namespace, account));
            let lacks = Some(format!("ServiceAccount {namespace}/{account}"));
            say(UnknownCaller { what, meant, lacks }, excluded);
        }
    }

    fn names(&self, all: &Matches<Arc<str>>, say: &mut impl FnMut(UnknownCaller, bool)) {
        for (one, excluded) in both(all) {
            if !one.contains('*') && !self.namespaces.contains(&**one) {
                let what = format!("there is no namespace `{one}`");
                let meant = nearest(one, self.namespaces.iter().copied()).map(str::to_owned);
                let lacks = Some(format!("Namespace {one}"));
                say(UnknownCaller { what, meant, lacks }, excluded);
            }
        }
    }

    fn trust_domains(&self, all: &Matches<StringMatch>, say: &mut impl FnMut(UnknownCaller, bool)) {
        for (one, excluded) in both(all) {
            if let StringMatch::Exact(text) = one
                && self.domains.len() == 1
                && !self.domains.contains(&**text)
            {
                let what = format!("`{text}` is no trust domain of this mesh");
                let meant = nearest(text, self.domains.iter().copied()).map(str::to_owned);
                let lacks = None;
                say(UnknownCaller { what, meant, lacks }, excluded);
            }
        }
    }
}

/// Each value, and whether it is an exception.
fn both<T>(all: &Matches<T>) -> impl Iterator<Item = (&T, bool)> {
    let wanted = all.any_of.iter().map(|one| (one, false));
    wanted.chain(all.none_of.iter().map(|one| (one, true)))
}

/// An ALLOW policy where another denies everything to the same workloads.
fn denied_anyway(mesh: &Mesh, found: &mut Vec<Diagnostic>) {
    let root = &mesh.config.root_namespace;
    let policies = || {
        let all = mesh.authorization_policies.values();
        all.filter(|policy| !policy.dry_run)
    };
    let everything = |policy: &&Arc<AuthorizationPolicy>| {
        let mut rules = policy.rules.iter();
        policy.action == AuthorizationAction::Deny
            && rules.any(|rule| rule.from.is_empty() && rule.to.is_empty() && rule.when.is_empty())
    };
    let denials: Vec<_> = policies().filter(everything).collect();
    if denials.is_empty() {
        return;
    }
    for policy in policies().filter(|policy| policy.action == AuthorizationAction::Allow) {
        let shut = denials.iter().find(|denial| {
            let everywhere = denial.name.namespace == *root;
            let own = denial.name.namespace == policy.name.namespace;
            match (&denial.target, &policy.target) {
                (PolicyTarget::Everything, PolicyTarget::Everything) => {
                    everywhere || (own && policy.name.namespace != *root)
                }
                (PolicyTarget::Everything, PolicyTarget::Workloads(_)) => everywhere || own,
                (PolicyTarget::Workloads(wide), PolicyTarget::Workloads(narrow)) => {
                    (everywhere || own) && wide.selects(narrow)
                }
                _ => false,
            }
        });
        if let Some(denial) = shut
            && !policy.rules.is_empty()
        {
            let said = format!(
                "AuthorizationPolicy {} allows nothing: {} in {} denies everything there, and DENY comes first",
                policy.name, denial.name, denial.source
            );
            let source = policy.source.clone();
            found.push(
                Diagnostic::warning(codes::DENIED_ANYWAY, source, said)
                    .field("spec.rules")
                    .help("remove the DENY policy: with an ALLOW policy, requests that no rule allows are denied anyway"),
            );
        }
    }
}
