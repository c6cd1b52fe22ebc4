//! Checks AuthorizationPolicies. Reports the parts that Istio silently drops, widens or never applies, because their
//! author believes them in force.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use voile_model::mesh::authorization::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationProvider, AuthorizationRule, Matches,
    OperationMatch, PathMatch, PolicyTarget, SourceMatch, StringMatch, TargetReference,
    WhenCondition,
};
use voile_model::mesh::{
    ExtAuthzProvider, ExtAuthzTransport, Mesh, MeshService, Protocol, Provider,
};
use voile_model::{Diagnostic, Port, Source};
use voile_policy::{Mode, inherited};

use crate::codes;
use crate::services::shown;
use crate::subject::Subject;
use crate::suggestions;
use crate::view::ClientView;

/// Checks all AuthorizationPolicies.
pub(crate) fn check(view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
    let mesh = view.mesh;
    for policy in mesh.authorization_policies.values() {
        let mut checking = PolicyChecker {
            mesh,
            policy,
            selected: view.obeying(&policy.name.namespace, &policy.target),
            found,
        };
        checking.policy();
    }
    for subject in &view.subjects {
        together(mesh, subject, found);
    }
}

struct PolicyChecker<'a> {
    mesh: &'a Mesh,
    policy: &'a AuthorizationPolicy,
    selected: Vec<&'a Subject<'a>>,
    found: &'a mut Vec<Diagnostic>,
}

/// Ports of a workload on which no HTTP is spoken, by its services.
fn opaque_targets(subject: &Subject<'_>) -> Vec<Port> {
    let services = subject.services.iter();
    let ports = services.flat_map(|service| &service.ports);
    ports
        .filter(|port| matches!(port.protocol, Protocol::Tcp | Protocol::Tls))
        .filter_map(|port| subject.target(&port.target))
        .collect()
}

/// Returns true if the list requires one of its values.
fn asks<T>(matches: &Matches<T>) -> bool {
    !matches.any_of.is_empty()
}

