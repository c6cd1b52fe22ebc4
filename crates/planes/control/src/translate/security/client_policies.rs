//! Policies of clients' calls to a service: the parts that Istio's workload messages cannot express.

use std::collections::BTreeMap;
use std::sync::Arc;

use voile_model::Namespace;
use voile_model::mesh::{
    CaptureSelection, ConnectionPool, DestinationRule, Location, Mesh, MeshService, PortTraffic,
    Protocol as Written, Resolution, RuleClient, Subset, Workload,
};
use voile_policy::{Mode, effective, is_taken};
use voile_xds::wire::{
    CapturedPort, ClientPolicy, MutualTls, PortPolicy, ServicePolicy, Subset as WireSubset,
    SubsetPort, WireProtocol, by_key, protocol_of,
};

/// The policy of a service for clients of a namespace (`None`: for namespaces without a policy of their own).
pub(in crate::translate) fn told(
    mesh: &Mesh,
    service: &MeshService,
    namespace: Option<&Namespace>,
) -> ServicePolicy {
    let rule = mesh.destination_rule(service, RuleClient::within(namespace));
    let mut told = service_policy(mesh, service, rule.map(|rule| &**rule));
    let selecting = namespace.map(|namespace| mesh.selecting_rules(service, namespace));
    let selecting = selecting.into_iter().flatten();
    told.for_clients = selecting
        .map(|rule| ClientPolicy {
            labels: rule.selector.clone().unwrap_or_default(),
            policy: service_policy(mesh, service, Some(rule)),
        })
        .collect();
    told
}

/// Protocol by port, and the workloads to be spoken to in plaintext although they have a sidecar; of those who obey a rule.
fn service_policy(
    mesh: &Mesh,
    service: &MeshService,
    rule: Option<&DestinationRule>,
) -> ServicePolicy {
    // Nobody in the mesh stands behind it, or nobody is to speak mutual TLS unasked.
    let never = service.location == Location::MeshExternal || !mesh.config.enable_auto_mtls;
    let workloads = mesh.workloads_of(service);
    let port_policy = |port: &voile_model::mesh::ServicePort| {
        let protocol = protocol_of(port.protocol)?;
        let traffic = mesh.traffic_by(service, rule, port.number, None);
        let pool = traffic.pool;
        let plaintext = workloads.iter().filter(|member| {
            let disabled = || {
                member.ports.get(&port.number).is_some_and(|target| {
                    effective(mesh, &member.workload, *target).mode == Mode::Disable
                        || !is_taken(mesh, &member.workload, *target)
                })
            };
            member.workload.has_sidecar && (never || disabled())
        });
        Some(PortPolicy {
            port: port.number,
            protocol,
            plaintext_workloads: plaintext
                .map(|member| member.workload.uid.clone())
                .collect(),
            http2_upgrade: upgrades(mesh, pool, protocol),
            retry: mesh.config.default_retry.clone(),
            client_protocol: pool.use_client_protocol,
            traffic,
        })
    };
    ServicePolicy {
        ports: by_key(service.ports.iter().filter_map(port_policy)),
        plaintext: false,
        first_address_only: service.resolution == Resolution::DnsRoundRobin,
        subsets: rule.map_or_else(BTreeMap::new, |rule| subsets(mesh, service, rule)),
        for_clients: Vec::new(),
    }
}

/// The parts of a service that routes may lead to. Which workloads are in one follows from their labels, so nothing here changes
/// with them.
fn subsets(
    mesh: &Mesh,
    service: &MeshService,
    rule: &DestinationRule,
) -> BTreeMap<Arc<str>, WireSubset> {
    let port = |port: &voile_model::mesh::ServicePort, name: &str| {
        let protocol = protocol_of(port.protocol)?;
        let traffic = mesh.traffic_by(service, Some(rule), port.number, Some(name));
        let pool = traffic.pool;
        Some(SubsetPort {
            port: port.number,
            http2_upgrade: upgrades(mesh, pool, protocol),
            client_protocol: pool.use_client_protocol,
            traffic,
        })
    };
    let one = |(name, subset): (&Arc<str>, &Subset)| WireSubset {
        name: name.clone(),
        labels: subset.labels.clone(),
        ports: by_key(service.ports.iter().filter_map(|one| port(one, name))),
    };
    by_key(rule.subsets.iter().map(one))
}

/// Returns true if HTTP/1.1 to a port travels as HTTP/2: only on ports that are declared as HTTP. A DestinationRule overrides
/// the mesh's setting.
fn upgrades(mesh: &Mesh, pool: ConnectionPool, protocol: WireProtocol) -> bool {
    pool.http2_upgrade.unwrap_or(mesh.config.http2_upgrade)
        && !pool.use_client_protocol
        && protocol == WireProtocol::Http
}

