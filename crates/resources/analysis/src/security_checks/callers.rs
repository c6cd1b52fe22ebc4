//! Finds the services that an application calls in the environment and arguments of its container, ConfigMaps of the
//! environment included: a folder has no other trace of calls. A host name counts only as a whole, with a port or behind
//! `//`, so that no plain word is taken for a service.

use std::collections::BTreeSet;
use std::sync::Arc;

use voile_model::mesh::{Container, EnvValue, Location, Mesh, MeshService, Sidecar};
use voile_model::{CLUSTER_DOMAIN, Diagnostic, Hostname, Namespace, Port, ResourceName};
use voile_policy::Mode;

use crate::codes;
use crate::mutual_tls::mode_at;
use crate::subject::Subject;
use crate::view::{ClientView, ResolvedName};

/// Longest text in which hosts are looked for, in bytes: a configuration in an argument is not a list of hosts.
const MAX_TEXT_BYTES: usize = 4096;

/// Checks what all applications are told to call.
pub(crate) fn check(view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
    for subject in &view.subjects {
        let Some(template) = subject.template else {
            continue;
        };
        let sidecar = subject
            .has_sidecar
            .then(|| view.sidecar(subject))
            .flatten()
            .filter(|sidecar| !sidecar.egress.is_empty());
        let mut said = BTreeSet::new();
        for container in &template.containers {
            for (what, text) in texts(view.mesh, subject.namespace, container) {
                for (host, port) in hosts(text) {
                    let Some(service) = called(view, &host, subject.namespace) else {
                        continue;
                    };
                    if !said.insert((&service.key, port)) {
                        continue;
                    }
                    let call = PermittedCall {
                        subject,
                        container,
                        what: &what,
                        service,
                        port,
                    };
                    match sidecar {
                        Some(sidecar) => call.left_out(sidecar, found),
                        None if !subject.has_sidecar => call.in_plaintext(view, found),
                        None => {}
                    }
                }
            }
        }
    }
}

struct PermittedCall<'a> {
    subject: &'a Subject<'a>,
    container: &'a Container,
    /// The environment variable or argument that names the service, for people.
    what: &'a str,
    service: &'a Arc<MeshService>,
    port: Option<Port>,
}

impl PermittedCall<'_> {
    fn left_out(&self, sidecar: &Sidecar, found: &mut Vec<Diagnostic>) {
        let from = self.subject.namespace;
        let key = &self.service.key;
        // Of a listener with a port of its own only services with that port are reached; which is said elsewhere.
        let mut hosts = sidecar.egress.iter().flat_map(|listener| &listener.hosts);
        if hosts.any(|host| host.matches(from, key)) {
            return;
        }
        let said = format!(
            "{}, by {}, calls {}, which the egress hosts of Sidecar {} in {} do not include",
            self.subject.name, self.what, key.hostname, sidecar.name, sidecar.source
        );
        let help = format!(
            "add {}/{} to the Sidecar's egress hosts",
            key.namespace, key.hostname
        );
        let source = self.container.source.clone();
        found.push(Diagnostic::warning(codes::LEFT_OUT_BY_SIDECAR, source, said).help(help));
    }

    fn in_plaintext(&self, view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
        if self.service.location == Location::MeshExternal {
            return;
        }
        let meant = |number: Port| self.port.is_none_or(|port| port == number);
        let ports: Vec<_> = self
            .service
            .ports
            .iter()
            .filter(|port| meant(port.number))
            .collect();
        let strict = view.behind(self.service).into_iter().find(|callee| {
            let refuses = |port: &&&voile_model::mesh::ServicePort| {
                let target = callee.target(&port.target);
                target.is_some_and(|port| mode_at(view.mesh, callee, port) == Mode::Strict)
            };
            callee.has_sidecar && !ports.is_empty() && ports.iter().all(|port| refuses(&port))
        });
        if let Some(callee) = strict {
            let said = format!(
                "{}, by {}, calls {}, but has no sidecar: {} accepts only mutual TLS (STRICT) and rejects the calls",
                self.subject.name, self.what, self.service.key.hostname, callee.name
            );
            let source = self.container.source.clone();
            found.push(
                Diagnostic::warning(codes::PLAINTEXT_CALLER, source, said)
                    .help("give it a sidecar (label sidecar.istio.io/inject: \"true\"), or make the callee PERMISSIVE"),
            );
        }
    }
}