impl PolicyChecker<'_> {
    fn warn(&mut self, code: &'static str, source: &Source, message: String, help: &str) {
        self.found
            .push(Diagnostic::warning(code, source.clone(), message).help(help));
    }

    fn error(&mut self, code: &'static str, source: &Source, message: String, help: &str) {
        self.found
            .push(Diagnostic::error(code, source.clone(), message).help(help));
    }

    fn policy(&mut self) {
        let (policy, name) = (self.policy, &self.policy.name);
        match &policy.target {
            PolicyTarget::References(targets) => {
                for target in targets {
                    self.target(target);
                }
                self.provider();
                for rule in &policy.rules {
                    rule.to.iter().for_each(|to| self.never(rule, to));
                }
                return;
            }
            PolicyTarget::Workloads(labels) if self.selected.is_empty() => {
                let message = format!(
                    "the selector ({}) of AuthorizationPolicy {name} selects no workload",
                    shown(labels)
                );
                let help = "a policy selects workloads of its own namespace, and those of the mesh from the root namespace";
                let code = codes::AUTHORIZATION_SELECTS_NOTHING;
                self.warn(code, &policy.source, message, help);
                if let Some(last) = self.found.last_mut() {
                    let lacks = suggestions::missing_workloads(&name.namespace, labels);
                    last.lacks = Some(lacks.into());
                }
            }
            PolicyTarget::Workloads(_) | PolicyTarget::Everything => {}
        }
        let bare: Vec<String> = self
            .selected
            .iter()
            .filter(|subject| !subject.has_proxy())
            .map(|subject| subject.name.clone())
            .collect();
        if let Some(first) = bare.first() {
            let others = match bare.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            let message = format!(
                "AuthorizationPolicy {name} is not enforced for {first}{others}: the workload has no sidecar"
            );
            let help = "label its namespace istio-injection: enabled, or select other workloads";
            self.error(
                codes::AUTHORIZATION_WITHOUT_SIDECAR,
                &policy.source,
                message,
                help,
            );
        }
        crate::ambient::check(policy, &self.selected, self.found);
        self.provider();
        for rule in &policy.rules {
            self.rule(rule);
        }
    }

    /// Checks that a proxy applies the target: a gateway, a waypoint, or the waypoint of a service.
    fn target(&mut self, target: &TargetReference) {
        let name = &self.policy.name;
        if self.mesh.is_obeyed(&name.namespace, target) {
            return;
        }
        let message = format!(
            "AuthorizationPolicy {name} is not enforced for {} {}: it is no gateway of ours and has no waypoint, and sidecars and node proxies ignore `targetRefs`, as in Istio",
            target.kind, target.name
        );
        let help = "label the service `istio.io/use-waypoint: NAME` and add a Gateway NAME with gatewayClassName istio-waypoint, or use `selector` for workloads with sidecars";
        self.warn(codes::TARGETS_NOT_ENFORCED, &target.source, message, help);
    }

    /// A CUSTOM policy's external service.
    fn provider(&mut self) {
        let AuthorizationAction::Custom(provider) = &self.policy.action else {
            return;
        };
        let known = self.mesh.config.provider(&provider.name);
        let message = match known {
            Some(Provider::ExtAuthz(known)) => return self.authorizer(&known, provider),
            Some(_) => format!("provider `{}` is no external authorizer", provider.name),
            None => format!("there is no provider `{}`", provider.name),
        };
        let help = "name one of MeshConfig's extensionProviders that is envoyExtAuthzHttp or envoyExtAuthzGrpc; until then requests that the policy matches are denied";
        self.error(codes::UNKNOWN_AUTHORIZER, &provider.source, message, help);
    }

    /// Checks that the provider can be asked, and that it suits every workload the policy selects.
    fn authorizer(&mut self, known: &ExtAuthzProvider, named: &AuthorizationProvider) {
        let wanted = &known.service;
        let there = |service: &&Arc<MeshService>| {
            let namespace = wanted.namespace.as_ref();
            namespace.is_none_or(|namespace| service.key.namespace == *namespace)
                && service.key.hostname == wanted.host
        };
        let found: Vec<_> = self.mesh.services.values().filter(there).collect();
        let ports = found.iter().flat_map(|service| &service.ports);
        if !ports.into_iter().any(|port| port.number == wanted.port) {
            let message = match found.first() {
                None => format!(
                    "provider `{}` has the service {}, which is no service of the mesh",
                    named.name, wanted.host
                ),
                Some(service) => format!(
                    "provider `{}` has port {} of {}, which has no such port",
                    named.name, wanted.port, service.key
                ),
            };
            let declare = "declare it as a Service or ServiceEntry; until then requests that the policy matches are denied";
            let help = suggestions::for_host(self.mesh, &wanted.host, declare);
            self.error(codes::AUTHORIZER_UNREACHABLE, &named.source, message, &help);
        }
        if matches!(known.transport, ExtAuthzTransport::Grpc) {
            return;
        }
        let policy = self.policy;
        let opaque = policy.rules.iter().find_map(|rule| {
            let (port, subject) = self.opaque_ports(rule).pop_first()?;
            Some((rule, port, subject))
        });
        if let Some((rule, port, subject)) = opaque {
            let message = format!(
                "port {port} of {subject} is not HTTP, and provider `{}` decides only about HTTP requests: connections that the rule matches there are denied",
                named.name
            );
            let help = "list the HTTP ports in `ports`, or use a gRPC provider (envoyExtAuthzGrpc)";
            self.error(codes::AUTHORIZER_KNOWS_HTTP, &rule.source, message, help);
        }
    }

    fn rule(&mut self, rule: &AuthorizationRule) {
        self.tcp_ports(rule);
        self.plaintext(rule);
        self.tokens(rule);
        self.unserved(rule);
        for to in &rule.to {
            self.never(rule, to);
        }
        let remote = |from: &SourceMatch| !from.remote_ip_blocks.is_empty();
        let remote = rule.from.iter().any(remote)
            || rule
                .when
                .iter()
                .any(|when| matches!(when, WhenCondition::RemoteIp(_)));
        if remote && !self.hears_of_clients() {
            let message = "the rule uses remoteIpBlocks or remote.ip, but no proxy is trusted for X-Forwarded-For: the direct caller's address is used"
                .to_owned();
            let help = "set gatewayTopology.numTrustedProxies in MeshConfig's defaultConfig or a Pod's annotation \
                        proxy.istio.io/config (or .proxyProtocol there), or use ipBlocks";
            self.warn(codes::NO_TRUSTED_PROXY, &rule.source, message, help);
        }
    }

    /// Returns true if a workload that obeys the policy trusts a proxy in front of it to name the client.
    fn hears_of_clients(&self) -> bool {
        let mesh_wide = self.mesh.config.proxy.trusted_proxies;
        let at_gateways = self.mesh.config.proxy.proxy_protocol;
        let hears = |subject: &&Subject<'_>| {
            let topology = subject.template.map(|template| template.topology);
            let topology = topology.unwrap_or_default();
            topology.proxy_protocol
                || (at_gateways && subject.is_gateway())
                || topology.trusted_proxies.unwrap_or(mesh_wide) > 0
        };
        match self.selected.is_empty() {
            true => mesh_wide > 0,
            false => self.selected.iter().any(hears),
        }
    }

    /// HTTP attributes where no HTTP is spoken: Istio drops an ALLOW rule there, and widens all others.
    fn tcp_ports(&mut self, rule: &AuthorizationRule) {
        let http = |from: &SourceMatch| !from.request_principals.is_empty();
        let asks_http = rule.from.iter().any(http)
            || rule.to.iter().any(OperationMatch::is_http)
            || rule.when.iter().any(WhenCondition::is_http);
        if !asks_http {
            return;
        }
        let ports = self.opaque_ports(rule);
        let Some((port, subject)) = ports.first_key_value() else {
            return;
        };
        let (effect, help) = match self.policy.action {
            AuthorizationAction::Allow => (
                "this rule allows nothing there",
                "write a rule without HTTP conditions for the port",
            ),
            AuthorizationAction::Deny => (
                "this rule denies every connection that its other conditions match",
                "list the HTTP ports in `ports`",
            ),
            AuthorizationAction::Audit | AuthorizationAction::Custom(_) => (
                "this rule is evaluated without them",
                "list the HTTP ports in `ports`",
            ),
        };
        let message = format!(
            "HTTP conditions do not apply to port {port} of {subject}, which is not HTTP: {effect}"
        );
        self.warn(codes::HTTP_ON_TCP, &rule.source, message, help);
    }

    /// Ports that a rule holds for where no HTTP is spoken, and a workload that serves each.
    fn opaque_ports(&self, rule: &AuthorizationRule) -> BTreeMap<u16, String> {
        let mut ports: BTreeMap<u16, String> = BTreeMap::new();
        for subject in self.selected.iter().filter(|subject| subject.has_sidecar) {
            // At a gateway the Gateways declare the protocol, not the Service in front.
            let opaque = match subject.is_gateway() {
                true => {
                    let servers = subject.servers(self.mesh);
                    let opaque = servers.filter(|(_, is_opaque)| *is_opaque);
                    opaque.map(|(port, _)| port).collect()
                }
                false => opaque_targets(subject),
            };
            for port in opaque.into_iter().map(Port::get) {
                if reaches(rule, port) {
                    ports.entry(port).or_insert_with(|| subject.name.clone());
                }
            }
        }
        ports
    }

    /// Identities where callers may have none.
    fn plaintext(&mut self, rule: &AuthorizationRule) {
        let named = |from: &SourceMatch| {
            asks(&from.principals)
                || asks(&from.namespaces)
                || asks(&from.service_accounts)
                || asks(&from.trust_domains)
        };
        let excluded = |from: &SourceMatch| {
            let lists = [
                from.principals.none_of.is_empty(),
                from.namespaces.none_of.is_empty(),
                from.service_accounts.none_of.is_empty(),
                from.trust_domains.none_of.is_empty(),
            ];
            lists.contains(&false)
        };
        let who =
            rule.from.iter().any(named) || rule.when.iter().any(WhenCondition::wants_identity);
        let others = rule.from.iter().any(|from| excluded(from) && !named(from));
        let modes = self
            .selected
            .iter()
            .filter(|subject| subject.has_sidecar)
            .map(|subject| {
                let mode = inherited(self.mesh, subject.namespace, subject.labels).mode;
                (mode, subject.name.clone())
            });
        let open = modes.clone().find(|(mode, _)| *mode != Mode::Strict);
        let never = modes.clone().find(|(mode, _)| *mode == Mode::Disable);
        let allows = self.policy.action == AuthorizationAction::Allow;
        let denies = self.policy.action == AuthorizationAction::Deny;
        let help = "set its PeerAuthentication mode to STRICT";
        match (open, never) {
            (_, Some((_, subject))) if who && allows => {
                let message = format!(
                    "{subject} accepts plaintext only: no caller has the identity that this rule requires"
                );
                self.warn(
                    codes::NO_IDENTITY,
                    &rule.source,
                    message,
                    "set its PeerAuthentication mode to STRICT or PERMISSIVE",
                );
            }
            (Some((_, subject)), _) if who && denies => {
                let message = format!(
                    "{subject} accepts plaintext: plaintext callers have no identity, and this rule does not deny them"
                );
                self.warn(codes::NO_IDENTITY, &rule.source, message, help);
            }
            (Some((_, subject)), _) if others && allows => {
                let message = format!(
                    "{subject} accepts plaintext: plaintext callers have no identity, so this rule does not exclude them and allows them"
                );
                self.warn(codes::NO_IDENTITY, &rule.source, message, help);
            }
            _ => {}
        }
    }

    /// Reports conditions on tokens for workloads that verify none.
    fn tokens(&mut self, rule: &AuthorizationRule) {
        let of_source = |from: &SourceMatch| !from.request_principals.is_empty();
        let of_condition = |when: &WhenCondition| {
            matches!(
                when,
                WhenCondition::RequestPrincipal(_)
                    | WhenCondition::RequestAudiences(_)
                    | WhenCondition::RequestPresenter(_)
                    | WhenCondition::RequestClaim(..)
            )
        };
        if rule.from.iter().any(of_source) || rule.when.iter().any(of_condition) {
            let unasked = self.selected.iter().find(|subject| {
                let (namespace, labels) = (subject.namespace, subject.labels);
                let holding = self
                    .mesh
                    .request_authentication_for_labels(namespace, labels);
                subject.has_sidecar && holding.iter().all(|one| one.rules.is_empty())
            });
            let Some(unasked) = unasked else { return };
            let message = format!(
                "{} verifies no token (no RequestAuthentication with rules applies to it): conditions on tokens never match there",
                unasked.name
            );
            let help = "write a RequestAuthentication for it";
            self.warn(codes::NO_TOKEN, &rule.source, message, help);
        }
    }

    /// Reports ports that no workload serves; most often a service's port stands for the workload's.
    fn unserved(&mut self, rule: &AuthorizationRule) {
        let of_rule = rule.to.iter().flat_map(|to| to.ports.values().copied());
        let asked = of_rule.chain(rule.when.iter().flat_map(|when| match when {
            WhenCondition::DestinationPort(ports) => ports.values().copied().collect(),
            _ => Vec::new(),
        }));
        let asked: BTreeSet<u16> = asked.collect();
        let served: BTreeSet<u16> = self
            .selected
            .iter()
            .flat_map(|subject| served(subject))
            .collect();
        if self.selected.is_empty() || served.is_empty() {
            return;
        }
        for port in asked.difference(&served) {
            let message = format!("no workload that this policy selects serves port {port}");
            let help =
                "write the workload's port (the Service's targetPort), not the Service's port";
            self.warn(
                codes::AUTHORIZATION_PORT_UNSERVED,
                &rule.source,
                message,
                help,
            );
        }
    }

    /// Values that no request can have.
    fn never(&mut self, rule: &AuthorizationRule, to: &OperationMatch) {
        let mut say = |what: String, help: &str| {
            let message = format!("{what}: no request matches it");
            self.warn(codes::NEVER_MATCHES, &rule.source, message, help);
        };
        for method in to.methods.values() {
            if method.literal().bytes().any(|b| b.is_ascii_lowercase()) {
                say(
                    format!("method `{method}` has lower-case letters"),
                    "methods are written in upper case",
                );
            }
        }
        for path in to.paths.values() {
            let text = path.to_string();
            let rooted = matches!(
                path,
                PathMatch::Text(StringMatch::Suffix(_) | StringMatch::Present)
            );
            if text.contains(['?', '#']) {
                say(
                    format!("path `{text}` has a query"),
                    "paths are compared without their query",
                );
            } else if !rooted && !text.starts_with('/') && text != "*" {
                say(format!("path `{text}` does not begin with `/`"), "");
            }
        }
    }
}