/// The same for a workload that is called by its own address.
pub(in crate::translate) fn workload_policy(mesh: &Mesh, workload: &Workload) -> ServicePolicy {
    let never = !mesh.config.enable_auto_mtls;
    let captured = crate::translate::capture::capture(
        mesh,
        workload,
        mesh.sidecar_for(workload).map(|s| &**s),
    );
    let disabled = |mode: MutualTls| never || mode == MutualTls::Disable;
    let port_policy = |port: &CapturedPort| {
        let plaintext = disabled(port.mutual_tls) || !is_taken(mesh, workload, port.port);
        let uid = plaintext.then(|| workload.uid.clone());
        PortPolicy {
            port: port.port,
            protocol: port.protocol,
            plaintext_workloads: uid.into_iter().collect(),
            // A workload called by its own address is no service's host, which is what rules are for.
            http2_upgrade: upgrades(mesh, ConnectionPool::default(), port.protocol),
            retry: mesh.config.default_retry.clone(),
            client_protocol: false,
            traffic: PortTraffic::default(),
        }
    };
    // Ports that nothing but the extent of capture speaks of.
    let named = workload.captured_ports.named().iter();
    let named = named.filter(|port| !captured.ports.contains_key(port));
    let named = named.map(|port| {
        port_policy(&CapturedPort {
            port: *port,
            protocol: protocol_of(Written::undeclared(*port)).unwrap_or(WireProtocol::Auto),
            mutual_tls: captured.mutual_tls,
            service: None,
            endpoint: None,
        })
    });
    ServicePolicy {
        ports: by_key(captured.ports.values().map(port_policy).chain(named)),
        plaintext: disabled(captured.mutual_tls)
            || matches!(workload.captured_ports, CaptureSelection::Only(_)),
        ..ServicePolicy::default()
    }
}

#[cfg(test)]
mod tests {
    use voile_xds::wire::WireType;

    const MESH: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio-injection: enabled}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: http-open, port: 81, targetPort: 8081}]
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}, annotations: {ANNOTATIONS}}
spec: {containers: [{name: app, command: [app]}]}
status: {podIP: 10.0.0.1, phase: Running}
"#;
    const LISTENER: &str = r#"
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  ingress:
  - {port: {number: 8081, protocol: HTTP, name: http}, captureMode: NONE, defaultEndpoint: "127.0.0.1:8080"}
"#;

    /// Ports called in plaintext, by service and by the workload's own address (`*`: those that nobody speaks of).
    fn in_plaintext(text: &str) -> (Vec<u16>, Vec<String>) {
        let files = [voile_model::SourceFile::new("mesh.yaml", text)];
        let (mesh, problems) = voile_model::check(&files, None);
        let wrong = problems.iter().any(voile_model::Diagnostic::is_error);
        assert!(!wrong, "{problems:?}");
        let service = mesh.services.values().next().expect("a service");
        let ports = super::told(&mesh, service, None).ports.into_values();
        let by_service = ports.filter(|port| !port.plaintext_workloads.is_empty());
        let workload = mesh.workloads.values().next().expect("a workload");
        let own = super::workload_policy(&mesh, workload);
        let by_address = own.ports.values().map(|port| {
            let sign = if port.plaintext_workloads.is_empty() {
                '+'
            } else {
                '~'
            };
            format!("{}{sign}", port.port)
        });
        let others = own.plaintext.then(|| "*~".to_owned());
        (
            by_service.map(|port| port.port.get()).collect(),
            by_address.chain(others).collect(),
        )
    }

    #[test]
    fn retries_of_the_mesh_keep_times_below_a_millisecond() {
        let config = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\n\
             data: {mesh: \"defaultHttpRetryPolicy: {attempts: 1, perTryTimeout: 500us, backoff: 10us}\"}\n";
        let text = MESH.replace("ANNOTATIONS", "") + config;
        let files = [voile_model::SourceFile::new("mesh.yaml", text)];
        let (mesh, problems) = voile_model::check(&files, None);
        assert_eq!(problems, []);
        let service = mesh.services.values().next().expect("a service");
        let told = super::told(&mesh, service, None).to_wire();
        let retry = told.ports[0].retry.as_ref().expect("a policy");
        // 0 on the wire means no limit.
        assert_eq!((retry.per_try_timeout_ms, retry.backoff_ms), (1, 1));
    }

    #[test]
    fn what_some_clients_are_told_is_part_of_what_a_version_is_of() {
        let version = |rule: &str| {
            let rule = format!(
                "{MESH}---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: web, namespace: bank}}\n\
                 spec: {{host: web.shop.svc.cluster.local, {rule}}}\n"
            );
            let text = rule.replace("ANNOTATIONS", "");
            let files = [voile_model::SourceFile::new("mesh.yaml", text)];
            let (mesh, problems) = voile_model::check(&files, None);
            assert_eq!(problems, []);
            crate::translate::translate(&mesh, None).0.version
        };
        let one = version("subsets: [{name: one, labels: {a: b}}]");
        assert_eq!(one, version("subsets: [{name: one, labels: {a: b}}]"));
        assert_ne!(one, version("subsets: [{name: one, labels: {a: c}}]"));
        assert_ne!(one, version("exportTo: [\"~\"]"));
    }

    #[test]
    fn a_port_that_no_sidecar_takes_is_called_in_plaintext_whatever_the_mode() {
        let annotated = |name: &str, ports: &str| {
            MESH.replace(
                "ANNOTATIONS",
                &format!("traffic.sidecar.istio.io/{name}InboundPorts: \"{ports}\""),
            )
        };
        let cases: [(String, &[u16], &[&str]); 5] = [
            (MESH.replace("ANNOTATIONS", ""), &[], &["8080+", "8081+"]),
            (
                annotated("exclude", "8081,9000"),
                &[81],
                &["8080+", "8081~", "9000~"],
            ),
            (
                annotated("include", "8080,9000"),
                &[81],
                &["8080+", "8081~", "9000+", "*~"],
            ),
            (
                annotated("include", "8080,8081"),
                &[],
                &["8080+", "8081+", "*~"],
            ),
            // Without redirection a sidecar listens there itself.
            (annotated("exclude", "8081") + LISTENER, &[], &["8081+"]),
        ];
        for (text, by_service, by_address) in cases {
            let (services, addresses) = in_plaintext(&text);
            assert_eq!(services, by_service, "{text}");
            assert_eq!(addresses, by_address, "{text}");
        }
    }
}