/// Everything that a container is told, and how.
fn texts<'a>(
    mesh: &'a Mesh,
    namespace: &'a Namespace,
    container: &'a Container,
) -> impl Iterator<Item = (String, &'a str)> {
    let map = |name: &Arc<str>| {
        let name = ResourceName::new(namespace.clone(), name.clone());
        mesh.config_maps.get(&name)
    };
    let variable = |name: &str| format!("the variable {name}");
    let maps = container.env_from.iter().filter(|from| !from.secret);
    let whole = maps.flat_map(move |from| {
        let data = map(&from.name).into_iter().flat_map(|map| &map.data);
        data.map(move |(key, text)| (variable(&format!("{}{key}", from.prefix)), &**text))
    });
    let env = container.env.iter();
    let env = env.filter_map(move |(name, value)| {
        let text = match value {
            EnvValue::Text(text) => text,
            EnvValue::ConfigMapKey { name, key, .. } => map(name)?.data.get(key)?,
            EnvValue::Field(_) | EnvValue::SecretKey { .. } => return None,
        };
        Some((variable(name), &**text))
    });
    let words = container.command.iter().chain(&container.args);
    let words = words.map(|word| ("an argument".to_owned(), &**word));
    whole
        .chain(env)
        .chain(words)
        .filter(|(_, text)| text.len() <= MAX_TEXT_BYTES)
}

/// Host names with a port, or behind `//`, in a text.
fn hosts(text: &str) -> Vec<(Hostname, Option<Port>)> {
    let separators =
        |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '/'));
    let mut found = Vec::new();
    for word in text.split(separators) {
        let (schemed, rest) = match word.split_once("://") {
            Some((_, rest)) => (true, rest),
            None => (false, word),
        };
        let authority = rest.split('/').next().unwrap_or_default();
        let (host, port) = match authority.split_once(':') {
            Some((host, port)) => match port.parse().ok().and_then(Port::new) {
                Some(port) => (host, Some(port)),
                None => continue,
            },
            None if schemed => (authority, None),
            None => continue,
        };
        found.extend(Hostname::new(host).map(|host| (host, port)));
    }
    found
}

/// The service that an application means by a name: as it is, or below its own namespace or the cluster's domain.
fn called<'a>(
    view: &ClientView<'a>,
    name: &Hostname,
    from: &Namespace,
) -> Option<&'a Arc<MeshService>> {
    let text = name.as_str();
    let searched = match text.split('.').count() {
        1 => format!("{text}.{from}.svc.{CLUSTER_DOMAIN}"),
        2 => format!("{text}.svc.{CLUSTER_DOMAIN}"),
        _ if text.ends_with(".svc") => format!("{text}.{CLUSTER_DOMAIN}"),
        _ => text.to_owned(),
    };
    let searched = Hostname::new(&searched)?;
    [&searched, name]
        .into_iter()
        .find_map(|name| match view.find(name, from) {
            ResolvedName::Seen(service) if !service.key.hostname.is_wildcard() => Some(service),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::hosts;

    fn check(text: &str, expected: &[&str]) {
        let found: Vec<String> = hosts(text)
            .into_iter()
            .map(|(host, port)| format!("{host}:{}", port.map_or(0, voile_model::Port::get)))
            .collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn only_what_looks_like_an_address_is_taken_for_one() {
        check("reviews", &[]);
        check("reviews:9080", &["reviews:9080"]);
        check("http://reviews/path", &["reviews:0"]);
        check(
            "--to=http://reviews.shop:9080/a?b=c",
            &["reviews.shop:9080"],
        );
        check("a:1,b:2; c:x", &["a:1", "b:2"]);
        check("12:30", &["12:30"]);
        check("nginx:1.27", &[]);
        check("::1", &[]);
    }
}