/// Returns true if a rule can apply to a port.
fn reaches(rule: &AuthorizationRule, port: u16) -> bool {
    let fits = |ports: &Matches<u16>| {
        (ports.any_of.is_empty() || ports.any_of.contains(&port)) && !ports.none_of.contains(&port)
    };
    let operations = rule.to.is_empty() || rule.to.iter().any(|to| fits(&to.ports));
    operations
        && rule.when.iter().all(|when| match when {
            WhenCondition::DestinationPort(ports) => fits(ports),
            _ => true,
        })
}

fn served(subject: &Subject<'_>) -> Vec<u16> {
    let containers = subject
        .template
        .iter()
        .flat_map(|template| &template.containers);
    let declared = containers
        .flat_map(|container| &container.ports)
        .map(|port| port.number.get());
    let behind = subject.services.iter().flat_map(|service| &service.ports);
    let targets = behind.filter_map(|port| Some(subject.target(&port.target)?.get()));
    declared.chain(targets).collect()
}

/// Reports faults that need all policies of a workload together.
fn together(mesh: &Mesh, subject: &Subject<'_>, found: &mut Vec<Diagnostic>) {
    let all = mesh.authorization_for_labels(subject.namespace, subject.labels);
    let enforced: Vec<&Arc<AuthorizationPolicy>> =
        all.into_iter().filter(|policy| !policy.dry_run).collect();
    let allows: Vec<_> = enforced
        .iter()
        .filter(|policy| policy.action == AuthorizationAction::Allow)
        .collect();
    if let Some(first) = allows.first()
        && allows.iter().all(|policy| policy.rules.is_empty())
    {
        let message = format!(
            "AuthorizationPolicy {} has no rules, and no other ALLOW policy has any: {} denies all requests",
            first.name, subject.name
        );
        let diagnostic = Diagnostic::warning(codes::ALLOWS_NOTHING, first.source.clone(), message);
        found.push(
            diagnostic
                .help("this is right if nothing may call it; `rules: [{}]` allows everything"),
        );
    }
    let mut providers = enforced.iter().filter_map(|policy| match &policy.action {
        AuthorizationAction::Custom(provider) => Some((policy, provider)),
        _ => None,
    });
    let Some((_, first)) = providers.next() else {
        return;
    };
    if let Some((policy, other)) = providers.find(|(_, other)| other.name != first.name) {
        let message = format!(
            "{} has CUSTOM policies of the providers `{}` and `{}`: requests that they match are denied there",
            subject.name, first.name, other.name
        );
        let diagnostic =
            Diagnostic::error(codes::SEVERAL_AUTHORIZERS, policy.source.clone(), message);
        found.push(diagnostic.help("use one provider in all CUSTOM policies of a workload"));
    }
}
