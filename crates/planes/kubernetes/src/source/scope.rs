//! Which objects a watch brings.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// All objects of a kind, or those with a name, or one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scope {
    /// `PLURAL.GROUP`, or `PLURAL` in the core group, as kubectl names kinds; the first part of the names of files.
    pub(crate) kind: Arc<str>,
    /// The only namespace, or all.
    pub(crate) namespace: Option<Arc<str>>,
    /// The only name, or all.
    pub(crate) name: Option<Arc<str>>,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if let Some(name) = &self.name {
            let namespace = self.namespace.as_deref().unwrap_or("*");
            write!(f, "/{namespace}/{name}")?;
        }
        Ok(())
    }
}

impl Scope {
    /// All objects of a kind.
    pub(crate) fn kind(kind: impl Into<Arc<str>>) -> Self {
        Self {
            kind: kind.into(),
            namespace: None,
            name: None,
        }
    }

    /// Returns true if it holds the object of this file: `KIND/NAMESPACE/NAME` or `KIND/NAME`.
    pub(crate) fn holds(&self, file: &str) -> bool {
        let Some((kind, rest)) = file.split_once('/') else {
            return false;
        };
        let (namespace, name) = match rest.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, rest),
        };
        let any_or_same =
            |wanted: &Option<Arc<str>>, found| wanted.is_none() || wanted.as_deref() == found;
        kind == &*self.kind
            && any_or_same(&self.namespace, namespace)
            && any_or_same(&self.name, Some(name))
    }
}

/// End of the name of a Secret with the authorities of clients, beside the one with the certificate.
const AUTHORITIES: &str = "-cacert";

/// Secrets and ConfigMaps that an object of a kind names, which nobody else has the control plane read: `credentialName` of Istio's
/// kinds, and references to certificates of Gateway API's.
pub(crate) fn named_by(kind: &str, object: &Value) -> BTreeSet<Scope> {
    let mut found = BTreeSet::new();
    if matches!(
        kind,
        "Gateway" | "ListenerSet" | "DestinationRule" | "BackendTLSPolicy"
    ) {
        let own = object["metadata"]["namespace"].as_str().unwrap_or_default();
        collect(&object["spec"], own, &mut found);
    }
    found
}

fn collect(value: &Value, own: &str, found: &mut BTreeSet<Scope>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, own, found)),
        Value::Object(fields) => {
            for (field, value) in fields {
                match &**field {
                    "credentialName" | "credentialNames" => credentials(value, found),
                    "certificateRefs"
                    | "caCertificateRefs"
                    | "clientCertificateRef"
                    | "parametersRef" => {
                        references(value, own, "", found);
                    }
                    // Clients may be asked for a certificate: the authorities are beside the listener's own.
                    "options" => {
                        let shown = fields.get("certificateRefs").unwrap_or(&Value::Null);
                        references(shown, own, AUTHORITIES, found);
                    }
                    _ => collect(value, own, found),
                }
            }
        }
        _ => {}
    }
}

/// Secrets in the namespaces of the gateways that use them. Istio reads authorities from the Secret `NAME-cacert`, too.
fn credentials(value: &Value, found: &mut BTreeSet<Scope>) {
    for name in values(value).filter_map(Value::as_str) {
        let name = name.rsplit('/').next().unwrap_or(name);
        for name in [name.to_owned(), format!("{name}{AUTHORITIES}")] {
            found.insert(Scope {
                name: Some(name.into()),
                ..Scope::kind("secrets")
            });
        }
    }
}

fn references(value: &Value, own: &str, suffix: &str, found: &mut BTreeSet<Scope>) {
    for reference in values(value) {
        let kind = match reference["kind"].as_str() {
            Some("ConfigMap") => "configmaps",
            Some("Secret") | None => "secrets",
            Some(_) => continue,
        };
        if let Some(name) = reference["name"].as_str() {
            let namespace = reference["namespace"].as_str().unwrap_or(own);
            found.insert(Scope {
                namespace: Some(namespace.into()),
                name: Some(format!("{name}{suffix}").into()),
                ..Scope::kind(kind)
            });
        }
    }
}

/// The items of a list, or the only one.
fn values(value: &Value) -> impl Iterator<Item = &Value> {
    let several = value.as_array().into_iter().flatten();
    let one = (!value.is_array()).then_some(value);
    several.chain(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_holds_the_files_of_its_objects() {
        let named = Scope {
            name: Some("tls".into()),
            ..Scope::kind("secrets")
        };
        let one = Scope {
            namespace: Some("edge".into()),
            ..named.clone()
        };
        for (file, kind, by_name, exact) in [
            ("secrets/edge/tls", true, true, true),
            ("secrets/shop/tls", true, true, false),
            ("secrets/edge/other", true, false, false),
            ("secrets.other.io/edge/tls", false, false, false),
            ("namespaces/edge", false, false, false),
        ] {
            let held = [&Scope::kind("secrets"), &named, &one].map(|scope| scope.holds(file));
            assert_eq!(held, [kind, by_name, exact], "{file}");
        }
        assert!(Scope::kind("namespaces").holds("namespaces/edge"));
    }

    #[test]
    fn what_gateways_name_is_read_and_nothing_else() {
        for (kind, spec, named) in [
            (
                "Gateway",
                r#"{"servers": [{"tls": {"credentialName": "shop"}}, {"tls": {"mode": "PASSTHROUGH"}}]}"#,
                "secrets/*/shop secrets/*/shop-cacert",
            ),
            (
                "Gateway",
                r#"{"listeners": [{"tls": {"certificateRefs": [{"name": "a"}, {"name": "b", "namespace": "certs"}]}}]}"#,
                "secrets/certs/b secrets/edge/a",
            ),
            (
                "Gateway",
                r#"{"tls": {"frontend": {"default": {"validation": {"caCertificateRefs": [{"kind": "ConfigMap", "name": "ca"}]}}}, "backend": {"clientCertificateRef": {"name": "client"}}}, "listeners": [{"tls": {"certificateRefs": [{"name": "a"}], "options": {"x": "y"}}}]}"#,
                "configmaps/edge/ca secrets/edge/a secrets/edge/a-cacert secrets/edge/client",
            ),
            (
                "BackendTLSPolicy",
                r#"{"validation": {"caCertificateRefs": [{"kind": "ConfigMap", "name": "ca", "group": ""}]}}"#,
                "configmaps/edge/ca",
            ),
            (
                "DestinationRule",
                r#"{"trafficPolicy": {"portLevelSettings": [{"tls": {"credentialName": "client"}}]}}"#,
                "secrets/*/client secrets/*/client-cacert",
            ),
            ("VirtualService", r#"{"credentialName": "none"}"#, ""),
        ] {
            let object = format!(r#"{{"metadata": {{"namespace": "edge"}}, "spec": {spec}}}"#);
            let object: Value = serde_json::from_str(&object).expect("JSON");
            let found: Vec<_> = named_by(kind, &object)
                .iter()
                .map(ToString::to_string)
                .collect();
            assert_eq!(found.join(" "), named, "{kind} {spec}");
        }
    }
}
