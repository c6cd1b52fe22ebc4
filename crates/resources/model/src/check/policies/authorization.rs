//! Check of AuthorizationPolicy. It refuses everything that Istio refuses. Istio silently ignores unknown conditions
//! and conditions whose form never matches. They are refused too, because the author believes them in force.

use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{Cursor, FieldPath, Fields, NodeForm, Report, Text, is_within};
use crate::mesh::authorization::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationProvider, AuthorizationRule, Matches,
    OperationMatch, PolicyTarget, SourceMatch, StringMatch, TargetReference, WhenCondition,
    values::{self as read, CONDITION_KEYS, ConditionError, MAX_SERVICE_ACCOUNTS},
};
use crate::names::Labels;
use crate::source::Source;
use crate::text::{clip, suggest};

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

/// The fields of a `spec`. Their values are read after the fields that are not known have been reported, since one of
/// them may be the action or the target that is missing.
struct PolicyFields<'a> {
    target: TargetFields<'a>,
    action: Option<Text>,
    provider: Option<(FieldPath, Option<Text>)>,
    rules: Option<Cursor<'a>>,
}

/// Always returns a policy. Of an invalid one every unreadable part is replaced so that the policy allows less or
/// denies more: a rule of ALLOW allows nothing, a part of another rule matches everything, and an unreadable action
/// denies everything.
pub(in crate::check) fn authorization_policy(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> AuthorizationPolicy {
    fields.ignore(&["status"]);
    let written = fields.mapping("spec", |spec| PolicyFields {
        target: TargetFields::of(spec),
        action: spec.text("action"),
        provider: spec.mapping("provider", |provider| {
            (provider.at().clone(), provider.text("name"))
        }),
        rules: spec.get("rules"),
    });
    let spec = values::join(&meta.at.path, "spec");
    let dry_run = dry_run(&meta, report);
    let action = action(written.as_ref(), (&meta.at, &spec), report);
    let target = written
        .as_ref()
        .map(|written| written.target.policy_target());
    let checking = RuleContext {
        report,
        own: meta.name.namespace.as_str(),
        custom: matches!(action, Some(AuthorizationAction::Custom(_))),
    };
    let rules = written.and_then(|written| written.rules);
    let rules = rules.map(|rules| rules.items()).unwrap_or_default();
    let rules = rules
        .iter()
        .map(|rule| (&*rule.at.path, checking.rule(rule)));
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
        target: target.unwrap_or(PolicyTarget::Everything),
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

/// The group of Gateway API.
pub(in crate::check) const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// The fields of a `spec` that name its target, as they stand there.
pub(in crate::check) struct TargetFields<'a> {
    at: FieldPath,
    references: [Option<Cursor<'a>>; 2],
    selector: Option<Cursor<'a>>,
    report: &'a Report,
}

impl<'a> TargetFields<'a> {
    pub(in crate::check) fn of(spec: &mut Fields<'a>) -> Self {
        Self {
            at: spec.at().clone(),
            references: [spec.get("targetRef"), spec.get("targetRefs")],
            selector: spec.get("selector"),
            report: spec.report(),
        }
    }

    /// The target of a policy.
    pub(in crate::check) fn policy_target(&self) -> PolicyTarget {
        const HELP: &str = "a Service, a ServiceEntry (networking.istio.io), or a Gateway or GatewayClass \
                            (gateway.networking.k8s.io)";
        let known = [
            ("", "Service"),
            ("networking.istio.io", "ServiceEntry"),
            (GATEWAY_API, "Gateway"),
            (GATEWAY_API, "GatewayClass"),
        ];
        let (references, selector) = self.read((&known, HELP));
        match (references, selector) {
            (_, Some(labels)) => PolicyTarget::Workloads(labels),
            (None, None) => PolicyTarget::Everything,
            (Some(references), None) => {
                let path = format!("{}.targetRef", self.at.path);
                let unread = self.report.failed_where(|field| field.starts_with(&path));
                match references.into_iter().collect::<Option<Vec<_>>>() {
                    Some(all) if !unread && !all.is_empty() => PolicyTarget::References(all),
                    // One that cannot be read may be anything of the namespace.
                    _ => PolicyTarget::Everything,
                }
            }
        }
    }

    /// `targetRef` and `targetRefs`, if either is there, and the selector. A target that cannot be used is none.
    fn read(
        &self,
        known: TargetKinds<'_>,
    ) -> (Option<Vec<Option<TargetReference>>>, Option<Labels>) {
        let [one, list] = &self.references;
        let one = one
            .as_ref()
            .map(|one| Vec::from_iter(one.mapping(|fields| reference(fields, known))));
        let list = list
            .as_ref()
            .map(|list| list.mappings(|fields| Some(reference(fields, known))));
        let references = match (one, list) {
            (Some(one), Some(list)) => Some(one.into_iter().chain(list).collect()),
            (one, list) => one.or(list),
        };
        let selector = self.selector.as_ref();
        let selector = selector.and_then(|selector| {
            selector.mapping(|fields| values::labels(&fields.text_map("matchLabels"), self.report))
        });
        if references.is_some() && selector.is_some() {
            let message = "`selector` and `targetRefs` exclude each other";
            self.report
                .error(codes::CONTRADICTION, &self.at, message, "keep one");
        }
        (references, selector.filter(|labels| !labels.is_empty()))
    }
}

/// The groups and kinds that a target may have, and a text for people that names them.
type TargetKinds<'a> = (&'a [(&'a str, &'a str)], &'a str);

/// Targets and selector of a resource that is for a selector's workloads, or for targets of a few kinds.
pub(in crate::check) fn targets(
    spec: &mut Fields<'_>,
    known: TargetKinds<'_>,
) -> (Vec<TargetReference>, Option<Labels>) {
    let (references, selector) = TargetFields::of(spec).read(known);
    if references.as_ref().is_some_and(Vec::is_empty) {
        let message = "`targetRefs` is empty";
        let help = "name a target, or remove it";
        spec.report()
            .error(codes::CONTRADICTION, spec.at(), message, help);
    }
    let targets = references.into_iter().flatten().flatten();
    (targets.collect(), selector)
}

fn reference(fields: &mut Fields<'_>, (known, help): TargetKinds<'_>) -> Option<TargetReference> {
    let report = fields.report();
    let group = fields.value("group").unwrap_or_default();
    let kind = report.required(fields.text("kind"), fields.at(), "kind");
    let name = report.required(fields.text("name"), fields.at(), "name");
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

/// The action; none if it cannot be read. A field that is not known may be the one that is missing.
fn action(
    written: Option<&PolicyFields<'_>>,
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
    let said = written.and_then(|written| written.action.as_ref());
    let place = written.map_or(document, |written| &written.target.at);
    let word = match said {
        Some(text) => report.one_of(text, &WORDS),
        None => (!unread_beside(spec, &OTHERS, report)).then_some(AttributeName::Allow),
    };
    let at = said.map_or(place, |text| &text.at);
    let has_rules = written.is_some_and(|written| written.rules.is_some());
    if let (Some(AttributeName::Deny | AttributeName::Custom), false) = (word, has_rules) {
        let message = "without `rules` this policy never matches anything";
        let help = "write `rules: [{}]` to match every request";
        report.error(codes::MISSING, at, message, help);
    }
    let provider = written.and_then(|written| written.provider.as_ref());
    if let (
        Some((at, _)),
        Some(AttributeName::Allow | AttributeName::Deny | AttributeName::Audit),
    ) = (provider, word)
    {
        let message = "`provider` belongs to action CUSTOM";
        report.error(
            codes::CONTRADICTION,
            at,
            message,
            "remove it, or write action: CUSTOM",
        );
    }
    Some(match word? {
        AttributeName::Allow => AuthorizationAction::Allow,
        AttributeName::Audit => AuthorizationAction::Audit,
        AttributeName::Deny => AuthorizationAction::Deny,
        AttributeName::Custom => {
            let parent = provider.map_or(place, |(at, _)| at);
            let name = provider.and_then(|(_, name)| name.as_ref());
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

/// Both lists of a field.
struct Values {
    values: Vec<Text>,
    not_values: Vec<Text>,
    /// True if one of `values` is no text.
    unread: bool,
}

impl Values {
    fn read(fields: &mut Fields<'_>, name: &'static str, not_name: &'static str) -> Self {
        let values = fields.list(name, |cursor| Some(cursor.text()));
        Self {
            unread: values.iter().any(Option::is_none),
            values: values.into_iter().flatten().collect(),
            not_values: fields.texts(not_name),
        }
    }

    fn is_empty(&self) -> bool {
        self.values.is_empty() && self.not_values.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = &Text> {
        self.values.iter().chain(&self.not_values)
    }
}

impl RuleContext<'_> {
    fn rule(&self, rule: &Cursor<'_>) -> AuthorizationRule {
        let source = self.report.source(rule.at());
        let read = rule.mapping(|fields| AuthorizationRule {
            source: source.clone(),
            from: self.one_of(fields, ("from", "source"), |from| self.source(from)),
            to: self.one_of(fields, ("to", "operation"), |to| self.operation(to)),
            when: fields.mappings("when", |when| self.condition(when)),
        });
        read.unwrap_or_else(|| everything(source))
    }

    /// The entries of a list of which one must match. An entry that says nothing that can be read matches everything.
    fn one_of<T: Default + PartialEq>(
        &self,
        fields: &mut Fields<'_>,
        (name, part): (&'static str, &'static str),
        read: impl Fn(&mut Fields<'_>) -> T,
    ) -> Vec<T> {
        let Some(list) = fields.get(name) else {
            return Vec::new();
        };
        let items = list.items();
        if items.is_empty() && list.form() == NodeForm::List {
            let message = format!("`{name}` must not be empty");
            let help = "remove it to match everything";
            self.report
                .error(codes::BAD_VALUE, list.at(), message, help);
        }
        let entry = |item: &Cursor<'_>| {
            let read = item.mapping(|fields| {
                let read = fields.mapping(part, &read);
                self.report.required(read, fields.at(), part)
            });
            read.flatten().unwrap_or_default()
        };
        let entries: Vec<T> = items.iter().map(entry).collect();
        match entries.contains(&T::default()) {
            true => Vec::new(),
            false => entries,
        }
    }

    fn not_empty(&self, all: &[&Values], name: &str, at: &FieldPath) {
        if all.iter().all(|values| values.is_empty()) {
            let message = format!("`{name}` must not be empty");
            self.report.error(codes::BAD_VALUE, at, message, "");
        }
    }

    fn source(&self, fields: &mut Fields<'_>) -> SourceMatch {
        let mut both = |name, not_name| Values::read(fields, name, not_name);
        let principals = both("principals", "notPrincipals");
        let request_principals = both("requestPrincipals", "notRequestPrincipals");
        let namespaces = both("namespaces", "notNamespaces");
        let accounts = both("serviceAccounts", "notServiceAccounts");
        let trust_domains = both("trustDomains", "notTrustDomains");
        let ip_blocks = both("ipBlocks", "notIpBlocks");
        let remote_ip_blocks = both("remoteIpBlocks", "notRemoteIpBlocks");
        let identity = [
            (&principals, "principals"),
            (&request_principals, "requestPrincipals"),
            (&namespaces, "namespaces"),
            (&accounts, "serviceAccounts"),
            (&trust_domains, "trustDomains"),
        ];
        let mut all = identity.map(|(values, _)| values).to_vec();
        all.extend([&ip_blocks, &remote_ip_blocks]);
        self.not_empty(&all, "source", fields.at());
        if !accounts.is_empty() && (!principals.is_empty() || !namespaces.is_empty()) {
            let message = "`serviceAccounts` excludes `principals` and `namespaces`";
            let help = "write them in sources of their own";
            self.report
                .error(codes::CONTRADICTION, fields.at(), message, help);
        }
        for list in [&accounts.values, &accounts.not_values] {
            if let Some(one) = list.get(MAX_SERVICE_ACCOUNTS) {
                let message = format!("a list has at most {MAX_SERVICE_ACCOUNTS} service accounts");
                let help = "write them in several sources";
                self.report.error(codes::LIMIT, &one.at, message, help);
            }
        }
        for (values, name) in identity {
            if let Some(first) = values.all().next() {
                self.not_with_custom(&first.at, name);
            }
        }
        for values in [&principals, &request_principals] {
            self.literal_stars(values);
        }
        SourceMatch {
            principals: self.matches(&principals, principal),
            request_principals: self.matches(&request_principals, read::string),
            namespaces: self.matches(&namespaces, read::namespace),
            service_accounts: self
                .matches(&accounts, |value| read::service_account(value, self.own)),
            trust_domains: self.matches(&trust_domains, read::trust_domain),
            ip_blocks: self.matches(&ip_blocks, read::address_range),
            remote_ip_blocks: self.matches(&remote_ip_blocks, read::address_range),
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

    fn operation(&self, fields: &mut Fields<'_>) -> OperationMatch {
        let mut both = |name, not_name| Values::read(fields, name, not_name);
        let hosts = both("hosts", "notHosts");
        let ports = both("ports", "notPorts");
        let methods = both("methods", "notMethods");
        let paths = both("paths", "notPaths");
        let all = [&hosts, &ports, &methods, &paths];
        self.not_empty(&all, "operation", fields.at());
        for values in [&hosts, &methods] {
            self.literal_stars(values);
        }
        for path in paths.all().filter(|path| !path.value.contains('{')) {
            literal_star(path, self.report);
        }
        OperationMatch {
            hosts: self.matches(&hosts, read::string),
            ports: self.matches(&ports, read::port),
            methods: self.matches(&methods, read::string),
            paths: self.matches(&paths, read::path),
        }
    }

    fn condition(&self, fields: &mut Fields<'_>) -> Option<WhenCondition> {
        let key = self.report.required(fields.text("key"), fields.at(), "key");
        let when = Values::read(fields, "values", "notValues");
        let key = key?;
        if when.unread {
            return None;
        }
        if when.is_empty() {
            let message = format!(
                "`values` or `notValues` is missing for {}",
                clip(&key.value)
            );
            self.report.error(codes::MISSING, fields.at(), message, "");
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
        let (values, not_values) = (texts(&when.values), texts(&when.not_values));
        match read::condition(&key.value, &values, &not_values, self.own) {
            Ok(condition) => {
                if !matches!(condition, WhenCondition::SourceNamespace(_)) {
                    self.literal_stars(&when);
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
                let at = when.all().nth(index).map_or(fields.at(), |text| &text.at);
                self.report.error(codes::BAD_VALUE, at, why, "");
                None
            }
        }
    }

    /// Reads both lists of a field. One of several values that cannot be read may match anything.
    fn matches<T>(&self, written: &Values, read: impl Fn(&str) -> Result<T, String>) -> Matches<T> {
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

    fn literal_stars(&self, written: &Values) {
        for text in written.all() {
            literal_star(text, self.report);
        }
    }
}

fn texts(list: &[Text]) -> Vec<&str> {
    list.iter().map(|text| &*text.value).collect()
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
