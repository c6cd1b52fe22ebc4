//! Check of AuthorizationPolicy. It refuses everything that Istio refuses. Istio silently ignores unknown conditions
//! and conditions whose form never matches. They are refused too, because the author believes them in force.

use std::sync::Arc;

use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{FieldPath, Fields, Report, is_within};
use crate::mesh::authorization::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationProvider, AuthorizationRule, Matches,
    OperationMatch, PolicyTarget, SourceMatch, StringMatch, TargetReference, WhenCondition,
    values::{self as read, CONDITION_KEYS, ConditionError, MAX_SERVICE_ACCOUNTS},
};
use crate::names::Labels;
use crate::source::Source;
use crate::text::{clip, suggest};
use crate::written::{Text, authorization as written};

/// The annotation that makes a policy count and log only.
const DRY_RUN: &str = "istio.io/dry-run";

/// Everything a rule's check needs.
struct RuleContext<'a> {
    report: &'a Report,
    /// The policy's namespace.
    own: &'a str,
    /// True for a CUSTOM policy. Its rules may not depend on the caller's identity: Istio's restriction.
    custom: bool,
}

/// Always returns a policy. Of an invalid one every unreadable part is replaced so that the policy allows less or
/// denies more: a rule of ALLOW allows nothing, a part of another rule matches everything, and an unreadable action
/// denies everything.
pub(in crate::check) fn authorization_policy(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> AuthorizationPolicy {
    let written = written::AuthorizationPolicy::read(fields);
    let spec = values::join(&meta.at.path, "spec");
    let dry_run = dry_run(&meta, report);
    let action = action(&written, (&meta.at, &spec), report);
    let target = target(&written.target, written.at.as_ref(), report);
    let checking = RuleContext {
        report,
        own: meta.name.namespace.as_str(),
        custom: matches!(action, Some(AuthorizationAction::Custom(_))),
    };
    let rules = written.rules.iter().flatten();
    let rules = rules.map(|rule| (&*rule.at.path, checking.rule(rule)));
    let rules: Vec<(&str, AuthorizationRule)> = rules.collect();
    let rules = match &action {
        // Other workloads than the author means, or other requests.
        Some(AuthorizationAction::Allow)
            if unread_beside(&spec, &["action", "provider", "rules"], report) =>
        {
            Vec::new()
        }
        Some(AuthorizationAction::Allow) => {
            let readable = |(path, rule)| (!report.failed_within(path)).then_some(rule);
            rules.into_iter().filter_map(readable).collect()
        }
        Some(_) if !rules.is_empty() || !report.failed_within(&spec) => {
            rules.into_iter().map(|(_, rule)| rule).collect()
        }
        Some(_) | None => vec![everything(meta.source.clone())],
    };
    AuthorizationPolicy {
        target,
        rules,
        name: meta.name,
        source: meta.source,
        action: action.unwrap_or(AuthorizationAction::Deny),
        dry_run,
    }
}

/// The rule that matches everything.
pub(in crate::check) fn everything(source: Source) -> AuthorizationRule {
    AuthorizationRule {
        source,
        from: Vec::new(),
        to: Vec::new(),
        when: Vec::new(),
    }
}

/// Returns true if `spec`, or a field of it that is none of these, has an error.
fn unread_beside(spec: &str, known: &[&str], report: &Report) -> bool {
    let known: Vec<_> = known.iter().map(|name| values::join(spec, name)).collect();
    report.failed_where(|field| {
        is_within(field, spec) && !known.iter().any(|path| is_within(field, path))
    })
}

/// Go's words for true and false, which is how Istio reads it.
fn dry_run(meta: &Meta, report: &Report) -> bool {
    let Some(word) = meta.annotations.get(DRY_RUN) else {
        return false;
    };
    match word {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
        "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
        _ => {
            let message = format!("`{}` is not allowed for {DRY_RUN}", clip(word));
            report.error(
                codes::BAD_VALUE,
                &meta.at,
                message,
                "write \"true\" or \"false\"",
            );
            false
        }
    }
}

/// The target of a policy whose `spec` is `at`.
pub(in crate::check) fn target(
    written: &written::WrittenTarget,
    at: Option<&FieldPath>,
    report: &Report,
) -> PolicyTarget {
    let selector = values::selector(written.selector.as_ref(), report);
    match (&written.references, selector) {
        (None, Some(labels)) => PolicyTarget::Workloads(labels),
        (None, None) => PolicyTarget::Everything,
        (Some(references), selector) => {
            if let (Some(at), true) = (at, written.selector.is_some()) {
                let message = "`selector` and `targetRefs` exclude each other";
                report.error(codes::CONTRADICTION, at, message, "keep one");
            }
            match selector {
                Some(labels) => PolicyTarget::Workloads(labels),
                None if references.is_empty() => PolicyTarget::Everything,
                None => {
                    let read = references.iter().map(|one| reference(one, report));
                    let read: Option<Vec<_>> = read.collect();
                    let path = at.map_or_else(String::new, |at| format!("{}.targetRef", at.path));
                    let unread = report.failed_where(|field| field.starts_with(&path));
                    match read {
                        Some(all) if !unread => PolicyTarget::References(all),
                        // One that cannot be read may be anything of the namespace.
                        _ => PolicyTarget::Everything,
                    }
                }
            }
        }
    }
}

fn reference(written: &written::Reference, report: &Report) -> Option<TargetReference> {
    const HELP: &str = "a Service, a ServiceEntry (networking.istio.io), or a Gateway or GatewayClass \
                        (gateway.networking.k8s.io)";
    let known = [
        ("", "Service"),
        ("networking.istio.io", "ServiceEntry"),
        (GATEWAY_API, "Gateway"),
        (GATEWAY_API, "GatewayClass"),
    ];
    aimed(written, (&known, HELP), report)
}

/// The group of Gateway API.
pub(in crate::check) const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// Targets and selector of a resource that is for a selector's workloads, or for targets of a few groups and kinds.
pub(in crate::check) fn targets(
    spec: &mut Fields<'_>,
    known: (&[(&str, &str)], &str),
) -> (Vec<TargetReference>, Option<Labels>) {
    let report = spec.report();
    let references = references(spec, known);
    let selector = values::selector_labels(spec, "selector", "matchLabels");
    if references.is_some() && selector.is_some() {
        let message = "`selector` and `targetRefs` exclude each other";
        report.error(codes::CONTRADICTION, spec.at(), message, "keep one");
    }
    if references.as_ref().is_some_and(Vec::is_empty) {
        let message = "`targetRefs` is empty";
        let help = "name a target, or remove it";
        report.error(codes::CONTRADICTION, spec.at(), message, help);
    }
    let targets = references.into_iter().flatten().flatten();
    let selector = selector.filter(|labels| !labels.is_empty());
    (targets.collect(), selector)
}

/// `targetRef` and `targetRefs`, if either is there. A target that cannot be used is none.
fn references(
    spec: &mut Fields<'_>,
    known: (&[(&str, &str)], &str),
) -> Option<Vec<Option<TargetReference>>> {
    let one = spec.get("targetRef");
    let one = one.map(|one| Vec::from_iter(one.mapping(|fields| aim(fields, known))));
    let list = spec.get("targetRefs");
    let list = list.map(|list| list.mappings(|fields| Some(aim(fields, known))));
    match (one, list) {
        (Some(one), Some(list)) => Some(one.into_iter().chain(list).collect()),
        (one, list) => one.or(list),
    }
}

/// A target of one of these groups and kinds, which are said for people besides.
fn aim(fields: &mut Fields<'_>, (known, help): (&[(&str, &str)], &str)) -> Option<TargetReference> {
    let report = fields.report();
    let kind = report.required(fields.text("kind"), fields.at(), "kind");
    let name = report.required(fields.text("name"), fields.at(), "name");
    let group = fields.value("group").unwrap_or_default();
    if let Some(namespace) = fields.text("namespace") {
        let message = "a policy can target only its own namespace";
        report.error(codes::BAD_VALUE, &namespace.at, message, "remove it");
    }
    let (kind, name) = (kind?, name?);
    if !known.contains(&(&*group, &*kind.value)) {
        report.bad(&kind, " as the kind of a target", help);
        return None;
    }
    Some(TargetReference {
        group,
        kind: kind.value,
        name: name.value,
        source: report.source(fields.at()),
    })
}

/// A target of one of these groups and kinds, which are said for people besides.
fn aimed(
    written: &written::Reference,
    (known, help): (&[(&str, &str)], &str),
    report: &Report,
) -> Option<TargetReference> {
    let kind = report.required(written.kind.as_ref(), &written.at, "kind");
    let name = report.required(written.name.as_ref(), &written.at, "name");
    if let Some(namespace) = &written.namespace {
        let message = "a policy can target only its own namespace";
        report.error(codes::BAD_VALUE, &namespace.at, message, "remove it");
    }
    let (kind, name) = (kind?, name?);
    let group = written.group.as_ref().map_or("", |group| &*group.value);
    if !known.contains(&(group, &*kind.value)) {
        report.bad(kind, " as the kind of a target", help);
        return None;
    }
    Some(TargetReference {
        group: group.into(),
        kind: kind.value.clone(),
        name: name.value.clone(),
        source: report.source(&written.at),
    })
}

/// The action; none if it cannot be read. A field that is not known may be the one that is missing.
fn action(
    written: &written::AuthorizationPolicy,
    (document, spec): (&FieldPath, &str),
    report: &Report,
) -> Option<AuthorizationAction> {
    const OTHERS: [&str; 5] = ["selector", "targetRef", "targetRefs", "provider", "rules"];
    #[derive(Clone, Copy, PartialEq)]
    enum AttributeName {
        Allow,
        Deny,
        Audit,
        Custom,
    }
    const WORDS: [(&str, AttributeName); 4] = [
        ("ALLOW", AttributeName::Allow),
        ("DENY", AttributeName::Deny),
        ("AUDIT", AttributeName::Audit),
        ("CUSTOM", AttributeName::Custom),
    ];
    let said = written.action.as_ref();
    let word = match said {
        Some(text) => report.one_of(text, &WORDS),
        None => (!unread_beside(spec, &OTHERS, report)).then_some(AttributeName::Allow),
    };
    let at = said.map_or_else(|| written.at.as_ref().unwrap_or(document), |text| &text.at);
    if let (Some(AttributeName::Deny | AttributeName::Custom), None) = (word, &written.rules) {
        let message = "without `rules` this policy never matches anything";
        let help = "write `rules: [{}]` to match every request";
        report.error(codes::MISSING, at, message, help);
    }
    let provider = written.provider.as_ref();
    if let (
        Some(provider),
        Some(AttributeName::Allow | AttributeName::Deny | AttributeName::Audit),
    ) = (provider, word)
    {
        let message = "`provider` belongs to action CUSTOM";
        report.error(
            codes::CONTRADICTION,
            &provider.at,
            message,
            "remove it, or write action: CUSTOM",
        );
    }
    Some(match word? {
        AttributeName::Allow => AuthorizationAction::Allow,
        AttributeName::Audit => AuthorizationAction::Audit,
        AttributeName::Deny => AuthorizationAction::Deny,
        AttributeName::Custom => {
            let spec = written.at.as_ref().unwrap_or(document);
            let parent = provider.map_or(spec, |provider| &provider.at);
            let name = provider.and_then(|provider| provider.name.as_ref());
            let name = name.filter(|name| !name.value.is_empty());
            let field = if provider.is_some() {
                "name"
            } else {
                "provider.name"
            };
            let said = report.required(name, parent, field);
            AuthorizationAction::Custom(AuthorizationProvider {
                name: said.map_or_else(|| "".into(), |name| name.value.clone()),
                source: report.source(said.map_or(parent, |name| &name.at)),
            })
        }
    })
}

/// The entries of a list of which one must match. An entry that says nothing that can be read matches everything.
fn one_of<W, T: Default + PartialEq>(
    written: &written::OptionalPart<W>,
    read: impl Fn(&W) -> T,
) -> Vec<T> {
    let entries = written.entries.iter();
    let entries = entries.map(|entry| entry.as_ref().map_or_else(T::default, &read));
    let entries: Vec<T> = entries.collect();
    match entries.contains(&T::default()) {
        true => Vec::new(),
        false => entries,
    }
}

impl RuleContext<'_> {
    fn rule(&self, written: &written::WrittenRule) -> AuthorizationRule {
        for (at, name) in [(&written.from.at, "from"), (&written.to.at, "to")] {
            if let Some(at) = at {
                let help = "remove it to match everything";
                self.report.error(
                    codes::BAD_VALUE,
                    at,
                    format!("`{name}` must not be empty"),
                    help,
                );
            }
        }
        AuthorizationRule {
            source: self.report.source(&written.at),
            from: one_of(&written.from, |from| self.source(from)),
            to: one_of(&written.to, |to| self.operation(to)),
            when: written
                .when
                .iter()
                .filter_map(|when| self.condition(when))
                .collect(),
        }
    }

    fn source(&self, from: &written::From) -> SourceMatch {
        if from.is_empty() {
            self.report
                .error(codes::BAD_VALUE, &from.at, "`source` must not be empty", "");
        }
        let accounts = &from.service_accounts;
        let others = !from.principals.is_empty() || !from.namespaces.is_empty();
        if others && !accounts.is_empty() {
            let message = "`serviceAccounts` excludes `principals` and `namespaces`";
            self.report.error(
                codes::CONTRADICTION,
                &from.at,
                message,
                "write them in sources of their own",
            );
        }
        for list in [&accounts.values, &accounts.not_values] {
            if let Some(one) = list.get(MAX_SERVICE_ACCOUNTS) {
                let message = format!("a list has at most {MAX_SERVICE_ACCOUNTS} service accounts");
                self.report.error(
                    codes::LIMIT,
                    &one.at,
                    message,
                    "write them in several sources",
                );
            }
        }
        let identity = [
            (&from.principals, "principals"),
            (&from.request_principals, "requestPrincipals"),
            (&from.namespaces, "namespaces"),
            (accounts, "serviceAccounts"),
            (&from.trust_domains, "trustDomains"),
        ];
        for (values, name) in identity {
            if let Some(first) = values.values.iter().chain(&values.not_values).next() {
                self.not_with_custom(&first.at, name);
            }
        }
        for values in [&from.principals, &from.request_principals] {
            self.literal_stars(values);
        }
        SourceMatch {
            principals: self.matches(&from.principals, principal),
            request_principals: self.matches(&from.request_principals, read::string),
            namespaces: self.matches(&from.namespaces, read::namespace),
            service_accounts: self
                .matches(accounts, |value| read::service_account(value, self.own)),
            trust_domains: self.matches(&from.trust_domains, read::trust_domain),
            ip_blocks: self.matches(&from.ip_blocks, read::address_range),
            remote_ip_blocks: self.matches(&from.remote_ip_blocks, read::address_range),
        }
    }

    fn not_with_custom(&self, at: &FieldPath, what: &str) {
        if self.custom {
            let message = format!("`{what}` cannot be used with action CUSTOM");
            self.report.error(
                codes::CONTRADICTION,
                at,
                message,
                "write it in a separate policy with action DENY",
            );
        }
    }

    fn operation(&self, to: &written::WrittenTo) -> OperationMatch {
        if to.is_empty() {
            self.report.error(
                codes::BAD_VALUE,
                &to.at,
                "`operation` must not be empty",
                "",
            );
        }
        for values in [&to.hosts, &to.methods] {
            self.literal_stars(values);
        }
        let paths = to.paths.values.iter().chain(&to.paths.not_values);
        for path in paths.filter(|path| !path.value.contains('{')) {
            literal_star(path, self.report);
        }
        OperationMatch {
            hosts: self.matches(&to.hosts, read::string),
            ports: self.matches(&to.ports, read::port),
            methods: self.matches(&to.methods, read::string),
            paths: self.matches(&to.paths, read::path),
        }
    }

    fn condition(&self, when: &written::WrittenWhen) -> Option<WhenCondition> {
        let key = self.report.required(when.key.as_ref(), &when.at, "key")?;
        if when.values.unread {
            return None;
        }
        if when.values.is_empty() {
            let message = format!(
                "`values` or `notValues` is missing for {}",
                clip(&key.value)
            );
            self.report.error(codes::MISSING, &when.at, message, "");
            return None;
        }
        let asks_who = matches!(
            &*key.value,
            "source.namespace"
                | "source.serviceAccount"
                | "source.principal"
                | "source.trustDomain"
        );
        if asks_who || key.value.starts_with("request.auth.") {
            self.not_with_custom(&key.at, &key.value);
        }
        let texts = |list: &'_ [Text]| -> Vec<Arc<str>> {
            list.iter().map(|text| text.value.clone()).collect()
        };
        let (values, not_values) = (texts(&when.values.values), texts(&when.values.not_values));
        let values: Vec<&str> = values.iter().map(AsRef::as_ref).collect();
        let not_values: Vec<&str> = not_values.iter().map(AsRef::as_ref).collect();
        match read::condition(&key.value, &values, &not_values, self.own) {
            Ok(condition) => {
                if !matches!(condition, WhenCondition::SourceNamespace(_)) {
                    self.literal_stars(&when.values);
                }
                Some(condition)
            }
            Err(ConditionError::Key(why)) => {
                let help = suggest(
                    key.value.split('[').next().unwrap_or_default(),
                    CONDITION_KEYS,
                );
                // Istio has it.
                let code = match key.value.starts_with(read::EXPERIMENTAL) {
                    true => codes::NOT_YET,
                    false => codes::BAD_VALUE,
                };
                self.report.error(code, &key.at, why, help);
                None
            }
            Err(ConditionError::Value(index, why)) => {
                let mut all = when.values.values.iter().chain(&when.values.not_values);
                let at = all.nth(index).map_or(&when.at, |text| &text.at);
                self.report.error(codes::BAD_VALUE, at, why, "");
                None
            }
        }
    }

    /// Reads both lists of a field. One of several values that cannot be read may match anything.
    fn matches<T>(
        &self,
        written: &written::Values,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Matches<T> {
        let one = |text: &Text| match read(&text.value) {
            Ok(value) => Some(value),
            Err(why) => {
                self.report.error(codes::BAD_VALUE, &text.at, why, "");
                None
            }
        };
        let any_of: Vec<Option<T>> = written.values.iter().map(one).collect();
        let any_of: Option<Vec<T>> = any_of.into_iter().collect();
        Matches {
            any_of: any_of.filter(|_| !written.unread).unwrap_or_default(),
            none_of: written.not_values.iter().filter_map(one).collect(),
        }
    }

    fn literal_stars(&self, written: &written::Values) {
        for text in written.values.iter().chain(&written.not_values) {
            literal_star(text, self.report);
        }
    }
}

/// The principal of a certificate.
fn principal(value: &str) -> Result<StringMatch, String> {
    if value.starts_with("spiffe://") {
        return Err(format!(
            "`{}` never matches: write TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT, without spiffe://",
            clip(value)
        ));
    }
    read::string(value)
}

/// A `*` in the middle matches only itself, which is hardly ever intended.
fn literal_star(text: &Text, report: &Report) {
    let value = &*text.value;
    let rest = value
        .strip_prefix('*')
        .or_else(|| value.strip_suffix('*'))
        .unwrap_or(value);
    if rest.contains('*') {
        let message = format!(
            "the `*` in `{}` is matched literally: it is a wildcard only as the first or last character",
            clip(value)
        );
        report.warning(codes::LITERAL_STAR, &text.at, message, "");
    }
}
