//! Endpoints by number in Envoy's configuration: the clusters that lead straight to the server, and how one is chosen.

use std::net::SocketAddr;

/// The endpoint of a cluster that leads straight to the server, as the template writes it.
const ONE: &str =
    "{endpoint: {address: {socket_address: {address: ${ECHO_ADDRESS}, port_value: ${ECHO_PORT}}}}}";
/// The clusters that do, by name.
const CLUSTERS: [&str; 2] = ["direct", "grpc_direct"];

/// The client's template with these endpoints (none: its own one) and this way to choose.
pub(super) fn with(
    template: &str,
    balancer: Option<&str>,
    endpoints: &[SocketAddr],
) -> Result<String, String> {
    let mut text = template.to_owned();
    if endpoints.is_empty() && balancer.is_none() {
        return Ok(text);
    }
    for name in CLUSTERS {
        let head = format!("  - name: {name}\n    type: STATIC\n");
        let missing = || format!("Envoy's template has no cluster {name} with one endpoint");
        let from = text.find(&head).ok_or_else(missing)?;
        let section = text.split_off(from + head.len());
        if let Some(word) = balancer {
            text += &format!("    lb_policy: {word}\n");
        }
        // The cluster's own, not the next one's.
        let end = section.find("\n  - name: ").unwrap_or(section.len());
        if !endpoints.is_empty() && !section[..end].contains(ONE) {
            return Err(missing());
        }
        let all: Vec<String> = endpoints.iter().map(one).collect();
        text += &match endpoints.is_empty() {
            true => section,
            false => section.replacen(ONE, &all.join(", "), 1),
        };
    }
    Ok(text)
}

fn one(endpoint: &SocketAddr) -> String {
    format!(
        "{{endpoint: {{address: {{socket_address: {{address: {}, port_value: {}}}}}}}}}",
        endpoint.ip(),
        endpoint.port()
    )
}

#[cfg(test)]
mod tests {
    use super::super::CLIENT_TEMPLATE;
    use super::*;

    #[test]
    fn endpoints_and_the_balancer_are_of_the_clusters_that_lead_straight_to_the_server() {
        let address = |text: &str| text.parse().expect("an address");
        let endpoints = [address("127.12.0.1:80"), address("127.12.0.2:81")];
        assert_eq!(
            with(CLIENT_TEMPLATE, None, &[]),
            Ok(CLIENT_TEMPLATE.to_owned())
        );
        let text = with(CLIENT_TEMPLATE, Some("LEAST_REQUEST"), &endpoints).expect("it fits");
        let both = "address: 127.12.0.1, port_value: 80}}}}, {endpoint: {address: {socket_address: {address: 127.12.0.2, port_value: 81}}}}]}]";
        assert_eq!(text.matches(both).count(), 2, "{text}");
        assert!(!text.contains("${ECHO_PORT}"));
        for name in CLUSTERS {
            let balanced =
                format!("- name: {name}\n    type: STATIC\n    lb_policy: LEAST_REQUEST\n");
            assert!(text.contains(&balanced), "{name}");
        }
        assert_eq!(text.matches("lb_policy").count(), 2);
    }
}
