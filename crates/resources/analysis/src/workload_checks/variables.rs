//! Checks that the ConfigMaps and Secrets of containers' variables are there, as `voile up` demands them.

use std::collections::BTreeSet;

use voile_model::mesh::{Container, EnvValue, Mesh};
use voile_model::{Diagnostic, ResourceName, Severity};

use crate::codes;
use crate::subject::Subject;

/// ConfigMaps that a cluster makes in every namespace.
const OF_CLUSTERS: [&str; 2] = ["istio-ca-root-cert", "kube-root-ca.crt"];

/// Where a variable comes from.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct VariableSource<'a> {
    secret: bool,
    name: &'a str,
    /// None for all keys.
    key: Option<&'a str>,
}

/// Checks all containers.
pub(crate) fn check(mesh: &Mesh, subjects: &[Subject<'_>], found: &mut Vec<Diagnostic>) {
    for subject in subjects {
        let templates = subject.template.into_iter();
        for container in templates.flat_map(|template| &template.containers) {
            for source in sources(container) {
                found.extend(missing(mesh, subject, container, &source));
            }
        }
    }
}

/// The sources that must be there, each once.
fn sources(container: &Container) -> BTreeSet<VariableSource<'_>> {
    let whole = container.env_from.iter().filter(|from| !from.optional);
    let whole = whole.map(|from| VariableSource {
        secret: from.secret,
        name: &from.name,
        key: None,
    });
    let keys = container.env.iter().filter_map(|(_, value)| match value {
        EnvValue::ConfigMapKey {
            name,
            key,
            optional,
        } if !optional => Some((false, name, key)),
        EnvValue::SecretKey {
            name,
            key,
            optional,
        } if !optional => Some((true, name, key)),
        _ => None,
    });
    let keys = keys.map(|(secret, name, key)| VariableSource {
        secret,
        name,
        key: Some(key),
    });
    whole.chain(keys).collect()
}

fn missing(
    mesh: &Mesh,
    subject: &Subject<'_>,
    container: &Container,
    source: &VariableSource<'_>,
) -> Option<Diagnostic> {
    let name = ResourceName::new(subject.namespace.clone(), source.name);
    // True if it has the key.
    let there = match source.secret {
        true => mesh
            .secrets
            .get(&name)
            .map(|one| source.key.is_none_or(|key| one.data.contains_key(key))),
        false if OF_CLUSTERS.contains(&source.name) => Some(true),
        false => mesh
            .config_maps
            .get(&name)
            .map(|one| source.key.is_none_or(|key| one.data.contains_key(key))),
    };
    let kind = ["ConfigMap", "Secret"][usize::from(source.secret)];
    let why = match (there, source.key) {
        (Some(true), _) => return None,
        (Some(false), key) => format!("has no key `{}`", key.unwrap_or_default()),
        (None, _) => "does not exist".to_owned(),
    };
    let severity = match there {
        None if source.secret => Severity::Note,
        _ => Severity::Warning,
    };
    let message = format!(
        "container {} of {} has variables from the {kind} {name}, which {why}",
        container.name, subject.name
    );
    let found = Diagnostic::warning(
        codes::VARIABLE_FROM_NOTHING,
        container.source.clone(),
        message,
    );
    let found = found.help("add it, or set `optional: true`");
    let lacks = there.is_none().then(|| format!("{kind} {name}").into());
    Some(Diagnostic {
        severity,
        lacks,
        ..found
    })
}
