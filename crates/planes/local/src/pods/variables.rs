//! Environment of an application: Kubernetes' variables for services, and `$(NAME)` in commands.
//!
//! Source: Kubernetes' "Accessing the Service" and "Define dependent environment variables". In loopback isolation an
//! application finds its sidecar's listeners by these variables; there is no DNS to ask.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// A service as one pod sees it: where its sidecar listens for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceView {
    /// Name of the service, or the host name of a service entry.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The address on which this pod reaches it.
    pub address: Ipv4Addr,
    /// Its ports, in the order written.
    pub ports: Vec<PortView>,
}

/// One port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortView {
    /// Its name; may be empty if it is the only one.
    pub name: String,
    /// Its number.
    pub number: u16,
}

/// The variables of `services` for a pod in `namespace`.
///
/// Services of the pod's own namespace get Kubernetes' names (`REVIEWS_SERVICE_HOST`); those of others, which Kubernetes
/// leaves to DNS, get `NAME_NAMESPACE_SERVICE_HOST`, and never hide one of the pod's own.
pub fn of_services(namespace: &str, services: &[ServiceView]) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    let (own, others): (Vec<_>, Vec<_>) = services
        .iter()
        .partition(|service| service.namespace == namespace);
    for service in others {
        of_service(
            &format!("{}-{}", service.name, service.namespace),
            service,
            &mut variables,
        );
    }
    for service in own {
        of_service(&service.name, service, &mut variables);
    }
    variables
}

fn of_service(name: &str, service: &ServiceView, variables: &mut BTreeMap<String, String>) {
    let Some(first) = service.ports.first() else {
        return;
    };
    let (prefix, host) = (variable_name(name), service.address);
    let mut set = |name: String, value: String| variables.insert(name, value);
    set(format!("{prefix}_SERVICE_HOST"), host.to_string());
    set(format!("{prefix}_SERVICE_PORT"), first.number.to_string());
    set(
        format!("{prefix}_PORT"),
        format!("tcp://{host}:{}", first.number),
    );
    for port in &service.ports {
        let number = port.number;
        if !port.name.is_empty() {
            set(
                format!("{prefix}_SERVICE_PORT_{}", variable_name(&port.name)),
                number.to_string(),
            );
        }
        let link = format!("{prefix}_PORT_{number}_TCP");
        set(link.clone(), format!("tcp://{host}:{number}"));
        set(format!("{link}_PROTO"), "tcp".to_owned());
        set(format!("{link}_PORT"), number.to_string());
        set(format!("{link}_ADDR"), host.to_string());
    }
}

fn variable_name(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect()
}

/// Replaces `$(NAME)` by its variable. A name that is not known stays as written, and `$$` means `$`, as in Kubernetes.
pub fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let behind = &rest[at + 1..];
        if let Some(after) = behind.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = behind
            .strip_prefix('(')
            .and_then(|open| open.split_once(')'))
        {
            match variables.get(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&rest[at..at + name.len() + 3]),
            }
            rest = after;
        } else {
            out.push('$');
            rest = behind;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(namespace: &str, name: &str, last: u8, ports: &[(&str, u16)]) -> ServiceView {
        ServiceView {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            address: Ipv4Addr::new(127, 1, 16, last),
            ports: ports
                .iter()
                .map(|(name, number)| PortView {
                    name: (*name).to_owned(),
                    number: *number,
                })
                .collect(),
        }
    }

    #[test]
    fn a_service_gives_the_variables_that_kubernetes_gives() {
        let variables = of_services(
            "shop",
            &[service(
                "shop",
                "book-store",
                1,
                &[("http", 80), ("http-admin", 8080)],
            )],
        );
        let expected = [
            ("BOOK_STORE_PORT", "tcp://127.1.16.1:80"),
            ("BOOK_STORE_PORT_8080_TCP", "tcp://127.1.16.1:8080"),
            ("BOOK_STORE_PORT_8080_TCP_ADDR", "127.1.16.1"),
            ("BOOK_STORE_PORT_8080_TCP_PORT", "8080"),
            ("BOOK_STORE_PORT_8080_TCP_PROTO", "tcp"),
            ("BOOK_STORE_PORT_80_TCP", "tcp://127.1.16.1:80"),
            ("BOOK_STORE_PORT_80_TCP_ADDR", "127.1.16.1"),
            ("BOOK_STORE_PORT_80_TCP_PORT", "80"),
            ("BOOK_STORE_PORT_80_TCP_PROTO", "tcp"),
            ("BOOK_STORE_SERVICE_HOST", "127.1.16.1"),
            ("BOOK_STORE_SERVICE_PORT", "80"),
            ("BOOK_STORE_SERVICE_PORT_HTTP", "80"),
            ("BOOK_STORE_SERVICE_PORT_HTTP_ADMIN", "8080"),
        ];
        let got: Vec<_> = variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(got, expected);
    }

    #[test]
    fn a_service_of_another_namespace_never_hides_one_of_the_own() {
        let variables = of_services(
            "shop",
            &[
                service("shop", "a-b", 1, &[("", 80)]),
                service("b", "a", 2, &[("", 80)]),
                service("c", "a", 3, &[("", 80)]),
            ],
        );
        assert_eq!(variables["A_B_SERVICE_HOST"], "127.1.16.1");
        assert_eq!(variables["A_C_SERVICE_HOST"], "127.1.16.3");
        assert!(!variables.contains_key("A_SERVICE_HOST"));
    }

    #[test]
    fn dollar_parentheses_expand_as_in_kubernetes() {
        let variables = BTreeMap::from([
            ("A".to_owned(), "1".to_owned()),
            ("URL".to_owned(), "$(A)".to_owned()),
        ]);
        for (text, expected) in [
            ("plain", "plain"),
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(NONE)", "$(NONE)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$(URL)", "$(A)"),
            ("$(A", "$(A"),
            ("$A ${A} 5$", "$A ${A} 5$"),
            ("$()", "$()"),
            ("é$(A)é", "é1é"),
            ("", ""),
        ] {
            assert_eq!(expand(text, &variables), expected, "{text}");
        }
    }
}
